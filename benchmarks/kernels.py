"""Compare the strided copies of the kernel with NumPy's own, in one process: ``python benchmarks/kernels.py``.

Each case copies views of some arrays to views of others. It runs in rounds. In each round NumPy, the kernel and a
plain copy of as many bytes run once each, so all see the same noise. The table has median times with quartiles, and
medians of the ratios of each round. Results are verified after the timing. ``--mib`` sets the sizes of the cases (one
table for each size), ``--rounds`` the number of rounds, ``--only`` a text that the names of the cases contain.
"""

import argparse
import math
import statistics
import time
from collections.abc import Callable, Iterator
from itertools import chain, product
from typing import NamedTuple

import numpy as np

from meshcomm._kernels import BoxCopies

Views = list[np.ndarray]


class Case(NamedTuple):
    """Views to copy from and views to copy to, in pairs."""

    name: str
    sources: Views
    targets: Views


def random_array(shape: tuple[int, ...], itemsize: int) -> np.ndarray:
    """Return an array of random bytes."""
    data = np.random.default_rng(0).integers(0, 256, math.prod(shape) * itemsize, np.uint8)
    return data.view(item_type(itemsize)).reshape(shape)


def item_type(itemsize: int) -> np.dtype:
    """Return a dtype that NumPy copies as fast as it can."""
    return np.dtype({1: "u1", 2: "u2", 4: "u4", 8: "u8", 16: "c16"}[itemsize])


def contiguous(nbytes: int) -> Iterator[Case]:
    """One run."""
    source = random_array((nbytes // 8,), 8)
    yield Case("contiguous", [source], [np.empty_like(source)])


def rows(nbytes: int) -> Iterator[Case]:
    """Rows of many lengths, out of rows four times as long and into them."""
    for run in (2, 4, 8, 16, 24, 48, 100, 256, 1024, 8192, 65536):
        item = 1 if run % 2 else 2 if run % 4 else 4 if run % 8 else 8
        count = max(1, nbytes // run)
        wide = random_array((count, 4, run // item), item)
        narrow = np.empty((count, run // item), wide.dtype)
        yield Case(f"rows of {run} B out of {4 * run}", [wide[:, 1]], [narrow])
        yield Case(f"rows of {run} B into {4 * run}", [narrow.copy()], [wide.copy()[:, 1]])


def transposes(nbytes: int) -> Iterator[Case]:
    """Matrices of two shapes, and the axes of a cube in other orders."""
    for item in (1, 2, 4, 8, 16):
        side = round((nbytes / item) ** 0.5)
        for rows, columns in ((side, side), (side * 4 + 1, side // 4)):
            source = random_array((rows, columns), item)
            yield Case(
                f"transpose {rows} x {columns}, {item} B", [source.T], [np.empty((columns, rows), source.dtype)]
            )
    for item in (4, 8):
        side = round((nbytes / item) ** (1 / 3))
        source = random_array((side, side, side), item)
        for axes in ((0, 2, 1), (1, 0, 2), (2, 0, 1), (1, 2, 0), (2, 1, 0)):
            target = np.empty((side, side, side), source.dtype)
            yield Case(f"axes {axes} of {side}^3, {item} B", [source.transpose(axes)], [target])


def streams(nbytes: int) -> Iterator[Case]:
    """Items of several arrays, joined next to each other in one array, and split again; also short rows."""
    for count, run, item in chain(
        product((2, 4, 8), (1, 2, 4, 8), (0,)),
        [(3, 4, 0), (3, 8, 0), (5, 2, 0), (7, 1, 0), (6, 4, 0), (4, 24, 8), (4, 100, 4), (4, 256, 8)],
    ):
        item = item or run
        rows = nbytes // count // run
        apart = [random_array((rows, run // item), item) for _ in range(count)]
        joined = np.empty((rows, count, run // item), apart[0].dtype)
        into = [joined[:, i] for i in range(count)]
        yield Case(f"join {count} x {run} B", apart, into)
        full = random_array(joined.shape, item)
        yield Case(f"split {count} x {run} B", [full[:, i] for i in range(count)], [np.empty_like(a) for a in apart])


def base_of(view: np.ndarray) -> np.ndarray:
    """Return the array that owns the memory of a view."""
    while isinstance(view.base, np.ndarray):
        view = view.base
    return view


def prepared(case: Case) -> Callable[[], None]:
    """Return the same copies by the kernel."""

    def side(views: Views) -> tuple[Views, np.ndarray, np.ndarray, np.ndarray]:
        bases = {id(base_of(view)): base_of(view) for view in views}
        regions = [list(bases).index(id(base_of(view))) for view in views]
        offsets = [view.ctypes.data - base_of(view).ctypes.data for view in views]
        strides = [view.strides for view in views]
        return list(bases.values()), *(np.array(a, dtype=np.intp) for a in (regions, offsets, strides))

    sources, *source_boxes = side(case.sources)
    targets, *target_boxes = side(case.targets)
    extents = np.array([view.shape for view in case.sources], dtype=np.intp)
    sizes = [array.nbytes for array in sources], [array.nbytes for array in targets]
    copies = BoxCopies(*sizes, case.sources[0].itemsize, *source_boxes, *target_boxes, extents)
    return lambda: copies.run(sources, targets)


def by_numpy(case: Case) -> None:
    """The copies by NumPy."""
    for source, target in zip(case.sources, case.targets, strict=True):
        target[...] = source


def seconds(call: Callable[[], None], repeats: int) -> float:
    """Return the seconds of a call: the CPU time of this thread, because other processes may run too."""
    start = time.thread_time()
    for _ in range(repeats):
        call()
    return (time.thread_time() - start) / repeats


def measure(case: Case, rounds: int) -> dict[str, list[float]]:
    """Return the times of each contender in each round."""
    nbytes = sum(view.nbytes for view in case.sources)
    plain, copy = np.zeros(nbytes, np.uint8), np.zeros(nbytes, np.uint8)
    calls = {"numpy": lambda: by_numpy(case), "kernel": prepared(case), "plain": lambda: np.copyto(copy, plain)}
    repeats = max(1, 2**21 // nbytes)
    times: dict[str, list[float]] = {name: [] for name in calls}
    for number in range(rounds + 1):
        for name, call in calls.items():
            spent = seconds(call, repeats)
            if number:  # the first round only warms up
                times[name].append(spent)
    for target in case.targets:
        target.view(item_type(target.itemsize))[...] = 0
    calls["kernel"]()
    for source, target in zip(case.sources, case.targets, strict=True):
        assert source.tobytes() == target.tobytes(), case.name
    return times


def line(case: Case, times: dict[str, list[float]]) -> str:
    """Return a line of the table."""

    def ratio(a: str, b: str) -> float:
        return statistics.median(x / y for x, y in zip(times[a], times[b], strict=True))

    def spread(name: str) -> str:
        low, middle, high = (1000 * q for q in statistics.quantiles(times[name], n=4))
        return f"{middle:.3g} ({low:.3g}-{high:.3g})"

    faster, passes = ratio("numpy", "kernel"), ratio("kernel", "plain")
    return f"| {case.name} | {spread('numpy')} | {spread('kernel')} | {faster:.2f} | {passes:.2f} |"


def main() -> None:
    """Print a table for each size."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mib", type=float, nargs="+", default=[32, 0.25])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    for mib in options.mib:
        print(f"\n{mib} MiB; times in ms, median and quartiles\n")
        print("| case | NumPy | kernel | NumPy / kernel | kernel / plain copy |")
        print("|---|---|---|---|---|")
        for family in (contiguous, rows, transposes, streams):
            for case in family(int(mib * 2**20)):
                if options.only in case.name:
                    print(line(case, measure(case, options.rounds)), flush=True)


if __name__ == "__main__":
    main()
