"""Slices of sharded arrays: which layout keeps every element on the device that has it.

An index of NumPy takes an interval of each axis, or one index of it. An interval of an axis with consecutive blocks
has consecutive blocks, so the result has `Cuts`. With one index of a sharded axis, only the devices of one block have
elements: the mesh dimensions of that axis then cut another axis, along which all other devices have empty blocks.

            device 0    device 1    device 2
    t       0 1 2 3     4 5 6       7 8 9
    t[2:8]      0 1     2 3 4       5            Cuts (0, 2, 5, 6)
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from meshcomm.core._types import Names, Shape
from meshcomm.core.arrays.spec import TensorSpec
from meshcomm.core.layouts.cyclic import AnyCut
from meshcomm.core.layouts.layout import Axes, Layout
from meshcomm.core.layouts.slicing import AxisSlice, Items
from meshcomm.core.layouts.specs import Cyclic, cut_at


class LocalSlice(NamedTuple):
    """A slice that keeps every element on its device.

    Parameters
    ----------
    layout, shape: layout and shape of the result
    block: slices of the block that are in the result, one for each axis
    lengths: shape of the block of the result
    """

    layout: Layout
    shape: Shape
    block: tuple[slice, ...]
    lengths: Shape


@lru_cache(maxsize=1024)
def index_text(items: Items) -> str:
    """Return an index as a program writes it: the ranks compare it.

    >>> index_text((AxisSlice(1, 3, 2), None, 4))
    '[1:7:2, None, 4]'
    """
    texts = [
        f"{item.start}:{item.start + item.length * item.step}:{item.step}"
        if isinstance(item, AxisSlice)
        else str(item)
        for item in items
    ]
    return f"[{', '.join(texts)}]"


def result_shape(items: Items) -> Shape:
    """Return the shape of the result of an index."""
    return tuple(1 if item is None else item.length for item in items if not isinstance(item, int))


def local_slice_of(layout: Layout, shape: Shape, items: Items, device: int | None) -> LocalSlice | None:
    """Return the slice that *items* take of an array of *shape* in *layout*, on *device*; None if elements must move.

    Elements must move if a step along a sharded axis is negative; if an interval of cyclic blocks has a step, or
    neither begins with a block nor lies within one; or if an index drops a sharded axis, and no axis can be cut
    instead.

    Parameters
    ----------
    layout, shape: layout and shape of the array
    items: parts of the index
    device: device that has the block; None for a rank outside of the mesh
    """
    return _kept_slice(layout, id(layout.mesh), shape, items, device)


@lru_cache(maxsize=1024)
def _kept_slice(layout: Layout, mesh: int, shape: Shape, items: Items, device: int | None) -> LocalSlice | None:
    """Return `local_slice_of`, cached by the id of the *mesh* too: layouts on two equal meshes are equal.

    An entry of the cache holds its layout, so no other mesh gets this id while the entry exists.
    """
    block_numbers = (0,) * layout.ndim if device is None else layout.block_numbers(device)
    specs: list[Names] = []
    lengths: list[int] = []
    block_lengths: list[int] = []
    dropped: list[tuple[Names, int, int]] = []  # mesh dimensions, block that has the index, number of blocks
    block_slices: list[slice] = []
    axis = 0
    for item in items:
        if item is None:
            specs.append(())
            lengths.append(1)
            block_lengths.append(1)
            continue
        axis_slice = AxisSlice(item, 1) if isinstance(item, int) else item
        names, cut, block_number = layout.axes[axis], layout.cut(axis, shape[axis]), block_numbers[axis]
        block_slice = _block_slice(names, cut, block_number, axis_slice)
        if block_slice is None:
            return None
        if isinstance(item, int):
            if cut.blocks > 1:
                dropped.append((names, _block_number_of(cut, item), cut.blocks))
        else:
            specs.append(block_slice.names)
            lengths.append(item.length)
            block_lengths.append(block_slice.length)
        block_slices.append(block_slice.indices)
        axis += 1
    folded_specs = _folded_specs(specs, lengths, dropped, layout)
    if folded_specs is None:
        return None
    result_layout = Layout(folded_specs, layout.mesh)
    result_layout = layout if result_layout == layout else result_layout  # the same object if equal
    result_block_shape = (
        result_layout.block_shape(tuple(lengths), device) if dropped and device is not None else tuple(block_lengths)
    )
    return LocalSlice(result_layout, tuple(lengths), tuple(block_slices), result_block_shape)


def slice_in_block(
    spec: TensorSpec, items: Items, device: int
) -> tuple[tuple[slice | int, ...], tuple[slice, ...]] | None:
    """Return the index of the elements of a slice in the block of *device*, and their index in the slice.

    None if the block has none of them. All steps must be positive, and all blocks consecutive. The slice lacks the
    axes that an index drops.
    """
    block_index, slice_index = list[slice | int](), list[slice]()
    axis, cuts = 0, spec.cuts or spec.find_cuts()
    block_numbers = spec.layout.block_numbers(device)
    for item in items:
        if item is None:
            slice_index.append(slice(None))
            continue
        starts = cuts[axis]
        begin, end = (
            (0, spec.shape[axis]) if starts is None else (starts[block_numbers[axis]], starts[block_numbers[axis] + 1])
        )
        axis += 1
        if isinstance(item, int):
            if not begin <= item < end:
                return None
            block_index.append(item - begin)
            continue
        start, count, step = item
        first = min(max(0, -((start - begin) // step)), count)
        last = min(max(0, -((start - end) // step)), count)
        if first == last:
            return None
        block_index.append(slice(start + first * step - begin, start + (last - 1) * step - begin + 1, step))
        slice_index.append(slice(first, last))
    return tuple(block_index), tuple(slice_index)


class _BlockSlice(NamedTuple):
    names: Names
    indices: slice  # of the block
    length: int


def _block_slice(names: Names, cut: AnyCut, block_number: int, axis_slice: AxisSlice) -> _BlockSlice | None:
    """Return how an *axis_slice* is cut, and its elements in block *block_number*; None if elements must move."""
    start, count, step = axis_slice
    if cut.blocks == 1:
        return _BlockSlice(names, axis_slice.slice, count)
    if step < 0 and count > 1:
        return None
    step = max(step, 1)
    if cut.is_consecutive:
        boundaries = [min(max(0, -((start - block_start) // step)), count) for block_start in cut.all_starts()]
        return _consecutive_slice(names, boundaries, block_number, start - cut.start(block_number), step)
    return _cyclic_slice(names, cut, block_number, AxisSlice(start, count, step))


def _consecutive_slice(
    names: Names, boundaries: Sequence[int], block_number: int, offset: int, step: int
) -> _BlockSlice:
    first, last = boundaries[block_number], boundaries[block_number + 1]
    block_slice = AxisSlice(offset + first * step, last - first, step).slice
    return _BlockSlice(cut_at(names, boundaries, boundaries[-1]), block_slice, last - first)


def _cyclic_slice(names: Names, cut: AnyCut, block_number: int, axis_slice: AxisSlice) -> _BlockSlice | None:
    start, count, step = axis_slice
    assert isinstance(names, Cyclic)
    assert not cut.is_consecutive
    own_number = np.array([block_number], dtype=np.intp)
    first_block = start // cut.block
    if count == 0 or (start + (count - 1) * step) // cut.block == first_block:  # all in one block
        owner = int(cut.owners(np.array([first_block], dtype=np.intp))[0])
        boundaries = [count if block > owner else 0 for block in range(cut.blocks + 1)]
        offset = int(cut.before(own_number, start)[0])
        return _consecutive_slice(names, boundaries, block_number, offset, step)
    if step > 1 or start % cut.block:
        return None
    begin, end = int(cut.before(own_number, start)[0]), int(cut.before(own_number, start + count)[0])
    spec = Cyclic(tuple(names), cut.block, (cut.offset + first_block) % cut.blocks)
    return _BlockSlice(spec, slice(begin, end), end - begin)


def _block_number_of(cut: AnyCut, index: int) -> int:
    if not cut.is_consecutive:
        return int(cut.owners(np.array([index // cut.block], dtype=np.intp))[0])
    return cut.block_of(index)


def _folded_specs(
    specs: Sequence[Names], lengths: Sequence[int], dropped: Sequence[tuple[Names, int, int]], layout: Layout
) -> Axes | None:
    """Return *specs* with one axis that is also cut by the mesh dimensions of *dropped* axes.

    It is an unsharded axis if there is one; else an axis of consecutive blocks. None if there is no such axis.
    """
    if not dropped:
        return tuple(specs)
    unfolded = Layout(specs, layout.mesh)
    unsharded_axes = [axis for axis, block_count in enumerate(unfolded.shape) if block_count == 1]
    consecutive_axes = [axis for axis, names in enumerate(specs) if not isinstance(names, Cyclic)]
    if not unsharded_axes and not consecutive_axes:
        return None
    axis = max(unsharded_axes, key=lambda a: lengths[a]) if unsharded_axes else consecutive_axes[0]
    names: Names = tuple(specs[axis])
    axis_cut = unfolded.cut(axis, lengths[axis])
    assert axis_cut.is_consecutive
    boundaries = axis_cut.all_starts()
    for dropped_names, block_number, block_count in dropped:
        names = (*dropped_names, *names)
        leading_bounds = [0] * (block_number * (len(boundaries) - 1))
        trailing_bounds = [lengths[axis]] * ((block_count - 1 - block_number) * (len(boundaries) - 1))
        boundaries = [*leading_bounds, *boundaries, *trailing_bounds]
    result_specs = list(specs)
    result_specs[axis] = cut_at(names, boundaries, lengths[axis])
    return tuple(result_specs)
