"""The scratch limit: in how many rounds a step runs, so that it keeps to the limit.

Both sides of the limit speak for exchanges over MPI, which pack and unpack in scratch.
"""

from dataclasses import replace

from meshcomm.core.plans.step import Slice, Step, Steps


def minimum_scratch(steps: Steps) -> int:
    """Return the minimum of scratch, in bytes, with which *steps* can run: one element of each box in each round."""
    rows = ((step.box_bounds, step.itemsize, between) for step, between in _exchanges(steps).values())
    return max((between + (bounds.sent + bounds.received) * itemsize for bounds, itemsize, between in rows), default=0)


def _exchanges(steps: Steps) -> dict[int, tuple[Step, int]]:
    """Return the steps that exchange, by number, with the bytes of blocks between steps, which are scratch, too."""
    exchanges, block_bytes = {}, 0
    for number, step in enumerate(steps):
        if not isinstance(step, Slice):
            new = 0 if step is steps[-1] else step.target.largest_block(step.shape) * step.itemsize
            exchanges[number], block_bytes = (step, block_bytes + new), new
    return exchanges


def within_limit(steps: Steps, limit: int) -> Steps | None:
    """Return *steps* in the number of rounds that keeps to *limit* bytes of scratch; None if no number does."""
    limited = list(steps)
    for number, (step, between) in _exchanges(steps).items():
        rounds = _rounds(step, limit - between)
        if rounds is None:
            return None
        if rounds > 1:
            limited[number] = replace(step, rounds=rounds)
    return tuple(limited)


def _rounds(step: Step, free: int) -> int | None:
    """Return the number of rounds in which *step* keeps to *free* bytes of scratch; None if no number does."""
    bounds = step.box_bounds
    if (bounds.sent_elements + bounds.received_elements) * step.itemsize <= free:
        return 1
    # The inverse of `partition.most_in_a_round`: a round takes one element of each box, and a share of the others.
    share = free // step.itemsize - bounds.sent - bounds.received
    beyond = bounds.sent_elements - bounds.sent, bounds.received_elements - bounds.received
    if share <= 0:
        return max(beyond) + 1 if share == 0 else None
    return sum(beyond) // (share + 1) + 1
