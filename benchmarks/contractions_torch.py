"""PyTorch's DTensor on gloo as a peer of `contractions.py`.

A result whose blocks are still to be summed is redistributed to rows: before that, it is not a result.
"""

from typing import Any

from contractions_turns import CALLS, Case, Matrix, Peer
from rounds import serve


class Torch(Peer):
    """The ranks of mpi4py, which gloo connects, and the library."""

    name = "DTensor"

    def __init__(self, ranks: int) -> None:
        import torch.distributed.tensor

        super().__init__(ranks)
        self.torch, self.tensor = torch, torch.distributed.tensor

    def operand(self, case: Case, layout: str, values: Matrix) -> Any:
        from peers import device_mesh

        cuts, dims = case.cuts(layout, self.size), tuple(zip("xy", case.grid(self.size), strict=False))
        shards = [
            self.tensor.Shard(next(axis for axis, names in enumerate(cuts) if name in names)) for name, _ in dims
        ]
        return self.tensor.distribute_tensor(self.torch.from_numpy(values), device_mesh(dims), shards)

    def product(self, case: Case, operands: list[Any]) -> Any:
        result = case.run(*operands)
        if any(each.is_partial() for each in result.placements):
            result = result.redistribute(placements=[self.tensor.Shard(0)] * result.device_mesh.ndim)
        local = result.to_local()
        if hasattr(local, "wait"):
            local.wait()
        return result

    def gathered(self, result: Any) -> Any:
        return result.full_tensor().numpy()


if __name__ == "__main__":
    serve(Torch, CALLS)
