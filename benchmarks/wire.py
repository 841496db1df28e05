"""Relayouts over a network: ``python benchmarks/wire.py`` writes build/bench/wire.md.

It makes two hosts on this machine, with TCP of a limited rate between them, so it needs Linux, root and MPICH; else it
says why it cannot. Ranks first measure the constants of the cost model with ``calibrate``. It takes ten minutes.
"""

import argparse
import contextlib
import json
import re
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, NoReturn, TypeAlias

import numpy as np
from pages import options_of, written
from report import table

from jobs import launcher

Found: TypeAlias = dict[str, dict[str, list[float]]]
"""For each case the seconds of each contender in each round, of the slowest rank; and those that the plan predicts."""

HERE = Path(__file__).resolve().parent
CONTENDERS = ("relayout", "start, wait", "computing", "Transfer")
FFT = "512³ complex64, fftn"
LONGEST = 900.0  # seconds of CPU time for a rank
ABOUT = """Ratios of times, in one round, over the wire alone: one MPI_Alltoallv between contiguous buffers of the
bytes that ranks send to each other in the relayout. Medians.

- *start, wait*: `start_relayout`, and `wait` at once
- *computing*: the same with 20 ms of NumPy between the two, over the longer one of 20 ms and the wire
- *Transfer*: mpi4py-fft's planned exchange, if it is installed
- *model / relayout*: the time that the plan predicts, over that of the relayout

The last row is a Fourier transform in slabs, over SciPy's local transforms and the wire one after the other.
"""
REFILL = 0.02  # seconds before each call, in which the limit of the rate forgets the call before
SECONDS = 0.02  # of computing between start and wait
SMALL = 2**20  # cases of fewer bytes are not measured: they never fill the wire


class Network(NamedTuple):
    """How many ranks a host has, whether they share memory, and the bits per second between the hosts."""

    ranks_per_host: int
    shared: bool
    gigabits: float

    def __str__(self) -> str:
        shares = "" if self.ranks_per_host == 1 else ", shared memory" if self.shared else ", no shared memory"
        plural = "s" * (self.ranks_per_host > 1)
        return f"{self.ranks_per_host} rank{plural} a host{shares}, {self.gigabits:g} Gbit/s"


NETWORKS = [
    Network(ranks, shared, gigabits) for gigabits in (4, 10) for ranks, shared in ((1, True), (2, True), (2, False))
]


def measured(network: Network, rounds: int, cases: str, folder: Path) -> Found:
    """Return what is measured on two new hosts, whose ranks first measure their machine."""
    sys.path.insert(0, str(HERE.parent / "tests"))
    try:
        from support.two_hosts import Unavailable, two_hosts
    except ImportError as missing:
        skipped(f'{missing}: pip install ".[test]"')

    machine = folder / "machine.json"
    env = {"MPIR_CVAR_ENABLE_HEAVY_YIELD": "0"}
    if not network.shared:
        env["MESHCOMM_SHARED_MEMORY"] = "0"
    ranks = network.ranks_per_host
    with contextlib.ExitStack() as stack:
        try:
            hosts = stack.enter_context(two_hosts(launcher(1)[0]))
            hosts.limit(network.gigabits)
        except Unavailable as reason:
            skipped(reason)
        jobs = [
            hosts.run(__file__, ranks, ["--calibrate", machine], env, cpu=LONGEST),
            hosts.run(
                __file__,
                ranks,
                ["--job", "--rounds", rounds, "--cases", cases],
                env | {"MESHCOMM_MACHINE": str(machine)},
                cpu=LONGEST,
            ),
        ]
    for job in jobs:
        if job.returncode:
            raise SystemExit(job.stdout + job.stderr)
    found: Found = json.loads(jobs[-1].stdout.splitlines()[-1])
    return found


def skipped(reason: object) -> NoReturn:
    """Say why nothing can be measured, and end."""
    print(f"benchmarks/wire.py is skipped: {reason}")
    sys.exit()


def contenders(case: Any) -> tuple[dict[str, Callable[[], object]], Callable[[], None], float]:
    """Return the calls of each contender on this rank, a check of their results, and the seconds that a plan says."""
    import contender
    from mpi4py import MPI
    from peers import COMM, RANK, RANKS, fft_transfer
    from ways import own_tensor

    import meshcomm as mc
    from meshcomm.core.plans.plan import plan_direct

    mesh = mc.create_mesh(list(case.mesh_dims(RANKS)))
    job = contender.Job(case, mesh, RANK, 1)
    tensor = own_tensor(job)
    tensor.local[...] = job.block
    sizes = np.zeros((2, RANKS), np.int64)
    for step in plan_direct(case.shape, case.dtype, job.source, job.target).steps:
        for its, boxes in zip(sizes, (step.sends(RANK), step.receives(RANK)), strict=True):
            np.add.at(its, step.members(RANK, boxes.peers), boxes.sizes[boxes.which] * step.itemsize)
    sizes[:, RANK] = 0
    buffers = [np.zeros(total, np.uint8) for total in sizes.sum(1)]
    starts = (np.cumsum(sizes, 1) - sizes).tolist()
    sent, received = ([data, c, s, MPI.BYTE] for data, c, s in zip(buffers, sizes.tolist(), starts, strict=True))
    numbers = np.linspace(0, 1, 2**14)

    def compute() -> None:
        end = time.perf_counter() + SECONDS
        while time.perf_counter() < end:
            np.sqrt(numbers, out=numbers)

    def begun(work: Callable[[], None]) -> mc.DTensor:
        request = mc.start_relayout(tensor, job.target)
        work()
        return request.wait()

    calls: dict[str, Callable[[], object]] = {
        "wire": lambda: COMM.Alltoallv(sent, received),
        "relayout": lambda: mc.relayout(tensor, job.target),
        "start, wait": lambda: begun(lambda: None),
        "computing": lambda: begun(compute),
    }
    try:
        transfer = fft_transfer([job])
        calls["Transfer"] = transfer.call
    except (contender.Cannot, ImportError):
        pass

    def check() -> None:
        for name in ("relayout", "start, wait", "computing"):
            assert np.array_equal(calls[name]().local, job.held(job.target, 1)), name

    plan = mc.plan_relayout(case.shape, case.dtype, job.source, job.target, machine=mc.machine_of(mesh))
    return calls, check, plan.seconds


def measure(rounds: int, chosen: str) -> Found:
    """Return the seconds of each contender in each round of each case: of the slowest rank."""
    from cases import table as cases
    from peers import RANKS

    found: Found = {}
    for case in cases(RANKS):
        if case.nbytes < SMALL or case.tensors > 1 or not re.search(chosen, case.name):
            continue
        calls, check, predicted = contenders(case)
        check()
        found[case.name] = in_turns(calls, rounds) | {"model": [predicted]}
        check()
    if re.search(chosen, FFT):
        found[FFT] = transforms(max(2, rounds // 3))
    return found


def transforms(rounds: int) -> dict[str, list[float]]:
    """Return the seconds of Fourier transforms, and those of local transforms and the wire, in each round."""
    import scipy.fft
    from mpi4py import MPI
    from peers import COMM, RANK, RANKS

    import meshcomm as mc

    mesh = mc.create_mesh([("x", RANKS)])
    rows = mc.Layout(["x", mc.UNSHARDED, mc.UNSHARDED], mesh)
    tensor = mc.random.default_rng(1).random((512, 512, 512), np.float32, layout=rows).astype(np.complex64)
    before, after = tensor.local, mc.fft.fftn(tensor).local.copy()
    sent = before.nbytes // RANKS
    send, into = np.zeros((2, RANKS * sent), np.uint8)
    counts, starts = [sent * (rank != RANK) for rank in range(RANKS)], [sent * rank for rank in range(RANKS)]

    def alone() -> None:
        scipy.fft.fftn(before, axes=(1, 2))
        scipy.fft.fft(after, axis=0)
        COMM.Alltoallv([send, counts, starts, MPI.BYTE], [into, counts, starts, MPI.BYTE])

    return in_turns({"wire": alone, "relayout": lambda: mc.fft.fftn(tensor)}, rounds)


def in_turns(calls: dict[str, Callable[[], object]], rounds: int) -> dict[str, list[float]]:
    """Return the seconds of each call in each round, of the slowest rank; the first round warms up."""
    from peers import COMM

    times: dict[str, list[float]] = {name: [] for name in calls}
    order = list(calls)
    for _ in range(rounds + 1):
        order = order[1:] + order[:1]
        for name in order:
            time.sleep(REFILL)
            COMM.Barrier()
            begin = time.perf_counter()
            calls[name]()
            times[name].append(max(COMM.allgather(time.perf_counter() - begin)))
    return {name: each[1:] for name, each in times.items()}


def rows(found: Found) -> list[list[str]]:
    """Return the rows of the table of a network."""
    listed = []
    for name, times in found.items():
        wire = times["wire"]
        row = [name, f"{statistics.median(wire) * 1e3:.1f}"]
        for contender in CONTENDERS:
            units = [max(w, SECONDS) for w in wire] if contender == "computing" else wire
            ratios = [t / w for t, w in zip(times.get(contender, []), units, strict=False)]
            row.append(f"{statistics.median(ratios):.2f}" if ratios else "")
        row += [f"{seconds / statistics.median(times['relayout']):.2f}" for seconds in times.get("model", [])]
        listed.append(row)
    return listed


def pattern(text: str) -> str:
    """Return a regular expression, as a text; ``ValueError`` if it is none."""
    try:
        re.compile(text)
    except re.error as wrong:
        raise ValueError(text) from wrong
    return text


def main() -> None:
    """Measure and write; or be a rank of a job."""
    hidden: dict[str, Any] = {"help": argparse.SUPPRESS}
    options = options_of(
        __doc__ or "",
        11,
        cases={"default": "", "type": pattern, "help": "regular expression: only cases with a matching name"},
        networks={"default": "", "type": pattern, "help": "regular expression: only networks with a matching name"},
        calibrate=hidden,
        job={"action": "store_true", **hidden},
    )
    if options.calibrate:
        from meshcomm.tools.cli.main import main as command

        sys.exit(command(["calibrate", options.calibrate]))
    if options.job:
        from peers import RANK

        found = measure(options.rounds, options.cases)
        if RANK == 0:
            print(json.dumps(found))
        return
    options.output.mkdir(parents=True, exist_ok=True)
    lines = ["# Relayouts over a network", "", ABOUT, ""]
    chosen = [network for network in NETWORKS if re.search(options.networks, str(network))]
    if not chosen:
        sys.exit(f"--networks {options.networks} is none of: {'; '.join(map(str, NETWORKS))}")
    for network in chosen:
        titles = ["case", "wire, ms", *CONTENDERS, "model / relayout"]
        print(network, flush=True)
        found = measured(network, options.rounds, options.cases, options.output)
        lines += [f"## {network}", "", *table(titles, rows(found)), ""]
    written("wire", lines, options)


if __name__ == "__main__":
    main()
