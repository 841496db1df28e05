"""A day with xarray: ``python benchmarks/xarray_day.py`` writes build/bench/xarray_day.md.

It takes some minutes. Ten years of daily fields of 32 × 64 doubles are on 1 and 2 ranks, cut by latitude or by time.
Beside them rank 0 runs the same lines on the whole arrays of NumPy, where xarray uses bottleneck and flox if they are
installed. Contenders take turns call by call. A time is processor time: of tensors, that of the slowest rank, which
includes what it waits for others. The page has medians of the rounds in milliseconds, and how many times as long as
xarray alone tensors take in the same round. Results are compared after the timing.
"""

import statistics
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import xarray
from pages import Measured, main, slowest
from report import number, spread, table

import meshcomm as mc
from jobs import Setting

RANKS = (1, 2)
DAYS, LATITUDES, LONGITUDES = 3650, 32, 64
LAYOUTS = {"latitude": [mc.UNSHARDED, "x", mc.UNSHARDED], "time": ["x", mc.UNSHARDED, mc.UNSHARDED]}

CASES: dict[str, Callable[[Any], Any]] = {
    'groupby("time.dayofyear").mean()': lambda a: a.groupby("time.dayofyear").mean(),
    'groupby("time.month").mean()': lambda a: a.groupby("time.month").mean(),
    'groupby("time.month").std()': lambda a: a.groupby("time.month").std(),
    'groupby("time.season").max()': lambda a: a.groupby("time.season").max(),
    "the same means of a dataset": lambda a: a.to_dataset(name="t").groupby("time.month").mean().t,
    'a.groupby("time.month") - means': lambda a: a.groupby("time.month") - a.groupby("time.month").mean(),
    'resample(time="MS").mean()': lambda a: a.resample(time="MS").mean(),
    "rolling(time=31).mean()": lambda a: a.rolling(time=31).mean(),
    "rolling(time=31, center=True).max()": lambda a: a.rolling(time=31, center=True).max(),
    "coarsen(time=5).mean()": lambda a: a.coarsen(time=5).mean(),
    'mean("time")': lambda a: a.mean("time"),
}


def weather() -> xarray.DataArray:
    """Return ten years of days; one of a hundred elements is missing."""
    random = np.random.default_rng(1)
    field = random.normal(280, 10, (DAYS, LATITUDES, LONGITUDES))
    field[random.random(field.shape) < 0.01] = np.nan
    days = np.datetime64("2001-01-01", "ns") + np.arange(DAYS) * np.timedelta64(1, "D")
    return xarray.DataArray(field, {"time": days}, ["time", "lat", "lon"])


def measured(rounds: int) -> dict[str, dict[str, list[float]]]:
    """Return the seconds of each case, by layout, of tensors and of xarray alone. Collective over all ranks."""
    from mpi4py import MPI

    comm = MPI.COMM_WORLD.Dup()
    mesh, whole = mc.create_mesh([("x", comm.size)]), weather()
    of = {
        name: whole.copy(data=mc.distribute(whole.values, mc.Layout(specs, mesh))) for name, specs in LAYOUTS.items()
    }
    warnings.simplefilter("ignore", RuntimeWarning)
    found = {}
    for case, run in CASES.items():
        times = np.zeros((rounds + 1, len(of) + 1))
        for turn in range(rounds + 1):
            for which, array in enumerate((whole, *of.values())):
                comm.Barrier()
                begin = time.thread_time()
                if which or comm.rank == 0:
                    run(array)
                times[turn, which] = time.thread_time() - begin
        for array in of.values():
            result = run(array).values
            assert comm.rank or np.allclose(result, run(whole), equal_nan=True)
        found[case] = dict(zip(("alone", *of), slowest(comm, times)[1:].T.tolist(), strict=True))
    return found


def page(measure: Measured) -> list[str]:
    """Return the lines of the page."""
    rows = []
    for ranks in RANKS:
        for case, times in measure(Setting(ranks, True)).items():
            alone = times.pop("alone")
            cells = [f"`{case}`" if "(" in case else case, str(ranks), number(statistics.median(alone) * 1e3)]
            for seconds in times.values():
                cells.append(number(statistics.median(seconds) * 1e3))
                cells.append(spread([own / base for own, base in zip(seconds, alone, strict=True)]))
            rows.append(cells)
    head = ["", "ranks", "xarray, ms"]
    return table([*head, *(text for name in LAYOUTS for text in (f"cut by {name}, ms", "times xarray"))], rows)


if __name__ == "__main__":
    main("xarray_day", __doc__, 5, measured, page)
