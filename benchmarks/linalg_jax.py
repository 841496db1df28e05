"""JAX as a peer of `linalg.py`: one process, in which each rank is a device of the host. XLA may use all cores.

XLA gathers the matrix on each device for these functions.
"""

from typing import Any

import numpy as np
from linalg_turns import CALLS, Case, Matrix, Peer
from rounds import jax_with, serve


class Jax(Peer):
    """The devices of this process."""

    name = "JAX"
    rank = 0

    def __init__(self, ranks: int) -> None:
        self.size, self.jax = ranks, jax_with(ranks)

    def together(self) -> None:
        """There are no other processes."""

    def has(self, case: Case) -> bool:
        return True

    def operand(self, case: Case, values: Matrix) -> Any:
        sharding = self.jax.sharding
        grid, names = ((self.size,), "x") if case.tall else ((2, self.size // 2), "xy")
        mesh = sharding.Mesh(np.array(self.jax.devices()).reshape(grid), tuple(names))
        spec = sharding.PartitionSpec(*names[: values.ndim])
        return self.jax.device_put(values, sharding.NamedSharding(mesh, spec))

    def computed(self, case: Case, operands: list[Any]) -> Any:
        function = getattr(self.jax.numpy.linalg, case.name)
        return self.jax.block_until_ready(function(*operands, **case.options()))

    def gathered(self, result: Any) -> Any:
        return np.asarray(result)


if __name__ == "__main__":
    serve(Jax, CALLS)
