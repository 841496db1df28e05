"""Many pairs of collective calls that ranks mix up, one after the other, each on a communicator of its own.

``mpiexec -n N python many_mismatches.py FOLDER FIRST END`` tries the cases FIRST to END - 1, which are lines in the
file FOLDER/cases. Each rank writes a line to FOLDER/rank-N.log when it has made a case ready, one for each call that
returned something wrong, and one with what came of the case:

- ``returned``: all calls and the close of the mesh returned
- the class and the text of what a call raised, or the close of the mesh

Then it goes on with the next case, on the same ranks. What a dead mesh has opened stays open, as messages may still be
on their way there. Numbers in the file FOLDER/steps, in memory that the ranks share, say how far each rank is. If the
other ranks are not done soon after an error here, the error ends the job, as it would in any program.

The watchdog does what it always does, only sooner.
"""

import json
import mmap
import sys
import time
from pathlib import Path

import numpy as np
from mismatches import Calls, mix_up, settle

from meshcomm.core.failures import liveness, watchdog
from meshcomm.core.ranks.meshes import location_in
from meshcomm.core.ranks.mpi import lasting_failures

READY_WITHIN = 60.0  # seconds for the other ranks to get ready for a case
DONE_WITHIN = 0.5  # seconds for the other ranks to be done after an error here
PAUSE = 2e-4  # seconds between two looks
# Seconds.
SOON = {"WATCH_EVERY": 0.02, "ASK_AFTER": 0.1, "ASK_EVERY": 0.03, "ASK_EVERY_WITH_ERROR": 0.03, "WRITE_WITHIN": 0.05}


class Steps:
    """How far the ranks are: each writes one number, and waits for those of the others."""

    def __init__(self, path, rank):
        self._rank = rank
        with path.open("r+b") as file:
            self._numbers = np.frombuffer(mmap.mmap(file.fileno(), 0), dtype=np.int64)

    def reach(self, number, seconds):
        """Reach *number*, and return whether all other ranks do within *seconds*."""
        self._numbers[self._rank] = number
        end = time.monotonic() + seconds
        while self._numbers.min() < number:
            if time.monotonic() > end:
                return False
            time.sleep(PAUSE)
        return True


def run(number, case, comm, steps, note):
    """Try one case: FIRST SECOND MODE OTHER."""
    first, second, mode, other = case
    calls, wrong = Calls(comm), []

    def make(*names):
        for name in names:
            if not calls.is_right(name):
                wrong.append(name)
                note(number, wrong=wrong)  # now: the next call may end the job

    settle(make, first, second, mode)
    assert not wrong, wrong
    rank_set = location_in(calls.mesh).rank_set
    note(number, outcome="ready")
    assert steps.reach(2 * number + 1, READY_WITHIN), "other ranks are not ready"
    error = None
    try:
        mix_up(make, first, second, mode, calls.me == int(other))
        calls.mesh.close()
    except Exception as raised:
        error = raised
    outcome = "returned" if error is None else f"{type(error).__name__}: {error}"
    note(number, outcome=outcome, over=rank_set.call_lock.end_reason is not None or bool(lasting_failures))
    if not steps.reach(2 * number + 2, DONE_WITHIN if error is not None else READY_WITHIN):
        raise error or AssertionError("other ranks are not done")


def main(folder, first, end):
    from mpi4py import MPI

    for module in watchdog, liveness:
        vars(module).update((name, seconds) for name, seconds in SOON.items() if name in vars(module))
    folder, rank = Path(folder), MPI.COMM_WORLD.rank
    cases = [line.split() for line in (folder / "cases").read_text().splitlines()]
    steps = Steps(folder / "steps", rank)
    with (folder / f"rank-{rank}.log").open("a", buffering=1) as log:

        def note(number, **more):
            print(json.dumps({"case": number, **more}), file=log)

        for number in range(int(first), int(end)):
            run(number, cases[number], MPI.COMM_WORLD.Dup(), steps, note)


if __name__ == "__main__":
    main(*sys.argv[1:])
