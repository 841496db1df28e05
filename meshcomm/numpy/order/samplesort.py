"""The elements of all blocks of a tensor in order, by a sample sort.

    samples of the blocks ──> splitters, the same on all ranks ──> counts ──> one message per pair ──> local sort

Every rank draws samples of its block, in proportion to its length. All ranks sort all samples, and choose every p-th
of them as a splitter: rank k gets the elements between splitters k - 1 and k. An element is not its value alone, but
its value, its rank and where it lies there. So equal elements are shared out evenly, and, if the blocks are in the
order of the global array, the sort is stable.

Before the exchange a rank either sorts its block (`_sorted_first`), and merges the runs that it receives by NumPy's
stable sort, which knows runs. Or it only brings its block into the order of the splitters (`_split`), which is faster
where NumPy sorts with vector instructions, but loses the order of equal elements.

The counts depend on the data. Each rank learns how many bytes it gets before it receives them, and allocates them.
Blocks come out a few elements longer or shorter than those of the usual cut. So a rank allocates the elements of both,
and at last sends those beyond its block of the usual cut to the ranks around it. All others stay where they are.
"""

from collections.abc import Sequence
from math import prod
from typing import Literal, NamedTuple

import numpy as np

from meshcomm.blocks.make import make, on_blocks
from meshcomm.blocks.rows import RowRanks, ranks_along
from meshcomm.core._types import Array, DType, Indices
from meshcomm.core.arrays.dtensor import DTensor
from meshcomm.core.layouts.layout import Layout
from meshcomm.core.layouts.partition import Cut
from meshcomm.core.layouts.specs import Cuts
from meshcomm.core.memory.blocks import new_block
from meshcomm.core.memory.copies import exact_copy
from meshcomm.errors import ShapeError

MAX_SAMPLES, MIN_SAMPLES, ALL_SAMPLES = 4096, 64, 2**17
"""Samples of a rank in a sort, on average: as many as make ALL_SAMPLES, within limits. 4,096 leave blocks 2 %
uneven."""

COUNTED_AT_ONCE = 2**15
"""Elements that a sort compares at once, twice: few enough to stay in the caches."""

_COUNT = np.dtype(np.int64)
_SPARE = 8
"""Blocks are made even within the sort if a rank needs at most this fraction of a block more; else by a relayout."""


class Splitters(NamedTuple):
    """The elements at which the global order is cut: their values, and where they come from.

    Parameters
    ----------
    values: ascending array of the splitters
    ranks: position in the group of the rank that holds each splitter
    indices: index of each splitter in the block of that rank
    """

    values: Array
    ranks: Indices
    indices: Indices

    def ties(self, run: slice, rank: int, equal: Indices | int, share: Array) -> Indices:
        """Return how many elements of *rank* that are equal to a splitter are before it.

        Parameters
        ----------
        run: slice of the splitters
        rank: position of a rank in the group
        equal: number of elements equal to each of them
        share: result for splitters that are from this rank itself
        """
        ranks = self.ranks[run]
        return np.where(ranks > rank, equal, np.where(ranks < rank, 0, share)).astype(np.intp)


class InOrder(NamedTuple):
    """The elements of a tensor in order: two tensors of one axis in a layout with `Cuts`.

    Parameters
    ----------
    values: sorted elements
    indices: flat index of each element in the global array in C order; None if not asked for
    """

    values: DTensor
    indices: DTensor | None


def in_order(name: str, tensor: DTensor, *, stable: bool, indexed: bool) -> InOrder:
    """Return the elements of *tensor* in order. Collective over the mesh.

    Parameters
    ----------
    name: name of the operation, for messages
    tensor: sharded tensor that is not empty. If *stable* or *indexed*, its blocks must be consecutive
        and their numbers ascend with their devices: as `in_flat_order` makes them
    stable: whether equal elements stay in their order; they always do with *indexed*
    indexed: whether to return the indices
    """
    mesh, layout = tensor.mesh, tensor.layout
    names = layout.sharding_dims
    how = f"{', stable' * stable}{', with indices' * indexed}"
    call = f"{name}{how} of {tensor.shape} {tensor.dtype} in {layout.specs_text}"

    def ordered(block: Array) -> tuple[Sequence[Array | None], list[int]]:
        def check() -> None:
            expected = layout.block_shape(tensor.shape), tensor.dtype
            if (block.shape, block.dtype) != expected:
                raise ShapeError(f"the block is {block.shape} {block.dtype}, but by its layout {expected}")

        with ranks_along(name, mesh, names, call) as ranks:
            ranks.agree_on_result(check)
            return _Sort(ranks, tensor.size).run(block.reshape(-1), _flat_indices(tensor) if indexed else None, stable)

    usual = Layout([names], mesh)
    even = np.diff(usual.cut(0, tensor.size).consecutive.all_starts()).tolist()
    blocks, lengths = on_blocks(ordered, tensor) or ([None, None], even)
    result = usual if lengths == even else Layout([Cuts(names, sizes=lengths)], mesh)
    values = make(blocks[0], result, (tensor.size,), tensor.dtype)
    return InOrder(values, make(blocks[1], result, (tensor.size,), np.dtype(np.intp)) if indexed else None)


def _flat_indices(tensor: DTensor) -> Indices:
    """Return the indices of this block in the global array in C order."""
    box = tensor.layout.block_box(tensor.shape)
    axis = next(axis for axis in range(tensor.ndim) if tensor.layout.num_shards(axis) > 1)
    row = prod(tensor.shape[axis + 1 :])
    start, stop = box[axis][:2]
    return np.arange(start * row, stop * row, dtype=np.intp)


class _Sort(NamedTuple):
    """One sample sort on this rank.

    Parameters
    ----------
    ranks: ranks that share the elements
    size: number of elements on all of them
    """

    ranks: RowRanks
    size: int

    def run(self, block: Array, indices: Indices | None, stable: bool) -> tuple[list[Array], list[int]]:
        """Return what this rank gets: values, and indices if there are; and the lengths of all. Collective."""
        early = indices is not None or block.dtype.kind not in "biufmM" or (stable and block.dtype.kind == "f")
        arrays, cuts = self._sorted_first(block, indices) if early else self._split(block)
        exchanged = self._own_elements(arrays, np.diff(cuts, prepend=0, append=len(block)))
        received = exchanged.received()
        if indices is None:
            received[0].sort(kind="stable" if early else kind_to_sort(block.dtype))
        else:
            order = np.argsort(received[0], kind="stable")
            for array in received:
                array[...] = array[order]
        return exchanged.evened()

    def _sorted_first(self, block: Array, indices: Indices | None) -> tuple[list[Array], Indices]:
        """Return the arrays to send, sorted, and where the splitters cut them. Collective."""
        if indices is None:
            arrays = [np.sort(block, kind="stable")]
        else:
            order = _stable_order(block)
            arrays = [block[order], indices[order]]
        values = arrays[0]
        splitters = self._splitters(values)
        before = np.searchsorted(values, splitters.values, side="left")
        equal = np.searchsorted(values, splitters.values, side="right") - before
        return arrays, before + splitters.ties(slice(None), self.ranks.position, equal, splitters.indices - before)

    def _split(self, block: Array) -> tuple[list[Array], Indices]:
        """Return the block to send, in the order of the splitters only, and where they cut it. Collective."""
        splitters, array = self._splitters(block), exact_copy(block)
        shares = splitters.indices / max(1, len(block))  # of the equal elements, those before the splitter
        cuts = np.empty(len(splitters.values), dtype=np.intp)
        runs = np.flatnonzero(_run_starts(splitters.values)).tolist()

        pending = [(0, len(runs) - 1, 0, len(array))]  # runs of equal splitters, and the elements to split there
        while pending:
            first, last, start, stop = pending.pop()
            if first >= last:
                continue
            middle = (first + last) // 2
            run = slice(runs[middle], runs[middle + 1])
            piece, value = array[start:stop], splitters.values[runs[middle]]
            less, equal = _counts_before(piece, value)
            cut_points = start + less + splitters.ties(run, self.ranks.position, equal, shares[run] * equal)
            cuts[run] = cut_points
            for cut, begin in ((cut_points[0], start), (cut_points[-1], cut_points[0])):
                if begin < cut < stop:
                    array[begin:stop].partition(cut - begin)
            pending += [(first, middle, start, cut_points[0]), (middle + 1, last, cut_points[-1], stop)]
        return [array], cuts

    def _splitters(self, block: Array) -> Splitters:
        """Return the elements that cut the global order into equal blocks, one fewer than ranks. Collective."""
        from numpy.random import default_rng  # by np.random, two threads at once could end in a RecursionError

        count = self.ranks.size
        per_rank = min(MAX_SAMPLES, max(MIN_SAMPLES, ALL_SAMPLES // count))
        number = min(len(block), -(-per_rank * count * len(block) // self.size))
        # One at random from each of equal intervals: the same ones in every run.
        draws = np.arange(number) + default_rng([self.ranks.position, len(block)]).random(number)
        indices = np.minimum((draws * (len(block) / max(1, number))).astype(np.intp), len(block) - 1)
        message = np.array([number], _COUNT).tobytes() + indices.tobytes() + block[indices].tobytes()
        samples = [_parsed_samples(text, block) for text in self.ranks.allgather(message)]
        ranks = np.repeat(np.arange(count), [len(values) for values, _ in samples])
        values, at = (np.concatenate(arrays) for arrays in zip(*samples, strict=True))
        order = np.argsort(values, kind="stable")  # equal ones by rank, and by index there
        chosen = order[np.arange(1, count) * len(order) // count]
        return Splitters(values[chosen], ranks[chosen], at[chosen])

    def _own_elements(self, arrays: list[Array], counts: Indices) -> "_ReceivedElements":
        """Return the elements of *arrays* that are for this rank, from all. Collective.

        Parameters
        ----------
        arrays: arrays of one length; the elements for each rank follow those for the rank before it
        counts: number of elements for each rank
        """
        ranks = self.ranks
        arriving = ranks.exchanged_counts(counts)
        texts = ranks.communicator.allgather(np.array([arriving.sum()], _COUNT).tobytes())
        uneven = np.cumsum([0, *(int(np.frombuffer(text, _COUNT)[0]) for text in texts)])
        even = np.array(Cut(self.size, ranks.size).all_starts())
        if np.abs(uneven - even).max() > self.size // ranks.size // _SPARE:
            even = uneven
        starts, stops = np.array([uneven, even])[:, ranks.position : ranks.position + 2].T
        first, length = starts.min(), int(stops.max() - starts.min())
        buffers = ranks.agree_on_result(
            lambda: [new_block((length,), array.dtype) for array in arrays], f"the counts of {ranks.call}"
        )
        exchanged = _ReceivedElements(ranks, buffers, uneven - first, even - first)
        for array, into in zip(arrays, exchanged.received(), strict=True):
            ranks.exchanged(np.ascontiguousarray(array), counts, into, arriving)
        return exchanged


class _ReceivedElements(NamedTuple):
    """What a rank has received: arrays with free space around for what ranks around it send to make blocks even.

    Parameters
    ----------
    ranks: ranks that exchange elements
    buffers: buffer for each array
    received_at, even: starts of the elements of each rank in these buffers, and the end of the last ones: as received,
        and in blocks of the usual cut
    """

    ranks: RowRanks
    buffers: list[Array]
    received_at: Indices
    even: Indices

    def received(self) -> list[Array]:
        """Return the elements that this rank has received."""
        return [buffer[self._own_slice(self.received_at)] for buffer in self.buffers]

    def evened(self) -> tuple[list[Array], list[int]]:
        """Return the block of this rank, and the lengths of all. Collective."""
        blocks = [buffer[self._own_slice(self.even)] for buffer in self.buffers]
        if not np.array_equal(self.received_at, self.even):
            sent, arriving = self._counts(self.received_at, self.even), self._counts(self.even, self.received_at)
            for array, into in zip(self.received(), blocks, strict=True):
                self.ranks.exchanged(array, sent, into, arriving)  # what stays is not copied
        return blocks, np.diff(self.even).tolist()

    def _own_slice(self, starts: Indices) -> slice:
        return slice(*starts[self.ranks.position :][:2])

    def _counts(self, starts: Indices, others: Indices) -> Indices:
        """Return how many elements of this rank's block by *starts* each rank has by *others*."""
        block = self._own_slice(starts)
        return np.array(np.diff(np.clip(others, block.start, block.stop)), np.intp)


def kind_to_sort(dtype: DType) -> Literal["stable"] | None:
    """Return the kind of NumPy's sort for elements whose order does not matter if they are equal.

    By default NumPy 2.4.6 sorts float16 wrongly on processors with AVX-512, such as 513 values of -1 and -0.0.
    """
    return "stable" if dtype.char == "e" else None


def _parsed_samples(text: bytes, like: Array) -> tuple[Array, Indices]:
    """Return the samples that a rank tells: their values, of the dtype of *like*, and their indices."""
    count = int(np.frombuffer(text, _COUNT, 1)[0])
    after = _COUNT.itemsize * (1 + count)
    return np.frombuffer(text, like.dtype, count, after), np.frombuffer(text, _COUNT, count, _COUNT.itemsize)


def _run_starts(values: Array) -> Array:
    """Return where ascending *values* differ from the one before; at both ends they do. NaN is equal to NaN."""
    changes = (values[1:] != values[:-1]) & ((values[1:] == values[1:]) | (values[:-1] == values[:-1]))
    ends = np.ones(min(1, len(values)), dtype=bool)
    return np.concatenate([ends, changes, np.ones(1, dtype=bool)])


def _stable_order(values: Array) -> Indices:
    """Return the indices that sort *values*, with equal ones in their order.

    For most dtypes NumPy's other sort is twice as fast. Then only the indices of equal elements have to be sorted.
    """
    if values.dtype.kind not in "iufmM" or values.itemsize < 4 or len(values) > 2**31:
        return np.argsort(values, kind="stable")
    order = np.argsort(values)
    first = _run_starts(values[order])[:-1]  # the first of elements that are equal
    tied = ~first
    tied[:-1] |= tied[1:].copy()
    if tied.any():
        runs = np.cumsum(first[tied]) * len(values)
        order[tied] = np.sort(runs + order[tied]) - runs
    return order


def _counts_before(array: Array, value: object) -> tuple[int, int]:
    """Return how many elements are before *value* in the order of NumPy's sort, and how many are equal to it."""
    less = equal = 0
    for start in range(0, len(array), COUNTED_AT_ONCE):
        few = array[start : start + COUNTED_AT_ONCE]
        if value != value:  # NaN, which is last
            same = len(few) - int(np.count_nonzero(few == few))
            less += len(few) - same
        else:
            same = int(np.count_nonzero(few == value))
            less += int(np.count_nonzero(few < value))
        equal += same
    return less, equal


def elements_at(name: str, ordered: DTensor, indices: Indices) -> Array | None:
    """Return these elements of a tensor that `in_order` made, on every rank of the mesh. Collective over the mesh."""
    layout = ordered.layout
    call = f"{name} of {ordered.dtype} at {indices.tolist()} of {ordered.size}"
    starts = np.array(layout.cut(0, ordered.size).consecutive.all_starts()[:-1])
    owners = np.searchsorted(starts, indices, side="right") - 1

    def checked(block: Array) -> Array:
        with ranks_along(name, ordered.mesh, layout.axes[0], call) as ranks:
            mine = indices[owners == ranks.position] - starts[ranks.position]
            texts = ranks.allgather(ranks.agree_on_result(lambda: block[mine].tobytes()))
        elements = np.empty(len(indices), ordered.dtype)
        for number, text in enumerate(texts):
            elements[owners == number] = np.frombuffer(text, ordered.dtype)
        return elements

    return on_blocks(checked, ordered)
