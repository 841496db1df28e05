"""Execution: a plan and the block of a device -> its new block."""

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from meshcomm import guard
from meshcomm.blocks import Box, box_size
from meshcomm.collectives import Exchange, Gather, Permute, Program, as_block, as_bytes, copy_of_box
from meshcomm.groups import Bytes, Group, Place
from meshcomm.plan import AllGather, Boxes, Plan, Slice, Step


class Operation(Protocol):
    """What turns a block into another one; Collective over its group, if it has one."""

    def run(self, source: Bytes) -> Bytes:
        """Return the new block."""


class Cut:
    """The copy of a box of a block. Local."""

    def __init__(self, itemsize: int, held: Box, kept: Box) -> None:
        whole, column = _single(0, kept), np.zeros(1, dtype=np.intp)
        self._size = box_size(kept) * itemsize
        self._copies = copy_of_box(
            itemsize, _lengths(held), _within(held, whole), column, _lengths(kept), _within(kept, whole), column
        )

    def run(self, source: Bytes) -> Bytes:
        """Return the box as a new block. Local."""
        target = np.empty(self._size, dtype=np.uint8)
        self._copies.run([source], [target])
        return target


def operations(plan: Plan, place: Place) -> list[Operation]:
    """Return what the device at *place* does for *plan*, one after the other; slices wait for the next step. Local."""
    made: list[Operation] = [_communication(step, place) for step in plan.steps if not isinstance(step, Slice)]
    if not plan.steps or isinstance(plan.steps[-1], Slice):
        held = plan.steps[-1].held if plan.steps else plan.source
        boxes = (layout.block_box(plan.shape, place.device) for layout in (held, plan.target))
        made.append(Cut(plan.dtype.itemsize, *boxes))
    return made


def prepare(plan: Plan, place: Place) -> Callable[[NDArray[Any]], NDArray[Any]]:
    """Return a function from the block of the device at *place* to its new block. Local; to call it is Collective."""
    steps = operations(plan, place)
    shape, dtype = plan.target.block_shape(plan.shape, place.device), plan.dtype

    def run(block: NDArray[Any]) -> NDArray[Any]:
        data = as_bytes(block)
        for step in steps:
            data = step.run(data)
        return as_block(data, shape, dtype)

    return run


def run_agreed(
    place: Place, key: Any, call: Callable[[], str], build: Callable[[], Any], block: NDArray[Any] | None
) -> NDArray[Any]:
    """Return what the program of *key* makes of *block*, built and agreed on if it is new. Collective over the team.

    *call* says what the ranks agree on; *build* returns a function of the block.
    """
    team = place.team
    program = team.programs.get(key)
    if program is None or guard.checks_every_call():
        error = None
        try:
            run = program.run if program is not None else build()
        except Exception as problem:
            error = problem
        text = call()
        guard.agree(team, text, error)
        program = Program(run, guard.fingerprint(text))
        team.remember(key, program)
    else:
        guard.chained(team, program.number)
    assert block is not None  # a rank with a place in the mesh has a block
    return program.run(block)


def _communication(step: Step, place: Place) -> Operation:
    """Return the exchange of *step* for the device at *place*."""
    device, here = place.device, step.place_of(place.device)
    group = _group(step, place)
    source, target = step.held.block_box(step.shape, device), step.target.block_box(step.shape, device)
    receives = _within(target, step.receives(device))
    if isinstance(step, AllGather):
        box = _within(source, _single(here, step.source.block_box(step.shape, device)))
        return Gather(group, step.itemsize, _lengths(source), box, _lengths(target), receives)
    sends = _within(source, step.sends(device))
    exchange = Permute if step.permutes else Exchange
    return exchange(group, here, step.itemsize, _lengths(source), sends, _lengths(target), receives)


def _group(step: Step, place: Place) -> Group:
    ranks = step.mesh.ranks
    members = tuple(ranks[device] for device in step.group_of(place.device))
    # Groups along the same mesh dimensions are the rows of one assignment; the first device of each is its colour.
    return place.team.group((step.mesh, step.dims), step.group_of(place.device)[0], members)


def _single(peer: int, box: Box) -> Boxes:
    """Return *box* as the only one, for *peer*."""
    return Boxes(np.array([[peer]], dtype=np.intp), *(np.array([ends], dtype=np.intp) for ends in _ends(box)))


def _within(box: Box, boxes: Boxes) -> Boxes:
    """Return global *boxes* in indices of the block that *box* is."""
    first = np.array(_ends(box)[0], dtype=np.intp)
    return Boxes(boxes.peers, boxes.starts - first, boxes.stops - first)


def _ends(box: Box) -> tuple[list[int], list[int]]:
    return [start for start, _ in box], [stop for _, stop in box]


def _lengths(box: Box) -> tuple[int, ...]:
    return tuple(stop - start for start, stop in box)
