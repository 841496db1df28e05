"""Many relayouts at once: one exchange for all small tensors that the ranks of a group exchange."""

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

import numpy as np

from meshcomm._tracing import is_traced, untraced
from meshcomm._tuning import DEFAULT_SCRATCH, MERGED_UP_TO
from meshcomm._types import Array, Ranks
from meshcomm.arrays.compile import Move, exchanging_steps, most_bytes, prepare, prepare_together
from meshcomm.arrays.dtensor import DTensor, unwrapped
from meshcomm.arrays.out import agree_on_outs, bound_text, call_text, distributed
from meshcomm.errors import LayoutError
from meshcomm.layouts.layout import Layout
from meshcomm.layouts.machine import Machine
from meshcomm.layouts.refinement import ranks_between
from meshcomm.plans.plan import Plan, plan_relayout
from meshcomm.ranks.calls import collective, program
from meshcomm.ranks.meshes import location_between
from meshcomm.ranks.teams import Location


def prepare_many(plans: Sequence[Plan], here: Location, limit: int | None) -> Callable[..., list[Array | None]]:
    """Return what makes new blocks, one for each of *plans*, into the *outs* that are not None.

    To call it is Collective over the team. All of it together keeps to *limit* bytes of scratch.
    """
    merged = [(numbers, prepare_together([plans[n] for n in numbers], here)) for numbers in _alike(plans, limit)]
    alone = set(range(len(plans))).difference(*(numbers for numbers, _ in merged))
    moves: dict[int, Move] = {}

    def run(blocks: list[Array | None], outs: list[Array | None]) -> list[Array | None]:
        found: list[Array | None] = list(outs)
        one_by_one = set(alone)
        for numbers, together in merged:
            if any(outs[number] is not None for number in numbers):
                one_by_one.update(numbers)  # whose new blocks do not lie together
                continue
            for number, block in zip(numbers, together([blocks[n] for n in numbers]), strict=True):
                found[number] = block
        for number in sorted(one_by_one):
            if number not in moves:  # made when it is first needed
                moves[number] = prepare(plans[number], here)
            found[number] = moves[number](blocks[number], outs[number])
        return found

    return run


def _alike(plans: Sequence[Plan], limit: int | None) -> list[list[int]]:
    """Return the numbers of plans that can share an exchange: one small step each, among the same ranks."""
    groups: dict[Hashable, list[list[int]]] = {}
    free: dict[Hashable, int] = {}
    scratch = DEFAULT_SCRATCH if limit is None else limit
    for number, plan in enumerate(plans):
        steps = exchanging_steps(plan)
        if len(steps) != 1 or steps[0] is not plan.steps[-1]:
            continue
        (step,) = steps
        if step.rounds > 1 or most_bytes(step) > MERGED_UP_TO:
            continue
        key = (step.ranks, step.mesh, step.dims)
        # Packed and unpacked; what goes to several ranks may be packed for each of them.
        needed = (step.group_size + 1) * most_bytes(step)
        if key not in groups or free[key] < needed:
            groups.setdefault(key, []).append([])
            free[key] = scratch
        if needed <= free[key]:
            groups[key][-1].append(number)
            free[key] -= needed
    return [numbers for found in groups.values() for numbers in found if len(numbers) > 1]


def are_many(tensors: Any, layouts: Any) -> bool:
    """Return whether these are several tensors: a list of numbers for one layout is one array."""
    if isinstance(tensors, Mapping):
        return True
    if not isinstance(tensors, list | tuple):
        return False
    return not isinstance(layouts, Layout) or any(isinstance(t, DTensor) or is_traced(t) for t in tensors)


def relayout_many(
    one: Callable[..., Any], tensors: Any, layouts: Any, out: Any, bound: int | None, name: str | None
) -> Any:
    """Return tensors in a list, tuple or mapping like the one given; *one* is the relayout of one tensor."""
    keys = list(tensors) if isinstance(tensors, Mapping) else list(range(len(tensors)))
    items = [tensors[key] for key in keys]
    to = [_layout_for(layouts, key, keys, item) for key, item in zip(keys, items, strict=True)]
    outs = [None] * len(keys) if out is None else [_item(out, key, keys) for key in keys]
    if any(is_traced(item) for item in items):
        moved = [one(*each, bound, name) for each in zip(items, to, outs, strict=True)]
    else:
        moved = _moved_together(one, items, to, outs, bound, name)
    if isinstance(tensors, Mapping):
        return dict(zip(keys, moved, strict=True))
    return tuple(moved) if isinstance(tensors, tuple) else moved


def _layout_for(layouts: Any, key: Any, keys: list[Any], tensor: Any) -> Layout:
    if isinstance(layouts, Layout):
        return layouts
    if hasattr(layouts, "layout_for"):  # a LayoutMap
        layout = layouts.layout_for(key, np.ndim(untraced(unwrapped(tensor))))
    else:
        layout = _item(layouts, key, keys)
    if not isinstance(layout, Layout):
        raise LayoutError(f"there is no layout for tensor {key!r}: {layout!r}")
    return layout


def _item(items: Any, key: Any, keys: list[Any]) -> Any:
    if isinstance(items, list | tuple) and len(items) != len(keys):
        raise LayoutError(f"{len(keys)} tensors need as many layouts and results, not {len(items)}")
    try:
        return items[key]
    except (KeyError, IndexError, TypeError):
        raise LayoutError(
            f"there is nothing for tensor {key!r} in {type(items).__name__} of layouts or results"
        ) from None


def _moved_together(
    one: Callable[..., Any],
    items: list[Any],
    layouts: list[Layout],
    outs: list[Any],
    bound: int | None,
    name: str | None,
) -> list[DTensor]:
    given = [out for out in outs if out is not None]
    if len({id(each) for each in (*given, *items)}) < len(given) + len({id(item) for item in items}):
        raise LayoutError("out may name no tensor twice, and none of the tensors that are read")
    moved: list[Any] = [None] * len(items)
    together: dict[Ranks, list[int]] = {}  # by what all ranks see alike, not by their own places
    found: dict[tuple[int, int], Any] = {}  # most tensors are on few meshes
    for number, (item, layout, out) in enumerate(zip(items, layouts, outs, strict=True)):
        tensor = unwrapped(item)
        if not isinstance(tensor, DTensor):
            moved[number] = distributed(tensor, layout, out)
            continue
        items[number] = tensor
        meshes = tensor.layout.mesh, layout.mesh
        pair = id(meshes[0]), id(meshes[1])
        if pair not in found:
            found[pair] = None if location_between(*meshes) is None else ranks_between(*meshes)
        if found[pair] is None:
            moved[number] = one(tensor, layout, out, bound, name)
            continue
        together.setdefault(found[pair], []).append(number)
    batches = [_Batch([(items[n], layouts[n], outs[n]) for n in numbers], bound) for numbers in together.values()]
    for each in batches:
        each.check()
    for each, numbers in zip(batches, together.values(), strict=True):
        for number, block in zip(numbers, each.run(name), strict=True):
            tensor, layout, out = items[number], layouts[number], outs[number]
            if layout.match_axis is not None:
                layout = layout.matched(tensor.layout)
            moved[number] = out if out is not None else DTensor(block, layout, tensor.shape, tensor.dtype)
    return moved


class _Batch:
    """Tensors that move together, among the same ranks."""

    def __init__(self, moves: list[tuple[DTensor, Layout, Any]], limit: int | None) -> None:
        self._moves, self._limit = moves, limit
        self._specs = tuple([(t.layout, layout, t.shape, t.dtype) for t, layout, _ in moves])

    def check(self) -> None:
        """Raise what planning would, unless it was planned before.

        Before any batch moves: a rank that takes part in one of them only sees what is wrong with the others at once.
        """
        here = location_between(self._moves[0][0].mesh, self._moves[0][1].mesh)
        assert here is not None
        if not here.team.knows((self._specs, self._limit)):
            self._plans(None)

    def run(self, name: str | None) -> list[Array | None]:
        """Return the new blocks. Collective over the team."""
        tensor, layout, _ = self._moves[0]
        with collective(name or f"relayout of {len(self._moves)} tensors", tensor.mesh, layout.mesh) as here:
            assert here is not None
            agree_on_outs([(tensor, out, layout) for tensor, layout, out in self._moves if out is not None], here)
            outs = [None if out is None else out.local for _, _, out in self._moves]
            move = program(here.team, (self._specs, self._limit), self._described, self._built, here)
            moved: list[Array | None] = move([t.local for t, _, _ in self._moves], outs)
        return moved

    def _described(self, here: Location) -> str:
        return "; ".join(call_text("relayout", t, layout) for t, layout, _ in self._moves) + bound_text(self._limit)

    def _built(self, here: Location) -> Callable[..., list[Array | None]]:
        return prepare_many(self._plans(here.team.machine), here, self._limit)

    def _plans(self, machine: Machine | None) -> list[Plan]:
        return [plan_relayout(shape, dtype, a, b, self._limit, machine) for a, b, shape, dtype in self._specs]
