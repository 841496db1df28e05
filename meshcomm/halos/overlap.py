"""map_overlap: a function of blocks with ghosts, on every block of a tensor."""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import DTypeLike

from meshcomm.blocks.make import changed, make, on_blocks
from meshcomm.blocks.session import session
from meshcomm.blocks.small import of_lengths, together
from meshcomm.core._arguments import as_dtype, counted, quote
from meshcomm.core._tracing import Value, is_traced, traceable
from meshcomm.core._types import Array, DType
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
from meshcomm.numpy.gradients import differentiable


@refusable
def map_overlap(
    fn: Callable[..., object],
    *args: Value,
    depth: Value = None,
    boundary: Value = "none",
    trim: bool = True,
    dtype: DTypeLike | None = None,
    **kwargs: Value,
) -> DTensor:
    """Return what *fn* makes of the blocks of tensors with their ghosts. Collective over the mesh.

    Each rank calls *fn* once, with an array for each tensor: its block with *depth* ghosts. The result has the layout
    of the first tensor. Source: map_overlap of dask.array.

    Parameters
    ----------
    fn: a function of arrays. It returns an array of the shape of the first one, of one dtype on all ranks. Each rank
        calls it once, also with an empty block. If it raises an error on one rank, all ranks raise that
    args: one or several tensors of one shape; other layouts than that of the first are relaid. After them *depth* and
        *boundary* may follow by position
    depth: how many ghosts, as the width of `halo`; or a list of those, one for each tensor
    boundary: what is beyond the edges of the array, as for `halo`; or a list of those, one for each tensor. An axis
        without elements has no ghosts where the boundary repeats elements
    trim: whether to cut off as many elements as the first array has ghosts. If not, the result is made of the blocks
        as *fn* returns them, of any lengths: they are one after the other along each sharded axis (`Cuts`). Ranks
        outside of the mesh then have no shape, and may not call
    dtype: that of the result. By default *fn* says, on ranks outside of the mesh by a call with an array of ones
    kwargs: passed on to *fn*. Their values may differ between ranks, their names may not

    ``LayoutError`` for no tensors and for plain arrays, ``ShapeError`` for tensors of several shapes, and if *fn*
    returns another shape than it must. Other errors are those of `halo`.

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
    followed = [each for each in args if is_traced(each)]
    if followed:
        return _followed(fn, args, (depth, boundary), dict(kwargs, dtype=dtype) if dtype else kwargs, trim)
    tensors, depth, boundary = _split(args, depth, boundary)
    first, several = tensors[0], len(tensors) > 1
    depths = _for_each(depth, tensors, several)
    boundaries = _for_each(boundary, tensors, several)
    settings = [_setting(first, *each) for each in zip(depths, boundaries, strict=True)]  # raise before all is sent
    result_dtype = None if dtype is None else as_dtype(dtype)
    names = "".join(f", {name}=" for name in sorted(kwargs))

    def call(made: Array) -> str:
        return f"map_overlap of a function that returns {dtype_text(made.dtype)}, trim={bool(trim)}{names}"

    def run(block: Array) -> Array:
        return together("map_overlap", first.mesh, call, lambda: _called(fn, halos, result_dtype, kwargs, trim))

    with session("map_overlap", first.mesh):
        halos = [halo(relaid, *setting) for relaid, setting in zip(_alike(tensors), settings, strict=True)]
        found = on_blocks(run, first)
    return (
        _trimmed(halos[0], found, _dtype(fn, halos, found, result_dtype, kwargs)) if trim else _joined(halos[0], found)
    )


def _setting(tensor: DTensor, depth: Value, boundary: Value) -> tuple[tuple[Width, ...], tuple[Boundary, ...]]:
    """Return width and boundary of each axis. An axis without elements has none to repeat, and no ghosts then."""
    boundaries = zip(tensor.shape, as_boundaries(boundary, tensor.ndim), strict=True)
    kept = tuple(Boundary("none") if each.repeats and not n else each for n, each in boundaries)
    return as_widths(depth, tensor.ndim, "depth"), kept


def _called(
    fn: Callable[..., object], halos: Sequence[Halo], dtype: DType | None, kwargs: dict[str, Value], trim: bool
) -> Array:
    """Return what *fn* makes of the blocks; ``DTypeError`` for objects, ``ShapeError`` for another shape."""
    found = np.asarray(fn(*(each.local for each in halos), **kwargs), dtype=dtype)
    as_dtype(found.dtype)
    shape = halos[0].local.shape
    if trim and found.shape != shape:
        raise ShapeError(
            f"the function returned an array of shape {found.shape} for a block with ghosts of shape {shape}; "
            "it must return the same shape, or say trim=False"
        )
    return found


def _followed(
    fn: Callable[..., object], args: Sequence[Value], edges: tuple[Value, Value], options: dict[str, Value], trim: bool
) -> DTensor:
    """Return the result for a tensor that autograd follows; depth and boundary may come by position."""
    tensor, *rest = args
    if not is_traced(tensor) or any(is_traced(each) or isinstance(each, DTensor) for each in rest) or not trim:
        raise NotImplementedError("map_overlap has a gradient for one tensor, with trim=True")
    depth, boundary = (*rest, *edges[len(rest) :])[:2]
    return overlapped(tensor, fn, depth, boundary, options)


@traceable()
def overlapped(
    tensor: Value, fn: Callable[..., object], depth: Value, boundary: Value, options: dict[str, Value]
) -> DTensor:
    """Return ``map_overlap(fn, tensor, depth, boundary, **options)``. Collective over the mesh."""
    return map_overlap(fn, tensor, depth=depth, boundary=boundary, **options)


def overlapped_vjp(grad: DTensor, tensor: DTensor, call: Sequence[Value]) -> DTensor:
    """Return the gradient in the tensor of `overlapped`. Collective over the mesh.

    autograd gives the gradient of *fn* in each block with its ghosts; the ghosts are added to their owners. *fn* must
    be made of autograd's functions, or have a gradient there.

    Parameters
    ----------
    grad: the gradient in the result
    tensor: the tensor
    call: the other arguments of `overlapped`
    """
    fn, depth, boundary, options = call
    from autograd import make_vjp  # only a program that uses autograd comes here

    ghosts = halo(tensor, *_setting(tensor, 0 if depth is None else depth, boundary))

    def propagate(inner: Array, grad_block: Array) -> None:
        arguments = {name: value for name, value in options.items() if name != "dtype"}
        vjp, made = make_vjp(lambda block: fn(block, **arguments))(ghosts.local)
        given = np.zeros_like(made)
        given[ghosts.inner_slices] = grad_block
        ghosts.local[...] = vjp(given)

    changed(propagate, ghosts.tensor(), grad)
    Halo.reduce(ghosts)
    return ghosts.tensor().copy()


def _vjp(grad: Value, tensor: Value, *call: Value) -> Value:
    relaid = grad if grad.layout == tensor.layout else relayout(grad, tensor.layout)
    return overlapped_vjp(relaid, tensor, call)


differentiable(overlapped, _vjp)


def _split(args: Sequence[object], depth: object, boundary: object) -> tuple[list[DTensor], object, object]:
    """Return the tensors, and depth and boundary, which may follow them by position."""
    held = [unwrapped(each) for each in args]
    count = next((i for i, each in enumerate(held) if not isinstance(each, DTensor)), len(held))
    tensors, rest = [each for each in held[:count] if isinstance(each, DTensor)], held[count:]
    if len(rest) > 2 or (rest and depth is not None):
        raise LayoutError(f"map_overlap takes tensors, depth and boundary; it got {quote(rest[0])} beside them")
    if not tensors:
        raise LayoutError("map_overlap needs a DTensor: call distribute first")
    if rest:
        depth = rest[0]
    if len(rest) == 2:
        boundary = rest[1]
    if len({each.shape for each in tensors}) > 1:
        shapes = ", ".join(str(each.shape) for each in tensors)
        raise ShapeError(f"map_overlap takes tensors of one shape, not of {shapes}")
    return tensors, 0 if depth is None else depth, boundary


def _for_each(given: object, tensors: Sequence[DTensor], several: bool) -> list[object]:
    """Return a depth or boundary for each tensor: a list of them for several tensors has one for each."""
    if several and isinstance(given, list):
        if len(given) != len(tensors):
            raise ShapeError(
                f"{quote(given)} has {counted(len(given), 'entry')} for {counted(len(tensors), 'tensor')}"
            )
        return given
    return [given] * len(tensors)


def _alike(tensors: Sequence[DTensor]) -> list[DTensor]:
    layout = tensors[0].layout
    return [each if each.layout == layout else relayout(each, layout) for each in tensors]


def _dtype(
    fn: Callable[..., object],
    halos: Sequence[Halo],
    found: Array | None,
    dtype: DType | None,
    kwargs: dict[str, Value],
) -> DType:
    if found is not None:
        return found.dtype
    if dtype is not None:
        return dtype
    ones = [np.ones([1 + before + after for before, after in each.width], each.dtype) for each in halos]
    return np.asarray(fn(*ones, **kwargs)).dtype


def _trimmed(first: Halo, found: Array | None, dtype: DType) -> DTensor:
    """Return the tensor of what is left without ghosts."""
    where: tuple[Value, ...] = (..., *first.inner_slices)
    block = None if found is None else contiguous(found[where])
    return make(block, first.layout, first.shape, dtype)


def _joined(first: Halo, found: Array | None) -> DTensor:
    """Return the tensor that blocks of any lengths make. Collective over the mesh."""
    block = None if found is None else contiguous(found)
    return of_lengths("map_overlap", block, first.mesh, first.layout.usual_cut(range(first.layout.ndim)).axes)
