"""Series and compressed files: ``python benchmarks/series.py`` writes build/bench/series.md.

It takes some minutes. Four ranks append snapshots of 128 MiB to an HDF5 file and to a zarr store, and save 64 MiB
compressed with shuffle and gzip. Beside a snapshot run plain ``os.pwrite`` of the same bytes by all ranks, HDF5File of
mpi4py-fft if it is installed, and a file of its own for each rank, the limit. Beside a compressed file runs h5py on
one rank. No time has ``fsync`` in it: that call does nothing here. Contenders take turns call by call. The time of a
call is that of the slowest rank. The page has the medians and quartiles of the ratios of one round.
"""

import os
import shutil
import statistics
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from pages import Measured, in_turns, main
from report import number, spread

import meshcomm as mc
from jobs import Setting

RANKS, SHAPE, PACKED, CHUNKS = 4, (256, 512, 128), (128, 512, 128), (4, 512, 128)
U = mc.UNSHARDED
Run = Callable[[], object]


def written(path: Path, data: Any, offset: int) -> None:
    """Write all of *data* at an offset of a file, which is made if it is not there."""
    number, done = os.open(path, os.O_RDWR | os.O_CREAT), 0
    view = memoryview(data).cast("B")
    while done < len(view):
        done += os.pwrite(number, view[done : done + 2**24], offset + done)
    os.close(number)


def snapshots(comm: Any, folder: Path) -> dict[str, Run]:
    """Return what appends or writes a snapshot; each starts a new file after some. Collective."""
    mesh = mc.create_mesh([("x", comm.size)])
    rows, columns = mc.Layout(["x", U, U], mesh), mc.Layout([U, "x", U], mesh)
    u = mc.random.default_rng(1).random(SHAPE, layout=rows)
    counts: dict[str, int] = {}

    def again(path: Path) -> int:
        """Return how many snapshots the file has; after four a new one begins. Collective."""
        found = counts[path.name] = (counts.get(path.name, 3) + 1) % 4
        if not found:
            comm.Barrier()
            if comm.rank == 0:
                shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
            comm.Barrier()
        return found

    def series(name: str, tensor: Any) -> Run:
        def append() -> None:
            again(folder / name)
            mc.Series(folder / name, {"u": rows}, shape=SHAPE, dtype=float).append(u=tensor, time=0.5)

        return append

    def plain() -> None:
        written(folder / "plain", u.local, again(folder / "plain") * u.nbytes + comm.rank * u.local.nbytes)

    found = {
        "pwrite": plain,
        ".h5, rows": series("a.h5", u),
        ".h5, columns": series("b.h5", u.relayout(columns)),
        ".zarr, rows": series("c.zarr", u),
        "a file for each rank": lambda: written(folder / f"own-{comm.rank}", u.local, 0),
    }
    return found | mpi4py_fft(comm, folder, u, again)


def mpi4py_fft(comm: Any, folder: Path, u: Any, again: Callable[[Path], int]) -> dict[str, Run]:
    """Return mpi4py-fft's writer, as its demo uses it; it needs h5py with MPI."""
    try:
        import h5py
        from mpi4py_fft import DistArray, HDF5File

        if not h5py.get_config().mpi:
            return {}
    except ImportError:
        return {}
    array = DistArray(SHAPE, subcomm=(0, 1, 1), dtype=float)
    array[:] = u.local

    def write() -> None:
        step = again(folder / "fft.h5")
        HDF5File(str(folder / "fft.h5"), mode="a" if step else "w").write(step, {"u": [array]})

    return {"mpi4py-fft": write}


def compressed(comm: Any, folder: Path) -> dict[str, Run]:
    """Return what saves a compressed file, on all ranks and on one. Collective."""
    mesh = mc.create_mesh([("x", comm.size)])
    whole = np.round(np.cumsum(np.random.default_rng(1).normal(size=PACKED), axis=-1), 2)
    rows = mc.distribute(whole, mc.Layout(["x", U, U], mesh))
    columns = rows.relayout(mc.Layout([U, "x", U], mesh))

    def saved(name: str, tensor: Any) -> Run:
        how: dict[str, Any] = {"compression": ["shuffle", ("gzip", 4)], "chunks": CHUNKS, "overwrite": True}
        return lambda: mc.save(folder / name, {"u": tensor}, **how)

    def one_rank() -> None:
        if comm.rank == 0:
            import h5py

            with h5py.File(folder / "one.h5", "w") as file:
                how: dict[str, Any] = {"compression": "gzip", "compression_opts": 4, "shuffle": True}
                file.create_dataset("u", data=whole, chunks=CHUNKS, **how)

    return {"h5py": one_rank, "rows": saved("d.h5", rows), "columns": saved("e.h5", columns)}


def measured(rounds: int) -> dict[str, dict[str, list[float]]]:
    """Return the seconds of each contender in each round. Collective."""
    from mpi4py import MPI

    comm = MPI.COMM_WORLD.Dup()
    folder = Path(comm.bcast(tempfile.mkdtemp(dir=Path("build")) if comm.rank == 0 else None)).resolve()
    os.fsync = lambda number: None
    try:
        found = {"snapshot": in_turns(comm, snapshots(comm, folder), rounds, 2, comm.Barrier)}
        found["compressed"] = in_turns(comm, compressed(comm, folder), rounds, 1, comm.Barrier)
    finally:
        comm.Barrier()
        if comm.rank == 0:
            shutil.rmtree(folder)
    comm.Free()
    return found


def page(measured_of: Measured) -> list[str]:
    """Return the lines of the page."""
    times = measured_of(Setting(RANKS, True))
    lines = ["| | speed over that of pwrite, or of h5py | seconds |", "|---|---|---|"]
    for what, base in (("snapshot", "pwrite"), ("compressed", "h5py")):
        for name, its in times[what].items():
            ratios = [a / b for a, b in zip(times[what][base], its, strict=True)]
            lines.append(f"| {what}, {name} | {spread(ratios)} | {number(statistics.median(its))} |")
    return lines


if __name__ == "__main__":
    Path("build").mkdir(exist_ok=True)
    main("series", __doc__, 7, measured, page)
