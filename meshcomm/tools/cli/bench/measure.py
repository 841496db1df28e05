"""Time an operation in turns with its reference, and then check its result.

Other work on the machine slows down both, so their ratio varies less than their times.
"""

import time
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from meshcomm.core.ranks.communicator import Communicator
from meshcomm.tools.cli.turns import Run, Turns

BUDGET = 0.35
"""Seconds after which no further round of a size begins, unless ``--rounds`` is given."""

MIN_ROUNDS, MAX_ROUNDS = 5, 50
"""Number of rounds of a size, unless ``--rounds`` is given."""


class Case(NamedTuple):
    """An operation on blocks of one size. All ranks run it together.

    Parameters
    ----------
    block: bytes of the largest block of a rank
    moved: bytes of the result of the operation, from which the rate is computed
    run: the operation
    reference: call to compare with
    count_wrong: function that runs the operation on other values, and returns how many elements of this rank are wrong
    """

    block: int
    moved: int
    run: Run
    reference: Run
    count_wrong: Callable[[], int]


class Row(NamedTuple):
    """The measurements of one case.

    *seconds* are the lower quartile, the median and the upper quartile of the rounds. *ratio* is the median of the
    ratios to the reference of the same round. *wrong_elements* counts them on all ranks.
    """

    block: int
    moved: int
    rounds: int
    seconds: tuple[float, float, float]
    gigabytes_per_second: float
    ratio: float
    wrong_elements: int

    @property
    def took(self) -> float:
        """Seconds of a typical round: the operation and its reference."""
        return self.seconds[1] * (1 + 1 / self.ratio)


def measure_case(communicator: Communicator, case: Case, rounds: int | None = None) -> Row:
    """Measure *case* in a number of *rounds*, by default as many as fit in `BUDGET`. Collective."""
    turns = Turns(communicator, (case.run, case.reference))
    deadline = time.perf_counter() + BUDGET
    while turns.num_turns < (rounds or MAX_ROUNDS):
        if (
            rounds is None
            and turns.num_turns >= MIN_ROUNDS
            and any(communicator.allgather_json(time.perf_counter() > deadline))
        ):
            break
        turns.take_turn()
    seconds = turns.seconds()
    low, median, high = np.quantile(seconds[:, 0], [0.25, 0.5, 0.75]).tolist()
    ratio = float(np.median(seconds[:, 0] / seconds[:, 1]))
    wrong_elements = sum(communicator.allgather_json(case.count_wrong()))
    return Row(
        case.block, case.moved, turns.num_turns, (low, median, high), case.moved / median * 1e-9, ratio, wrong_elements
    )
