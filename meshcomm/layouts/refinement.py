"""Two meshes compared: whether they have the same devices, and a mesh whose dimensions refine those of both."""

from functools import lru_cache
from itertools import pairwise

import numpy as np

from meshcomm._types import Indices, Ranks
from meshcomm.layouts.layout import Layout
from meshcomm.layouts.mesh import Mesh


def same_place(a: Mesh, b: Mesh) -> bool:
    """Return whether two meshes have the same dimensions over the same ranks, whatever their names. Local."""
    return a is b or (a.dims == b.dims and a.ranks == b.ranks)


@lru_cache(maxsize=1024)
def same_devices(a: Mesh, b: Mesh) -> bool:
    """Return whether a plan between two meshes is one on a single mesh, whose devices are those of both. Local."""
    return same_place(a, b) or (a.ranks == b.ranks and common_refinement(a, b) is not None)


@lru_cache(maxsize=1024)
def ranks_between(source: Mesh, target: Mesh) -> Ranks:
    """Return the rank of each device of a plan from mesh to mesh, in their order: see `Plan.ranks`. Local."""
    return target.ranks if same_devices(source, target) else union(source.ranks, target.ranks)


def on_one_mesh(source: Layout, target: Layout) -> tuple[Layout, Layout] | None:
    """Return both layouts on one mesh, whose dimensions are parts of those of both meshes; None if there is none."""
    a, b = source.mesh, target.mesh
    if same_place(a, b):
        return source, target
    sizes = common_refinement(a, b)
    if sizes is None or not same_devices(a, b):
        return None
    mesh = Mesh(a.ranks, [(_part_name(a, stride, size), size) for stride, size in sizes])
    return _refined(source, mesh), _refined(target, mesh)


def common_refinement(a: Mesh, b: Mesh) -> list[tuple[int, int]] | None:
    """Return strides and sizes of dimensions that, joined, give those of both meshes, or None. Local.

    >>> common_refinement(Mesh(range(8), {"x": 2, "y": 4}), Mesh(range(8), {"x": 4, "y": 2}))
    [(4, 2), (2, 2), (1, 2)]
    """
    if a.size != b.size:
        return None
    strides = sorted({*a.strides, *b.strides, a.size, 1}, reverse=True)
    if any(outer % inner for outer, inner in pairwise(strides)):
        return None
    return [(inner, outer // inner) for outer, inner in pairwise(strides)] or [(1, 1)]


def _part_name(mesh: Mesh, stride: int, size: int) -> str:
    """Return the name of the dimension of *mesh* that a part belongs to, and where in it the part is."""
    for name, length in mesh.dims:
        outer = mesh.stride(name) * length
        if mesh.stride(name) <= stride < outer:
            return name if size == length else f"{name}/{outer // stride}"
    return "x"


def _refined(layout: Layout, mesh: Mesh) -> Layout:
    """Return *layout* on *mesh*, whose dimensions are parts of those of its own mesh."""

    def parts(name: str) -> list[str]:
        stride = layout.mesh.stride(name)
        within = range(stride, stride * layout.mesh.dim_size(name))
        return [dim for dim, inner in zip(mesh.dim_names, mesh.strides, strict=True) if inner in within]

    return Layout([tuple(part for name in names for part in parts(name)) for names in layout.axes], mesh)


def union(a: Ranks, b: Ranks) -> Ranks:
    """Return the ranks of *a* and of *b*, ascending; as a range if they are consecutive. Local.

    >>> union(range(0, 3), range(2, 5)), union((5, 0), (0, 1))
    (range(0, 5), (0, 1, 5))
    """
    # A range may be long: only its ends are looked at.
    ends = [end for ranks in (a, b) for end in ((ranks[0], ranks[-1]) if isinstance(ranks, range) else ranks)]
    first, stop = min(ends), max(ends) + 1
    if isinstance(a, range) and isinstance(b, range) and max(a.start, b.start) <= min(a.stop, b.stop):
        return range(first, stop)
    ranks = tuple(sorted({*a, *b}))
    return range(first, stop) if len(ranks) == stop - first else ranks


@lru_cache(maxsize=64)
def listed_ranks(ranks: tuple[int, ...]) -> Indices:
    return np.array(ranks, dtype=np.intp)


@lru_cache(maxsize=64)
def _ordered(ranks: tuple[int, ...]) -> tuple[Indices, Indices]:
    order = np.argsort(listed_ranks(ranks)).astype(np.intp)
    return listed_ranks(ranks)[order], order


def devices_of(mesh: Mesh, ranks: Indices) -> Indices:
    """Return the device of each of *ranks* in *mesh*, -1 for one outside. Local."""
    if isinstance(mesh.ranks, range):
        devices = ranks - mesh.ranks.start
        return np.where((devices >= 0) & (devices < mesh.size), devices, -1)
    ascending, order = _ordered(mesh.ranks)
    places = np.minimum(np.searchsorted(ascending, ranks), mesh.size - 1)
    return np.where(ascending[places] == ranks, order[places], -1)


def ranks_of(mesh: Mesh, devices: Indices) -> Indices:
    """Return the rank of each of *devices* of *mesh*. Local."""
    return devices + mesh.ranks.start if isinstance(mesh.ranks, range) else listed_ranks(mesh.ranks)[devices]
