"""Masks: ``t[mask]`` and ``t[mask] = value``. The fast path is at the end: it is for masks that are cut as ``t`` is.

Each rank selects rows of its block, and the ranks exchange how many. In a script, whose calls all ranks make, these
counts are cached for the mask until it is written: `x[m] += 1` exchanges them once, and a loop with one mask in its
first turn only.
"""

from functools import lru_cache, partial
from itertools import accumulate, pairwise
from math import prod
from typing import NamedTuple
from weakref import ref

import numpy as np

from meshcomm.blocks.align import agree_on_plain, note, relaid
from meshcomm.blocks.make import as_sharded, refuse_outside
from meshcomm.blocks.small import cut_by_ends, row_ends_of, tensor_of_lengths, tensor_of_rows
from meshcomm.core._tracing import Value
from meshcomm.core._tuning import SMALL_MESHES
from meshcomm.core._types import Array, Shape
from meshcomm.core.arrays._storage import Storage, count_write
from meshcomm.core.arrays.dtensor import DTensor, unwrapped
from meshcomm.core.arrays.scripted import is_scripted
from meshcomm.core.arrays.spec import TensorSpec
from meshcomm.core.layouts.layout import Axes, Layout
from meshcomm.core.ranks.meshes import location_in, mesh_description
from meshcomm.numpy.indexing.index_arrays import as_array_of, as_index

GET_NAME, SET_NAME = "t[index]", "t[index] = value"

Mask = DTensor | Array


def mask_in(index: object, shape: Shape) -> Mask | None:
    """Return *index* as a mask; None if it is none; ``IndexError`` if it does not fit a tensor of *shape*."""
    index = as_array_of(unwrapped(_single_item(index)))
    if isinstance(index, list) and index:
        index = as_index(index)
    if not isinstance(index, DTensor | np.ndarray) or index.ndim == 0 or index.dtype != bool:
        return None
    if index.shape != shape[: index.ndim]:
        raise IndexError(
            f"a mask of shape {index.shape} for a tensor of shape {shape}: the shape of a mask is that of the tensor, "
            "or of its first axes"
        )
    return index


def _single_item(index: object) -> object:
    """Return the only item of a tuple of one; any other index unchanged."""
    return index[0] if isinstance(index, tuple) and len(index) == 1 else index


def compressed(tensor: DTensor, mask: Mask) -> DTensor:
    """Return the elements where *mask* is true, on one axis with `Cuts`. Collective over the mesh."""
    rows, block_mask = in_rows(tensor, mask)
    return select_rows(rows, block_mask, mask.ndim)


def select_rows(rows: DTensor, block_mask: Array | None, ndim: int) -> DTensor:
    """Return the rows that the *block_mask* of each rank selects. Collective over the mesh."""
    refuse_outside("t[mask]", rows.mesh, "how many elements are chosen")
    specs = [tuple(names) for names in (rows.layout.axes[0], *rows.layout.axes[ndim:])]
    if any(specs[1:]):
        return tensor_of_lengths(GET_NAME, np.ascontiguousarray(rows._block[block_mask]), rows.mesh, specs)
    return tensor_of_rows(GET_NAME, rows._block[block_mask], rows.mesh, specs[0])


def in_rows(tensor: DTensor, mask: Mask) -> tuple[DTensor, Array | None]:
    """Return *tensor* with blocks in the order of the array, and the mask of its block. Collective over the mesh.

    The axes of the mask are sharded along the first one only, and no axis is cyclic.
    """
    axes = axes_in_order(tensor.layout, mask.ndim)
    rows = relaid(tensor, axes, GET_NAME)
    return rows, block_of_mask(mask, rows)


def axes_in_order(layout: Layout, ndim: int) -> Axes:
    """Return *layout* changed so that blocks are in the order of the elements, for a mask with *ndim* axes."""
    axes = list(layout.as_consecutive(range(len(layout.axes))))
    if any(count > 1 for count in layout.shape[1:ndim]):
        axes[:ndim] = [tuple(name for names in axes[:ndim] for name in names), *((),) * (ndim - 1)]
    return tuple(axes)


def block_of_mask(mask: Mask, tensor: DTensor) -> Array | None:
    """Return the mask of the block of *tensor*. Collective over the mesh if *mask* has to move, or is an array."""
    layout = tensor.layout.take(range(mask.ndim))
    if isinstance(mask, DTensor):
        return relaid(mask, layout.axes, GET_NAME, tensor.mesh)._block
    (mask_array,) = agree_on_plain(GET_NAME, [mask], tensor.mesh)
    return as_sharded(np.asarray(mask_array), layout)._block


# -- the fast path ----------------------------------------------------------------------------------------------------


class _MaskPlan(NamedTuple):
    """How a mask selects rows of tensors of one spec, where nothing has to move.

    Parameters
    ----------
    layout: layout of the selected rows, apart from where they are cut
    call_text: text of the call that ranks compare
    starts: starts of the blocks of the first axis, and the end of the last one; the other axes of the mask are whole
    """

    layout: Layout
    call_text: str
    starts: tuple[int, ...]


def masked_elements(tensor: DTensor, index: object) -> DTensor | None:
    """Return ``tensor[index]`` if *index* is a mask that is cut as the tensor. Collective; None for other indices."""
    mask = _mask_of(tensor, index)
    plan = None if mask is None else _mask_plan(tensor._spec, mask.shape, _spec_of(mask))
    if mask is None or plan is None:
        return None
    own_mask = _block_mask(mask, tensor, plan)
    rows, row_indices = _masked_rows(tensor._block, own_mask)
    block = np.ascontiguousarray(rows[own_mask] if row_indices is None else rows.take(row_indices, axis=0))
    ends = _row_ends(mask, plan, tensor, len(block))
    return DTensor(block, _chosen_layout(tensor._spec, mask.ndim, ends), (ends[-1], *block.shape[1:]), tensor.dtype)


def put(tensor: DTensor, index: object, value: object) -> bool | None:
    """Run ``tensor[index] = value`` if *index* is a mask that is cut as the tensor; return None if it did not run.

    The value is a number, an array that all ranks have, or a tensor of as many elements as the mask selects.
    Collective unless it is a number.
    """
    mask = _mask_of(tensor, index)
    plan = None if mask is None else _mask_plan(tensor._spec, mask.shape, _spec_of(mask))
    if mask is None or plan is None or not _converts(value, tensor):
        return None
    block, own_mask = tensor._block, _block_mask(mask, tensor, plan)
    rows, indices = _masked_rows(block, own_mask)
    if isinstance(value, np.ndarray):
        note(value, tensor.mesh)
    if isinstance(value, np.ndarray | DTensor) and value.ndim > tensor.ndim - mask.ndim and value.shape[0] != 1:
        ends = _row_ends(mask, plan, tensor, int(np.count_nonzero(own_mask)) if indices is None else len(indices))
        if value.shape != (ends[-1], *tensor.shape[mask.ndim :]):
            return None
        target = _chosen_layout(tensor._spec, mask.ndim, ends)
        value = (
            relaid(value, target.axes, SET_NAME) if isinstance(value, DTensor) else as_sharded(value, target)
        )._block
        value = value.copy() if np.may_share_memory(value, block) else value
    if isinstance(value, DTensor) or not count_write(tensor):
        return None  # the slow path moves the value, or raises the error
    try:
        rows[own_mask if indices is None else indices] = value
    except (TypeError, ValueError, OverflowError):
        return None  # the slow path raises the error for a value that the tensor cannot hold
    return True


def _converts(value: Value, tensor: DTensor) -> bool:
    """Return whether *value* converts without a warning, and all ranks know it, or it is a tensor on the same mesh."""
    if type(value) in (bool, int, float):
        return True
    fits = type(value) is DTensor and value.mesh is tensor.mesh
    fits = fits or isinstance(value, np.generic) or hasattr(value, "as_tensor") or _is_plain(value)
    return bool(fits and np.can_cast(value.dtype, tensor.dtype))


def _mask_of(tensor: DTensor, index: Value) -> Mask | None:
    """Return the mask if *index* is a mask, alone or followed by full slices; None if the slow path has to run.

    A mask that each rank has whole is accepted in scripts, or if it is an array of `meshcomm.numpy`.
    """
    if type(index) is tuple:
        if not index or len(index) > tensor.ndim or any(type(x) is not slice or x != _WHOLE_AXIS for x in index[1:]):
            return None
        slice_count, index = len(index) - 1, index[0]
    else:
        slice_count = 0
    if not tensor._has_block or not (type(index) is DTensor or hasattr(index, "as_tensor") or _is_plain(index)):
        return None
    fits = index.dtype == np.bool_ and index.ndim and index.ndim + slice_count <= tensor.ndim
    return index if fits and index.shape == tensor.shape[: index.ndim] else None


_WHOLE_AXIS = slice(None)


def _is_plain(index: object) -> bool:
    return type(index) is np.ndarray and is_scripted()


def _spec_of(mask: Mask) -> TensorSpec | None:
    return mask._spec if type(mask) is DTensor else None


@lru_cache(maxsize=1024)
def _mask_plan(spec: TensorSpec, shape: Shape, mask_spec: TensorSpec | None) -> _MaskPlan | None:
    """Return how a mask of *shape* selects rows; None if something has to move first.

    Parameters
    ----------
    spec: spec of the tensor
    shape: shape of the mask
    mask_spec: spec of the mask; None if all ranks have it whole
    """
    layout, ndim = spec.layout, len(shape)
    if spec.dtype.kind not in "biufc" or spec.mesh.size > SMALL_MESHES or any(n > 1 for n in layout.shape[1:]):
        return None
    if axes_in_order(layout, ndim) != layout.axes:
        return None
    if mask_spec is not None and (
        mask_spec.mesh is not spec.mesh or mask_spec.layout.axes != layout.take(range(ndim)).axes
    ):
        return None
    row_shape, names = spec.shape[ndim:], tuple(layout.axes[0])
    text = f"{GET_NAME}: blocks with rows of {row_shape} {spec.dtype} along {names} on {mesh_description(spec.mesh)}"
    cut = layout.cut(0, spec.shape[0]).consecutive
    starts = (*(cut.start(number) for number in range(cut.blocks)), spec.shape[0])
    return _MaskPlan(Layout([names, *((),) * len(row_shape)], spec.mesh), text, starts)


def _block_mask(mask: Mask, tensor: DTensor, plan: _MaskPlan) -> Array:
    """Return the mask of the block of this rank."""
    if isinstance(mask, DTensor):
        return mask._block
    note(mask, tensor.mesh)
    number = tensor.layout.block_numbers(tensor.mesh.rank or 0)[0]
    return np.asarray(mask)[plan.starts[number] : plan.starts[number + 1]]


def _masked_rows(block: Value, own_mask: Array) -> tuple[Array, Array | None]:
    """Return the rows of a block, and the indices that *own_mask* selects, or None if the mask itself is faster."""
    if own_mask.ndim == block.ndim or not block.flags.c_contiguous:
        return block, None
    row_shape = block.shape[own_mask.ndim :]
    return block.reshape(prod(own_mask.shape), *row_shape), np.flatnonzero(own_mask)


def _row_ends(mask: Mask, plan: _MaskPlan, tensor: DTensor, count: int) -> tuple[int, ...]:
    """Return 0 and the end of the rows of each block, *count* on this rank. Collective unless they are cached."""
    if not isinstance(mask, DTensor):
        mask_array, starts = np.asarray(mask), plan.starts
        counts = (int(np.count_nonzero(mask_array[start:stop])) for start, stop in pairwise(starts))
        return 0, *accumulate(counts)
    version = mask._storage.version if is_scripted() and mask._storage.source is None else None
    entry = _ends_by_mask.get(id(mask))
    if entry is not None and entry[:2] == (version, mask._storage):
        location_in(tensor.mesh)  # raises an error if the mesh is closed
        return entry[2]
    ends = row_ends_of(GET_NAME, plan.call_text, plan.layout, count)
    if version is not None:
        key = id(mask)
        _ends_by_mask[key] = version, mask._storage, ends, ref(mask, partial(_ends_by_mask.pop, key))
    return ends


_ends_by_mask: dict[int, tuple[int, Storage, tuple[int, ...], ref[DTensor]]] = {}
"""By the ids of living masks: version and storage of the mask, the ends of its rows, and a weak reference to it."""


@lru_cache(maxsize=1024)
def _chosen_layout(spec: TensorSpec, ndim: int, ends: tuple[int, ...]) -> Layout:
    """Return the layout of the elements that a mask with *ndim* axes selects; equal layouts are one object."""
    layout = Layout([tuple(spec.layout.axes[0]), *((),) * (len(spec.shape) - ndim)], spec.mesh)
    return cut_by_ends(layout, ends)
