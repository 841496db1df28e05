"""The contenders with threads of one process as devices: JAX. They move no data between processes."""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from typing import Any

import numpy as np
from cases import Case, values
from contender import FRESH, Cannot, Contender, Job, Maker

import meshcomm as mc


class Devices:
    """Some devices of one process; its one rank stands for all of them."""

    rank = 0
    mpi = None

    def __init__(self, devices: int) -> None:
        self.ranks = devices
        flags = os.environ.get("XLA_FLAGS", "")
        os.environ["XLA_FLAGS"] = f"{flags} --xla_force_host_platform_device_count={devices}".strip()
        os.environ |= {"JAX_PLATFORMS": "cpu", "JAX_ENABLE_X64": "1"}
        self._threads = ThreadPoolExecutor(devices)

    def barrier(self) -> None:
        """Do nothing: there is one rank."""

    def gathered(self, value: Any) -> list[Any]:
        return [value]

    def contenders(self, case: Case) -> dict[str, tuple[Maker, tuple[str, ...]]]:
        if case.tensors > 1 or case.repeat > 1 or case.live:
            return {}
        return {
            "memcpy": (self.memcpy, ()),
            "jax.device_put": (lambda jobs: relayout(jobs, put), ("jax",)),
            "jax.jit(out_shardings=)": (lambda jobs: relayout(jobs, jitted), ("jax",)),
        }

    def jobs(self, case: Case) -> list[Job]:
        mesh = mc.Mesh(range(self.ranks), list(case.mesh_dims(self.ranks)))
        return [Job(case, mesh, device, seed=0) for device in range(self.ranks)]

    def memcpy(self, jobs: list[Job]) -> Contender:
        """Return NumPy's copies of all target blocks, each in a thread."""
        pairs = [(job.empty(), job.held(job.target, 0)) for job in jobs]
        return Contender(lambda: list(self._threads.map(lambda pair: np.copyto(*pair), pairs)))

    def right(self, jobs: list[Job], contender: Contender) -> bool:
        """Run on other values and compare the block of each device."""
        run: Relayout = contender.call  # type: ignore[assignment]
        run.hold(FRESH)
        devices, blocks = (
            import_module("jax").devices(),
            {shard.device: shard.data for shard in run().addressable_shards},
        )
        return all(np.array_equal(blocks[devices[job.rank]], job.held(job.target, FRESH)) for job in jobs)


class Relayout:
    """A call that gives an array of JAX another sharding, and waits for it."""

    def __init__(self, case: Case, move: Callable[[Any], Any], sharding: Any) -> None:
        self._case, self._move, self._sharding = case, move, sharding
        self.hold(0)

    def hold(self, seed: int) -> None:
        """Hold an array with the values of *seed*."""
        whole = tuple(slice(0, n) for n in self._case.shape)
        self._array = put(self._sharding)(values(self._case, whole, seed)).block_until_ready()

    def __call__(self) -> Any:
        return self._move(self._array).block_until_ready()


def put(sharding: Any) -> Callable[[Any], Any]:
    """Return jax.device_put to a sharding."""
    jax = import_module("jax")
    return lambda array: jax.device_put(array, sharding)


def jitted(sharding: Any) -> Callable[[Any], Any]:
    """Return a compiled program that gives its argument another sharding."""
    call: Callable[[Any], Any] = import_module("jax").jit(lambda array: array, out_shardings=sharding)
    return call


def relayout(jobs: list[Job], mover: Callable[[Any], Callable[[Any], Any]]) -> Contender:
    """Return the contender that moves an array with *mover*."""
    case, ranks = jobs[0].case, len(jobs)
    if case.uneven(ranks):
        raise Cannot("no uneven lengths")
    source, target = (sharding(case, specs, ranks) for specs in case.specs())
    return Contender(Relayout(case, mover(target), source), verifies=True)


def sharding(case: Case, specs: list[str], ranks: int) -> Any:
    """Return JAX's NamedSharding for the mesh dimension of each axis."""
    jax = import_module("jax")
    names, sizes = zip(*case.mesh_dims(ranks), strict=True)
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:ranks]).reshape(sizes), names)
    spec = jax.sharding.PartitionSpec(*(None if name == "-" else name for name in specs))
    return jax.sharding.NamedSharding(mesh, spec)
