"""Saves and loads of ranks in folders of their own, one of which has a slow disk; the last save is not waited for.

mpiexec -n 3 python files.py FOLDER     # with MESHCOMM_TIMEOUT, which is less than the slow disk takes
"""

import os
import sys
import time
from pathlib import Path

import numpy as np

import meshcomm as mc
from meshcomm.core.ranks.mpi import mpi

SECONDS = float(os.environ["MESHCOMM_TIMEOUT"]) + 1.5  # of a write of rank 1
mpi()  # the start of MPI, for which a busy machine needs long, is not counted
layout = mc.Layout(["x"], mc.create_mesh([("x", 3)]))
rank, numbers = layout.mesh.rank, np.arange(30_000.0)  # too large to be read by one rank
own = Path(sys.argv[1], str(rank))
own.mkdir()
os.chdir(own)

tensor = mc.distribute(numbers, layout)
for name in ("c", "a.npy", "a.safetensors", "a.zarr"):
    mc.save(name, tensor if name.endswith("npy") else {"array": tensor})
    assert np.array_equal(mc.load(name, layout, names=["array"])["array"].to_numpy(), numbers)

real = os.pwrite


def slow(*args: object) -> int:
    """Write as `os.pwrite` does, after a while on rank 1."""
    time.sleep(SECONDS if rank == 1 else 0)
    return real(*args)


os.pwrite = slow
mc.save("a.npy", tensor)
os.pwrite = real
mc.start_save("a.npy", tensor + 1)
