"""Slices of sharded arrays: which layout keeps every element on the device that has it.

An index of NumPy takes an interval of each axis, or one index of it. One of consecutive blocks gives consecutive
blocks, so the result has `Cuts`. One index of a sharded axis leaves its elements to the devices of one block: the mesh
dimensions of that axis then cut another axis, where all other devices get nothing.

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


class KeptSlice(NamedTuple):
    """A slice that keeps every element on its device.

    Parameters
    ----------
    layout, shape: layout and shape of the result
    block: slice of each axis of a block that is in the result
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
    """Return the shape that an index gives."""
    return tuple(1 if item is None else item.length for item in items if not isinstance(item, int))


def kept_slice(layout: Layout, shape: Shape, items: Items, device: int | None) -> KeptSlice | None:
    """Return the slice that *items* take of an array of *shape* in *layout*, on *device*; None if elements must move.

    They must, if a step is negative along a sharded axis; if an interval of cyclic blocks neither begins with a
    block nor lies within one, or has a step; and if an index drops a sharded axis, and no axis can be cut instead.

    Parameters
    ----------
    layout, shape: layout and shape of the array
    items: parts of the index
    device: device that has the block; None for a rank outside of the mesh
    """
    return _kept_slice(layout, id(layout.mesh), shape, items, device)


@lru_cache(maxsize=1024)
def _kept_slice(layout: Layout, mesh: int, shape: Shape, items: Items, device: int | None) -> KeptSlice | None:
    """Return `kept_slice`. Layouts on equal meshes are equal, but the result has to be on this very *mesh*, by its id.

    An entry of the cache holds its layout, so no other mesh gets this id while the entry is there.
    """
    numbers = (0,) * layout.ndim if device is None else layout.block_numbers(device)
    specs: list[Names] = []
    lengths: list[int] = []
    counts: list[int] = []
    dropped: list[tuple[Names, int, int]] = []  # mesh dimensions, the block that has the index, and of how many
    block: list[slice] = []
    axis = 0
    for item in items:
        if item is None:
            specs.append(())
            lengths.append(1)
            counts.append(1)
            continue
        axis_slice = AxisSlice(item, 1) if isinstance(item, int) else item
        names, cut, number = layout.axes[axis], layout.cut(axis, shape[axis]), numbers[axis]
        part = _block_slice(names, cut, number, axis_slice)
        if part is None:
            return None
        if isinstance(item, int):
            if cut.blocks > 1:
                dropped.append((names, _block_of(cut, item), cut.blocks))
        else:
            specs.append(part.names)
            lengths.append(item.length)
            counts.append(part.length)
        block.append(part.taken)
        axis += 1
    found_axes = _folded_specs(specs, lengths, dropped, layout)
    if found_axes is None:
        return None
    result = Layout(found_axes, layout.mesh)
    result = layout if result == layout else result  # as equal layouts, this very one
    of_result = result.block_shape(tuple(lengths), device) if dropped and device is not None else tuple(counts)
    return KeptSlice(result, tuple(lengths), tuple(block), of_result)


def own_part(spec: TensorSpec, items: Items, device: int) -> tuple[tuple[slice | int, ...], tuple[slice, ...]] | None:
    """Return where in the block of *device* the elements of a slice are, and where in the slice.

    None if the block has none of them. All steps are positive, and all blocks consecutive. The slice has the axes that
    an index gives, so where an index drops an axis, it is dropped here.
    """
    of_block, of_slice = list[slice | int](), list[slice]()
    axis, starts = 0, spec.cuts or spec.find_cuts()
    numbers = spec.layout.block_numbers(device)
    for item in items:
        if item is None:
            of_slice.append(slice(None))
            continue
        cut = starts[axis]
        begin, end = (0, spec.shape[axis]) if cut is None else (cut[numbers[axis]], cut[numbers[axis] + 1])
        axis += 1
        if isinstance(item, int):
            if not begin <= item < end:
                return None
            of_block.append(item - begin)
            continue
        start, count, step = item
        first = min(max(0, -((start - begin) // step)), count)
        last = min(max(0, -((start - end) // step)), count)
        if first == last:
            return None
        of_block.append(slice(start + first * step - begin, start + (last - 1) * step - begin + 1, step))
        of_slice.append(slice(first, last))
    return tuple(of_block), tuple(of_slice)


class _BlockSlice(NamedTuple):
    names: Names
    taken: slice  # of the block
    length: int


def _block_slice(names: Names, cut: AnyCut, number: int, axis_slice: AxisSlice) -> _BlockSlice | None:
    """Return how an *axis_slice* is cut, and what it takes of block *number*."""
    start, count, step = axis_slice
    if cut.blocks == 1:
        return _BlockSlice(names, axis_slice.slice, count)
    if step < 0 and count > 1:
        return None
    step = max(step, 1)
    if cut.is_consecutive:
        boundaries = [min(max(0, -((start - begin) // step)), count) for begin in cut.all_starts()]
        return _consecutive_slice(names, boundaries, number, start - cut.start(number), step)
    return _kept_of_cyclic(names, cut, number, AxisSlice(start, count, step))


def _consecutive_slice(names: Names, boundaries: Sequence[int], number: int, offset: int, step: int) -> _BlockSlice:
    first, last = boundaries[number], boundaries[number + 1]
    taken = AxisSlice(offset + first * step, last - first, step).slice
    return _BlockSlice(cut_at(names, boundaries, boundaries[-1]), taken, last - first)


def _kept_of_cyclic(names: Names, cut: AnyCut, number: int, axis_slice: AxisSlice) -> _BlockSlice | None:
    start, count, step = axis_slice
    assert isinstance(names, Cyclic)
    assert not cut.is_consecutive
    one = np.array([number], dtype=np.intp)
    first = start // cut.block
    if count == 0 or (start + (count - 1) * step) // cut.block == first:  # all in one block
        owner = int(cut.owners(np.array([first], dtype=np.intp))[0])
        boundaries = [count if block > owner else 0 for block in range(cut.blocks + 1)]
        before = int(cut.before(one, start)[0])
        return _consecutive_slice(names, boundaries, number, before, step)
    if step > 1 or start % cut.block:
        return None
    begin, end = int(cut.before(one, start)[0]), int(cut.before(one, start + count)[0])
    spec = Cyclic(tuple(names), cut.block, (cut.offset + first) % cut.blocks)
    return _BlockSlice(spec, slice(begin, end), end - begin)


def _block_of(cut: AnyCut, index: int) -> int:
    if not cut.is_consecutive:
        return int(cut.owners(np.array([index // cut.block], dtype=np.intp))[0])
    return cut.block_of(index)


def _folded_specs(
    specs: Sequence[Names], lengths: Sequence[int], dropped: Sequence[tuple[Names, int, int]], layout: Layout
) -> Axes | None:
    """Return *specs* in which one axis is cut by the mesh dimensions of *dropped* axes, too.

    An axis that is not sharded is taken, if there is one; else one that is cut into consecutive blocks; else None.
    """
    if not dropped:
        return tuple(specs)
    left = Layout(specs, layout.mesh)
    whole = [axis for axis, count in enumerate(left.shape) if count == 1]
    cut = [axis for axis, names in enumerate(specs) if not isinstance(names, Cyclic)]
    if not whole and not cut:
        return None
    axis = max(whole, key=lambda a: lengths[a]) if whole else cut[0]
    names: Names = tuple(specs[axis])
    axis_cut = left.cut(axis, lengths[axis])
    assert axis_cut.is_consecutive
    boundaries = axis_cut.all_starts()
    for others, number, count in dropped:
        names = (*others, *names)
        lacking = [0] * (number * (len(boundaries) - 1))
        filled = [lengths[axis]] * ((count - 1 - number) * (len(boundaries) - 1))
        boundaries = [*lacking, *boundaries, *filled]
    result_specs = list(specs)
    result_specs[axis] = cut_at(names, boundaries, lengths[axis])
    return tuple(result_specs)
