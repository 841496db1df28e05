"""Masks: ``t[mask]`` and ``t[mask] = value``. The fast path is at the end: it is for masks that are cut as ``t`` is.

Each rank chooses among the rows of its block. How many rows the others have, the ranks tell each other. In a script,
whose calls all ranks make, these counts stay with the mask until it is written: so `x[m] += 1` asks once, and a loop
with one mask in its first turn only.
"""

from functools import lru_cache, partial
from itertools import accumulate, pairwise
from math import prod
from typing import NamedTuple
from weakref import ref

import numpy as np

from meshcomm.blocks.align import agree_on_plain, note, relaid
from meshcomm.blocks.make import as_sharded, refuse_outside
from meshcomm.blocks.small import cut_by_ends, ends_of_rows, of_lengths, of_rows
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

GET, SET = "t[index]", "t[index] = value"

Mask = DTensor | Array


def mask_in(index: object, shape: Shape) -> Mask | None:
    """Return the mask that *index* is, if it is one; ``IndexError`` if it does not fit a tensor of *shape*."""
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
    """Return what a tuple begins with, if there is nothing else in it."""
    return index[0] if isinstance(index, tuple) and len(index) == 1 else index


def compressed(tensor: DTensor, mask: Mask) -> DTensor:
    """Return the elements where *mask* is true, on one axis with `Cuts`. Collective over the mesh."""
    rows, chosen = in_rows(tensor, mask)
    return pick_rows(rows, chosen, mask.ndim)


def pick_rows(rows: DTensor, chosen: Array | None, ndim: int) -> DTensor:
    """Return the rows that each rank has *chosen*. Collective over the mesh."""
    refuse_outside("t[mask]", rows.mesh, "how many elements are chosen")
    specs = [tuple(names) for names in (rows.layout.axes[0], *rows.layout.axes[ndim:])]
    if any(specs[1:]):
        return of_lengths(GET, np.ascontiguousarray(rows._block[chosen]), rows.mesh, specs)
    return of_rows(GET, rows._block[chosen], rows.mesh, specs[0])


def in_rows(tensor: DTensor, mask: Mask) -> tuple[DTensor, Array | None]:
    """Return *tensor*, with blocks in the order of the array, and the block of its mask. Collective over the mesh.

    The axes of the mask are sharded along the first one only, and no axis is cyclic.
    """
    axes = axes_in_order(tensor.layout, mask.ndim)
    rows = relaid(tensor, axes, GET)
    return rows, block_of_mask(mask, rows)


def axes_in_order(layout: Layout, ndim: int) -> Axes:
    """Return how a tensor is cut whose blocks are in the order of its elements, for a mask with *ndim* axes."""
    axes = list(layout.undealt(range(len(layout.axes))))
    if any(count > 1 for count in layout.shape[1:ndim]):
        axes[:ndim] = [tuple(name for names in axes[:ndim] for name in names), *((),) * (ndim - 1)]
    return tuple(axes)


def block_of_mask(mask: Mask, tensor: DTensor) -> Array | None:
    """Return the mask of the block of *tensor*. Collective over the mesh if *mask* has to move, or is an array."""
    layout = tensor.layout.take(range(mask.ndim))
    if isinstance(mask, DTensor):
        return relaid(mask, layout.axes, GET, tensor.mesh)._block
    (agreed,) = agree_on_plain(GET, [mask], tensor.mesh)
    return as_sharded(np.asarray(agreed), layout)._block


# -- the fast path ----------------------------------------------------------------------------------------------------


class _MaskPlan(NamedTuple):
    """How a mask chooses among the rows of tensors of a spec, where nothing has to move.

    Parameters
    ----------
    layout: layout of the chosen rows, apart from where they are cut
    call: text of the call that ranks compare
    starts: starts of the blocks of the first axis, and the end of the last one; the other axes of the mask are whole
    """

    layout: Layout
    call: str
    starts: tuple[int, ...]


def masked_elements(tensor: DTensor, index: object) -> DTensor | None:
    """Return ``tensor[index]`` if *index* is a mask that is cut as the tensor. Collective; None for other indices."""
    mask = _mask_of(tensor, index)
    way = None if mask is None else _mask_plan(tensor._spec, mask.shape, _spec_of(mask))
    if mask is None or way is None:
        return None
    own_mask = _block_mask(mask, tensor, way)
    rows, chosen = _masked_rows(tensor._block, own_mask)
    block = np.ascontiguousarray(rows[own_mask] if chosen is None else rows.take(chosen, axis=0))
    ends = _row_ends(mask, way, tensor, len(block))
    return DTensor(block, _chosen_layout(tensor._spec, mask.ndim, ends), (ends[-1], *block.shape[1:]), tensor.dtype)


def put(tensor: DTensor, index: object, value: object) -> bool | None:
    """Run ``tensor[index] = value`` if *index* is a mask that is cut as the tensor; return None if it has not.

    The value is a number, an array that all ranks have, or a tensor of as many elements as the mask chooses.
    Collective unless it is a number.
    """
    mask = _mask_of(tensor, index)
    way = None if mask is None else _mask_plan(tensor._spec, mask.shape, _spec_of(mask))
    if mask is None or way is None or not _converts(value, tensor):
        return None
    block, own_mask = tensor._block, _block_mask(mask, tensor, way)
    rows, chosen = _masked_rows(block, own_mask)
    if isinstance(value, np.ndarray):
        note(value, tensor.mesh)
    if isinstance(value, np.ndarray | DTensor) and value.ndim > tensor.ndim - mask.ndim and value.shape[0] != 1:
        ends = _row_ends(mask, way, tensor, int(np.count_nonzero(own_mask)) if chosen is None else len(chosen))
        if value.shape != (ends[-1], *tensor.shape[mask.ndim :]):
            return None
        cut_as = _chosen_layout(tensor._spec, mask.ndim, ends)
        value = (relaid(value, cut_as.axes, SET) if isinstance(value, DTensor) else as_sharded(value, cut_as))._block
        value = value.copy() if np.may_share_memory(value, block) else value
    if isinstance(value, DTensor) or not count_write(tensor):
        return None  # the slow path moves it, or says why not
    try:
        rows[own_mask if chosen is None else chosen] = value
    except (TypeError, ValueError, OverflowError):
        return None  # so it does for what the tensor cannot hold
    return True


def _converts(value: Value, tensor: DTensor) -> bool:
    """Return whether a value becomes elements of the tensor with no warning, and is known to all ranks, or is cut."""
    if type(value) in (bool, int, float):
        return True
    fits = type(value) is DTensor and value.mesh is tensor.mesh
    fits = fits or isinstance(value, np.generic) or hasattr(value, "as_tensor") or _is_plain(value)
    return bool(fits and np.can_cast(value.dtype, tensor.dtype))


def _mask_of(tensor: DTensor, index: Value) -> Mask | None:
    """Return the mask that *index* is, alone or before slices of whole axes; None for what is left to the slow path.

    A mask that each rank has whole counts in scripts, and if it is an array of `meshcomm.numpy`.
    """
    if type(index) is tuple:
        if not index or len(index) > tensor.ndim or any(type(x) is not slice or x != _ALL for x in index[1:]):
            return None
        rest, index = len(index) - 1, index[0]
    else:
        rest = 0
    if not tensor._has_block or not (type(index) is DTensor or hasattr(index, "as_tensor") or _is_plain(index)):
        return None
    fits = index.dtype == np.bool_ and index.ndim and index.ndim + rest <= tensor.ndim
    return index if fits and index.shape == tensor.shape[: index.ndim] else None


_ALL = slice(None)


def _is_plain(index: object) -> bool:
    return type(index) is np.ndarray and is_scripted()


def _spec_of(mask: Mask) -> TensorSpec | None:
    return mask._spec if type(mask) is DTensor else None


@lru_cache(maxsize=1024)
def _mask_plan(spec: TensorSpec, shape: Shape, of_mask: TensorSpec | None) -> _MaskPlan | None:
    """Return how a mask of *shape* chooses; None if something has to move first.

    Parameters
    ----------
    spec: spec of the tensor
    shape: shape of the mask
    of_mask: spec of the mask; None if all ranks have it whole
    """
    layout, ndim = spec.layout, len(shape)
    if spec.dtype.kind not in "biufc" or spec.mesh.size > SMALL_MESHES or any(n > 1 for n in layout.shape[1:]):
        return None
    if axes_in_order(layout, ndim) != layout.axes:
        return None
    if of_mask is not None and (of_mask.mesh is not spec.mesh or of_mask.layout.axes != layout.take(range(ndim)).axes):
        return None
    row, names = spec.shape[ndim:], tuple(layout.axes[0])
    call = f"{GET}: blocks with rows of {row} {spec.dtype} along {names} on {mesh_description(spec.mesh)}"
    along = layout.cut(0, spec.shape[0]).consecutive
    starts = (*(along.start(number) for number in range(along.blocks)), spec.shape[0])
    return _MaskPlan(Layout([names, *((),) * len(row)], spec.mesh), call, starts)


def _block_mask(mask: Mask, tensor: DTensor, way: _MaskPlan) -> Array:
    """Return the mask of the block of this rank."""
    if isinstance(mask, DTensor):
        return mask._block
    note(mask, tensor.mesh)
    number = tensor.layout.block_numbers(tensor.mesh.rank or 0)[0]
    return np.asarray(mask)[way.starts[number] : way.starts[number + 1]]


def _masked_rows(block: Value, own_mask: Array) -> tuple[Array, Array | None]:
    """Return the rows of a block, and which ones *own_mask* chooses; None where *own_mask* says it in less time."""
    if own_mask.ndim == block.ndim or not block.flags.c_contiguous:
        return block, None
    rest = block.shape[own_mask.ndim :]
    return block.reshape(prod(own_mask.shape), *rest), np.flatnonzero(own_mask)


def _row_ends(mask: Mask, way: _MaskPlan, tensor: DTensor, count: int) -> tuple[int, ...]:
    """Return where the rows end that each block has, of which this rank has *count*. Collective if nobody knows."""
    if not isinstance(mask, DTensor):
        whole, starts = np.asarray(mask), way.starts
        counts = (int(np.count_nonzero(whole[start:stop])) for start, stop in pairwise(starts))
        return 0, *accumulate(counts)
    version = mask._storage.version if is_scripted() and mask._storage.source is None else None
    entry = _counted.get(id(mask))
    if entry is not None and entry[:2] == (version, mask._storage):
        location_in(tensor.mesh)  # which may be closed
        return entry[2]
    ends = ends_of_rows(GET, way.call, way.layout, count)
    if version is not None:
        key = id(mask)
        _counted[key] = version, mask._storage, ends, ref(mask, partial(_counted.pop, key))
    return ends


_counted: dict[int, tuple[int, Storage, tuple[int, ...], ref[DTensor]]] = {}
"""By the ids of masks that are there: the version of which storage has which ends of rows."""


@lru_cache(maxsize=1024)
def _chosen_layout(spec: TensorSpec, ndim: int, ends: tuple[int, ...]) -> Layout:
    """Return the layout of what a mask with *ndim* axes takes of tensors of a spec: one object for equal ones."""
    layout = Layout([tuple(spec.layout.axes[0]), *((),) * (len(spec.shape) - ndim)], spec.mesh)
    return cut_by_ends(layout, ends)
