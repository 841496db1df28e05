"""Rows of the blocks of other ranks: a rank asks their owners for them, or sends rows to their owners.

An answer of an owner may also be what it makes of a question, such as where a value is in its block: `ask`.

A row is what a block has at one index of its first axes. Each rank says for each of its rows who owns it, and which
row of the owner's block it is:

    fetch       numbers ──> owners, rows <── owners
    deliver     numbers and rows ──> owners
    migrated    rows ──> owners, who keep them in the order of the ranks
    ask         questions ──> owners, answers <── owners

Rows travel in messages of MPI. Their owners and counts depend on the data, so the ranks tell each other how many there
are, and agree on a number of rounds that keeps within the scratch limit. On a node that shares memory, `fetch` reads
the rows straight from the blocks of the owners, and no number travels.

A message of numbers says runs of consecutive numbers by their starts and lengths, if that is shorter.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import prod
from time import monotonic_ns
from typing import NamedTuple, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from meshcomm._kernels import RowCopies
from meshcomm.blocks.reduce import group_along
from meshcomm.core._tuning import DEFAULT_SCRATCH
from meshcomm.core._types import Array, Indices, Names, Shape
from meshcomm.core.layouts.mesh import Mesh
from meshcomm.core.memory._rendezvous import Routes
from meshcomm.core.memory.blocks import as_bytes, new_block
from meshcomm.core.memory.copies import opaque
from meshcomm.core.memory.pools import locate
from meshcomm.core.ranks.agreement import fingerprint
from meshcomm.core.ranks.calls import agree_on, collective, exchanging
from meshcomm.core.ranks.communicator import Communicator
from meshcomm.core.ranks.meshes import mesh_description
from meshcomm.core.ranks.rank_sets import Group
from meshcomm.core.ranks.traffic import note_received

R = TypeVar("R")

Write: TypeAlias = Callable[[tuple[Indices, ...], Array | None], None]
"""Writes rows to the block of this rank: takes an index for each of its first axes, and rows, if there are."""

_NUMBER = np.dtype(np.int64)
_KEPT = 40  # bytes that a rank keeps for each of its rows while they travel: who owns it, where, and in which order


class Owned(NamedTuple):
    """Which rows: for each one its owner, a position in the group, and its number there, in C order."""

    owners: NDArray[np.int32] | Indices
    row_numbers: Indices


class RowRanks(NamedTuple):
    """The ranks that exchange rows, and which one this is.

    Parameters
    ----------
    group, position: group of the ranks, and the position of this rank
    call: text of the call, the same on all ranks
    """

    group: Group
    position: int
    call: str

    @property
    def communicator(self) -> Communicator:
        """The communicator of the group. Collective when it is opened."""
        return self.group.communicator()

    @property
    def size(self) -> int:
        """The number of ranks."""
        return len(self.group.members)

    def agree_on_result(self, function: Callable[[], R], call: str | Callable[[R], str] | None = None) -> R:
        """Return the local result of *function*; all ranks raise if it raises on one. Collective.

        They also raise if *call* differs: a text, by default that of the whole call, or a function that makes one of
        the result.
        """
        return agree_on(self.group.rank_set, self.call if call is None else call, function)

    def allgather(self, message: bytes) -> list[bytes]:
        """Return the message of each rank, in the order of their positions. Collective."""
        began, communicator = monotonic_ns(), self.communicator
        messages = communicator.allgather(message)
        sizes = [len(text) for text in messages]
        sizes[self.position] = 0
        note_received(self.group.rank_set, self.group.members, sizes, began)
        return messages

    def allreduce_max(self, *values: int) -> list[int]:
        """Return the maximum of each value over the ranks. Collective."""
        return self.communicator.allreduce_max(np.array(values, dtype=_NUMBER)).tolist()

    def exchanged_counts(self, counts: Indices) -> Indices:
        """Return the number that each rank has for this one, from those that this one has for each. Collective."""
        size = _NUMBER.itemsize
        sides = [size] * self.size, [*range(0, size * self.size, size)]
        sent, received = np.ascontiguousarray(counts, _NUMBER), np.empty(self.size, _NUMBER)
        self.communicator.alltoallv((as_bytes(sent), *sides), (as_bytes(received), *sides))
        return received

    def exchanged(
        self, array: Array, counts: Indices, into: Array, coming: Indices, *, at: Indices | None = None
    ) -> None:
        """Send consecutive rows of *array*, *counts* to each rank, and receive *coming* rows of each. Collective.

        Those of a rank are written from *at* on, by default after those of the rank before it.
        """
        starts, sides = (np.cumsum(counts) - counts, np.cumsum(coming) - coming if at is None else at), []
        mine = [
            slice(int(start[self.position]), int(start[self.position] + n[self.position]))
            for n, start in zip((counts, coming), starts, strict=True)
        ]
        for rows, n, start in zip((array, into), (counts, coming), starts, strict=True):
            row = rows.dtype.itemsize * prod(rows.shape[1:])
            others = np.where(np.arange(self.size) == self.position, 0, n)
            sides.append((as_bytes(rows), (others * row).tolist(), (start * row).tolist()))
        began = monotonic_ns()
        pending = self.communicator.start_messages(*sides)
        opaque(into)[mine[1]] = opaque(array)[mine[0]]
        pending.wait()
        note_received(self.group.rank_set, self.group.members, sides[1][1], began)


@contextmanager
def ranks_along(operation: str, mesh: Mesh, names: Names, call: str) -> Iterator[RowRanks]:
    """Return a context with the ranks along mesh dimensions *names*, which exchange rows in *operation*. Collective.

    *call* tells it from others on this mesh, the same on all ranks. Ranks outside of the mesh have no part. An error
    that ends the context on one rank only lets no further call be made.
    """
    with collective(operation, mesh) as location:
        assert location is not None
        with exchanging(location.rank_set):
            yield RowRanks(*group_along(location, mesh, names), f"{call} on {mesh_description(mesh)}")


# -- fetch ------------------------------------------------------------------------------------------------------------


def fetch(ranks: RowRanks | None, block: Array, axes: int, wanted: Owned, into: Array) -> None:
    """Write the *wanted* rows, one after the other, to *into*. Collective over the ranks.

    Parameters
    ----------
    ranks: ranks that ask each other; None if this rank owns all that it wants
    block: block of this rank
    axes: number of the first axes of *block* that number the rows; the others are those of a row
    wanted: owners and numbers of the rows
    into: array with one axis for the rows, and those of a row
    """
    if ranks is None:
        if not (block.flags.c_contiguous and into.flags.c_contiguous and block.size):
            opaque(into)[...] = _rows_at(block, axes, wanted.row_numbers)
            return
        lines = opaque(block).reshape(prod(block.shape[:axes]), *block.shape[axes:])
        lines.take(wanted.row_numbers, axis=0, out=opaque(into), mode="clip")  # into no buffer: they are in bounds
        return
    row = block.dtype.itemsize * prod(block.shape[axes:])
    in_order = block.flags.c_contiguous and into.flags.c_contiguous
    rendezvous = ranks.group.rendezvous
    shares = rendezvous is not None and rendezvous.size == ranks.size and in_order and row > 0
    if shares and block.nbytes:
        shares = locate(as_bytes(block)) >= 0
    rows, hidden = ranks.allreduce_max(len(wanted.row_numbers), not shares)
    if rows == 0 or row == 0:  # the rows of all ranks have as many bytes, or none of their own
        return
    if not hidden:
        _read_rows(ranks, block, wanted, into, rows)
        return
    for chunk in _row_chunks(rows, len(wanted.row_numbers), _KEPT + row):
        part = Owned(wanted.owners[chunk], wanted.row_numbers[chunk])
        _ask_owners(ranks, block, axes, part, into[chunk])


def _read_rows(ranks: RowRanks, block: Array, wanted: Owned, into: Array, max_count: int) -> None:
    """Read the rows from the shared blocks of their owners, *max_count* at most on any rank. Collective."""
    rendezvous = ranks.group.rendezvous
    assert rendezvous is not None
    others = [(position, False) for position in range(ranks.size) if position != ranks.position]
    sizes = ranks.exchanged_counts(np.full(ranks.size, block.nbytes)).tolist()
    number = fingerprint(ranks.call) ^ ranks.group.rank_set.call_digest
    data, row = as_bytes(block), into.dtype.itemsize * prod(into.shape[1:])
    for chunk in _row_chunks(max_count, len(wanted.row_numbers), 4):
        regions = np.ascontiguousarray(wanted.owners[chunk], dtype=np.int32)
        copies = RowCopies(sizes, row, regions, np.ascontiguousarray(wanted.row_numbers[chunk]))
        routes = Routes(ranks.size, ranks.position, others, others, _fixed_copies(copies))
        rendezvous.exchange(routes, number, data, as_bytes(into[chunk]))


def _fixed_copies(copies: RowCopies) -> Callable[[tuple[int, ...], tuple[int, ...]], tuple[RowCopies, None]]:
    return lambda reads_from, writes_to: (copies, None)


def _ask_owners(ranks: RowRanks, block: Array, axes: int, wanted: Owned, into: Array) -> None:
    """Ask the owners for rows, by messages. Collective."""
    order, counts = _by_owner(wanted.owners, ranks.size)
    row_numbers = wanted.row_numbers[order]
    starts = np.concatenate([[0], np.cumsum(counts)])
    new = np.ones(len(row_numbers), dtype=bool)  # equal numbers, one after the other, travel once
    new[1:] = row_numbers[1:] != row_numbers[:-1]
    new[starts[:-1][counts > 0]] = True
    repeats = not new.all()
    if repeats:
        number = np.cumsum(new) - 1
        counts = np.diff(np.concatenate([[0], number + 1])[starts])
        row_numbers = row_numbers[new]
    coming = ranks.exchanged_counts(counts)
    row = (block.dtype.itemsize * prod(block.shape[axes:])) or 1
    rounds = _rounds(ranks, int(coming.sum()), row)
    shape = len(row_numbers), *block.shape[axes:]
    distinct = opaque(new_block(shape, block.dtype)) if repeats or rounds > 1 else None
    for turn, mine, theirs in _rounds_of(counts, coming, rounds):
        their_numbers = _sent_numbers(ranks, row_numbers if turn is None else row_numbers[turn], mine, theirs)
        answer = _rows_at(block, axes, their_numbers)
        rows = opaque(new_block((int(mine.sum()), *block.shape[axes:]), block.dtype))
        ranks.exchanged(answer, theirs, rows, mine)
        if distinct is None:
            _put_in_order(into, order, rows)
        else:
            distinct[slice(None) if turn is None else turn] = rows
    if distinct is not None:
        _put_in_order(into, order, distinct, number if repeats else None)


def _rows_at(block: Array, axes: int, row_numbers: Indices) -> Array:
    """Return the rows *row_numbers* of the first *axes* of a block, in consecutive memory.

    NumPy's take copies rows; an index array would copy them element by element.
    """
    if block.flags.c_contiguous:
        return opaque(block).reshape(prod(block.shape[:axes]), *block.shape[axes:]).take(row_numbers, axis=0)
    return np.ascontiguousarray(opaque(block)[unravelled(row_numbers, block.shape[:axes])])


def _put_in_order(into: Array, order: Indices, rows: Array, which: Indices | None = None) -> None:
    """Write *rows* to *into*: the first one to its row order[0], and so on.

    If *which* is given, the row which[0] is the first one, and so on.
    """
    if not into.flags.c_contiguous:
        opaque(into)[order] = rows if which is None else rows[which]
        return
    inverse = np.empty_like(order)
    inverse[order] = np.arange(len(order)) if which is None else which
    rows.take(inverse, axis=0, out=opaque(into), mode="clip")


# -- deliver ----------------------------------------------------------------------------------------------------------


def deliver(
    ranks: RowRanks | None, shape: Shape, to: Owned, rows: Array | None, write: Write, *, sums: bool = False
) -> None:
    """Let the owners write rows of their blocks. Collective over the ranks.

    An owner gets the rows of the ranks in their order, and of one rank in its order. Where several are for one row, it
    writes the last one last, also if they come in several rounds.

    Parameters
    ----------
    ranks: ranks that send each other rows; None if this rank owns all that it has
    shape: lengths of the axes of this rank's block that number the rows
    to: owners and numbers of the rows
    rows: array with as many rows; None if *write* needs none
    write: writer of the rows that come, called maybe several times
    sums: True if all that is for one row counts, in any order of the rounds, and not the last one only
    """
    if ranks is None:
        write(unravelled(to.row_numbers, shape), rows)
        return
    row = _NUMBER.itemsize + (0 if rows is None else rows.dtype.itemsize * prod(rows.shape[1:]))
    (max_count,) = ranks.allreduce_max(len(to.row_numbers))
    last: Indices | None = None
    chunks = list(_row_chunks(max_count, len(to.row_numbers), _KEPT + row))
    for chunk in chunks:
        order, counts = _by_owner(to.owners[chunk], ranks.size)
        coming = ranks.exchanged_counts(counts)
        rounds = _rounds(ranks, int(coming.sum()), row)
        if len(chunks) * rounds > 1 and last is None and not sums:
            last = np.zeros(prod(shape), np.uint16 if ranks.size > 256 else np.uint8)
        for turn, mine, theirs in _rounds_of(counts, coming, rounds):
            selection = order if turn is None else order[turn]
            row_numbers = _sent_numbers(ranks, to.row_numbers[chunk][selection], mine, theirs)
            arrived = None
            if rows is not None:
                arrived = new_block((int(theirs.sum()), *rows.shape[1:]), rows.dtype)
                ranks.exchanged(opaque(rows[chunk]).take(selection, axis=0), mine, opaque(arrived), theirs)
            if last is not None:
                row_numbers, arrived = _still_last(row_numbers, arrived, theirs, last)
            write(unravelled(row_numbers, shape), arrived)


def _still_last(
    row_numbers: Indices, rows: Array | None, coming: Indices, last: Indices
) -> tuple[Indices, Array | None]:
    """Return the rows that no later rank has written in an earlier round; *last* is the last writer of each row."""
    sources = np.repeat(np.arange(len(coming)), coming).astype(last.dtype)
    stays = sources >= last[row_numbers]
    if not stays.all():
        row_numbers, sources = row_numbers[stays], sources[stays]
        rows = None if rows is None else rows[stays]
    last[row_numbers] = sources  # ascending, so that the last of equal numbers is the largest
    return row_numbers, rows


# -- migrated ---------------------------------------------------------------------------------------------------------


def migrate_rows(ranks: RowRanks, arrays: list[Array], owners: Indices) -> tuple[list[Array], Indices]:
    """Return the rows that come to this rank, in the order of the ranks, and how many of each. Collective.

    Parameters
    ----------
    ranks: ranks that send each other rows
    arrays: arrays with as many rows
    owners: positions of the owners of the rows
    """
    received = ranks.exchanged_counts(np.bincount(owners, minlength=ranks.size))
    (max_count,) = ranks.allreduce_max(len(owners))
    rows, at = int(received.sum()), np.cumsum(received) - received
    results = ranks.agree_on_result(lambda: [new_block((rows, *array.shape[1:]), array.dtype) for array in arrays])
    row = sum(array.dtype.itemsize * prod(array.shape[1:]) for array in arrays)
    for chunk in _row_chunks(max_count, len(owners), _KEPT + row):
        order, counts = _by_owner(owners[chunk], ranks.size)
        coming = ranks.exchanged_counts(counts)
        for array, into in zip(arrays, results, strict=True):
            sent = np.ascontiguousarray(opaque(array[chunk])[order])
            ranks.exchanged(sent, counts, opaque(into), coming, at=at)
        at = at + coming
    return results, received


# -- ask --------------------------------------------------------------------------------------------------------------


def ask(
    ranks: RowRanks,
    owners: NDArray[np.int32] | Indices,
    questions: Array,
    answer: Callable[[Array], Array],
    into: Array,
) -> None:
    """Write to *into* what the owners answer to questions. Collective over the ranks.

    Parameters
    ----------
    ranks: ranks that ask each other
    owners: position in the group of each question's owner
    questions: array with one axis
    answer: function from questions to the answers of this rank, in the dtype of *into*
    into: array with one element for each question
    """
    (max_count,) = ranks.allreduce_max(len(questions))
    row = questions.dtype.itemsize + into.dtype.itemsize
    for chunk in _row_chunks(max_count, len(questions), _KEPT + row):
        order, counts = _by_owner(owners[chunk], ranks.size)
        coming, answers = ranks.exchanged_counts(counts), into[chunk]
        for turn, mine, theirs in _rounds_of(counts, coming, _rounds(ranks, int(coming.sum()), row)):
            selection = order if turn is None else order[turn]
            their_questions = new_block((int(theirs.sum()),), questions.dtype)
            ranks.exchanged(questions[chunk][selection], mine, their_questions, theirs)
            replies = new_block((len(selection),), into.dtype)
            ranks.exchanged(answer(their_questions), theirs, replies, mine)
            answers[selection] = replies


# -- rounds and messages ----------------------------------------------------------------------------------------------


def _row_chunks(max_count: int, count: int, row_bytes: int) -> Iterator[slice]:
    """Return intervals of *count* rows, equally many on each rank.

    *max_count* is the largest count of any rank, *row_bytes* the size of a row.
    """
    size = max(1, DEFAULT_SCRATCH // 2 // row_bytes)
    for start in range(0, max_count, size):
        yield slice(min(start, count), min(start + size, count))


def _rounds(ranks: RowRanks, incoming: int, row: int) -> int:
    """Return in how many rounds the rows travel, the same on all ranks. Collective."""
    return max(1, *ranks.allreduce_max(-(-incoming * (row + _NUMBER.itemsize) // (DEFAULT_SCRATCH // 2))))


def _rounds_of(counts: Indices, coming: Indices, rounds: int) -> Iterator[tuple[Indices | None, Indices, Indices]]:
    """Return for each round which rows, sorted by owners, travel, and how many go to and come from each rank."""
    if rounds == 1:
        yield None, counts, coming
        return
    starts = np.cumsum(counts) - counts
    for number in range(rounds):
        first, last = (counts * n // rounds for n in (number, number + 1))
        mine, theirs = last - first, coming * (number + 1) // rounds - coming * number // rounds
        yield _concatenated_ranges(starts + first, mine), mine, theirs


def _concatenated_ranges(starts: Indices, lengths: Indices) -> Indices:
    """Return the numbers of several ranges, one after the other.

    >>> _concatenated_ranges(np.array([3, 10]), np.array([2, 3])).tolist()
    [3, 4, 10, 11, 12]
    """
    before = np.cumsum(lengths) - lengths
    return np.repeat(starts - before, lengths) + np.arange(int(lengths.sum()))


def _by_owner(owners: NDArray[np.int32] | Indices, ranks: int) -> tuple[Indices, Indices]:
    """Return the order that sorts rows by their owners, with those of one owner in their order, and how many each has.

    NumPy sorts short integers by counting.
    """
    short = owners.astype(np.uint8 if ranks <= 256 else np.uint16 if ranks <= 65536 else np.intp)
    return np.argsort(short, kind="stable"), np.bincount(owners, minlength=ranks).astype(np.intp)


def _sent_numbers(ranks: RowRanks, row_numbers: Indices, counts: Indices, coming: Indices) -> Indices:
    """Return the numbers that come to this rank, from those that it sends, *counts* to each rank. Collective."""
    ends = np.cumsum(counts)
    begins = np.zeros(len(row_numbers), dtype=bool)  # whether a run of consecutive numbers begins here
    begins[1:] = row_numbers[1:] != row_numbers[:-1] + 1
    begins[(ends - counts)[counts > 0]] = True
    start = np.flatnonzero(begins)
    runs = counts
    if 2 * len(start) < len(row_numbers):
        runs = np.bincount(np.searchsorted(ends, start, side="right"), minlength=len(counts))
    as_runs = 2 * runs < counts
    words = np.where(as_runs, 2 * runs, counts)
    if as_runs.any():
        lengths = np.diff(np.append(start, len(row_numbers)))
        run_ends = np.cumsum(runs)
        pieces = list[Indices]()
        for rank in np.flatnonzero(counts):
            span = slice(run_ends[rank] - runs[rank], run_ends[rank])
            whole = slice(ends[rank] - counts[rank], ends[rank])
            pieces += [row_numbers[start[span]], lengths[span]] if as_runs[rank] else [row_numbers[whole]]
        sent = np.concatenate(pieces).astype(_NUMBER)
    else:
        sent = np.ascontiguousarray(row_numbers, _NUMBER)
    words_coming = ranks.exchanged_counts(words)
    received = np.empty(int(words_coming.sum()), _NUMBER)
    ranks.exchanged(sent, words, received, words_coming)
    if (words_coming == coming).all():
        return received.astype(np.intp, copy=False)
    numbers, end = list[Indices](), np.cumsum(words_coming)
    for rank in np.flatnonzero(coming):
        message = received[end[rank] - words_coming[rank] : end[rank]]
        numbers.append(message if len(message) == coming[rank] else _concatenated_ranges(*message.reshape(2, -1)))
    return np.concatenate(numbers).astype(np.intp, copy=False)


def unravelled(row_numbers: Indices, shape: Shape) -> tuple[Indices, ...]:
    """Return an index for each axis of *shape* from numbers in C order."""
    if len(shape) == 1:
        return (row_numbers,)
    return np.unravel_index(row_numbers, shape) if prod(shape) else tuple(row_numbers[:0] for _ in shape)
