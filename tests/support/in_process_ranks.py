"""Ranks that share memory, in one process and without MPI: each has a pool of its own, and a thread for each call.

A pool is mapped a second time, as another rank of the node maps it. So everything that ranks do in shared memory can
be tested here, with a debugger and under sanitizers.
"""

import mmap
import os
import sys
import threading

import numpy as np

from meshcomm._kernels import BoxCopies
from meshcomm.core.memory._pool import Mapping, Pool
from meshcomm.core.memory._rendezvous import Rendezvous, Routes
from support.patience import IDLE, POLL, Watch, run

PAGE = mmap.PAGESIZE
MIB = 2**20


def mapped(pool):
    """Return the memory of *pool* as another rank maps it."""
    return Mapping(pool.fd, pool.size, pool.token)


def output_of(program):
    """Return the output of a Python program, which must end with code 0 and without a warning."""
    completed = run([sys.executable, "-c", program])
    assert (completed.returncode, completed.stderr) == (0, ""), completed
    return completed.stdout


def block(pool, nbytes, in_pool):
    """Return a block in the pool, or in memory that nobody shares."""
    allocated = pool.allocate(nbytes) if in_pool else None
    return np.empty(nbytes, np.uint8) if allocated is None else allocated


class Node:
    """The ranks of a node after their rendezvous; each `run` is one call of all of them, each in its thread.

    Rank i has ``pools[i]``, of *share* bytes, and ``rendezvous[i]``, which maps the pools of all ranks and calls
    ``progress[i]`` while it waits. *members* are the positions of the ranks in a group. Other nodes may have had the
    *pools*.
    """

    def __init__(self, size, share=MIB, progress=None, members=None, pools=None):
        self.pools = pools or [Pool(share) for _ in range(size)]
        clock = max(pool.clock for pool in self.pools)
        lines = [pool.open_lines() for pool in self.pools]
        memories = [mapped(pool) for pool in self.pools]
        self.rendezvous = [
            Rendezvous(
                pool,
                [*memories[:i], pool, *memories[i + 1 :]],
                lines,
                i,
                clock,
                range(size) if members is None else members,
                [f"number {n}" for n in range(size)],
                progress[i] if progress else lambda: None,
            )
            for i, pool in enumerate(self.pools)
        ]

    def run(self, call, ranks=None):
        """Return what ``call(rank, rendezvous, pool)`` returns or raises, for each rank; None for one not in *ranks*.

        Raises `Stuck` when a rank waits for ever.
        """
        size = len(self.pools)
        return outcomes(lambda i: call(i, self.rendezvous[i], self.pools[i]), ranks or range(size), size)


def outcomes(call, ranks, size, idle=IDLE):
    """Return what ``call(rank)`` returns or raises, each in its thread, for each of *ranks*, and None for others.

    Raises `Stuck` when they wait for ever: without CPU time, for *idle* seconds.
    """
    results = [None] * size

    def body(rank):
        try:
            results[rank] = call(rank)
        except BaseException as error:
            results[rank] = error

    threads = [threading.Thread(target=body, args=(rank,), daemon=True) for rank in ranks]
    for thread in threads:
        thread.start()
    watch = Watch(lambda: [os.getpid()], idle=idle)
    for thread in threads:
        thread.join(POLL)
        while thread.is_alive():
            watch.look()
            thread.join(POLL)
    return results


def indices(*values):
    return np.array(values, dtype=np.intp)


def runs(sources, targets, pieces):
    """Return copies of *pieces*: (source, its offset, target, its offset, length)."""
    if not pieces:
        return None
    source, source_offset, target, target_offset, length = (indices(*column) for column in zip(*pieces, strict=True))
    ones = np.ones((len(pieces), 1), dtype=np.intp)
    return BoxCopies(sources, targets, 1, source, source_offset, ones, target, target_offset, ones, length[:, None])


def exchange(rendezvous, routes, *args):
    """Exchange, and return the attribute `left` of the routes."""
    rendezvous.exchange(routes, *args)
    return routes.left


def all_to_all(counts, rank, rather_writes=False):
    """Return the routes of *rank* where each sends ``counts[source][target]`` bytes, in order; with both sizes."""
    (ends, copies), size, new_size = described(counts, rank, rather_writes)
    return Routes(len(counts), rank, *ends, copies), size, new_size


def exchanging(counts, number=1):
    """Return an exchange of `all_to_all` for `Node.run`; *number* is that of the call, or gives it for each rank."""

    def call(rank, rendezvous, pool):
        routes, size, new_size = all_to_all(counts, rank)
        call_number = number if isinstance(number, int) else number(rank)
        exchange(rendezvous, routes, call_number, bytes(size), bytearray(new_size))

    return call


def described(counts, rank, rather_writes=False):
    """Return the (incoming, outgoing) pairs of the routes, the function that makes their copies, and both sizes."""
    size = len(counts)
    counts = np.asarray(counts)
    sizes, new_sizes = counts.sum(axis=1).tolist(), counts.sum(axis=0).tolist()
    send_offsets = (np.cumsum(counts, axis=1) - counts).tolist()
    receive_offsets = (np.cumsum(counts, axis=0) - counts).tolist()

    def copies(reads, writes):
        sources = [p for p in range(size) if counts[p, rank] and (p == rank or p in reads)]
        read = [(p, send_offsets[p][rank], 0, receive_offsets[p][rank], int(counts[p, rank])) for p in sources]
        write = [(0, send_offsets[rank][p], p, receive_offsets[rank][p], int(counts[rank, p])) for p in writes]
        return runs(sizes, [new_sizes[rank]], read), runs([sizes[rank]], new_sizes, write)

    incoming = [(p, rather_writes) for p in range(size) if p != rank and counts[p, rank]]
    outgoing = [(p, rather_writes) for p in range(size) if p != rank and counts[rank, p]]
    return ((incoming, outgoing), copies), sizes[rank], new_sizes[rank]


def bytes_of(rank, size, seed=0):
    """Return the bytes that *rank* sends."""
    return np.random.default_rng([seed, rank]).integers(256, size=size, dtype=np.uint8)


def expected(counts, rank, seed=0):
    """Return the bytes that *rank* has after an exchange of `all_to_all`."""
    counts = np.asarray(counts)
    ends = np.cumsum(counts, axis=1)
    received = [
        bytes_of(p, counts[p].sum(), seed)[ends[p, rank] - counts[p, rank] : ends[p, rank]] for p in range(len(counts))
    ]
    return np.concatenate(received)
