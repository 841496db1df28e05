"""The scratch limit: in how many rounds a step runs, so that it keeps to the limit."""

from dataclasses import replace

from meshcomm.plans.step import Slice, Step, Steps, largest_block


def minimum_scratch(steps: Steps) -> int:
    """Return the least scratch with which *steps* can run, one element of each box at a time."""
    mosts = ((step.most_boxes, step.itemsize, between) for step, between in _exchanges(steps).values())
    return max((between + (most.sent + most.received) * itemsize for most, itemsize, between in mosts), default=0)


def _exchanges(steps: Steps) -> dict[int, tuple[Step, int]]:
    """Return by number the steps that exchange, and the bytes of blocks between steps, which are scratch too."""
    found, held = {}, 0
    for number, step in enumerate(steps):
        if not isinstance(step, Slice):
            new = 0 if step is steps[-1] else largest_block(step.shape, step.target) * step.itemsize
            found[number], held = (step, held + new), new
    return found


def within_limit(steps: Steps, bound: int) -> Steps | None:
    """Return *steps* in as many rounds as it takes to keep to *bound*, or None if no number of rounds does."""
    fitted = list(steps)
    for number, (step, between) in _exchanges(steps).items():
        rounds = _rounds(step, bound - between)
        if rounds is None:
            return None
        if rounds > 1:
            fitted[number] = replace(step, rounds=rounds)
    return tuple(fitted)


def _rounds(step: Step, room: int) -> int | None:
    """Return in how many rounds *step* keeps its scratch within *room* bytes, or None if it cannot."""
    most = step.most_boxes
    if (most.sent_elements + most.received_elements) * step.itemsize <= room:
        return 1
    # A round takes an even share of what is beyond one element of each box, and this one element: see `Step.traffic`.
    share = room // step.itemsize - most.sent - most.received
    beyond = most.sent_elements - most.sent, most.received_elements - most.received
    if share <= 0:
        return max(beyond) + 1 if share == 0 else None
    return sum(beyond) // (share + 1) + 1
