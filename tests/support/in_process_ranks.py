"""Pools and meetings without MPI: two pools in one process are two ranks, each in a thread of its own."""

import mmap
import os
import sys
import threading

import numpy as np

from meshcomm._kernels import BoxCopies
from meshcomm.memory._pool import Mapping, Pool
from meshcomm.memory._rendezvous import Routes
from support.patience import POLL, Watch, run

PAGE = mmap.PAGESIZE


MIB = 2**20


def mapped(pool):
    return Mapping(pool.fd, pool.size, pool.token)


def output_of(program):
    """Return what a Python program prints, which must end well and without a warning."""
    done = run([sys.executable, "-c", program])
    assert (done.returncode, done.stderr) == (0, ""), done
    return done.stdout


def block(pool, nbytes, in_pool):
    made = pool.allocate(nbytes) if in_pool else None
    return np.empty(nbytes, np.uint8) if made is None else made


class Node:
    """Ranks of a node that have met; each `run` is one call of all of them, each in its thread."""

    def __init__(self, size, share=MIB, progress=None):
        self.pools = [Pool(share) for _ in range(size)]
        lines = [pool.open_place() for pool in self.pools]
        memories = [mapped(pool) for pool in self.pools]
        self.meetings = [
            Meeting(
                pool,
                [*memories[:i], pool, *memories[i + 1 :]],
                lines,
                i,
                0,
                range(size),
                [f"number {n}" for n in range(size)],
                progress[i] if progress else lambda: None,
            )
            for i, pool in enumerate(self.pools)
        ]

    def run(self, call, ranks=None):
        """Return what ``call(rank, meeting, pool)`` returns or raises, for each rank."""
        results = [None] * len(self.pools)

        def body(rank):
            try:
                results[rank] = call(rank, self.meetings[rank], self.pools[rank])
            except BaseException as error:
                results[rank] = error

        threads = [threading.Thread(target=body, args=(rank,), daemon=True) for rank in ranks or range(len(results))]
        for thread in threads:
            thread.start()
        watch = Watch(lambda: [os.getpid()])
        while any(thread.is_alive() for thread in threads):
            watch.look()
            threads[0].join(POLL)
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


def all_to_all(counts, rank, rather_writes=False):
    """Return the routes of *rank* where each sends ``counts[source][target]`` bytes, in order; with both sizes."""
    size = len(counts)
    counts = np.asarray(counts)
    sizes, new_sizes = counts.sum(axis=1).tolist(), counts.sum(axis=0).tolist()
    at = (np.cumsum(counts, axis=1) - counts).tolist()
    into = (np.cumsum(counts, axis=0) - counts).tolist()

    def copies(reads, writes):
        sources = [place for place in range(size) if counts[place, rank] and (place == rank or place in reads)]
        read = [(p, at[p][rank], 0, into[p][rank], int(counts[p, rank])) for p in sources]
        write = [(0, at[rank][p], p, into[rank][p], int(counts[rank, p])) for p in writes]
        return runs(sizes, [new_sizes[rank]], read), runs([sizes[rank]], new_sizes, write)

    incoming = [(p, rather_writes) for p in range(size) if p != rank and counts[p, rank]]
    outgoing = [(p, rather_writes) for p in range(size) if p != rank and counts[rank, p]]
    return Routes(size, rank, incoming, outgoing, copies), sizes[rank], new_sizes[rank]


def bytes_of(rank, size, seed=0):
    return np.random.default_rng([seed, rank]).integers(256, size=size, dtype=np.uint8)


def expected(counts, rank, seed=0):
    counts = np.asarray(counts)
    ends = np.cumsum(counts, axis=1)
    parts = [
        bytes_of(p, counts[p].sum(), seed)[ends[p, rank] - counts[p, rank] : ends[p, rank]] for p in range(len(counts))
    ]
    return np.concatenate(parts)
