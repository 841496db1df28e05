"""Tensors to files and back, on each rank by the route that all ranks choose.

An error on one rank, such as a full disk, must not stop the relayouts of the others: a rank remembers its first error,
leaves files alone from then on, and the ranks agree on it at the end.
"""

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import chain, islice, pairwise, product
from math import prod
from pathlib import Path
from types import EllipsisType
from typing import NamedTuple, TypeAlias

import numpy as np

from meshcomm.blocks.make import make, on_device
from meshcomm.blocks.session import Session
from meshcomm.core._tuning import DEFAULT_SCRATCH, PAGE
from meshcomm.core._types import Array, Bytes, Indices, Shape
from meshcomm.core.arrays.dtensor import DTensor
from meshcomm.core.arrays.relayout import machine_of, relayout
from meshcomm.core.layouts.layout import Layout
from meshcomm.core.layouts.machine import Machine
from meshcomm.core.memory.blocks import as_bytes, new_block
from meshcomm.core.memory.copies import contiguous, opaque
from meshcomm.storage import checksums, files
from meshcomm.storage.files import File
from meshcomm.storage.progress import Progress
from meshcomm.storage.routes import Round, Route, choose_route, runs
from meshcomm.storage.selection import READ_OVER, READ_TOGETHER, Selection, all_of, close_runs
from meshcomm.storage.stored import Stored

MAX_EXPECTED = 64
"""Runs of a file. The system reads at most this many of the next round in advance. A compromise: each is a call."""

FORGET_ABOVE = 2**30
"""Bytes. If a rank writes more to a file, the system may drop them from its cache, which others can use better. A
compromise, not measured."""

CACHED_READ = 1e-6
"""Seconds that a read of one run takes besides its bytes, if the file is in the memory of the system. Measured: 1.3e-6
for runs of 16 KiB, compared with one read of the same number of bytes; on a busy machine."""

READ_WINDOW = 2**24
"""Bytes of a file. While a rank reads its runs in one window of this size, the system reads the next window. A
compromise: time for the disk, and little of its cache."""

ByteRuns: TypeAlias = tuple[Indices, Indices]
"""Where runs of bytes begin in an array in row-major order, and how long they are."""

MAX_CACHED_ROUNDS, MAX_CACHED_RUNS = 16, 2**12
"""The most rounds, and runs of bytes, of a tensor whose steps are kept for the next load. A compromise: they take
memory."""


class OpenFiles:
    """The files that this rank has opened below *base*, and its first error with them.

    With *checks* it remembers the checksums of all that is read or written.
    """

    def __init__(self, base: Path, writes: bool, checks: bool = False) -> None:
        self.base, self._writes = base, writes
        self.files: dict[str, File] = {}
        self.checks = checks
        self.pieces: list[checksums.Piece] = []
        self.error: Exception | None = None
        self.progress: Progress | None = None
        self.agree: Callable[[], None] | None = None  # Collective: on the first error of the ranks
        self.has_agreed, self._has_sent = (
            False,
            False,
        )  # whether ranks have agreed on all reads; have sent data
        self.max_write = sys.maxsize  # bytes of a tensor that are written in one call of `transfer`, or one element

    def file(self, name: str) -> File:
        """Return the open file; "" is the base itself."""
        file = self.files.get(name)
        if file is None:
            path = self.base / name if name else self.base
            file = self.files[name] = files.for_writing(path) if self._writes else files.for_reading(path)
        return file

    def agree_on_reads(self) -> None:
        """Let the ranks agree on the data that they have read since the last time, if `agree` is set. Collective."""
        if self.agree is not None and not self.has_agreed:
            self.has_agreed = True
            self.agree()

    def before_sending(self) -> None:
        """Let the ranks agree before they send for the first time: often they have read all by then. Collective."""
        if not self._has_sent:
            self._has_sent = True
            self.agree_on_reads()

    @contextmanager
    def trying(self) -> Iterator[None]:
        """Remember the first error, instead of raising it."""
        try:
            yield
        except Exception as error:
            self.error = self.error or error

    def fill(self, stored: Stored, byte_runs: ByteRuns, block: Bytes, max_bytes: int = READ_TOGETHER) -> None:
        """Fill *block* from the runs of bytes of a box of the array.

        Runs that lie close together are read in one call, of at most *max_bytes*.
        """
        starts, lengths = byte_runs
        if len(starts) == 1:
            self.transfer(stored, byte_runs, block)
            return
        ends = np.cumsum(lengths)
        for first, last in close_runs(starts, lengths, READ_OVER, max_bytes):
            block_start = ends[first] - lengths[first]
            if last == first + 1:
                self.transfer(stored, (starts[first:last], lengths[first:last]), block[block_start : ends[first]])
                continue
            span = starts[last - 1] + lengths[last - 1] - starts[first]
            buffer = np.empty(span, dtype=np.uint8)
            self.transfer(stored, (starts[first : first + 1], np.array([span])), buffer)
            for start, length, end in zip(starts[first:last], lengths[first:last], ends[first:last], strict=True):
                block[end - length : end] = buffer[start - starts[first] : start - starts[first] + length]

    def transfer(self, stored: Stored, byte_runs: ByteRuns, block: Bytes) -> None:
        """Write *block* to the runs of bytes of the array, or fill it from them."""
        for segment, offset, start, size in stored.pieces(*byte_runs):
            data, file = block[start : start + size], self.file(segment.file)
            for step_data, step_offset in (
                [(data, offset)] if self.progress is None else self.progress.steps(data, offset)
            ):
                if self._writes:
                    file.write(step_data, step_offset)
                else:
                    file.read(step_data, step_offset)
                if self.checks:
                    self.pieces += checksums.pieces_of(segment.file, step_data, step_offset)

    def put(self, name: str, offset: int, data: Bytes) -> None:
        """Write a chunk to a file; to one of its own, it is on the disk when this returns."""
        if name == "":
            self.file(name).write(data, offset)
        else:
            with files.for_writing(self.base / name) as file:
                file.write(data, offset)
                file.sync()
        if self.progress is not None:
            self.progress.add(data.nbytes)

    def read_runs(self, stored: Stored, byte_runs: ByteRuns, block: Bytes, *, reads_ahead: bool) -> None:
        """Fill *block* from many runs of bytes of the array, which are in order.

        With *reads_ahead* the ranks of this node will read all bytes between the runs: the system reads the next
        window of the file while this rank copies from one, so the disk sees large reads.
        """
        block_offset = 0
        for segment, offsets, lengths in stored.runs(*byte_runs):
            file, end = self.file(segment.file), segment.offset + segment.stop - segment.start
            windows = (offsets - offsets[0]) // READ_WINDOW
            borders = [0, *(np.flatnonzero(np.diff(windows)) + 1).tolist(), len(offsets)]
            for first, last in pairwise(borders):
                for next_offset in offsets[last : last + 1].tolist() if reads_ahead else ():
                    if not file.is_in_memory(next_offset):
                        file.expect(next_offset, min(READ_WINDOW, end - next_offset))
                size = int(lengths[first:last].sum())
                file.read_runs(block[block_offset : block_offset + size], offsets[first:last], lengths[first:last])
                block_offset += size
                if self.progress is not None:
                    self.progress.add(size)

    def expect(self, round_: Round, nbytes: int) -> None:
        """Say that this rank is about to read or write *nbytes*, its share of a round."""
        if self.progress is not None:
            self.progress.expect(prod(round_.shape()) * round_.route.itemsize, nbytes)

    def expect_reads(self, stored: Stored, byte_runs: ByteRuns) -> None:
        """Let the system read the runs that this rank needs next, while the rank does something else."""
        if self.error is None:
            for segment, offset, _, size in islice(stored.pieces(*byte_runs), MAX_EXPECTED):
                with self.trying():
                    self.file(segment.file).expect(offset, size)

    def close(self) -> None:
        """Close the files; first wait until they are on the disk, if they were written."""
        for file in self.files.values():
            if self._writes and self.error is None:
                with self.trying():
                    file.sync()
                    if file.written > FORGET_ABOVE:
                        file.forget()
            with self.trying():
                file.close()
        self.files = {}


def write_tensor(
    tensor: DTensor, stored: Stored, open_files: OpenFiles, limit: int | None, selection: Selection | None = None
) -> None:
    """Write *tensor* to the files of *stored*. Collective over the mesh.

    Parameters
    ----------
    tensor: tensor to write
    stored: array in the file, with the location of its bytes
    open_files: files that are written
    limit: scratch limit of this rank, in bytes
    selection: box of the array that *tensor* fills; by default the whole array
    """
    target, max_scratch = selection or all_of(stored.shape), limit or DEFAULT_SCRATCH

    def write(device: int) -> None:
        route = route_of(tensor.layout, stored, target, limit)
        if not route.exchanges and not (route.owns(device) and open_files.error is None):
            return
        rounds = list(route.rounds())
        for round_ in rounds:
            round_part = tensor if len(rounds) == 1 and not route.exchanges else _round_tensor(tensor, round_, device)
            if not is_direct(round_):
                round_part = relayout(round_part, round_.target(), max_scratch_bytes=limit)
            if round_.route.owns(device) and open_files.error is None:
                with open_files.trying():
                    open_files.expect(round_, round_part._block.nbytes)
                    needs_no_copy = round_part._block.flags.c_contiguous and round_part.dtype == stored.dtype
                    max_bytes = open_files.max_write if needs_no_copy else min(open_files.max_write, max_scratch // 2)
                    for box, byte_runs in _in_steps(round_part._block, round_runs(round_, device, target), max_bytes):
                        block = contiguous(box.astype(stored.dtype, copy=False))
                        open_files.transfer(stored, byte_runs, as_bytes(block))

    on_device(tensor.mesh, write)


def _in_steps(block: Array, byte_runs: ByteRuns, max_bytes: int) -> Iterator[tuple[Array, ByteRuns]]:
    """Yield boxes of *block* of at most *max_bytes*, or of one element, in row-major order, and the runs of each."""
    itemsize = block.dtype.itemsize
    max_bytes = max(max_bytes, itemsize)
    if block.nbytes <= max_bytes:
        yield block, byte_runs
        return
    starts, run_ends = byte_runs[0], np.cumsum(byte_runs[1])
    run_begins, offset = run_ends - byte_runs[1], 0
    axis = next(axis for axis in range(block.ndim) if prod(block.shape[axis + 1 :]) * itemsize <= max_bytes)
    rows = max_bytes // (prod(block.shape[axis + 1 :]) * itemsize)
    for index, first in product(np.ndindex(block.shape[:axis]), range(0, block.shape[axis], rows)):
        box = block[(*index, slice(first, first + rows))]
        touched_runs = slice(run_ends.searchsorted(offset, side="right"), run_begins.searchsorted(offset + box.nbytes))
        bytes_before = np.maximum(offset - run_begins[touched_runs], 0)
        offset += box.nbytes
        yield (
            box,
            (
                starts[touched_runs] + bytes_before,
                np.minimum(run_ends[touched_runs], offset) - run_begins[touched_runs] - bytes_before,
            ),
        )


class _ReadStep(NamedTuple):
    """What this device does in a round.

    It reads *byte_runs* to a buffer, its block of *block_shape* in the layout *target*. A relayout moves them to the
    layout *source*, in which the tensor of the round has this *shape*. They go to the elements at *block_index* of the
    block of the device; without *target*, directly.
    """

    round_: Round
    block_index: tuple[EllipsisType | slice, ...]
    shape: Shape
    source: Layout
    target: Layout | None
    block_shape: Shape
    byte_runs: ByteRuns


@dataclass(eq=False)
class TensorReader:
    """Fills the block of a *device* with a *selection* of an array, in rounds, for tensors in one layout.

    *staged* says that elements are read to other memory first, in rounds: they change their dtype or their order, or
    the tensor is a slice on some rank. Where the selection has steps, the elements between are read, too, to a buffer.
    *reads_ahead* is as for `OpenFiles.read_runs`, and *limit* as for `write_tensor`.
    """

    route: Route
    stored: Stored
    selection: Selection
    limit: int | None
    device: int
    staged: bool
    reads_ahead: bool
    _cached_steps: list[_ReadStep] | None = None

    def fill(self, tensor: DTensor, open_files: OpenFiles) -> None:
        """Fill *tensor*. Collective over its mesh."""
        stored = self.stored
        for step, next_step in pairwise(chain(self._steps(), [None])):
            assert step is not None
            open_files.has_agreed = False
            block = tensor._block[step.block_index]
            if step.target is None and block.flags.c_contiguous and block.dtype == stored.dtype:
                self._read(block, step, open_files)
                continue
            buffer = new_block(step.block_shape, stored.dtype)
            self._read(buffer, step, open_files)
            if next_step is not None:
                open_files.expect_reads(stored, next_step.byte_runs)
            if step.target is not None:
                open_files.before_sending()
                out = None if self.staged else make(block, step.source, step.shape, tensor.dtype)
                read_tensor = make(buffer, step.target, step.shape, stored.dtype)
                buffer = relayout(read_tensor, step.source, out=out, max_scratch_bytes=self.limit)._block
                if out is not None:
                    continue
            with open_files.trying():
                convert(buffer, block)

    def _steps(self) -> Iterable[_ReadStep]:
        """Return the steps, which are kept if they are short."""
        if self._cached_steps is None:
            rounds = self.route.rounds()
            steps = [self._step(round_) for round_ in islice(rounds, MAX_CACHED_ROUNDS + 1)]
            if len(steps) > MAX_CACHED_ROUNDS or sum(len(step.byte_runs[0]) for step in steps) > MAX_CACHED_RUNS:
                return chain(steps, map(self._step, rounds))
            self._cached_steps = steps
        return self._cached_steps

    def _step(self, round_: Round) -> _ReadStep:
        shape, source = round_.shape(), round_.source()
        target = None if is_direct(round_) else round_.target()
        block_shape = (target or source).block_shape(shape, self.device)
        index, byte_runs = _index(round_, self.device), round_runs(round_, self.device, self.selection)
        return _ReadStep(round_, index, shape, source, target, block_shape, byte_runs)

    def _read(self, block: Array, step: _ReadStep, open_files: OpenFiles) -> None:
        if open_files.error is not None:
            return
        with open_files.trying():
            open_files.expect(step.round_, block.nbytes)
            if not self.selection.has_steps:
                self._read_runs(block, step.byte_runs, open_files)
                return
            intervals = step.round_.file_intervals(self.device)
            file_intervals = self.selection.in_file(intervals, self.stored.dtype.itemsize)
            buffer = new_block(
                tuple(sum(stop - start for start, stop in axis_intervals) for axis_intervals in file_intervals),
                self.stored.dtype,
            )
            self._read_runs(buffer, step.byte_runs, open_files)
            convert(self.selection.taken(buffer, intervals), block)

    def _read_runs(self, block: Array, byte_runs: ByteRuns, open_files: OpenFiles) -> None:
        if not self.selection.takes_all:
            open_files.fill(self.stored, byte_runs, as_bytes(block), joined_read_limit(self.limit))
        elif not open_files.checks and len(byte_runs[0]) > 1 and (np.diff(byte_runs[0]) > 0).all():
            open_files.read_runs(self.stored, byte_runs, as_bytes(block), reads_ahead=self.reads_ahead)
        else:
            open_files.transfer(self.stored, byte_runs, as_bytes(block))


def convert(source: Array, target: Array) -> None:
    """Copy *source* to *target*, which may have another dtype."""
    if source.dtype == target.dtype:
        np.copyto(opaque(target), opaque(source))
    else:
        np.copyto(target, source, casting="unsafe")


def joined_read_limit(limit: int | None) -> int:
    """Return the most bytes that one call reads if it joins runs: they are read to a buffer."""
    return min(READ_TOGETHER, (limit or DEFAULT_SCRATCH) // 4)


def round_reads(round_: Round, device: int, selection: Selection, limit: int | None) -> tuple[ByteRuns, int]:
    """Return the runs of bytes that *device* reads in a round, and the scratch bytes of its largest read."""
    byte_runs = round_runs(round_, device, selection)
    if selection.takes_all:
        return byte_runs, 0
    joined_runs, scratch_bytes = joined_reads(byte_runs, joined_read_limit(limit))
    return joined_runs, scratch_bytes + (int(byte_runs[1].sum()) if selection.has_steps else 0)


def joined_reads(byte_runs: ByteRuns, max_bytes: int = READ_TOGETHER) -> tuple[ByteRuns, int]:
    """Return the runs that are read if close ones are joined, and the bytes of the largest joined one."""
    starts, lengths = byte_runs
    pairs = close_runs(starts, lengths, READ_OVER, max_bytes)
    firsts = np.array([first for first, _ in pairs], dtype=np.intp)
    lasts = np.array([last - 1 for _, last in pairs], dtype=np.intp)
    spans = starts[lasts] + lengths[lasts] - starts[firsts]
    return (starts[firsts], spans), int(max(spans[lasts > firsts], default=0))


def route_of(
    layout: Layout,
    stored: Stored,
    selection: Selection,
    limit: int | None,
    machine: Machine | None = None,
    *,
    staged: bool = False,
) -> Route:
    """Return the route between a tensor in *layout* and the *selection* of *stored*.

    *machine* has the costs; by default those of the ranks. Collective over the mesh without it, if its ranks have not
    communicated yet. *staged* is as for `TensorReader`.
    """
    itemsize, max_bytes = stored.dtype.itemsize, (limit or DEFAULT_SCRATCH) // 2
    spreads = [selection.spread(axis, itemsize) for axis in range(len(selection.box))]
    staged = staged or selection.has_steps
    if staged:  # a round has a block for the file, and one of the tensor's layout, which replicas make larger
        max_bytes //= 2 * (layout.mesh.size // prod(layout.shape)) * prod(spreads)
    costs = machine_of(layout.mesh) if machine is None else machine
    full = tuple(-(-n // step) for n, step in zip(selection.shape, spreads, strict=True))
    return choose_route(layout, selection.box, itemsize, max_bytes, costs, full=full, staged=staged, unit=stored.unit)


def reading_costs(machine: Machine, checks: bool) -> Machine:
    """Return the costs of loading; *checks* says whether checksums are compared.

    The ranks of a node share the page cache of the system: if it has read a file for one rank, others copy from the
    cache. So on one node a short read costs little, and saves an exchange.
    """
    return machine if checks or not machine.one_node else _with_cheap_reads(machine)


@lru_cache(maxsize=8)
def _with_cheap_reads(machine: Machine) -> Machine:
    return replace(machine, alpha_disk=min(machine.alpha_disk, CACHED_READ))


def is_direct(round_: Round) -> bool:
    """Return whether blocks go between memory and the file as they are."""
    return not round_.route.exchanges or round_.source() == round_.target()


def _round_tensor(tensor: DTensor, round_: Round, device: int) -> DTensor:
    """Return the part of *tensor* that the round takes: the block of this *device* is a view."""
    return make(tensor._block[_index(round_, device)], round_.source(), round_.shape(), tensor.dtype)


def _index(round_: Round, device: int) -> tuple[EllipsisType | slice, ...]:
    """Return the index of what a round takes of the block of *device*. It gives a view, even without axes."""
    return (..., *(slice(*interval) for interval in round_.local_box(device)))


def round_runs(round_: Round, device: int, selection: Selection) -> ByteRuns:
    """Return the runs of bytes of the array that *device* reads or writes in a round."""
    if prod(selection.box) * round_.route.itemsize <= PAGE:
        return _few_byte_runs(round_, device, selection)
    return _byte_runs(round_, device, selection)


def _byte_runs(round_: Round, device: int, selection: Selection) -> ByteRuns:
    itemsize = round_.route.itemsize
    starts, lengths = runs(selection.in_file(round_.file_intervals(device), itemsize), selection.shape)
    return starts * itemsize, lengths * itemsize


_few_byte_runs = lru_cache(maxsize=1024)(_byte_runs)  # of one page: checkpoints have many small arrays of few shapes


def gathered_pieces(local_pieces: list[checksums.Piece], session: Session) -> list[checksums.Piece]:
    """Return on device 0 the joined checksums of all ranks, and elsewhere none. Collective over the mesh.

    No other rank needs them, and there are some for each range of a file.
    """
    pieces = chain.from_iterable(session.gather_to_first(local_pieces))
    return checksums.joined((file, offset, length, crc) for file, offset, length, crc in pieces)
