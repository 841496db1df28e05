"""Exceptions that one rank raises while others are in the call, as signal handlers do: on simulated ranks."""

from contextlib import suppress

import numpy as np
import pytest

import meshcomm as mc
from meshcomm.core.ranks.simulated_communicator import SimulatedCommunicator
from support.reference import numbered, simulated

HERE = 1  # the rank that is interrupted


class Interrupted(Exception):
    """What a signal handler raises."""


@pytest.fixture
def interrupt(monkeypatch):
    """Return a function that lets a *method* of communicators raise `Interrupted` once on a rank, after some calls."""
    armed = {}

    def arm(method, after):
        armed[method] = after

    def interrupted(method):
        function = getattr(SimulatedCommunicator, method)

        def call(communicator, *arguments):
            result = function(communicator, *arguments)
            if communicator.rank == HERE and method in armed:
                armed[method] -= 1
                if armed[method] == 0:
                    raise Interrupted
            return result

        return call

    for method in ("allgatherv", "allreduce_max", "alltoallv"):
        monkeypatch.setattr(SimulatedCommunicator, method, interrupted(method))
    return arm


def distributed(root):
    return lambda t: mc.distribute(numbered(t.shape) if t.mesh.rank == root else None, t.layout, root=root)


CASES = {
    "distribute": (distributed(0), "alltoallv", 1),
    "distribute by root": (distributed(HERE), "alltoallv", 1),
    "distribute before the block": (distributed(0), "allreduce_max", 2),
    "to_numpy": (lambda t: t.to_numpy(root=0), "alltoallv", 1),
    "to_numpy by root": (lambda t: t.to_numpy(root=HERE), "alltoallv", 1),
    "from_local": (lambda t: mc.from_local(t.local, t.layout), "allreduce_max", 1),
    "sort": (np.sort, "alltoallv", 1),
    "relayout": (lambda t: t.relayout([mc.UNSHARDED]), "allgatherv", 1),
}


@pytest.mark.parametrize("case", CASES)
def test_after_an_interrupt_the_mesh_is_unusable(interrupt, case):
    """What the others have sent would come to the next call of this rank."""
    call, method, after = CASES[case]
    informed = []

    def program(rank):
        tensor = mc.distribute(numbered((8,)), mc.Layout(["x"], mc.create_mesh([("x", 3)])))
        call(tensor)
        if rank != HERE:
            call(tensor)
            return
        interrupt(method, after)
        with pytest.raises(Interrupted):
            call(tensor)
        with pytest.raises(mc.MeshError, match=r"ended with an error \(Interrupted\)"):
            call(tensor)
        informed.append(rank)

    with suppress(mc.MeshcommError):  # of the others, which wait for this rank
        simulated(3, program)
    assert informed == [HERE]
