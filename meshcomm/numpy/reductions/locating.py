"""Indices of extremes: argmax and argmin, and nanargmax and nanargmin.

Each device finds the first extreme of its block, as a candidate: its value, and its index in the global array. An
element that comes before another one in a block comes before it in the global array as well, however the axes are cut.
So the candidates, in the order of their indices, have the same first extreme as the global array. NumPy's own
function finds it, with its rules for NaN and for complex numbers.
"""

from collections.abc import Callable
from typing import SupportsIndex

import numpy as np

from meshcomm.blocks.make import on_blocks
from meshcomm.blocks.reduce import Reduction, reduced
from meshcomm.blocks.rules import result_dtype
from meshcomm.blocks.small import agree_on_result
from meshcomm.core._arguments import normalised_axes
from meshcomm.core._types import Array, DType
from meshcomm.core.arrays.dtensor import DTensor, as_tensor
from meshcomm.core.layouts.layout import Layout
from meshcomm.core.layouts.partition import global_indices
from meshcomm.errors import ShapeError
from meshcomm.numpy.elementwise.signatures import implements


@implements(np.argmax, partly=True)
def argmax(a: DTensor, axis: SupportsIndex | None = None, *, keepdims: bool = False) -> DTensor:
    """Return the index of the first maximum along *axis*. Collective over the mesh if that axis is sharded.

    As numpy.argmax: without *axis* it is the index in the flattened global array, and if there is a NaN, the first
    one is the maximum. The index is that in the global array, whichever device holds the element. ``ShapeError`` if
    there are no elements, ``TypeError`` for several axes.

    >>> import numpy as np, meshcomm as mc
    >>> def program():
    ...     t = mc.distribute(np.array([1, 3, 3, 2]), mc.Layout(["x"], mc.create_mesh([("x", 2)])))
    ...     return int(np.argmax(t)), int(np.argmin(t))
    >>> with mc.simulate(2) as world:
    ...     print(world.run(program))
    [(1, 0), (1, 0)]
    """
    return _extreme(np.argmax, a, axis, keepdims)


@implements(np.argmin, partly=True)
def argmin(a: DTensor, axis: SupportsIndex | None = None, *, keepdims: bool = False) -> DTensor:
    """Return the index of the first minimum along *axis*, as `argmax`. Collective over the mesh as `argmax`."""
    return _extreme(np.argmin, a, axis, keepdims)


@implements(np.nanargmax, partly=True)
def nanargmax(a: DTensor, axis: SupportsIndex | None = None, *, keepdims: bool = False) -> DTensor:
    """Return the index of the first maximum along *axis* that is no NaN, as `argmax`. Collective over the mesh.

    NumPy's ``ValueError`` on all ranks of the mesh if all elements of a line along *axis* are NaN.
    """
    return _extreme_without_nan(np.nanargmax, np.argmax, -np.inf, a, axis, keepdims=keepdims)


@implements(np.nanargmin, partly=True)
def nanargmin(a: DTensor, axis: SupportsIndex | None = None, *, keepdims: bool = False) -> DTensor:
    """Return the index of the first minimum along *axis* that is no NaN, as `nanargmax`. Collective over the mesh."""
    return _extreme_without_nan(np.nanargmin, np.argmin, np.inf, a, axis, keepdims=keepdims)


def _extreme(function: Callable[..., object], operand: object, axis: SupportsIndex | None, keepdims: bool) -> DTensor:
    name = function.__name__
    tensor = as_tensor(f"numpy.{name}", operand)
    axes = _checked_axes(name, tensor, axis)
    index_dtype = result_dtype(function, [tensor.dtype], tensor.ndim)
    search_axis, layout, shape = None if axis is None else axes[0], tensor.layout, tensor.shape
    reduction = Reduction(
        name,
        axes,
        lambda block: function(block, axis=search_axis),
        lambda block: _candidates(function, block, search_axis, layout, shape),
        _first_extreme_by(function),
        index_dtype,
        _candidate_dtype(tensor.dtype),
        lambda candidates: np.asarray(candidates["index"], index_dtype, order="C"),
    )
    return reduced(reduction, tensor, keepdims)


def _extreme_without_nan(
    function: Callable[..., object],
    plain_function: Callable[..., object],
    nan_value: float,
    operand: object,
    axis: SupportsIndex | None,
    *,
    keepdims: bool,
) -> DTensor:
    """Return the index of the first extreme that is no NaN, by *plain_function* with *nan_value* in place of NaN."""
    name = function.__name__
    tensor = as_tensor(f"numpy.{name}", operand)
    axes = _checked_axes(name, tensor, axis)
    index_dtype = result_dtype(function, [tensor.dtype], tensor.ndim)
    if tensor.dtype.kind not in "fc":
        return _extreme(plain_function, tensor, axis, keepdims)
    search_axis, layout, shape = None if axis is None else axes[0], tensor.layout, tensor.shape
    pick, share_dtype = _first_extreme_by(plain_function), _candidate_dtype(tensor.dtype, ("missing", np.dtype(bool)))

    def share(block: Array) -> Array:
        is_nan = np.isnan(block)
        candidates = _candidates(
            plain_function, np.where(is_nan, block.dtype.type(nan_value), block), search_axis, layout, shape
        )
        result = np.zeros(candidates.shape, share_dtype)
        result["value"], result["index"] = candidates["value"], candidates["index"]
        result["missing"] = np.all(is_nan, axis=search_axis)
        return result

    def merge(rows: Array) -> Array:
        result = pick(rows)
        result["missing"] = np.all(rows["missing"], axis=0)
        return result

    # If all elements are NaN, the index is -1, also on a single device: the ranks then agree on the error.
    def finish(candidates: Array) -> Array:
        return np.where(candidates["missing"], -1, candidates["index"]).astype(index_dtype)

    reduction = Reduction(name, axes, lambda x: finish(share(x)), share, merge, index_dtype, share_dtype, finish)
    result = reduced(reduction, tensor, keepdims)
    _refuse_missing(name, result)
    return result


def _refuse_missing(name: str, result: DTensor) -> None:
    """Raise ``ValueError`` on all ranks if a block of *result* has -1 somewhere. Collective over the mesh."""

    def check(block: Array) -> None:
        if np.any(block < 0):
            raise ValueError("All-NaN slice encountered")

    text = f"the result of {name} of shape {result.shape}"
    agree_on_result(name, result.mesh, text, lambda: on_blocks(check, result))


def _checked_axes(name: str, tensor: DTensor, axis: SupportsIndex | None) -> tuple[int, ...]:
    """Return the axes to search; all if *axis* is None."""
    if isinstance(axis, tuple | list):
        raise TypeError(f"numpy.{name} takes one axis, or None for the flattened array, not {axis!r}")
    axes = normalised_axes(axis, tensor.ndim)
    if 0 in [tensor.shape[a] for a in axes]:
        raise ShapeError(
            f"numpy.{name}: attempt to get {name.removeprefix('nan')} of an empty sequence: axis {axis} of shape "
            f"{tensor.shape} has no elements"
        )
    return axes


def _candidate_dtype(dtype: DType, *fields: tuple[str, DType]) -> DType:
    return np.dtype([("value", dtype), ("index", np.dtype(np.int64)), *fields], align=True)


def _candidates(
    function: Callable[..., object], block: Array, axis: int | None, layout: Layout, shape: tuple[int, ...]
) -> Array:
    """Return the first extreme of a block along *axis*: its value, and its index in a global array of *shape*."""
    box = layout.block_box(shape)
    if axis is None:
        position_in_block = np.unravel_index(np.asarray(function(block), np.intp), block.shape)
        index = np.zeros((), np.int64)
        for span, n, index_in_block in zip(box, shape, position_in_block, strict=True):
            index = index * n + global_indices(span, np.asarray(index_in_block, np.intp))
        value = np.asarray(block[position_in_block])
    else:
        index_in_block = np.asarray(function(block, axis=axis), np.intp)
        value = np.take_along_axis(block, np.expand_dims(index_in_block, axis), axis).squeeze(axis)
        index = np.asarray(global_indices(box[axis], index_in_block))
    result = np.zeros(index.shape, _candidate_dtype(block.dtype))
    result["value"], result["index"] = value, index
    return result


def _first_extreme_by(function: Callable[..., object]) -> Callable[[Array], Array]:
    """Return a function that finds the extreme of each column, the one with the lowest index among equal ones."""

    def first_extreme(rows: Array) -> Array:
        ordered = np.take_along_axis(rows, np.argsort(rows["index"], axis=0), axis=0)
        best_index = np.asarray(function(ordered["value"], axis=0))
        best_rows: Array = np.take_along_axis(ordered, best_index[None], axis=0)[0]
        return best_rows.copy()

    return first_extreme
