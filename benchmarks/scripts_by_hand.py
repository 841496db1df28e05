"""The step of `scripts_jacobi.py` with mpi4py, by hand: ``mpiexec -n 2 python scripts_by_hand.py N CALLS``.

Each rank has some rows, and a ghost row at both ends. It computes in memory that is there already.
"""

import json
import sys
import time

import numpy as np
from mpi4py import MPI

n, calls = map(int, sys.argv[1:])
comm = MPI.COMM_WORLD
rank, size = comm.rank, comm.size
first, end = n * rank // size, n * (rank + 1) // size
count = end - first
above, below = rank - 1 if rank else MPI.PROC_NULL, rank + 1 if rank < size - 1 else MPI.PROC_NULL
u = np.zeros((count + 2, n))
if rank == 0:
    u[1] = np.linspace(0, 1, n)
v = u.copy()
changed = slice(1 + (rank == 0), count + 1 - (rank == size - 1))  # rows: those at the edges of the square stay
work = np.empty((changed.stop - changed.start, n - 2))


def step(u: np.ndarray, v: np.ndarray) -> None:
    """Write the square after one step from *u* to *v*."""
    comm.Sendrecv(u[1], above, recvbuf=u[count + 1], source=below)
    comm.Sendrecv(u[count], below, recvbuf=u[0], source=above)
    a, b = changed.start, changed.stop
    np.add(u[a - 1 : b - 1, 1:-1], u[a + 1 : b + 1, 1:-1], out=work)
    np.add(work, u[a:b, :-2], out=work)
    np.add(work, u[a:b, 2:], out=work)
    np.multiply(work, 0.25, out=v[a:b, 1:-1])


seconds = []
for _ in range(calls + 1):
    comm.Barrier()
    begin = time.perf_counter()
    step(u, v)
    u, v = v, u
    comm.Barrier()
    seconds.append(time.perf_counter() - begin)
total = comm.reduce(float(u[1 : count + 1].sum()))
if rank == 0:
    print(json.dumps({"seconds": seconds[1:], "sum": total}))
