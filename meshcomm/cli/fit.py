"""Calibration: the constants of a machine, fitted to relayouts that its ranks run.

The probes are relayouts like any other, so that the constants are those of what moves data here. All ranks of a node
exchange at once, as in a relayout over all of them: a byte costs what a rank's share of memory and network gives. Of
each probe the fastest of many runs counts, as in :mod:`timeit`: what slows a run down is other work. A line through
the origin is fitted to the times so that the typical factor between time and line is least, from small messages to
large ones, and single bad measurements do not matter.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import combinations
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from meshcomm._types import Indices
from meshcomm.arrays.compile import prepare
from meshcomm.arrays.create import full
from meshcomm.errors import MeshError
from meshcomm.layouts.layout import UNSHARDED, Layout
from meshcomm.layouts.machine import CONSTANTS, Load, Machine
from meshcomm.layouts.mesh import Mesh
from meshcomm.plans.plan import plan_relayout
from meshcomm.ranks.communicator import Communicator
from meshcomm.ranks.meshes import create_mesh, location_in
from meshcomm.ranks.teams import Team

Floats: TypeAlias = NDArray[np.float64]


MESSAGES = tuple(2**power for power in (3, 6, 9, 12, 15, 18, 20, 21, 22))
"""Bytes per message; of those whose bytes count, most are beyond the caches, as arrays are for which it matters."""


WITHIN = ("wait_within", "alpha_within", "beta_within")


BETWEEN = ("wait_between", "alpha_between", "beta_between")


MEMORY = ("gamma",)


MOST_BYTES = 2**23
"""A rank receives so many at most in a probe."""


MOST_RANKS = 16
"""So many ranks at most exchange with each other in a probe."""


PASSED = tuple(2**power for power in (16, 18, 20, 21, 22))
"""Bytes that are copied in runs of `RUN` bytes, as packing does."""


RUN = 512


ROUNDS = 25


BATCH = 2e-4  # seconds


MOST_REPEATS = 50


class Fit(NamedTuple):
    """Constants in seconds, and by which factors they and the measurements differ."""

    constants: dict[str, Any]
    typical: float
    worst: float
    measured: int


class Calibration(NamedTuple):
    """What was measured; a fit is None where there was nothing to measure it by."""

    within: Fit | None
    between: Fit | None
    memory: Fit

    @property
    def constants(self) -> dict[str, float]:
        """The constants of a `Machine` that were measured. Local."""
        return {name: value for fit in self if fit is not None for name, value in fit.constants.items()}


class _Probe(NamedTuple):
    """A relayout to be timed, and what it is on the device that has most to do; *run* is None on ranks outside."""

    load: Load
    run: Callable[[], Any] | None


def calibrate(team: Team) -> Calibration:
    """Return what moving bytes costs on the ranks of *team*, which are all of the world. Collective over the team.

    ``MeshError`` if there is only one.
    """
    communicator, machine = team.everyone.communicator(), team.machine
    if communicator.size < 2:
        raise MeshError("calibrate needs 2 ranks or more, such as mpiexec -n 2 python -m meshcomm calibrate")
    nodes = _by_node(np.arange(communicator.size, dtype=np.intp), machine)
    memory = _fitted(communicator, _copies(_grouped([np.concatenate(nodes)], 2), machine), MEMORY, machine)
    machine = replace(machine, **memory.constants)
    within = between = None
    shared = [node for node in nodes if len(node) > 1]
    if shared:
        probes = [_all_moved(probe) for mesh in _pairs_and_more(shared) for probe in _exchanges(mesh, machine)]
        within = _fitted(communicator, probes, WITHIN, machine)
        machine = replace(machine, **within.constants)
    if len(nodes) > 1:
        probes = [probe for mesh in _over_nodes(nodes) for probe in _exchanges(mesh, machine)]
        between = _fitted(communicator, probes, BETWEEN, machine)
    return Calibration(within, between, memory)


# -- probes -----------------------------------------------------------------------------------------------------------


def _by_node(ranks: Indices, machine: Machine) -> list[Indices]:
    """Return the ranks on each node."""
    nodes = machine.node_of(ranks)
    return [ranks[nodes == node] for node in dict.fromkeys(nodes.tolist())]


def _over_nodes(nodes: list[Indices]) -> list[Mesh]:
    """Return meshes in which ranks of different nodes exchange with each other: two at a time, and many."""
    fewest = min(len(node) for node in nodes)
    across = list(np.array([node[:fewest] for node in nodes]).T)
    if len(nodes) > 2 or fewest == 1:
        return _pairs_and_more(across)
    some = min(fewest, MOST_RANKS // 2)
    return [_grouped(across, 2), _grouped([np.concatenate([node[:some] for node in nodes])], 2 * some)]


def _pairs_and_more(rows: list[Indices]) -> list[Mesh]:
    """Return meshes in which ranks of the same row exchange with each other: two at a time, and many."""
    return [_grouped(rows, size) for size in sorted({2, min(MOST_RANKS, min(map(len, rows)))})]


def _grouped(rows: list[Indices], size: int) -> Mesh:
    """Return a mesh with as many groups of *size* ranks as the *rows* give."""
    ranks = np.concatenate([row[: len(row) // size * size].reshape(-1, size) for row in rows])
    return create_mesh([("groups", len(ranks)), ("x", size)], devices=ranks.ravel().tolist())


def _exchanges(mesh: Mesh, machine: Machine) -> list[_Probe]:
    """Return exchanges in the groups of *mesh* that neither pack nor unpack: every box is one row."""
    size = mesh.dim_size("x")
    rows, columns = Layout(["x", UNSHARDED], mesh), Layout([UNSHARDED, "x"], mesh)
    lengths = [length for length in MESSAGES if length * (size - 1) <= MOST_BYTES]
    return [_probe((size, size * length), rows, columns, machine) for length in lengths]


def _all_moved(probe: _Probe) -> _Probe:
    """Return *probe* with what stays on the rank counted as if it came from the node.

    Both are copies then; to take one off as the pass over memory that it is would leave little of the other, and that
    uncertain: a pass takes less while it is in the cache.
    """
    load = probe.load
    return probe._replace(load=load._replace(on_node_bytes=load.on_node_bytes + load.passed_bytes, passed_bytes=0.0))


def _copies(mesh: Mesh, machine: Machine) -> list[_Probe]:
    """Return copies out of a block that the rank holds."""
    whole, columns = Layout([UNSHARDED, UNSHARDED], mesh), Layout([UNSHARDED, "x"], mesh)
    return [_probe((length // RUN, 2 * RUN), whole, columns, machine) for length in PASSED]


def _probe(shape: tuple[int, int], source: Layout, target: Layout, machine: Machine) -> _Probe:
    plan = plan_relayout(shape, np.uint8, source, target, 2 * MOST_BYTES, machine)
    load, place = plan.for_device(0).load, location_in(source.mesh)
    if place is None:
        return _Probe(load, None)
    run = prepare(plan, place)
    block, out = (full(shape, 1, np.uint8, layout).local for layout in (source, target))
    return _Probe(load, lambda: run(block, out))


# -- times and fits ---------------------------------------------------------------------------------------------------


def _times(communicator: Communicator, probes: list[_Probe]) -> list[float]:
    return fastest(communicator, [probe.run for probe in probes])


def fastest(communicator: Communicator, runs: Sequence[Callable[[], Any] | None], rounds: int = ROUNDS) -> list[float]:
    """Return how long each of *runs* takes, in seconds: on the slowest rank, at its fastest. Collective.

    They run in turns, short ones many times in a row. None, on some ranks, is nothing to do.
    """
    for run in runs:
        _nanoseconds(communicator, run, 1)  # communicators are made, and memory is touched
    first = communicator.allreduce_max(
        np.array([min(_nanoseconds(communicator, run, 1) for _ in range(3)) for run in runs], dtype=np.int64)
    )
    repeats = [int(min(max(1, BATCH * 1e9 / max(1, took)), MOST_REPEATS)) for took in first.tolist()]
    # In turns, so that what else happens on the machine does not meet only some of them.
    taken = [
        [_nanoseconds(communicator, run, n) // n for run, n in zip(runs, repeats, strict=True)] for _ in range(rounds)
    ]
    slowest = communicator.allreduce_max(np.array(taken, dtype=np.int64).ravel()).reshape(rounds, len(runs))
    return [max(1, took) * 1e-9 for took in slowest.min(axis=0).tolist()]


def _nanoseconds(communicator: Communicator, run: Callable[[], Any] | None, repeats: int) -> int:
    """Return how long this rank takes for so many runs that all ranks begin together. Collective."""
    communicator.allreduce_max(_ZERO)
    start = time.perf_counter_ns()
    if run is not None:
        for _ in range(repeats):
            run()
    return time.perf_counter_ns() - start


_ZERO: NDArray[np.int64] = np.zeros(1, dtype=np.int64)


def _fitted(communicator: Communicator, probes: list[_Probe], names: tuple[str, ...], machine: Machine) -> Fit:
    """Return the constants of these *names* that fit the times of *probes*; others are those of *machine*."""
    loads = np.array([probe.load for probe in probes])
    free = np.array([name in names for name in CONSTANTS])
    known = loads @ np.array([0.0 if name in names else getattr(machine, name) for name in CONSTANTS])
    times = np.array(_times(communicator, probes))
    fitted = fit(loads[:, free], times, known)
    factors = _factors(loads[:, free] @ fitted + known, times)
    constants = dict(zip((name for name in CONSTANTS if name in names), fitted.tolist(), strict=True))
    return Fit(constants, float(np.median(factors)), float(factors.max()), len(times))


def fit(counts: Floats, times: Floats, known: Floats | float = 0.0) -> Floats:
    """Return what each unit costs if *counts*, a row each, take these *times* beyond what is *known* of them. Local.

    None costs less than nothing. Of the solutions that meet as many times exactly as there are costs, it is the one
    whose typical prediction differs by the least factor. Units that cannot be told apart cost the same.

    >>> fit(np.array([[1, 1], [1, 100], [1, 1000], [1, 5000]]), np.array([3e-6, 1.02e-4, 1.002e-3, 1.0])).round(9)
    array([2.e-06, 1.e-06])
    """
    columns, place = np.unique(counts, axis=1, return_inverse=True)
    columns = columns * np.bincount(place)  # those that are alike, together
    kinds = columns.shape[1]
    solutions = [np.zeros((1, kinds))]
    for size in range(1, kinds + 1):
        points = np.array(list(combinations(range(len(times)), size)))
        for chosen in map(list, combinations(range(kinds), size)):
            systems, answers = columns[points][:, :, chosen], (times - known)[points]
            solvable = np.linalg.matrix_rank(systems) == size
            found = np.zeros((int(solvable.sum()), kinds))
            found[:, chosen] = np.linalg.solve(systems[solvable], answers[solvable][..., None])[..., 0]
            solutions.append(found[(found >= 0).all(axis=1)])
    costs = np.concatenate(solutions)
    factors = _factors(costs @ columns.T + known, times)
    best: Floats = costs[np.log(factors).sum(axis=1).argmin()][place]
    return best


def _factors(predicted: Floats, times: Floats) -> Floats:
    """Return by which factor, one or more, each prediction and time differ."""
    ratio = np.maximum(predicted, 1e-12) / times
    return np.maximum(ratio, 1 / ratio)
