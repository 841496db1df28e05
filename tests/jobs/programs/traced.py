"""Programs whose ranks are traced; the first argument says which."""

import sys

import numpy as np
from mpi4py import MPI

import meshcomm as mc
from meshcomm.tools.measuring.totals import SHARE, process_memory


def relayouts(mesh):
    t = mc.distribute(np.arange(4096.0).reshape(64, 64), mc.Layout(["x", mc.UNSHARDED], mesh))
    for number in range(3):
        with mc.span("step"):
            mc.relayout(t, mc.Layout([mc.UNSHARDED, "x"], mesh), f"number {number}")


def fails(mesh):
    """Rank 1 raises while the others go on: they wait for it in a call that it never makes."""
    with mc.trace(sys.argv[2]):
        relayouts(mesh)
        if mesh.rank == 1:
            raise KeyError("the reason")
        relayouts(mesh)


def uncaught(mesh):
    relayouts(mesh)
    if mesh.rank == 1:
        raise KeyError("the reason")
    relayouts(mesh)


def gathers(mesh):
    """Print how much larger the ranks' shares of memory are, together, after the gather of a large tensor."""
    rows, whole = mc.Layout(["x", mc.UNSHARDED], mesh), mc.Layout([mc.UNSHARDED, mc.UNSHARDED], mesh)
    mc.relayout(mc.ones((mesh.size, mesh.size), "f8", rows), whole)  # now all that a relayout needs is there
    found = []
    for _ in range(2):
        MPI.COMM_WORLD.Barrier()
        found.append(MPI.COMM_WORLD.allreduce(process_memory()[SHARE]))
        if len(found) == 1:
            t = mc.ones((2048, 4096), "f8", rows)
            with mc.trace(sys.argv[2]):
                u = mc.relayout(t, whole)
    assert t.nbytes == u.nbytes == 2**26
    if mesh.rank == 0:
        print("grown by", found[1] - found[0], flush=True)


if __name__ == "__main__":
    mesh = mc.create_mesh([("x", -1)])
    {"relayouts": relayouts, "fails": fails, "uncaught": uncaught, "gathers": gathers}[sys.argv[1]](mesh)
