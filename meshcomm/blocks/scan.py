"""Prefix scans, such as cumsum: devices scan their blocks, and then the totals of the blocks.

One small exchange gives each device the total of all blocks before its own. So the sum runs within each block first,
and then over the blocks. A `Cyclic` axis is relaid to consecutive blocks over the same mesh dimensions, and the result
back.
"""

from collections.abc import Callable
from math import prod
from typing import NamedTuple

import numpy as np

from meshcomm.blocks.align import relaid
from meshcomm.blocks.reduce import group_along
from meshcomm.blocks.rules import dims_that_cut
from meshcomm.core._callers import not_raising_float_errors
from meshcomm.core._types import Array, DType, Shape
from meshcomm.core.arrays.dtensor import DTensor
from meshcomm.core.layouts.layout import Layout
from meshcomm.core.ranks.calls import Collective
from meshcomm.core.ranks.meshes import mesh_description
from meshcomm.core.ranks.rank_sets import Location
from meshcomm.core.transport.reduce import ExclusiveScan


class Scan(NamedTuple):
    """A prefix scan along one axis of a tensor: each result combines all elements up to its index.

    Parameters
    ----------
    name: name of the operation
    function: function of NumPy that takes a block, ``axis=`` and ``dtype=``
    ufunc: associative function that combines two results
    axis: counted from 0
    dtype: dtype of the result
    """

    name: str
    function: Callable[..., Array]
    ufunc: np.ufunc
    axis: int
    dtype: DType

    @property
    def compute_dtype(self) -> DType:
        """The dtype of the computation: float32 for float16."""
        return np.dtype(np.float32) if self.dtype == np.float16 else self.dtype


def accumulated(scan: Scan, tensor: DTensor) -> DTensor:
    """Return a scan in the layout of *tensor*. Collective over the mesh if its axis is sharded."""
    if tensor.layout.cut(scan.axis, tensor.shape[scan.axis]).is_consecutive:
        return _scanned(scan, tensor)
    consecutive = relaid(tensor, tensor.layout.as_consecutive([scan.axis]), scan.name)
    return relaid(_scanned(scan, consecutive), tensor.layout.axes, scan.name)


def _scanned(scan: Scan, tensor: DTensor) -> DTensor:
    """Return the scan of a tensor whose blocks are consecutive. Collective over the mesh if the axis is sharded."""
    mesh, layout, shape = tensor.mesh, tensor.layout, tensor.shape
    if not tensor._has_block:
        return DTensor(None, layout, shape, scan.dtype)
    if not dims_that_cut(mesh, layout.axes[scan.axis]):
        local = scan.function(tensor._block, axis=scan.axis, dtype=scan.dtype)
        return DTensor(np.asarray(local, order="C"), layout, shape, scan.dtype)
    name, tensor_dtype = scan.name, tensor.dtype
    key = (name, layout, shape, tensor_dtype, scan.axis, scan.dtype)
    block = _SCAN(name, (mesh, mesh), key, (scan, layout, shape, tensor_dtype), (tensor._block,))
    return DTensor(block, layout, shape, scan.dtype)


def _scan_text(scan: Scan, layout: Layout, shape: Shape, tensor_dtype: DType) -> str:
    layout_text = f"{layout.specs_text} on {mesh_description(layout.mesh)}"
    return f"{scan.name} along axis {scan.axis} in {scan.dtype} of {shape} {tensor_dtype} in {layout_text}"


def _block_scan(
    scan: Scan, layout: Layout, shape: Shape, tensor_dtype: DType, location: Location
) -> Callable[[Array], Array]:
    """Return a function from the block of the tensor to that of the result."""
    mesh, axis = layout.mesh, scan.axis
    group, position = group_along(location, mesh, dims_that_cut(mesh, layout.axes[axis]))
    devices = [mesh.ranks.index(rank) for rank in group.members]
    filled_positions = [i for i, device in enumerate(devices) if layout.block_shape(shape, device)[axis]]
    order = sorted(filled_positions, key=lambda i: layout.block_numbers(devices[i])[axis])
    block_shape = layout.block_shape(shape, location.device)
    row_size = prod(length for a, length in enumerate(block_shape) if a != axis)
    exclusive_scan = ExclusiveScan(group, position, scan.ufunc, row_size, scan.compute_dtype.itemsize, order=order).run
    is_first = position not in order[1:]  # True also without elements

    def run(block: Array) -> Array:
        # A floating-point error on one rank must not stop it while the others go on to the exchange.
        with not_raising_float_errors():
            result = np.asarray(scan.function(block, axis=axis, dtype=scan.compute_dtype), order="C")
            if block.shape[axis]:
                totals = np.asarray(result.take(-1, axis=axis), order="C")
            else:
                totals = np.zeros(block.shape[:axis] + block.shape[axis + 1 :], scan.compute_dtype)
            preceding_totals = exclusive_scan(totals)
            if not is_first:
                scan.ufunc(result, np.expand_dims(preceding_totals, axis), out=result)
            return result.astype(scan.dtype, copy=False)

    return run


_SCAN = Collective[Array](_scan_text, _block_scan)
