"""Collective operations on plain arrays, over the groups of a group assignment.

Each one moves boxes of a block between the ranks of a group, with `Exchange` (MPI_Alltoallv) or `Gather`
(MPI_Allgatherv); a relayout is composed from the same two. Boxes that lie consecutively in a block are sent from it
and received in it directly, all others are packed and unpacked.

``group_assignment`` is an integer array of shape (groups, ranks per group): each row is a group, in the order that
decides positions; all ranks of the communicator must stand in it, once. None is one group of all ranks.
"""

import threading
from collections.abc import Callable, Hashable, Iterable
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from meshcomm import _late, guard
from meshcomm._kernels import BoxCopies, Packing
from meshcomm.blocks import block_start
from meshcomm.context import world_of
from meshcomm.errors import DTypeError, GroupError, ShapeError
from meshcomm.groups import LARGEST_COUNT, Bytes, Counts, Group, Team
from meshcomm.plan import Boxes, Indices, as_dtype

if TYPE_CHECKING:
    from mpi4py import MPI

Assignment = tuple[tuple[int, ...], ...]
Array = NDArray[Any]

SCRATCH_KEPT = 2**24
_scratch = threading.local()


def as_bytes(block: Array) -> Bytes:
    """Return the bytes of a C-contiguous *block*, sharing its memory. Local."""
    if block.dtype.itemsize == 0:
        return np.empty(0, dtype=np.uint8)
    return block.reshape(-1).view(np.uint8)


def as_block(data: Bytes, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """Return *data* as a C-contiguous array, sharing its memory. Local."""
    return np.ndarray(shape, dtype, data)


def opaque(array: Array) -> Array:
    """Return *array* as elements without fields: NumPy copies structured ones field by field, not every bit. Local."""
    return array if array.dtype.names is None else array.view(np.dtype((np.void, array.dtype.itemsize)))


def exact_copy(array: Array) -> Array:
    """Return a C-contiguous copy of *array*, bit for bit. Local."""
    return opaque(array).copy(order="C").view(array.dtype)


def scratch(use: str, size: int) -> Bytes:
    """Return *size* bytes to write to until the next call for the same *use* by this thread. Local.

    Up to 16 MiB are kept from call to call; more is made each time.
    """
    if size > SCRATCH_KEPT:
        return np.empty(size, dtype=np.uint8)
    kept: Bytes | None = getattr(_scratch, use, None)
    if kept is None or len(kept) < size:
        kept = np.empty(size, dtype=np.uint8)
        setattr(_scratch, use, kept)
    return kept[:size]


class Program(NamedTuple):
    """A call that all ranks agreed on, ready to run; *number* is the same on every rank."""

    run: Callable[[Array], Array]
    number: int


class Side(NamedTuple):
    """How boxes lie in a block, and in the buffer that MPI sees: the block itself unless `copies` are needed."""

    copies: Packing | None
    buffer_size: int
    counts: Counts
    offsets: Counts
    size: int  # of the block


def _block_strides(shape: tuple[int, ...], itemsize: int) -> Indices:
    strides = np.ones(len(shape), dtype=np.intp)
    if len(shape) > 1:
        strides[:-1] = np.cumprod(shape[:0:-1])[::-1]
    return strides * itemsize


def _in_block(shape: tuple[int, ...], itemsize: int, starts: Indices) -> tuple[Indices, Indices]:
    """Return the byte offset and the strides of boxes that begin at *starts* in a block of *shape*."""
    strides = _block_strides(shape, itemsize)
    return starts @ strides, np.broadcast_to(strides, starts.shape)


def _packed(extents: Indices, itemsize: int) -> tuple[Indices, Indices, Indices]:
    """Return the sizes, offsets and strides of boxes of *extents* that lie one after the other."""
    lengths = np.ones((extents.shape[0], extents.shape[1] + 1), dtype=np.intp)
    lengths[:, :-1] = extents
    strides = np.cumprod(lengths[:, ::-1], axis=1)[:, ::-1] * itemsize
    sizes = strides[:, 0]
    return sizes, np.cumsum(sizes) - sizes, strides[:, 1:]


def _nbytes(shape: tuple[int, ...], itemsize: int) -> int:
    for n in shape:
        itemsize *= n
    return itemsize


def _as_counts(numbers: Indices, limit: int) -> Counts:
    largest = int(numbers.max(initial=0))
    if largest > limit:
        raise ShapeError(
            f"an exchange of {largest} bytes with one rank needs an MPI with large counts (MPI 4), which this is not"
        )
    # mpi4py reads short lists faster than arrays, and long arrays faster than lists.
    return numbers.tolist() if len(numbers) <= 16 else numbers.astype(np.int64)


def _side(group: Group, shape: tuple[int, ...], itemsize: int, boxes: Boxes) -> Side:
    """Return how *boxes* of a block are sent or received: in place if they can be, else packed."""
    size = _nbytes(shape, itemsize)
    extents = boxes.stops - boxes.starts
    offsets, strides = _in_block(shape, itemsize, boxes.starts)
    sizes, packed_offsets, _ = _packed(extents, itemsize)
    copies = Packing((size,), itemsize, np.zeros_like(offsets), offsets, strides, extents)
    buffer_size = copies.nbytes
    if copies.contiguous:
        packed_offsets, buffer_size = offsets, size
    counts, places = np.zeros((2, len(group.members)), dtype=np.intp)
    counts[boxes.peers] = sizes
    places[boxes.peers] = np.where(sizes > 0, packed_offsets, 0)
    limit = 2**62 if group.team.large_counts else LARGEST_COUNT
    return Side(
        None if copies.contiguous else copies, buffer_size, _as_counts(counts, limit), _as_counts(places, limit), size
    )


class Exchange:
    """Boxes of a block to ranks of a group, and boxes of theirs into a new block: one MPI_Alltoallv. Local to make.

    *place* is this rank's place in the group. Boxes are given in indices of the block that they lie in; what this rank
    sends to itself is copied once, from block to block.
    """

    def __init__(
        self,
        group: Group,
        place: int,
        itemsize: int,
        shape: tuple[int, ...],
        sends: Boxes,
        target_shape: tuple[int, ...],
        receives: Boxes,
    ) -> None:
        self.group = group
        mine, own = (np.flatnonzero((boxes.peers == place).any(axis=0)) for boxes in (sends, receives))
        self._own = copy_of_box(itemsize, shape, sends, mine, target_shape, receives, own) if len(mine) else None
        # A box that others need too stays among those that are packed.
        kept = _without(sends, mine) if len(sends.peers) == 1 else sends
        self.send = _side(group, shape, itemsize, kept)
        self.receive = _side(group, target_shape, itemsize, _without(receives, own))
        if len(sends.peers) > 1:
            self.send.counts[place] = 0
        self._alone = len(group.members) == 1

    def run(self, source: Bytes) -> Bytes:
        """Return the new block. Collective over the group."""
        send, receive = self.send, self.receive
        target = np.empty(receive.size, dtype=np.uint8)
        if not self._alone:
            data, into = outgoing(send, source), incoming(receive, target)
            self.communicate(data, into)
            self.finish(source, into, target)
        elif self._own is not None:
            self._own.run([source], [target])
        return target

    def communicate(self, data: Bytes, into: Bytes) -> None:
        """Send from one buffer and receive in the other. Collective over the group."""
        send, receive = self.send, self.receive
        self.group.communicator().alltoallv(data, send.counts, send.offsets, into, receive.counts, receive.offsets)

    def finish(self, source: Bytes, into: Bytes, target: Bytes) -> None:
        """Put what was received *into* a buffer, and what stays here, into the new block. Local."""
        if self.receive.copies is not None:
            self.receive.copies.unpack(into, [target])
        if self._own is not None:
            self._own.run([source], [target])


class Permute(Exchange):
    """An exchange in which every rank of the group sends to one rank at most, and receives from one at most.

    Two messages between those who have something to say, instead of a collective call among all.
    """

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._to, self._sent = _only(self.send)
        self._source, self._received = _only(self.receive)

    def communicate(self, data: Bytes, into: Bytes) -> None:
        """Send from one buffer and receive in the other. Collective over the group."""
        self.group.communicator().permute(data[self._sent], self._to, into[self._received], self._source)


def _only(side: Side) -> tuple[int | None, slice]:
    """Return the one place that a side has bytes for, if any, and where they are."""
    place = next((place for place, count in enumerate(side.counts) if count), None)
    if place is None:
        return None, slice(0, 0)
    start = side.offsets[place]
    return place, slice(start, start + side.counts[place])


def outgoing(side: Side, source: Bytes) -> Bytes:
    """Return the buffer to send from: the block itself, or what is packed of it. Local."""
    if side.copies is None:
        return source
    data = scratch("send", side.buffer_size)
    side.copies.pack([source], data)
    return data


def incoming(side: Side, target: Bytes) -> Bytes:
    """Return the buffer to receive in: the new block itself, or one to unpack from. Local."""
    return target if side.copies is None else scratch("receive", side.buffer_size)


class Gather:
    """A box of a block to all ranks of a group, and theirs into a new block: one MPI_Allgatherv. Local to make.

    *box* is what this rank sends, to itself as well, *receives* the boxes of all ranks of the group.
    """

    def __init__(
        self,
        group: Group,
        itemsize: int,
        shape: tuple[int, ...],
        box: Boxes,
        target_shape: tuple[int, ...],
        receives: Boxes,
    ) -> None:
        self.group = group
        self.send = _side(group, shape, itemsize, box)
        self.receive = _side(group, target_shape, itemsize, receives)
        place = box.peers[0, 0]
        start = self.send.offsets[place]
        self.part = slice(start, start + self.send.counts[place])
        self._alone = len(group.members) == 1

    def run(self, source: Bytes) -> Bytes:
        """Return the new block. Collective over the group."""
        receive = self.receive
        target = np.empty(receive.size, dtype=np.uint8)
        data, into = outgoing(self.send, source)[self.part], incoming(receive, target)
        if self._alone:
            into[:] = data
        else:
            self.group.communicator().allgatherv(data, into, receive.counts, receive.offsets)
        self.finish(source, into, target)
        return target

    def finish(self, source: Bytes, into: Bytes, target: Bytes) -> None:
        """Put what was received *into* a buffer into the new block. Local."""
        if self.receive.copies is not None:
            self.receive.copies.unpack(into, [target])


class AllReduce:
    """Arrays of *n* elements of the ranks of a group, reduced elementwise, on every rank. Local to make.

    Each rank reduces one part, in the order of the group, and all gather the parts: the result is the same to the last
    bit everywhere. *counted* are the places in the group whose arrays count, by default all of them.
    """

    def __init__(
        self,
        group: Group,
        place: int,
        reduce: Callable[[Array], Array],
        n: int,
        itemsize: int,
        counted: list[int] | None = None,
    ) -> None:
        self._reduce, self._counted = reduce, counted
        count = len(group.members)
        cuts = np.array([block_start(n, count, i) for i in range(count + 1)], dtype=np.intp)
        mine = int(cuts[place + 1] - cuts[place])
        self._parts = count, mine
        peers = np.arange(count, dtype=np.intp)[None, :]
        rows_of = np.stack([np.zeros_like(cuts), cuts], axis=1)
        stops = np.stack([np.ones_like(cuts), cuts], axis=1)[1:]
        sends, receives = Boxes(peers, rows_of[:-1], stops), _along((count, mine), 0, 1, count)
        self._scatter = Exchange(group, place, itemsize, (1, n), sends, (count, mine), receives)
        whole = Boxes(peers, cuts[:-1, None], cuts[1:, None])
        self._gather = Gather(group, itemsize, (mine,), _whole((mine,), place), (n,), whole)

    def run(self, a: Array) -> Array:
        """Return the reduced array. Collective over the group."""
        parts = as_block(self._scatter.run(as_bytes(a)), self._parts, a.dtype)
        reduced = self._reduce(parts if self._counted is None else parts[self._counted])
        return as_block(self._gather.run(as_bytes(reduced)), a.shape, a.dtype)


def _without(boxes: Boxes, columns: Indices) -> Boxes:
    return Boxes(*(np.delete(a, columns, axis) for a, axis in zip(boxes, (1, 0, 0), strict=True)))


def copy_of_box(
    itemsize: int,
    shape: tuple[int, ...],
    sends: Boxes,
    mine: Indices,
    target_shape: tuple[int, ...],
    receives: Boxes,
    own: Indices,
) -> BoxCopies:
    """Return the copy of what a rank sends to itself: box *mine* of one block to box *own* of another. Local."""
    offsets, strides = _in_block(shape, itemsize, sends.starts[mine])
    target_offsets, target_strides = _in_block(target_shape, itemsize, receives.starts[own])
    extents = sends.stops[mine] - sends.starts[mine]
    sizes = (_nbytes(shape, itemsize),), (_nbytes(target_shape, itemsize),)
    first = np.zeros_like(offsets)  # of one region
    return BoxCopies(*sizes, itemsize, first, offsets, strides, first, target_offsets, target_strides, extents)


def all_to_all(
    x: ArrayLike,
    group_assignment: Any,
    concat_dimension: int,
    split_dimension: int,
    split_count: int,
    comm: "MPI.Intracomm | None" = None,
) -> Array:
    """Return blocks of the *x* of every rank of the group, joined. Collective over *comm*, by default COMM_WORLD.

    *x* is split into *split_count* equal blocks along *split_dimension*; block j goes to position j of the group, and
    the blocks received are concatenated along *concat_dimension* in the order of the group. All ranks pass the same
    shape and dtype. ``GroupError`` or ``ShapeError``, on all ranks, unless *split_count* is the size of the groups
    and divides *x*; axes are not negative. Source: the AllToAll op of TensorFlow.

    >>> import meshcomm as mc
    >>> with mc.simulate(2) as world:
    ...     blocks = world.run(lambda: all_to_all([[["A", "B"], ["C", "D"]][world.rank]], [[0, 1]], 0, 1, 2).tolist())
    >>> blocks
    [[['A'], ['C']], [['B'], ['D']]]
    """
    if is_traced(x):
        return _traced(all_to_all, x, group_assignment, concat_dimension, split_dimension, split_count, comm)

    def build(team: Team, array: Array, rows: Any) -> Callable[[Array], Array]:
        shape = array.shape
        count = _checked_all_to_all(shape, rows, concat_dimension, split_dimension, split_count)
        group, place = _group(team, _check_cover(rows, team))
        length = shape[split_dimension] // count
        block = _replaced(shape, split_dimension, length)
        target_shape = _replaced(block, concat_dimension, block[concat_dimension] * count)
        exchange = Exchange(
            group,
            place,
            array.itemsize,
            shape,
            _along(shape, split_dimension, length, count),
            target_shape,
            _along(target_shape, concat_dimension, block[concat_dimension], count),
        )
        return lambda a: as_block(exchange.run(as_bytes(a)), target_shape, a.dtype)

    arguments = (concat_dimension, split_dimension, split_count)
    return _collective("all_to_all", x, _rows(group_assignment), arguments, comm, build)


def all_gather(x: ArrayLike, group_assignment: Any, dimension: int, comm: "MPI.Intracomm | None" = None) -> Array:
    """Return the *x* of every rank of the group, concatenated along *dimension*. Collective over *comm*.

    In the order of the group. All ranks pass the same shape and dtype. ``GroupError`` or ``ShapeError`` on all ranks.
    Source: AllGather of XLA.

    >>> import meshcomm as mc
    >>> with mc.simulate(2) as world:
    ...     world.run(lambda: all_gather([world.rank], [[1, 0]], 0).tolist())
    [[1, 0], [1, 0]]
    """
    if is_traced(x):
        return _traced(all_gather, x, group_assignment, dimension, comm)

    def build(team: Team, array: Array, rows: Any) -> Callable[[Array], Array]:
        shape = array.shape
        _check_axis("dimension", dimension, shape)
        group, place = _group(team, _check_cover(rows, team))
        target_shape = _replaced(shape, dimension, shape[dimension] * len(group.members))
        gather = Gather(
            group,
            array.itemsize,
            shape,
            _whole(shape, place),
            target_shape,
            _along(target_shape, dimension, shape[dimension], len(group.members)),
        )
        return lambda a: as_block(gather.run(as_bytes(a)), target_shape, a.dtype)

    return _collective("all_gather", x, _rows(group_assignment), (dimension,), comm, build)


def all_reduce(x: ArrayLike, group_assignment: Any, op: str = "sum", comm: "MPI.Intracomm | None" = None) -> Array:
    """Return the *x* of all ranks of the group, reduced elementwise. Collective over *comm*.

    *op* is ``sum``, ``prod``, ``min`` or ``max``, as NumPy computes it in the dtype of *x*, in the order of the group:
    the result is the same to the last bit on all ranks and in every run. All numeric dtypes and bool, for which sum
    means "any". ``DTypeError`` for others. Source: AllReduce of XLA.

    >>> import meshcomm as mc
    >>> with mc.simulate(3) as world:
    ...     world.run(lambda: all_reduce([world.rank, 1], [[0, 1, 2]]).tolist())
    [[3, 3], [3, 3], [3, 3]]
    """
    if is_traced(x):
        return _traced(all_reduce, x, group_assignment, op, comm)

    def build(team: Team, array: Array, rows: Any) -> Callable[[Array], Array]:
        reduce = reduction(op, array.dtype)
        group, place = _group(team, _check_cover(rows, team))
        return AllReduce(group, place, reduce, array.size, array.itemsize).run

    return _collective("all_reduce", x, _rows(group_assignment), (op,), comm, build)


def reduce_scatter(
    x: ArrayLike, group_assignment: Any, dimension: int, op: str = "sum", comm: "MPI.Intracomm | None" = None
) -> Array:
    """Return one block, along *dimension*, of the reduced *x* of the group. Collective over *comm*.

    The rank at position i of the group gets block i. The group must divide the dimension; *op* is as in `all_reduce`.
    ``GroupError``, ``ShapeError`` or ``DTypeError`` on all ranks. Source: ReduceScatter of XLA.

    >>> import meshcomm as mc
    >>> with mc.simulate(2) as world:
    ...     world.run(lambda: reduce_scatter([world.rank, 5], [[0, 1]], 0).tolist())
    [[1], [10]]
    """
    if is_traced(x):
        return _traced(reduce_scatter, x, group_assignment, dimension, op, comm)

    def build(team: Team, array: Array, rows: Any) -> Callable[[Array], Array]:
        shape = array.shape
        _check_axis("dimension", dimension, shape)
        group, place = _group(team, _check_cover(rows, team))
        count = len(group.members)
        if shape[dimension] % count:
            raise ShapeError(
                f"axis {dimension} of shape {shape} has {shape[dimension]} elements; "
                f"the group size {count} does not divide it"
            )
        reduce = reduction(op, array.dtype)
        block = _replaced(shape, dimension, shape[dimension] // count)
        stacked = (count, *block)
        exchange = Exchange(
            group,
            place,
            array.itemsize,
            (1, *shape),
            _along((1, *shape), dimension + 1, block[dimension], count),
            stacked,
            _along(stacked, 0, 1, count),
        )
        return lambda a: reduce(as_block(exchange.run(as_bytes(a)), stacked, a.dtype))

    return _collective("reduce_scatter", x, _rows(group_assignment), (dimension, op), comm, build)


def broadcast(x: ArrayLike, group_assignment: Any, root: int = 0, comm: "MPI.Intracomm | None" = None) -> Array:
    """Return the *x* of the rank at position *root* of the group. Collective over *comm*.

    All ranks pass the same shape and dtype. ``GroupError`` on all ranks unless the group has that position. Source:
    CollectiveBroadcast of XLA.

    >>> import meshcomm as mc
    >>> with mc.simulate(2) as world:
    ...     world.run(lambda: broadcast([world.rank], [[0, 1]], root=1).tolist())
    [[1], [1]]
    """
    if is_traced(x):
        return _traced(broadcast, x, group_assignment, root, comm)

    def build(team: Team, array: Array, rows: Any) -> Callable[[Array], Array]:
        group, _ = _group(team, _check_cover(rows, team))
        _check_integer("root", root)
        if not 0 <= root < len(group.members):
            raise GroupError(f"root {root} is not a position in groups of {len(group.members)} ranks")

        def run(a: Array) -> Array:
            result = exact_copy(a)
            group.communicator().broadcast(as_bytes(result), root)
            return result

        return run

    return _collective("broadcast", x, _rows(group_assignment), (root,), comm, build)


def collective_permute(
    x: ArrayLike, source_target_pairs: Iterable[tuple[int, int]], comm: "MPI.Intracomm | None" = None
) -> Array:
    """Return the *x* of the rank that is paired with this one as its source, else zeros. Collective over *comm*.

    *source_target_pairs* are pairs of ranks; a rank may be a source once and a target once. All ranks pass the same
    shape, dtype and pairs. ``GroupError`` on all ranks otherwise. Source: CollectivePermute of XLA.

    >>> import meshcomm as mc
    >>> with mc.simulate(3) as world:
    ...     world.run(lambda: collective_permute([world.rank + 1], [(0, 1), (1, 2)]).tolist())
    [[0], [1], [2]]
    """
    if is_traced(x):
        return _traced(collective_permute, x, source_target_pairs, comm)

    def build(team: Team, array: Array, pairs: Any) -> Callable[[Array], Array]:
        shape, me = array.shape, team.rank
        _check_pairs(pairs, team)
        sends = [target for source, target in pairs if source == me]
        receives = [source for source, target in pairs if target == me]
        exchange = Permute(
            team.everyone, me, array.itemsize, shape, _whole(shape, *sends), shape, _whole(shape, *receives)
        )

        def run(a: Array) -> Array:
            result = as_block(exchange.run(as_bytes(a)), a.shape, a.dtype)
            return result if receives else np.zeros(a.shape, a.dtype)

        return run

    return _collective("collective_permute", x, _pairs(source_target_pairs), (), comm, build)


def _collective(
    operation: str,
    x: ArrayLike,
    rows_for: Callable[[Team], Any],
    arguments: tuple[Any, ...],
    comm: "MPI.Intracomm | None",
    build: Callable[[Team, Array, Any], Callable[[Array], Array]],
) -> Array:
    """Run an operation, built and agreed on by all ranks when it is new to them."""
    world = world_of(comm)
    team = world.team(range(world.size))
    guard.begin(operation, team)
    try:
        array, error = _normalised(x)
        rows, plain = rows_for(team), tuple(map(_plain, arguments))
        key: Hashable = (operation, rows, plain, array.shape, array.dtype)
        program = team.programs.get(key) if error is None and _is_exact(rows, plain) else None
        if program is None or guard.checks_every_call():
            try:
                if error is not None:
                    raise error
                run = program.run if program is not None else build(team, array, rows)
            except Exception as problem:
                error = problem
            call = f"{operation}{plain} of {array.shape} {array.dtype} over {rows} of {team.ranks}"
            guard.agree(team, call, error)
            program = Program(run, guard.fingerprint(call))
            team.remember(key, program)
        else:
            guard.chained(team, program.number)
        result: Array = program.run(array)
        return result
    finally:
        guard.end()


def _is_exact(rows: Any, arguments: tuple[Any, ...]) -> bool:
    """Return whether a call can be looked up: True and 1.0 equal 1, but only one of them is an integer."""
    return all(type(value) in (int, str) for value in arguments) and (
        isinstance(rows, tuple) and all(isinstance(row, tuple) and all(type(r) is int for r in row) for row in rows)
    )


def _normalised(x: ArrayLike) -> tuple[Array, Exception | None]:
    """Return *x* as a C-contiguous array, or what is wrong with it."""
    try:
        array = as_array(x)
        return (array if array.flags.c_contiguous else exact_copy(array)).view(np.ndarray), None
    except Exception as error:
        return np.empty(0), error


def is_traced(x: Any) -> bool:
    """Return whether *x* is a value that autograd follows, instead of an array or a DTensor. Local."""
    return not isinstance(x, np.ndarray) and hasattr(x, "_node") and hasattr(x, "_value")


def untraced(x: Any) -> Any:
    """Return what autograd follows as *x*, and anything else as it is. Local."""
    while is_traced(x):
        x = x._value
    return x


def _traced(operation: Callable[..., Array], *args: Any) -> Array:
    """Return what autograd makes of an operation on a value that it follows."""
    result: Array = _late.call("traced", operation, args)
    return result


def as_array(x: Any) -> Array:
    """Return *x* as a NumPy array that can be divided; ``ShapeError`` or ``DTypeError`` if it is none. Local."""
    if isinstance(x, np.ma.MaskedArray):
        raise DTypeError("a masked array would lose its mask: fill it, or pass its data and its mask")
    if hasattr(x, "layout"):
        raise DTypeError("this is a DTensor, not a plain array: pass its t.local, or use relayout")
    try:
        array: Array = np.asarray(x)
    except ValueError as error:
        raise ShapeError(f"this is not an array: {error}") from None
    as_dtype(array.dtype)
    return array


def _plain(value: Any) -> Any:
    return int(value) if isinstance(value, np.integer) else value


def _pairs(pairs: Any) -> Callable[[Team], Any]:
    """Return nested tuples for every team; what is not nested stays as it is, for the checks to name."""
    if isinstance(pairs, np.ndarray):
        pairs = pairs.tolist()
    try:
        rows = tuple([tuple(map(_plain, row)) for row in pairs])
    except TypeError:
        rows = pairs
    return lambda team: rows


def _rows(assignment: Any) -> Callable[[Team], Any]:
    """Return the rows of a group assignment for a team, None being one row of all its ranks."""
    return _pairs(assignment) if assignment is not None else lambda team: (tuple(range(len(team.ranks))),)


def _checked_all_to_all(
    shape: tuple[int, ...], rows: Any, concat_dimension: int, split_dimension: int, split_count: int
) -> int:
    """Return the split count; the checks, in their order, are those of the op's shape function."""
    _check_integer("split_count", split_count)
    if split_count < 1:
        raise GroupError(f"split_count {split_count} must at least be one.")
    size = _row_length(rows)
    if split_count != size:
        raise GroupError(
            f"split_count {split_count} must equal the size of the second dimension of group_assignment {size}"
        )
    _check_axis("concat_dimension", concat_dimension, shape)
    _check_axis("split_dimension", split_dimension, shape)
    if shape[split_dimension] % split_count:
        raise ShapeError(
            f"input dimension {shape[split_dimension]} not divisible by split_count {split_count}: "
            f"axis {split_dimension} of shape {shape} cannot be split into equal blocks"
        )
    return split_count


def _row_length(rows: Any) -> int:
    nested = isinstance(rows, tuple) and all(isinstance(row, tuple) for row in rows)
    lengths = {len(row) for row in rows} if nested else set()
    if len(lengths) != 1 or not all(lengths):
        raise GroupError(f"group_assignment must have rank 2: rows of one length, at least one, not {_short(rows)}")
    return lengths.pop()


def _check_cover(rows: Any, team: Team) -> Assignment:
    """Return *rows* if every rank of the team stands in them once; source: the constraints of StableHLO."""
    _row_length(rows)
    size = len(team.ranks)
    seen: set[int] = set()
    for rank in chain.from_iterable(rows):
        _check_integer("a rank in group_assignment", rank)
        if not 0 <= rank < size:
            raise GroupError(f"group_assignment {_short(rows)} names rank {rank}, but there are ranks 0 to {size - 1}")
        if rank in seen:
            raise GroupError(f"group_assignment {_short(rows)} names rank {rank} twice")
        seen.add(rank)
    if len(seen) < size:
        missing = sorted(set(range(size)) - seen)
        raise GroupError(
            f"group_assignment {_short(rows)} must name every rank of the {size}; "
            f"in no group: {', '.join(map(str, missing[:8]))}{', ...' if len(missing) > 8 else ''}"
        )
    checked: Assignment = rows
    return checked


def _check_pairs(pairs: Any, team: Team) -> None:
    size = len(team.ranks)
    if not isinstance(pairs, tuple):
        raise GroupError(f"source_target_pairs must be pairs of ranks, not {_short(pairs)}")
    for pair in pairs:
        if not isinstance(pair, tuple) or len(pair) != 2:
            raise GroupError(f"source_target_pairs must be pairs of ranks, not {pair}")
        for rank in pair:
            _check_integer("a rank in source_target_pairs", rank)
            if not 0 <= rank < size:
                raise GroupError(f"source_target_pairs names rank {rank}, but there are ranks 0 to {size - 1}")
    for what, ranks in (("source", [s for s, _ in pairs]), ("target", [t for _, t in pairs])):
        twice = next((rank for rank in ranks if ranks.count(rank) > 1), None)
        if twice is not None:
            raise GroupError(f"source_target_pairs {_short(pairs)} names rank {twice} as a {what} twice")


def _check_integer(what: str, value: Any) -> None:
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, (int, np.integer)):
        raise GroupError(f"{what} must be an integer, not {value!r}")


def _check_axis(what: str, axis: Any, shape: tuple[int, ...]) -> None:
    _check_integer(what, axis)
    if not 0 <= axis < len(shape):
        raise ShapeError(f"{what} {axis} is out of range of input rank {len(shape)}")


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:80]}..."


def _group(team: Team, rows: Assignment) -> tuple[Group, int]:
    """Return this rank's group among *rows*, and its place in it. Local."""
    color = next(i for i, row in enumerate(rows) if team.rank in row)
    members = tuple(team.ranks[rank] for rank in rows[color])
    return team.group(rows, color, members), rows[color].index(team.rank)


def _replaced(shape: tuple[int, ...], axis: int, length: int) -> tuple[int, ...]:
    return (*shape[:axis], length, *shape[axis + 1 :])


def _along(shape: tuple[int, ...], axis: int, length: int, count: int) -> Boxes:
    """Return *count* boxes of *length* one after the other along *axis*, one for each place of the group."""
    starts = np.zeros((count, len(shape)), dtype=np.intp)
    stops = np.tile(np.array(shape, dtype=np.intp), (count, 1))
    starts[:, axis] = np.arange(count) * length
    stops[:, axis] = starts[:, axis] + length
    return Boxes(np.arange(count, dtype=np.intp)[None, :], starts, stops)


def _whole(shape: tuple[int, ...], *peers: int) -> Boxes:
    """Return the whole block as the box for each of *peers*."""
    stops = np.tile(np.array(shape, dtype=np.intp), (len(peers), 1))
    return Boxes(np.array([peers], dtype=np.intp).reshape(1, len(peers)), np.zeros_like(stops), stops)


_OPS = {"sum": np.add, "prod": np.multiply, "min": np.minimum, "max": np.maximum}


def reduction(op: str, dtype: np.dtype[Any]) -> Callable[[Array], Array]:
    """Return a function that reduces an array over its first axis, in its dtype and in order. Local."""
    ufunc = _OPS.get(op) if isinstance(op, str) else None
    if ufunc is None:
        raise DTypeError(f"op must be one of {', '.join(_OPS)}, not {op!r}")

    def reduce(parts: Array) -> Array:
        # One after the other: ufunc.reduce may sum in pairs, or in another precision. An overflow must not stop one
        # rank between two communications.
        result: Array = parts[0].copy()
        with np.errstate(all="ignore"):
            for part in parts[1:]:
                ufunc(result, part, out=result)
        return result

    try:
        if dtype.kind in "SU":
            raise TypeError("text can be added, but not reduced in place")
        reduce(np.zeros((2, 1), dtype))
    except TypeError:
        raise DTypeError(f"op {op!r} is not defined for dtype {dtype}") from None
    return reduce
