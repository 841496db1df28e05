"""ScaLAPACK's solvers and decompositions under mpiexec: residuals, orthogonality, and NumPy's results."""

import numpy as np
import pytest
from mpi4py import MPI

import meshcomm as mc
from meshcomm import DTypeError, MeshError, ShapeError
from meshcomm.linalg import scalapack
from meshcomm.linalg.large import (
    cho_solve,
    eigh,
    eigvalsh,
    inv,
    lstsq,
    lu,
    lu_solve,
    qr,
    slogdet,
    solve,
    solve_triangular,
    svd,
)
from support.random_cases import shapes_of
from support.sampling import sampled
from support.scalapack import layouts_on, planes, random, skip_without_scalapack
from support.verdicts import agree_raises

skip_without_scalapack()

WORLD = MPI.COMM_WORLD
RANK, SIZE = WORLD.rank, WORLD.size
U = mc.UNSHARDED
mesh = planes([(2, 2)] if SIZE == 4 else sampled([shape for shape in shapes_of(SIZE) if len(shape) == 2], 2))
DTYPES = ("f4", "f8", "c8", "c16")
LIMIT = 10  # of residuals, in units of rounding errors: that of ScaLAPACK's own tests
SIZES = (29, 1, 2, 7, 40, 0)
SHAPES = [(29, 17), (17, 29), (1, 1), (1, 6), (6, 1), (40, 3), (3, 40), (12, 12), (0, 4), (4, 0), (0, 0)]
BLOCKS = (3, 64, 8)


def hermitian(n, dtype, seed=0):
    a = random((n, n), dtype, seed)
    return (a + a.conj().T) / 2


def cases(mesh, values):
    """Each of *values* with a layout, another one, and a size of blocks."""
    layouts = layouts_on(mesh)
    for number, value in enumerate(sampled(list(values), 4)):
        yield value, layouts[number % len(layouts)], layouts[(number * 3 + 1) % len(layouts)], BLOCKS[number % 3]


def norm(a):
    return float(np.linalg.norm(np.asarray(a).astype("c16")))


def eps(dtype):
    return float(np.finfo(dtype).eps)


def whole(tensor, shape, dtype):
    """The global array of a result, after checks of what a tensor says about itself."""
    assert (tensor.shape, tensor.dtype) == (shape, np.dtype(dtype))
    array = tensor.to_numpy()
    for other in WORLD.allgather(array):
        np.testing.assert_array_equal(other, array)
    return array.astype("c16")


def check_solution(a, x, b):
    """||ax - b|| / (||a|| ||x|| n eps), as ScaLAPACK's tests have it."""
    n = max(1, *a.shape)
    exact = a.astype("c16")
    assert norm(exact @ x - b) <= LIMIT * (norm(a) * norm(x) + norm(b)) * n * eps(a.dtype)


def check_orthogonal(q, dtype, limit=LIMIT):
    """||q^H q - 1|| / (n eps)."""
    assert norm(q.conj().T @ q - np.eye(q.shape[1])) <= limit * max(1, len(q)) * eps(dtype)


def check_factors(a, product):
    """||a - product|| / (||a|| n eps)."""
    assert norm(a - product) <= LIMIT * norm(a) * max(1, *a.shape) * eps(a.dtype)


# -- linear systems ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("sides", [1, 5, 0])
def test_solve(mesh, dtype, sides):
    for n, layout, other, block in cases(mesh, SIZES):
        a, b = random((n, n), dtype), random((n, sides), dtype, 1)
        left, right = mc.distribute(a, layout), mc.distribute(b, other)
        x = whole(solve(left, right, block=block), (n, sides), dtype)
        check_solution(a, x, b)
        np.testing.assert_array_equal(left.to_numpy(), a)
        np.testing.assert_array_equal(right.to_numpy(), b)


@pytest.mark.parametrize("dtype", DTYPES)
def test_inv(mesh, dtype):
    for n, layout, _, block in cases(mesh, SIZES):
        a = random((n, n), dtype)
        x = whole(inv(mc.distribute(a, layout), block=block), (n, n), dtype)
        check_solution(a, x, np.eye(n))


@pytest.mark.parametrize("dtype", DTYPES)
def test_slogdet(mesh, dtype):
    for n, layout, _, block in cases(mesh, SIZES):
        a = random((n, n), dtype)
        expected = np.linalg.slogdet(a)
        sign, log = slogdet(mc.distribute(a, layout), block=block)
        tolerance = 1e4 * eps(dtype)
        assert abs(whole(sign, (), dtype) - expected[0]) < tolerance
        assert abs(whole(log, (), expected[1].dtype) - expected[1]) < tolerance * max(1, abs(expected[1]))
    singular = np.diag([1, 0, 2, 3]).astype(dtype)
    assert [t.item() for t in slogdet(mc.distribute(singular, layout))] == [0, -np.inf]


@pytest.mark.parametrize("dtype", DTYPES)
def test_lu_and_lu_solve(mesh, dtype):
    for (m, n), layout, other, block in cases(mesh, [*SHAPES, *[(n, n) for n in SIZES]]):
        a = random((m, n), dtype)
        found = lu(mc.distribute(a, layout), block=block)
        factors = whole(found.factors, (m, n), dtype)
        pivots = whole(found.pivots, (min(m, n),), "i4").real.astype(int)
        rows = np.arange(m)
        for row, exchanged in enumerate(pivots):
            rows[[row, exchanged]] = rows[[exchanged, row]]
        low, up = np.tril(factors, -1)[:, : min(m, n)] + np.eye(m, min(m, n)), np.triu(factors)[: min(m, n)]
        check_factors(a[rows], low @ up)
        assert (abs(low) < 1.5).all()  # rows were exchanged, not columns
        if m == n:
            b = random((n, 3), dtype, 1)
            for trans, matrix in enumerate((a, a.T, a.conj().T)):
                x = lu_solve(found, mc.distribute(b, other), trans=trans, block=block)
                check_solution(matrix, whole(x, (n, 3), dtype), b)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("lower", [True, False])
def test_cho_solve(mesh, dtype, lower):
    for n, layout, other, block in cases(mesh, SIZES):
        a, b = random((n, n), dtype), random((n, 4), dtype, 1)
        a = (a @ a.conj().T + n * np.eye(n)).astype(dtype)
        factor = scalapack.cholesky(mc.distribute(a, layout), lower=lower)
        filled = mc.distribute(
            factor.to_numpy() + (np.triu if lower else np.tril)(np.ones((n, n), dtype), 1 if lower else -1), layout
        )
        x = cho_solve(filled, mc.distribute(b, other), lower=lower, block=block)
        check_solution(a, whole(x, (n, 4), dtype), b)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("lower", [True, False])
def test_solve_triangular(mesh, dtype, lower):
    for n, layout, other, block in cases(mesh, SIZES):
        a = random((n, n), dtype) / max(1, n) + np.eye(n, dtype=dtype)
        b = random((n, 4), dtype, 1)
        left, right = mc.distribute(a.astype(dtype), layout), mc.distribute(b, other)
        for trans, unit in [(0, False), (1, False), (2, False), (0, True), (2, True)]:
            x = solve_triangular(left, right, trans=trans, lower=lower, unit_diagonal=unit, block=block)
            triangle = np.tril(a) if lower else np.triu(a)
            if unit:
                np.fill_diagonal(triangle, 1)
            matrix = (triangle, triangle.T, triangle.conj().T)[trans].astype(dtype)
            check_solution(matrix, whole(x, (n, 4), dtype), b)


@pytest.mark.parametrize("dtype", DTYPES)
def test_lstsq(mesh, dtype):
    for (m, n), layout, other, block in cases(mesh, SHAPES):
        a, b = random((m, n), dtype), random((m, 3), dtype, 1)
        x = lstsq(mc.distribute(a, layout), mc.distribute(b, other), block=block)
        expected = np.linalg.lstsq(a.astype("c16"), b.astype("c16"))[0]
        assert norm(whole(x, (n, 3), dtype) - expected) <= 1e3 * eps(dtype) * max(1, norm(expected))


# -- decompositions ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("triangle", ["L", "U"])
def test_eigh(mesh, dtype, triangle):
    for n, layout, _, block in cases(mesh, SIZES):
        a = hermitian(n, dtype)
        half = np.tril(a) if triangle == "L" else np.triu(a)
        tensor = mc.distribute(half, layout)
        found = eigh(tensor, triangle, block=block)
        expected = np.linalg.eigvalsh(a.astype("c16"))
        w, v = (
            whole(found.eigenvalues, (n,), expected.astype(dtype).real.dtype),
            whole(found.eigenvectors, (n, n), dtype),
        )
        tolerance = LIMIT * max(1, n) * eps(dtype) * max(1, abs(expected).max(initial=0))
        np.testing.assert_allclose(w.real, expected, rtol=0, atol=tolerance)
        check_orthogonal(v, dtype)
        check_factors(a, v * w @ v.conj().T)
        values = whole(eigvalsh(tensor, triangle, block=block), (n,), found.eigenvalues.dtype)
        np.testing.assert_allclose(values.real, expected, rtol=0, atol=tolerance)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("triangle", ["L", "U"])
def test_some_eigenvalues(mesh, dtype, triangle):
    subsets = [(29, 3, 9), (29, 0, 28), (1, 0, 0), (2, 1, 1), (7, 0, 2), (40, 39, 39), (40, 5, 30)]
    for (n, first, last), layout, _, block in cases(mesh, subsets):
        a, count = hermitian(n, dtype), last + 1 - first
        found = eigh(mc.distribute(a, layout), triangle, subset_by_index=(first, last), block=block)
        expected = np.linalg.eigvalsh(a.astype("c16"))[first : last + 1]
        w, v = whole(found.eigenvalues, (count,), a.real.dtype), whole(found.eigenvectors, (n, count), dtype)
        np.testing.assert_allclose(w.real, expected, rtol=0, atol=LIMIT * n * eps(dtype) * max(1, norm(a)))
        check_orthogonal(v, dtype)
        assert norm(a @ v - v * w) <= LIMIT * norm(a) * n * eps(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_equal_eigenvalues(mesh, dtype):
    q = np.linalg.qr(random((24, 24), dtype).astype("c16" if np.dtype(dtype).kind == "c" else "f8"))[0]
    for w in (np.ones(24), np.repeat([1.0, 2.0], 12), np.zeros(24)):
        a = (q * w @ q.conj().T).astype(dtype)
        tensor = mc.distribute(a, layouts_on(mesh)[1])
        for subset in (None, (0, 11)):
            v = eigh(tensor, subset_by_index=subset, block=4).eigenvectors
            # syevr makes each vector by itself: with Netlib's ScaLAPACK, those of equal eigenvalues reach 13.
            check_orthogonal(whole(v, (24, 12 if subset else 24), dtype), dtype, 2 * LIMIT if subset else LIMIT)


@pytest.mark.parametrize("dtype", DTYPES)
def test_svd(mesh, dtype):
    for (m, n), layout, _, block in cases(mesh, SHAPES):
        a, k = random((m, n), dtype), min(m, n)
        tensor = mc.distribute(a, layout)
        found = svd(tensor, block=block)
        u, vh = whole(found.u, (m, k), dtype), whole(found.vh, (k, n), dtype)
        s = whole(found.s, (k,), a.real.dtype)
        expected = np.linalg.svd(a.astype("c16"), compute_uv=False)
        tolerance = LIMIT * max(1, m, n) * eps(dtype) * max(1, expected.max(initial=0))
        np.testing.assert_allclose(s.real, expected, rtol=0, atol=tolerance)
        check_orthogonal(u, dtype)
        check_orthogonal(vh.conj().T, dtype)
        check_factors(a, u * s @ vh)
        alone = svd(tensor, compute_uv=False, block=block)
        assert alone.u is alone.vh is None
        np.testing.assert_allclose(whole(alone.s, (k,), a.real.dtype).real, expected, rtol=0, atol=tolerance)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("mode", ["reduced", "complete", "r"])
def test_qr(mesh, dtype, mode):
    for (m, n), layout, _, block in cases(mesh, SHAPES):
        a = random((m, n), dtype)
        q, r = qr(mc.distribute(a, layout), mode, block=block)
        k = m if mode == "complete" else min(m, n)
        expected = np.linalg.qr(a.astype("c16" if a.dtype.kind == "c" else "f8"), mode)
        right = expected if mode == "r" else expected.R
        upper = whole(r, (k, n), dtype)
        assert norm(upper - right) <= 1e4 * eps(dtype) * max(1, norm(a))
        np.testing.assert_array_equal(upper, np.triu(upper))
        if mode == "r":
            assert q is None
            continue
        left = whole(q, (m, k), dtype)
        check_orthogonal(left, dtype)
        check_factors(a, left @ upper)


# -- what is wrong ----------------------------------------------------------------------------------------------------


def test_singular_matrices(mesh):
    for layout in layouts_on(mesh):
        a = random((9, 9), "f8")
        a[:, 4] = 0
        tensor, b = mc.distribute(a, layout), mc.ones((9, 2), "f8", layout)
        with agree_raises(np.linalg.LinAlgError, "Singular matrix"):
            solve(tensor, b, block=2)
        with agree_raises(np.linalg.LinAlgError, "Singular matrix"):
            inv(tensor, block=2)
        with agree_raises(np.linalg.LinAlgError, "resolution failed at diagonal 4"):
            solve_triangular(tensor, b, lower=True)
        with agree_raises(np.linalg.LinAlgError, "not full rank"):
            lstsq(tensor, b)
    again = solve(mc.distribute(np.eye(9), layout), b)
    np.testing.assert_array_equal(again.to_numpy(), b.to_numpy())


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_matrices_that_are_not_finite(mesh, value):
    a = hermitian(9, "f8")
    a[8, 8] = value
    tensor = mc.distribute(a, layouts_on(mesh)[0])
    for call in (eigh, eigvalsh):
        with agree_raises(np.linalg.LinAlgError, "Eigenvalues did not converge"):
            call(tensor)
    with agree_raises(np.linalg.LinAlgError, "SVD did not converge"):
        svd(tensor)


def test_bad_operands_are_refused_on_all_ranks(mesh):
    rows = mc.Layout(["x", U], mesh)
    square, wide = mc.ones((4, 4), "f8", rows), mc.ones((3, 4), "f8", rows)
    for call in (inv, slogdet, eigh, eigvalsh, lambda a: solve(a, wide)):
        with agree_raises(ShapeError, "square"):
            call(wide)
    for call in (solve, lstsq, cho_solve, solve_triangular):
        with agree_raises(ShapeError, "differ in their rows"):
            call(square, wide)
        with agree_raises(DTypeError, "must be equal"):
            call(square, mc.ones((4, 4), "f4", rows))
    for call in (svd, qr, lu):
        with agree_raises(DTypeError, "float32, float64"):
            call(mc.ones((4, 4), "i8", rows))
        with agree_raises(ShapeError, "2 axes"):
            call(mc.ones((4,), "f8", mc.Layout(["x"], mesh)))
    if SIZE > 1:
        one = mc.create_mesh({"z": 1})
        with agree_raises(MeshError, "must be on one mesh"):
            solve(square, mc.ones((4, 4), "f8", mc.Layout(["z", U], one)))


def test_a_mesh_of_some_ranks():
    """Ranks outside of the mesh get tensors without a block, of the same shapes and layouts."""
    some = mc.create_mesh({"x": max(1, SIZE - 1)}, devices=list(range(max(1, SIZE - 1)))[::-1])
    a, b = hermitian(19, "f8"), random((19, 2), "f8")
    left, right = (mc.distribute(each, mc.Layout(["x", U], some)) for each in (a, b))
    results = [solve(left, right, block=4), lstsq(left, right, block=4), inv(left), *slogdet(left), *lu(left)]
    results += [*eigh(left, block=4), eigvalsh(left), *eigh(left, subset_by_index=(0, 3)), *svd(left), *qr(left)]
    results += [lu_solve(lu(left), right), solve_triangular(left, right), cho_solve(left, right)]
    summaries = WORLD.allgather([(t.shape, str(t.dtype), t.layout.sharding_specs, (t.local is None)) for t in results])
    for rank, each in enumerate(summaries):
        assert [what[:3] for what in each] == [what[:3] for what in summaries[0]]
        assert all(what[3] == (rank not in some.ranks) for what in each)
    if some.rank is not None:
        check_solution(a, results[0].to_numpy(), b)
        some.close()
