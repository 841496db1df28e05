"""Dask as a peer of `linalg.py`: one process with as many threads as there are ranks, and BLAS with one in each.

A tall matrix has a chunk of rows for each thread; a square one has four times four chunks.
"""

from typing import Any

from linalg_turns import CALLS, Case, Matrix, Peer
from rounds import serve


class Dask(Peer):
    """The threads of this process."""

    name = "Dask"
    rank = 0

    def __init__(self, ranks: int) -> None:
        import dask
        from dask import array

        self.size, self.dask, self.array = ranks, dask, array
        dask.config.set(scheduler="threads", num_workers=ranks)

    def together(self) -> None:
        """There are no other processes."""

    def has(self, case: Case) -> bool:
        return case.tall or case.name in ("solve", "cholesky")

    def operand(self, case: Case, values: Matrix) -> Any:
        chunks = -(-case.n // (self.size if case.tall else 4))
        return self.array.from_array(values, chunks=(chunks, *([-1] if case.tall else [chunks]))[: values.ndim])

    def computed(self, case: Case, operands: list[Any]) -> Any:
        linalg = self.array.linalg
        if case.name == "cholesky":
            return self.dask.compute(linalg.cholesky(*operands, lower=True))[0]
        function = linalg.tsqr if case.name == "qr" else getattr(linalg, case.name)
        return self.dask.compute(function(*operands))[0]

    def gathered(self, result: Any) -> Any:
        return result


if __name__ == "__main__":
    serve(Dask, CALLS)
