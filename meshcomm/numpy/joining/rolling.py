"""Elements in another order along axes: flip, rot90 and roll."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise

import numpy as np

from meshcomm.blocks.align import cut_by, relaid
from meshcomm.blocks.assemble import assembling_if_cheaper
from meshcomm.blocks.edges import TensorInterval
from meshcomm.blocks.make import make, mapped, mapping, on_blocks
from meshcomm.blocks.moved import moved_from
from meshcomm.blocks.small import is_passing, to_all
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
# Each device flips its block. Then the first block of the result is on the last device, and so on: the flipped blocks
# are those of a layout on a mesh with its devices in reverse order. From there they are relaid to the devices that
# need them, so each element moves once.


@operation(np.flip)
def flip(m: DTensor, axis: Axis = None) -> Call | DTensor:
    """Return a view in reverse order along *axis*. If such an axis is sharded, it is a copy, and this Collective."""
    tensor = as_tensor("flip", m)
    axes = normalised_axes(axis, tensor.ndim)
    if not tensor.ndim:
        return tensor.copy()  # one element is no view, as in NumPy
    cut = [a for a in axes if tensor.layout.num_shards(a) > 1]
    if not cut:
        return viewing(lambda block: np.flip(block, axes), tensor, tensor.layout)
    of = np.flip(abstract_array(tensor), axes)
    if is_passing(tensor):
        whole = to_all(tensor, "flip")
        return moved_from(tensor, cut_by(tensor.layout, mapped(lambda block: np.flip(block, axes), whole)), of)
    # If the last of the cyclic blocks is shorter, it would be the first.
    plain = tensor.layout.usual_cut(a for a in cut if _flipped_spec(tensor, a) is None)
    source = relaid(tensor, plain.axes, "flip")
    specs = list(source.layout.axes)
    for a in cut:
        spec = _flipped_spec(source, a)
        assert spec is not None
        specs[a] = spec
    layout = Layout(specs, _reversed_mesh(tensor.mesh, [name for a in cut for name in specs[a]]))
    turned = make(on_blocks(lambda block: np.flip(block, axes), source), layout, tensor.shape, tensor.dtype)
    return moved_from(tensor, relaid(turned, tensor.layout.axes, "flip", tensor.mesh), of)


def _flipped_spec(tensor: DTensor, axis: int) -> Names | None:
    """Return how flipped blocks cut *axis* on the devices in reverse order; None if there is no such spec."""
    names, n = tuple(tensor.layout.axes[axis]), tensor.shape[axis]
    flipped = tensor.layout.cut(axis, n).flipped()
    return None if flipped is None else spec_of(names, flipped)


def _reversed_mesh(mesh: Mesh, names: Sequence[str]) -> Mesh:
    """Return *mesh* with its devices in reverse order along the mesh dimensions *names*."""
    ranks = np.array(mesh.ranks).reshape(mesh.shape())
    flipped = np.flip(ranks, tuple(mesh.dim_names.index(name) for name in names)).ravel().tolist()
    return bound_to(bound_world(mesh), Mesh(flipped, [(name, size) for name, size in mesh.dims]))


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
    first, second = (normalised_axis(axis, tensor.ndim) for axis in axes)
    if first == second:
        raise ShapeError(f"rot90: axes {axes} must be two")
    order, turns = list(range(tensor.ndim)), as_integer(k, "k", TypeError) % 4
    order[first], order[second] = second, first
    if turns in (0, 2):
        return flip(tensor, (first, second) if turns else ())
    return transpose(flip(tensor, second), order) if turns == 1 else flip(transpose(tensor, order), second)


# -- roll -------------------------------------------------------------------------------------------------------------


@operation(np.roll)
def roll(a: DTensor, shift: int | Sequence[int], axis: Axis = None) -> Call | DTensor:
    """Return the tensor with its elements shifted along *axis*, or flattened. Collective if a rolled axis is sharded.

    The result is in the layout of the tensor. Only elements that get to another block move.
    """
    tensor = as_tensor("roll", a)
    if axis is None and tensor.ndim != 1:
        flat = regrouped(tensor, (tensor.size,), name="roll")
        rolled = completed(_rolled(flat, {0: sum(_integers(shift))}))
        return relaid(regrouped(rolled, tensor.shape, tensor.layout.axes, "roll"), tensor.layout.axes, "roll")
    shifts, axes = _integers(shift), [normalised_axis(a, tensor.ndim) for a in _integers(0 if axis is None else axis)]
    if len(shifts) != len(axes) and 1 not in (len(shifts), len(axes)):
        raise ShapeError(f"roll by {shift} along axes {axis}: there must be one shift for each axis")
    total = dict.fromkeys(axes, 0)
    for along, by in np.broadcast(axes, shifts):
        total[int(along)] += int(by)
    return _rolled(tensor, total)


def _integers(values: object) -> list[int]:
    listed = values if isinstance(values, list | tuple | np.ndarray) else (values,)
    return [as_integer(value, "shift or axis", TypeError) for value in listed]


def _rolled(tensor: DTensor, shifts: dict[int, int]) -> Call | DTensor:
    """Return *tensor* rolled by a shift along each of some axes, or the call that rolls it."""
    offsets = {a: by % tensor.shape[a] for a, by in shifts.items() if tensor.shape[a] > 0 and by % tensor.shape[a]}
    if not offsets or 0 in tensor.shape:
        return tensor.copy()
    sharded = [a for a in offsets if tensor.layout.num_shards(a) > 1]
    whole = tuple(a for a in offsets if a not in sharded)
    by = tuple(offsets[a] for a in whole)

    def roll_whole_axes(tensor: DTensor) -> Call:
        return mapping(lambda block: np.roll(opaque(block), by, whole).view(block.dtype), tensor)

    def rolled(tensor: DTensor) -> DTensor:
        result = roll_whole_axes(tensor).run() if whole else tensor
        for axis in sharded:
            result = completed(_rolled_along(result, axis, offsets[axis]))
        return result

    if not sharded:
        return roll_whole_axes(tensor)
    if len(sharded) == 1 and not whole:
        return _rolled_along(tensor, sharded[0], offsets[sharded[0]])
    return Call(Recipe(rolled), (tensor,))


def _rolled_along(tensor: DTensor, axis: int, by: int) -> Call | DTensor:
    """Return *tensor* rolled *by* less than its length along a sharded axis, or the call that rolls it."""
    n, layout = tensor.shape[axis], tensor.layout
    ends = pairwise(layout.cut(axis, n).consecutive.all_starts())
    assembled = assembling_if_cheaper(
        "roll", [tensor], axis, tuple(_intervals(ends, by, n)), layout, shape=tensor.shape
    )
    if assembled is not None:
        return assembled
    result, along = empty(tensor.shape, tensor.dtype, layout), (slice(None),) * axis
    for source, target in ((slice(0, n - by), slice(by, n)), (slice(n - by, n), slice(0, by))):
        put("roll", result, (*along, target), getitem(tensor, (*along, source)))
    return result


def _intervals(ends: Iterable[Interval], by: int, n: int) -> Iterator[tuple[TensorInterval, ...]]:
    """Return the intervals, of *n* elements that go round, which are *by* elements before each of these."""
    for start, stop in ends:
        first, last = start - by, stop - by
        yield tuple((0, a, b) for a, b in ((max(first + n, 0), min(last + n, n)), (max(first, 0), last)) if a < b)


implements(np.flipud)(_flip_along(0, 1, "flipud"))
implements(np.fliplr)(_flip_along(1, 2, "fliplr"))
