"""Other shapes of the same elements: reshape, new axes, fewer axes, axes in another order, repeated axes.

:mod:`meshcomm.numpy.shapes.regroup` decides which layout a reshaped tensor has, and what has to move.
"""

from collections.abc import Callable, Sequence
from math import prod
from operator import index, itemgetter, methodcaller

import numpy as np

from meshcomm.blocks.align import relaid
from meshcomm.blocks.make import make, on_blocks, on_device
from meshcomm.blocks.moved import moved_view
from meshcomm.blocks.rules import broadcast_shape, without
from meshcomm.blocks.views import abstract_array, reshaped_abstract_array, viewed, viewing
from meshcomm.core._arguments import counted, ndim_of, normalised_axes, quote, reduced_axes
from meshcomm.core._tracing import Value, is_traced, traceable
from meshcomm.core._types import Array, Axis, Shape, ShapeLike
from meshcomm.core.arrays._recipes import Call, completed
from meshcomm.core.arrays.dtensor import DTensor, as_tensor, unwrapped
from meshcomm.core.arrays.relayout import relayout
from meshcomm.core.layouts.axes import refuse_match
from meshcomm.core.layouts.layout import Axes, Layout
from meshcomm.core.layouts.mistakes import no_layout, such_as
from meshcomm.core.layouts.refinement import same_grid
from meshcomm.core.memory.copies import opaque
from meshcomm.core.ranks.local_errors import refusable
from meshcomm.errors import LayoutError, ShapeError
from meshcomm.numpy.elementwise.signatures import Function, decision, implements, operation
from meshcomm.numpy.shapes.linalg import transpose
from meshcomm.numpy.shapes.regroup import Regrouping, groups_of, regrouping


@refusable
def reshape(t: DTensor, shape: ShapeLike, layout: Layout | None = None) -> DTensor:
    """Return the tensor in another shape, in row-major order. Collective over the meshes if elements have to move.

    Axes fall into groups with equal products, as in NumPy. Nothing moves, and the result is a view, if each new block
    has the elements of the old one in their order: if the sharded axis of a group is its first one, and the boundaries
    fall between the new rows; or if blocks of equal size stay so. Else the tensor is relaid, and the result is sharded
    over the same mesh dimensions: along the first axis of the group that has elements for all of them.

    Parameters
    ----------
    t: a tensor
    shape: length or lengths; one may be -1
    layout: layout of the result. The tensor is relaid once if the shapes allow that

    ``ShapeError`` if the numbers of elements differ; ``LayoutError`` for a layout with another number of axes.

    >>> import numpy as np, meshcomm as mc
    >>> def program():
    ...     t = mc.distribute(np.arange(12).reshape(4, 3), mc.Layout(["x", mc.UNSHARDED], mc.create_mesh([("x", 2)])))
    ...     flat = np.reshape(t, -1)
    ...     return flat.layout.sharding_specs, flat.local.tolist(), np.shares_memory(flat.local, t.local)
    >>> with mc.simulate(2) as world:
    ...     print(world.run(program)[1])
    (['x'], [6, 7, 8, 9, 10, 11], True)
    """
    if layout is None:
        return completed(_reshaped(t, shape))
    if is_traced(t):
        return relayout(completed(_reshaped(t, shape)), layout)
    tensor = as_tensor("reshape", t)
    lengths = _new_shape(tensor, shape)
    if not isinstance(layout, Layout):
        raise no_layout("reshape takes a Layout", layout)
    refuse_match(layout)
    if layout.ndim != len(lengths):
        raise LayoutError(
            f"reshape to {lengths}, which has {counted(len(lengths), 'axis')}, but the layout is for {layout.ndim}"
            + such_as(layout, len(lengths))
        )
    layout.check_fits(lengths)
    regrouped_tensor = regrouped(tensor, lengths, layout.axes if same_grid(layout.mesh, tensor.mesh) else None)
    if regrouped_tensor.layout == layout:
        return regrouped_tensor
    return relaid(regrouped_tensor, layout.axes, "reshape", layout.mesh)


@traceable(twin=np.reshape)
def _reshaped(t: DTensor, shape: ShapeLike) -> Call | DTensor:
    tensor = as_tensor("reshape", t)
    return regrouping_of(tensor, _new_shape(tensor, shape))


def _new_shape(tensor: DTensor, shape: object) -> Shape:
    """Return *shape* with -1 replaced by its length; ``ShapeError`` if it has another number of elements."""
    try:
        lengths = [index(n) for n in (shape if isinstance(shape, list | tuple | np.ndarray) else (shape,))]
    except TypeError:
        raise ShapeError(f"reshape: a shape is a length or a sequence of lengths, not {quote(shape)}") from None
    unknown_axes = [a for a, n in enumerate(lengths) if n == -1]
    if len(unknown_axes) > 1 or any(n < -1 for n in lengths):
        raise ShapeError(f"reshape to {quote(shape)}: lengths are 0 or more, and only one may be -1")
    known_size = prod(n for n in lengths if n != -1)
    if unknown_axes and known_size and tensor.size % known_size == 0:
        lengths[unknown_axes[0]] = tensor.size // known_size
    if prod(lengths) != tensor.size or -1 in lengths:
        raise ShapeError(
            f"reshape of a tensor of shape {tensor.shape}, with {counted(tensor.size, 'element')}, to "
            f"{quote(shape)}: there must "
            "be as many elements"
        )
    return tuple(lengths)


def regrouped(tensor: DTensor, shape: Shape, wanted_specs: Axes | None = None, name: str = "reshape") -> DTensor:
    """Return *tensor* in another *shape* with equally many elements. Collective if elements have to move.

    It is a view if NumPy's result is one and no element moves.

    Parameters
    ----------
    wanted_specs: sharding specs of the result, if the shapes allow them
    name: name of the operation
    """
    return completed(regrouping_of(tensor, shape, wanted_specs, name))


def regrouping_of(
    tensor: DTensor, shape: Shape, wanted_specs: Axes | None = None, name: str = "reshape"
) -> Call | DTensor:
    """Return the result of `regrouped`, or the call that makes it."""
    return _regrouped(
        tensor, shape, _regrouping(tensor, shape, wanted_specs), reshaped_abstract_array(tensor, shape), name
    )


def _regrouped(
    tensor: DTensor, shape: Shape, reshaping: Regrouping, abstract: Array | None, name: str
) -> Call | DTensor:
    """Return *tensor* in another *shape*, by the layouts of *reshaping*, or the call that makes that.

    *abstract* is the abstract array of NumPy's view; None if NumPy copies.
    """
    if reshaping.moves(tensor.layout.axes):
        source = relaid(tensor, reshaping.start, name)
        flat_tensor = relaid(_reblocked(source, reshaping.before, reshaping.flat), reshaping.after, name)
        result = _reblocked(flat_tensor, reshaping.result, shape)
        return result if abstract is None else moved_view(tensor, result, abstract)
    result = _reblocked(tensor, reshaping.result, shape)
    if abstract is not None and _keeps_views(tensor, shape):
        if tensor._view is None and result.dtype.kind in "biufcmM":
            lengths = on_device(result.mesh, lambda device: result.layout.block_shape(shape, device))
            return viewing(methodcaller("reshape", lengths), tensor, result.layout, abstract)
        return viewed(lambda _: result._block, tensor, result.layout, abstract)
    if on_blocks(
        lambda new_block, old_block: not new_block.size or np.may_share_memory(new_block, old_block), result, tensor
    ):
        result = result.copy()  # a block may be a view although the global array is none
    return result if abstract is None else moved_view(tensor, result, abstract)


def _regrouping(tensor: DTensor, shape: Shape, wanted_specs: Axes | None = None) -> Regrouping:
    sizes = tuple((name, size) for name, size in tensor.mesh.dims)
    return regrouping(tensor.layout.axes, sizes, tensor.shape, shape, wanted_specs)


def _keeps_views(tensor: DTensor, shape: Shape) -> bool:
    """Return whether blocks can be reshaped without a copy if the global array can; the same on all ranks.

    The global array can if axes that become one have no gaps between them. A slice with a step may have no gap after
    the last element of an axis, by the length of the axis; a block of it may have a gap there.
    """
    view = tensor._view
    if view is None or view.root is None or view.root.size == tensor.size or not tensor.size:
        return True
    block_counts = tensor.layout.shape
    for group in groups_of(tensor.shape, shape):
        long_axes = [axis for axis in range(*group.source.indices(tensor.ndim)) if tensor.shape[axis] > 1]
        if any(block_counts[axis] > 1 for axis in long_axes[1:]):
            return False
    return True


def _reblocked(tensor: DTensor, axes: Axes, shape: Shape) -> DTensor:
    """Return a tensor of *shape* with the same blocks: each has the same elements in the same order."""
    layout = Layout(axes, tensor.mesh)
    result_block = on_blocks(lambda block: opaque(block).reshape(layout.block_shape(shape)).view(block.dtype), tensor)
    return make(result_block, layout, shape, tensor.dtype)


def _is_fortran(name: str, t: DTensor, order: Value) -> bool:
    """Return whether *order* is Fortran's, with the first index the fastest; for ``A``, whether *t* has this order.

    ``TypeError`` for ``K``, NumPy's ``ValueError`` for an unknown order.
    """
    if order in ("C", None):
        return False
    if order in ("K", "k"):
        raise TypeError(f"numpy.{name}: order={order!r} is not supported for DTensors; order 'A' is")
    sample = np.ravel(np.empty((1, 1)), order)  # NumPy's error
    return sample.size == 1 and (str(order) in "Ff" or abstract_array(as_tensor(name, t)).flags.fnc)


@operation(np.reshape)
def _reshape(
    a: DTensor, shape: ShapeLike | None = None, order: str | None = "C", *, copy: bool | None = None, **old: ShapeLike
) -> Call | DTensor:
    tensor = as_tensor("reshape", a)
    lengths = _new_shape(tensor, shape)
    if _is_fortran("reshape", tensor, order):
        return transpose(_reshape(transpose(tensor), lengths[::-1], copy=copy))
    abstract, reshaping = reshaped_abstract_array(tensor, lengths), _regrouping(tensor, lengths)
    if copy is False and abstract is None:
        raise ValueError(f"numpy.reshape to {lengths}: copy=False, but the elements are not next to each other")
    if copy is False and (reshaping.moves(tensor.layout.axes) or not _keeps_views(tensor, lengths)):
        raise ValueError(f"numpy.reshape to {lengths}: copy=False, but elements of the DTensor have to move")
    reshaped = _regrouped(tensor, lengths, reshaping, abstract, "reshape")
    if not copy:
        return reshaped
    result: DTensor = completed(reshaped)
    return result if result._view is None else _owned_copy(result)


def _owned_copy(copy: DTensor) -> DTensor:
    """Return *copy*, which has the marks of a view, as a tensor of its own: copied, unless its block is a copy."""
    assert copy._view is not None
    is_own = copy._view.root is None and copy._view.writeable
    return make(copy._block, copy.layout, copy.shape, copy.dtype) if is_own else copy.copy()


@operation(np.ravel)
def _ravel(a: DTensor, order: str = "C") -> Call | DTensor:
    if _is_fortran("ravel", a, order):
        return _ravel(transpose(a))
    flat, tensor = _reshaped(a, -1), unwrapped(a)
    if not isinstance(tensor, DTensor) or abstract_array(tensor).flags.c_contiguous:
        return flat
    result: DTensor = completed(flat)  # reshape gives a view of elements with gaps of one length, ravel does not
    return result if result._view is None else _owned_copy(result)


# -- axes of length 1 -------------------------------------------------------------------------------------------------


@operation(np.squeeze)
def squeeze(a: DTensor, axis: Axis = None) -> Call | DTensor:
    """Return the tensor without axes of length 1: a view, unless such an axis is sharded and elements have to move."""
    tensor = as_tensor("squeeze", a)
    unit_axes = tuple(i for i, n in enumerate(tensor.shape) if n == 1)
    dropped_axes = unit_axes if axis is None else reduced_axes(axis, tensor.ndim)
    for i in dropped_axes:
        if tensor.shape[i] != 1:
            raise ShapeError(
                f"squeeze of axis {i} of shape {tensor.shape}: it has {counted(tensor.shape[i], 'element')}, not 1"
            )
    function = methodcaller("squeeze", dropped_axes)
    if any(tensor.layout.num_shards(i) > 1 for i in dropped_axes):  # one device along such an axis has all elements
        abstract = function(abstract_array(tensor))
        return _regrouped(tensor, abstract.shape, _regrouping(tensor, abstract.shape), abstract, "squeeze")
    return viewing(function, tensor, Layout(without(tensor.layout.axes, dropped_axes), tensor.mesh))


@operation(np.expand_dims)
def expand_dims(a: DTensor, axis: int | Sequence[int]) -> Call | DTensor:
    """Return the tensor with new axes of length 1, at *axis* of the result: a view."""
    tensor = as_tensor("expand_dims", a)
    count = len(axis) if isinstance(axis, list | tuple) else 1
    new_axes = normalised_axes(axis, tensor.ndim + count)
    result_axes, names = range(tensor.ndim + count), iter(tensor.layout.axes)
    layout = Layout([() if i in new_axes else next(names) for i in result_axes], tensor.mesh)
    return viewing(itemgetter(tuple(None if i in new_axes else slice(None) for i in result_axes)), tensor, layout)


def _at_least(ndim: int, function: Callable[..., Array]) -> Function:
    """Return NumPy's *function*, which gives arrays *ndim* axes or more, extended to tensors."""

    def widen(x: object) -> object:
        tensor = unwrapped(x)
        if not isinstance(tensor, DTensor):
            return function(x)
        missing_count = ndim - tensor.ndim
        if missing_count <= 0:
            return tensor
        if ndim < 3:
            return expand_dims(tensor, tuple(range(missing_count)))
        return expand_dims(tensor, {3: (0, 1, 2), 2: (0, 2), 1: (2,)}[missing_count])

    def at_least(*arys: object) -> object:
        results = [widen(x) for x in arys]
        return results[0] if len(results) == 1 else tuple(results)

    return at_least


# -- axes in another order --------------------------------------------------------------------------------------------


def normalised_axis(axis: object, ndim: int) -> int:
    """Return one *axis* of a tensor with *ndim* axes, counted from 0; ``ShapeError`` if there is no such axis."""
    if isinstance(axis, list | tuple) or axis is None:
        raise ShapeError(f"axis must be an integer, not {quote(axis)}")
    return normalised_axes(axis, ndim)[0]


@operation(np.moveaxis)
def _moveaxis(a: DTensor, source: int | Sequence[int], destination: int | Sequence[int]) -> Call | DTensor:
    tensor = as_tensor("moveaxis", a)
    sources, destinations = (_each_axis(axes, tensor.ndim) for axes in (source, destination))
    if len(sources) != len(destinations):
        raise ShapeError(f"moveaxis from {source} to {destination}: there must be as many axes in both")
    order = [i for i in range(tensor.ndim) if i not in sources]
    for target_axis, source_axis in sorted(zip(destinations, sources, strict=True)):
        order.insert(target_axis, source_axis)
    return decision(transpose)(tensor, order)


def _each_axis(axes: int | Sequence[int], ndim: int) -> list[int]:
    """Return *axes* counted from 0, in the same order."""
    axes_list = tuple(axes) if ndim_of(axes) else (axes,)  # type: ignore[arg-type]  # a sequence of any class
    normalised_axes(axes_list, ndim)  # refuses an axis that is named twice
    return [normalised_axis(a, ndim) for a in axes_list]


@operation(np.swapaxes)
def _swapaxes(a: DTensor, axis1: int, axis2: int) -> Call | DTensor:
    tensor = as_tensor("swapaxes", a)
    order = list(range(tensor.ndim))
    first_axis, second_axis = normalised_axis(axis1, tensor.ndim), normalised_axis(axis2, tensor.ndim)
    order[first_axis], order[second_axis] = second_axis, first_axis
    return decision(transpose)(tensor, order)


@operation(np.rollaxis)
def _rollaxis(a: DTensor, axis: int, start: int = 0) -> Call | DTensor:
    tensor = as_tensor("rollaxis", a)
    moved_axis = normalised_axis(axis, tensor.ndim)
    next_axis = normalised_axis(start, tensor.ndim + 1) if start >= 0 else start + tensor.ndim
    if next_axis < 0:
        raise ShapeError(f"rollaxis to {start}: a tensor with {counted(tensor.ndim, 'axis')} has no such one")
    order = [i for i in range(tensor.ndim) if i != moved_axis]
    order.insert(next_axis - (moved_axis < next_axis), moved_axis)
    return decision(transpose)(tensor, order)


# -- repeated axes ----------------------------------------------------------------------------------------------------


@implements(np.broadcast_to)
def broadcast_to(array: DTensor, shape: ShapeLike, subok: bool = False) -> DTensor:
    """Return the tensor, repeated to *shape*: a view that cannot be written to.

    New axes and stretched axes are unsharded. Collective if a stretched axis of the tensor is sharded.
    """
    tensor = as_tensor("broadcast_to", array)
    try:
        lengths = tuple(index(n) for n in (shape if isinstance(shape, list | tuple) else (shape,)))
    except TypeError:
        raise ShapeError(f"broadcast_to: a shape is a sequence of lengths, not {quote(shape)}") from None
    new_count = len(lengths) - tensor.ndim
    if new_count < 0 or any(n not in (1, m) for n, m in zip(tensor.shape, lengths[new_count:], strict=True)):
        raise ShapeError(
            f"a tensor of shape {tensor.shape} does not broadcast to {lengths}: from the last axis on, lengths must "
            "be equal, or 1 in the tensor"
        )
    stretched_axes = [i for i, n in enumerate(tensor.shape) if n != lengths[new_count + i]]
    source = relaid(tensor, tensor.layout.replace(stretched_axes, ()).axes, "broadcast_to")
    layout = Layout(((),) * new_count + source.layout.axes, tensor.mesh)
    abstract = np.broadcast_to(abstract_array(tensor), lengths)
    return viewed(lambda block: np.broadcast_to(block, layout.block_shape(lengths)), source, layout, abstract)


@implements(np.broadcast_arrays)
def broadcast_arrays(*args: object, subok: bool = False) -> tuple[object, ...]:
    """Return tensors and arrays, each by `broadcast_to` in their common shape, or as they are if all have it."""
    operands = [unwrapped(x) for x in args]
    arrays = [x if isinstance(x, DTensor) else np.asarray(x) for x in operands]
    shape = broadcast_shape("broadcast_arrays", [x.shape for x in arrays])
    if all(x.shape == shape for x in arrays):
        return tuple(arrays)
    return tuple(broadcast_to(x, shape) if isinstance(x, DTensor) else np.broadcast_to(x, shape) for x in arrays)


implements(np.atleast_1d)(_at_least(1, np.atleast_1d))
implements(np.atleast_2d)(_at_least(2, np.atleast_2d))
implements(np.atleast_3d)(_at_least(3, np.atleast_3d))
