"""Comparison of two meshes: whether they have the same devices, and a mesh with dimensions that refine both."""

from functools import lru_cache
from itertools import pairwise

import numpy as np

from meshcomm.core._types import Indices, Ranks
from meshcomm.core.layouts.layout import Layout
from meshcomm.core.layouts.mesh import Mesh
from meshcomm.core.layouts.specs import renamed


def same_grid(a: Mesh, b: Mesh) -> bool:
    """Return whether two meshes have the same dimensions over the same ranks; the names of the meshes may differ."""
    return a is b or (a.dims == b.dims and a.ranks == b.ranks)


@lru_cache(maxsize=1024)
def same_devices(a: Mesh, b: Mesh) -> bool:
    """Return whether a plan between two meshes can be one on one mesh: same devices, in the same order."""
    return same_grid(a, b) or (a.ranks == b.ranks and common_refinement(a, b) is not None)


@lru_cache(maxsize=1024)
def ranks_between(source: Mesh, target: Mesh) -> Ranks:
    """Return the rank of each device of a plan between two meshes: see `Plan.ranks`."""
    return target.ranks if same_devices(source, target) else union(source.ranks, target.ranks)


def on_one_mesh(source: Layout, target: Layout) -> tuple[Layout, Layout] | None:
    """Return both layouts on one mesh with a common refinement of their dimensions; None if there is none."""
    a, b = source.mesh, target.mesh
    if same_grid(a, b):
        return source, target
    sizes = common_refinement(a, b)
    if sizes is None or not same_devices(a, b):
        return None
    mesh = Mesh(a.ranks, [(_factor_name(a, stride, size), size) for stride, size in sizes])
    return refined(source, mesh), refined(target, mesh)


def common_refinement(a: Mesh, b: Mesh) -> list[tuple[int, int]] | None:
    """Return strides and sizes of dimensions that can be merged to those of both meshes; None if there are none.

    >>> common_refinement(Mesh(range(8), {"x": 2, "y": 4}), Mesh(range(8), {"x": 4, "y": 2}))
    [(4, 2), (2, 2), (1, 2)]
    """
    if a.size != b.size:
        return None
    strides = sorted({*a.strides, *b.strides, a.size, 1}, reverse=True)
    if any(outer % inner for outer, inner in pairwise(strides)):
        return None
    return [(inner, outer // inner) for outer, inner in pairwise(strides)] or [(1, 1)]


def _factor_name(mesh: Mesh, stride: int, size: int) -> str:
    """Return a name for a factor of a dimension of *mesh*: the name of the dimension, and the number of the factor."""
    for name, dim_size in mesh.dims:
        outer = mesh.stride(name) * dim_size
        if mesh.stride(name) <= stride < outer:
            return name if size == dim_size else f"{name}/{outer // stride}"
    return "x"


def refined(layout: Layout, mesh: Mesh) -> Layout:
    """Return *layout* on *mesh*, in which each dimension of the layout's own mesh is split into one or several."""

    def factors(name: str) -> list[str]:
        stride = layout.mesh.stride(name)
        stride_range = range(stride, stride * layout.mesh.dim_size(name))
        return [dim for dim, inner in zip(mesh.dim_names, mesh.strides, strict=True) if inner in stride_range]

    axes = [renamed(names, tuple(factor for name in names for factor in factors(name))) for names in layout.axes]
    return Layout(axes, mesh)


def union(a: Ranks, b: Ranks) -> Ranks:
    """Return the ranks of *a* and of *b*, ascending; as a range if they are consecutive.

    >>> union(range(0, 3), range(2, 5)), union((5, 0), (0, 1))
    (range(0, 5), (0, 1, 5))
    """
    # A range may be long: use its ends only.
    ends = [end for ranks in (a, b) for end in ((ranks[0], ranks[-1]) if isinstance(ranks, range) else ranks)]
    first, stop = min(ends), max(ends) + 1
    if isinstance(a, range) and isinstance(b, range) and max(a.start, b.start) <= min(a.stop, b.stop):
        return range(first, stop)
    ranks = tuple(sorted({*a, *b}))
    return range(first, stop) if len(ranks) == stop - first else ranks


@lru_cache(maxsize=64)
def listed_ranks(ranks: tuple[int, ...]) -> Indices:
    """Return *ranks* as an array, from a cache."""
    return np.array(ranks, dtype=np.intp)


@lru_cache(maxsize=64)
def _sorted_ranks(ranks: tuple[int, ...]) -> tuple[Indices, Indices]:
    order = np.argsort(listed_ranks(ranks)).astype(np.intp)
    return listed_ranks(ranks)[order], order


def devices_of(mesh: Mesh, ranks: Indices) -> Indices:
    """Return the device of each of *ranks* in *mesh*, -1 for one outside."""
    if isinstance(mesh.ranks, range):
        devices = ranks - mesh.ranks.start
        return np.where((devices >= 0) & (devices < mesh.size), devices, -1)
    sorted_ranks, order = _sorted_ranks(mesh.ranks)
    positions = np.minimum(np.searchsorted(sorted_ranks, ranks), mesh.size - 1)
    return np.where(sorted_ranks[positions] == ranks, order[positions], -1)


def ranks_of(mesh: Mesh, devices: Indices) -> Indices:
    """Return the rank of each of *devices* of *mesh*."""
    return devices + mesh.ranks.start if isinstance(mesh.ranks, range) else listed_ranks(mesh.ranks)[devices]
