"""Slices of sharded arrays: which layout keeps every element on the device that has it.

An index of NumPy takes a stretch of each axis, or one index of it. A stretch of consecutive blocks gives consecutive
blocks, so the result has `Cuts`. One index of a sharded axis leaves its elements to the devices of one block: the mesh
dimensions of that axis then cut another axis, where all other devices get nothing.

            device 0    device 1    device 2
    t       0 1 2 3     4 5 6       7 8 9
    t[2:8]      0 1     2 3 4       5            Cuts (0, 2, 5, 6)
"""

import operator
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple, TypeAlias

import numpy as np

from meshcomm.core._arguments import counted, quote
from meshcomm.core._types import Names, Shape
from meshcomm.core.layouts.cyclic import AnyCut, CyclicCut
from meshcomm.core.layouts.layout import Axes, Layout
from meshcomm.core.layouts.layout_text import LayoutType
from meshcomm.core.layouts.partition import Consecutive
from meshcomm.core.layouts.specs import Cyclic, cut_at


class Stretch(NamedTuple):
    """The elements start, start + step, ... of an axis, *length* of them."""

    start: int
    length: int
    step: int = 1


Item: TypeAlias = int | Stretch | None
"""One index of an axis, which drops it; a stretch of it; or a new axis of length 1."""

Items: TypeAlias = tuple[Item, ...]
"""An index: an item for each axis in order, and new axes between them."""


class Slice(NamedTuple):
    """A slice that keeps every element on its device.

    Parameters
    ----------
    layout, shape: of the result
    block: for each axis of a block, which elements of it are in the result
    lengths: the shape of the block of the result
    """

    layout: Layout
    shape: Shape
    block: tuple[slice, ...]
    lengths: Shape


def parsed(index: object, shape: Shape) -> Items:
    """Return an *index* of an array of *shape*; ``IndexError`` for what is no basic index, or out of bounds.

    >>> parsed((Ellipsis, -1, None), (4, 5, 6))
    (Stretch(start=0, length=4, step=1), Stretch(start=0, length=5, step=1), 5, None)
    """
    given: tuple[object, ...] = index if isinstance(index, tuple) else (index,)
    ellipses = len([each for each in given if each is Ellipsis])
    taken = len([each for each in given if each is not None]) - ellipses
    if taken > len(shape):
        raise IndexError(
            f"too many indices: {quote(index)} has {taken} for the {counted(len(shape), 'axis')} of shape {shape}"
        )
    if ellipses > 1:
        raise IndexError(f"index {quote(index)} has {ellipses} ellipses (...); one at most")
    rest = (slice(None),) * (len(shape) - taken)
    if ellipses:
        at = next(number for number, each in enumerate(given) if each is Ellipsis)
        full = (*given[:at], *rest, *given[at + 1 :])
    else:
        full = (*given, *rest)
    items: list[Item] = []
    axis = 0
    for each in full:
        items.append(None if each is None else _item(each, axis, shape[axis]))
        axis += each is not None
    return tuple(items)


def _item(index: object, axis: int, length: int) -> Item:
    if isinstance(index, slice):
        try:
            start, stop, step = index.indices(length)
        except (TypeError, ValueError) as error:
            raise type(error)(f"axis {axis}: {quote(index)}: {error}") from None
        return Stretch(start, len(range(start, stop, step)), step)
    if isinstance(index, bool | np.bool_):
        raise IndexError(f"axis {axis}: index {index} is a bool; a mask is a tensor or an array of bool, with axes")
    try:
        number = operator.index(index)  # type: ignore[arg-type]
    except TypeError:
        shape = getattr(index, "shape", None)
        text = quote(index) if shape is None else f"of shape {shape}"
        raise IndexError(
            f"axis {axis}: index {text} is a {type(index).__name__}; an index has integers, slices, ..., None, and "
            "arrays, lists or tensors of integers or bools"
        ) from None
    if not -length <= number < length:
        raise IndexError(f"axis {axis}: index {quote(number)} is out of bounds for {counted(length, 'element')}")
    return number % length


@lru_cache(maxsize=1024)
def index_text(items: Items) -> str:
    """Return an index as a program writes it: the ranks compare it.

    >>> index_text((Stretch(1, 3, 2), None, 4))
    '[1:7:2, None, 4]'
    """
    texts = [
        f"{item.start}:{item.start + item.length * item.step}:{item.step}" if isinstance(item, Stretch) else str(item)
        for item in items
    ]
    return f"[{', '.join(texts)}]"


def result_shape(items: Items) -> Shape:
    """Return the shape that an index gives."""
    return tuple(1 if item is None else item.length for item in items if not isinstance(item, int))


def kept_slice(layout: Layout, shape: Shape, items: Items, device: int | None) -> Slice | None:
    """Return the slice that *items* take of an array of *shape* in *layout*, on *device*; None if elements must move.

    They must, if a step is negative along a sharded axis; if a stretch of blocks dealt round neither begins with a
    block nor lies within one, or has a step; and if an index drops a sharded axis, and no axis can be cut instead.

    Parameters
    ----------
    layout, shape: of the array
    items: the index
    device: whose block is asked about; None for a rank outside of the mesh
    """
    return _kept_slice(layout, id(layout.mesh), shape, items, device)


@lru_cache(maxsize=1024)
def _kept_slice(layout: Layout, mesh: int, shape: Shape, items: Items, device: int | None) -> Slice | None:
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
        stretch = Stretch(item, 1) if isinstance(item, int) else item
        names, cut, number = layout.axes[axis], layout.cut(axis, shape[axis]), numbers[axis]
        found = _kept(names, cut, number, stretch)
        if found is None:
            return None
        if isinstance(item, int):
            if cut.blocks > 1:
                dropped.append((names, _block_of(cut, item), cut.blocks))
        else:
            specs.append(found.names)
            lengths.append(item.length)
            counts.append(found.length)
        block.append(found.taken)
        axis += 1
    found_axes = _folded(specs, lengths, dropped, layout)
    if found_axes is None:
        return None
    is_same = found_axes == layout.axes and layout.type is LayoutType.STATIC  # as equal layouts, this very one
    result = layout if is_same else layout._recut(found_axes)
    of_result = result.block_shape(tuple(lengths), device) if dropped and device is not None else tuple(counts)
    return Slice(result, tuple(lengths), tuple(block), of_result)


class _Kept(NamedTuple):
    names: Names
    taken: slice  # of the block
    length: int


def _kept(names: Names, cut: AnyCut, number: int, stretch: Stretch) -> _Kept | None:
    """Return how a *stretch* of one axis is cut, and what it takes of block *number*."""
    start, count, step = stretch
    if cut.blocks == 1:
        return _Kept(names, as_slice(start, count, step), count)
    if step < 0 and count > 1:
        return None
    step = max(step, 1)
    if isinstance(cut, Consecutive):
        boundaries = [min(max(0, -((start - begin) // step)), count) for begin in cut.all_starts()]
        return _consecutive(names, boundaries, number, start - cut.start(number), step)
    return _kept_of_cyclic(names, cut, number, Stretch(start, count, step))


def _consecutive(names: Names, boundaries: Sequence[int], number: int, offset: int, step: int) -> _Kept:
    first, last = boundaries[number], boundaries[number + 1]
    taken = as_slice(offset + first * step, last - first, step)
    return _Kept(cut_at(names, boundaries, boundaries[-1]), taken, last - first)


def _kept_of_cyclic(names: Names, cut: CyclicCut, number: int, stretch: Stretch) -> _Kept | None:
    start, count, step = stretch
    assert isinstance(names, Cyclic)
    one = np.array([number], dtype=np.intp)
    first = start // cut.block
    if count == 0 or (start + (count - 1) * step) // cut.block == first:  # all in one block
        owner = int(cut.owners(np.array([first], dtype=np.intp))[0])
        boundaries = [count if block > owner else 0 for block in range(cut.blocks + 1)]
        before = int(cut.before(one, start)[0])
        return _consecutive(names, boundaries, number, before, step)
    if step > 1 or start % cut.block:
        return None
    begin, end = int(cut.before(one, start)[0]), int(cut.before(one, start + count)[0])
    spec = Cyclic(tuple(names), cut.block, (cut.offset + first) % cut.blocks)
    return _Kept(spec, slice(begin, end), end - begin)


def as_slice(start: int, count: int, step: int) -> slice:
    """Return the slice of *count* elements from *start* on.

    >>> np.arange(5)[as_slice(3, 4, -1)].tolist()
    [3, 2, 1, 0]
    """
    if count == 0:
        return slice(0, 0)
    stop = start + count * step
    return slice(start, stop if stop >= 0 else None, step)


def _block_of(cut: AnyCut, index: int) -> int:
    if isinstance(cut, CyclicCut):
        return int(cut.owners(np.array([index // cut.block], dtype=np.intp))[0])
    return cut.block_of(index)


def _folded(
    specs: Sequence[Names], lengths: Sequence[int], dropped: Sequence[tuple[Names, int, int]], layout: Layout
) -> Axes | None:
    """Return *specs* in which one axis is cut by the mesh dimensions of *dropped* axes, too.

    An axis that is not sharded is taken, if there is one; else one that is cut into consecutive blocks; else None.
    """
    if not dropped:
        return tuple(specs)
    left = layout._recut(tuple(specs))
    whole = [axis for axis, count in enumerate(left.shape) if count == 1]
    cut = [axis for axis, names in enumerate(specs) if not isinstance(names, Cyclic)]
    if not whole and not cut:
        return None
    axis = max(whole, key=lambda a: lengths[a]) if whole else cut[0]
    names: Names = tuple(specs[axis])
    own = left.cut(axis, lengths[axis])
    assert isinstance(own, Consecutive)
    boundaries = own.all_starts()
    for others, number, count in dropped:
        names = (*others, *names)
        lacking = [0] * (number * (len(boundaries) - 1))
        filled = [lengths[axis]] * ((count - 1 - number) * (len(boundaries) - 1))
        boundaries = [*lacking, *boundaries, *filled]
    found = list(specs)
    found[axis] = cut_at(names, boundaries, lengths[axis])
    return tuple(found)
