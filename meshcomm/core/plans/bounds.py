"""The scratch limit: in how many rounds a step runs, so that it keeps to the limit.

The limit and the bytes that are compared with it are those of exchanges over MPI, which pack and unpack in scratch.
"""

from dataclasses import replace

from meshcomm.core.plans.step import Slice, Step, Steps


def minimum_scratch(steps: Steps) -> int:
    """Return the minimum of scratch, in bytes, that *steps* need: one element of each box in each round."""
    rows = ((step.box_bounds, step.itemsize, block_bytes) for step, block_bytes in _exchanges(steps).values())
    return max((block_bytes + (bounds.sent + bounds.received) * size for bounds, size, block_bytes in rows), default=0)


def _exchanges(steps: Steps) -> dict[int, tuple[Step, int]]:
    """Return the steps that exchange, by number, with the bytes of blocks between steps, which are scratch, too."""
    exchanges, block_bytes = {}, 0
    for number, step in enumerate(steps):
        if not isinstance(step, Slice):
            target_bytes = 0 if step is steps[-1] else step.target.largest_block(step.shape) * step.itemsize
            exchanges[number], block_bytes = (step, block_bytes + target_bytes), target_bytes
    return exchanges


def within_limit(steps: Steps, limit: int) -> Steps | None:
    """Return *steps* with enough rounds to keep to *limit* bytes of scratch; None if no number of rounds does."""
    new_steps = list(steps)
    for number, (step, block_bytes) in _exchanges(steps).items():
        rounds = _round_count(step, limit - block_bytes)
        if rounds is None:
            return None
        if rounds > 1:
            new_steps[number] = replace(step, rounds=rounds)
    return tuple(new_steps)


def _round_count(step: Step, free_bytes: int) -> int | None:
    """Return the number of rounds in which *step* keeps to *free_bytes* of scratch; None if no number does."""
    bounds = step.box_bounds
    if (bounds.sent_elements + bounds.received_elements) * step.itemsize <= free_bytes:
        return 1
    # The inverse of `max_round_elements`: a round takes one element of each box, and a fraction of the others.
    round_elements = free_bytes // step.itemsize - bounds.sent - bounds.received
    other_elements = bounds.sent_elements - bounds.sent, bounds.received_elements - bounds.received
    if round_elements <= 0:
        return max(other_elements) + 1 if round_elements == 0 else None
    return sum(other_elements) // (round_elements + 1) + 1
