"""What the jobs of `linalg.py` share: its cases, and how a library computes them.

`linalg.py` itself is one job. The others are programs beside it, one for each library that needs processes of its own:
`linalg_heat.py`, `linalg_dask.py` and `linalg_jax.py`. Each has a `Peer`.
"""

from abc import abstractmethod
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
from rounds import Library, Runs

CALLS = 1
"""Calls of each contender in a round."""

SHORT = 64
"""Columns of a tall matrix."""

Matrix: TypeAlias = npt.NDArray[np.float64]


class Case(NamedTuple):
    """A function of `numpy.linalg` of a matrix: n x n, or *tall*, n x 64."""

    name: str
    n: int
    tall: bool = False

    def __str__(self) -> str:
        return f"`{self.name}`, {self.n:,} × {SHORT}" if self.tall else f"`{self.name}`, {self.n}²"

    def matrices(self) -> list[Matrix]:
        """Return the operands, the same on each rank; that of ``solve`` with a right side."""
        rng = np.random.default_rng(0)
        a = rng.standard_normal((self.n, SHORT if self.tall else self.n))
        if self.name in ("cholesky", "eigh"):
            a += a.T
        if self.name == "cholesky":
            a += 4 * self.n**0.5 * np.eye(self.n)
        return [a, rng.standard_normal(self.n)] if self.name == "solve" else [a]

    def options(self) -> dict[str, bool]:
        """Return the keyword arguments of NumPy's function."""
        return {"full_matrices": False} if self.name == "svd" else {}

    def comparable(self, results: Any) -> Any:
        """Return that of the *results* which is the same for all libraries, but for the signs of R."""
        which = {"qr": 1, "svd": 1, "eigh": 0}.get(self.name)
        return results if which is None else results[which]


def cases(n: int, rows: int, ranks: int) -> list[Case]:
    """Return the cases for a number of ranks; those of square matrices are for 2 x 2."""
    tall = [Case("qr", rows, tall=True), Case("svd", rows, tall=True)]
    square = [Case("solve", n), Case("cholesky", n), Case("eigh", n // 2), Case("svd", n // 2)]
    return [*tall, *(square if ranks == 4 else [])]


class Peer(Library):
    """A library: one contender."""

    name: str

    @abstractmethod
    def has(self, case: Case) -> bool:
        """Return whether the library has a case."""

    @abstractmethod
    def operand(self, case: Case, values: Matrix) -> Any:
        """Return the library's array of the values, which are the whole ones on each rank."""

    @abstractmethod
    def computed(self, case: Case, operands: list[Any]) -> Any:
        """Return the results, when all of them are there."""

    @abstractmethod
    def gathered(self, result: Any) -> npt.NDArray[Any]:
        """Return a whole result."""

    def operands(self, case: Case) -> list[Any]:
        """Return the operands of a case."""
        return [self.operand(case, values) for values in case.matrices()]

    def contenders(self, *case: Any) -> Runs:
        made = Case(*case)
        if not self.has(made):
            return {}
        operands = self.operands(made)
        return {self.name: lambda: self.computed(made, operands)}

    def check(self) -> None:
        """The matrices are too large to be gathered."""
        for case in filter(self.has, cases(1100, 18_000, 4)):
            found = self.gathered(case.comparable(self.computed(case, self.operands(case))))
            function = getattr(np.linalg, case.name)
            expected = case.comparable(function(*case.matrices(), **case.options()))
            if not np.allclose(abs(found), abs(expected), rtol=1e-7, atol=1e-7):
                raise AssertionError(f"its results differ from NumPy's: {case}")
