"""What the jobs of `contractions.py` share: its cases, and how a peer runs them.

`contractions.py` itself is one job. The others are programs beside it, one for each library that needs processes of
its own: `contractions_jax.py`, `contractions_heat.py` and `contractions_torch.py`. Each has a `Peer`.
"""

from abc import abstractmethod
from itertools import product
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
from rounds import Library, Runs, asleep

CALLS = 1
"""Calls of each contender in a round."""

Matrix: TypeAlias = npt.NDArray[np.float64]
LAYOUTS = ("rows", "columns", "blocks", "cyclic")
STACKS, GRAM = "stacks", "gram"


class Case(NamedTuple):
    """A product of matrices in two layouts of `LAYOUTS`, *n* x *n*; or *n* products of 64 x 64, or of n x 64."""

    left: str
    right: str
    n: int

    def __str__(self) -> str:
        if self.left == STACKS:
            return f'"bij,bjk->bik", {self.n:,} of 64 × 64 × 64'
        return f"a.T @ a, {self.n:,} × 64" if self.left == GRAM else f"{self.left} @ {self.right}, {self.n}²"

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of each operand."""
        return {STACKS: (self.n, 64, 64), GRAM: (self.n, 64)}.get(self.left, (self.n, self.n))

    @property
    def layouts(self) -> tuple[str, ...]:
        """The layout of each operand."""
        return {STACKS: ("rows", "rows"), GRAM: ("rows",)}.get(self.left, (self.left, self.right))

    def grid(self, ranks: int) -> tuple[int, ...]:
        """Return the shape of the mesh: a line, unless a layout needs a grid."""
        return (2, ranks // 2) if {"blocks", "cyclic"} & {*self.layouts} else (ranks,)

    def cuts(self, layout: str, ranks: int) -> list[tuple[str, ...]]:
        """Return the mesh dimensions that cut each axis of an operand in a layout."""
        names = tuple("xy"[: len(self.grid(ranks))])
        first = {"rows": [names], "columns": [(), names]}.get(layout, [("x",), ("y",)])
        return first + [()] * (len(self.shape) - len(first))

    def run(self, *operands: Any) -> Any:
        """Return the result as any library writes it."""
        a, b = operands if len(operands) == 2 else (operands[0].T, operands[0])
        return a @ b


def cases(n: int, quick: bool) -> list[Case]:
    """Return the cases, with matrices of *n* rows."""
    pairs = [Case(*pair, n) for pair in product(LAYOUTS, repeat=2)]
    return [*pairs, Case(STACKS, "", 1024 if quick else 8192), Case(GRAM, "", 50_000 if quick else 400_000)]


def small() -> list[Case]:
    """Return cases whose results are compared with NumPy's."""
    return [case._replace(n=48) for case in cases(48, True)]


def whole(case: Case) -> list[Matrix]:
    """Return whole operands of random numbers."""
    rng = np.random.default_rng(0)
    return [rng.random(case.shape) for _ in case.layouts]


def compare(case: Case, found: npt.NDArray[Any]) -> None:
    """Raise `AssertionError` if what is *found* is not NumPy's result of a small case."""
    if not np.allclose(found, case.run(*whole(case)), rtol=1e-12):
        raise AssertionError(f"its results differ from NumPy's: {case}")


class Peer(Library):
    """A library: one contender, in processes of its own. By default these are the ranks of MPI."""

    name: str

    def __init__(self, ranks: int) -> None:
        from mpi4py import MPI

        self.comm = MPI.COMM_WORLD.Dup()
        self.rank, self.size = self.comm.rank, ranks

    def together(self) -> None:
        asleep(self.comm.Ibarrier().Test)

    @abstractmethod
    def operand(self, case: Case, layout: str, values: Matrix) -> Any:
        """Return the library's array of the values, which are the whole ones on each rank."""

    def has(self, case: Case) -> bool:
        """Return whether the library has the layouts of a case."""
        return "cyclic" not in case.layouts

    @abstractmethod
    def product(self, case: Case, operands: list[Any]) -> Any:
        """Return the result, when all of it is there."""

    @abstractmethod
    def gathered(self, result: Any) -> npt.NDArray[Any]:
        """Return the whole result."""

    def contenders(self, *case: Any) -> Runs:
        made = Case(*case)
        if not self.has(made):
            return {}
        operands = self.operands(made)
        return {self.name: lambda: self.product(made, operands)}

    def operands(self, case: Case) -> list[Any]:
        """Return the operands of a case."""
        return [self.operand(case, *each) for each in zip(case.layouts, whole(case), strict=True)]

    def check(self) -> None:
        for case in filter(self.has, small()):
            compare(case, self.gathered(self.product(case, self.operands(case))))
