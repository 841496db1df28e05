"""Ranks that exchange for ever; the first one makes the file FILE after its first exchange."""

import sys
from pathlib import Path

import numpy as np

import meshcomm as mc
from meshcomm.core.ranks.mpi import mpi

mpi()  # the start of MPI, for which a busy machine needs long, is not counted
mesh = mc.create_mesh()
rows, columns = (mc.Layout(specs, mesh) for specs in (["x", mc.UNSHARDED], [mc.UNSHARDED, "x"]))
t = mc.distribute(np.arange(10_000.0).reshape(100, 100), rows)
while True:
    t = mc.relayout(mc.relayout(t, columns), rows)
    if mesh.rank == 0:
        Path(sys.argv[1]).touch()
