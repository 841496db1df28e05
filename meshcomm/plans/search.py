"""The search for a plan: the ways from one layout to another, and the cheapest that keeps to the scratch limit."""

from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from meshcomm._tuning import DEFAULT_SCRATCH
from meshcomm._types import Names
from meshcomm.errors import ShapeError
from meshcomm.layouts.coordinates import coarser, decode, effective, encode, parts_of
from meshcomm.layouts.layout import Layout
from meshcomm.layouts.layout_text import specs_text
from meshcomm.layouts.machine import Machine
from meshcomm.layouts.mesh import Mesh
from meshcomm.layouts.partition import starts_and_stops
from meshcomm.layouts.refinement import on_one_mesh, same_place
from meshcomm.plans.bounds import minimum_scratch, within_limit
from meshcomm.plans.costs import seconds
from meshcomm.plans.cross_mesh import AllToAllBetween
from meshcomm.plans.step import AllGather, AllToAll, Slice, Step, Steps


class Candidate(NamedTuple):
    """A way to go from the source to the target, and what it costs by the model, in seconds."""

    name: str
    steps: Steps
    seconds: float


@lru_cache(maxsize=1024)
def cheapest_steps(
    shape: tuple[int, ...], itemsize: int, source: Layout, target: Layout, bound: int | None, machine: Machine
) -> Steps:
    pair = on_one_mesh(source, target) or (source, target)
    ways = _ways(shape, itemsize, *pair, bound, machine)
    if len(ways) == 1:
        return ways[0][1]
    return min(priced_ways(shape, itemsize, *pair, bound, machine), key=lambda candidate: candidate.seconds).steps


def forget_plans() -> None:
    """Drop the plans that were kept for use again. Local."""
    cheapest_steps.cache_clear()


def priced_ways(
    shape: tuple[int, ...], itemsize: int, source: Layout, target: Layout, bound: int | None, machine: Machine
) -> tuple[Candidate, ...]:
    ways = _ways(shape, itemsize, source, target, bound, machine)
    return tuple(Candidate(name, steps, sum(seconds(step, machine) for step in steps)) for name, steps in ways)


def _ways(
    shape: tuple[int, ...], itemsize: int, source: Layout, target: Layout, bound: int | None, machine: Machine
) -> list[tuple[str, Steps]]:
    """Return the ways from *source* to *target* that keep to the bound: at least one, or ``ShapeError``."""
    if not same_place(source.mesh, target.mesh):
        direct: Steps = (AllToAllBetween(shape, itemsize, source, target, (), source, machine=machine),)
        ways = [("direct", direct)]
    else:
        ways = [("composed", steps_along(shape, itemsize, composed_path(shape, source, target)))]
        direct = steps_along(shape, itemsize, [source, target]) if ways[0][1] else ()
        if direct != ways[0][1] and any(step.dims for step in direct):
            ways.append(("direct", direct))
    least = min(minimum_scratch(steps) for _, steps in ways)
    if bound is not None and bound < least:
        raise ShapeError(
            f"max_scratch_bytes={bound} is too little for a relayout of {shape} from {specs_text(source.sharding_specs)} to "
            f"{specs_text(target.sharding_specs)}: the least possible is {least}"
        )
    limit = max(DEFAULT_SCRATCH, least) if bound is None else bound
    return [(name, fitted) for name, steps in ways if (fitted := within_limit(steps, limit)) is not None]


def steps_along(shape: tuple[int, ...], itemsize: int, path: list[Layout]) -> Steps:
    steps: list[Step] = []
    for here, there in pairwise(path):
        sliced = bool(steps) and isinstance(steps[-1], Slice)
        steps.append(_step(shape, itemsize, here, there, steps[-1].held if sliced else here))
    return tuple(steps)


def composed_path(shape: tuple[int, ...], source: Layout, target: Layout) -> list[Layout]:
    """Return the layouts to go through: slices first, one move per mesh dimension, gathers last, or straight on."""
    here, goal = list(effective(source)), effective(target)
    if tuple(here) == goal:
        return [target]
    mesh, visited = target.mesh, [tuple(here)]
    _slice_where_possible(mesh, shape, here, goal)
    if tuple(here) != visited[-1]:
        visited.append(tuple(here))
    while _move_one(mesh, shape, here, goal):
        visited.append(tuple(here))
    if not all(coarser(mesh, n, b, a) for n, a, b in zip(shape, here, goal, strict=True)):
        return [source, target]
    if tuple(here) == goal:
        visited.pop()
    return [source, *(Layout(list(axes), mesh) for axes in visited[1:]), target]


def _slice_where_possible(mesh: Mesh, shape: tuple[int, ...], here: list[Names], goal: tuple[Names, ...]) -> None:
    used = {name for names in here for name in names}
    for axis, names in enumerate(goal):
        while len(here[axis]) < len(names) and names[: len(here[axis])] == here[axis]:
            longer = names[: len(here[axis]) + 1]
            if longer[-1] in used or not coarser(mesh, shape[axis], here[axis], longer):
                break
            here[axis] = longer


def _move_one(mesh: Mesh, shape: tuple[int, ...], here: list[Names], goal: tuple[Names, ...]) -> bool:
    """Move one mesh dimension from the axis that it divides to the axis where it belongs, if one can move now."""
    for b, names in enumerate(goal):
        length = len(here[b])
        if length == len(names) or names[:length] != here[b]:
            continue
        longer = names[: length + 1]
        a = next((a for a, held in enumerate(here) if a != b and held[-1:] == longer[-1:]), None)
        if a is None:
            continue
        if coarser(mesh, shape[a], here[a][:-1], here[a]) and coarser(mesh, shape[b], here[b], longer):
            here[a], here[b] = here[a][:-1], longer
            return True
    return False


def _step(shape: tuple[int, ...], itemsize: int, source: Layout, target: Layout, held: Layout) -> Step:
    mesh = target.mesh
    axes = list(zip(shape, effective(source), effective(target), strict=True))
    spanned = {name for n, a, b in axes for name in a[_common(mesh, n, a, b) :]}
    dims = tuple(name for name, _ in mesh.dims if name in spanned)
    if not dims or 0 in shape or all(_holds(mesh, n, a, b) for n, a, b in axes):
        return Slice(shape, itemsize, source, target, (), held)
    if all(coarser(mesh, n, b, a) for n, a, b in axes):
        return AllGather(shape, itemsize, source, target, dims, held)
    return AllToAll(shape, itemsize, source, target, dims, held)


def _common(mesh: Mesh, n: int, a: Names, b: Names) -> int:
    """Return how many leading names of *a* and *b* leave a device's elements within the same block in both."""
    length = 0
    while length < min(len(a), len(b)) and a[length] == b[length]:
        length += 1
    while not (coarser(mesh, n, a[:length], a) and coarser(mesh, n, b[:length], b)):
        length -= 1
    return length


def _holds(mesh: Mesh, n: int, a: Names, b: Names) -> bool:
    """Return whether on an axis of *n* elements cut by *a* every device holds what *b* would give it."""
    if coarser(mesh, n, a, b):
        return True
    if not b or n >= max(parts_of(mesh, a), parts_of(mesh, b)):
        return False  # no block is empty, so some block lies outside of the one that it would have to lie in
    names = tuple(dict.fromkeys(a + b))
    combinations = np.arange(parts_of(mesh, names), dtype=np.intp)
    coordinates = dict(decode(mesh, names, combinations))
    (held_start, held_stop), (start, stop) = (
        starts_and_stops(n, parts_of(mesh, used), encode(mesh, used, coordinates)) for used in (a, b)
    )
    return bool(np.all((start >= stop) | ((held_start <= start) & (stop <= held_stop))))
