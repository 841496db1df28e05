"""Ranks that share memory, in one process and without MPI: each has a pool of its own, and a thread for each call.

A pool that is mapped a second time is what another rank of the node sees of it, so all that ranks do in shared memory
can be tested here, with a debugger and under sanitizers.
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
    """Return what a Python program prints, which must end well and without a warning."""
    done = run([sys.executable, "-c", program])
    assert (done.returncode, done.stderr) == (0, ""), done
    return done.stdout


def block(pool, nbytes, in_pool):
    """Return a block in the pool, or in memory that nobody shares."""
    made = pool.allocate(nbytes) if in_pool else None
    return np.empty(nbytes, np.uint8) if made is None else made


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
    source, start, target, into, length = (indices(*column) for column in zip(*pieces, strict=True))
    ones = np.ones((len(pieces), 1), dtype=np.intp)
    return BoxCopies(sources, targets, 1, source, start, ones, target, into, ones, length[:, None])


def exchange(rendezvous, routes, *args):
    """Exchange, and return what is left."""
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
        its = number if isinstance(number, int) else number(rank)
        exchange(rendezvous, routes, its, bytes(size), bytearray(new_size))

    return call


def described(counts, rank, rather_writes=False):
    """Return the (incoming, outgoing) pairs of these routes and what makes their copies; with both sizes."""
    size = len(counts)
    counts = np.asarray(counts)
    sizes, new_sizes = counts.sum(axis=1).tolist(), counts.sum(axis=0).tolist()
    at = (np.cumsum(counts, axis=1) - counts).tolist()
    into = (np.cumsum(counts, axis=0) - counts).tolist()

    def copies(reads, writes):
        sources = [p for p in range(size) if counts[p, rank] and (p == rank or p in reads)]
        read = [(p, at[p][rank], 0, into[p][rank], int(counts[p, rank])) for p in sources]
        write = [(0, at[rank][p], p, into[rank][p], int(counts[rank, p])) for p in writes]
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
    parts = [
        bytes_of(p, counts[p].sum(), seed)[ends[p, rank] - counts[p, rank] : ends[p, rank]] for p in range(len(counts))
    ]
    return np.concatenate(parts)
