"""The ranks of `contractions.py` that run meshcomm, the local products, and ScaLAPACK's pdgemm if it is installed."""

import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np
from contractions_turns import CALLS, GRAM, STACKS, Case, Matrix, Peer
from rounds import Runs, Turns, serve

import meshcomm as mc
from meshcomm.core.memory.scratch import forget_scratch

BLOCK = 128
"""Rows and columns of a block of a block-cyclic matrix."""


def pdgemm() -> Callable[..., mc.DTensor] | None:
    """Return the product of ScaLAPACK; None if no library is found."""
    from meshcomm.linalg import scalapack
    from meshcomm.linalg.library import library

    try:
        library()
    except ImportError:
        return None
    return scalapack.matmul


def block_of(case: Case) -> int:
    """Return the rows and columns of a block of a block-cyclic matrix."""
    return min(BLOCK, case.n // 8)


class Ours(Peer):
    """The ranks of mpi4py."""

    name = "meshcomm"

    def __init__(self, ranks: int) -> None:
        super().__init__(ranks)
        self.pdgemm = pdgemm()

    def begin(self) -> None:
        self.check()

    def has(self, case: Case) -> bool:
        return True

    def operand(self, case: Case, layout: str, values: Matrix) -> mc.DTensor:
        mesh = mc.create_mesh(list(zip("xy", case.grid(self.size), strict=False)))
        cuts = case.cuts(layout, self.size)
        if layout == "cyclic":
            return mc.distribute(values, mc.Layout([mc.Cyclic(*names, block_of(case)) for names in cuts], mesh))
        return mc.distribute(values, mc.Layout([names or mc.UNSHARDED for names in cuts], mesh))

    def product(self, case: Case, operands: list[Any]) -> Any:
        return np.einsum("bij,bjk->bik", *operands) if case.left == STACKS else case.run(*operands)

    def gathered(self, result: Any) -> Any:
        return result.to_numpy()

    def contenders(self, *case: Any) -> Runs:
        made = Case(*case)
        operands = self.operands(made)
        found = {self.name: lambda: self.product(made, operands), "local": self.local(made, operands)}
        by_scalapack = self.pdgemm
        if by_scalapack and made.left not in (STACKS, GRAM):
            found["pdgemm"] = lambda: by_scalapack(*operands, block=block_of(made))
        return found

    def local(self, case: Case, operands: list[mc.DTensor]) -> Callable[[], object]:
        """Return NumPy's product for the share of one rank."""
        if case.left in (STACKS, GRAM):
            blocks = [operand.local for operand in operands]
            return lambda: case.run(*blocks)
        rows, columns, rng = case.n // 2, case.n * 2 // self.size, np.random.default_rng(1)
        left, right, into = rng.random((rows, case.n)), rng.random((case.n, columns)), np.zeros((rows, columns))
        return lambda: np.matmul(left, right, out=into)


class MemoryToo(Turns):
    """The turns, and a command for the memory of a call."""

    world: Ours

    def memory(self) -> int:
        """Return the most bytes that a rank had during a call of meshcomm, beyond its blocks before and after."""
        forget_scratch()
        tracemalloc.start()
        result = self.runs["meshcomm"]()
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        return max(self.world.comm.allgather(peak - result.local.nbytes))


if __name__ == "__main__":
    serve(Ours, CALLS, MemoryToo)
