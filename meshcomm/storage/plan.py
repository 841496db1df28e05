"""Plans of loads: which rank reads which bytes, and the exchanges afterwards. Planning reads no data of arrays."""

from collections.abc import Iterator, Mapping
from functools import cached_property, lru_cache
from math import prod
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import DTypeLike

from meshcomm.core._arguments import as_integer, counted, quote
from meshcomm.core._types import DType, Indices, Shape
from meshcomm.core._units import bytes_text, outline
from meshcomm.core.layouts.layout import Layout
from meshcomm.core.layouts.layout_text import specs_text
from meshcomm.core.layouts.machine import Machine
from meshcomm.core.layouts.mesh import Mesh
from meshcomm.core.plans.plan import Plan, plan_relayout
from meshcomm.errors import MeshError
from meshcomm.storage.by_library import layout_by_chunks
from meshcomm.storage.checksums import cut_at_ranges, joined
from meshcomm.storage.kept import cached_contents
from meshcomm.storage.load import is_checked
from meshcomm.storage.meshes import common_mesh
from meshcomm.storage.request import ArrayRequest, Layouts, Names, PathLike, load_request, meshes_of
from meshcomm.storage.routes import Route
from meshcomm.storage.small import batches
from meshcomm.storage.stored import Segment
from meshcomm.storage.transfer import is_direct, reading_costs, round_reads, route_of
from meshcomm.storage.verify import rest_of_ranges

LISTED_ARRAYS = 50
"""Arrays. Plans of loads print a line for this many."""


class Extent(NamedTuple):
    """Bytes of a file that one call reads."""

    file: Path
    offset: int
    nbytes: int


class _LoadCounts(NamedTuple):
    bytes_read: int
    calls: int
    bytes_moved: int
    peak_scratch_bytes: int


def plan_load(
    path: PathLike,
    layout: Layouts = None,
    *,
    names: Names = None,
    slices: object = None,
    dtype: DTypeLike | None = None,
    check: bool | None = None,
    max_scratch_bytes: int | None = None,
    machine: Machine | None = None,
) -> "LoadPlan":
    """Return how `load` would read a file into layouts: print it to see who reads what, and what is exchanged.

    This process reads only the header of the file. Meshes need no ranks: a plan may be for another machine.

    Parameters
    ----------
    path, layout, names, slices, dtype, check, max_scratch_bytes: as for `load`
    machine: the cost model that the load will have, see `machine_of`; by default the one without measurements

    ``FileNotFoundError`` and ``CheckpointError`` as `load`.

    >>> import tempfile, numpy as np, meshcomm as mc
    >>> path = tempfile.mkdtemp() + "/a.npy"
    >>> np.save(path, np.zeros((1000, 1000)))
    >>> columns = mc.Layout([mc.UNSHARDED, "x"], mc.Mesh(range(4), {"x": 4}))
    >>> plan = mc.plan_load(path, columns)
    >>> plan.bytes_read, plan.calls, plan.for_device(3).bytes_read
    (8000000, 4, 2000000)
    """
    request = load_request(path, layout, names, slices, None, dtype, True, False, check, max_scratch_bytes)
    mesh = common_mesh(meshes_of(layout, None))
    base, contents, _ = cached_contents(request.path)
    requests = request.arrays(contents, mesh)
    checks = is_checked(request.path, contents, check)
    costs = _ReadCosts(max_scratch_bytes, reading_costs(machine or Machine(), checks))
    arrays = [ArrayPlan(array, costs) for array in requests]
    return LoadPlan(base, mesh, arrays, contents.sizes if checks else None)


class _ReadCosts(NamedTuple):
    """What the choice of a route depends on: a scratch limit in bytes, and a cost model."""

    limit: int | None
    machine: Machine


class LoadPlan:
    """How arrays of a file get to their layouts, as `plan_load` returns it.

    Attributes are sums over the devices, except `peak_scratch_bytes`, the most of one device. Scratch is that of
    exchanges over MPI.
    """

    __module__ = "meshcomm"

    def __init__(
        self, base: Path, mesh: Mesh, arrays: "list[ArrayPlan]", file_sizes: Mapping[str, int] | None = None
    ) -> None:
        self.path, self.mesh, self.arrays = base, mesh, arrays
        small = [array.request.stored for array in arrays if array.small]
        self._batches = list(batches(small, arrays[0].limit)) if small else []
        self._file_sizes = file_sizes  # the sizes of the files whose checksums are compared

    @property
    def bytes_read(self) -> int:
        """The bytes that all devices together read from the disk; without arrays that only a library can read."""
        return sum(device.bytes_read for device in self._devices)

    @property
    def bytes_compared(self) -> int:
        """Those of `bytes_read` that are read to compare checksums only: the rest of ranges of 16 MiB."""
        return sum(nbytes for _, _, nbytes in self._checksum_reads)

    @property
    def bytes_by_library(self) -> int:
        """The bytes of arrays that a library reads, in chunks or compressed."""
        return sum(array.nbytes for array in self.arrays if array.chunks is not None)

    @property
    def calls(self) -> int:
        """The calls that read, of all devices together."""
        return sum(device.calls for device in self._devices)

    @property
    def bytes_moved(self) -> int:
        """The bytes that all devices together receive from others."""
        return sum(device.bytes_moved for device in self._devices)

    @property
    def rounds(self) -> int:
        """The exchanges, one after the other."""
        return sum(array.rounds for array in self.arrays) + len(self._batches) * (self.mesh.size > 1)

    @property
    def peak_scratch_bytes(self) -> int:
        """The most bytes that a device uses beyond its blocks."""
        return max((device.peak_scratch_bytes for device in self._devices), default=0)

    @property
    def first(self) -> int:
        """The rank that reads small arrays, and broadcasts them."""
        return min(self.mesh.ranks)

    @cached_property
    def _devices(self) -> "list[DeviceLoadPlan]":
        return [self.for_device(device) for device in range(self.mesh.size)]

    def for_device(self, device: int) -> "DeviceLoadPlan":
        """Return what one device does; *device* counts the ranks of `mesh`. ``MeshError`` if there is none.

        >>> import tempfile, numpy as np, meshcomm as mc
        >>> path = tempfile.mkdtemp() + "/a.npy"
        >>> np.save(path, np.zeros((1000, 1000)))
        >>> plan = mc.plan_load(path, mc.Layout(["x", mc.UNSHARDED], mc.Mesh(range(4), {"x": 4})))
        >>> plan.for_device(3).bytes_read
        2000000
        """
        device = as_integer(device, "device")
        if not 0 <= device < self.mesh.size:
            raise MeshError(f"device {quote(device)} is not in the mesh, which has devices 0 to {self.mesh.size - 1}")
        rank = self.mesh.ranks[device]
        counts = [array.counts(rank) for array in self.arrays]
        for batch in self._batches:
            segments = list(batch.reads()) if rank == self.first else []
            moved = 0 if rank == self.first else batch.nbytes
            counts.append(_LoadCounts(sum(segment.stop for segment in segments), len(segments), moved, batch.nbytes))
        if device == 0:
            counts += [_LoadCounts(nbytes, 1, 0, 0) for _, _, nbytes in self._checksum_reads]
        peak = max((count.peak_scratch_bytes for count in counts), default=0)
        nbytes, calls, moved = (sum(count[k] for count in counts) for k in range(3))
        return DeviceLoadPlan(self, device, nbytes, calls, moved, peak)

    def reads(self, rank: int) -> Iterator[Segment]:
        """Yield a segment for each read of *rank*, in order: its bytes 0 to *stop* come from an offset of a file.

        >>> import tempfile, numpy as np, meshcomm as mc
        >>> path = tempfile.mkdtemp() + "/a.npy"
        >>> np.save(path, np.zeros((1000, 1000)))
        >>> plan = mc.plan_load(path, mc.Layout(["x", mc.UNSHARDED], mc.Mesh(range(4), {"x": 4})))
        >>> [(segment.offset, segment.stop) for segment in plan.reads(1)]
        [(2000128, 2000000)]
        """
        if rank == self.first:
            for batch in self._batches:
                yield from batch.reads()
        for array in self.arrays:
            yield from array.reads(rank)

    @cached_property
    def _checksum_reads(self) -> list[tuple[str, int, int]]:
        """The reads of device 0 that compare checksums only: file, offset and bytes of each."""
        if self._file_sizes is None:
            return []
        segments = (segment for rank in self.mesh.ranks for segment in self.reads(rank))
        pieces = (piece for segment in segments for piece in cut_at_ranges(segment.file, segment.offset, segment.stop))
        return list(rest_of_ranges(joined((*piece, 0) for piece in pieces), self._file_sizes))

    def __repr__(self) -> str:
        return f"LoadPlan({str(self.path)!r}, {counted(len(self.arrays), 'array')}, {bytes_text(self.bytes_read)})"

    def __str__(self) -> str:
        rows = [str(array) for array in self.arrays[:LISTED_ARRAYS]]
        if len(self.arrays) > LISTED_ARRAYS:
            rows.append(f"... and {len(self.arrays) - LISTED_ARRAYS} more")
        busiest = max(self._devices, key=lambda device: device.bytes_read)
        library_text = f", and {bytes_text(self.bytes_by_library)} through a library" if self.bytes_by_library else ""
        rows.append(
            f"all devices read {bytes_text(self.bytes_read)} in {counted(self.calls, 'call')}{library_text}, and "
            f"receive {bytes_text(self.bytes_moved)} in {counted(self.rounds, 'round')}"
        )
        if self._file_sizes is not None:
            rows.append(f"of these, {bytes_text(self.bytes_compared)} are read to compare checksums only")
        rows.append(
            f"device {busiest.device} reads most, {bytes_text(busiest.bytes_read)}; a device uses at most "
            f"{bytes_text(self.peak_scratch_bytes)} of scratch over MPI"
        )
        title = f"load of {self.path} on mesh {self.mesh.dims_text}: {counted(len(self.arrays), 'array')}"
        return outline(title, rows=rows)


class DeviceLoadPlan(NamedTuple):
    """What one device does in a load, as `LoadPlan.for_device` returns it."""

    plan: LoadPlan
    device: int
    bytes_read: int
    calls: int
    bytes_moved: int
    peak_scratch_bytes: int

    @property
    def extents(self) -> list[Extent]:
        """Its reads, in order: a file, an offset and bytes for each call."""
        rank, base = self.plan.mesh.ranks[self.device], self.plan.path
        segments = [(segment.file, segment.offset, segment.stop) for segment in self.plan.reads(rank)]
        if self.device == 0:
            segments += self.plan._checksum_reads
        return [Extent(base / file if file else base, offset, nbytes) for file, offset, nbytes in segments]

    def __repr__(self) -> str:
        return (
            f"device {self.device} reads {bytes_text(self.bytes_read)} in {counted(self.calls, 'call')}, receives "
            f"{bytes_text(self.bytes_moved)} and uses at most {bytes_text(self.peak_scratch_bytes)} of scratch "
            f"over MPI in this {self.plan!r}"
        )


class ArrayPlan:
    """How one array gets to its layout. *chunks* is the shape of a chunk if only a library can read it."""

    def __init__(self, request: ArrayRequest, costs: _ReadCosts) -> None:
        self.request, self._costs, self.chunks = request, costs, request.chunks
        self.limit = costs.limit
        self.mesh = request.layout.mesh
        self.small = request.read_by_one
        self.in_runs = self.chunks is None and not self.small

    @property
    def nbytes(self) -> int:
        """The bytes that are loaded."""
        return self.request.nbytes

    @property
    def rounds(self) -> int:
        """The exchanges, one after the other; none if it is small, as small arrays are broadcast together."""
        return len(self._exchanges)

    def counts(self, rank: int) -> _LoadCounts:
        """Return the bytes and calls of *rank*; zeros if the array is small."""
        stored, device = self.request.stored, _device_of(self.mesh, rank)
        if device is None or self.small:
            return _LoadCounts(0, 0, 0, 0)
        nbytes = calls = peak = 0
        for (starts, lengths), scratch_bytes in self._reads(device):
            nbytes, calls, peak = (
                nbytes + int(lengths.sum()),
                calls + stored.calls(starts, lengths),
                max(peak, scratch_bytes),
            )
        return _LoadCounts(nbytes, calls, int(self._received[device]), peak + self._scratch(device))

    def reads(self, rank: int) -> Iterator[Segment]:
        """Yield a segment for each read of *rank*, as `LoadPlan.reads`; nothing if the array is small."""
        device = _device_of(self.mesh, rank)
        if self.in_runs and device is not None:
            for byte_runs, _ in self._reads(device):
                for segment, offset, _, size in self.request.stored.pieces(*byte_runs):
                    yield Segment(segment.file, 0, size, offset)

    @cached_property
    def _route(self) -> Route:
        request = self.request
        return route_of(request.file_layout, request.stored, request.file_chosen, *self._costs, staged=request.staged)

    def _reads(self, device: int) -> Iterator[tuple[tuple[Indices, Indices], int]]:
        if self.in_runs:
            for round_ in self._route.rounds():
                yield round_reads(round_, device, self.request.file_chosen, self.limit)

    @cached_property
    def _exchanges(self) -> list[Plan]:
        """The relayouts, in order: one for each round, or one for an array that a library reads."""
        request, costs = self.request, self._costs
        if self.in_runs:
            rounds = [round_ for round_ in self._route.rounds() if not is_direct(round_)]
            return [
                _plan_with_cache(round_.shape(), request.stored.dtype, round_.target(), round_.source(), costs)
                for round_ in rounds
            ]
        if self.chunks is None or self.mesh.size == 1 or self._read_layout == request.file_layout:
            return []
        return [
            _plan_with_cache(request.file_chosen.box, request.dtype, self._read_layout, request.file_layout, costs)
        ]

    @property
    def _read_layout(self) -> Layout:
        """The layout in which ranks read through a library."""
        assert self.chunks is not None
        return layout_by_chunks(self.request.file_chosen, self.mesh, self.chunks)

    @cached_property
    def _received(self) -> Indices:
        """The bytes that each device receives."""
        devices = np.arange(self.mesh.size, dtype=np.intp)
        steps = (step for plan in self._exchanges for step in plan.steps)
        return sum((step.traffic(devices).bytes_moved for step in steps), np.zeros_like(devices))

    def _scratch(self, device: int) -> int:
        """Return the most bytes that *device* uses beyond its block, without buffers for joined reads."""
        peaks = [plan.for_device(device).peak_bytes for plan in dict.fromkeys(self._exchanges)]
        extra_bytes = 0
        if self.chunks is not None and self._exchanges:  # the tensor that is read is not the target
            extra_bytes = (
                prod(self._read_layout.block_shape(self.request.file_chosen.box, device)) * self.request.dtype.itemsize
            )
        elif self.in_runs and (self.request.staged or self.request.file_chosen.has_steps) and not self._exchanges:
            blocks = (round_.target().block_shape(round_.shape(), device) for round_ in self._route.rounds())
            largest = max(map(prod, blocks), default=0)
            extra_bytes = largest * self.request.stored.dtype.itemsize
        return max(peaks, default=0) + extra_bytes

    def __str__(self) -> str:
        request = self.request
        stored, selection = request.stored, request.chosen
        shape = selection.shape if selection.takes_all else f"{selection.result} of {stored.shape}"
        target_layout = request.layout.specs_text
        text = f"{stored.name}  {shape} {stored.dtype} -> {target_layout}: "
        if self.small:
            return text + f"one device reads {bytes_text(stored.nbytes)} and tells the others"
        if self.chunks is not None:
            return text + f"{bytes_text(self.nbytes)} through a library, in chunks of {self.chunks}"
        if not self._exchanges:
            return text + "each device reads its block"
        file_specs = next(self._route.rounds()).target().sharding_specs
        # Without its boundaries.
        read_layout = specs_text([spec if isinstance(spec, str) else tuple(spec) for spec in file_specs])
        return text + f"read as {read_layout}, exchanged in {counted(len(self._exchanges), 'round')}"


def _device_of(mesh: Mesh, rank: int) -> int | None:
    return mesh.ranks.index(rank) if rank in mesh.ranks else None


@lru_cache(maxsize=256)
def _plan_cached(shape: Shape, dtype: DType, layouts: tuple[Layout, Layout, int, int], costs: _ReadCosts) -> Plan:
    return plan_relayout(shape, dtype, layouts[0], layouts[1], *costs)


def _plan_with_cache(shape: Shape, dtype: DType, source: Layout, target: Layout, costs: _ReadCosts) -> Plan:
    """Return the plan of a relayout, the same object for equal rounds."""
    return _plan_cached(shape, dtype, (source, target, id(source.mesh), id(target.mesh)), costs)
