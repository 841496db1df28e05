"""Execution: a plan and the block of a device -> its new block."""

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from meshcomm import guard, partners
from meshcomm.blocks import Box
from meshcomm.collectives import Program
from meshcomm.exchange import (
    Exchange,
    Gather,
    Part,
    Permute,
    Started,
    as_block,
    as_bytes,
    nbytes,
    new_bytes,
    own_copies,
    own_room,
    scratch,
)
from meshcomm.groups import Bytes, Group, Place, Team
from meshcomm.node import Far, OnNode, Where
from meshcomm.plan import DEFAULT_SCRATCH, Plan
from meshcomm.steps import AllGather, Boxes, Slice, Step, largest_block

Array = NDArray[Any]

ROUND_BYTES = 2**23
"""Of a block that move at a time on a node that has a processor for each rank: what was packed is still in the caches
when MPI copies it. Where ranks wait for processors, each round costs more than that."""


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
        data = _NOTHING if block is None else as_bytes(block)
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


_NOTHING = np.empty(0, dtype=np.uint8)


def prepare_start(plan: Plan, place: Place) -> Callable[..., tuple[Started | None, Array | None]]:
    """Return a function that begins what `prepare` does, by a plan of one step. Local; to call it is Collective.

    It returns the exchange on its way, None if there is nothing to exchange, and the new block, not yet filled.
    """
    ((operation, size),) = operations(plan, place, gathers=False)
    shape, dtype = target_shape(plan, place.device), plan.dtype

    def start(block: Array | None, out: Array | None = None) -> tuple[Started | None, Array | None]:
        data = _NOTHING if block is None else as_bytes(block)
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
    return None if box is None else _lengths(box)


def run_agreed(place: Place, key: Any, call: Callable[[], str], build: Callable[[], Any], *args: Any) -> Any:
    """Return what the program of *key* makes of *args*, built and agreed on if it is new. Collective over the team.

    *call* says what the ranks agree on; *build* returns a function of *args*.
    """
    program = known_program(place.team, key) or agreed_program(place.team, key, call, build)
    return program.run(*args)


def known_program(team: Team, key: Any, exchanges: bool = False) -> Program | None:
    """Return the program of *key*, and note the call, unless it is to be agreed on. Local, now and then Collective.

    It *exchanges* blocks if it was made by `prepare`.
    """
    program: Program | None = team.known(key)
    if program is None or guard.checks_every_call():
        return None
    guard.chained(team, program.number, exchanges)
    return program


def agreed_program(team: Team, key: Any, call: Callable[[], str], build: Callable[[], Any]) -> Program:
    """Return the program of *key*, made by *build* if it is new, when all agree on the *call*. Collective."""
    error = None
    program = team.known(key)
    try:
        _ = team.machine  # which a plan depends on, agreed on when the team first communicates
        run = program.run if program is not None else build()
    except Exception as problem:
        error = problem
    text = call()
    guard.agree(team, text, error)
    program = Program(run, guard.fingerprint(text))
    team.remember(key, program)
    return program


def exchange_part(step: Step, device: int) -> Part:
    """Return what *device* sends and receives in *step*, in indices of its blocks. Local."""
    held, target = step.held_box(device), step.target_box(device)
    return Part(
        step.itemsize,
        None if held is None else _lengths(held),
        _within(held, step.sends(device)),
        None if target is None else _lengths(target),
        _within(target, step.receives(device)),
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
    fingerprint = guard.fingerprint(f"{step!r} of {step.shape}, {step.itemsize} bytes")
    far, most = far_blocks(step, place.device), most_bytes(step)
    ends = ends_of(step, place.device) if partners.chosen(step, place.team.machine) else None
    bound = DEFAULT_SCRATCH if plan.max_scratch_bytes is None else plan.max_scratch_bytes
    # Between several exchanges there are blocks already that the bound is for.
    return OnNode(operation, operation.group, here, part, far, most, fingerprint, ends, bound, len(steps) == 1)


def ends_of(step: Step, device: int) -> partners.Ends:
    """Return what the ranks of the group of *device* send and receive, by their places. Local."""

    def device_at(place: int) -> int:
        return int(step.members(device, np.array([place], dtype=np.intp))[0])

    source, target = ([start for start, _ in box or ()] for box in (step.held_box(device), step.target_box(device)))
    return partners.Ends(
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
            return _lengths(block), boxes.starts[boxes.which[boxes.peers == peer]] - first

        return where

    return Far(far(receives, step.held_box), far(sends, step.target_box))


def _cut(plan: Plan, device: int) -> tuple[Operation, int]:
    """Return the copy of what *device* keeps of its block, and its bytes."""
    step = plan.copy_step
    held, target = step.held_box(device), step.target_box(device)
    assert held is not None
    assert target is not None
    whole = _single(target)
    part = Part(step.itemsize, _lengths(held), _within(held, whole), _lengths(target), _within(target, whole))
    copies = own_copies([part], 0)
    assert copies is not None
    return copies, _bytes(target, step.itemsize)


def _single(box: Box) -> Boxes:
    """Return *box* as the only one, for place 0."""
    none = np.zeros(1, dtype=np.intp)
    starts, stops = (np.array([[ends[i] for ends in box]], dtype=np.intp).reshape(1, len(box)) for i in (0, 1))
    return Boxes(none, none, starts, stops)


def _within(box: Box | None, boxes: Boxes) -> Boxes:
    """Return global *boxes* in indices of the block that *box* is."""
    if box is None:
        return boxes
    first = np.array([start for start, _ in box], dtype=np.intp)
    return boxes._replace(starts=boxes.starts - first, stops=boxes.stops - first)


def _bytes(box: Box | None, itemsize: int) -> int:
    return 0 if box is None else nbytes(_lengths(box), itemsize)


def _lengths(box: Box) -> tuple[int, ...]:
    return tuple(stop - start for start, stop in box)
