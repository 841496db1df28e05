"""JAX as a peer of `fft.py`: one process, in which each rank is a device of the host. XLA may use all cores.

`shard_map` transforms whole axes and exchanges with `all_to_all`, as slabs and as pencils. `all_to_all` wants blocks
of one size, so the half spectrum of real numbers is padded to one where it is exchanged.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from fft_turns import CALLS, Array, Case, Peer, Transform, Where
from rounds import jax_with, serve


class JaxTransform(Transform):
    """The compiled transforms of a case."""

    def __init__(self, jax: Any, case: Case, grid: tuple[int, ...]) -> None:
        self.jax, self.case, self.grid, self.names = jax, case, grid, "xy"[: len(grid)]
        sharding, none = jax.sharding, [None] * (len(case.shape) - len(grid))
        mesh = sharding.Mesh(np.array(jax.devices()).reshape(grid), tuple(self.names))
        before = sharding.PartitionSpec(*self.names, *none)
        after = sharding.PartitionSpec(None, *self.names, *none[1:])
        self.sharding = sharding.NamedSharding(mesh, before)
        mapped: Callable[..., Any] = jax.shard_map
        self.there = jax.jit(mapped(self.local_forward, mesh=mesh, in_specs=before, out_specs=after))
        self.back = jax.jit(mapped(self.local_backward, mesh=mesh, in_specs=after, out_specs=before))

    def local_forward(self, block: Any) -> Any:
        """Transform the block of a device."""
        jax, fft, k = self.jax, self.jax.numpy.fft, len(self.grid)
        block = (fft.rfftn if self.case.real else fft.fftn)(block, axes=range(k, block.ndim))
        for axis in reversed(range(k)):
            missing = -block.shape[axis + 1] % self.grid[axis]
            block = jax.numpy.pad(block, [(0, missing * (i == axis + 1)) for i in range(block.ndim)])
            block = jax.lax.all_to_all(block, self.names[axis], axis + 1, axis, tiled=True)
            block = fft.fft(block, axis=axis)
        return block

    def local_backward(self, block: Any) -> Any:
        """Transform the spectrum of a device."""
        jax, fft, k = self.jax, self.jax.numpy.fft, len(self.grid)
        for axis in range(k):
            block = fft.ifft(block, axis=axis)
            block = jax.lax.all_to_all(block, self.names[axis], axis, axis + 1, tiled=True)
            block = jax.lax.slice_in_dim(block, 0, self.case.spectrum[axis + 1], axis=axis + 1)
        axes = range(k, block.ndim)
        if self.case.real:
            return fft.irfftn(block, s=self.case.shape[k:], axes=axes)
        return fft.ifftn(block, axes=axes)

    def put(self, whole: Array) -> None:
        self.field = self.jax.device_put(whole, self.sharding)

    def forward(self) -> None:
        self.bins = self.there(self.field).block_until_ready()

    def backward(self) -> None:
        self.field = self.back(self.bins).block_until_ready()

    def values(self) -> tuple[Where, Array]:
        return (), np.asarray(self.field)

    def spectrum(self) -> tuple[Where, Array]:
        return (), np.asarray(self.bins)[tuple(map(slice, self.case.spectrum))]


class Jax(Peer):
    """The devices of this process."""

    name = "JAX"
    rank = 0

    def __init__(self, ranks: int) -> None:
        self.size, self.jax = ranks, jax_with(ranks)

    def together(self) -> None:
        """There are no other processes."""

    def transform(self, case: Case) -> JaxTransform:
        grid = (self.size,) if case.dims == 1 else (2, self.size // 2)
        return JaxTransform(self.jax, case, grid)


if __name__ == "__main__":
    serve(Jax, CALLS)
