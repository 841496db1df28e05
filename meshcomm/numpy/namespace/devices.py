"""Devices of new tensors: a layout, a mesh, each rank of a mesh, or the choice of the rule of creation."""

from typing import Literal, NamedTuple, TypeAlias

from meshcomm.core._arguments import quote
from meshcomm.core._types import DType, Shape
from meshcomm.core.layouts.layout import Layout
from meshcomm.core.layouts.mesh import Mesh
from meshcomm.core.ranks.meshes import mesh_of_program
from meshcomm.errors import MeshError
from meshcomm.numpy.namespace.rule import layout_for


class Everywhere(NamedTuple):
    """The default device in the namespace of a mesh: tensors are whole on each rank of *mesh*."""

    mesh: Mesh


Device: TypeAlias = Mesh | Layout | Everywhere | Literal["cpu"]
"""A device in the sense of the array API standard; NumPy's only device "cpu" stands for the rule of creation."""


def layout_on(device: Device | None, shape: Shape, dtype: DType) -> Layout:
    """Return the layout of a new tensor of *shape* and *dtype* on *device*.

    On a mesh the first axis is sharded over all dimensions. For None, the rule of creation decides, on the mesh of the
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
    """Return the layout on *device* of a tensor in *layout*: unchanged for its own mesh, None, "cpu", `Everywhere`."""
    if device is None or isinstance(device, Everywhere) or device in (layout.mesh, "cpu"):
        return layout
    return _layout_of_device(device, layout.ndim)
