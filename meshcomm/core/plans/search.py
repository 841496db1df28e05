"""The search for a plan: the ways from one layout to another, and the cheapest that keeps to the scratch limit."""

# Why all ranks choose the same plan: a proof
# -------------------------------------------
#
# Ranks do not exchange their plans. A plan that differs on one rank would send boxes to peers that wait for others. So
# `cheapest_steps` must return equal steps for one call on every rank. It does, because it is a function of equal
# arguments, computed by operations with one possible result.
#
# 1. Equal arguments. The shape, the dtype, both layouts with their meshes, and the scratch limit are in the text of
#    the call. The ranks compare this text before they exchange anything by a new plan (`ranks.calls.prepared`); if it
#    differs, all ranks raise CollectiveMismatch. The machine is agreed on when the ranks first communicate
#    (`ranks.hosts.agreed_machine`), so a file of constants or an environment variable that differs between ranks does
#    not give them different machines. Nothing below reads the world of a mesh, which is no part of its value.
#
# 2. No other input. Nothing below reads a clock, the environment, a random number, the rank that runs it, or earlier
#    calls. The rank is an argument where it matters (`Step.sends`), which is after the plan is chosen. Costs are taken
#    on a few devices that follow from the step (`costs.costed_devices`), not on "this" device. `lru_cache` only keeps
#    results: whether an entry is kept or was dropped changes the time, not the result.
#
# 3. One order. `_ways` lists the composed way before the direct one. Along the composed way, the loops go over axes in
#    order and over the dimensions of the mesh in its order. Sets are only used to test for a name, or are
#    put into the order of the mesh's dimensions (`_step`). So no result depends on hashes, which differ between
#    processes (a test runs the planner with several hash seeds).
#
# 4. Equal numbers. Bytes, messages and boxes are integers, and exact. Seconds are sums of products of such counts with
#    constants: IEEE doubles, rounded as IEEE says, in one order, by Python's own arithmetic, which neither reorders
#    nor fuses operations. So two ranks get the same bits, on different processors, too. (All ranks run the same
#    versions of Python and of meshcomm.)
#
# 5. Ties. `min` returns the first of several cheapest ways, and their order is that of 3.
#
# 6. Rounds follow from the layouts and the limit alone (`bounds.within_limit`): from upper bounds over all devices,
#    not from the blocks of one.
#
# How the ranks run a plan is decided separately (`transport.choose`): all of them know which ranks share memory, and
# that is not part of a plan.

from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from meshcomm.core._tuning import DEFAULT_SCRATCH
from meshcomm.core._types import Names, Shape
from meshcomm.core.layouts.coordinates import coarser, cut_over, devices_along, effective, ravel, unravel
from meshcomm.core.layouts.layout import Layout
from meshcomm.core.layouts.machine import Machine
from meshcomm.core.layouts.mesh import Mesh
from meshcomm.core.layouts.overlaps import shared_counts
from meshcomm.core.layouts.refinement import on_one_mesh, same_grid
from meshcomm.core.layouts.specs import CutSpec, Cyclic
from meshcomm.core.plans.bounds import minimum_scratch, within_limit
from meshcomm.core.plans.costs import seconds
from meshcomm.core.plans.cross_mesh import AllToAllBetween
from meshcomm.core.plans.step import AllGather, AllToAll, Slice, Step, Steps
from meshcomm.errors import ShapeError


class Candidate(NamedTuple):
    """A possible sequence of steps from the source to the target, with its cost in seconds, by the model."""

    name: str
    steps: Steps
    seconds: float


@lru_cache(maxsize=1024)
def cheapest_steps(
    shape: Shape, itemsize: int, source: Layout, target: Layout, *, limit: int | None, machine: Machine
) -> Steps:
    """Return the steps of the cheapest way from *source* to *target*: the same on all ranks.

    Parameters
    ----------
    shape, itemsize: shape of the global array, and bytes of an element
    source, target: the layouts
    limit: scratch limit in bytes; None is the default, or the minimum if that is more
    machine: constants of the cost model
    """
    if source.mesh is target.mesh and source.mesh.size == 1:
        return ()
    if limit is None and (step := _only_step(shape, itemsize, source, target)) is not None:
        return (step,)
    pair = on_one_mesh(source, target) or (source, target)
    ways = _ways(shape, itemsize, *pair, limit=limit, machine=machine)
    if len(ways) == 1:
        return ways[0][1]
    return min(_candidates(ways, machine), key=lambda candidate: candidate.seconds).steps


def _only_step(shape: Shape, itemsize: int, source: Layout, target: Layout) -> Step | None:
    """Return the step between layouts on a mesh of one dimension, in one round; None if that needs a search.

    The step is the one that `_ways` would find: consecutive blocks are gathered, or cut along another axis.
    """
    mesh = target.mesh
    if source.mesh is not mesh or len(mesh.dims) != 1 or mesh.size == 1 or min(shape, default=0) < mesh.size:
        return None  # with fewer elements than devices, a device may already hold all that it needs
    if (source.largest_block(shape) + target.largest_block(shape)) * itemsize > DEFAULT_SCRATCH:
        return None
    source_axis, target_axis = (
        next((a for a, names in enumerate(layout.axes) if names), None) for layout in (source, target)
    )
    if source_axis is None or source_axis == target_axis or isinstance(source.axes[source_axis], Cyclic):
        return None
    dims = (mesh.dims[0].name,)
    if target_axis is None:
        return AllGather(shape, itemsize, source, target, dims, source)
    if isinstance(source.axes[source_axis], CutSpec) or isinstance(target.axes[target_axis], CutSpec):
        return None
    return AllToAll(shape, itemsize, source, target, dims, source)


def forget_plans() -> None:
    """Drop all cached plans."""
    cheapest_steps.cache_clear()


def all_candidates(
    shape: Shape, itemsize: int, source: Layout, target: Layout, *, limit: int | None, machine: Machine
) -> tuple[Candidate, ...]:
    """Return all ways that `cheapest_steps` chooses from, with their costs, in a fixed order."""
    pair = on_one_mesh(source, target) or (source, target)
    return _candidates(_ways(shape, itemsize, *pair, limit=limit, machine=machine), machine)


def _candidates(ways: list[tuple[str, Steps]], machine: Machine) -> tuple[Candidate, ...]:
    return tuple(Candidate(name, steps, sum(seconds(step, machine) for step in steps)) for name, steps in ways)


def _ways(
    shape: Shape, itemsize: int, source: Layout, target: Layout, *, limit: int | None, machine: Machine
) -> list[tuple[str, Steps]]:
    """Return the ways from *source* to *target* that keep to the scratch limit: at least one, or ``ShapeError``."""
    if not same_grid(source.mesh, target.mesh):
        direct_steps: Steps = (AllToAllBetween(shape, itemsize, source, target, (), source, machine=machine),)
        ways = [("direct", direct_steps)]
    else:
        ways = [("composed", steps_along(shape, itemsize, composed_path(shape, source, target)))]
        direct_steps = steps_along(shape, itemsize, [source, target]) if ways[0][1] else ()
        if direct_steps != ways[0][1] and any(step.dims for step in direct_steps):
            ways.append(("direct", direct_steps))
    block_elements = source.largest_block(shape) + target.largest_block(shape)
    if limit is None and block_elements * itemsize <= DEFAULT_SCRATCH and not any(len(steps) > 1 for _, steps in ways):
        return ways  # one round is enough, even if all boxes are packed
    minimum = min(minimum_scratch(steps) for _, steps in ways)
    if limit is not None and limit < minimum:
        raise ShapeError(
            f"max_scratch_bytes={limit} is too little for a relayout of {shape} from "
            f"{source.specs_text} to {target.specs_text}: "
            f"the minimum is {minimum} bytes, one element of each box"
        )
    limit = max(DEFAULT_SCRATCH, minimum) if limit is None else limit
    return [(name, limited_steps) for name, steps in ways if (limited_steps := within_limit(steps, limit)) is not None]


def steps_along(shape: Shape, itemsize: int, path: list[Layout]) -> Steps:
    """Return a step from each layout of *path* to the next one."""
    steps: list[Step] = []
    for source, target in pairwise(path):
        after_slice = bool(steps) and isinstance(steps[-1], Slice)
        steps.append(_step(shape, itemsize, source, target, steps[-1].block_layout if after_slice else source))
    return tuple(steps)


def composed_path(shape: Shape, source: Layout, target: Layout) -> list[Layout]:
    """Return the layouts of the composed way: slices first, then one move per mesh dimension, gathers last.

    If there is no composed way, it returns *source* and *target* only.
    """
    current, goal = list(effective(source)), effective(target)
    if tuple(current) == goal:
        return [target]
    if any(a != b and (isinstance(a, CutSpec) or isinstance(b, CutSpec)) for a, b in zip(current, goal, strict=True)):
        return [source, target]  # the composed way goes from names to names
    mesh, path_axes = target.mesh, [tuple(current)]
    _slice_where_possible(mesh, shape, current, goal)
    if tuple(current) != path_axes[-1]:
        path_axes.append(tuple(current))
    while _move_dimension(mesh, shape, current, goal):
        path_axes.append(tuple(current))
    if not all(coarser(mesh, n, b, a) for n, a, b in zip(shape, current, goal, strict=True)):
        return [source, target]
    if tuple(current) == goal:
        path_axes.pop()
    return [source, *(Layout(list(axes), mesh) for axes in path_axes[1:]), target]


def _slice_where_possible(mesh: Mesh, shape: Shape, current: list[Names], goal: tuple[Names, ...]) -> None:
    used_names = {name for names in current for name in names}
    for axis, names in enumerate(goal):
        while len(current[axis]) < len(names) and names[: len(current[axis])] == current[axis]:
            longer_names = names[: len(current[axis]) + 1]
            if longer_names[-1] in used_names or not coarser(mesh, shape[axis], current[axis], longer_names):
                break
            current[axis] = longer_names


def _move_dimension(mesh: Mesh, shape: Shape, current: list[Names], goal: tuple[Names, ...]) -> bool:
    """Move one mesh dimension from the axis that it shards to its axis in *goal*; return whether one can move."""
    for b, names in enumerate(goal):
        length = len(current[b])
        if length == len(names) or names[:length] != current[b]:
            continue
        longer_names = names[: length + 1]
        a = next((a for a, other in enumerate(current) if a != b and other[-1:] == longer_names[-1:]), None)
        if a is None:
            continue
        if coarser(mesh, shape[a], current[a][:-1], current[a]) and coarser(mesh, shape[b], current[b], longer_names):
            current[a], current[b] = current[a][:-1], longer_names
            return True
    return False


def _step(shape: Shape, itemsize: int, source: Layout, target: Layout, block_layout: Layout) -> Step:
    mesh = target.mesh
    axes = list(zip(shape, effective(source), effective(target), strict=True))
    spanned_dims = {name for n, a, b in axes for name in a[_common_count(mesh, n, a, b) :]}
    dims = tuple(name for name, _ in mesh.dims if name in spanned_dims)
    if not dims or 0 in shape or all(_holds(mesh, n, a, b) for n, a, b in axes):
        return Slice(shape, itemsize, source, target, (), block_layout)
    if all(coarser(mesh, n, b, a) for n, a, b in axes):
        return AllGather(shape, itemsize, source, target, dims, block_layout)
    return AllToAll(shape, itemsize, source, target, dims, block_layout)


def _common_count(mesh: Mesh, n: int, a: Names, b: Names) -> int:
    """Return the number of leading names of *a* and *b* along which no device has to exchange."""
    for outer, inner in ((a, b), (b, a)):
        if coarser(mesh, n, outer, inner):
            return len(outer)
    length = 0
    while length < min(len(a), len(b)) and a[length] == b[length]:
        length += 1
    while not (coarser(mesh, n, a[:length], a) and coarser(mesh, n, b[:length], b)):
        length -= 1
    return length


def _holds(mesh: Mesh, n: int, a: Names, b: Names) -> bool:
    """Return whether, on an axis of *n* elements cut by *a*, every device holds its block of the cut by *b*."""
    if coarser(mesh, n, a, b):
        return True
    has_rule = isinstance(a, CutSpec) or isinstance(b, CutSpec)
    if not b or (not has_rule and n >= max(devices_along(mesh, a), devices_along(mesh, b))):
        return False  # no block is empty, so some block of *b* is not in the block of *a* on its device
    cut, new_cut, names = cut_over(mesh, n, a), cut_over(mesh, n, b), tuple(dict.fromkeys((*a, *b)))
    size, sample = devices_along(mesh, names), 8
    for combinations in (np.arange(min(sample, size), dtype=np.intp), np.arange(sample, size, dtype=np.intp)):
        coordinates = dict(unravel(mesh, names, combinations))  # most often, the sample decides
        numbers, new_numbers = ravel(mesh, a, coordinates), ravel(mesh, b, coordinates)
        if (shared_counts(cut, numbers, new_cut, new_numbers) < new_cut.lengths(new_numbers)).any():
            return False
    return True
