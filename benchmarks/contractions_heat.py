"""Heat as a peer of `contractions.py`: arrays that are split along one axis, over all ranks."""

from typing import Any

from contractions_turns import CALLS, STACKS, Case, Matrix, Peer
from rounds import serve


class Heat(Peer):
    """The ranks of mpi4py, and the library."""

    name = "Heat"

    def __init__(self, ranks: int) -> None:
        import heat

        super().__init__(ranks)
        self.heat = heat

    def has(self, case: Case) -> bool:
        return {*case.layouts} <= {"rows", "columns"} and case.left != STACKS

    def operand(self, case: Case, layout: str, values: Matrix) -> Any:
        return self.heat.array(values, split=("rows", "columns").index(layout))

    def product(self, case: Case, operands: list[Any]) -> Any:
        return case.run(*operands)

    def gathered(self, result: Any) -> Any:
        return result.numpy()


if __name__ == "__main__":
    serve(Heat, CALLS)
