"""Functions composed of others: block, resize, trim_zeros, diag, linspace, cumulative_sum, and texts of tensors.

Also functions of operands that are small by nature, such as coefficients of polynomials: these are gathered to every
rank.
"""

from collections.abc import Callable, Iterator
from math import prod
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from meshcomm.blocks.align import replicated, tensors_of
from meshcomm.blocks.make import mapped, refuse_outside
from meshcomm.blocks.map import elementwise_results, with_out
from meshcomm.blocks.rules import mesh_of
from meshcomm.blocks.small import allgather_array
from meshcomm.blocks.tensor_numpy import tensor_np
from meshcomm.core._arguments import as_shape, normalised_axes, quote
from meshcomm.core._tracing import Value
from meshcomm.core._types import Array, Axis, ShapeLike
from meshcomm.core.arrays.create import zeros
from meshcomm.core.arrays.dtensor import DTensor, as_tensor, unwrapped
from meshcomm.core.layouts.layout import Layout
from meshcomm.errors import ShapeError
from meshcomm.numpy.elementwise.signatures import Function, implements, implements_each
from meshcomm.numpy.indexing.diagonals import diagonal
from meshcomm.numpy.joining.joining import concatenate
from meshcomm.numpy.sequences.scans import cumprod, cumsum

# -- from pieces ------------------------------------------------------------------------------------------------------


@implements(np.block)
def block(arrays: object) -> DTensor:
    """Return nested lists of tensors joined, as numpy.block: innermost lists along the last axis. Collective."""
    depth, leaves = _depth(arrays), _leaves(arrays)
    nested_tensors = _nested_like(arrays, iter(tensors_of("numpy.block", leaves)))
    ndim = max(depth, *(x.ndim for x in _leaves(nested_tensors)))

    def join_nested(nested: Value, level: int) -> Value:
        if not isinstance(nested, list):
            return np.reshape(nested, (1,) * (ndim - nested.ndim) + nested.shape)
        return concatenate([join_nested(item, level + 1) for item in nested], ndim - depth + level)

    result: DTensor = join_nested(nested_tensors, 0)
    return result if isinstance(arrays, list) else result.copy()


def _depth(nested: object) -> int:
    """Return how deep lists are nested; ``ValueError`` if not all are equally deep, or one is empty."""
    if isinstance(nested, tuple):
        raise TypeError("numpy.block takes lists, not tuples, and arrays")
    if not isinstance(nested, list):
        return 0
    if not nested:
        raise ValueError("List at arrays cannot be empty")
    depths = {_depth(item) for item in nested}
    if len(depths) > 1:
        raise ValueError("List depths are mismatched")
    return 1 + depths.pop()


def _leaves(nested: object) -> list[Any]:
    return [leaf for item in nested for leaf in _leaves(item)] if isinstance(nested, list) else [unwrapped(nested)]


def _nested_like(structure: object, leaves: Iterator[DTensor]) -> object:
    return [_nested_like(item, leaves) for item in structure] if isinstance(structure, list) else next(leaves)


@implements(np.resize)
def resize(a: DTensor, new_shape: ShapeLike) -> DTensor:
    """Return the elements in C order in another shape, repeated if there are too few, as numpy.resize. Collective."""
    tensor, shape = as_tensor("numpy.resize", a), as_shape(new_shape)
    if any(n < 0 for n in shape):
        raise ValueError("all elements of `new_shape` must be non-negative")
    size = prod(shape)
    if not tensor.size:
        return zeros(shape, tensor.dtype, Layout.replicated(tensor.mesh, len(shape)))
    flat = tensor.ravel()
    repeats = -(-size // tensor.size)
    repeated = concatenate([flat] * repeats, 0) if repeats > 1 else flat
    reshaped: DTensor = repeated[:size].reshape(shape)
    return reshaped.copy()


@implements(np.trim_zeros)
def trim_zeros(filt: DTensor, trim: str = "fb", axis: Axis = None) -> DTensor:
    """Return the tensor without zeros at the ends of its axes, as numpy.trim_zeros. Collective over the mesh.

    *trim* has ``f`` for the front and ``b`` for the back; *axis* is one axis, several, or None for all. ``ShapeError``
    on ranks outside of the mesh: they cannot know the length of the result.
    """
    tensor = as_tensor("numpy.trim_zeros", filt)
    refuse_outside("numpy.trim_zeros", tensor.mesh, "where zeros end")
    sides = trim.lower()
    if sides not in ("fb", "bf", "f", "b"):
        raise ValueError(f"unexpected character(s) in `trim`: {quote(trim)}")
    index: list[slice] = [slice(None)] * tensor.ndim
    for trimmed_axis in normalised_axes(axis, tensor.ndim):
        other_axes = tuple(a for a in range(tensor.ndim) if a != trimmed_axis)
        is_nonzero = allgather_array("numpy.trim_zeros", np.any(tensor.astype(bool), axis=other_axes))
        (nonzero_indices,) = np.nonzero(is_nonzero)
        if not len(nonzero_indices):
            index[trimmed_axis] = slice(0, 0)
        else:
            index[trimmed_axis] = slice(
                nonzero_indices[0] if "f" in sides else 0, nonzero_indices[-1] + 1 if "b" in sides else None
            )
    return tensor[tuple(index)]


@implements(np.diag, partly=True)
def diag(v: DTensor, k: int = 0) -> DTensor:
    """Return the diagonal of a matrix, or a matrix with a diagonal, as numpy.diag. Collective if elements move.

    The rows of the matrix are cut over the mesh dimensions of the vector.
    """
    tensor = as_tensor("numpy.diag", v)
    if tensor.ndim == 2:
        return diagonal(tensor, k)
    if tensor.ndim != 1:
        raise ValueError("Input must be 1- or 2-d.")
    n, indices = len(tensor) + abs(k), np.arange(len(tensor))
    matrix = zeros((n, n), tensor.dtype, tensor.layout.default_cut(0).insert(1))
    if len(tensor):
        matrix[indices + max(-k, 0), indices + max(k, 0)] = tensor
    return matrix


@implements(np.diagflat, partly=True)
def diagflat(v: DTensor, k: int = 0) -> DTensor:
    """Return a matrix with the elements in C order on a diagonal, as numpy.diagflat. Collective over the mesh."""
    return diag(as_tensor("numpy.diagflat", v).ravel(), k)


# -- sequences --------------------------------------------------------------------------------------------------------


@implements_each(np.linspace, np.logspace, np.geomspace)
def _spacing_function(function: Callable[..., object]) -> Function:
    """Return *function*, NumPy's linspace, logspace or geomspace, for tensors. Collective if an operand has to move.

    The new axis is whole on each device.
    """
    name = f"numpy.{function.__name__}"

    def spaced(start: object, stop: object, num: int = 50, endpoint: bool = True, **options: object) -> object:
        axis, retstep = options.pop("axis", 0), options.pop("retstep", False)
        ends: Value = [unwrapped(start), unwrapped(stop)]
        # A Python number does not change the dtype.
        if not any(isinstance(end, int | float | complex) for end in ends):
            ends = elementwise_results(name, lambda a, b: (a + np.zeros_like(b), b + np.zeros_like(a)), ends)
        tensors = [end for end in ends if isinstance(end, DTensor)]
        (new_axis,) = normalised_axes(axis, tensors[0].ndim + 1)

        def points_between(*blocks: Array) -> Array:
            block_iterator = iter(blocks)
            first_value, last_value = (next(block_iterator) if isinstance(end, DTensor) else end for end in ends)
            return np.asarray(function(first_value, last_value, num, endpoint, axis=new_axis, **options))

        dtype = points_between(*(np.ones((1,) * tensor.ndim, tensor.dtype) for tensor in tensors)).dtype
        axes, shape = tensors[0].layout.axes, (*tensors[0].shape[:new_axis], num, *tensors[0].shape[new_axis:])
        layout = Layout((*axes[:new_axis], (), *axes[new_axis:]), tensors[0].mesh)
        samples = mapped(points_between, *tensors, layout=layout, shape=shape, dtype=dtype)
        if not retstep:
            return samples
        intervals = num - 1 if endpoint else num
        return samples, (ends[1] - ends[0]) / intervals if intervals > 0 else np.nan

    return spaced


def _cumulative_function(function: Callable[..., DTensor], initial: int) -> Function:
    """Return *function* with the arguments of the array API standard; *initial* is its value for no elements.

    The returned function is Collective if the axis is sharded.
    """
    name = f"numpy.{function.__name__}"

    def cumulative(
        x: DTensor,
        /,
        *,
        axis: int | None = None,
        dtype: DTypeLike | None = None,
        out: DTensor | None = None,
        include_initial: bool = False,
    ) -> DTensor:
        tensor = np.atleast_1d(as_tensor(name, x))
        if axis is None and tensor.ndim != 1:
            raise ShapeError(f"a tensor of shape {tensor.shape} has {tensor.ndim} axes: pass the axis to go along")
        result = function(tensor, 0 if axis is None else axis, dtype)
        if not include_initial:
            return with_out(name, out, result, "unsafe")
        (scan_axis,) = normalised_axes(0 if axis is None else axis, tensor.ndim)
        initial_slice = tensor_np.full_like(result[(slice(None),) * scan_axis + (slice(0, 1),)], initial)
        if not result.shape[scan_axis]:
            shape = tuple(1 if a == scan_axis else n for a, n in enumerate(result.shape))
            initial_slice = zeros(shape, result.dtype, Layout.replicated(result.mesh, result.ndim)) + initial
        return with_out(name, out, concatenate([initial_slice.astype(result.dtype), result], scan_axis), "unsafe")

    return cumulative


# -- small operands ---------------------------------------------------------------------------------------------------


@implements_each(np.polyadd, np.polysub, np.polymul, np.polydiv, np.polyder, np.polyint)
def _gathering_function(function: Function) -> Function:
    """Return NumPy's *function* of short vectors: each rank of the mesh gathers them and computes. Collective."""
    name = f"numpy.{getattr(function, '__name__', function)}"

    def computed(*args: DTensor | ArrayLike, **kwargs: ArrayLike) -> object:
        mesh = mesh_of(map(unwrapped, (*args, *kwargs.values())))
        refuse_outside(name, mesh, "how many coefficients are left")
        result = function(
            *(allgather_array(name, x) if isinstance(unwrapped(x), DTensor) else x for x in args),
            **{key: allgather_array(name, x) if isinstance(unwrapped(x), DTensor) else x for key, x in kwargs.items()},
        )
        if isinstance(result, tuple):
            return tuple(replicated(np.asarray(array), mesh) for array in result)
        return replicated(np.asarray(result), mesh)

    return computed


@implements(np.real_if_close, partly=True)
def real_if_close(a: DTensor, tol: float = 100) -> DTensor:
    """Return the real parts if all imaginary ones are close to zero, as numpy.real_if_close. Collective."""
    tensor = as_tensor("numpy.real_if_close", a)
    if tensor.dtype.kind != "c":
        return tensor
    limit = tol * np.finfo(tensor.dtype).eps if tol > 1 else tol
    return tensor.real if bool(np.all(abs(tensor.imag) < limit)) else tensor


# -- texts and descriptions -------------------------------------------------------------------------------------------


def _edge_elements(tensor: DTensor, edge_items: int) -> DTensor:
    """Return *tensor* without the middle of long axes: *edge_items* elements at both ends stay, and one between."""
    result: Value = tensor
    for axis, n in enumerate(tensor.shape):
        if n > 2 * edge_items + 1:
            indices = [*range(edge_items + 1), *range(n - edge_items, n)]
            result = np.take(result, indices, axis=axis)
    return result


@implements_each(np.array2string, np.array_repr, np.array_str)
def _text_function(function: Callable[..., str]) -> Function:
    """Return *function*, which prints arrays, for tensors: the elements to print are gathered. Collective."""
    name = f"numpy.{function.__name__}"

    def text(a: object, *args: object, **options: Value) -> str:
        tensor, settings = as_tensor(name, a), np.get_printoptions()
        threshold = options.get("threshold", settings["threshold"])
        edge_items = options.get("edgeitems", settings["edgeitems"])
        if tensor.size <= threshold:
            return function(allgather_array(name, tensor), *args, **options)
        edge_array = allgather_array(name, _edge_elements(tensor, edge_items))
        with np.printoptions(threshold=0, edgeitems=edge_items):
            if "threshold" in options:
                options["threshold"] = 0
            return function(edge_array, *args, **options)

    return text


@implements_each(
    *(np.einsum_path, np.common_type, np.min_scalar_type, np.can_cast, np.isrealobj, np.isfortran),
    *(np.tril_indices_from, np.triu_indices_from),
)
def _by_samples(function: Function) -> Function:
    """Return NumPy's *function*, which depends on dtypes and shapes only, for tensors."""

    def function_of_samples(*args: object, **kwargs: object) -> object:
        return function(*map(_without_memory, args), **{key: _without_memory(x) for key, x in kwargs.items()})

    return function_of_samples


def _without_memory(x: object) -> object:
    """Return, for a tensor, an array with its shape and dtype that takes no memory; *x* itself if it is no tensor."""
    value = unwrapped(x)
    return np.broadcast_to(np.zeros((), value.dtype), value.shape) if isinstance(value, DTensor) else x


implements(getattr(np, "cumulative_sum", None))(_cumulative_function(cumsum, 0))
implements(getattr(np, "cumulative_prod", None))(_cumulative_function(cumprod, 1))
