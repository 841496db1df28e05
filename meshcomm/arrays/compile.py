"""Execution: a plan and the block of a device -> its new block."""

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from meshcomm._tuning import DEFAULT_SCRATCH, ROUND_BYTES
from meshcomm._types import Array, Bytes
from meshcomm.layouts.boxes import Box, Boxes, box_shape, in_block, single_box
from meshcomm.memory.blocks import NOTHING, as_block, as_bytes, nbytes, new_bytes
from meshcomm.memory.scratch import own_room, scratch
from meshcomm.plans.costs import chosen
from meshcomm.plans.plan import Plan
from meshcomm.plans.step import AllGather, Slice, Step, largest_block
from meshcomm.ranks import agreement
from meshcomm.ranks.teams import Group, Place
from meshcomm.transport.crossing import Ends
from meshcomm.transport.exchange import Far, Part, Where, own_copies
from meshcomm.transport.in_place import OnNode
from meshcomm.transport.packed import Exchange, Gather, Permute, Started


class Operation(Protocol):
    """What turns blocks into other ones; Collective over its group, if it has one."""

    def run(self, sources: list[Bytes], targets: list[Bytes]) -> None:
        """Fill the new blocks."""


def operations(plan: Plan, place: Place, gathers: bool = True) -> list[tuple[Operation, int]]:
    """Return what the device at *place* does for *plan*, and the bytes of each new block. Local.

    Slices wait for the step after them. Unless it *gathers*, an AllGather is an `Exchange` too, which can be started.
    """
    made = [
        (_communication(step, place, gathers), _bytes(step.target_box(place.device), step.itemsize))
        for step in plan.steps
        if not isinstance(step, Slice)
    ]
    if not plan.steps or isinstance(plan.steps[-1], Slice):
        made.append(_cut(plan, place.device))
    return made


def prepare(plan: Plan, place: Place) -> Callable[..., Array | None]:
    """Return a function from the block of the device at *place* to its new block, *out* if it is given.

    Local; to call it is Collective. Where there is no new block it returns None.
    """
    steps = [
        (_on_node(plan, number, place, operation), size)
        for number, (operation, size) in enumerate(operations(plan, place))
    ]
    last, size = steps[-1]
    between = [(operation, f"between {number % 2}", size) for number, (operation, size) in enumerate(steps[:-1])]
    shape, dtype = target_shape(plan, place.device), plan.dtype

    def run(block: Array | None, out: Array | None = None) -> Array | None:
        data = NOTHING if block is None else as_bytes(block)
        for operation, use, length in between:
            target = scratch(use, length)
            operation.run([data], [target])
            data = target
        if out is not None:
            last.run([data], [as_bytes(out)])
            return out
        target = new_bytes(size)
        last.run([data], [target])
        return None if shape is None else as_block(target, shape, dtype)

    return run


def prepare_start(plan: Plan, place: Place) -> Callable[..., tuple[Started | None, Array | None]]:
    """Return a function that begins what `prepare` does, by a plan of one step. Local; to call it is Collective.

    It returns the exchange on its way, None if there is nothing to exchange, and the new block, not yet filled.
    """
    ((operation, size),) = operations(plan, place, gathers=False)
    shape, dtype = target_shape(plan, place.device), plan.dtype

    def start(block: Array | None, out: Array | None = None) -> tuple[Started | None, Array | None]:
        data = NOTHING if block is None else as_bytes(block)
        target = new_bytes(size) if out is None else as_bytes(out)
        started = None
        if isinstance(operation, Exchange):
            started = operation.start([data], [target], own_room)
        else:
            operation.run([data], [target])
        if out is None and shape is not None:
            out = as_block(target, shape, dtype)
        return started, out

    return start


def target_shape(plan: Plan, device: int) -> tuple[int, ...] | None:
    """Return the shape of the new block of *device*, None if it gets none. Local."""
    box = plan.steps[-1].target_box(device) if plan.steps else plan.target.block_box(plan.shape, device)
    return None if box is None else box_shape(box)


def exchange_part(step: Step, device: int) -> Part:
    """Return what *device* sends and receives in *step*, in indices of its blocks. Local."""
    held, target = step.held_box(device), step.target_box(device)
    return Part(
        step.itemsize,
        None if held is None else box_shape(held),
        in_block(held, step.sends(device)),
        None if target is None else box_shape(target),
        in_block(target, step.receives(device)),
    )


def most_bytes(step: Step) -> int:
    """Return the bytes of the largest block on any device before or after *step*, the same on all ranks. Local."""
    return max(largest_block(step.shape, layout) for layout in (step.held, step.target)) * step.itemsize


def group_of(step: Step, place: Place) -> Group:
    """Return the group in which the device at *place* exchanges in *step*. Local."""
    devices = step.group_of(place.device)
    members = tuple(step.ranks[device] for device in devices)
    # Groups along the same mesh dimensions are the rows of one assignment; the first device of each is its colour.
    return place.team.group((step.mesh, step.dims), devices[0], members)


def _communication(step: Step, place: Place, gathers: bool) -> Operation:
    """Return the exchange of *step* for the device at *place*."""
    group, here, part = group_of(step, place), step.place_of(place.device), exchange_part(step, place.device)
    if gathers and isinstance(step, AllGather) and step.at_once:
        return Gather(group, here, part)
    most = most_bytes(step)
    if step.permutes:
        return Permute(group, here, [part], most, step.parts)
    rounds = step.parts
    if gathers and place.team.machine.one_node and not place.team.crowded:
        rounds = max(rounds, most // ROUND_BYTES)
    return Exchange(group, here, [part], most, rounds)


def _on_node(plan: Plan, number: int, place: Place, operation: Operation) -> Operation:
    """Return what does the same as the exchange of a step, but straight between blocks where ranks share memory."""
    if not isinstance(operation, Exchange | Gather):
        return operation
    steps = [step for step in plan.steps if not isinstance(step, Slice)]
    step = steps[number]
    here, part = step.place_of(place.device), exchange_part(step, place.device)
    fingerprint = agreement.fingerprint(f"{step!r} of {step.shape}, {step.itemsize} bytes")
    far, most = far_blocks(step, place.device), most_bytes(step)
    ends = ends_of(step, place.device) if chosen(step, place.team.machine) else None
    bound = DEFAULT_SCRATCH if plan.max_scratch_bytes is None else plan.max_scratch_bytes
    # Between several exchanges there are blocks already that the bound is for.
    return OnNode(operation, operation.group, here, part, far, most, fingerprint, ends, bound, len(steps) == 1)


def ends_of(step: Step, device: int) -> Ends:
    """Return what the ranks of the group of *device* send and receive, by their places. Local."""

    def device_at(place: int) -> int:
        return int(step.members(device, np.array([place], dtype=np.intp))[0])

    source, target = ([start for start, _ in box or ()] for box in (step.held_box(device), step.target_box(device)))
    return Ends(
        lambda place: step.sends(device_at(place)), lambda place: step.receives(device_at(place)), source, target
    )


def far_blocks(step: Step, device: int) -> Far:
    """Return where the boxes are that *device* exchanges, in the blocks of the others of its group. Local."""
    receives, sends = step.receives(device), step.sends(device)

    def far(boxes: Boxes, box_of: Callable[[int], Box | None]) -> Where:
        def where(peer: int) -> tuple[tuple[int, ...], Any]:
            (other,) = step.members(device, np.array([peer], dtype=np.intp)).tolist()
            block = box_of(other)
            assert block is not None
            first = np.array([start for start, _ in block], dtype=np.intp)
            return box_shape(block), boxes.starts[boxes.which[boxes.peers == peer]] - first

        return where

    return Far(far(receives, step.held_box), far(sends, step.target_box))


def _cut(plan: Plan, device: int) -> tuple[Operation, int]:
    """Return the copy of what *device* keeps of its block, and its bytes."""
    step = plan.copy_step
    held, target = step.held_box(device), step.target_box(device)
    assert held is not None
    assert target is not None
    whole = single_box(target)
    part = Part(step.itemsize, box_shape(held), in_block(held, whole), box_shape(target), in_block(target, whole))
    copies = own_copies([part], 0)
    assert copies is not None
    return copies, _bytes(target, step.itemsize)


def _bytes(box: Box | None, itemsize: int) -> int:
    return 0 if box is None else nbytes(box_shape(box), itemsize)
