"""Ranks whose first calls on a mesh differ: all of them are told, whatever the calls are."""

import itertools

import numpy as np
import pytest

import meshcomm as mc
from support.verdicts import agree_mismatch


def relayout(t, columns):
    mc.relayout(t, columns)


def start_relayout(t, columns):
    mc.start_relayout(t, columns).wait()


def to_numpy(t, columns):
    t.to_numpy()


def total(t, columns):
    t.sum()


def barrier(t, columns):
    mc.barrier(t.mesh)


def from_local(t, columns):
    mc.from_local(t.local, t.layout)


def from_root(t, columns):
    mc.distribute(np.zeros(t.shape), columns, root=0)


def drop_plans(t, columns):
    mc.drop_plans(t.mesh)


def with_array(t, columns):
    _ = t + np.ones(t.shape)


CALLS = (relayout, start_relayout, to_numpy, total, barrier, from_local, from_root, drop_plans, with_array)


@pytest.mark.parametrize(
    ("first", "other"), list(itertools.combinations(CALLS, 2)), ids=lambda call: getattr(call, "__name__", None)
)
def test_different_first_calls(comm, first, other):
    world = comm.Dup()  # no team of it has communicated yet
    mesh = mc.create_mesh([("x", comm.size)], comm=world)
    rows, columns = mc.Layout(["x", mc.UNSHARDED], mesh), mc.Layout([mc.UNSHARDED, "x"], mesh)
    t = mc.zeros((4, 4), "f8", rows)
    if comm.size > 1:
        with agree_mismatch(mesh, "ranks made different collective calls"):
            (other if comm.rank == 0 else first)(t, columns)
    mesh.close()
    world.Free()
