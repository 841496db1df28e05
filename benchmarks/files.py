"""Saves and loads: ``python benchmarks/files.py`` writes build/bench/files.md.

Four ranks save and load one array of doubles, 1 GiB by default, to a folder of the disk that holds build/. Beside them
run plain ``os.pwrite`` and ``os.pread`` of the same bytes in one large run for each rank, MPI.File with subarrays, and
h5py, rank after rank. Contenders take turns. A time is that of the slowest rank, ``fsync`` included for saves. Loads
find the file in the page cache ("warm"), or not ("cold": ``posix_fadvise`` drops it before each load). The page has
medians and quartiles of times over those of the plain calls, and the medians of GB/s. torch DCP, tensorstore and Heat
run, too, if they are installed.
"""

import argparse
import json
import os
import shutil
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from file_peers import PEERS
from pages import options_of
from report import number, spread

import meshcomm as mc
from jobs import Setting, measured_by

RANKS = 4
U = mc.UNSHARDED
LAYOUTS = {"rows": [("x", "y"), U], "columns": [U, ("x", "y")], "2 x 2": ["x", "y"]}
Run = Callable[[], object]


class Turns:
    """What is measured of one array of n x n doubles in *folder*."""

    def __init__(self, folder: Path, n: int) -> None:
        from mpi4py import MPI

        self.comm, self.folder, self.n = MPI.COMM_WORLD.Dup(), folder, n
        self.mesh = mc.create_mesh([("x", 2), ("y", 2)])
        self.layouts = {name: mc.Layout(specs, self.mesh) for name, specs in LAYOUTS.items()}
        self.tensors = {name: mc.ones((n, n), float, layout) for name, layout in self.layouts.items()}
        self.peers = [found for peer in PEERS if (found := self.tried(peer))]

    def tried(self, peer: Callable[["Turns"], tuple[dict[str, Run], dict[str, Run]]]) -> Any:
        """Return the contenders of *peer*; None if it fails on a rank."""
        found = None
        try:
            found = peer(self)
        except Exception as problem:
            print(f"{peer.__name__}: {problem}", file=sys.stderr)
        return found if self.comm.allreduce(found is not None, _min()) else None

    def saves(self) -> dict[str, Run]:
        """Return the contenders of saving."""
        found: dict[str, Run] = {"plain": self.plain_write}
        for name, tensor in self.tensors.items():
            found[f".npy, {name}"] = lambda t=tensor: mc.save(self.folder / "a.npy", t)
            found[f"checkpoint, {name}"] = lambda t=tensor: mc.save(self.folder / "c", t)
            found[f"MPI.File, {name}"] = lambda name=name: self.mpi_file(name, write=True)
        found["h5py rank by rank, rows"] = self.ring_of_h5py
        return found | {name: run for saves, _ in self.peers for name, run in saves.items()}

    def loads(self) -> dict[str, Run]:
        """Return the contenders of loading."""
        found: dict[str, Run] = {"plain": self.plain_read}
        for name, tensor in self.tensors.items():
            found[f".npy, {name}"] = lambda t=tensor: mc.load(self.folder / "a.npy", out=t)
            found[f"checkpoint, {name}"] = lambda t=tensor: mc.load(self.folder / "c", out=t)
            found[f"MPI.File, {name}"] = lambda name=name: self.mpi_file(name, write=False)
        return found | {name: run for _, loads in self.peers for name, run in loads.items()}

    def plain_write(self) -> None:
        """Write the block of rows in one run, to a new file."""
        block = self.tensors["rows"].local
        path = self.folder / "plain"
        if self.comm.rank == 0:
            path.unlink(missing_ok=True)
            path.touch()
        self.comm.Barrier()
        file = os.open(path, os.O_WRONLY)
        os.pwrite(file, memoryview(block).cast("B"), self.comm.rank * block.nbytes)
        os.fsync(file)
        os.close(file)

    def plain_read(self) -> None:
        """Read the block of rows in one run."""
        block = self.tensors["rows"].local
        file = os.open(self.folder / "plain", os.O_RDONLY)
        os.preadv(file, [memoryview(block).cast("B")], self.comm.rank * block.nbytes)
        os.close(file)

    def mpi_file(self, name: str, write: bool) -> None:
        """Write or read a block as a subarray of the file, all ranks together."""
        from mpi4py import MPI

        tensor = self.tensors[name]
        where = tensor.layout.block_slices(tensor.shape, self.mesh.rank)
        lengths, first = [s.stop - s.start for s in where], [s.start for s in where]
        kind = MPI.DOUBLE.Create_subarray(list(tensor.shape), lengths, first).Commit()
        mode = MPI.MODE_CREATE | MPI.MODE_WRONLY if write else MPI.MODE_RDONLY
        file = MPI.File.Open(self.comm, str(self.folder / "mpi"), mode)
        file.Set_view(0, MPI.DOUBLE, kind)
        (file.Write_all if write else file.Read_all)(tensor.local)
        if write:
            file.Sync()
        file.Close()
        kind.Free()

    def ring_of_h5py(self) -> None:
        """Write rows to an HDF5 file, one rank after the other."""
        import h5py

        block, rank = self.tensors["rows"].local, self.comm.rank
        for turn in range(self.comm.size):
            if turn == rank:
                with h5py.File(self.folder / "ring.h5", "a" if turn else "w") as file:
                    data = file["a"] if turn else file.create_dataset("a", (self.n, self.n), "f8")
                    data[rank * len(block) : (rank + 1) * len(block)] = block
                descriptor = os.open(self.folder / "ring.h5", os.O_RDWR)
                os.fsync(descriptor)
                os.close(descriptor)
            self.comm.Barrier()

    def dropped(self) -> None:
        """Drop all files from the page cache."""
        if self.comm.rank == 0:
            for path in [path for path in self.folder.rglob("*") if path.is_file()]:
                file = os.open(path, os.O_RDONLY)
                os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
                os.close(file)
        self.comm.Barrier()

    def measured(self, runs: dict[str, Run], rounds: int, cold: bool = False) -> dict[str, list[float]]:
        """Return the seconds of each contender in each round. Collective."""
        times: dict[str, list[float]] = {name: [] for name in runs}
        contenders = list(runs.items())
        for turn in range(rounds + 1):
            contenders = [*contenders[1:], contenders[0]]  # what comes before has an influence on the disk
            for name, run in contenders:
                if self.comm.rank == 0:
                    os.sync()  # what is left of the last one is not ours
                if cold:
                    self.dropped()
                self.comm.Barrier()
                begin = time.perf_counter()
                run()
                self.comm.Barrier()
                seconds = self.comm.allreduce(time.perf_counter() - begin)
                if turn:
                    times[name].append(seconds / self.comm.size)
        return times


def _min() -> Any:
    from mpi4py import MPI

    return MPI.MIN


def job(folder: Path, n: int, rounds: int) -> None:
    """Be one rank of the job; the first one prints what was measured."""
    turns = Turns(folder, n)
    found = {"save": turns.measured(turns.saves(), rounds), "load, warm": turns.measured(turns.loads(), rounds)}
    found["load, cold"] = turns.measured(turns.loads(), rounds, cold=True)
    if turns.comm.rank == 0:
        print(json.dumps(found))


def main() -> None:
    """Launch the job and write the page; with ``--job``, be one of its ranks."""
    mib = {"type": int, "default": 1024, "help": "MiB of the array"}
    hidden = {"help": argparse.SUPPRESS}
    options = options_of(
        __doc__ or "", 5, mib=mib, job={"action": "store_true", **hidden}, folder={"type": Path, **hidden}
    )
    n = int((options.mib * 2**20 / 8) ** 0.5) // 4 * 4
    if options.job:
        job(options.folder, n, options.rounds)
        return
    folder = options.output / "files"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    page, more = [], ("--folder", str(folder), "--mib", str(options.mib))
    try:
        found = measured_by("files.py", Setting(RANKS, True), options.rounds, *more)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    for what, times in found.items():
        page += [f"| {what} | time / plain | GB/s |", "|---|---|---|"]
        for name, seconds in times.items():
            ratio = spread([a / b for a, b in zip(seconds, times["plain"], strict=True)])
            page.append(f"| {name} | {ratio} | {number(n * n * 8e-9 / statistics.median(seconds))} |")
        page.append("")
    (options.output / "files.md").write_text("\n".join(page))
    print("\n".join(page))


if __name__ == "__main__":
    main()
