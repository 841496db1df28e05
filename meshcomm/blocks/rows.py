"""Rows of the blocks of other ranks: a rank asks their owners for them, or sends rows to their owners.

With `ask`, owners compute the answers to questions, such as the index of a value in their block.

A row is the elements of a block at one index of its first axes. Ranks name a row by its owner and by its number in the
owner's block:

    fetch           numbers ──> owners, rows <── owners
    deliver         numbers and rows ──> owners
    migrate_rows    rows ──> owners, who keep them in the order of the ranks
    ask             questions ──> owners, answers <── owners

Rows travel in MPI messages. Their owners and counts depend on the data, so the ranks exchange the counts, and agree on
a number of rounds that keeps within the scratch limit. On a node that shares memory, `fetch` reads the rows directly
from the owners' blocks, and sends no row numbers.

A message of row numbers gives runs of consecutive numbers by their starts and lengths, if that is shorter.
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
"""Writes rows to the block of this rank. Arguments: an index array for each of its first axes; the rows, or None."""

_WORD = np.dtype(np.int64)
_BYTES_PER_ROW = 40  # bytes of bookkeeping that a rank needs for each row that travels: its owner, number and order


class RowOwners(NamedTuple):
    """Names of rows: the position in the group of each row's owner, and the row's number in that block, in C order."""

    owners: NDArray[np.int32] | Indices
    row_numbers: Indices


class RowRanks(NamedTuple):
    """The ranks that exchange rows, and the position of this rank among them.

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

        They also raise if *call* differs: a text, by default that of the whole call, or a function from the result to
        a text.
        """
        return agree_on(self.group.rank_set, self.call if call is None else call, function)

    def allgather(self, message: bytes) -> list[bytes]:
        """Return the message of each rank, in the order of their positions. Collective."""
        start_ns, communicator = monotonic_ns(), self.communicator
        messages = communicator.allgather(message)
        sizes = [len(data) for data in messages]
        sizes[self.position] = 0
        note_received(self.group.rank_set, self.group.members, sizes, start_ns)
        return messages

    def allreduce_max(self, *values: int) -> list[int]:
        """Return the maximum of each value over the ranks. Collective."""
        return self.communicator.allreduce_max(np.array(values, dtype=_WORD)).tolist()

    def alltoall_counts(self, counts: Indices) -> Indices:
        """Send each rank its number of *counts*, and return the number received from each rank. Collective."""
        size = _WORD.itemsize
        sizes_and_offsets = [size] * self.size, [*range(0, size * self.size, size)]
        sent, received = np.ascontiguousarray(counts, _WORD), np.empty(self.size, _WORD)
        self.communicator.alltoallv((as_bytes(sent), *sizes_and_offsets), (as_bytes(received), *sizes_and_offsets))
        return received

    def exchanged(
        self, array: Array, counts: Indices, out: Array, incoming_counts: Indices, *, out_starts: Indices | None = None
    ) -> None:
        """Send *counts* consecutive rows of *array* to each rank, and receive *incoming_counts* from each. Collective.

        The rows of each rank are written to *out* from *out_starts* on, by default after those of the previous rank.
        """
        starts, buffers = (
            (
                np.cumsum(counts) - counts,
                np.cumsum(incoming_counts) - incoming_counts if out_starts is None else out_starts,
            ),
            [],
        )
        own_slices = [
            slice(int(start[self.position]), int(start[self.position] + row_counts[self.position]))
            for row_counts, start in zip((counts, incoming_counts), starts, strict=True)
        ]
        for rows, row_counts, start in zip((array, out), (counts, incoming_counts), starts, strict=True):
            row_bytes = rows.dtype.itemsize * prod(rows.shape[1:])
            other_counts = np.where(np.arange(self.size) == self.position, 0, row_counts)
            buffers.append((as_bytes(rows), (other_counts * row_bytes).tolist(), (start * row_bytes).tolist()))
        start_ns = monotonic_ns()
        pending = self.communicator.start_messages(*buffers)
        opaque(out)[own_slices[1]] = opaque(array)[own_slices[0]]
        pending.wait()
        note_received(self.group.rank_set, self.group.members, buffers[1][1], start_ns)


@contextmanager
def ranks_along(operation: str, mesh: Mesh, names: Names, call: str) -> Iterator[RowRanks]:
    """Return a context with the ranks along mesh dimensions *names*, which exchange rows in *operation*. Collective.

    *call* is a text that identifies the call on this mesh, the same on all ranks. Ranks outside of the mesh take no
    part. After an error that ends the context on one rank only, these ranks can make no further call.
    """
    with collective(operation, mesh) as location:
        assert location is not None
        with exchanging(location.rank_set):
            yield RowRanks(*group_along(location, mesh, names), f"{call} on {mesh_description(mesh)}")


# -- fetch ------------------------------------------------------------------------------------------------------------


def fetch(ranks: RowRanks | None, block: Array, axes: int, requests: RowOwners, out: Array) -> None:
    """Write the requested rows, in their order, to *out*. Collective over the ranks.

    Parameters
    ----------
    ranks: ranks that ask each other; None if this rank owns all requested rows
    block: block of this rank
    axes: how many of the first axes of *block* number the rows; the others are those of a row
    requests: owners and numbers of the rows
    out: array with one axis for the rows, then the axes of a row
    """
    if ranks is None:
        if not (block.flags.c_contiguous and out.flags.c_contiguous and block.size):
            opaque(out)[...] = _rows_at(block, axes, requests.row_numbers)
            return
        block_rows = opaque(block).reshape(prod(block.shape[:axes]), *block.shape[axes:])
        block_rows.take(requests.row_numbers, axis=0, out=opaque(out), mode="clip")  # unbuffered; all are in bounds
        return
    row_bytes = block.dtype.itemsize * prod(block.shape[axes:])
    in_order = block.flags.c_contiguous and out.flags.c_contiguous
    rendezvous = ranks.group.rendezvous
    is_shared = rendezvous is not None and rendezvous.size == ranks.size and in_order and row_bytes > 0
    if is_shared and block.nbytes:
        is_shared = locate(as_bytes(block)) >= 0
    max_count, any_unshared = ranks.allreduce_max(len(requests.row_numbers), not is_shared)
    if max_count == 0 or row_bytes == 0:  # a row has equally many bytes on all ranks, or this rank has no row
        return
    if not any_unshared:
        _read_rows(ranks, block, requests, out, max_count)
        return
    for chunk in _row_chunks(max_count, len(requests.row_numbers), _BYTES_PER_ROW + row_bytes):
        request_chunk = RowOwners(requests.owners[chunk], requests.row_numbers[chunk])
        _ask_owners(ranks, block, axes, request_chunk, out[chunk])


def _read_rows(ranks: RowRanks, block: Array, requests: RowOwners, out: Array, max_count: int) -> None:
    """Read the rows from the shared blocks of their owners, *max_count* at most on any rank. Collective."""
    rendezvous = ranks.group.rendezvous
    assert rendezvous is not None
    peers = [(position, False) for position in range(ranks.size) if position != ranks.position]
    block_bytes = ranks.alltoall_counts(np.full(ranks.size, block.nbytes)).tolist()
    number = fingerprint(ranks.call) ^ ranks.group.rank_set.call_digest
    data, row_bytes = as_bytes(block), out.dtype.itemsize * prod(out.shape[1:])
    for chunk in _row_chunks(max_count, len(requests.row_numbers), 4):
        regions = np.ascontiguousarray(requests.owners[chunk], dtype=np.int32)
        copies = RowCopies(block_bytes, row_bytes, regions, np.ascontiguousarray(requests.row_numbers[chunk]))
        routes = Routes(ranks.size, ranks.position, peers, peers, _fixed_copies(copies))
        rendezvous.exchange(routes, number, data, as_bytes(out[chunk]))


def _fixed_copies(copies: RowCopies) -> Callable[[tuple[int, ...], tuple[int, ...]], tuple[RowCopies, None]]:
    return lambda reads_from, writes_to: (copies, None)


def _ask_owners(ranks: RowRanks, block: Array, axes: int, requests: RowOwners, out: Array) -> None:
    """Ask the owners for rows, by messages. Collective."""
    order, counts = _by_owner(requests.owners, ranks.size)
    row_numbers = requests.row_numbers[order]
    starts = np.concatenate([[0], np.cumsum(counts)])
    is_first = np.ones(len(row_numbers), dtype=bool)  # consecutive equal numbers travel once
    is_first[1:] = row_numbers[1:] != row_numbers[:-1]
    is_first[starts[:-1][counts > 0]] = True
    has_repeats = not is_first.all()
    if has_repeats:
        distinct_index = np.cumsum(is_first) - 1
        counts = np.diff(np.concatenate([[0], distinct_index + 1])[starts])
        row_numbers = row_numbers[is_first]
    incoming_counts = ranks.alltoall_counts(counts)
    row_bytes = (block.dtype.itemsize * prod(block.shape[axes:])) or 1
    rounds = _rounds(ranks, int(incoming_counts.sum()), row_bytes)
    shape = len(row_numbers), *block.shape[axes:]
    distinct_rows = opaque(new_block(shape, block.dtype)) if has_repeats or rounds > 1 else None
    for round_rows, round_counts, round_incoming in _rounds_of(counts, incoming_counts, rounds):
        requested_numbers = _exchanged_numbers(
            ranks, row_numbers if round_rows is None else row_numbers[round_rows], round_counts, round_incoming
        )
        answer = _rows_at(block, axes, requested_numbers)
        rows = opaque(new_block((int(round_counts.sum()), *block.shape[axes:]), block.dtype))
        ranks.exchanged(answer, round_incoming, rows, round_counts)
        if distinct_rows is None:
            _put_in_order(out, order, rows)
        else:
            distinct_rows[slice(None) if round_rows is None else round_rows] = rows
    if distinct_rows is not None:
        _put_in_order(out, order, distinct_rows, distinct_index if has_repeats else None)


def _rows_at(block: Array, axes: int, row_numbers: Indices) -> Array:
    """Return rows of a block, numbered along its first *axes*, in consecutive memory.

    NumPy's take copies rows; an index array would copy them element by element.
    """
    if block.flags.c_contiguous:
        return opaque(block).reshape(prod(block.shape[:axes]), *block.shape[axes:]).take(row_numbers, axis=0)
    return np.ascontiguousarray(opaque(block)[unravelled(row_numbers, block.shape[:axes])])


def _put_in_order(out: Array, order: Indices, rows: Array, row_indices: Indices | None = None) -> None:
    """Write row i of *rows*, or row *row_indices*[i] if given, to row *order*[i] of *out*."""
    if not out.flags.c_contiguous:
        opaque(out)[order] = rows if row_indices is None else rows[row_indices]
        return
    inverse = np.empty_like(order)
    inverse[order] = np.arange(len(order)) if row_indices is None else row_indices
    rows.take(inverse, axis=0, out=opaque(out), mode="clip")


# -- deliver ----------------------------------------------------------------------------------------------------------


def deliver(
    ranks: RowRanks | None, shape: Shape, targets: RowOwners, rows: Array | None, write: Write, *, sums: bool = False
) -> None:
    """Let the owners write rows of their blocks. Collective over the ranks.

    An owner gets the rows in the order of the ranks, and those of one rank in that rank's order. If several are for
    one row of its block, the last one wins, also if they come in several rounds.

    Parameters
    ----------
    ranks: ranks that send each other rows; None if this rank owns all rows in *targets*
    shape: lengths of the axes of this rank's block that number the rows
    targets: owners and numbers of the rows
    rows: array with one row for each target; None if *write* needs none
    write: function that writes received rows; it may run several times
    sums: True if all values for one row count, in any order of the rounds; False if only the last one does
    """
    if ranks is None:
        write(unravelled(targets.row_numbers, shape), rows)
        return
    row_bytes = _WORD.itemsize + (0 if rows is None else rows.dtype.itemsize * prod(rows.shape[1:]))
    (max_count,) = ranks.allreduce_max(len(targets.row_numbers))
    last_writers: Indices | None = None
    chunks = list(_row_chunks(max_count, len(targets.row_numbers), _BYTES_PER_ROW + row_bytes))
    for chunk in chunks:
        order, counts = _by_owner(targets.owners[chunk], ranks.size)
        incoming_counts = ranks.alltoall_counts(counts)
        rounds = _rounds(ranks, int(incoming_counts.sum()), row_bytes)
        if len(chunks) * rounds > 1 and last_writers is None and not sums:
            last_writers = np.zeros(prod(shape), np.uint16 if ranks.size > 256 else np.uint8)
        for round_rows, round_counts, round_incoming in _rounds_of(counts, incoming_counts, rounds):
            selected = order if round_rows is None else order[round_rows]
            row_numbers = _exchanged_numbers(ranks, targets.row_numbers[chunk][selected], round_counts, round_incoming)
            received_rows = None
            if rows is not None:
                received_rows = new_block((int(round_incoming.sum()), *rows.shape[1:]), rows.dtype)
                ranks.exchanged(
                    opaque(rows[chunk]).take(selected, axis=0), round_counts, opaque(received_rows), round_incoming
                )
            if last_writers is not None:
                row_numbers, received_rows = _latest_rows(row_numbers, received_rows, round_incoming, last_writers)
            write(unravelled(row_numbers, shape), received_rows)


def _latest_rows(
    row_numbers: Indices, rows: Array | None, incoming_counts: Indices, last_writers: Indices
) -> tuple[Indices, Array | None]:
    """Drop rows that a later rank wrote in an earlier round, and return the others.

    *last_writers* has the last rank that wrote each row of the block; it is updated.
    """
    sources = np.repeat(np.arange(len(incoming_counts)), incoming_counts).astype(last_writers.dtype)
    is_latest = sources >= last_writers[row_numbers]
    if not is_latest.all():
        row_numbers, sources = row_numbers[is_latest], sources[is_latest]
        rows = None if rows is None else rows[is_latest]
    last_writers[row_numbers] = sources  # ascending, so that the last of equal numbers is the largest
    return row_numbers, rows


# -- migrate_rows -----------------------------------------------------------------------------------------------------


def migrate_rows(ranks: RowRanks, arrays: list[Array], owners: Indices) -> tuple[list[Array], Indices]:
    """Return the rows received by this rank, in the order of the ranks, and the number from each rank. Collective.

    Parameters
    ----------
    ranks: ranks that send each other rows
    arrays: arrays with equally many rows
    owners: position of the owner of each row
    """
    received_counts = ranks.alltoall_counts(np.bincount(owners, minlength=ranks.size))
    (max_count,) = ranks.allreduce_max(len(owners))
    row_count, row_starts = int(received_counts.sum()), np.cumsum(received_counts) - received_counts
    results = ranks.agree_on_result(lambda: [new_block((row_count, *x.shape[1:]), x.dtype) for x in arrays])
    row_bytes = sum(array.dtype.itemsize * prod(array.shape[1:]) for array in arrays)
    for chunk in _row_chunks(max_count, len(owners), _BYTES_PER_ROW + row_bytes):
        order, counts = _by_owner(owners[chunk], ranks.size)
        incoming_counts = ranks.alltoall_counts(counts)
        for array, result in zip(arrays, results, strict=True):
            sent_rows = np.ascontiguousarray(opaque(array[chunk])[order])
            ranks.exchanged(sent_rows, counts, opaque(result), incoming_counts, out_starts=row_starts)
        row_starts = row_starts + incoming_counts
    return results, received_counts


# -- ask --------------------------------------------------------------------------------------------------------------


def ask(
    ranks: RowRanks,
    owners: NDArray[np.int32] | Indices,
    questions: Array,
    answer: Callable[[Array], Array],
    out: Array,
) -> None:
    """Write the owners' answers to questions to *out*. Collective over the ranks.

    Parameters
    ----------
    ranks: ranks that ask each other
    owners: position in the group of each question's owner
    questions: array with one axis
    answer: function from questions to the answers of this rank, in the dtype of *out*
    out: array with one element for each question
    """
    (max_count,) = ranks.allreduce_max(len(questions))
    row_bytes = questions.dtype.itemsize + out.dtype.itemsize
    for chunk in _row_chunks(max_count, len(questions), _BYTES_PER_ROW + row_bytes):
        order, counts = _by_owner(owners[chunk], ranks.size)
        incoming_counts, answers = ranks.alltoall_counts(counts), out[chunk]
        for round_rows, round_counts, round_incoming in _rounds_of(
            counts, incoming_counts, _rounds(ranks, int(incoming_counts.sum()), row_bytes)
        ):
            selection = order if round_rows is None else order[round_rows]
            received_questions = new_block((int(round_incoming.sum()),), questions.dtype)
            ranks.exchanged(questions[chunk][selection], round_counts, received_questions, round_incoming)
            replies = new_block((len(selection),), out.dtype)
            ranks.exchanged(answer(received_questions), round_incoming, replies, round_counts)
            answers[selection] = replies


# -- rounds and messages ----------------------------------------------------------------------------------------------


def _row_chunks(max_count: int, count: int, row_bytes: int) -> Iterator[slice]:
    """Return intervals that split *count* rows, the same number of intervals on each rank.

    *max_count* is the largest count of any rank, *row_bytes* the size of a row.
    """
    size = max(1, DEFAULT_SCRATCH // 2 // row_bytes)
    for start in range(0, max_count, size):
        yield slice(min(start, count), min(start + size, count))


def _rounds(ranks: RowRanks, incoming: int, row_bytes: int) -> int:
    """Return the number of rounds in which the rows travel, the same on all ranks. Collective."""
    return max(1, *ranks.allreduce_max(-(-incoming * (row_bytes + _WORD.itemsize) // (DEFAULT_SCRATCH // 2))))


def _rounds_of(
    counts: Indices, incoming_counts: Indices, rounds: int
) -> Iterator[tuple[Indices | None, Indices, Indices]]:
    """Return for each round the indices of its rows, sorted by owner, and the counts to and from each rank.

    The indices are None if one round has all rows.
    """
    if rounds == 1:
        yield None, counts, incoming_counts
        return
    starts = np.cumsum(counts) - counts
    for number in range(rounds):
        begins, ends = (counts * n // rounds for n in (number, number + 1))
        round_counts, round_incoming = (
            ends - begins,
            incoming_counts * (number + 1) // rounds - incoming_counts * number // rounds,
        )
        yield _concatenated_ranges(starts + begins, round_counts), round_counts, round_incoming


def _concatenated_ranges(starts: Indices, lengths: Indices) -> Indices:
    """Return the numbers of several ranges, concatenated.

    >>> _concatenated_ranges(np.array([3, 10]), np.array([2, 3])).tolist()
    [3, 4, 10, 11, 12]
    """
    offsets = np.cumsum(lengths) - lengths
    return np.repeat(starts - offsets, lengths) + np.arange(int(lengths.sum()))


def _by_owner(owners: NDArray[np.int32] | Indices, rank_count: int) -> tuple[Indices, Indices]:
    """Return the order that sorts rows by owner (stable), and the number of rows of each owner.

    NumPy sorts short integers by counting.
    """
    owner_keys = owners.astype(np.uint8 if rank_count <= 256 else np.uint16 if rank_count <= 65536 else np.intp)
    return np.argsort(owner_keys, kind="stable"), np.bincount(owners, minlength=rank_count).astype(np.intp)


def _exchanged_numbers(ranks: RowRanks, row_numbers: Indices, counts: Indices, incoming_counts: Indices) -> Indices:
    """Send *counts* row numbers to each rank, and return the received ones. Collective."""
    ends = np.cumsum(counts)
    begins_run = np.zeros(len(row_numbers), dtype=bool)  # whether a run of consecutive numbers begins here
    begins_run[1:] = row_numbers[1:] != row_numbers[:-1] + 1
    begins_run[(ends - counts)[counts > 0]] = True
    run_starts = np.flatnonzero(begins_run)
    run_counts = counts
    if 2 * len(run_starts) < len(row_numbers):
        run_counts = np.bincount(np.searchsorted(ends, run_starts, side="right"), minlength=len(counts))
    is_by_runs = 2 * run_counts < counts
    word_counts = np.where(is_by_runs, 2 * run_counts, counts)
    if is_by_runs.any():
        lengths = np.diff(np.append(run_starts, len(row_numbers)))
        run_ends = np.cumsum(run_counts)
        pieces = list[Indices]()
        for rank in np.flatnonzero(counts):
            run_span = slice(run_ends[rank] - run_counts[rank], run_ends[rank])
            number_span = slice(ends[rank] - counts[rank], ends[rank])
            pieces += (
                [row_numbers[run_starts[run_span]], lengths[run_span]]
                if is_by_runs[rank]
                else [row_numbers[number_span]]
            )
        sent = np.concatenate(pieces).astype(_WORD)
    else:
        sent = np.ascontiguousarray(row_numbers, _WORD)
    incoming_words = ranks.alltoall_counts(word_counts)
    received = np.empty(int(incoming_words.sum()), _WORD)
    ranks.exchanged(sent, word_counts, received, incoming_words)
    if (incoming_words == incoming_counts).all():
        return received.astype(np.intp, copy=False)
    numbers, word_ends = list[Indices](), np.cumsum(incoming_words)
    for rank in np.flatnonzero(incoming_counts):
        words = received[word_ends[rank] - incoming_words[rank] : word_ends[rank]]
        numbers.append(words if len(words) == incoming_counts[rank] else _concatenated_ranges(*words.reshape(2, -1)))
    return np.concatenate(numbers).astype(np.intp, copy=False)


def unravelled(row_numbers: Indices, shape: Shape) -> tuple[Indices, ...]:
    """Return an index for each axis of *shape* from numbers in C order."""
    if len(shape) == 1:
        return (row_numbers,)
    return np.unravel_index(row_numbers, shape) if prod(shape) else tuple(row_numbers[:0] for _ in shape)
