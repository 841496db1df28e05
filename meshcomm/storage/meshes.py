"""The mesh over which ranks save and load together."""

from collections.abc import Iterable
from math import prod

from meshcomm.layouts.mesh import Mesh
from meshcomm.ranks.meshes import create_mesh, get_default_mesh


def common_mesh(meshes: Iterable[Mesh]) -> Mesh:
    """Return a mesh over all ranks of *meshes*: the only one, if there is one; without any, that of `default_mesh`.

    Without that, it has all ranks of the world.
    """
    found = list({id(mesh): mesh for mesh in meshes}.values())
    if not found:
        return get_default_mesh() or create_mesh()
    first = found[0]
    if all(set(mesh.ranks) == set(first.ranks) for mesh in found):
        return first
    ranks = sorted({rank for mesh in found for rank in mesh.ranks})
    return Mesh(ranks, [("rank", len(ranks))])._bound_to(first.world)


def rows_of(mesh: Mesh) -> tuple[str, ...]:
    """Return all mesh dimensions with more than one device, or the first one."""
    names = tuple(name for name, size in mesh.dims if size > 1)
    return names or (mesh.dim_names[0],) if prod(mesh.shape()) else names
