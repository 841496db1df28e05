"""Many relayouts at once: one exchange for all small tensors that the ranks of a group exchange."""

from collections.abc import Callable
from typing import Any, NamedTuple

from numpy.typing import NDArray

from meshcomm.exchange import Exchange, as_block, as_bytes, nbytes, new_bytes
from meshcomm.execute import exchange_part, group_of, most_bytes, prepare, target_shape
from meshcomm.groups import Place
from meshcomm.plan import DEFAULT_SCRATCH, Plan
from meshcomm.steps import Slice, Step

Array = NDArray[Any]

MERGED_UP_TO = 2**18
"""Blocks of up to so many bytes are exchanged together: for larger ones, packing costs more than a message saves."""


class _Merged(NamedTuple):
    """Tensors, by number, that move in one exchange."""

    numbers: list[int]
    exchange: Exchange
    sizes: list[int]  # of the new blocks


def prepare_many(plans: list[Plan], place: Place, bound: int | None) -> Callable[..., list[Array | None]]:
    """Return a function from blocks to new blocks, one for each plan, into the *outs* that are not None.

    Local; to call it is Collective. All of it together keeps to *bound* bytes of scratch.
    """
    limit = DEFAULT_SCRATCH if bound is None else bound
    merged = [_merge(plans, numbers, place) for numbers in _alike(plans, limit)]
    apart = set(range(len(plans))).difference(*(group.numbers for group in merged))
    alone = {number: prepare(plans[number], place) for number in sorted(apart)}
    shapes = [target_shape(plan, place.device) for plan in plans]
    dtypes = [plan.dtype for plan in plans]

    def run(blocks: list[Array | None], outs: list[Array | None]) -> list[Array | None]:
        found: list[Array | None] = list(outs)
        for numbers, exchange, sizes in merged:
            sources = [_NOTHING if (block := blocks[n]) is None else as_bytes(block) for n in numbers]
            targets = [
                new_bytes(size) if (out := outs[n]) is None else as_bytes(out)
                for n, size in zip(numbers, sizes, strict=True)
            ]
            exchange.run(sources, targets)
            for number, target in zip(numbers, targets, strict=True):
                shape = shapes[number]
                if found[number] is None and shape is not None:
                    found[number] = as_block(target, shape, dtypes[number])
        for number, move in alone.items():
            found[number] = move(blocks[number], outs[number])
        return found

    return run


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
    parts = [exchange_part(step, place.device) for step in steps]
    group, here = group_of(steps[0], place), steps[0].place_of(place.device)
    sizes = [nbytes(part.target_shape, part.itemsize) for part in parts]
    return _Merged(numbers, Exchange(group, here, parts, sum(map(most_bytes, steps))), sizes)
