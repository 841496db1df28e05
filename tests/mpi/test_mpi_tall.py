"""QR, SVD, least squares and pseudo-inverses of tall and wide matrices under mpiexec.

The same on simulated ranks, with more cases, is in tests/linalg.
"""

from functools import partial
from random import Random

import numpy as np
import pytest
from mpi4py import MPI

import meshcomm as mc
from linalg.test_tall import close, conditioned, normal, same_on_all
from meshcomm import Layout
from meshcomm.linalg import tall
from support.tensors import layout_of

SIZE = MPI.COMM_WORLD.size
U = mc.UNSHARDED


@pytest.mark.parametrize("dtype", ["f8", "c16", "f4", "c8"])
@pytest.mark.parametrize("shape", [(60, 7), (9, 9), (5, 4), (4, 30)])
def test_results_are_those_of_numpy(line, shape, dtype):
    random = Random(str((shape, dtype)))
    a, b = normal(*shape, dtype=dtype), normal(shape[0], 2, seed=1, dtype=dtype)
    t, right = (mc.distribute(each, layout_of(random, line, each.shape)) for each in (a, b))
    found, expected = tall.qr(t), np.linalg.qr(a)
    for tensor, array in zip(found, expected, strict=True):
        close(tensor, array, 1000)
    same_on_all(found[1] if shape[0] >= shape[1] else found[0])
    close(tall.svd(t, compute_uv=False), np.linalg.svd(a, compute_uv=False))
    close(tall.pinv(t, 1e-15), np.linalg.pinv(a), 3e4)
    x, residuals, rank, s = tall.lstsq(t, right)
    solved = np.linalg.lstsq(a, b)
    assert rank == solved[2]
    for tensor, array in zip((x, residuals, s), (solved[0], solved[1], solved[3]), strict=True):
        close(tensor, array, 3e4)


def test_accuracy_is_that_of_householder(line):
    a = conditioned(400, 50, 1e12)
    q, r = (each.to_numpy() for each in tall.qr(mc.distribute(a, Layout(["x", U], line))))
    assert np.linalg.norm(q.T @ q - np.eye(50)) < 1e-13
    assert np.linalg.norm(q @ r - a, axis=0).max() < 5e-15


def test_an_error_of_lapack_is_raised_by_all(line):
    a = normal(20, 3)
    a[7, 1] = np.nan
    t = mc.distribute(a, Layout(["x", U], line))
    for function in (tall.svd, partial(tall.pinv, rcond=1e-15), lambda t: tall.lstsq(t, t[:, 0])):
        with pytest.raises(np.linalg.LinAlgError, match="did not converge"):
            function(t)
    assert float(t[0].sum()) == a[0].sum()  # the mesh is usable


def test_a_mesh_of_some_ranks():
    mesh, a = mc.create_mesh([("x", max(1, SIZE - 1))]), normal(30, 4)
    for found, expected in zip(tall.qr(mc.distribute(a, Layout(["x", U], mesh))), np.linalg.qr(a), strict=True):
        close(found, expected, 1000)
    mesh.close()
