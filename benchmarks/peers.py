"""The contenders on MPI ranks: memcpy, code by hand, and other packages as their manuals use them."""

import functools
import importlib
import itertools
import logging
import math
import os
import socket
from collections.abc import Callable
from typing import Any

import numpy as np
from cases import Case, bytes_text, starts
from contender import Array, Cannot, Contender, Job, Peer, each, is_relayout
from mpi4py import MPI
from ways import WAYS, many, other_ways

from meshcomm import _kernels

COMM = MPI.COMM_WORLD.Dup()
RANKS, RANK = COMM.size, COMM.rank


# What limits all: no work, and copies


def nothing(jobs: list[Job]) -> Contender:
    """Do nothing: this measures the barriers alone."""
    return Contender(lambda: None)


def memcpy(jobs: list[Job]) -> Contender:
    """Copy blocks as large as the target's with NumPy."""
    pairs = [(job.empty(), job.held(job.target, 0)) for job in jobs]

    def call() -> None:
        for target, source in pairs:
            np.copyto(target, source)

    return Contender(call)


def streaming_memcpy(jobs: list[Job]) -> Contender:
    """Copy the same with meshcomm's kernel, which writes large copies past the caches: the lower limit."""
    pairs = [(bytes_in(job.held(job.target, 0)), bytes_in(job.empty())) for job in jobs]
    n, zero, one = pairs[0][0].nbytes, np.zeros(1, np.intp), np.ones((1, 1), np.intp)
    copies = _kernels.BoxCopies((n,), (n,), 1, zero, zero, one, zero, zero, one, one * n)

    def call() -> None:
        for source, target in pairs:
            copies.run((source,), (target,))

    return Contender(call)


def bytes_in(array: Array) -> Array:
    """Return the bytes of an array."""
    return array.reshape(-1).view(np.uint8)


# mpi4py, as a careful user writes it for one case


def by_hand(job: Job, out: Array | None = None) -> Callable[[], Array]:
    """Return the code for a case: an exchange per mesh dimension that moves, a gather, or a swap."""
    case, block = job.case, job.block
    moves, axis = case.moves(), case.gathered_axis()
    if axis is not None:
        gathered = axis
        return lambda: gather(block, gathered, case.shape[gathered], out)
    if moves is None:
        return lambda: swap(job, out)
    *first, last = [(along(case.mesh_dims(RANKS), name), a, b, case.shape[a]) for name, a, b in moves]

    def call() -> Array:
        data = block
        for step in first:
            data = exchange(data, *step)
        return exchange(data, *last, out)

    return call


def exchange(block: Array, comm: MPI.Comm, axis: int, to: int, length: int, out: Array | None = None) -> Array:
    """Return *block*, sharded on *axis* of global *length*, with that axis whole and axis *to* sharded instead."""
    message, finish = packed(block, comm, axis, to, length, out)
    comm.Alltoallv(*message)
    return finish()


def packed(
    block: Array, comm: MPI.Comm, axis: int, to: int, length: int, out: Array | None = None
) -> tuple[tuple[Any, Any], Callable[[], Array]]:
    """Return the messages of an exchange, and a function that unpacks and returns the result.

    Packs unless *to* is the first axis, and unpacks unless *axis* is.
    """
    cuts, rows = starts(block.shape[to], comm.size), starts(length, comm.size)
    pieces = np.split(block, cuts[1:-1], axis=to)
    send = block if to == 0 else np.concatenate([piece.ravel() for piece in pieces])
    shape = list(pieces[comm.rank].shape)
    shapes = [(*shape[:axis], b - a, *shape[axis + 1 :]) for a, b in itertools.pairwise(rows)]
    shape[axis] = length
    into = np.empty(shape, block.dtype) if out is None else out
    counts = [math.prod(s) * block.itemsize for s in shapes]
    received = into if axis == 0 else np.empty(into.size, block.dtype)

    def finish() -> Array:
        if axis:
            unpack(received, shapes, into, axis)
        return into

    return (bytes_of(send, [piece.nbytes for piece in pieces]), bytes_of(received, counts)), finish


def gather(block: Array, axis: int, length: int, out: Array | None) -> Array:
    """MPI_Allgatherv into the result, or with an unpacking if the sharded axis is not the first."""
    rows = starts(length, RANKS)
    shapes = [(*block.shape[:axis], b - a, *block.shape[axis + 1 :]) for a, b in itertools.pairwise(rows)]
    into = np.empty((*block.shape[:axis], length, *block.shape[axis + 1 :]), block.dtype) if out is None else out
    received = into if axis == 0 else np.empty(into.size, block.dtype)
    COMM.Allgatherv([block, MPI.BYTE], bytes_of(received, [math.prod(s) * block.itemsize for s in shapes]))
    if axis:
        unpack(received, shapes, into, axis)
    return into


def swap(job: Job, out: Array | None) -> Array:
    """Send the whole block from device (i, j) to device (j, i) on a square mesh."""
    into = job.empty() if out is None else out
    i, j = job.mesh.coords(RANK)
    COMM.Sendrecv(job.block, j * job.mesh.shape()[0] + i, recvbuf=into)
    return into


def unpack(received: Array, shapes: list[tuple[int, ...]], into: Array, axis: int) -> None:
    """Copy consecutive pieces into *into*, one after the other along *axis*."""
    start = at = 0
    for shape in shapes:
        stop, after = start + shape[axis], at + math.prod(shape)
        into[(slice(None),) * axis + (slice(start, stop),)] = received[at:after].reshape(shape)
        start, at = stop, after


def bytes_of(array: Array, counts: list[int]) -> list[Any]:
    """Return a message of consecutive pieces."""
    return [array, counts, starts_of(counts), MPI.BYTE]


def starts_of(counts: list[int]) -> list[int]:
    """Return the offsets of consecutive pieces."""
    return [0, *itertools.accumulate(counts[:-1])]


@functools.cache
def along(dims: tuple[tuple[str, int], ...], name: str) -> MPI.Comm:
    """Return the communicator of this rank's group along a mesh dimension."""
    names = [d for d, _ in dims]
    cart = COMM.Create_cart([n for _, n in dims], reorder=False)
    return cart.Sub([d == name for d in names])


@each
def mpi4py(job: Job) -> tuple[Any, Any, Array]:
    """Run code written by hand that returns a new array."""
    return by_hand(job), lambda result: result, job.block


@each
def mpi4py_out(job: Job) -> tuple[Any, Any, Array]:
    """Run code written by hand that writes into the user's array."""
    return by_hand(job, job.empty()), lambda result: result, job.block


def mpi4py_nonblocking(jobs: list[Job]) -> Contender:
    """Code by hand that starts all exchanges, then waits for them."""
    dims, (name, axis, to) = jobs[0].case.mesh_dims(RANKS), only_move(jobs[0].case)
    comm = along(dims, name)

    def call() -> list[Array]:
        messages = [packed(job.block, comm, axis, to, job.case.shape[axis]) for job in jobs]
        MPI.Request.Waitall([comm.Ialltoallv(*message) for message, _ in messages])
        return [finish() for _, finish in messages]

    return Contender(call, True, [job.block for job in jobs])


def mpi4py_at_once(jobs: list[Job]) -> Contender:
    """Run code written by hand that sends all tensors in one exchange."""
    dims, (name, axis, to) = jobs[0].case.mesh_dims(RANKS), only_move(jobs[0].case)
    comm, blocks, length = along(dims, name), [job.block for job in jobs], jobs[0].case.shape[axis]
    return Contender(lambda: exchange(np.stack(blocks), comm, axis + 1, to + 1, length), True, blocks)


def only_move(case: Case) -> tuple[str, int, int]:
    """Return the only mesh dimension that moves, its axis, and its new axis."""
    moves = case.moves()
    if moves is None or len(moves) > 1:
        raise Cannot("written for one exchange only")
    return moves[0]


def bare_alltoallv(jobs: list[Job]) -> Contender:
    """Make the MPI call alone, on packed bytes. The time that a relayout adds to it is the latency of meshcomm."""
    each_rank = jobs[0].case.nbytes // RANKS**2
    send, into = np.zeros((2, each_rank * RANKS), np.uint8)
    messages = [bytes_of(data, [each_rank] * RANKS) for data in (send, into)]
    return Contender(lambda: COMM.Alltoallv(*messages))


# mpi4py-fft


@functools.cache
def subcomms(dims: tuple[int, ...]) -> Any:
    """Return the communicators along the axes of a tensor."""
    return package("mpi4py_fft.pencil").Subcomm(COMM.Create_cart(dims, reorder=False))


def pencils(job: Job) -> tuple[Any, int, list[int]]:
    """Return communicators per axis, the first whole axis, and the axes that become whole one by one."""
    case, moves = job.case, job.case.moves()
    if case.gathered_axis() is not None:
        raise Cannot("no replicated arrays")
    if moves is None:
        raise Cannot("exchanges only with an axis that is not sharded")
    sizes = dict(case.mesh_dims(RANKS))
    dims = tuple(sizes.get(name, 1) for name in case.specs()[0])
    if any(n < d for specs in case.specs() for n, d in zip(case.shape, [sizes.get(s, 1) for s in specs], strict=True)):
        raise Cannot("no empty blocks")
    return subcomms(dims), moves[0][2], [axis for _, axis, _ in moves]


@each
def fft_redistribute(job: Job) -> tuple[Any, Any, Array]:
    """Call DistArray.redistribute, which returns a new array."""
    comms, whole, axes = pencils(job)
    array = package("mpi4py_fft").DistArray(
        job.case.shape, subcomm=comms, dtype=job.block.dtype, buffer=job.block, alignment=whole
    )

    def call() -> Any:
        result = array
        for axis in axes:
            result = result.redistribute(axis)
        return result

    return call, np.asarray, job.block


@each
def fft_transfer(job: Job) -> tuple[Any, Any, Array]:
    """Run Transfers that are planned once, into kept arrays."""
    comms, whole, axes = pencils(job)
    here, block, steps = package("mpi4py_fft.pencil").Pencil(comms, job.case.shape, whole), job.block, []
    for axis in axes:
        there = here.pencil(axis)
        into = np.empty(there.subshape, block.dtype)
        steps.append((here.transfer(there, block.dtype), block, into))
        here, block = there, into

    def call() -> Array:
        for transfer, source, target in steps:
            transfer.forward(source, target)
        return block

    return call, lambda result: result, job.block


# Heat


@each
def heat_resplit(job: Job) -> tuple[Any, Any, Array]:
    """Call heat.resplit on an array that wraps the block."""
    case = job.case
    if len(case.mesh_dims(RANKS)) > 1:
        raise Cannot("shards one axis, over all ranks")
    ht, torch = package("heat"), package("torch")
    source, target = (next((axis for axis, name in enumerate(s) if name != "-"), None) for s in case.specs())
    array = ht.array(torch.from_numpy(job.block), is_split=source, copy=False)
    return lambda: ht.resplit(array, target), lambda result: result.larray.numpy(), array.larray.numpy()


# PyTorch


@functools.cache
def device_mesh(dims: tuple[tuple[str, int], ...]) -> Any:
    """Return a DeviceMesh of this job's ranks on the gloo backend."""
    start_gloo()
    names, sizes = zip(*dims, strict=True)
    return package("torch.distributed.device_mesh").init_device_mesh("cpu", sizes, mesh_dim_names=names)


@functools.cache
def start_gloo() -> None:
    """Connect the ranks with gloo, one thread each; rank 0 chooses the port."""
    torch, dist = package("torch"), package("torch.distributed")
    torch.set_num_threads(1)
    logging.getLogger("torch").setLevel(logging.ERROR)  # the report says that gloo's AllToAll is an AllGather
    one_host = len(set(COMM.allgather(MPI.Get_processor_name()))) == 1
    host, port = COMM.bcast(("127.0.0.1" if one_host else socket.gethostname(), free_port()))
    dist.init_process_group("gloo", init_method=f"tcp://{host}:{port}", rank=RANK, world_size=RANKS)


def free_port() -> int:
    """Return a port of this host that nobody uses now."""
    with socket.socket() as probe:
        probe.bind(("", 0))
        port: int = probe.getsockname()[1]
        return port


@each
def dtensor(job: Job) -> tuple[Any, Any, Array]:
    """Call torch.distributed.tensor.DTensor.redistribute."""
    case, dims = job.case, job.case.mesh_dims(RANKS)
    if case.uneven(RANKS):
        raise Cannot("cuts uneven lengths as torch.chunk does, not into these blocks")
    needed = 2 * RANKS * case.nbytes
    if case.gathered_axis() is None and needed > COMM.bcast(memory()) // 2:
        raise Cannot(f"gathers the whole array on every rank: {bytes_text(needed)}")
    torch, dt, mesh = package("torch"), package("torch.distributed.tensor"), device_mesh(dims)
    source, target = (
        [dt.Shard(specs.index(name)) if name in specs else dt.Replicate() for name, _ in dims]
        for specs in case.specs()
    )
    tensor = dt.DTensor.from_local(torch.from_numpy(job.block), mesh, source, run_check=False)

    def call() -> Any:
        result = tensor.redistribute(mesh, target).to_local()
        return result.wait() if hasattr(result, "wait") else result

    return call, lambda result: result.numpy(), job.block


def memory() -> int:
    """Return the bytes of this host's memory."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def package(name: str) -> Any:
    """Import a module of a package that may be missing."""
    return importlib.import_module(name)


PEERS: dict[str, Peer] = {
    "memcpy": Peer(memcpy, wanted=lambda case: True),  # the unit of all others
    "streaming memcpy": Peer(streaming_memcpy, wanted=lambda case: is_relayout(case) and not case.latency),
    **WAYS,
    "mpi4py": Peer(mpi4py),
    "mpi4py-fft redistribute": Peer(fft_redistribute, ("mpi4py_fft",)),
    "mpi4py-fft Transfer": Peer(fft_transfer, ("mpi4py_fft",)),
    "Heat": Peer(heat_resplit, ("heat", "torch")),
    "DTensor on gloo": Peer(dtensor, ("torch",)),
    "mpi4py, user's out": Peer(mpi4py_out, wanted=other_ways),
    "mpi4py, Ialltoallv": Peer(mpi4py_nonblocking, wanted=other_ways),
    "mpi4py, all in one Alltoallv": Peer(mpi4py_at_once, wanted=many),
    "nothing": Peer(nothing, wanted=lambda case: case.latency),
    "bare MPI_Alltoallv": Peer(bare_alltoallv, wanted=lambda case: case.latency),
}
