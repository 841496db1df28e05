"""Programs whose ranks are traced; the first argument says which."""

import sys

import numpy as np

import meshcomm as mc


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


if __name__ == "__main__":
    mesh = mc.create_mesh([("x", -1)])
    {"relayouts": relayouts, "fails": fails, "uncaught": uncaught}[sys.argv[1]](mesh)
