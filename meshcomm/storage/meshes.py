"""Arguments of calls that save and load: checks, and the mesh over which ranks make the call."""

from collections.abc import Iterable, Sequence

from meshcomm.core._arguments import as_integer, quote
from meshcomm.core._types import Shape
from meshcomm.core.layouts.layout import Layout
from meshcomm.core.layouts.mesh import Mesh, bound_to
from meshcomm.core.layouts.specs import cut_at
from meshcomm.core.ranks.meshes import create_mesh, get_default_mesh
from meshcomm.errors import ShapeError


def check_limits(*limits: int | None) -> None:
    """Raise ``ShapeError`` unless each limit is a number of bytes, 1 or more, or None."""
    for limit in limits:
        if limit is not None and as_integer(limit, "a limit of bytes", ShapeError) < 1:
            raise ShapeError(f"a limit of {quote(limit)} bytes; it is 1 or more, or None")


def common_mesh(meshes: Iterable[Mesh]) -> Mesh:
    """Return a mesh over all ranks of *meshes*: one of them, if all have the same ranks.

    Without *meshes* it is that of `default_mesh`, or else has all ranks of the world.
    """
    all_meshes = list(meshes)
    if not all_meshes:
        return get_default_mesh() or create_mesh()
    first = all_meshes[0]
    if len(all_meshes) == 1 or all(mesh is first or set(mesh.ranks) == set(first.ranks) for mesh in all_meshes[1:]):
        return first
    ranks = sorted({rank for mesh in all_meshes for rank in mesh.ranks})
    return bound_to(first.world, Mesh(ranks, [("rank", len(ranks))]))


def cut_along(axis: int, borders: Sequence[int], shape: Shape, mesh: Mesh) -> Layout:
    """Return the layout of a tensor of *shape* that all devices share along *axis*, with these *borders*.

    >>> cut_along(1, [0, 1, 3], (4, 3), Mesh(range(2), {"x": 2})).sharding_specs
    ['unsharded', Cuts('x', (0, 1, 3))]
    """
    return Layout.replicated(mesh, len(shape)).replace(axis, cut_at(rows_of(mesh), borders, shape[axis]))


def rows_of(mesh: Mesh) -> tuple[str, ...]:
    """Return all mesh dimensions with more than one device, or the first one."""
    return tuple(name for name, size in mesh.dims if size > 1) or (mesh.dim_names[0],)
