"""JAX as a peer of `contractions.py`: one process, in which each rank is a device of the host. XLA may use all cores.

The product is compiled by `jax.jit`, which chooses the sharding of the result.
"""

from typing import Any

import numpy as np
from contractions_turns import CALLS, Case, Matrix, Peer
from rounds import jax_with, serve


class Jax(Peer):
    """The devices of this process."""

    name = "JAX"
    rank = 0

    def __init__(self, ranks: int) -> None:
        self.size, self.jax = ranks, jax_with(ranks)
        self.run = self.jax.jit(Case.run, static_argnums=0)

    def together(self) -> None:
        """There are no other processes."""

    def operand(self, case: Case, layout: str, values: Matrix) -> Any:
        sharding, grid = self.jax.sharding, case.grid(self.size)
        mesh = sharding.Mesh(np.array(self.jax.devices()).reshape(grid), tuple("xy"[: len(grid)]))
        spec = sharding.PartitionSpec(*(names or None for names in case.cuts(layout, self.size)))
        return self.jax.device_put(values, sharding.NamedSharding(mesh, spec))

    def product(self, case: Case, operands: list[Any]) -> Any:
        return self.run(case, *operands).block_until_ready()

    def gathered(self, result: Any) -> Any:
        return np.asarray(result)


if __name__ == "__main__":
    serve(Jax, CALLS)
