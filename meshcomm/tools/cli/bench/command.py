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
"""A size is left out by default if so many blocks of it, for each rank of a host, need more than half its free memory.
The most are held by `cases.fft`: the array, its spectrum, an exchange, and the blocks of the reference."""

SLOW = 2.0
"""Seconds. By default no larger size follows one whose operation and reference take this long."""


class BenchOperation(NamedTuple):
    """An operation: how to make a case, what is beside it, and whether the rate counts all ranks at once."""

    make: disk.Maker
    beside: str
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
        return _say_refusal(error, 2)
    try:
        mesh = request.mesh or meshcomm.create_mesh()
        location = location_in(mesh)
        if location is None or location.rank_set.world.size != mesh.size:
            raise MeshError(f"--mesh {options.mesh} has {mesh.size} devices; it needs one for each rank of the job")
        return _bench(request, request.setting(mesh, location.device), location.rank_set.everyone.communicator())
    except MeshcommError as error:
        return _say_refusal(error, 1)
    except KeyboardInterrupt:
        abort.end_job_of_many("interrupted", 130)  # the other ranks may wait for this one
        say("interrupted", error=True)
        return 130


def _say_refusal(error: MeshcommError, code: int) -> int:
    """Say what all ranks found wrong, once."""
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
        """Return what all sizes share, on *mesh*."""
        source, target = (
            None if text is None else layout_of(text, mesh) for text in (self.options.source, self.options.target)
        )
        return cases.Setting(mesh, rank, source, target, self.shape, self.dtype)


def _checked_options(options: argparse.Namespace) -> BenchRequest:
    """Return what the *options* say; ``MeshcommError`` if they say something wrong."""
    unknown = [name for name in options.names if name not in NAMES]
    if unknown:
        meant = suggestion(unknown[0], NAMES)
        raise MeshcommError(f"there is no bench {quote(unknown[0])}; there are {', '.join(NAMES)}{meant}")
    smallest = bytes_of(options.min) if options.min else SMALLEST
    largest = bytes_of(options.max) if options.max else max(LARGEST, smallest)
    factor = options.factor or (FACTOR if options.names else QUICK_FACTOR)
    if not 1 <= smallest <= largest or factor < 2:
        raise MeshcommError(
            f"sizes from {smallest} to {largest} by a factor of {factor}: --min is 1 or more and at "
            "most --max, --factor 2 or more"
        )
    if options.rounds is not None and options.rounds < 1:
        raise MeshcommError(f"--rounds is {options.rounds}; it is 1 or more")
    sizes = [smallest]
    while sizes[-1] * factor <= largest and not options.shape:
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
    """Measure what is wanted, and show it. Collective. Return the exit code."""
    hosts = about.gather_hosts(communicator)
    facts = report.facts(hosts)
    shows = communicator.rank == 0
    table = shows and not request.options.json
    if table:
        say(report.introduction(facts))
    largest = _largest_in_memory(communicator, max(host.ranks for host in hosts))
    results_of_operations: list[BenchResults] = []
    with ExitStack() as stack:
        for name, operation in _operations(request, communicator, stack):
            results_of_operations.append(BenchResults(name, operation.beside, operation.total, []))
            if table:
                say(results_of_operations[-1].heading())
            for row in _rows(request, operation, setting, communicator, largest):
                results_of_operations[-1].rows.append(row)
                if table:
                    say(report.line(row))
    if shows and request.options.json:
        say(json.dumps(report.document(facts, results_of_operations), indent=1))
    if shows and request.options.plot:
        report.plot(request.options.plot, results_of_operations, f"meshcomm on {setting.mesh.size} ranks")
    wrong = sum(row.wrong_elements for results in results_of_operations for row in results.rows)
    if wrong and shows:
        say(f"\nmeshcomm: {counted(wrong, 'wrong element')}", error=True)
    return int(wrong > 0)


def _operations(
    request: BenchRequest, communicator: Communicator, stack: ExitStack
) -> Iterator[tuple[str, BenchOperation]]:
    """Yield the operations by name; *stack* removes the folder for files at the end. Collective."""
    for name in request.names:
        if name != DISK:
            yield name, OPERATIONS[name]
            continue
        folder = stack.enter_context(disk.new_folder(communicator, request.options.folder))
        for which, make in disk.makers(folder).items():
            yield f"{name}: {which}", BenchOperation(make, "one stream", total=True)


def _rows(
    request: BenchRequest, operation: BenchOperation, setting: cases.Setting, communicator: Communicator, largest: int
) -> Iterator[Row]:
    """Yield what is measured at each size. Sizes that nobody asked for end where they take long, or too much memory.

    Collective.
    """
    for nbytes in request.sizes:
        if nbytes > largest and request.options.max is None and nbytes > request.sizes[0]:
            return
        row = measure_case(communicator, operation.make(setting, nbytes), request.options.rounds)
        yield row
        if request.options.max is None and communicator.allgather_json(row.took > SLOW)[0]:
            return


def _largest_in_memory(communicator: Communicator, ranks: int) -> int:
    """Return the largest bytes of a block that fit on all hosts, with at most so many *ranks* each. Collective."""
    return min(communicator.allgather_json(about.free_memory())) // (2 * BLOCKS * ranks)
