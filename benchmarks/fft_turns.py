"""What the jobs of `fft.py` share: its cases, and how a peer transforms them. Nothing here uses an MPI.

`fft.py` itself is one job. The others are programs beside it, one for each library that needs processes of its own:
`fft_jax.py`, `fft_fftw.py` and `fft_mkl.py`. Each has a `Peer` with the library's transforms.
"""

from abc import ABC, abstractmethod
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
from rounds import Library, Runs

CALLS = 2
"""Calls of each contender in a round, of which the shortest counts."""

Array: TypeAlias = npt.NDArray[np.generic]
Where: TypeAlias = tuple[slice, ...]


class Case(NamedTuple):
    """A transform and back."""

    shape: tuple[int, ...]
    dtype: str
    dims: int

    @classmethod
    def of(cls, shape: list[int], dtype: str, dims: int) -> "Case":
        """Return the case of a command, in which a tuple is a list."""
        return cls(tuple(shape), dtype, dims)

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


class Peer(Library):
    """A library: one contender, in processes of its own."""

    name: str

    @abstractmethod
    def transform(self, case: Case) -> Transform | None:
        """Plan a case; None if the library does not have it."""

    def contenders(self, *case: Any) -> Runs:
        """Return the transform and back by this library."""
        made = self.transform(Case.of(*case))
        if made is None:
            return {}
        made.put(random(Case.of(*case)))

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
