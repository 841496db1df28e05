"""Search for the order of the transformed axes and the relayouts between: the cheapest path by a cost model.

A state is a layout of the axes, and the axes that are still to be transformed. Unsharded axes are transformed at
once. An edge makes other axes unsharded: their mesh dimensions go to other axes. If no axis can take one, the axis is
gathered, or stays sharded, and is transformed by `meshcomm.fft.sharded`.
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
"""Bytes of an array. Up to this size, an axis is gathered on every rank if no other axis can be sharded instead, and
its length has no suitable factors. Larger arrays are transformed by a convolution. A compromise, not measured."""

MAX_WAYS = 64
"""Maximum number of edges of a state that make the same axes unsharded. Few meshes have enough dimensions for it."""


@dataclass(frozen=True)
class SearchState:
    """The state of a transform: layout, shape and dtype of the array, and the axes still to be transformed."""

    axes: Axes
    shape: Shape
    dtype: DType
    todo: frozenset[int]


def cheapest(
    transform: Transform, shape_and_dtype: tuple[Shape, DType], source: Layout, target: Layout | None, machine: Machine
) -> tuple[FFTStep, ...]:
    """Return the steps of *transform* from *source* to *target*, or to the layout after the last of them.

    All ranks find the same steps.
    """
    # Layouts on equal meshes are equal, but the steps need these mesh objects. An entry of the cache keeps its layouts
    # alive, so no other mesh gets their ids.
    meshes = id(source.mesh), None if target is None else id(target.mesh)
    return _cheapest_steps(transform, shape_and_dtype, source, target, machine, meshes)


@lru_cache(maxsize=256)
def _cheapest_steps(
    transform: Transform,
    shape_and_dtype: tuple[Shape, DType],
    source: Layout,
    target: Layout | None,
    *machine_and_meshes: Machine | tuple[int, int | None],
) -> tuple[FFTStep, ...]:
    transform = replace(transform, function_name="")  # equal transforms share the steps, whatever function is called
    shape, dtype = shape_and_dtype
    machine = machine_and_meshes[0]
    assert isinstance(machine, Machine)
    numbers = count()  # to take the first of equal costs
    start = SearchState(source.axes, shape, dtype, frozenset(transform.axes))
    heap: list[tuple[float, int, SearchState, tuple[FFTStep, ...]]] = [(0.0, next(numbers), start, ())]
    settled_costs: dict[SearchState, float] = {}
    end = SearchState((), (), dtype, frozenset())
    while heap:
        cost, _, state, steps = heapq.heappop(heap)
        if state == end:
            return steps
        if settled_costs.get(state, inf) <= cost:
            continue
        settled_costs[state] = cost
        if not state.todo:
            final_steps = _final_relayout(state, source, target)
            final_cost = final_steps[0].estimate(machine) if final_steps else 0.0
            heapq.heappush(heap, (cost + final_cost, next(numbers), end, (*steps, *final_steps)))
            continue
        for step, next_state in _edges(transform, state, source, target):
            heapq.heappush(heap, (cost + step.estimate(machine), next(numbers), next_state, (*steps, step)))
    raise AssertionError("an axis can always be gathered")


def _final_relayout(state: SearchState, source: Layout, target: Layout | None) -> tuple[FFTStep, ...]:
    """Return the relayout to the target as a tuple; () if none is needed."""
    if target is None or (target.axes == state.axes and target.mesh == source.mesh):
        return ()
    return (RelayoutStep(state.shape, state.dtype, source._recut(state.axes), target),)


def _edges(
    transform: Transform, state: SearchState, source: Layout, target: Layout | None
) -> Iterator[tuple[FFTStep, SearchState]]:
    layout = source._recut(state.axes)
    unsharded = frozenset(axis for axis in range(len(state.axes)) if layout.num_shards(axis) == 1)
    ready = transform.ready(state.todo, unsharded)
    if ready:
        yield _local_edge(transform.stage(ready), state, layout, ready)
        return
    layouts = dict.fromkeys(_next_layouts(transform, state, layout, unsharded, target))
    sharded_edges = [
        edge
        for axis in sorted(state.todo - unsharded)
        if axis in transform.ready(state.todo, unsharded | {axis})
        for edge in _sharded_edges(transform, state, layout, axis)
    ]
    yield from sharded_edges
    if prod(state.shape) * state.dtype.itemsize <= GATHERED_FFT or not (layouts or sharded_edges):
        gathered_axes = _next_axes(transform, state.todo, unsharded)
        layouts[layout.replace(gathered_axes, ()).axes] = None
    for axes in layouts:
        yield RelayoutStep(state.shape, state.dtype, layout, source._recut(axes)), replace(state, axes=axes)


def _local_edge(
    stage: Transform, state: SearchState, layout: Layout, ready: frozenset[int]
) -> tuple[FFTStep, SearchState]:
    # The mesh dimensions of an unsharded axis have one device: boundaries for the old length mean nothing.
    step = LocalStep(stage, state.shape, state.dtype, layout.default_cut(ready))
    return step, SearchState(step.layout.axes, step.shape_after, step.dtype_after, state.todo - ready)


def _next_axes(transform: Transform, todo: frozenset[int], unsharded: frozenset[int]) -> frozenset[int]:
    """Return the axes to make unsharded next: the one that must come next, or all candidates if there is a choice."""
    if transform.change == "halves" and transform.resized_axis in todo:
        return frozenset({transform.resized_axis}) if transform.resized_axis is not None else frozenset()
    other_axes = todo - {transform.resized_axis} if transform.change == "doubles" else todo
    return (other_axes or todo) - unsharded


def _next_layouts(
    transform: Transform, state: SearchState, layout: Layout, unsharded: frozenset[int], target: Layout | None
) -> Iterator[Axes]:
    """Yield layouts of the axes in which at least one axis can be transformed next."""
    if target is not None and target.mesh == layout.mesh and is_allowed(target, state.shape):
        target_unsharded = frozenset(axis for axis in range(target.ndim) if target.num_shards(axis) == 1)
        if transform.ready(state.todo, target_unsharded):
            yield target.axes
    sharded_axes = sorted(state.todo - unsharded)
    for size in range(1, len(sharded_axes) + 1):
        for moved_axes in combinations(sharded_axes, size):
            if transform.ready(state.todo, unsharded | set(moved_axes)):
                yield from islice(_moved_layouts(state, layout, frozenset(moved_axes)), MAX_WAYS)


def _moved_layouts(state: SearchState, layout: Layout, moved_axes: frozenset[int]) -> Iterator[Axes]:
    """Yield all layouts with the mesh dimensions of *moved_axes* on other axes."""
    mesh = layout.mesh
    names = [name for axis in sorted(moved_axes) for name in state.axes[axis] if mesh.dim_size(name) > 1]
    receiving_axes = [axis for axis, n in enumerate(state.shape) if axis not in moved_axes and n > 1]
    for receivers in product(receiving_axes, repeat=len(names)):
        axes = [
            tuple(name for name in spec if mesh.dim_size(name) == 1) if axis in moved_axes else spec
            for axis, spec in enumerate(state.axes)
        ]
        for name, axis in zip(names, receivers, strict=True):
            axes[axis] = (*axes[axis], name)
        yield tuple(axes)


def _sharded_edges(
    transform: Transform, state: SearchState, layout: Layout, axis: int
) -> Iterator[tuple[FFTStep, SearchState]]:
    """Yield the transforms of an *axis* that stays sharded."""
    stage = transform.stage(frozenset({axis}))
    blocks, n = layout.num_shards(axis), fourier_length(stage)
    remaining, names = state.todo - {axis}, tuple(state.axes[axis])
    result_shape = stage.shape_after(state.shape)
    rows = rows_of(n, blocks, layout.cyclic(axis) if state.shape[axis] == n else None)
    results: list[Names] = [names]
    if rows and rows % blocks == 0 and stage.change not in ("doubles", "same_dtype"):
        results.insert(0, Cyclic.made(names, (rows // blocks, 0)).canonical(blocks))
    if rows or (prod(state.shape) * state.dtype.itemsize > GATHERED_FFT and rows_of(convolved_length(n), blocks)):
        for result in results:
            step = ShardedStep(stage, state.shape, state.dtype, layout, layout.replace(axis, result), rows)
            yield step, SearchState(step.layout.axes, result_shape, step.dtype_after, remaining)
