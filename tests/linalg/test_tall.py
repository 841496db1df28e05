"""Factors of tall and wide matrices by a tree of QR factorisations, against NumPy's on whole arrays."""

from functools import partial

import numpy as np
import pytest

import meshcomm as mc
from meshcomm import Layout
from meshcomm.linalg import tall
from meshcomm.linalg.reflectors import Reflectors, last_rows, signs
from support.reference import on_ranks
from support.sampling import sampled, with_seeds
from support.tensors import check, layout_of, on_a_mesh

U = mc.UNSHARDED
SEEDS = sampled(range(40), 8)
SHAPES = [(40, 5), (9, 4), (6, 6), (5, 3), (4, 4), (1, 1), (7, 1), (3, 0), (0, 0), (3, 9), (2, 40), (4, 5), (0, 3)]
DTYPES = ["f8", "c16", "f4", "c8"]


def normal(*shape, seed=0, dtype="f8"):
    """Random numbers: those of one column or row are about as large as those of another one."""
    rng = np.random.default_rng([seed, *shape])
    both = rng.standard_normal((2, *shape))
    return (both[0] + 1j * both[1] if np.dtype(dtype).kind == "c" else both[0]).astype(dtype)


def conditioned(m, n, condition, dtype="f8"):
    """A matrix with this condition number."""
    left, right = (np.linalg.qr(normal(k, n, seed=k, dtype=dtype))[0] for k in (m, n))
    return left * np.geomspace(1, 1 / condition, n) @ right


def close(found, expected, scale=100.0):
    """Compare a tensor with NumPy's result, of about 1."""
    expected = np.asarray(expected)
    limit = scale * float(np.finfo(expected.dtype).eps)
    check(found, expected, partial(np.testing.assert_allclose, rtol=limit, atol=limit))


def same_on_all(tensor):
    """Require the same bits on all ranks."""
    mesh, local = tensor.mesh, tensor.local
    assert tensor.layout.is_fully_replicated()
    found = mc.from_local(local[None], Layout([tuple(mesh.dim_names), *[U] * local.ndim], mesh)).to_numpy()
    assert all(block.tobytes() == local.tobytes() for block in found)


def cases(random, mesh, seed):
    """Tensors in random layouts, and their arrays."""
    for number, shape in enumerate(SHAPES):
        a = normal(*shape, seed=seed, dtype=DTYPES[(seed + number) % 4])
        yield mc.distribute(a, layout_of(random, mesh, shape)), a


# -- against NumPy ----------------------------------------------------------------------------------------------------


@with_seeds(on_a_mesh, SEEDS)
def test_qr(random, mesh, seed):
    for t, a in cases(random, mesh, seed):
        found, expected = tall.qr(t), np.linalg.qr(a)
        only_r = tall.qr(t, "r")
        for tensor, array in zip((*found, only_r), (*expected, expected.R), strict=True):
            close(tensor, array, 1000)
        assert np.array_equal(only_r.local, found[1].local)
        assert not np.tril(found[1].to_numpy(), -1).any()
        same_on_all(found[1] if a.shape[0] >= a.shape[1] else found[0])


@with_seeds(on_a_mesh, SEEDS)
def test_svd(random, mesh, seed):
    for t, a in cases(random, mesh, seed):
        (u, s, vh), values, expected = tall.svd(t), tall.svd(t, compute_uv=False), np.linalg.svd(a, compute_uv=False)
        assert {u.dtype, vh.dtype} == {a.dtype}
        for each in (s, values):
            close(each, expected)
            same_on_all(each)
        left, right = u.to_numpy(), vh.to_numpy()
        limit = 200 * np.finfo(a.dtype).eps
        for q in (left.conj().T @ left, right @ right.conj().T):
            np.testing.assert_allclose(q, np.eye(min(a.shape)), atol=limit)
        np.testing.assert_allclose(left * s.to_numpy() @ right, a, atol=limit)


@with_seeds(on_a_mesh, SEEDS)
def test_lstsq(random, mesh, seed):
    for number, (t, a) in enumerate(cases(random, mesh, seed)):
        b = normal(*[(a.shape[0],), (a.shape[0], 3), (a.shape[0], 0)][number % 3], seed=seed + 1, dtype=a.dtype)
        right = mc.distribute(b, layout_of(random, mesh, b.shape))
        expected = np.linalg.lstsq(a, b)
        x, residuals, rank, s = tall.lstsq(t, right)
        assert rank == expected[2]
        for tensor, array in zip((x, residuals, s), (expected[0], expected[1], expected[3]), strict=True):
            close(tensor, array, 3e4)
        same_on_all(residuals)


@with_seeds(on_a_mesh, SEEDS)
def test_pinv(random, mesh, seed):
    for t, a in cases(random, mesh, seed):
        close(tall.pinv(t, 1e-15), np.linalg.pinv(a), 3e4)


@pytest.mark.parametrize("rcond", [None, 1e-3, 0.0, -1.0, 2.0])
@pytest.mark.parametrize("shape", [(12, 4), (4, 12)])
@on_ranks(3)
def test_rank_deficient(shape, rcond):
    a = normal(shape[0], 3) @ np.diag([1, 0.5, 1e-5]) @ normal(3, shape[1])
    b = normal(shape[0], 2)
    mesh = mc.create_mesh([("x", 3)])
    t, right = (mc.distribute(each, Layout(["x", U], mesh)) for each in (a, b))
    x, residuals, rank, s = tall.lstsq(t, right, rcond)
    if rcond is None or rcond == 1e-3:  # else noise may count as a singular value
        expected = np.linalg.lstsq(a, b, rcond)
        assert rank == expected[2] == (3 if rcond is None else 2)
        np.testing.assert_allclose(x.to_numpy(), expected[0], rtol=1e-7)
        assert residuals.shape == expected[1].shape == (0,)
    limit = {None: np.finfo(float).eps * 12, 1e-3: 1e-3}.get(rcond, np.finfo(float).eps / 2)
    assert rank == (s.to_numpy() > limit * s.to_numpy()[0]).sum()
    np.testing.assert_allclose(tall.pinv(t, 1e-3).to_numpy(), np.linalg.pinv(a, 1e-3), atol=1e-10)


# -- accuracy and signs -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["f8", "c16"])
@pytest.mark.parametrize("shape", [(300, 60), (90, 90)])
@on_ranks(6)
def test_accuracy_is_that_of_householder(shape, dtype):
    a = conditioned(*shape, 1e12, dtype)
    q, r = tall.qr(mc.distribute(a, Layout(["x", U], mc.create_mesh([("x", 6)]))))
    u, s, vh = tall.svd(mc.distribute(a, Layout([U, "x"], q.mesh)))
    orthonormal = q.to_numpy(), u.to_numpy(), vh.to_numpy().conj().T
    eps = np.finfo(float).eps
    for each in orthonormal:
        assert np.linalg.norm(each.conj().T @ each - np.eye(shape[1])) < 2 * shape[1] * eps
    for product in (orthonormal[0] @ r.to_numpy(), orthonormal[1] * s.to_numpy() @ vh.to_numpy()):
        assert np.linalg.norm(product - a, axis=0).max() < 20 * eps
    np.testing.assert_allclose(s.to_numpy(), np.geomspace(1, 1e-12, shape[1]), atol=20 * eps)


def structured(m, n, rng):
    """Matrices with zeros where LAPACK reflects nothing."""
    full = rng.standard_normal((m, n))
    some = np.where(rng.random(n) < 0.5, -1, 1)
    yield np.eye(m, n) * some
    yield np.triu(full)
    yield np.triu(full) + 0j
    yield np.where(np.arange(m)[:, None] < n, full, 0)  # the last rows are zero
    yield np.where(np.arange(m)[:, None] < n + 2, full, 0) * 1j
    for zero in (0.0, -0.0):
        full = full.copy()
        full[0, 0] = zero  # where it decides
        yield full
    yield np.roll(np.eye(m, n), 1, axis=0)
    yield np.kron(np.eye(-(-m // 3), -(-n // 3)), rng.standard_normal((3, 3)))[:m, :n]


@pytest.mark.parametrize("seed", range(3))
@on_ranks(5)
def test_signs_where_there_are_zeros(seed):
    rng, mesh = np.random.default_rng(seed), mc.create_mesh([("x", 5)])
    for m, n in ((30, 6), (11, 7), (6, 6), (23, 3)):
        for a in structured(m, n, rng):
            expected = np.linalg.qr(a)
            for specs in (["x", U], [mc.Cyclic("x", 2), U], [mc.Cuts("x", sizes=[0, m - 3, 0, 2, 1]), U]):
                for found, array in zip(tall.qr(mc.distribute(a, Layout(specs, mesh))), expected, strict=True):
                    close(found, array, 1000)


def test_signs_from_an_r_with_others():
    rng = np.random.default_rng(2)
    for count in (1, 2, 31, 32, 33, 80):
        for m in (count, count + 9):
            for a in (rng.standard_normal((m, count)), normal(m, count, seed=count, dtype="c16")):
                some = np.where(rng.random(count) < 0.5, -1, 1)
                r = np.linalg.qr(a, "r")
                found = signs(some[:, None] * r, a[:count], last_rows(a, np.arange(m), count))
                assert (found == some).all()


def test_last_rows():
    rng = np.random.default_rng(3)
    for length in (0, 1, 5, 300):
        a = np.where(rng.random((length, 40)) < 3 / (length + 1), 1.0, 0.0)
        numbers = np.cumsum(rng.integers(1, 3, length))
        expected = [max((int(i) for i in numbers[a[:, j] != 0]), default=-1) for j in range(40)]
        for most in (1, 4, 100, 1000):
            assert last_rows(a, numbers, most).tolist() == [min(each, most) for each in expected]


def test_reflectors_are_those_of_lapack():
    for dtype in ("f8", "c16"):
        for shape in ((9, 4), (4, 4), (3, 5), (0, 3), (4, 0), (5000, 2)):
            a = normal(*shape, dtype=dtype)
            a[:, 1:2] = 0  # LAPACK makes a reflector of it that changes nothing
            found, count = Reflectors(a), min(shape)
            q, r = np.linalg.qr(a, "complete")[0] if shape[0] < 100 else np.linalg.qr(a)[0], np.linalg.qr(a, "r")
            np.testing.assert_allclose(found.r, r, atol=1e-13)
            np.testing.assert_allclose(found.times(np.eye(count)), q[:, :count], atol=1e-13)
            b = normal(shape[0], 3, seed=1, dtype=dtype)
            top, rest = found.adjoint_times(b)
            np.testing.assert_allclose(top, q[:, :count].conj().T @ b, atol=1e-12)
            left = b - q[:, :count] @ top
            np.testing.assert_allclose(rest, (left.conj() * left).sum(axis=0).real, rtol=1e-10, atol=1e-13)


# -- ranks ------------------------------------------------------------------------------------------------------------


@on_ranks(20)
def test_a_tree_of_several_levels():
    mesh = mc.create_mesh([("x", 20)])
    for m in (100, 45, 12):
        a, b = normal(m, 4), normal(m, 2)
        t, right = (mc.distribute(each, Layout(["x", U], mesh)) for each in (a, b))
        for found, expected in zip(tall.qr(t), np.linalg.qr(a), strict=True):
            close(found, expected, 1000)
        found, expected = tall.lstsq(t, right), np.linalg.lstsq(a, b)
        close(found[0], expected[0], 1000)
        close(found[1], expected[1], 1000)


@on_ranks(3)
def test_ranks_outside_have_no_blocks():
    mesh = mc.create_mesh([("x", 2)], devices=[0, 2])
    for shape in ((8, 3), (3, 8)):
        a = normal(*shape)
        t = mc.distribute(a, Layout(["x", U], mesh))
        for found, expected in zip(tall.qr(t), np.linalg.qr(a), strict=True):
            close(found, expected, 1000)
        close(tall.svd(t, compute_uv=False), np.linalg.svd(a, compute_uv=False))
        close(tall.pinv(t, 1e-15), np.linalg.pinv(a), 1000)
        x, _, rank, _ = tall.lstsq(t, mc.distribute(a[:, 0], Layout(["x"], mesh)))
        assert x.shape == (shape[1],)
        assert rank == (0 if mesh.rank is None else 3)


@on_ranks(4)
def test_an_error_of_lapack_is_raised_by_all():
    mesh = mc.create_mesh([("x", 4)])
    a = normal(20, 3)
    a[7, 1] = np.nan
    t = mc.distribute(a, Layout(["x", U], mesh))
    for function in (tall.svd, partial(tall.pinv, rcond=1e-15), lambda t: tall.lstsq(t, t[:, 0])):
        with pytest.raises(np.linalg.LinAlgError, match="did not converge"):
            function(t)
    assert np.isnan(tall.qr(t)[0].to_numpy()).any()
    assert float(t[0].sum()) == a[0].sum()  # the mesh is usable
