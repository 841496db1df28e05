"""Calibration: the constants of a machine, fitted to relayouts that its ranks run.

The probes are ordinary relayouts, so the constants describe the code that moves data here. All ranks of a node
exchange at once, as in a relayout over all ranks: the cost of a byte includes that ranks share memory and network. The
fastest of many runs of a probe counts, as in :mod:`timeit`, because other work can only make a run slower. The
predicted time is a sum: each count times its constant. The fit minimises the typical factor between predicted and
measured time, so small and large messages count alike, and single bad measurements do not matter.
"""

import contextlib
import os
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from meshcomm.core._types import Indices
from meshcomm.core.arrays.compile import prepare
from meshcomm.core.arrays.create import full
from meshcomm.core.layouts.layout import Layout
from meshcomm.core.layouts.layout_text import UNSHARDED
from meshcomm.core.layouts.machine import CONSTANTS, DISK_CONSTANTS, Load, Machine
from meshcomm.core.layouts.mesh import Mesh
from meshcomm.core.plans.plan import plan_relayout
from meshcomm.core.ranks.communicator import Communicator
from meshcomm.core.ranks.meshes import create_mesh, location_in
from meshcomm.core.ranks.rank_sets import RankSet
from meshcomm.errors import MeshError
from meshcomm.storage.files import create, remove
from meshcomm.tools.cli.turns import Run, Turns

Floats: TypeAlias = NDArray[np.float64]

MESSAGES = tuple(2**power for power in (3, 6, 9, 12, 15, 18, 20, 21, 22))
"""Bytes per message. Most of the large messages exceed the caches, as large arrays do."""

LARGE_BYTES = tuple(2**20 * mebibytes for mebibytes in (8, 16, 24, 32))
"""Bytes that the ranks of a node send together in the large probes between nodes. Smaller ones may look too fast:
networks buffer some MiB in systems and switches, or let a node exceed its bandwidth for a short time."""

WITHIN = ("wait_within", "alpha_within", "beta_within")
BETWEEN = ("wait_between", "alpha_between", "beta_between")
MEMORY = ("gamma",)

FILE_BYTES = tuple(2**power for power in (12, 14, 16, 18, 20, 22))
"""Bytes that a probe of the disk writes to a file, or reads from it, in one call. They stay in the page cache."""

MAX_SMALL_BYTES = 2**15
"""The most bytes of a message between nodes in the probes that are not large."""

MAX_BYTES = 2**23
"""Bytes. A rank receives at most this many in a probe."""

MAX_RANKS = 16
"""Ranks. At most this many exchange with each other in a probe."""

COPY_BYTES = tuple(2**power for power in (16, 18, 20, 21, 22))
"""Bytes that a probe of the memory copies, in runs of `RUN_BYTES` bytes as packing does."""

RUN_BYTES = 512
"""Bytes that are contiguous in a probe of the memory."""

ROUNDS = 25
"""Each probe runs in this many turns; its fastest turn counts."""

MAX_SECONDS, MIN_TURNS = 5.0, 5
"""Seconds of all turns, and turns. If `ROUNDS` turns take longer, there are fewer turns, but at least this many."""


class Fit(NamedTuple):
    """Fitted constants.

    Parameters
    ----------
    constants: seconds by name
    typical, worst: typical and largest factor between predicted and measured times
    measured: number of measurements
    """

    constants: dict[str, float]
    typical: float
    worst: float
    measured: int

    def applied_to(self, machine: Machine) -> Machine:
        """Return *machine* with these constants."""
        return replace(machine, nodes=machine.nodes, **self.constants)


class Calibration(NamedTuple):
    """The fits within nodes, between nodes, of memory and of files; None if the ranks do not allow the measurement."""

    within: Fit | None
    between: Fit | None
    memory: Fit
    disk: Fit | None

    @property
    def constants(self) -> dict[str, float]:
        """The constants of a `Machine` that were measured."""
        return {name: value for fit in self if fit is not None for name, value in fit.constants.items()}


class _Probe(NamedTuple):
    """A relayout to be timed.

    Parameters
    ----------
    load: its load on device 0, which has the most to do
    run: function that runs it; None on ranks outside of its mesh
    """

    load: Load
    run: Run | None


def calibrate(rank_set: RankSet, folder: Path) -> Calibration:
    """Measure what it costs to move bytes between the ranks of *rank_set*, all ranks of a world. Collective.

    Files are measured in *folder*, if all ranks can write there. ``MeshError`` if there is only one rank.
    """
    communicator, machine = rank_set.everyone.communicator(), rank_set.machine
    if communicator.size < 2:
        raise MeshError("calibrate needs 2 ranks or more, such as mpiexec -n 2 python -m meshcomm calibrate")
    nodes = _ranks_by_node(np.arange(communicator.size, dtype=np.intp), machine)
    memory_fit = _fit_constants(
        communicator, _copy_probes(_group_mesh([np.concatenate(nodes)], 2), machine), MEMORY, machine
    )
    machine = memory_fit.applied_to(machine)
    fit_within = fit_between = None
    shared_nodes = [node for node in nodes if len(node) > 1]
    if shared_nodes:
        probes = [
            _with_all_bytes_moved(probe)
            for mesh in _pair_and_group_meshes(shared_nodes)
            for probe in _exchange_probes(mesh, machine)
        ]
        fit_within = _fit_constants(communicator, probes, WITHIN, machine)
        machine = fit_within.applied_to(machine)
    if len(nodes) > 1:
        totals = [total // min(map(len, nodes)) for total in LARGE_BYTES]
        probes = [probe for mesh in _meshes_over_nodes(nodes) for probe in _exchange_probes(mesh, machine, totals)]
        fit_between = _fit_constants(communicator, probes, BETWEEN, machine)
    return Calibration(fit_within, fit_between, memory_fit, _disk_fit(communicator, folder))


# -- probes -----------------------------------------------------------------------------------------------------------


def _ranks_by_node(ranks: Indices, machine: Machine) -> list[Indices]:
    """Return the ranks on each node."""
    nodes = machine.node_of(ranks)
    return [ranks[nodes == node] for node in dict.fromkeys(nodes.tolist())]


def _meshes_over_nodes(nodes: list[Indices]) -> list[Mesh]:
    """Return meshes in which ranks of different nodes exchange with each other: one of pairs, and one of many."""
    min_ranks = min(len(node) for node in nodes)
    rows = list(np.array([node[:min_ranks] for node in nodes]).T)
    if len(nodes) > 2 or min_ranks == 1:
        return _pair_and_group_meshes(rows)
    ranks_per_node = min(min_ranks, MAX_RANKS // 2)
    return [
        _group_mesh(rows, 2),
        _group_mesh([np.concatenate([node[:ranks_per_node] for node in nodes])], 2 * ranks_per_node),
    ]


def _pair_and_group_meshes(rows: list[Indices]) -> list[Mesh]:
    """Return meshes in which ranks of the same row exchange with each other: one of pairs, and one of many."""
    return [_group_mesh(rows, size) for size in sorted({2, min(MAX_RANKS, min(map(len, rows)))})]


def _group_mesh(rows: list[Indices], size: int) -> Mesh:
    """Return a mesh of groups of *size* ranks; each group has ranks of one row."""
    ranks = np.concatenate([row[: len(row) // size * size].reshape(-1, size) for row in rows])
    return create_mesh([("groups", len(ranks)), ("x", size)], devices=ranks.ravel().tolist())


def _exchange_probes(mesh: Mesh, machine: Machine, large_totals: Sequence[int] = ()) -> list[_Probe]:
    """Return exchanges in the groups of *mesh* that neither pack nor unpack: every box is one row.

    With *large_totals*, a rank sends these numbers of bytes in all, instead of the large ones of `MESSAGES`.
    """
    size = mesh.dim_size("x")
    rows, columns = Layout(["x", UNSHARDED], mesh), Layout([UNSHARDED, "x"], mesh)
    lengths = [
        length
        for length in MESSAGES
        if (length <= MAX_SMALL_BYTES if large_totals else length * (size - 1) <= MAX_BYTES)
    ]
    lengths += [total // (size - 1) for total in large_totals]
    return [_probe_of((size, size * length), rows, columns, machine) for length in lengths]


def _with_all_bytes_moved(probe: _Probe) -> _Probe:
    """Return *probe* with the bytes that stay on the rank counted as if they came from another rank of the node.

    On one node both are copies. Subtracting the time of the bytes that stay would leave a small and uncertain
    difference: a copy takes less time while its data is in the cache.
    """
    load = probe.load
    return probe._replace(load=load._replace(on_node_bytes=load.on_node_bytes + load.passed_bytes, passed_bytes=0.0))


def _copy_probes(mesh: Mesh, machine: Machine) -> list[_Probe]:
    """Return probes that only copy within a rank."""
    unsharded, columns = Layout([UNSHARDED, UNSHARDED], mesh), Layout([UNSHARDED, "x"], mesh)
    return [_probe_of((length // RUN_BYTES, 2 * RUN_BYTES), unsharded, columns, machine) for length in COPY_BYTES]


def _disk_fit(communicator: Communicator, folder: Path) -> Fit | None:
    """Return the costs of files: each rank writes and reads one. None if a rank cannot make a file."""
    path, file = folder / f".meshcomm-calibrate-{os.getpid()}-{communicator.rank}", None
    with contextlib.suppress(OSError):
        file = create(path)
        remove(path)
    try:
        if communicator.allreduce_max(np.array([file is None], dtype=np.int64))[0] or file is None:
            return None
        data = [np.ones(size, dtype=np.uint8) for size in FILE_BYTES]
        calls = [partial(call, buffer, 0) for call in (file.write, file.read) for buffer in data]
        times = np.array(fastest(communicator, calls))
    finally:
        if file is not None:
            file.close()
    counts = np.array([[1, size] for size in FILE_BYTES * 2], dtype=float)
    costs = fit(counts, times)
    return _rounded_fit(DISK_CONSTANTS, costs, _factors(counts @ costs, times))


def _probe_of(shape: tuple[int, int], source: Layout, target: Layout, machine: Machine) -> _Probe:
    plan = plan_relayout(shape, np.uint8, source, target, 2 * MAX_BYTES, machine)
    load, location = plan.for_device(0).load, location_in(source.mesh)
    if location is None:
        return _Probe(load, None)
    run = prepare(plan, location)
    block, out = (full(shape, 1, np.uint8, layout)._block for layout in (source, target))
    return _Probe(load, lambda: run(block, out))


# -- times and fits ---------------------------------------------------------------------------------------------------


def _times(communicator: Communicator, probes: list[_Probe]) -> list[float]:
    return fastest(communicator, [probe.run for probe in probes])


def fastest(communicator: Communicator, runs: Sequence[Run | None], rounds: int = ROUNDS) -> list[float]:
    """Return the seconds that each of *runs* takes on the slowest rank, in its fastest turn. Collective.

    A run is None on a rank that has nothing to do.
    """
    turns = Turns(communicator, runs)
    for _ in range(max(min(rounds, MIN_TURNS), min(rounds, int(MAX_SECONDS / max(turns.seconds_per_turn, 1e-9))))):
        turns.take_turn()
    return turns.seconds().min(axis=0).tolist()


def _fit_constants(communicator: Communicator, probes: list[_Probe], names: tuple[str, ...], machine: Machine) -> Fit:
    """Return the constants called *names* that fit the times of *probes*. *machine* has the other constants.

    Collective.
    """
    loads = np.array([probe.load for probe in probes])
    is_fitted = np.array([name in names for name in CONSTANTS])
    known_times = loads @ np.array([0.0 if name in names else getattr(machine, name) for name in CONSTANTS])
    times = np.array(_times(communicator, probes))
    costs = fit(loads[:, is_fitted], times, known_times)
    factors = _factors(loads[:, is_fitted] @ costs + known_times, times)
    return _rounded_fit([name for name in CONSTANTS if name in names], costs, factors)


def _rounded_fit(names: Sequence[str], costs: Floats, factors: Floats) -> Fit:
    # So that printed and written constants are equal.
    rounded_costs = [float(f"{value:.4g}") for value in costs.tolist()]
    constants = dict(zip(names, rounded_costs, strict=True))
    return Fit(constants, float(np.median(factors)), float(factors.max()), len(factors))


def fit(counts: Floats, times: Floats, known_times: Floats | float = 0.0) -> Floats:
    """Return the cost of each kind of unit.

    No cost is negative. Each solution considered predicts as many times exactly as there are costs; the best one
    has the smallest typical factor between predictions and times. Units that cannot be distinguished cost the same.

    Parameters
    ----------
    counts: number of units of each kind, of shape (measurements, kinds)
    times: the seconds that each measurement took
    known_times: the part of these seconds that other units take

    >>> fit(np.array([[1, 1], [1, 100], [1, 1000], [1, 5000]]), np.array([3e-6, 1.02e-4, 1.002e-3, 1.0])).round(9)
    array([2.e-06, 1.e-06])
    """
    columns, kind_index = np.unique(counts, axis=1, return_inverse=True)
    columns = columns * np.bincount(kind_index)  # equal columns count together
    kind_count = columns.shape[1]
    solutions = [np.zeros((1, kind_count))]
    for size in range(1, kind_count + 1):
        row_sets = np.array(list(combinations(range(len(times)), size)))
        for used_kinds in map(list, combinations(range(kind_count), size)):
            systems, right_sides = columns[row_sets][:, :, used_kinds], (times - known_times)[row_sets]
            solvable = np.linalg.matrix_rank(systems) == size
            candidates = np.zeros((int(solvable.sum()), kind_count))
            candidates[:, used_kinds] = np.linalg.solve(systems[solvable], right_sides[solvable][..., None])[..., 0]
            solutions.append(candidates[(candidates >= 0).all(axis=1)])
    costs = np.concatenate(solutions)
    factors = _factors(costs @ columns.T + known_times, times)
    return costs[np.log(factors).sum(axis=1).argmin()][kind_index]


def _factors(predicted: Floats, times: Floats) -> Floats:
    """Return the factor, 1 or more, between each prediction and its time."""
    ratio = np.maximum(predicted, 1e-12) / times
    return np.maximum(ratio, 1 / ratio)
