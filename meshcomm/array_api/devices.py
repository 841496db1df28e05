"""What the array API standard calls a device: a mesh, or a layout on one."""

from typing import NamedTuple, TypeAlias

from meshcomm.core._arguments import quote
from meshcomm.core.layouts.layout import Layout
from meshcomm.core.layouts.mesh import Mesh
from meshcomm.core.ranks.meshes import required_default_mesh
from meshcomm.errors import MeshError


class Everywhere(NamedTuple):
    """Where the namespace of a mesh creates tensors unless it is given a device: whole, on each rank of *mesh*."""

    mesh: Mesh


Device: TypeAlias = Mesh | Layout | Everywhere


def layout_on(device: Device | None, ndim: int) -> Layout:
    """Return the layout of a new tensor of *ndim* axes on *device*.

    On a mesh the first axis is sharded over all of it; None is the mesh of `default_mesh`. ``MeshError`` if there is
    none, or if *device* is no device.

    >>> layout_on(Mesh(range(4), {"x": 2, "y": 2}), 2).axes
    (('x', 'y'), ())
    """
    if isinstance(device, Layout):
        return device
    if isinstance(device, Everywhere):
        return Layout.replicated(device.mesh, ndim)
    mesh = required_default_mesh("device=") if device is None else device
    if not isinstance(mesh, Mesh):
        raise MeshError(f"device must be a Mesh or a Layout, not {quote(device)}")
    if ndim == 0:
        return Layout.replicated(mesh, 0)
    return Layout([tuple(mesh.dim_names), *[()] * (ndim - 1)], mesh)


def moved(layout: Layout, device: Device | None) -> Layout:
    """Return the layout that a tensor in *layout* has on *device*: the same one on its own mesh, or everywhere."""
    if device is None or isinstance(device, Everywhere) or device is layout.mesh or device == layout.mesh:
        return layout
    return layout_on(device, layout.ndim)
