"""Many relayouts at once: one exchange for all small tensors that the ranks of a group exchange."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from meshcomm.blocks import box_size
from meshcomm.exchange import Exchange, as_block, as_bytes, new_bytes
from meshcomm.execute import exchange_part, far_blocks, group_of, most_bytes, prepare, target_shape
from meshcomm.groups import Place
from meshcomm.guard import fingerprint
from meshcomm.node import Together
from meshcomm.plan import DEFAULT_SCRATCH, Plan
from meshcomm.steps import Slice, Step

Array = NDArray[Any]

MERGED_UP_TO = 2**18
"""Blocks of up to so many bytes are exchanged together: for larger ones, packing costs more than a message saves."""


class _Merged(NamedTuple):
    """Tensors, by number, that move in one exchange."""

    numbers: list[int]
    together: Together


def prepare_many(plans: list[Plan], place: Place, bound: int | None) -> Callable[..., list[Array | None]]:
    """Return a function from blocks to new blocks, one for each plan, into the *outs* that are not None.

    Local; to call it is Collective. All of it together keeps to *bound* bytes of scratch.
    """
    limit = DEFAULT_SCRATCH if bound is None else bound
    merged = [_merge(plans, numbers, place) for numbers in _alike(plans, limit)]
    alone = set(range(len(plans))).difference(*(group.numbers for group in merged))
    moves = [_Once(plan, place) for plan in plans]
    shapes = [target_shape(plan, place.device) for plan in plans]
    dtypes = [plan.dtype for plan in plans]

    def run(blocks: list[Array | None], outs: list[Array | None]) -> list[Array | None]:
        found: list[Array | None] = list(outs)
        one_by_one = set(alone)
        for numbers, together in merged:
            if any(outs[number] is not None for number in numbers):
                one_by_one.update(numbers)  # whose new blocks do not lie together
                continue
            sources = [_NOTHING if (block := blocks[n]) is None else as_bytes(block) for n in numbers]
            for number, target in zip(numbers, together.run(sources), strict=True):
                shape = shapes[number]
                found[number] = None if shape is None else as_block(target, shape, dtypes[number])
        for number in sorted(one_by_one):
            found[number] = moves[number](blocks[number], outs[number])
        return found

    return run


class _Once:
    """What `prepare` makes of a plan, made when it is first called."""

    def __init__(self, plan: Plan, place: Place) -> None:
        self._plan, self._place = plan, place
        self._run: Callable[..., Array | None] | None = None

    def __call__(self, block: Array | None, out: Array | None) -> Array | None:
        if self._run is None:
            self._run = prepare(self._plan, self._place)
        return self._run(block, out)


_NOTHING = new_bytes(0)


def _alike(plans: list[Plan], limit: int) -> list[list[int]]:
    """Return the numbers of plans that can share an exchange: one small step each, among the same ranks. Local."""
    groups: dict[Any, list[list[int]]] = {}
    room: dict[Any, int] = {}
    for number, plan in enumerate(plans):
        step = _only_exchange(plan)
        if step is None or step.parts > 1 or most_bytes(step) > MERGED_UP_TO:
            continue
        key = (step.ranks, step.mesh, step.dims)
        # Packed and unpacked; what goes to several ranks may be packed for each of them.
        needed = (step.group_size + 1) * most_bytes(step)
        if key not in groups or room[key] < needed:
            groups.setdefault(key, []).append([])
            room[key] = limit
        if needed <= room[key]:
            groups[key][-1].append(number)
            room[key] -= needed
    return [numbers for found in groups.values() for numbers in found if len(numbers) > 1]


def _only_exchange(plan: Plan) -> Step | None:
    steps = [step for step in plan.steps if not isinstance(step, Slice)]
    return steps[0] if len(steps) == 1 and steps[0] is plan.steps[-1] else None


def _merge(plans: list[Plan], numbers: list[int], place: Place) -> _Merged:
    steps = [step for number in numbers if (step := _only_exchange(plans[number])) is not None]
    device, first = place.device, steps[0]
    parts = [exchange_part(step, device) for step in steps]
    group, here, most = group_of(first, place), first.place_of(device), sum(map(most_bytes, steps))

    def sizes_of(peer: int) -> list[int]:
        (other,) = first.members(device, np.array([peer], dtype=np.intp)).tolist()
        return [0 if (box := step.target_box(other)) is None else box_size(box) * step.itemsize for step in steps]

    call = "; ".join(f"{step!r} of {step.shape}, {step.itemsize} bytes" for step in steps)
    fars = [far_blocks(step, device) for step in steps]
    exchange = Exchange(group, here, parts, most)
    return _Merged(numbers, Together(exchange, group, here, parts, fars, sizes_of, most, fingerprint(call)))
