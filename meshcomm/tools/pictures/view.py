"""The content of a picture of a layout: axes cut into intervals, boxes of elements, the devices that hold each box.

Text and SVG are both drawn from a `LayoutView`. Nothing here grows with the number of devices, except the list of
replicas of one block: only drawn intervals are computed, one by one.
"""

from collections.abc import Sequence
from itertools import groupby
from math import prod
from typing import NamedTuple

import numpy as np

from meshcomm.core._types import Indices, Names
from meshcomm.core.layouts.axes import refuse_match
from meshcomm.core.layouts.coordinates import devices_with, numbers_of, replica_count, single_index
from meshcomm.core.layouts.cyclic import AnyCut
from meshcomm.core.layouts.layout import Layout
from meshcomm.core.layouts.mesh import Mesh
from meshcomm.core.layouts.partition import Cut
from meshcomm.core.layouts.specs import fixed_length

MAX_LISTED = 3
"""The most runs of consecutive devices in a list; a longer list is shortened to the first two and the last one."""


class BlockInterval(NamedTuple):
    """Consecutive indices of an axis, all of one block: *start* to *stop*, or None if the length is not known.

    In the picture of a mesh it is a coordinate along *dimension*.
    """

    start: int | None
    stop: int | None
    block: int
    dimension: str = ""

    @property
    def text(self) -> str:
        """The indices as a slice; if the length is not known, the number of the block or the coordinate.

        >>> BlockInterval(0, 3, 0).text, BlockInterval(None, None, 2).text, BlockInterval(None, None, 2, "x").text
        ('0:3', 'block 2', 'x=2')
        """
        if self.start is None:
            return f"{self.dimension}={self.block}" if self.dimension else f"block {self.block}"
        text = f"{self.start}:{self.stop}"
        return text if len(text) <= 21 else f"{self.start}:"


class Ruler:
    """One axis of an array, as the intervals into which its cut divides it, in order. Empty blocks have no interval.

    If the length of the axis is not known, *cut* is None, and there is one interval for each block.

    >>> ruler = Ruler(Cut(5, 8), 8)
    >>> ruler.count, ruler.interval(4), ruler.interval_numbers(1, 3)
    (5, BlockInterval(start=4, stop=5, block=4, dimension=''), range(1, 3))
    """

    def __init__(self, cut: AnyCut | None, blocks: int, dimension: str = "") -> None:
        self.cut, self.blocks, self.dimension = cut, blocks, dimension
        self.count = blocks if cut is None else cut.runs

    def interval(self, number: int) -> BlockInterval:
        """Return the interval with this *number*, from 0."""
        return (
            BlockInterval(None, None, number, self.dimension)
            if self.cut is None
            else BlockInterval(*self.cut.run(number))
        )

    def interval_numbers(self, start: int, stop: int) -> range:
        """Return the numbers of the intervals that share an index with ``start:stop``, which is not empty."""
        assert self.cut is not None
        return self.cut.runs_within(start, stop)

    def nonempty_blocks(self) -> Indices:
        """Return 1 for each block that has elements, and 0 for empty ones."""
        if self.cut is None:
            return np.ones(self.blocks, dtype=np.intp)
        return (self.cut.lengths(np.arange(self.blocks, dtype=np.intp)) > 0).astype(np.intp)


class LayoutView:
    """A layout, and the shape of an array or None, as pictures show them.

    A picture draws *row_axis* down and *column_axis* across; None stands for no axis. *slabs* are the other axes that
    are cut: there is a picture for each combination of their intervals.

    Parameters
    ----------
    layout: the layout; it has no axis with the spec MATCH
    shape: the shape of the array
    cut: the axes to draw first; by default those that the layout cuts
    """

    def __init__(self, layout: Layout, shape: Sequence[int] | None = None, cut: Sequence[int] | None = None) -> None:
        refuse_match(layout)
        self.layout, self.shape = layout, None if shape is None else tuple(shape)
        is_single = layout.is_single_device()
        if shape is not None:
            layout.block_shape(shape, 0)  # checks the shape
        self.ndim = layout.ndim if shape is None else len(shape)
        self.axes: tuple[Names, ...] = ((),) * self.ndim if is_single else layout.axes
        self.rulers = [self._ruler(axis) for axis in range(self.ndim)]
        self.row_axis, self.column_axis, self.slabs = grid_axes(self.ndim, self.cut_axes if cut is None else cut)
        self.replicas = 1 if is_single else replica_count(layout)
        replica_numbers = np.arange(self.replicas, dtype=np.intp)
        zero_blocks = np.zeros((self.replicas, self.ndim), dtype=np.intp)
        self._first_devices: dict[tuple[int, ...], int] = {}
        self._replica_offsets = (
            single_index(0) if is_single else np.sort(devices_with(layout, zero_blocks, replica_numbers))
        )

    def _ruler(self, axis: int) -> Ruler:
        if self.layout.is_single_device():
            return Ruler(None if self.shape is None else Cut(self.shape[axis], 1), 1)
        blocks = self.layout.num_shards(axis)
        length = self.shape[axis] if self.shape is not None else fixed_length(self.axes[axis])
        return Ruler(None if length is None else self.layout.cut(axis, length), blocks)

    @property
    def cut_axes(self) -> list[int]:
        """The axes that are cut into several blocks."""
        return [axis for axis, ruler in enumerate(self.rulers) if ruler.blocks > 1]

    def intervals(self, axis: int | None, limit: int) -> list[BlockInterval | None]:
        """Return the intervals of an axis that are drawn, with None for those left out; one, if *axis* is None."""
        if axis is None:
            return [BlockInterval(0, 1, 0)]
        ruler = self.rulers[axis]
        return [None if number is None else ruler.interval(number) for number in shown_numbers(ruler.count, limit)]

    def first_device(self, blocks: Sequence[int]) -> int:
        """Return the first device that holds the block with these numbers, one for each axis."""
        if self.layout.is_single_device():
            return 0
        key = tuple(blocks)
        if key not in self._first_devices:
            numbers = np.array(key, dtype=np.intp).reshape(1, -1)
            self._first_devices[key] = int(devices_with(self.layout, numbers, single_index(0))[0])
        return self._first_devices[key]

    def devices(self, blocks: Sequence[int]) -> str:
        """Return the devices that hold the block with these numbers, as text."""
        return listed(self._replica_offsets + self.first_device(blocks))

    def axis_name(self, axis: int) -> str:
        """Return the name of an axis in texts."""
        return f"axis {axis}"

    # -- in words -----------------------------------------------------------------------------------------------------

    @property
    def mesh_text(self) -> str:
        """The mesh: its dimensions and their sizes, or its one device."""
        mesh = self.layout.mesh
        return f"mesh {mesh.dims_text}" if mesh.dims else mesh.single_device

    def sentences(self) -> list[str]:
        """Return a description of the picture in words."""
        ndim = self.ndim
        size = self.layout.mesh.size
        if self.shape is None and self.layout.is_single_device():
            return [f"Arrays on {self.mesh_text}: one device holds all of each."]
        subject = str(self.shape) if self.shape is not None else f"{ndim} ax{'i' if ndim == 1 else 'e'}s"
        sentences = [f"{subject} on {self.mesh_text}: {', '.join(self._axis_texts()) or 'one element'}."]
        if not self.cut_axes:
            sentences.append(f"All {size} devices hold all of it." if size > 1 else "One device holds all of it.")
        else:
            sentences.append(f"Each block is on {f'{self.replicas} devices' if self.replicas > 1 else 'one device'}.")
        return sentences + self._empty_text() + self.ranks_text()

    def _axis_texts(self) -> list[str]:
        texts = []
        for is_whole, group in groupby(range(self.ndim), lambda axis: not self.axes[axis]):
            axes = list(group)
            if is_whole and len(axes) == 1:
                texts.append(f"axis {axes[0]} is whole")
            elif is_whole:
                texts.append(f"axes {', '.join(map(str, axes[:-1]))} and {axes[-1]} are whole")
            else:
                texts += [self._cut_text(axis) for axis in axes]
        return texts

    def _cut_text(self, axis: int) -> str:
        names, ruler = self.axes[axis], self.rulers[axis]
        over_text = f"over {'+'.join(names)}"
        cyclic = self.layout.cyclic(axis)
        if cyclic is not None:
            return f"axis {axis} is dealt round {over_text} in blocks of {_counted_text(cyclic.block, 'element')}"
        boundaries_text = "" if fixed_length(names) is None else " at chosen boundaries"
        text = f"axis {axis} is cut{boundaries_text} {over_text} into {_counted_text(ruler.blocks, 'block')}"
        if ruler.cut is None:
            return text
        shortest, longest = ruler.cut.shortest, ruler.cut.longest
        sizes = (
            f"{shortest:,} to {longest:,}"
            if longest - shortest > 1
            else f"{longest:,} or {shortest:,}"
            if longest > shortest
            else ""
        )
        return f"{text} of {f'{sizes} elements' if sizes else _counted_text(longest, 'element')}"

    def _empty_text(self) -> list[str]:
        if all(ruler.cut is None or ruler.cut.shortest > 0 for ruler in self.rulers):
            return []
        if any(ruler.count == 0 for ruler in self.rulers):
            return ["There are no elements: all blocks are empty."]
        devices = np.arange(self.layout.mesh.size, dtype=np.intp)
        numbers, has_elements = numbers_of(self.layout, devices), np.ones_like(devices)
        for axis, ruler in enumerate(self.rulers):
            has_elements *= ruler.nonempty_blocks()[numbers[:, axis]]
        empty = devices[has_elements == 0]
        return [f"{_counted_text(len(empty), 'device')} of {len(devices):,} without elements: {listed(empty)}."]

    def ranks_text(self) -> list[str]:
        """Return a sentence about the ranks of the devices, or an empty list if device d is rank d."""
        ranks = self.layout.mesh.ranks
        if isinstance(ranks, range):
            return [f"Device 0 is rank {ranks.start}, and so on."] if ranks.start else []
        first_ranks = ", ".join(map(str, ranks[:8]))
        return [f"The devices are the ranks {first_ranks}{', ...' if len(ranks) > 8 else ''}."]


class MeshView(LayoutView):
    """A mesh as pictures show it: its dimensions are the axes, and each box is a device."""

    def __init__(self, mesh: Mesh) -> None:
        super().__init__(Layout(mesh.dim_names, mesh) if mesh.dims else Layout.from_single_device_mesh(mesh))

    def _ruler(self, axis: int) -> Ruler:
        return Ruler(None, *self.layout.mesh.dims[axis][::-1])

    def axis_name(self, axis: int) -> str:
        """Return the name of a mesh dimension in texts."""
        return f"dimension {self.layout.mesh.dim_names[axis]}"

    def sentences(self) -> list[str]:
        """Return a description of the picture in words."""
        return [f"{self.mesh_text}: {_counted_text(self.layout.mesh.size, 'device')}.", *self.ranks_text()]


def grid_axes(ndim: int, cut_axes: Sequence[int]) -> tuple[int | None, int | None, list[int]]:
    """Return the axis to draw down, the axis to draw across, and the axes of slabs, if *cut_axes* are cut.

    The last two axes that are cut are drawn, as NumPy prints the last two axes of an array.

    >>> grid_axes(2, [0]), grid_axes(3, [0, 2]), grid_axes(4, [0, 1, 3]), grid_axes(1, [])
    ((0, 1, []), (0, 2, []), (1, 3, [0]), (None, 0, []))
    """
    if ndim < 2:
        return None, 0 if ndim else None, []
    if len(cut_axes) >= 2:
        return cut_axes[-2], cut_axes[-1], list(cut_axes[:-2])
    last_axis = min(cut_axes[0] + 1, ndim - 1) if cut_axes else ndim - 1
    return last_axis - 1, last_axis, []


def shown_numbers(count: int, limit: int) -> list[int | None]:
    """Return the numbers below *count*, at most *limit* of them; None stands for those left out.

    >>> shown_numbers(3, 3), shown_numbers(9, 4)
    ([0, 1, 2], [0, 1, 2, None, 8])
    """
    if count <= limit:
        return list(range(count))
    head_count = max(1, limit - max(1, limit // 3)) if limit > 1 else 1
    return [*range(head_count), None, *range(count - (limit - head_count), count)]


def listed(numbers: Indices) -> str:
    """Return ascending *numbers* as short text.

    >>> listed(np.array([0, 1, 2, 5])), listed(np.arange(0, 20, 2)), listed(np.array([7]))
    ('0-2,5', '0,2,...,18', '7')
    """
    run_ends = np.flatnonzero(np.diff(numbers) != 1)
    if len(run_ends) >= MAX_LISTED:
        last_positions = [*run_ends[:2], -1]
        first_positions = [0, int(run_ends[0]) + 1, int(run_ends[-1]) + 1]
    else:
        last_positions, first_positions = [*run_ends, -1], [0, *(int(run_end) + 1 for run_end in run_ends)]
    runs = [
        _run_text(int(numbers[first]), int(numbers[last]))
        for first, last in zip(first_positions, last_positions, strict=True)
    ]
    return ",".join([*runs[:2], "...", *runs[2:]] if len(run_ends) >= MAX_LISTED else runs)


def _run_text(first: int, last: int) -> str:
    return str(first) if first == last else f"{first}-{last}"


def _counted_text(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'s' * (number != 1)}"


def wrapped(text: str, width: int) -> list[str]:
    """Return *text* in lines of at most *width* characters, cut at spaces; a longer word is cut.

    >>> wrapped("one two three", 7)
    ['one two', 'three']
    """
    lines: list[str] = []
    for word in (
        full_word[start : start + width] for full_word in text.split() for start in range(0, len(full_word), width)
    ):
        if lines and len(lines[-1]) + 1 + len(word) <= width:
            lines[-1] += f" {word}"
        else:
            lines.append(word)
    return lines


class SlabPanel(NamedTuple):
    """One picture of a view. *slab* has its interval on each slab axis; it is empty if there are no slab axes."""

    slab: dict[int, BlockInterval]

    @property
    def title(self) -> str:
        """The location of the slab.

        >>> SlabPanel({0: BlockInterval(0, 3, 0), 1: BlockInterval(4, 6, 1)}).title
        'axis 0 at 0:3, axis 1 at 4:6'
        """
        return ", ".join(
            interval.text if interval.dimension else f"axis {axis} at {interval.text}"
            for axis, interval in self.slab.items()
        )


def panels(view: LayoutView, limit: int) -> list[SlabPanel | None]:
    """Return the pictures of a view, at most *limit* of them; None stands for those left out."""
    counts = [view.rulers[axis].count for axis in view.slabs]
    pictures: list[SlabPanel | None] = []
    for number in shown_numbers(prod(counts), limit):
        if number is None:
            pictures.append(None)
            continue
        slab: dict[int, BlockInterval] = {}
        for axis, count in zip(reversed(view.slabs), reversed(counts), strict=True):
            number, interval_number = divmod(number, count)
            slab[axis] = view.rulers[axis].interval(interval_number)
        pictures.append(SlabPanel(dict(reversed(slab.items()))))
    return pictures


def blocks_of(
    view: LayoutView, panel: SlabPanel, row: BlockInterval | None, column: BlockInterval | None
) -> list[int]:
    """Return the numbers, along each axis, of the block that has the elements in one box of a picture."""
    numbers = [0] * view.ndim
    for axis, interval in [*panel.slab.items(), (view.row_axis, row), (view.column_axis, column)]:
        if axis is not None and interval is not None:
            numbers[axis] = interval.block
    return numbers
