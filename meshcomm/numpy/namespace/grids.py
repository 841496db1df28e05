"""NumPy's grids: ``meshgrid``, ``indices`` and ``fromfunction``, and the objects ``mgrid``, ``ogrid``, ``r_``, ``c_``.

The objects are indexed by slices.
"""

from collections.abc import Callable, Sequence
from functools import partial
from math import prod

import numpy as np
from numpy.typing import DTypeLike

from meshcomm.blocks.tensor_numpy import untyped_np
from meshcomm.core._tracing import Value
from meshcomm.core._types import Array
from meshcomm.core.layouts.layout import Layout
from meshcomm.numpy.namespace.creation import as_tensors, asarray, empty, register
from meshcomm.numpy.namespace.devices import layout_on
from meshcomm.numpy.namespace.making import create_by_blocks
from meshcomm.numpy.namespace.rule import WHOLE_BELOW


@register
def indices(
    dimensions: Sequence[int], dtype: DTypeLike = int, sparse: bool = False, layout: Layout | None = None
) -> Value:
    """Return the indices of a grid: a tensor, or with *sparse* a tuple of tensors."""
    shape = tuple(map(int, dimensions))
    if sparse:
        return as_tensors(untyped_np.indices(shape, dtype, True), layout)

    def block(slices: tuple[slice, ...]) -> Array:
        axis_numbers = [untyped_np.arange(interval.start, interval.stop, dtype=dtype) for interval in slices[1:]]
        index_grid = untyped_np.meshgrid(*axis_numbers, indexing="ij", copy=False)[slices[0]] if axis_numbers else []
        lengths = [interval.stop - interval.start for interval in slices]
        return untyped_np.array(index_grid, dtype).reshape(lengths)

    return create_by_blocks((len(shape), *shape), dtype, layout, block)


@register
def fromfunction(
    function: Callable[..., object],
    shape: Sequence[int],
    *,
    dtype: DTypeLike = float,
    like: object = None,
    layout: Layout | None = None,
    **kwargs: object,
) -> Value:
    """Return the result of *function* for the indices of a grid, which are tensors."""
    lengths = tuple(map(int, shape))
    target_layout = layout_on(layout, lengths, np.dtype(dtype))
    coordinates = [
        create_by_blocks(lengths, dtype, target_layout, partial(_axis_numbers, axis, dtype))
        for axis in range(len(lengths))
    ]
    return function(*coordinates, **kwargs)


def _axis_numbers(axis: int, dtype: DTypeLike, slices: Sequence[slice]) -> Array:
    """Return the index along *axis* of each element of the block at *slices*."""
    lengths = [interval.stop - interval.start for interval in slices]
    numbers = untyped_np.arange(slices[axis].start, slices[axis].stop, dtype=dtype)
    axis_line = numbers.reshape([-1 if other == axis else 1 for other in range(len(lengths))])
    return np.broadcast_to(axis_line, lengths).copy()


@register
def meshgrid(*xi: Value, copy: bool = True, sparse: bool = False, indexing: str = "xy") -> Value:
    """Return the coordinates of the points of a grid, as a tuple of tensors in layouts by the rule of creation.

    With ``copy=False`` they are views, which must not be written to.
    """
    if sparse or prod(map(np.size, xi)) * 8 < WHOLE_BELOW:
        return as_tensors(untyped_np.meshgrid(*map(asarray, xi), copy=copy, sparse=sparse, indexing=indexing))
    lines = [asarray(x).reshape(-1) for x in xi]
    order = [*range(len(lines))]
    if indexing == "xy":
        order[:2] = reversed(order[:2])
    elif indexing != "ij":
        raise ValueError("Valid values for `indexing` are 'xy' and 'ij'.")
    shape = tuple(lines[axis].size for axis in order)  # the exchange of two axes is its own inverse
    coordinates = []
    for number, line in enumerate(lines):
        thin_line = line.reshape([-1 if axis == number else 1 for axis in order])
        if copy:
            grid = empty(shape, line.dtype)
            grid[...] = thin_line
            coordinates.append(grid)
        else:
            coordinates.append(np.broadcast_to(thin_line, shape))
    return tuple(coordinates)


class CoordinateGrid:
    """``mgrid`` and ``ogrid``: the coordinates of the points of a grid, by slices."""

    def __init__(self, name: str) -> None:
        self._numpy_grid = getattr(np, name)
        self.sparse: bool = self._numpy_grid.sparse

    def __getitem__(self, key: object) -> Value:
        if self.sparse or not isinstance(key, tuple):
            return as_tensors(self._numpy_grid[key])
        lines = np.ogrid[key]
        shape = tuple(line.size for line in lines)

        def block(slices: tuple[slice, ...]) -> Array:
            blocks = [
                line[tuple(s if n > 1 else slice(None) for s, n in zip(slices[1:], line.shape, strict=True))]
                for line in lines
            ]
            lengths = [s.stop - s.start for s in slices[1:]]
            return np.stack([np.broadcast_to(line, lengths) for line in blocks[slices[0]]]).reshape([-1, *lengths])

        return create_by_blocks((len(lines), *shape), np.result_type(*lines), None, block)


class Joined:
    """``r_`` and ``c_``: rows and columns of numbers, arrays and tensors."""

    def __init__(self, name: str) -> None:
        self._numpy_grid = getattr(np, name)

    def __getitem__(self, key: object) -> Value:
        return as_tensors(self._numpy_grid[key])

    def __len__(self) -> int:
        return 0
