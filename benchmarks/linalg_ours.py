"""The ranks of `linalg.py` that run meshcomm, NumPy on one of them, and the bare routines of ScaLAPACK."""

import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np
from linalg_turns import CALLS, Case, Matrix, Peer
from rounds import Runs, asleep, serve

import meshcomm as mc
from meshcomm.linalg.jobs import ScalapackJob
from meshcomm.linalg.library import library

BLOCK = 64


def no_check(*given: object) -> None:
    """All shapes fit."""


class Bare:
    """A routine of ScaLAPACK on matrices that are in its layout already, with its workspace.

    Parameters
    ----------
    case: of a square matrix
    operands: its tensors
    """

    def __init__(self, case: Case, operands: list[mc.DTensor]) -> None:
        grid = {"in_order": case.name == "eigh", "along": 0 if case.name == "solve" else None}  # as in meshcomm
        self.job = ScalapackJob.begin("linalg.bare", operands[:1], BLOCK, no_check, **grid)
        a, (self.n, _) = self.job.placed(operands[0]), operands[0].shape
        self.pairs = [(a, a.copy())]
        self.call = getattr(self, case.name)(*operands[1:])

    def ready(self) -> None:
        """Bring back the operands, which the routine overwrites."""
        for kept, overwritten in self.pairs:
            overwritten.local[...] = kept.local

    def described(self, tensor: mc.DTensor) -> tuple[Any, ...]:
        """Return the arguments for a matrix."""
        return self.job.matrix(tensor)

    def routine(self, name: str, *arguments: Any, works: str = "") -> Callable[[], None]:
        """Return a call of a routine, with the workspaces that it asks for: doubles, and integers."""
        call, info = library().call, ctypes.c_int(0)
        asking = [np.zeros(8, {"w": "f8", "i": "i4"}[letter]) for letter in works]
        if works:
            call(name, *arguments, *[x for each in asking for x in (each, -1)], info)
        given = [x for each in asking for x in (np.zeros(int(each[0]), each.dtype), int(each[0]))]
        return lambda: call(name, *arguments, *given, info)

    def solve(self, b: mc.DTensor) -> Callable[[], None]:
        """``pdgesv``."""
        side = self.job.transposed(b[:, None])
        self.pairs.append((side, side.copy()))
        (_, a), (_, x) = self.pairs
        pivots = self.job.along_columns(a, np.intc)
        return self.routine("pdgesv", self.n, 1, *self.described(a), pivots, *self.described(x))

    def cholesky(self) -> Callable[[], None]:
        """``pdpotrf``."""
        return self.routine("pdpotrf", b"U", self.n, *self.described(self.pairs[0][1]))

    def eigh(self) -> Callable[[], None]:
        """``pdsyevd``."""
        a = self.pairs[0][1]
        found = np.zeros(self.n), *self.described(a.copy())
        return self.routine("pdsyevd", b"V", b"U", self.n, *self.described(a), *found, works="wi")

    def svd(self) -> Callable[[], None]:
        """``pdgesvd``."""
        a = self.pairs[0][1]
        found = np.zeros(self.n), *self.described(a.copy()), *self.described(a.copy())
        return self.routine("pdgesvd", b"V", b"V", self.n, self.n, *self.described(a), *found, works="w")


class Ours(Peer):
    """The ranks of mpi4py."""

    name = "meshcomm"

    def __init__(self, ranks: int) -> None:
        from mpi4py import MPI

        self.comm = MPI.COMM_WORLD.Dup()
        self.rank, self.size, self.bare = self.comm.rank, ranks, None  # type: int, int, Bare | None

    def begin(self) -> None:
        self.check()

    def together(self) -> None:
        asleep(self.comm.Ibarrier().Test)

    def ready(self, name: str) -> None:
        if name == "ScaLAPACK" and self.bare:
            self.bare.ready()

    def has(self, case: Case) -> bool:
        if case.tall:
            return True
        try:
            library()
        except ImportError:
            return False
        return True

    def operand(self, case: Case, values: Matrix) -> mc.DTensor:
        sizes, cuts = ((self.size,), ["x", mc.UNSHARDED]) if case.tall else ((2, self.size // 2), ["x", "y"])
        mesh = mc.create_mesh(list(zip("xy", sizes, strict=False)))
        return mc.distribute(values, mc.Layout(cuts[: values.ndim], mesh))

    def computed(self, case: Case, operands: list[Any]) -> Any:
        return getattr(np.linalg, case.name)(*operands, **case.options())

    def gathered(self, result: Any) -> Any:
        return result.to_numpy()

    def contenders(self, *case: Any) -> Runs:
        self.bare = None
        made, found = Case(*case), super().contenders(*case)
        if not found:
            return found
        whole = made.matrices()
        if made.tall:
            block = self.operand(made, *whole).local
            return found | {"local": lambda: self.computed(made, [block])}
        self.bare = Bare(made, self.operands(made))
        runs = found | {"ScaLAPACK": self.bare.call}
        # The other ranks sleep meanwhile.
        return runs | {"NumPy": (lambda: self.computed(made, whole)) if self.rank == 0 else lambda: None}


if __name__ == "__main__":
    serve(Ours, CALLS)
