"""Tensors joined and split along axes: concatenate, stack, split, and NumPy's other names for them."""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import accumulate, pairwise
from operator import index
from typing import TypedDict, Unpack

import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from meshcomm.blocks.align import agree_on_plain, relaid
from meshcomm.blocks.assemble import assembling_if_cheaper, join_blocks
from meshcomm.blocks.edges import TensorInterval
from meshcomm.blocks.make import as_sharded, mapping
from meshcomm.blocks.map import with_out
from meshcomm.blocks.rules import mesh_of
from meshcomm.blocks.tensor_numpy import TensorOrArray, tensor_np, untyped_np
from meshcomm.core._arguments import as_dtype, counted, index_of, ndim_of
from meshcomm.core._types import Array, Casting, DType, Shape
from meshcomm.core.arrays._recipes import Call, completed
from meshcomm.core.arrays.create import distribute, empty
from meshcomm.core.arrays.dtensor import DTensor, Tensor, as_tensor, unwrapped
from meshcomm.core.layouts.axes import refuse_match
from meshcomm.core.layouts.layout import Layout
from meshcomm.core.layouts.mistakes import no_layout, such_as
from meshcomm.core.layouts.partition import Interval
from meshcomm.core.ranks.local_errors import refusable
from meshcomm.errors import LayoutError, ShapeError
from meshcomm.numpy.elementwise.signatures import Function, implements
from meshcomm.numpy.elementwise.values import astype
from meshcomm.numpy.indexing.indexing import getitem
from meshcomm.numpy.joining.pieces import put
from meshcomm.numpy.shapes.shaping import normalised_axis, regrouped


class _Options(TypedDict, total=False):
    """NumPy's arguments for the dtype of the result."""

    dtype: DTypeLike | None
    casting: Casting


@refusable
def concatenate(tensors: Sequence[Tensor], axis: int | None = 0, layout: Layout | None = None) -> DTensor:
    """Return tensors joined along *axis*. Collective over the meshes if elements have to move.

    Along an axis that is not sharded in the largest tensor, only tensors in other layouts move. Along a sharded axis,
    elements move to the blocks of the result: the usual ones of the new length.

    Parameters
    ----------
    tensors: tensors, and plain arrays that all ranks have; one of them must be a tensor
    axis: axis along which to join; None to join them flattened
    layout: layout of the result; by default the layout of the largest tensor, the first one of several

    ``ShapeError`` if other axes than *axis* differ in length; ``MeshError`` for tensors on several meshes.

    >>> import numpy as np, meshcomm as mc
    >>> def program():
    ...     t = mc.distribute(np.arange(4), mc.Layout(["x"], mc.create_mesh([("x", 2)])))
    ...     return np.concatenate([t, t + 10]).local.tolist()
    >>> with mc.simulate(2) as world:
    ...     print(world.run(program))
    [[0, 1, 2, 3], [10, 11, 12, 13]]
    """
    return completed(_joined("concatenate", list(tensors), axis, layout))


@refusable
def stack(tensors: Sequence[Tensor], axis: int = 0, layout: Layout | None = None) -> DTensor:
    """Return tensors of one shape joined along a new axis. Collective over the meshes if elements have to move.

    The new axis is unsharded, so nothing moves if all tensors have one layout. The parameters are those of
    `concatenate`.

    >>> import numpy as np, meshcomm as mc
    >>> def program():
    ...     t = mc.distribute(np.arange(4), mc.Layout(["x"], mc.create_mesh([("x", 2)])))
    ...     return np.stack([t, -t]).local.tolist()
    >>> with mc.simulate(2) as world:
    ...     print(world.run(program))
    [[[0, 1], [0, -1]], [[2, 3], [-2, -3]]]
    """
    return completed(_stacked(tensors, axis, layout))


def _stacked(
    tensors: Sequence[Tensor], axis: int, layout: Layout | None = None, **options: Unpack[_Options]
) -> Call | DTensor:
    operands = [unwrapped(x) for x in tensors]
    shapes = {untyped_np.shape(x) for x in operands}
    if len(shapes) > 1:
        raise ShapeError(f"stack of shapes {', '.join(map(str, sorted(shapes)))}: all shapes must be equal")
    ndim = len(next(iter(shapes), ())) + 1
    new_axis = normalised_axis(axis, ndim)
    dtensors = [x for x in operands if isinstance(x, DTensor)]
    if len(dtensors) == len(operands) and len({(id(x.layout), x.dtype) for x in dtensors}) == 1 and layout is None:
        first_tensor = dtensors[0]
        dtype = _joined_dtype(dtensors, **options)
        axes = (*first_tensor.layout.axes[:new_axis], (), *first_tensor.layout.axes[new_axis:])
        shape = (*first_tensor.shape[:new_axis], len(dtensors), *first_tensor.shape[new_axis:])

        def stacked(*blocks: Array) -> Array:
            return join_blocks([np.expand_dims(block, new_axis) for block in blocks], new_axis, dtype)

        if dtype == first_tensor.dtype:
            return mapping(stacked, *dtensors, layout=Layout(axes, first_tensor.mesh), shape=shape)
    expanded = [tensor_np.expand_dims(x, new_axis) for x in operands]
    return _joined("stack", expanded, new_axis, layout, **options)


def _joined(
    name: str, values: Sequence[object], axis: int | None, layout: Layout | None = None, **options: Unpack[_Options]
) -> Call | DTensor:
    """Return operands joined along *axis*, or the call that joins them."""
    operands = [unwrapped(x) for x in values]
    mesh = mesh_of(operands)
    inputs = agree_on_plain(f"numpy.{name}", operands, mesh)
    if axis is None:
        arrays = [regrouped(x, (x.size,), name=name) if isinstance(x, DTensor) else np.ravel(x) for x in inputs]
        axis = 0
    else:
        arrays = [x if isinstance(x, DTensor) else np.asarray(x) for x in inputs]
        axis = normalised_axis(axis, max(x.ndim for x in arrays))
    shape = _joined_shape(name, [x.shape for x in arrays], axis)
    dtype = _joined_dtype(arrays, **options)
    largest = max((x for x in arrays if isinstance(x, DTensor)), key=lambda t: t.nbytes)
    if layout is None:
        target = largest.layout
        target = target if target.num_shards(axis) == 1 else Layout(target.default_cut(axis).axes, mesh)
    else:
        target = _checked_layout(name, layout, shape)
    if target.num_shards(axis) == 1 and target.mesh is mesh:
        return _joined_blocks(name, arrays, axis, dtype, target)
    pattern = target.replace(axis, ())
    tensors = [
        astype(x, dtype, copy=False) if isinstance(x, DTensor) else as_sharded(x.astype(dtype, copy=False), pattern)
        for x in arrays
    ]
    nonempty = [t for t in tensors if t.shape[axis]]
    cut = target.cut(axis, shape[axis])
    if nonempty and cut.is_consecutive:
        spans = tuple(_spans(interval, [t.shape[axis] for t in nonempty]) for interval in pairwise(cut.all_starts()))
        assembled = assembling_if_cheaper(name, nonempty, axis, spans, target, shape=shape)
        if assembled is not None:
            return assembled
    result, start = empty(shape, dtype, target), 0
    for tensor in tensors:
        stop = start + tensor.shape[axis]
        put(name, result, (*(slice(None),) * axis, slice(start, stop)), tensor)
        start = stop
    return result


def _spans(interval: Interval, lengths: Sequence[int]) -> tuple[TensorInterval, ...]:
    """Return the interval of each tensor, of these *lengths*, that lies in *interval* of the joined axis."""
    intervals, offset = list[TensorInterval](), 0
    for number, length in enumerate(lengths):
        start, stop = max(interval[0] - offset, 0), min(interval[1] - offset, length)
        if start < stop:
            intervals.append((number, start, stop))
        offset += length
    return tuple(intervals)


def _joined_blocks(name: str, arrays: Sequence[DTensor | Array], axis: int, dtype: DType, layout: Layout) -> Call:
    """Return tensors joined along an axis that is not sharded."""
    shape = _joined_shape(name, [x.shape for x in arrays], axis)
    tensors = [
        astype(relaid(array, layout.axes, name), dtype, copy=False)
        if isinstance(array, DTensor)
        else distribute(array.astype(dtype, copy=False), layout)
        for array in arrays
    ]
    return mapping(lambda *blocks: join_blocks(blocks, axis, dtype), *tensors, layout=layout, shape=shape, dtype=dtype)


def _checked_layout(name: str, layout: object, shape: Shape) -> Layout:
    if not isinstance(layout, Layout):
        raise no_layout(f"{name} takes a Layout", layout)
    refuse_match(layout)
    if layout.ndim != len(shape):
        raise LayoutError(
            f"{name} to shape {shape}, which has {counted(len(shape), 'axis')}, but the layout is for {layout.ndim}"
            + such_as(layout, len(shape))
        )
    layout.check_fits(shape)
    return layout


def _joined_shape(name: str, shapes: Sequence[Shape], axis: int) -> Shape:
    first_shape = shapes[0]
    for number, shape in enumerate(shapes):
        other_lengths = [lengths[:axis] + lengths[axis + 1 :] for lengths in (first_shape, shape)]
        if len(shape) != len(first_shape) or other_lengths[0] != other_lengths[1]:
            raise ShapeError(
                f"{name} along axis {axis}: operand 0 has shape {first_shape}, operand {number} has {shape}; "
                "all other axes must be equally long"
            )
    return (*first_shape[:axis], sum(shape[axis] for shape in shapes), *first_shape[axis + 1 :])


def _joined_dtype(
    arrays: Sequence[DTensor | Array], dtype: DTypeLike | None = None, casting: Casting = "same_kind"
) -> DType:
    """Return the dtype of arrays that are joined; NumPy's ``TypeError`` if there is none."""
    samples = [np.empty(0, x.dtype) for x in arrays]
    return as_dtype(np.concatenate(samples, dtype=dtype, casting=casting).dtype)


def _with_numpy_arguments(name: str, join: Function) -> Function:
    """Return *join* with NumPy's arguments after the first one."""

    def joined(
        arrays: Sequence[Tensor],
        axis: int | None = 0,
        out: object = None,
        *,
        dtype: object = None,
        casting: str = "same_kind",
    ) -> object:
        result = join(arrays, axis, dtype=dtype, casting=casting)
        return result if out is None else with_out(f"numpy.{name}", out, completed(result))

    return joined


def _joining_widened(widen: Function, axis_of_ndim: Callable[[int], int], name: str) -> Function:
    """Return a function that applies *widen* to its operands and joins them, along *axis_of_ndim* of their ndim."""

    def joined(tup: Sequence[Tensor], *, dtype: DTypeLike | None = None, casting: Casting = "same_kind") -> object:
        widened = [widen(unwrapped(x)) for x in tup]
        return _joined(name, widened, axis_of_ndim(max(map(ndim_of, widened))), dtype=dtype, casting=casting)

    return joined


def _as_column(x: DTensor | ArrayLike) -> TensorOrArray:
    column = tensor_np.atleast_1d(x)
    return tensor_np.expand_dims(column, 1) if np.ndim(column) == 1 else column


# -- split ------------------------------------------------------------------------------------------------------------


@implements(np.array_split)
def array_split(ary: DTensor, indices_or_sections: int | Sequence[int], axis: int = 0) -> list[DTensor]:
    """Return slices of the tensor along *axis*: a number of them, or those between given indices.

    Their elements stay on their devices, but a slice of cyclic blocks may have to move.
    """
    tensor = as_tensor("array_split", ary)
    axis = normalised_axis(axis, tensor.ndim)
    n = tensor.shape[axis]
    try:
        count = index_of(indices_or_sections)
    except TypeError:
        bounds: list[int | None] = [0, *map(index, indices_or_sections), None]  # type: ignore[arg-type]
    else:
        if count < 1:
            raise ShapeError(f"array_split into {count} sections; there is 1 or more")
        sizes = [n // count + (number < n % count) for number in range(count)]
        bounds = [*accumulate(sizes, initial=0)]
    slices = (slice(start, stop) for start, stop in pairwise(bounds))
    return [getitem(tensor, (*(slice(None),) * axis, slice_)) for slice_ in slices]


@implements(np.split)
def split(ary: DTensor, indices_or_sections: int | Sequence[int], axis: int = 0) -> list[DTensor]:
    """Return `array_split`; ``ShapeError`` if sections would differ in length."""
    tensor = as_tensor("split", ary)
    n = tensor.shape[normalised_axis(axis, tensor.ndim)]
    if isinstance(indices_or_sections, int | np.integer) and indices_or_sections > 0 and n % indices_or_sections:
        raise ShapeError(
            f"split of {counted(n, 'element')} into {indices_or_sections} sections: they must be equally long"
        )
    return array_split(tensor, indices_or_sections, axis)


def _split_along(name: str, axis: int, min_ndim: int) -> Function:
    """Return a split along *axis*, of tensors with *min_ndim* axes; hsplit takes the only axis if there is one."""

    def split_along(ary: DTensor, indices_or_sections: int | Sequence[int]) -> list[DTensor]:
        if ary.ndim < min_ndim:
            raise ShapeError(f"{name} takes a tensor of {min_ndim} axes or more, not of shape {ary.shape}")
        return split(ary, indices_or_sections, min(axis, ary.ndim - 1))

    return split_along


@implements(getattr(np, "unstack", None))
def unstack(x: DTensor, /, *, axis: int = 0) -> tuple[DTensor, ...]:
    """Return the slices along *axis*, each without this axis."""
    tensor = as_tensor("unstack", x)
    leading_slices = (slice(None),) * normalised_axis(axis, tensor.ndim)
    return tuple(getitem(tensor, (*leading_slices, number)) for number in range(tensor.shape[len(leading_slices)]))


implements(np.concatenate)(_with_numpy_arguments("concatenate", partial(_joined, "concatenate")))
implements(np.stack)(_with_numpy_arguments("stack", _stacked))
implements(np.vstack, getattr(np, "row_stack", None))(_joining_widened(np.atleast_2d, lambda ndim: 0, "vstack"))
implements(np.hstack)(_joining_widened(np.atleast_1d, lambda ndim: 0 if ndim == 1 else 1, "hstack"))
implements(np.dstack)(_joining_widened(np.atleast_3d, lambda ndim: 2, "dstack"))
implements(np.column_stack)(_joining_widened(_as_column, lambda ndim: 1, "column_stack"))
implements(np.vsplit)(_split_along("vsplit", 0, 2))
implements(np.hsplit)(_split_along("hsplit", 1, 1))
implements(np.dsplit)(_split_along("dsplit", 2, 3))
