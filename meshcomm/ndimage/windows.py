"""Filters over a window around each element: SciPy's, run on blocks with ghosts."""

from collections.abc import Callable, Sequence
from typing import SupportsIndex, TypeAlias

import numpy as np

from meshcomm.blocks.make import mapped
from meshcomm.blocks.small import compare_call
from meshcomm.core._types import Array, DType
from meshcomm.core.arrays.dtensor import DTensor
from meshcomm.halos.boundaries import holds
from meshcomm.halos.make import halo
from meshcomm.halos.widths import Width
from meshcomm.ndimage.arguments import Number
from meshcomm.ndimage.axes import FilterEdges, spread_over_axes
from meshcomm.ndimage.calls import ScipyCall

Widths: TypeAlias = list[Width]
"""Numbers of elements before and after a block, for each axis."""

FLIPPED = ("convolve", "convolve1d", "grey_dilation", "binary_dilation")
"""Filters with reversed windows."""


def window(size: int, origin: SupportsIndex = 0, *, flipped: bool = False) -> Width:
    """Return the number of elements before and after an element in a window of *size*.

    Convolutions and dilations have *flipped* windows.

    >>> window(3), window(4), window(4, flipped=True), window(5, 2)
    ((1, 1), (2, 1), (1, 2), (4, 0))
    """
    low, high = size // 2, size - 1 - size // 2
    return (high - int(origin), low + int(origin)) if flipped else (low + int(origin), high - int(origin))


def widths_along(
    name: str, axes: Sequence[int], ndim: int, lengths: Sequence[SupportsIndex], origins: Sequence[SupportsIndex]
) -> Widths:
    """Return, for *ndim* axes, the elements before and after in a window of *lengths* of the filter *name*."""
    sizes = zip(map(int, lengths), origins, strict=True)
    return spread_over_axes([window(n, origin, flipped=name in FLIPPED) for n, origin in sizes], axes, ndim, (0, 0))


def ghosts_of(tensor: DTensor, widths: Sequence[Width]) -> Widths:
    """Return *widths* along the sharded axes of *tensor*, and zeros along the others."""
    sharded = (tensor.layout.cut(axis, n).blocks > 1 for axis, n in enumerate(tensor.shape))
    return [width if is_cut else (0, 0) for width, is_cut in zip(widths, sharded, strict=True)]


def run_on_windows(tensor: DTensor, widths: Widths, edges: FilterEdges, run: ScipyCall, dtype: DType) -> DTensor:
    """Return the result of *run*, in the layout of *tensor*. Collective if a sharded axis needs ghosts.

    *run* gets blocks with ghosts along sharded axes only; along the others, SciPy extends the block itself.
    The ranks compare its text if they communicate.
    """
    boundaries = edges.boundaries(tensor.ndim)
    ghosts = ghosts_of(tensor, widths)
    if any(boundary.name == "constant" for boundary in boundaries) and not holds(tensor.dtype, edges.cval):
        tensor = _in_double_precision(tensor, edges.cval)
    if not tensor.size or not any(map(any, ghosts)):
        return filter_blocks(tensor, lambda block: run(block, dtype), dtype)
    compare_call("filter", tensor.mesh, f"{run} as {dtype}")
    tensor_halo = halo(tensor, ghosts, list(boundaries))
    return filter_blocks(tensor, lambda block: run(tensor_halo.local, dtype)[tensor_halo.inner_slices], dtype)


def filter_blocks(tensor: DTensor, run: Callable[[Array], Array], dtype: DType) -> DTensor:
    """Return the tensor of the results of *run* for each block, of *dtype*; empty blocks stay empty."""
    return mapped(lambda block: run(block) if block.size else np.empty(block.shape, dtype), tensor, dtype=dtype)


def _in_double_precision(tensor: DTensor, cval: Number) -> DTensor:
    """Return *tensor* in double precision, as in SciPy: its blocks can hold *cval*."""
    dtype = np.dtype(np.complex128 if tensor.dtype.kind == "c" or isinstance(cval, complex) else np.float64)
    return mapped(lambda block: block.astype(dtype), tensor, dtype=dtype)
