"""The order of axes and the relayouts between them: the cheapest path by the cost model of a machine.

A state is a layout of the axes, with the axes that are still to be transformed. Unsharded axes are transformed at
once. An edge makes other axes whole: each mesh dimension on them goes to another axis. If no axis can take it, the
axis is gathered, or stays sharded, and is transformed by `meshcomm.fft.sharded`.
"""

import heapq
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import combinations, count, islice, product
from math import inf, prod

from meshcomm.core._types import DType, Names, Shape
from meshcomm.core.layouts.layout import Axes, Layout
from meshcomm.core.layouts.machine import Machine
from meshcomm.core.layouts.specs import Cyclic
from meshcomm.fft.factors import convolved_length, rows_of
from meshcomm.fft.kinds import Transform, fourier_length
from meshcomm.fft.steps import FFTStep, LocalStep, RelayoutStep, ShardedStep, is_allowed

GATHERED_FFT = 2**25
"""Bytes of an array, up to which an axis is gathered on every rank if no other axis can be sharded instead, and its
length has no suitable factors. Larger arrays are transformed by a convolution. A compromise, not measured."""

MAX_WAYS = 64
"""The most edges of a state that make the same axes whole. Few meshes have enough dimensions to reach it."""


@dataclass(frozen=True)
class SearchState:
    """The state of a transform: layout, shape and dtype of the array, and the axes still to be transformed."""

    axes: Axes
    shape: Shape
    dtype: DType
    todo: frozenset[int]


def cheapest(
    transform: Transform, described: tuple[Shape, DType], source: Layout, target: Layout | None, machine: Machine
) -> tuple[FFTStep, ...]:
    """Return the steps of *transform* from *source* to *target*, or to the layout after the last of them.

    *described* is the shape and dtype of the array. All ranks find the same steps.
    """
    # Layouts on equal meshes are equal, but the steps need these mesh objects. An entry of the cache keeps its layouts
    # alive, so no other mesh gets their ids.
    meshes = id(source.mesh), None if target is None else id(target.mesh)
    return _cheapest_steps(transform, described, source, target, machine, meshes)


@lru_cache(maxsize=256)
def _cheapest_steps(
    transform: Transform,
    described: tuple[Shape, DType],
    source: Layout,
    target: Layout | None,
    *others: Machine | tuple[int, int | None],
) -> tuple[FFTStep, ...]:
    transform = replace(transform, called="")  # equal transforms share the steps, also from other functions
    shape, dtype = described
    machine = others[0]
    assert isinstance(machine, Machine)
    number = count()  # of equal costs, the first that was found
    first = SearchState(source.axes, shape, dtype, frozenset(transform.axes))
    heap: list[tuple[float, int, SearchState, tuple[FFTStep, ...]]] = [(0.0, next(number), first, ())]
    settled: dict[SearchState, float] = {}
    end = SearchState((), (), dtype, frozenset())
    while heap:
        cost, _, state, steps = heapq.heappop(heap)
        if state == end:
            return steps
        if settled.get(state, inf) <= cost:
            continue
        settled[state] = cost
        if not state.todo:
            last = _last_relayout(state, source, target)
            more = last[0].estimate(machine) if last else 0.0
            heapq.heappush(heap, (cost + more, next(number), end, (*steps, *last)))
            continue
        for step, after in _edges(transform, state, source, target):
            heapq.heappush(heap, (cost + step.estimate(machine), next(number), after, (*steps, step)))
    raise AssertionError("an axis can always be gathered")


def _last_relayout(state: SearchState, source: Layout, target: Layout | None) -> tuple[FFTStep, ...]:
    """Return the relayout to the target, if there has to be one."""
    if target is None or (target.axes == state.axes and target.mesh == source.mesh):
        return ()
    return (RelayoutStep(state.shape, state.dtype, source._recut(state.axes), target),)


def _edges(
    transform: Transform, state: SearchState, source: Layout, target: Layout | None
) -> Iterator[tuple[FFTStep, SearchState]]:
    layout = source._recut(state.axes)
    whole = frozenset(axis for axis in range(len(state.axes)) if layout.num_shards(axis) == 1)
    ready = transform.ready(state.todo, whole)
    if ready:
        yield _local(transform.stage(ready), state, layout, ready)
        return
    layouts = dict.fromkeys(_next_layouts(transform, state, layout, whole, target))
    staying = [
        edge
        for axis in sorted(state.todo - whole)
        if axis in transform.ready(state.todo, whole | {axis})
        for edge in _staying_sharded(transform, state, layout, axis)
    ]
    yield from staying
    if prod(state.shape) * state.dtype.itemsize <= GATHERED_FFT or not (layouts or staying):
        needed = _next_axes(transform, state.todo, whole)
        layouts[layout.replace(needed, ()).axes] = None
    for axes in layouts:
        yield RelayoutStep(state.shape, state.dtype, layout, source._recut(axes)), replace(state, axes=axes)


def _local(stage: Transform, state: SearchState, layout: Layout, ready: frozenset[int]) -> tuple[FFTStep, SearchState]:
    # Along an axis that is whole, the mesh dimensions have one device: boundaries for the old length mean nothing.
    step = LocalStep(stage, state.shape, state.dtype, layout.usual_cut(ready))
    return step, SearchState(step.layout.axes, step.shape_after, step.dtype_after, state.todo - ready)


def _next_axes(transform: Transform, todo: frozenset[int], whole: frozenset[int]) -> frozenset[int]:
    """Return axes that have to be whole before any can be transformed; if there is a choice, all of them."""
    if transform.change == "halves" and transform.last in todo:
        return frozenset({transform.last}) if transform.last is not None else frozenset()
    others = todo - {transform.last} if transform.change == "doubles" else todo
    return (others or todo) - whole


def _next_layouts(
    transform: Transform, state: SearchState, layout: Layout, whole: frozenset[int], target: Layout | None
) -> Iterator[Axes]:
    """Yield layouts of the axes in which at least one axis can be transformed next."""
    if target is not None and target.mesh == layout.mesh and is_allowed(target, state.shape):
        there = frozenset(axis for axis in range(target.ndim) if target.num_shards(axis) == 1)
        if transform.ready(state.todo, there):
            yield target.axes
    cut = sorted(state.todo - whole)
    for size in range(1, len(cut) + 1):
        for chosen in combinations(cut, size):
            if transform.ready(state.todo, whole | set(chosen)):
                yield from islice(_moved_layouts(state, layout, frozenset(chosen)), MAX_WAYS)


def _moved_layouts(state: SearchState, layout: Layout, chosen: frozenset[int]) -> Iterator[Axes]:
    """Yield all layouts of the axes with the mesh dimensions of the *chosen* axes on other axes."""
    mesh = layout.mesh
    names = [name for axis in sorted(chosen) for name in state.axes[axis] if mesh.dim_size(name) > 1]
    takers = [axis for axis, n in enumerate(state.shape) if axis not in chosen and n > 1]
    for takes in product(takers, repeat=len(names)):
        axes = [
            tuple(name for name in spec if mesh.dim_size(name) == 1) if axis in chosen else spec
            for axis, spec in enumerate(state.axes)
        ]
        for name, axis in zip(names, takes, strict=True):
            axes[axis] = (*axes[axis], name)
        yield tuple(axes)


def _staying_sharded(
    transform: Transform, state: SearchState, layout: Layout, axis: int
) -> Iterator[tuple[FFTStep, SearchState]]:
    """Yield the transforms of an *axis* that stays sharded."""
    stage = transform.stage(frozenset({axis}))
    blocks, n = layout.num_shards(axis), fourier_length(stage)
    left, plain = state.todo - {axis}, tuple(state.axes[axis])
    after = stage.shape_after(state.shape)
    rows = rows_of(n, blocks, layout.cyclic(axis) if state.shape[axis] == n else None)
    results: list[Names] = [plain]
    if rows and rows % blocks == 0 and stage.change not in ("doubles", "same_dtype"):
        results.insert(0, Cyclic.made(plain, (rows // blocks, 0)).canonical(blocks))
    if rows or (prod(state.shape) * state.dtype.itemsize > GATHERED_FFT and rows_of(convolved_length(n), blocks)):
        for result in results:
            step = ShardedStep(stage, state.shape, state.dtype, layout, layout.replace(axis, result), rows)
            yield step, SearchState(step.layout.axes, after, step.dtype_after, left)
