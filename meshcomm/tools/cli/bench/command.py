"""The command ``bench``: which operations at which sizes, and the exit code."""

import argparse
import json
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import NamedTuple

import meshcomm
from meshcomm.core._arguments import counted, quote
from meshcomm.core._mistakes import suggestion
from meshcomm.core._types import DType, Shape
from meshcomm.core.failures import abort
from meshcomm.core.layouts.mesh import Mesh
from meshcomm.core.ranks.communicator import Communicator
from meshcomm.core.ranks.meshes import location_in
from meshcomm.errors import MeshcommError, MeshError
from meshcomm.tools.cli import about
from meshcomm.tools.cli.arguments import bytes_of, dtype_of, layout_of, mesh_of, shape_of
from meshcomm.tools.cli.bench import cases, disk, report
from meshcomm.tools.cli.bench.measure import Row, measure_case
from meshcomm.tools.cli.bench.options import NAMES
from meshcomm.tools.cli.bench.report import BenchResults
from meshcomm.tools.cli.once import print_once
from meshcomm.tools.cli.terminal import say

QUICK = ("relayout", "all_to_all", "memcpy")
"""What runs if no operation is named, at sizes that grow by QUICK_FACTOR."""

QUICK_FACTOR, FACTOR = 16, 4
SMALLEST, LARGEST = 2**10, 2**26
"""Bytes of a block: the default sizes."""

BLOCKS = 6
"""Number of blocks that a rank may hold at once. By default a size is left out if these blocks of all ranks of a host
need more than half of its free memory. `cases.fft` holds the most: array, spectrum, an exchange, the reference."""

SLOW = 2.0
"""Seconds. By default no larger sizes follow one at which operation and reference together take this long."""


class BenchOperation(NamedTuple):
    """An operation: what makes its cases, the name of their reference, and whether the rate is that of all ranks."""

    make: disk.Maker
    reference_name: str
    total: bool = False


OPERATIONS = {
    "relayout": BenchOperation(cases.relayout, "memcpy"),
    "all_to_all": BenchOperation(cases.exchange, "memcpy"),
    "memcpy": BenchOperation(cases.memory, "one rank alone"),
    "fft": BenchOperation(cases.fft, "local transform"),
    "halo": BenchOperation(cases.halo, "local copies"),
}
DISK = "disk"


def bench(options: argparse.Namespace) -> int:
    """Time operations at growing sizes, and check their results. Collective over COMM_WORLD.

    Return 0; 1 if a result is wrong or nothing can be measured, 2 for wrong options, 130 after Ctrl-C.
    """
    try:
        request = _checked_options(options)
    except MeshcommError as error:
        return _print_refusal(error, 2)
    try:
        mesh = request.mesh or meshcomm.create_mesh()
        location = location_in(mesh)
        if location is None or location.rank_set.world.size != mesh.size:
            raise MeshError(f"--mesh {options.mesh} has {mesh.size} devices; it needs one for each rank of the job")
        return _bench(request, request.setting(mesh, location.device), location.rank_set.everyone.communicator())
    except MeshcommError as error:
        return _print_refusal(error, 1)
    except KeyboardInterrupt:
        abort.end_job_of_many("interrupted", 130)  # the other ranks may wait for this one
        say("interrupted", error=True)
        return 130


def _print_refusal(error: MeshcommError, code: int) -> int:
    """Print, once, the *error* that all ranks raised, and return the exit *code*."""
    print_once(f"meshcomm: {error}")
    return code


class BenchRequest(NamedTuple):
    """The checked options of the command; *options* has those that need MPI, as texts."""

    options: argparse.Namespace
    names: Sequence[str]
    sizes: Sequence[int]
    mesh: Mesh | None
    shape: Shape | None
    dtype: DType | None

    def setting(self, mesh: Mesh, rank: int) -> cases.Setting:
        """Return what the cases of all sizes have in common, on *mesh*."""
        source, target = (
            None if text is None else layout_of(text, mesh) for text in (self.options.source, self.options.target)
        )
        return cases.Setting(mesh, rank, source, target, self.shape, self.dtype)


def _checked_options(options: argparse.Namespace) -> BenchRequest:
    """Return the checked *options*; ``MeshcommError`` for a wrong one."""
    unknown_names = [name for name in options.names if name not in NAMES]
    if unknown_names:
        hint = suggestion(unknown_names[0], NAMES)
        raise MeshcommError(f"there is no bench {quote(unknown_names[0])}; there are {', '.join(NAMES)}{hint}")
    smallest_size = bytes_of(options.min) if options.min else SMALLEST
    largest_size = bytes_of(options.max) if options.max else max(LARGEST, smallest_size)
    factor = options.factor or (FACTOR if options.names else QUICK_FACTOR)
    if not 1 <= smallest_size <= largest_size or factor < 2:
        raise MeshcommError(
            f"sizes from {smallest_size} to {largest_size} by a factor of {factor}: --min is 1 or more and at "
            "most --max, --factor 2 or more"
        )
    if options.rounds is not None and options.rounds < 1:
        raise MeshcommError(f"--rounds is {options.rounds}; it is 1 or more")
    sizes = [smallest_size]
    while sizes[-1] * factor <= largest_size and not options.shape:
        sizes.append(sizes[-1] * factor)
    if options.plot:
        report.check_plot(options.plot)
    return BenchRequest(
        options,
        list(dict.fromkeys(options.names or QUICK)),
        sizes,
        mesh_of(options.mesh) if options.mesh else None,
        shape_of(options.shape) if options.shape else None,
        dtype_of(options.dtype) if options.dtype else None,
    )


def _bench(request: BenchRequest, setting: cases.Setting, communicator: Communicator) -> int:
    """Measure the operations of *request*, print the results, and return the exit code. Collective."""
    hosts = about.gather_hosts(communicator)
    facts = report.facts(hosts)
    prints = communicator.rank == 0
    prints_table = prints and not request.options.json
    if prints_table:
        say(report.introduction(facts))
    max_block_bytes = _max_block_bytes(communicator, max(host.ranks for host in hosts))
    results_of_operations: list[BenchResults] = []
    with ExitStack() as stack:
        for name, operation in _operations(request, communicator, stack):
            results_of_operations.append(BenchResults(name, operation.reference_name, operation.total, []))
            if prints_table:
                say(results_of_operations[-1].heading())
            for row in _rows(request, operation, setting, communicator, max_block_bytes):
                results_of_operations[-1].rows.append(row)
                if prints_table:
                    say(report.line(row))
    if prints and request.options.json:
        say(json.dumps(report.document(facts, results_of_operations), indent=1))
    if prints and request.options.plot:
        report.plot(request.options.plot, results_of_operations, f"meshcomm on {setting.mesh.size} ranks")
    wrong_count = sum(row.wrong_elements for results in results_of_operations for row in results.rows)
    if wrong_count and prints:
        say(f"\nmeshcomm: {counted(wrong_count, 'wrong element')}", error=True)
    return int(wrong_count > 0)


def _operations(
    request: BenchRequest, communicator: Communicator, stack: ExitStack
) -> Iterator[tuple[str, BenchOperation]]:
    """Yield the operations by name; *stack* removes the folder for files at the end. Collective."""
    for name in request.names:
        if name != DISK:
            yield name, OPERATIONS[name]
            continue
        folder = stack.enter_context(disk.new_folder(communicator, request.options.folder))
        for action, make in disk.makers(folder).items():
            yield f"{name}: {action}", BenchOperation(make, "one stream", total=True)


def _rows(
    request: BenchRequest,
    operation: BenchOperation,
    setting: cases.Setting,
    communicator: Communicator,
    max_block_bytes: int,
) -> Iterator[Row]:
    """Yield a row for each size. Without ``--max``, stop where sizes take long or too much memory. Collective."""
    for nbytes in request.sizes:
        if nbytes > max_block_bytes and request.options.max is None and nbytes > request.sizes[0]:
            return
        row = measure_case(communicator, operation.make(setting, nbytes), request.options.rounds)
        yield row
        if request.options.max is None and communicator.allgather_json(row.took > SLOW)[0]:
            return


def _max_block_bytes(communicator: Communicator, ranks_per_host: int) -> int:
    """Return the most bytes of a block that fit on all hosts; a host has up to *ranks_per_host* ranks. Collective."""
    return min(communicator.allgather_json(about.free_memory())) // (2 * BLOCKS * ranks_per_host)
