"""The turns of the jobs of `fft.py`: its cases, and what each job does when it is told to. Nothing here uses an MPI.

`fft.py` itself is one job. The others are programs beside it, one for each library that needs processes of its own:
`fft_jax.py`, `fft_fftw.py` and `fft_mkl.py`. Each has a `World`, and a `Peer` with the library's transforms.
"""

import argparse
import os
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
from commands import obey

CALLS = 2
"""Calls of each contender in a round, of which the shortest counts."""

Array: TypeAlias = npt.NDArray[np.generic]
Where: TypeAlias = tuple[slice, ...]
Runs: TypeAlias = dict[str, Callable[[], object]]


class Case(NamedTuple):
    """A transform and back."""

    shape: tuple[int, ...]
    dtype: str
    dims: int

    def __str__(self) -> str:
        n = f"{self.shape[0]}{'³' if len(self.shape) == 3 else '²'}"
        return f"{n} {np.dtype(self.dtype).name}, {'slabs' if self.dims == 1 else 'pencils'}"

    @property
    def real(self) -> bool:
        """Whether the values are real numbers."""
        return np.dtype(self.dtype).kind == "f"

    @property
    def single(self) -> bool:
        """Whether the numbers have single precision."""
        return np.dtype(self.dtype).name in ("float32", "complex64")

    @property
    def spectrum(self) -> tuple[int, ...]:
        """The shape of the spectrum."""
        return (*self.shape[:-1], self.shape[-1] // 2 + 1) if self.real else self.shape


DTYPES = ("c16", "f8", "c8", "f4")


def cases(ranks: int) -> list[Case]:
    """Return the cases for a number of ranks."""
    found = [Case(shape, dtype, 1) for shape in ((256,) * 3, (4096,) * 2) for dtype in DTYPES]
    return found + [Case((256,) * 3, dtype, 2) for dtype in DTYPES if ranks == 4]


def small(ranks: int) -> list[Case]:
    """Return cases whose results a peer is checked with."""
    found = [Case(shape, dtype, 1) for shape in ((8, 12, 16), (16, 24)) for dtype in DTYPES]
    return found + [Case((8, 12, 16), dtype, 2) for dtype in DTYPES if ranks == 4]


def asleep(ended: Callable[[], bool]) -> None:
    """Wait until *ended*, asleep: with fewer cores than ranks, a rank that polls takes the core of another."""
    while not ended():
        time.sleep(1e-4)


class World(Protocol):
    """The processes of a job, and the contenders that they run."""

    rank: int
    size: int

    def together(self) -> None:
        """Wait for all ranks, asleep."""

    def contenders(self, case: Case) -> Runs:
        """Return what each contender does in a call; none if the library does not have the case."""


class Turns:
    """What the commands do; all ranks get the same."""

    def __init__(self, world: World) -> None:
        self.world, self.runs = world, {}  # type: tuple[World, Runs]
        self.order: list[str] = []

    def prepare(self, shape: list[int], dtype: str, dims: int) -> list[str]:
        """Make the contenders of a case, and return their names."""
        self.drop()
        self.runs = self.world.contenders(Case(tuple(shape), dtype, dims))
        self.order = list(self.runs)
        return self.order

    def turn(self) -> dict[str, float]:
        """Return the seconds of a call of each contender, from when all ranks begin until all have ended."""
        self.order = self.order[1:] + self.order[:1]
        found = {}
        for name in self.order:
            spent = []
            for _ in range(CALLS):
                self.world.together()
                begin = time.perf_counter()
                self.runs[name]()
                self.world.together()
                spent.append(time.perf_counter() - begin)
            found[name] = min(spent)
        return found

    def drop(self) -> None:
        """Free the arrays of the current case."""
        self.runs = {}


class Transform(ABC):
    """A transform and back of one case, by a peer. Arrays come with where they are in the whole one."""

    @abstractmethod
    def put(self, whole: Array) -> None:
        """Take what belongs to this rank."""

    @abstractmethod
    def forward(self) -> None:
        """Transform the values."""

    @abstractmethod
    def backward(self) -> None:
        """Transform the spectrum, back to the values."""

    @abstractmethod
    def values(self) -> tuple[Where, Array]:
        """Return the values of this rank."""

    @abstractmethod
    def spectrum(self) -> tuple[Where, Array]:
        """Return the spectrum of this rank."""


class Peer(ABC):
    """A library: what a `World` has, with one contender."""

    name: str
    rank: int
    size: int

    def begin(self) -> None:  # noqa: B027
        """Begin to be a rank, once the library is loaded."""

    def end(self) -> None:  # noqa: B027
        """End to be a rank."""

    @abstractmethod
    def together(self) -> None:
        """Wait for all ranks, as in `World`."""

    @abstractmethod
    def transform(self, case: Case) -> Transform | None:
        """Plan a case; None if the library does not have it."""

    def contenders(self, case: Case) -> Runs:
        """Return the transform and back by this library."""
        made = self.transform(case)
        if made is None:
            return {}
        made.put(random(case))

        def run() -> None:
            made.forward()
            made.backward()

        return {self.name: run}

    def check(self) -> None:
        """Compare the results of small cases with NumPy's; `AssertionError` if they differ."""
        for case in small(self.size):
            made = self.transform(case)
            if made is None:
                continue
            whole = random(case)
            made.put(whole)
            made.forward()
            compare(case, made.spectrum(), np.fft.rfftn(whole) if case.real else np.fft.fftn(whole))
            made.backward()
            compare(case, made.values(), whole)


def compare(case: Case, found: tuple[Where, Array], whole: Array) -> None:
    """Raise `AssertionError` if what a rank has *found* is not that of the *whole*."""
    where, array = found
    tolerance = (1e-5 if case.single else 1e-13) * float(abs(whole).max())
    if array.shape != whole[where].shape or not np.allclose(array, whole[where], rtol=0, atol=tolerance):
        raise AssertionError(f"its results differ from NumPy's: {case}")


def random(case: Case) -> Array:
    """Return a whole array of random values."""
    rng = np.random.default_rng(0)
    values = rng.random(case.shape)
    return (values if case.real else values + 1j * rng.random(case.shape)).astype(case.dtype)


def serve(load: Callable[[int], Peer]) -> None:
    """Be a process of a job of the library that *load* loads; with ``--check`` only say if it is absent or wrong."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--ranks", type=int, required=True)
    parser.add_argument("--pipes", type=Path)
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    try:
        peer = load(options.ranks)
        peer.begin()
        if options.check:
            peer.check()
    except (ImportError, OSError, AssertionError) as problem:
        print(problem, flush=True)
        os._exit(1)  # without waiting for other ranks, as the end of MPI does
    if options.pipes:
        turns = Turns(peer)
        obey(turns, peer.rank, options.pipes)
        turns.drop()
    peer.end()
