"""Where a new tensor lies: in a layout, on a mesh, whole on each rank of a mesh, or where the rule says."""

from typing import Literal, NamedTuple, TypeAlias

from meshcomm.core._arguments import quote
from meshcomm.core._types import DType, Shape
from meshcomm.core.layouts.layout import Layout
from meshcomm.core.layouts.mesh import Mesh
from meshcomm.core.ranks.meshes import mesh_of_program
from meshcomm.errors import MeshError
from meshcomm.numpy.namespace.rule import layout_for


class Everywhere(NamedTuple):
    """Where the namespace of a mesh creates tensors unless it is given a device: whole, on each rank of *mesh*."""

    mesh: Mesh


Device: TypeAlias = Mesh | Layout | Everywhere | Literal["cpu"]
"""What the array API standard calls a device, and NumPy's only one, which is any."""


def layout_on(device: Device | None, shape: Shape, dtype: DType) -> Layout:
    """Return the layout of a new tensor of *shape* and *dtype* on *device*.

    On a mesh the first axis is sharded over all of it. Of None, the rule of creation decides, on the mesh of the
    program. ``MeshError`` if *device* is no device.

    >>> import numpy as np
    >>> layout_on(Mesh(range(4), {"x": 2, "y": 2}), (5, 3), np.dtype("f8")).axes
    (('x', 'y'), ())
    """
    if device is None or device == "cpu":
        return layout_for(shape, dtype, mesh_of_program())
    return _layout_of_device(device, len(shape))


def _layout_of_device(device: Device, ndim: int) -> Layout:
    if isinstance(device, Layout):
        return device
    if isinstance(device, Everywhere):
        return Layout.replicated(device.mesh, ndim)
    if not isinstance(device, Mesh):
        raise MeshError(f"device must be a Mesh or a Layout, not {quote(device)}")
    if ndim == 0:
        return Layout.replicated(device, 0)
    return Layout([tuple(device.dim_names), *[()] * (ndim - 1)], device)


def layout_moved_to(layout: Layout, device: Device | None) -> Layout:
    """Return the layout that a tensor in *layout* has on *device*: the same one on its own mesh, or everywhere."""
    if device is None or isinstance(device, Everywhere) or device in (layout.mesh, "cpu"):
        return layout
    return _layout_of_device(device, layout.ndim)
