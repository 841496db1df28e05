"""Heat as a peer of `linalg.py`: matrices that are split along their rows, over all ranks. It has the tall ones."""

from typing import Any

from linalg_turns import CALLS, Case, Matrix, Peer
from rounds import asleep, serve


class Heat(Peer):
    """The ranks of mpi4py, and the library."""

    name = "Heat"

    def __init__(self, ranks: int) -> None:
        import heat
        from mpi4py import MPI

        self.heat, self.comm = heat, MPI.COMM_WORLD.Dup()
        self.rank, self.size = self.comm.rank, ranks

    def together(self) -> None:
        asleep(self.comm.Ibarrier().Test)

    def has(self, case: Case) -> bool:
        return case.tall

    def operand(self, case: Case, values: Matrix) -> Any:
        return self.heat.array(values, split=0)

    def computed(self, case: Case, operands: list[Any]) -> Any:
        return getattr(self.heat.linalg, case.name)(*operands)

    def gathered(self, result: Any) -> Any:
        return result.numpy()


if __name__ == "__main__":
    serve(Heat, CALLS)
