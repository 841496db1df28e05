"""map_overlap: a function of blocks with ghosts, on every block of a tensor."""

from collections.abc import Mapping, Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import DTypeLike

from meshcomm.blocks.make import make, map_into, on_blocks
from meshcomm.blocks.session import session
from meshcomm.blocks.small import agree_on_result, tensor_of_lengths
from meshcomm.core._arguments import as_dtype, counted, quote
from meshcomm.core._tracing import Value, is_traced, traceable
from meshcomm.core._types import Array, DType, Slices
from meshcomm.core.arrays.dtensor import DTensor, unwrapped
from meshcomm.core.arrays.relayout import relayout
from meshcomm.core.layouts.dtype_text import dtype_text
from meshcomm.core.memory.copies import contiguous
from meshcomm.core.ranks.local_errors import refusable
from meshcomm.errors import LayoutError, ShapeError
from meshcomm.halos.boundaries import Boundary, as_boundaries
from meshcomm.halos.halo import Halo
from meshcomm.halos.make import halo
from meshcomm.halos.widths import Width, as_widths
from meshcomm.numpy.elementwise.signatures import Function
from meshcomm.numpy.gradients import differentiable

Options: TypeAlias = Mapping[str, Value]
"""Arguments of a function, by name."""
OverlapCall: TypeAlias = tuple[Function, object, object, Options]
"""A function, depth, boundary and other arguments of `map_overlap`."""


@refusable
def map_overlap(
    fn: Function,
    *args: object,
    depth: object = None,
    boundary: object = "none",
    trim: bool = True,
    dtype: DTypeLike | None = None,
    **kwargs: object,
) -> DTensor:
    """Return the results of *fn* for the blocks of tensors with their ghosts. Collective over the mesh.

    Each rank calls *fn* once, with an array for each tensor: its block with *depth* ghosts. The result has the layout
    of the first tensor. Source: map_overlap of dask.array.

    Parameters
    ----------
    fn: a function of arrays. It returns an array of the shape of the first one, of one dtype on all ranks. Each rank
        calls it once, also with an empty block. If it raises an error on one rank, all ranks raise it
    args: one or several tensors of one shape; other layouts than the first one's are relaid. *depth* and *boundary*
        may follow by position
    depth: number of ghosts, as the width of `halo`; or a list of those, one for each tensor
    boundary: boundary of the array, as for `halo`; or a list of those, one for each tensor. An axis without elements
        has no ghosts where the boundary repeats elements
    trim: whether to cut off the ghosts of the first array from each result. If not, the result has the blocks that
        *fn* returns, of any lengths, one after the other along each sharded axis (`Cuts`). Ranks outside of the mesh
        then have no shape, and may not call
    dtype: dtype of the result; by default that of *fn*, on ranks outside of the mesh for an array of ones
    kwargs: arguments of *fn*. Their values may differ between ranks, their names may not

    ``LayoutError`` for no tensors and for plain arrays, ``ShapeError`` for tensors of several shapes, and if *fn*
    returns a wrong shape. Other errors are those of `halo`.

    >>> import numpy as np, meshcomm as mc
    >>> def program():
    ...     rows = mc.Layout(["x"], mc.create_mesh([("x", 2)]))
    ...     t = mc.distribute(np.array([1, 1, 2, 3, 5, 8]), rows)
    ...     return mc.map_overlap(lambda x: x - np.roll(x, 1), t, 1, "periodic").to_numpy(root=0)
    >>> with mc.simulate(2) as world:
    ...     print(world.run(program)[0])
    [-7  0  1  1  2  3]
    """
    if not callable(fn):
        raise LayoutError(f"map_overlap takes a function and then tensors; it got {quote(fn)} as the function")
    if any(map(is_traced, args)):
        return _by_autograd(fn, args, (depth, boundary), dict(kwargs, dtype=dtype) if dtype else kwargs, trim)
    tensors, depth, boundary = _split_arguments(args, depth, boundary)
    first_tensor, has_several = tensors[0], len(tensors) > 1
    depths = _for_each(depth, tensors, has_several)
    boundaries = _for_each(boundary, tensors, has_several)
    # Raises before anything is sent.
    settings = [_widths_and_boundaries(first_tensor, *pair) for pair in zip(depths, boundaries, strict=True)]
    result_dtype = None if dtype is None else as_dtype(dtype)
    names = "".join(f", {name}=" for name in sorted(kwargs))

    def call_text(result: Array) -> str:
        return f"map_overlap of a function that returns {dtype_text(result.dtype)}, trim={bool(trim)}{names}"

    def block_result(block: Array) -> Array:
        return agree_on_result(
            "map_overlap", first_tensor.mesh, call_text, lambda: _result(fn, halos, result_dtype, kwargs, trim)
        )

    with session("map_overlap", first_tensor.mesh):
        halos = [halo(relaid, *setting) for relaid, setting in zip(_in_one_layout(tensors), settings, strict=True)]
        result = on_blocks(block_result, first_tensor)
    if trim:
        return _trimmed(halos[0], result, _dtype(fn, halos, result, result_dtype, kwargs))
    return _joined_blocks(halos[0], result)


def _widths_and_boundaries(
    tensor: DTensor, depth: object, boundary: object
) -> tuple[tuple[Width, ...], tuple[Boundary, ...]]:
    """Return width and boundary of each axis; an axis without elements to repeat gets no ghosts."""
    boundaries = zip(tensor.shape, as_boundaries(boundary, tensor.ndim), strict=True)
    ghost_boundaries = tuple(Boundary("none") if edge.repeats and not n else edge for n, edge in boundaries)
    return as_widths(depth, tensor.ndim, "depth"), ghost_boundaries


def _result(fn: Function, halos: Sequence[Halo], dtype: DType | None, kwargs: Options, trim: bool) -> Array:
    """Return the result of *fn* for the blocks; ``DTypeError`` for objects, ``ShapeError`` for another shape."""
    result = np.asarray(fn(*(member.local for member in halos), **kwargs), dtype=dtype)
    as_dtype(result.dtype)
    shape = halos[0].local.shape
    if trim and result.shape != shape:
        raise ShapeError(
            f"the function returned an array of shape {result.shape} for a block with ghosts of shape {shape}; "
            "it must return the same shape, or say trim=False"
        )
    return result


def _by_autograd(
    fn: Function, args: Sequence[object], edges: tuple[object, object], options: Options, trim: bool
) -> DTensor:
    """Return the result for a tensor that autograd follows; depth and boundary may come by position."""
    tensor, *positional = args
    if (
        not is_traced(tensor)
        or any(is_traced(value) or isinstance(value, DTensor) for value in positional)
        or not trim
    ):
        raise NotImplementedError("map_overlap has a gradient for one tensor, with trim=True")
    depth, boundary = (*positional, *edges[len(positional) :])[:2]
    return overlapped(tensor, fn, depth, boundary, options)


@traceable()
def overlapped(tensor: object, fn: Function, depth: object, boundary: object, options: Options) -> DTensor:
    """Return ``map_overlap(fn, tensor, depth, boundary, **options)``. Collective over the mesh."""
    return map_overlap(fn, tensor, depth=depth, boundary=boundary, **options)


def overlapped_vjp(grad: DTensor, tensor: DTensor, call: OverlapCall) -> DTensor:
    """Return the gradient of `overlapped` with respect to the tensor. Collective over the mesh.

    autograd computes the gradient of *fn* in each block with its ghosts; the ghosts are added to their owners. *fn*
    must consist of autograd's functions, or have a gradient there.

    Parameters
    ----------
    grad: the gradient with respect to the result
    tensor: the tensor
    call: the other arguments of `overlapped`
    """
    fn, depth, boundary, options = call
    from autograd import make_vjp  # only a program that uses autograd comes here

    tensor_halo = halo(tensor, *_widths_and_boundaries(tensor, 0 if depth is None else depth, boundary))

    def propagate(inner: Array, grad_block: Array) -> None:
        arguments = {name: value for name, value in options.items() if name != "dtype"}
        vjp, result = make_vjp(lambda block: fn(block, **arguments))(tensor_halo.local)
        full_grad = np.zeros_like(result)
        full_grad[tensor_halo.inner_slices] = grad_block
        tensor_halo.local[...] = vjp(full_grad)

    map_into(propagate, tensor_halo.tensor(), grad)
    Halo.reduce(tensor_halo)
    return tensor_halo.tensor().copy()


def _vjp(grad: DTensor, tensor: DTensor, *call: *OverlapCall) -> DTensor:
    relaid = grad if grad.layout == tensor.layout else relayout(grad, tensor.layout)
    return overlapped_vjp(relaid, tensor, call)


differentiable(overlapped, _vjp)


def _split_arguments(args: Sequence[object], depth: object, boundary: object) -> tuple[list[DTensor], object, object]:
    """Return the tensors, and the depth and boundary that may follow them by position."""
    values = [unwrapped(argument) for argument in args]
    count = next((i for i, value in enumerate(values) if not isinstance(value, DTensor)), len(values))
    tensors, positional = [value for value in values[:count] if isinstance(value, DTensor)], values[count:]
    if len(positional) > 2 or (positional and depth is not None):
        raise LayoutError(f"map_overlap takes tensors, depth and boundary; it got {quote(positional[0])} beside them")
    if not tensors:
        raise LayoutError("map_overlap needs a DTensor: call distribute first")
    if positional:
        depth = positional[0]
    if len(positional) == 2:
        boundary = positional[1]
    if len({tensor.shape for tensor in tensors}) > 1:
        shapes = ", ".join(str(tensor.shape) for tensor in tensors)
        raise ShapeError(f"map_overlap takes tensors of one shape, not of {shapes}")
    return tensors, 0 if depth is None else depth, boundary


def _for_each(setting: object, tensors: Sequence[DTensor], has_several: bool) -> list[object]:
    """Return a depth or boundary for each tensor; *setting* is one for all, or for several tensors a list."""
    if has_several and isinstance(setting, list):
        if len(setting) != len(tensors):
            raise ShapeError(
                f"{quote(setting)} has {counted(len(setting), 'entry')} for {counted(len(tensors), 'tensor')}"
            )
        return setting
    return [setting] * len(tensors)


def _in_one_layout(tensors: Sequence[DTensor]) -> list[DTensor]:
    layout = tensors[0].layout
    return [tensor if tensor.layout == layout else relayout(tensor, layout) for tensor in tensors]


def _dtype(fn: Function, halos: Sequence[Halo], result: Array | None, dtype: DType | None, kwargs: Options) -> DType:
    if result is not None:
        return result.dtype
    if dtype is not None:
        return dtype
    samples = [np.ones([1 + before + after for before, after in member.width], member.dtype) for member in halos]
    return np.asarray(fn(*samples, **kwargs)).dtype


def _trimmed(first_halo: Halo, result: Array | None, dtype: DType) -> DTensor:
    """Return the tensor of the blocks of *result* without ghosts."""
    inner_index: Slices = (..., *first_halo.inner_slices)
    block = None if result is None else contiguous(result[inner_index])
    return make(block, first_halo.layout, first_halo.shape, dtype)


def _joined_blocks(first_halo: Halo, result: Array | None) -> DTensor:
    """Return the tensor of blocks of any lengths. Collective over the mesh."""
    block = None if result is None else contiguous(result)
    return tensor_of_lengths(
        "map_overlap", block, first_halo.mesh, first_halo.layout.default_cut(range(first_halo.layout.ndim)).axes
    )
