"""Many relayouts at once: one exchange for all small tensors that the ranks of a group exchange."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from meshcomm._tracing import is_traced, untraced
from meshcomm._tuning import DEFAULT_SCRATCH, MERGED_UP_TO
from meshcomm._types import Array, Ranks
from meshcomm.arrays.compile import exchange_part, far_blocks, group_of, most_bytes, prepare, target_shape
from meshcomm.arrays.dtensor import DTensor, unwrapped
from meshcomm.arrays.out import agree_on_outs, bound_text, call_text, distributed
from meshcomm.errors import LayoutError
from meshcomm.layouts.boxes import box_size
from meshcomm.layouts.layout import Layout
from meshcomm.layouts.refinement import ranks_between
from meshcomm.memory.blocks import NOTHING, as_block, as_bytes
from meshcomm.plans.plan import Plan, plan_relayout
from meshcomm.plans.step import Slice, Step
from meshcomm.ranks import watchdog
from meshcomm.ranks.agreement import fingerprint
from meshcomm.ranks.calls import run_agreed
from meshcomm.ranks.meshes import place_between
from meshcomm.ranks.teams import Place
from meshcomm.transport.in_place import Together
from meshcomm.transport.packed import Exchange


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
            sources = [NOTHING if (block := blocks[n]) is None else as_bytes(block) for n in numbers]
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
            found[pair] = None if place_between(*meshes) is None else ranks_between(*meshes)
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

    def __init__(self, moves: list[tuple[DTensor, Layout, Any]], bound: int | None) -> None:
        place = place_between(moves[0][0].mesh, moves[0][1].mesh)
        assert place is not None
        self._place, self._moves, self._bound = place, moves, bound
        self._specs = tuple([(t.layout, layout, t.shape, t.dtype) for t, layout, _ in moves])

    def check(self) -> None:
        """Raise what planning would, unless it was planned before. Local.

        Before any batch moves: a rank that takes part in one of them only sees what is wrong with the others at once.
        """
        if self._place.team.programs.get((self._specs, self._bound)) is None:
            for source, layout, shape, dtype in self._specs:
                plan_relayout(shape, dtype, source, layout, self._bound)

    def run(self, name: str | None) -> Any:
        """Return the new blocks. Collective over the team."""
        place, specs, bound = self._place, self._specs, self._bound

        def call() -> str:
            return "; ".join(call_text("relayout", t, layout) for t, layout, _ in self._moves) + bound_text(bound)

        def build() -> Callable[..., Any]:
            plans = [plan_relayout(shape, dtype, a, b, bound, place.team.machine) for a, b, shape, dtype in specs]
            return prepare_many(plans, place, bound)

        watchdog.begin(name or f"relayout of {len(self._moves)} tensors", place.team)
        try:
            agree_on_outs([(tensor, out, layout) for tensor, layout, out in self._moves if out is not None], place)
            outs = [None if out is None else out.local for _, _, out in self._moves]
            return run_agreed(place, (specs, bound), call, build, [t.local for t, _, _ in self._moves], outs)
        finally:
            watchdog.end()
