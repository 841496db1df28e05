"""qr and svd of matrices cut along either axis, on few ranks: what Heat's tests check, and what they leave out.

Heat has a matrix split along one axis or none, and says how results are split. Each shape here goes both ways that
need no library, if it can: gathered to one rank, and by the tree for matrices with a long side.
"""

from contextlib import contextmanager

import numpy as np
import pytest

import meshcomm as mc
from meshcomm import Layout, ShapeError
from meshcomm.linalg import choose, run
from support.linalg_cases import alike
from support.reference import on_ranks

U = mc.UNSHARDED
RANKS = pytest.mark.parametrize("ranks", [1, 3, 4])
DTYPES = ("f4", "f8", "c8", "c16")
SPLITS = ([U, U], ["x", U], [U, "x"])
TALL = [(43, 10), (20, 8), (5, 2), (2, 1)]
"""With many rows on each rank, with fewer than columns, with one, and with none on the last ranks."""
WIDE = [shape[::-1] for shape in TALL]
OTHERS = [(40, 40), (1, 1), (17, 11), (11, 17), (5, 4), (0, 3), (3, 0)]


@contextmanager
def limit_of(nbytes):
    """Matrices above so many bytes are not gathered; on all simulated ranks, which are threads."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(choose, "SMALL_MATRICES", nbytes)
        patch.setattr(run, "SMALL_MATRICES", nbytes)
        yield


def on_some(ranks, program):
    """Run a program with a mesh of so many ranks."""
    on_ranks(ranks)(lambda: program(mc.create_mesh([("x", ranks)])))()


def random(shape, dtype, seed=0):
    rng = np.random.default_rng([seed, *shape])
    values = rng.standard_normal(shape)
    return (values + 1j * rng.standard_normal(shape) if np.dtype(dtype).kind == "c" else values).astype(dtype)


def matrices(mesh, shapes):
    """A tensor for each shape and each way to split it, its array, and how it is split."""
    for number, shape in enumerate(shapes):
        a = random(shape, DTYPES[number % 4])
        for split in SPLITS:
            yield mc.distribute(a, Layout(split, mesh)), a, split


def close(found, expected):
    """Compare arrays of numbers of about 1."""
    np.testing.assert_allclose(found, expected, atol=300 * np.finfo(found.dtype).eps)


def check_qr(a, q, r):
    """Q and R multiply to *a*; columns of Q are orthonormal, R has zeros below the diagonal."""
    assert (q.dtype, r.dtype) == (a.dtype, a.dtype)
    left, right = q.to_numpy(), r.to_numpy()
    close(left @ right, a)
    close(
        left.swapaxes(-1, -2).conj() @ left, np.broadcast_to(np.eye(q.shape[-1]), (*q.shape[:-2], *q.shape[-1:] * 2))
    )
    assert not np.tril(right, -1).any()


def check_svd(a, u, s, vh):
    """As `check_qr`; singular values are real, not negative, and descend."""
    assert (u.dtype, s.dtype, vh.dtype) == (a.dtype, a.real.dtype, a.dtype)
    left, values, right = u.to_numpy(), s.to_numpy(), vh.to_numpy()
    close(left * values @ right, a)
    for each in (left.conj().T @ left, right @ right.conj().T):
        close(each, np.eye(len(values)))
    assert (values >= 0).all()
    assert (np.diff(values) <= 0).all()


@RANKS
@pytest.mark.parametrize("limit", [0, 10**6])
def test_matrices_with_a_long_side(ranks, limit):
    def program(mesh):
        for t, a, (rows, columns) in matrices(mesh, TALL + WIDE):
            k = min(a.shape)
            q, r = np.linalg.qr(t)
            check_qr(a, q, r)
            assert (q.shape, r.shape) == ((len(a), k), (k, a.shape[1]))
            assert (q.layout.sharding_specs, r.layout.sharding_specs) == (
                [rows, U],
                [U, columns if a.shape[0] < a.shape[1] else U],
            )
            close(np.linalg.qr(t, "r").to_numpy(), r.to_numpy())
            u, s, vh = np.linalg.svd(t, full_matrices=False)
            check_svd(a, u, s, vh)
            assert [each.layout.sharding_specs for each in (u, s, vh)] == [[rows, U], [U], [U, columns]]
            close(np.linalg.svd(t, compute_uv=False).to_numpy(), s.to_numpy())
            np.testing.assert_array_equal(t.to_numpy(), a)  # neither overwrites it

    with limit_of(limit):
        on_some(ranks, program)


@RANKS
def test_other_matrices(ranks):
    def program(mesh):
        for t, a, split in matrices(mesh, OTHERS):
            check_qr(a, *np.linalg.qr(t))
            check_qr(a, *np.linalg.qr(t, "complete"))
            check_svd(a, *np.linalg.svd(t, full_matrices=False))
            alike(np.linalg.svd(t, compute_uv=False), np.linalg.svd(a, compute_uv=False), scale=100)
            u, s, vh = np.linalg.svd(t)
            assert (u.shape, s.shape, vh.shape) == (a.shape[:1] * 2, (min(a.shape),), a.shape[1:] * 2)
            assert u.layout.sharding_specs[0] == split[0]

    on_some(ranks, program)


@RANKS
def test_stacks(ranks):
    """Cut along the stack, which stays as it is, or along an axis of the matrices."""

    def program(mesh):
        for shape in ((ranks * 3, 4, 6), (2, 21, 3), (2, 3, 21), (1, ranks, 2, 2), (ranks + 1, 1, 1)):
            a = random(shape, "f8")
            for axis in range(len(shape)):
                t = mc.distribute(a, Layout(["x" if i == axis else U for i in range(len(shape))], mesh))
                q, r = np.linalg.qr(t)
                check_qr(a, q, r)
                for number, spec in enumerate(q.layout.sharding_specs[:-1]):
                    assert spec == ("x" if number == axis else U)
                alike(np.linalg.svdvals(t), np.linalg.svdvals(a), scale=100)

    on_some(ranks, program)


@RANKS
def test_what_heat_refuses_and_numpy_takes(ranks):
    """Integers, full matrices and single numbers of them; not too large a matrix with full ones."""

    def program(mesh):
        rows = Layout(["x", U], mesh)
        whole = mc.distribute(np.arange(12).reshape(6, 2), rows)
        q, _ = np.linalg.qr(whole)
        assert q.dtype == "f8"
        with pytest.raises(np.linalg.LinAlgError, match="two-dimensional"):
            np.linalg.qr(whole[:, 0])
        tall = mc.distribute(random((60, 2), "f8"), rows)
        if ranks > 1:  # one rank has all of it
            with pytest.raises(ShapeError, match="full_matrices=False"):
                np.linalg.svd(tall)
            with pytest.raises(ShapeError, match="'reduced' and 'r'"):
                np.linalg.qr(tall, "complete")
        check_svd(tall.to_numpy(), *np.linalg.svd(tall, full_matrices=False))

    with limit_of(500):
        on_some(ranks, program)
