"""Transposes that relay in one copy, on real ranks: against NumPy's transpose of the global array."""

from itertools import permutations

import numpy as np
import pytest
from mpi4py import MPI

import meshcomm as mc

pytestmark = pytest.mark.exchanges

RANKS = MPI.COMM_WORLD.size
U = mc.UNSHARDED


def layouts(mesh, shape):
    """Layouts of every kind for an array of three axes."""
    n = shape[1]
    uneven = (0, *(n for _ in range(mesh.size)))
    return [
        mc.Layout(["x", U, U], mesh),
        mc.Layout([U, U, "x"], mesh),
        mc.Layout([U, mc.Cyclic("x", 2), U], mesh),
        mc.Layout([U, mc.Cuts("x", uneven), U], mesh),
        mc.Layout.replicated(mesh, 3),
    ]


@pytest.mark.parametrize("order", list(permutations(range(3))))
def test_a_transpose_into_a_layout_is_that_of_the_global_array(order):
    mesh = mc.create_mesh([("x", RANKS)])
    whole = np.arange(4 * 7 * 5, dtype="i4").reshape(4, 7, 5)
    wanted = whole.transpose(order)
    for source in layouts(mesh, whole.shape):
        t = mc.distribute(whole, source)
        for target in layouts(mesh, wanted.shape):
            for _ in range(2):  # the second time it is known
                result = mc.transpose(t, order, target)
                expected = mc.distribute(wanted, target)
                assert result.shape == wanted.shape
                assert result.layout == target
                assert result.local.flags.c_contiguous
                assert np.array_equal(result.local, expected.local), (source, target)
