"""From plans to exchanges: no other module turns a plan into exchanges.

Each step of a plan that moves data is described once, as a `BoxExchange` of boxes in global indices.
`meshcomm.core.transport.choose` decides how its bytes go. Slices move nothing: the next step takes its boxes from the
block that the device holds.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache, partial
from typing import TypeAlias

import numpy as np

from meshcomm.core._tuning import DEFAULT_SCRATCH
from meshcomm.core._types import Array, Bytes, DType, Shape
from meshcomm.core._units import bytes_text
from meshcomm.core.layouts.boxes import Box, box_shape
from meshcomm.core.layouts.layout import Layout
from meshcomm.core.memory.blocks import NOTHING, as_block, as_bytes, block_bytes, new_bytes
from meshcomm.core.memory.copies import contiguous, exact_copy, opaque
from meshcomm.core.memory.scratch import own_buffer, scratch
from meshcomm.core.plans.costs import relay_pays
from meshcomm.core.plans.plan import Plan
from meshcomm.core.plans.step import AllGather, Slice, Step
from meshcomm.core.ranks.agreement import fingerprint
from meshcomm.core.ranks.calls import leave_with
from meshcomm.core.ranks.communicator import Pending
from meshcomm.core.ranks.rank_sets import Group, Location
from meshcomm.core.transport import choose
from meshcomm.core.transport.exchange import (
    BoxExchange,
    ExchangeSpec,
    Order,
    Transport,
    from_boxes,
    has_intervals,
    wrong_length,
)
from meshcomm.core.transport.local_copies import block_offsets

_FEW_DEVICES = 64  # up to this many, it is faster to intersect their boxes than to find overlaps by the cuts of axes

Move: TypeAlias = Callable[[Array | None, Array | None], Array | None]
"""Function from a block to the new block, which is written into the second argument if given. None is no block."""

BoxOfDevice: TypeAlias = Callable[[int], Box]
"""Function from a device to the box of the block that it holds, which contains the box that the plan begins with."""

Start: TypeAlias = Callable[[Array | None, Array | None], tuple[Pending | None, Array | None]]
"""Like `Move`, but it does not wait: it returns the exchange in flight, if any, and the block to be filled."""


def prepare(plan: Plan, location: Location, order: Order = None, held_box: BoxOfDevice | None = None) -> Move:
    """Return a function that makes the new block of the device at *location* by *plan*. To call it is Collective.

    In memory, the axes of the old block may be in another *order*: see `meshcomm.core.transport.exchange.BoxExchange`.
    The old block may be larger than the one that the plan begins with: *held_box* is its box, in indices of the plan.
    """
    if order is None and held_box is None and plan.source.mesh is plan.target.mesh and plan.source.mesh.size == 1:
        return partial(_copied_block, plan.shape, plan.dtype.itemsize)
    exchanges = operations(plan, location, order, held_box)
    last_exchange, nbytes = exchanges[-1]
    scratch_moves = [(exchange, f"between {i % 2}", nbytes) for i, (exchange, nbytes) in enumerate(exchanges[:-1])]
    shape, dtype, is_local = target_shape(plan, location.device), plan.dtype, not exchanging_steps(plan)

    def move(block: Array | None, out: Array | None = None) -> Array | None:
        # Every relayout runs this: each call of a function costs time.
        try:
            data = as_bytes(block) if block is not None and block.flags.c_contiguous else _bytes_of_block(block)
            for transport, scratch_name, scratch_bytes in scratch_moves:
                target = scratch(scratch_name, scratch_bytes)
                transport.run([data], [target])
                data = target
            if out is not None:
                last_exchange.run([data], [as_bytes(out)])
                return out
            try:
                target = new_bytes(nbytes)
            except MemoryError:
                raise no_memory(plan.target, plan.shape, dtype, location.device) from None
            last_exchange.run([data], [target])
        except BaseException as error:
            if not is_local:
                leave_with(error, location.rank_set)
            raise
        return None if shape is None else np.ndarray(shape, dtype, target)

    return move


def _copied_block(shape: Shape, itemsize: int, block: Array | None, out: Array | None = None) -> Array:
    """Return the block of the only device, in new memory or in *out*."""
    assert block is not None
    for array in (block, block if out is None else out):
        if array.nbytes != block_bytes(shape, itemsize):
            raise wrong_length(array.nbytes, block_bytes(shape, itemsize))
    if out is None:
        return exact_copy(block)
    opaque(out)[...] = opaque(block)
    return out


def _bytes_of_block(block: Array | None) -> Bytes:
    """Return the bytes of a block, also of one with gaps, such as a slice; none for None."""
    return NOTHING if block is None else as_bytes(contiguous(block))


def operations(
    plan: Plan, location: Location, order: Order = None, held_box: BoxOfDevice | None = None
) -> list[tuple[Transport, int]]:
    """Return the exchanges and copies of *plan* on the device at *location*, with the byte count of each result."""
    steps = exchanging_steps(plan)
    result: list[tuple[Transport, int]] = []
    for step in steps:
        box_exchange = (
            exchanged_boxes(step, location)
            if result
            else replace(exchanged_boxes(step, location, held_box), order=order)
        )
        exchange = choose.exchange(group_of(step, location), [box_exchange], _exchange_spec(plan, step, location))
        result.append((exchange, box_exchange.target_bytes(box_exchange.position)))
    if not steps or plan.steps[-1] is not steps[-1]:
        local_exchange = _local_exchange(plan, location.device)
        if not result:
            source_box = local_exchange.source if held_box is None else lambda _: held_box(location.device)
            local_exchange = replace(local_exchange, source=source_box, order=order)
        result.append((choose.LocalCopy([local_exchange]), _target_bytes(plan.copy_step, location)))
    return result


def prepare_start(plan: Plan, location: Location) -> Start:
    """Return a function that begins to make the new block by a *plan* of one step.

    To call it is Collective, but does not wait.
    """
    steps = exchanging_steps(plan)
    shape, dtype = target_shape(plan, location.device), plan.dtype
    if not steps:
        return _complete_at_once(prepare(plan, location))
    (step,) = steps
    nbytes = _target_bytes(step, location)
    transport = choose.Nonblocking(
        group_of(step, location), [exchanged_boxes(step, location)], _exchange_spec(plan, step, location)
    )

    def start(block: Array | None, out: Array | None = None) -> tuple[Pending | None, Array | None]:
        data = as_bytes(block) if block is not None and block.flags.c_contiguous else _bytes_of_block(block)
        target = new_bytes(nbytes) if out is None else as_bytes(out)
        pending = transport.start([data], [target], own_buffer)
        return pending, out if out is not None or shape is None else np.ndarray(shape, dtype, target)

    return start


def _complete_at_once(move: Move) -> Start:
    def start(block: Array | None, out: Array | None = None) -> tuple[Pending | None, Array | None]:
        return None, move(block, out)

    return start


class _BatchedPlan:
    """The data of a plan of one step that an exchange of several tensors needs."""

    def __init__(self, plan: Plan, location: Location) -> None:
        (self.step,) = exchanging_steps(plan)
        self.box_exchange, self.step_text = exchanged_boxes(self.step, location), _step_text(self.step)
        self.max_block_bytes = max_block_bytes(self.step)
        self.target_bytes, self.shape = _target_bytes(self.step, location), target_shape(plan, location.device)


def prepare_together(plans: Sequence[Plan], location: Location) -> Callable[[list[Array | None]], list[Array | None]]:
    """Return a function that makes the new blocks of several *plans* in one exchange. To call it is Collective.

    Each plan has one step, and all of them exchange among the same ranks.
    """
    batched_by_id = {id(plan): _BatchedPlan(plan, location) for plan in {id(plan): plan for plan in plans}.values()}
    batched_plans = [batched_by_id[id(plan)] for plan in plans]  # thousands of tensors may share a few plans
    box_exchanges = [x.box_exchange for x in batched_plans]
    sizes, shapes = [x.target_bytes for x in batched_plans], [x.shape for x in batched_plans]
    offsets = block_offsets(sizes)
    call_id = fingerprint("; ".join(x.step_text for x in batched_plans))
    spec = ExchangeSpec(call_id, sum(x.max_block_bytes for x in batched_plans))
    transport = choose.exchange(group_of(batched_plans[0].step, location), box_exchanges, spec)
    dtypes = [plan.dtype for plan in plans]

    def move(blocks: list[Array | None]) -> list[Array | None]:
        try:
            memory = new_bytes(offsets[-1])
            targets = [memory[start : start + size] for start, size in zip(offsets, sizes, strict=False)]
            transport.run([_bytes_of_block(block) for block in blocks], targets, memory)
        except BaseException as error:
            leave_with(error, location.rank_set)
            raise
        blocks_to_make = zip(targets, shapes, dtypes, strict=True)
        return [None if shape is None else as_block(target, shape, dtype) for target, shape, dtype in blocks_to_make]

    return move


def exchanging_steps(plan: Plan) -> list[Step]:
    """Return the steps of *plan* that move data between ranks."""
    return [step for step in plan.steps if not isinstance(step, Slice)]


def target_shape(plan: Plan, device: int) -> Shape | None:
    """Return the shape of the new block of *device*, None if it gets none."""
    box = plan.steps[-1].target_box(device) if plan.steps else plan.target.block_box(plan.shape, device)
    return None if box is None else box_shape(box)


def no_memory(layout: Layout, shape: Shape, dtype: DType, device: int) -> MemoryError:
    """Return the error for a new block of *device* that this process has no memory for."""
    block_shape = layout.block_shape(shape, device)
    return MemoryError(
        f"a tensor of shape {shape} and dtype {dtype} in {layout.specs_text} on mesh {layout.mesh.dims_text} needs "
        f"{bytes_text(block_bytes(block_shape, dtype.itemsize))} for the block {block_shape} of device {device}: "
        "there is no memory for it"
    )


def max_block_bytes(step: Step) -> int:
    """Return the byte count of the largest block on any device before or after *step*, the same on all ranks."""
    return max(layout.largest_block(step.shape) for layout in (step.block_layout, step.target)) * step.itemsize


def group_of(step: Step, location: Location) -> Group:
    """Return the group in which the device at *location* exchanges in *step*."""
    devices = step.group_of(location.device)
    members = tuple(step.ranks[device] for device in devices)
    # Groups along the same mesh dimensions are the rows of one assignment; the first device of each is its colour.
    return location.rank_set.group((step.mesh, step.dims), devices[0], members)


def exchanged_boxes(step: Step, location: Location, held_box: BoxOfDevice | None = None) -> BoxExchange:
    """Return the boxes that the group of the device at *location* exchanges in *step*, from blocks with *held_box*."""
    source_box, position = step.held_box if held_box is None else held_box, step.position_of(location.device)
    devices = step.group_of(location.device)
    if held_box is None and len(devices) <= _FEW_DEVICES and step.exchanges_intersections:
        sources = [box for device in devices if (box := step.held_box(device)) is not None]
        targets = [box for device in devices if (box := step.target_box(device)) is not None]
        if len(sources) == len(targets) == len(devices) and all(map(has_intervals, (*sources, *targets))):
            return from_boxes(step.itemsize, position, sources, targets)
    source_box_at = cache(lambda position: source_box(devices[position]))
    target_box_at = cache(lambda position: step.target_box(devices[position]))
    return BoxExchange(
        step.itemsize,
        position,
        source_box_at,
        target_box_at,
        lambda position: step.sends(devices[position]),
        lambda position: step.receives(devices[position]),
    )


def _exchange_spec(plan: Plan, step: Step, location: Location) -> ExchangeSpec:
    """Return the spec of the exchange of *step*, the same on all ranks."""
    return ExchangeSpec(
        fingerprint=fingerprint(_step_text(step)),
        max_block_bytes=max_block_bytes(step),
        rounds=step.rounds,
        scratch_limit=DEFAULT_SCRATCH if plan.max_scratch_bytes is None else plan.max_scratch_bytes,
        permutes=step.permutes,
        gathers=isinstance(step, AllGather) and step.gathers_in_one_call,
        relay_pays=relay_pays(step, location.rank_set.machine),
        stages=len(exchanging_steps(plan)) == 1,  # blocks between several exchanges use up the limit
    )


def _step_text(step: Step) -> str:
    kind, source, target = type(step).__name__, step.source.specs_text, step.target.specs_text
    return f"{kind} along {step.dims} in {step.rounds}: {source} to {target} of {step.shape}, {step.itemsize} bytes"


def _target_bytes(step: Step, location: Location) -> int:
    """Return the size in bytes of the new block of the device at *location*."""
    box = step.target_box(location.device)
    return 0 if box is None else block_bytes(box_shape(box), step.itemsize)


def _local_exchange(plan: Plan, device: int) -> BoxExchange:
    """Return the copy from the old to the new block of *device*, as an exchange with itself."""
    step = plan.copy_step
    source, target = step.held_box(device), step.target_box(device)
    assert source is not None
    assert target is not None
    boxes = step.kept_boxes(device)
    return BoxExchange(step.itemsize, 0, lambda _: source, lambda _: target, lambda _: boxes, lambda _: boxes)
