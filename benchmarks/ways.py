"""The ways of meshcomm to move an array, as contenders. Public names only: `compare.py` runs them on other commits."""

import itertools
from collections.abc import Callable
from typing import Any

from cases import Case
from contender import Array, Contender, Job, Peer, each

import meshcomm as mc


def own_tensor(job: Job) -> mc.DTensor:
    """Return the tensor in memory of meshcomm's, as the result of an earlier relayout is."""
    return mc.relayout(wrapped(job, job.block), job.source)


def wrapped(job: Job, block: Array) -> mc.DTensor:
    """Return the user's block as a tensor."""
    return mc.from_local(block, job.source, job.case.shape)


def local(tensor: mc.DTensor) -> Array:
    """Return the block of this rank."""
    assert tensor.local is not None
    return tensor.local


@each
def relayout(job: Job) -> tuple[Any, Any, Array]:
    """Relayout of a tensor that meshcomm made."""
    tensor = own_tensor(job)
    return lambda: mc.relayout(tensor, job.target), local, local(tensor)


@each
def from_local(job: Job) -> tuple[Any, Any, Array]:
    """Relayout of the user's NumPy array."""
    return lambda: mc.relayout(wrapped(job, job.block), job.target), local, job.block


@each
def from_local_out(job: Job) -> tuple[Any, Any, Array]:
    """Relayout of the user's NumPy array into another one."""
    tensor, out = wrapped(job, job.block), mc.from_local(job.empty(), job.target, job.case.shape)
    return lambda: mc.relayout(tensor, job.target, out=out), local, job.block


@each
def own_out(job: Job) -> tuple[Any, Any, Array]:
    """Relayout of a tensor that meshcomm made into another one that it made."""
    tensor, out = own_tensor(job), mc.empty(job.case.shape, job.case.dtype, job.target)
    return lambda: mc.relayout(tensor, job.target, out=out), local, local(tensor)


@each
def planned(job: Job) -> tuple[Any, Any, Array]:
    """A plan that is kept, and the result's memory too."""
    tensor, out = own_tensor(job), mc.from_local(job.empty(), job.target, job.case.shape)
    plan = mc.plan_relayout(job.case.shape, job.case.dtype, job.source, job.target)
    return lambda: plan.execute(tensor, out=out), local, local(tensor)


@each
def scratch(job: Job) -> tuple[Any, Any, Array]:
    """Relayout in rounds, with 1 MiB of scratch memory."""
    tensor = own_tensor(job)
    return lambda: mc.relayout(tensor, job.target, max_scratch_bytes=2**20), local, local(tensor)


def nonblocking(jobs: list[Job]) -> Contender:
    """All tensors at the same time: start_relayout of each, then wait for each."""
    tensors = [own_tensor(job) for job in jobs]

    def call() -> list[mc.DTensor]:
        requests = [mc.start_relayout(tensor, job.target) for tensor, job in zip(tensors, jobs, strict=True)]
        return [request.wait() for request in requests]

    return Contender(call, True, list(map(local, tensors)), lambda results: list(map(local, results)))


def together(jobs: list[Job]) -> Contender:
    """All tensors in one call."""
    tensors, target = [own_tensor(job) for job in jobs], jobs[0].target
    return Contender(
        lambda: mc.relayout(tensors, target),
        True,
        list(map(local, tensors)),
        lambda results: list(map(local, results)),
    )


def loop(jobs: list[Job]) -> Contender:
    """One turn of a loop of relayouts there and back. Its tensors live until the turn ends, only the last goes on.

    With three live blocks: ``u = relayout(t, B); v = relayout(u, A); t = v; del u, v``.
    """
    (job,) = jobs
    last = [mc.ones(job.case.shape, job.case.dtype, job.source)]
    layouts = itertools.cycle((job.target, job.source))

    def call() -> None:
        live = [last.pop()]
        for _ in range(job.case.live - 1):
            live.append(mc.relayout(live[-1], next(layouts)))
        last.append(live[-1])

    return Contender(call)


def collective(make: Callable[[Array, list[list[int]]], Callable[[], Array]], verifies: bool = False) -> Peer:
    """Return a contender that calls a collective on the blocks of a case, in one group of all ranks."""

    def made(jobs: list[Job]) -> Contender:
        (job,) = jobs
        ranks = job.mesh.size
        return Contender(make(job.block, [list(range(ranks))]), verifies, [job.block], lambda result: [result])

    return Peer(made, wanted=lambda case: case.other == "collectives")


def ring(x: Array, groups: list[list[int]]) -> Callable[[], Array]:
    """Each rank sends its block to the next one."""
    (ranks,) = groups
    pairs = [(rank, (rank + 1) % len(ranks)) for rank in ranks]
    return lambda: mc.collective_permute(x, pairs)


def on_tensor(other: str, make: Callable[[mc.DTensor], Callable[[], object]]) -> Peer:
    """Return a contender that does something else with the tensor of a case; its results are not compared."""
    return Peer(lambda jobs: Contender(make(own_tensor(jobs[0]))), wanted=lambda case: case.other == other)


def there_and_back(tensor: mc.DTensor) -> Callable[[], object]:
    """Return a Fourier transform and back by a plan."""
    machine = mc.machine_of(tensor.mesh)
    plan = mc.fft.plan(tensor.shape, tensor.dtype, tensor.layout, kind="fftn", machine=machine)
    return lambda: plan.backward(plan.forward(tensor))


def saved(name: str) -> Callable[[mc.DTensor], Callable[[], object]]:
    """Return what makes a save of a tensor, into the folder of the job."""
    return lambda tensor: lambda: mc.save(name, tensor)


def loaded(name: str) -> Callable[[mc.DTensor], Callable[[], object]]:
    """Return what makes a load of a tensor that was saved there, from the page cache."""

    def made(tensor: mc.DTensor) -> Callable[[], object]:
        mc.save(name, tensor)
        return lambda: mc.load(name, tensor.layout)

    return made


def other_ways(case: Case) -> bool:
    """Whether other ways to call are measured."""
    return case.ways


def many(case: Case) -> bool:
    """Whether there are several tensors."""
    return case.tensors > 1


WAYS: dict[str, Peer] = {
    "meshcomm": Peer(relayout),
    "meshcomm, from_local": Peer(from_local, wanted=other_ways),
    "meshcomm, from_local and out=": Peer(from_local_out, wanted=other_ways),
    "meshcomm, out=": Peer(own_out, wanted=other_ways),
    "meshcomm, plan.execute(out=)": Peer(planned, wanted=other_ways),
    "meshcomm, max_scratch_bytes=1 MiB": Peer(scratch, wanted=other_ways),
    "meshcomm, start_relayout": Peer(nonblocking, wanted=lambda case: case.ways or case.start),
    "meshcomm, a list of tensors": Peer(together, wanted=many),
    "meshcomm, loop": Peer(loop, wanted=lambda case: case.live > 0),
}

OTHERS: dict[str, Peer] = {
    # The case goes from rows to columns: all_to_all is the only one that gives its target.
    "all_to_all": collective(lambda x, g: lambda: mc.all_to_all(x, g, 0, 1, len(g[0])), verifies=True),
    "all_gather": collective(lambda x, g: lambda: mc.all_gather(x, g, 0)),
    "all_reduce": collective(lambda x, g: lambda: mc.all_reduce(x, g)),
    "reduce_scatter": collective(lambda x, g: lambda: mc.reduce_scatter(x, g, 1)),
    "broadcast": collective(lambda x, g: lambda: mc.broadcast(x, g)),
    "collective_permute": collective(ring),
    "FFT": on_tensor("fft", there_and_back),
    "ghosts": on_tensor("halos", lambda tensor: mc.halo(tensor, 1, "periodic").update),
    "save .npy": on_tensor("files", saved("a.npy")),
    "load .npy": on_tensor("files", loaded("a.npy")),
    "save checkpoint": on_tensor("files", saved("checkpoint")),
    "load checkpoint": on_tensor("files", loaded("checkpoint")),
}
