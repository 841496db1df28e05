"""Elements in another order along axes: flip, rot90 and roll."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise

import numpy as np

from meshcomm.blocks.align import cut_by, relaid
from meshcomm.blocks.assemble import assembling_if_cheaper
from meshcomm.blocks.edges import TensorInterval
from meshcomm.blocks.make import make, mapped, mapping, on_blocks
from meshcomm.blocks.moved import moved_view
from meshcomm.blocks.small import is_short_view, to_all
from meshcomm.blocks.views import abstract_array, viewing
from meshcomm.core._arguments import as_integer, normalised_axes
from meshcomm.core._types import Axis, Names
from meshcomm.core.arrays._recipes import Call, Recipe, completed
from meshcomm.core.arrays.create import empty
from meshcomm.core.arrays.dtensor import DTensor, as_tensor
from meshcomm.core.layouts.layout import Layout
from meshcomm.core.layouts.mesh import Mesh, bound_to, bound_world
from meshcomm.core.layouts.partition import Interval
from meshcomm.core.layouts.specs import spec_of
from meshcomm.core.memory.copies import opaque
from meshcomm.errors import ShapeError
from meshcomm.numpy.elementwise.signatures import Function, implements, operation
from meshcomm.numpy.indexing.indexing import getitem
from meshcomm.numpy.joining.pieces import put
from meshcomm.numpy.shapes.linalg import transpose
from meshcomm.numpy.shapes.shaping import normalised_axis, regrouped

# -- flip -------------------------------------------------------------------------------------------------------------
#
# Each device flips its block. Then the first block of the result is on the last device, the second on the last but
# one, and so on: these blocks are in a layout on a mesh with its devices in reverse order. From that layout they are
# relaid to the mesh of the tensor, so each element moves once.


@operation(np.flip)
def flip(m: DTensor, axis: Axis = None) -> Call | DTensor:
    """Return a view in reverse order along *axis*. If such an axis is sharded, a copy, and the call is Collective."""
    tensor = as_tensor("flip", m)
    axes = normalised_axes(axis, tensor.ndim)
    if not tensor.ndim:
        return tensor.copy()  # NumPy returns no view of one element
    cut_axes = [a for a in axes if tensor.layout.num_shards(a) > 1]
    if not cut_axes:
        return viewing(lambda block: np.flip(block, axes), tensor, tensor.layout)
    abstract = np.flip(abstract_array(tensor), axes)
    if is_short_view(tensor):
        whole = to_all(tensor, "flip")
        return moved_view(tensor, cut_by(tensor.layout, mapped(lambda block: np.flip(block, axes), whole)), abstract)
    # A shorter last cyclic block would become the first one: no layout has that.
    plain_layout = tensor.layout.default_cut(a for a in cut_axes if _flipped_spec(tensor, a) is None)
    source = relaid(tensor, plain_layout.axes, "flip")
    specs = list(source.layout.axes)
    for a in cut_axes:
        spec = _flipped_spec(source, a)
        assert spec is not None
        specs[a] = spec
    layout = Layout(specs, _reversed_mesh(tensor.mesh, [name for a in cut_axes for name in specs[a]]))
    flipped = make(on_blocks(lambda block: np.flip(block, axes), source), layout, tensor.shape, tensor.dtype)
    return moved_view(tensor, relaid(flipped, tensor.layout.axes, "flip", tensor.mesh), abstract)


def _flipped_spec(tensor: DTensor, axis: int) -> Names | None:
    """Return how flipped blocks cut *axis* on the devices in reverse order; None if there is no such spec."""
    names, n = tuple(tensor.layout.axes[axis]), tensor.shape[axis]
    flipped_cut = tensor.layout.cut(axis, n).flipped()
    return None if flipped_cut is None else spec_of(names, flipped_cut)


def _reversed_mesh(mesh: Mesh, names: Sequence[str]) -> Mesh:
    """Return *mesh* with its devices in reverse order along the mesh dimensions *names*."""
    ranks = np.array(mesh.ranks).reshape(mesh.shape())
    reversed_ranks = np.flip(ranks, tuple(mesh.dim_names.index(name) for name in names)).ravel().tolist()
    return bound_to(bound_world(mesh), Mesh(reversed_ranks, [(name, size) for name, size in mesh.dims]))


def _flip_along(axis: int, ndim: int, name: str) -> Function:
    def flipped(m: DTensor) -> DTensor:
        if m.ndim < ndim:
            raise ShapeError(f"{name} takes a tensor of {ndim} axes or more, not of shape {m.shape}")
        return flip(m, axis)

    return flipped


@implements(np.rot90)
def rot90(m: DTensor, k: int = 1, axes: Sequence[int] = (0, 1)) -> DTensor:
    """Return the tensor turned *k* times by 90 degrees in the plane of two *axes*, from the first to the second."""
    tensor = as_tensor("rot90", m)
    if len(axes) != 2:
        raise ShapeError(f"rot90 turns in the plane of two axes, not of {axes}")
    first_axis, second_axis = (normalised_axis(axis, tensor.ndim) for axis in axes)
    if first_axis == second_axis:
        raise ShapeError(f"rot90: axes {axes} must be two")
    order, turns = list(range(tensor.ndim)), as_integer(k, "k", TypeError) % 4
    order[first_axis], order[second_axis] = second_axis, first_axis
    if turns in (0, 2):
        return flip(tensor, (first_axis, second_axis) if turns else ())
    return transpose(flip(tensor, second_axis), order) if turns == 1 else flip(transpose(tensor, order), second_axis)


# -- roll -------------------------------------------------------------------------------------------------------------


@operation(np.roll)
def roll(a: DTensor, shift: int | Sequence[int], axis: Axis = None) -> Call | DTensor:
    """Return the tensor with its elements shifted along *axis*, or flattened. Collective if a rolled axis is sharded.

    The result is in the layout of the tensor. Only elements whose block changes move.
    """
    tensor = as_tensor("roll", a)
    if axis is None and tensor.ndim != 1:
        flat = regrouped(tensor, (tensor.size,), name="roll")
        rolled = completed(_rolled(flat, {0: sum(_integers(shift))}))
        return relaid(regrouped(rolled, tensor.shape, tensor.layout.axes, "roll"), tensor.layout.axes, "roll")
    shifts, axes = _integers(shift), [normalised_axis(a, tensor.ndim) for a in _integers(0 if axis is None else axis)]
    if len(shifts) != len(axes) and 1 not in (len(shifts), len(axes)):
        raise ShapeError(f"roll by {shift} along axes {axis}: there must be one shift for each axis")
    shift_by_axis = dict.fromkeys(axes, 0)
    for rolled_axis, offset in np.broadcast(axes, shifts):
        shift_by_axis[int(rolled_axis)] += int(offset)
    return _rolled(tensor, shift_by_axis)


def _integers(values: object) -> list[int]:
    items = values if isinstance(values, list | tuple | np.ndarray) else (values,)
    return [as_integer(value, "shift or axis", TypeError) for value in items]


def _rolled(tensor: DTensor, shifts: dict[int, int]) -> Call | DTensor:
    """Return *tensor* rolled along each axis of *shifts*, or the call that rolls it."""
    offsets = {a: by % tensor.shape[a] for a, by in shifts.items() if tensor.shape[a] > 0 and by % tensor.shape[a]}
    if not offsets or 0 in tensor.shape:
        return tensor.copy()
    sharded_axes = [a for a in offsets if tensor.layout.num_shards(a) > 1]
    whole_axes = tuple(a for a in offsets if a not in sharded_axes)
    whole_offsets = tuple(offsets[a] for a in whole_axes)

    def roll_whole_axes(tensor: DTensor) -> Call:
        return mapping(lambda block: np.roll(opaque(block), whole_offsets, whole_axes).view(block.dtype), tensor)

    def rolled(tensor: DTensor) -> DTensor:
        result = roll_whole_axes(tensor).run() if whole_axes else tensor
        for axis in sharded_axes:
            result = completed(_rolled_along(result, axis, offsets[axis]))
        return result

    if not sharded_axes:
        return roll_whole_axes(tensor)
    if len(sharded_axes) == 1 and not whole_axes:
        return _rolled_along(tensor, sharded_axes[0], offsets[sharded_axes[0]])
    return Call(Recipe(rolled), (tensor,))


def _rolled_along(tensor: DTensor, axis: int, offset: int) -> Call | DTensor:
    """Return *tensor* rolled along a sharded axis, or the call that rolls it. 0 < *offset* < length of the axis."""
    n, layout = tensor.shape[axis], tensor.layout
    block_ends = pairwise(layout.cut(axis, n).consecutive.all_starts())
    assembled = assembling_if_cheaper(
        "roll", [tensor], axis, tuple(_intervals(block_ends, offset, n)), layout, shape=tensor.shape
    )
    if assembled is not None:
        return assembled
    result, leading_slices = empty(tensor.shape, tensor.dtype, layout), (slice(None),) * axis
    for source, target in ((slice(0, n - offset), slice(offset, n)), (slice(n - offset, n), slice(0, offset))):
        put("roll", result, (*leading_slices, target), getitem(tensor, (*leading_slices, source)))
    return result


def _intervals(block_ends: Iterable[Interval], offset: int, n: int) -> Iterator[tuple[TensorInterval, ...]]:
    """Return, for each block, the intervals of an axis of *n* elements from which a roll takes its elements.

    They lie *offset* elements before the block; indices below 0 are counted from the end of the axis.
    """
    for start, stop in block_ends:
        source_start, source_stop = start - offset, stop - offset
        yield tuple(
            (0, a, b)
            for a, b in ((max(source_start + n, 0), min(source_stop + n, n)), (max(source_start, 0), source_stop))
            if a < b
        )


implements(np.flipud)(_flip_along(0, 1, "flipud"))
implements(np.fliplr)(_flip_along(1, 2, "fliplr"))
