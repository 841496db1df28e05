"""Relayout against straightforward mpi4py code and against memcpy: ``mpiexec -n 4 python benchmarks/relayout.py``.

Each case runs in rounds, and in each round every contender runs once, so that all see the same noise; a time is that
of the slowest rank between two barriers. Printed are medians with quartiles, in milliseconds, and medians of the
ratios of each round. Results are verified after the timing. ``--sizes`` are MiB of the whole array, ``--rounds`` how
often.
"""

import argparse
import itertools
import statistics
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from mpi4py import MPI

import meshcomm as mc

COMM = MPI.COMM_WORLD.Dup()
RANKS, RANK = COMM.size, COMM.rank
U = mc.UNSHARDED


class Case(NamedTuple):
    """A relayout, and the code that a careful user of mpi4py would write for it."""

    name: str
    shape: tuple[int, ...]
    mesh: mc.Mesh
    source: list[str]
    target: list[str]
    by_hand: Callable[["Case", np.ndarray], np.ndarray]


def cuts(n: int, parts: int) -> list[int]:
    """Return where the blocks of numpy.array_split begin, and the end."""
    return [0, *np.cumsum([len(block) for block in np.array_split(np.empty(n, "V0"), parts)]).tolist()]


def exchange(comm: MPI.Comm, send: np.ndarray, counts: list[int], into: np.ndarray, into_counts: list[int]) -> None:
    """MPI_Alltoallv of consecutive pieces."""
    displacements, into_displacements = ([0, *np.cumsum(c[:-1]).tolist()] for c in (counts, into_counts))
    comm.Alltoallv([send, counts, displacements, MPI.DOUBLE], [into, into_counts, into_displacements, MPI.DOUBLE])


def rows_to_columns(case: Case, block: np.ndarray) -> np.ndarray:
    """Pack the columns of each rank; rows arrive in order."""
    rows, columns = cuts(case.shape[0], RANKS), cuts(case.shape[1], RANKS)
    width = columns[RANK + 1] - columns[RANK]
    pieces = [block[:, a:b] for a, b in itertools.pairwise(columns)]
    send = np.concatenate([piece.ravel() for piece in pieces])
    into = np.empty((case.shape[0], width))
    counts = [(b - a) * width for a, b in itertools.pairwise(rows)]
    exchange(COMM, send, [piece.size for piece in pieces], into, counts)
    return into


def columns_to_rows(case: Case, block: np.ndarray) -> np.ndarray:
    """Send rows as they lie; unpack the columns of each rank."""
    rows, columns = cuts(case.shape[0], RANKS), cuts(case.shape[1], RANKS)
    height, width = rows[RANK + 1] - rows[RANK], block.shape[1]
    counts = [height * (b - a) for a, b in itertools.pairwise(columns)]
    received = np.empty(sum(counts))
    exchange(COMM, block, [(b - a) * width for a, b in itertools.pairwise(rows)], received, counts)
    into, start = np.empty((height, case.shape[1])), 0
    for a, b, count in zip(columns, columns[1:], counts, strict=False):
        into[:, a:b] = received[start : start + count].reshape(height, b - a)
        start += count
    return into


def gather_rows(case: Case, block: np.ndarray) -> np.ndarray:
    """MPI_Allgatherv into place."""
    into = np.empty(case.shape)
    counts = [
        (b - a) * case.shape[1]
        for a, b in zip(cuts(case.shape[0], RANKS), cuts(case.shape[0], RANKS)[1:], strict=False)
    ]
    COMM.Allgatherv(block, [into, counts])
    return into


def gather_columns(case: Case, block: np.ndarray) -> np.ndarray:
    """MPI_Allgatherv, and unpack the columns of each rank."""
    columns = cuts(case.shape[1], RANKS)
    counts = [case.shape[0] * (b - a) for a, b in itertools.pairwise(columns)]
    received = np.empty(sum(counts))
    COMM.Allgatherv(block, [received, counts])
    into, start = np.empty(case.shape), 0
    for a, b, count in zip(columns, columns[1:], counts, strict=False):
        into[:, a:b] = received[start : start + count].reshape(case.shape[0], b - a)
        start += count
    return into


def swap(case: Case, block: np.ndarray) -> np.ndarray:
    """On a square mesh device (i, j) sends its whole block to (j, i)."""
    i, j = case.mesh.coords(RANK)
    into = np.empty(tuple(n // 2 for n in case.shape))
    COMM.Sendrecv(block, j * 2 + i, recvbuf=into)
    return into


def pencils(case: Case, block: np.ndarray) -> np.ndarray:
    """Exchange axes 1 and 2 within the groups along the mesh dimension that moves."""
    p = case.mesh.dim_size(case.source[1])
    comm = SUBCOMMS[case.mesh.shape()[0]]
    pieces = np.split(block, p, axis=2)
    send = np.concatenate([piece.ravel() for piece in pieces])
    received = np.empty_like(send)
    exchange(comm, send, [piece.size for piece in pieces], received, [received.size // p] * p)
    return np.concatenate(received.reshape(p, *pieces[0].shape), axis=1)


SUBCOMMS: dict[int, MPI.Comm] = {}


def cases(mib: float) -> list[Case]:
    """Return what is measured for arrays of about *mib* MiB."""
    n = int((mib * 2**17) ** 0.5) // 8 * 8
    m = round((mib * 2**17) ** (1 / 3)) // 8 * 8
    line = mc.create_mesh([("x", RANKS)])
    first = 2 if RANKS % 2 == 0 and RANKS > 2 else 1
    grid = mc.create_mesh([("x", first), ("y", RANKS // first)])
    if first not in SUBCOMMS:
        SUBCOMMS[first] = COMM.Split(RANK // (RANKS // first), RANK)
    listed = [
        Case("rows to columns", (n, n), line, ["x", U], [U, "x"], rows_to_columns),
        Case("columns to rows", (n, n), line, [U, "x"], ["x", U], columns_to_rows),
        Case("rows to columns, uneven", (n + 3, n + 5), line, ["x", U], [U, "x"], rows_to_columns),
        Case("gather rows", (n // 2, n // 2), line, ["x", U], [U, U], gather_rows),
        Case("gather columns", (n // 2, n // 2), line, [U, "x"], [U, U], gather_columns),
        Case("pencils x,y,- to x,-,y", (m, m, m), grid, ["x", "y", U], ["x", U, "y"], pencils),
    ]
    if RANKS == 4:
        listed.append(Case("swap x,y to y,x", (n, n), grid, ["x", "y"], ["y", "x"], swap))
    return listed


def slowest(call: Callable[[], Any]) -> tuple[float, Any]:
    """Return the seconds of the slowest rank, and the result of this one."""
    COMM.Barrier()
    begin = time.perf_counter()
    result = call()
    seconds = time.perf_counter() - begin
    return COMM.allreduce(seconds, MPI.MAX), result


def measure(case: Case, rounds: int) -> dict[str, list[float]]:
    """Return the seconds of every contender in every round."""
    source, target = mc.Layout(case.source, case.mesh), mc.Layout(case.target, case.mesh)
    tensor = mc.from_callback(
        case.shape, float, source, lambda s: np.random.default_rng(RANK).random(tuple(x.stop - x.start for x in s))
    )
    assert tensor.local is not None
    expected = mc.relayout(tensor, target)
    assert expected.local is not None
    block, copy = tensor.local, np.empty_like(expected.local)
    contenders: dict[str, Callable[[], Any]] = {
        "memcpy": lambda: np.copyto(copy, expected.local),
        "mpi4py": lambda: case.by_hand(case, block),
        "meshcomm": lambda: mc.relayout(tensor, target).local,
    }
    times: dict[str, list[float]] = {name: [] for name in contenders}
    results = {}
    for turn in range(rounds + 2):
        for name, call in contenders.items():
            seconds, results[name] = slowest(call)
            if turn >= 2:
                times[name].append(seconds)
    same = results["mpi4py"].tobytes() == results["meshcomm"].tobytes()
    if not COMM.allreduce(same, MPI.LAND):
        raise SystemExit(f"{case.name} of {case.shape}: results differ")
    return times


def ratio(times: dict[str, list[float]], a: str, b: str) -> float:
    """Return the median over rounds of a's time in units of b's."""
    return statistics.median(x / y for x, y in zip(times[a], times[b], strict=True))


def latency(rounds: int) -> str:
    """Return what a cached relayout of small blocks adds to the bare MPI call."""
    mesh = mc.create_mesh([("x", RANKS)])
    n = 16 * RANKS
    rows, columns = mc.Layout(["x", U], mesh), mc.Layout([U, "x"], mesh)
    tensor = mc.distribute(np.arange(n * n, dtype=float).reshape(n, n), rows)
    count = 16 * 16 * 8
    send, into = np.zeros((2, count * RANKS), np.uint8)
    counts, displacements = [count] * RANKS, [count * i for i in range(RANKS)]
    message, received = ([data, counts, displacements, MPI.BYTE] for data in (send, into))
    contenders = {
        "bare Alltoallv": lambda: COMM.Alltoallv(message, received),
        "relayout": lambda: mc.relayout(tensor, columns),
    }
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(rounds + 2):
        for name, call in contenders.items():
            seconds, _ = slowest(lambda call=call: [call() for _ in range(200)])
            times[name].append(seconds / 200 * 1e6)
    added = statistics.median(a - b for a, b in zip(times["relayout"], times["bare Alltoallv"], strict=True))
    both = ", ".join(f"{name} {statistics.median(t):.1f} µs" for name, t in times.items())
    return f"blocks of {count} bytes per pair: {both}; added {added:.1f} µs"


def planning() -> str:
    """Return how long one rank plans for a mesh of 4,096 ranks."""
    mesh = mc.Mesh(range(4096), [("x", 64), ("y", 64)])
    found = []
    for source, target in ((["x", "y", U], [U, "x", "y"]), ([("x", "y"), U, U], [U, U, ("x", "y")])):
        begin = time.perf_counter()
        plan = mc.plan_relayout((4096, 4096, 64), float, mc.Layout(source, mesh), mc.Layout(target, mesh))
        for step in plan.steps:
            step.sends(7), step.receives(7), step.group_of(7)
        found.append(f"{source} -> {target} {(time.perf_counter() - begin) * 1e3:.1f} ms")
    return "planning one of 4,096 ranks: " + "; ".join(found)


def main() -> None:
    """Measure and print a Markdown table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", type=float, nargs="+", default=[1, 8, 32, 128], help="MiB of the whole array")
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    say = print if RANK == 0 else lambda *a, **k: None
    say(f"\n## {RANKS} ranks, {MPI.Get_library_version().split(chr(10))[0].strip()}\n")
    say("| case | MiB | memcpy ms | mpi4py ms | meshcomm ms (quartiles) | meshcomm / memcpy | meshcomm / mpi4py |")
    say("|---|---|---|---|---|---|---|", flush=True)
    for mib in options.sizes:
        for case in cases(mib):
            times = measure(case, options.rounds)
            ms = {name: [1e3 * q for q in statistics.quantiles(t, n=4)] for name, t in times.items()}
            say(
                f"| {case.name} {'x'.join(map(str, case.shape))} | {mib:g} | {ms['memcpy'][1]:.2f} "
                f"| {ms['mpi4py'][1]:.2f} | {ms['meshcomm'][1]:.2f} ({ms['meshcomm'][0]:.2f}-{ms['meshcomm'][2]:.2f}) "
                f"| {ratio(times, 'meshcomm', 'memcpy'):.2f} | {ratio(times, 'meshcomm', 'mpi4py'):.2f} |",
                flush=True,
            )
    say(f"\n{latency(options.rounds)}\n\n{planning() if RANK == 0 else ''}")


if __name__ == "__main__":
    main()
