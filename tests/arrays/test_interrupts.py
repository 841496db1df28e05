"""Exceptions that one rank raises while others are in the call, as the handler of a signal does: on simulated ranks."""

import numpy as np
import pytest

import meshcomm as mc
from meshcomm.arrays import nonblocking
from meshcomm.ranks import agreement
from meshcomm.ranks.simulate import SimulatedCommunicator
from support.reference import numbered, simulated

RANK = 1  # it is interrupted


class Interrupted(Exception):
    """What a signal handler raises."""


@pytest.fixture
def interrupt(monkeypatch):
    """Return a function that lets a function raise `Interrupted` on one rank, at its next call there."""

    def arm(owner, name):
        function, left = getattr(owner, name), [1]

        def interrupted(*arguments, **named):
            if mc.default_mesh().rank == RANK and left:
                left.pop()
                raise Interrupted
            return function(*arguments, **named)

        monkeypatch.setattr(owner, name, interrupted)

    return arm


def started(tensor, columns):
    return mc.start_relayout(tensor, columns).wait()


CALLS = {
    "distribute": lambda t: mc.distribute(numbered(t.shape) if t.mesh.rank == 0 else None, t.layout, root=0),
    "distribute, by the root": lambda t: mc.distribute(
        numbered(t.shape) if t.mesh.rank == RANK else None, t.layout, root=RANK
    ),
    "to_numpy": lambda t: t.to_numpy(root=0),
    "to_numpy, by the root": lambda t: t.to_numpy(root=RANK),
    "from_local": lambda t: mc.from_local(t.local, t.layout),
    "sort": lambda t: mc.sort(t, 0),
    "relayout": lambda t: mc.relayout(t, t.layout.mesh and mc.Layout([mc.UNSHARDED, "x"], t.mesh)),
    "start_relayout": lambda t: started(t, mc.Layout([mc.UNSHARDED, "x"], t.mesh)),
}
