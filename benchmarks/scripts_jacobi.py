"""A Jacobi step by slices, as a script of NumPy, timed: ``python scripts_jacobi.py N CALLS``; see `scripts.py`."""

import json
import sys
import time

import numpy as np

n, calls = map(int, sys.argv[1:])
meshcomm = sys.modules.get("meshcomm")  # not there under plain NumPy


def clock() -> float:
    """Return the seconds, once all ranks are here and have computed everything."""
    if meshcomm:
        meshcomm.barrier()
    return time.perf_counter()


u = np.zeros((n, n))
u[0] = np.linspace(0, 1, n)
v = u.copy()
seconds = []
for _ in range(calls + 1):
    begin = clock()
    v[1:-1, 1:-1] = 0.25 * (u[:-2, 1:-1] + u[2:, 1:-1] + u[1:-1, :-2] + u[1:-1, 2:])
    u, v = v, u
    seconds.append(clock() - begin)
print(json.dumps({"seconds": seconds[1:], "sum": float(u.sum())}))
