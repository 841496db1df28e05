"""numpy.linalg and scipy.linalg of tensors in layouts of all kinds, against those of whole arrays."""

import numpy as np
import pytest

import meshcomm as mc
from meshcomm import Layout
from meshcomm.errors import LayoutError, MeshError, ShapeError
from support import linalg_cases
from support.linalg_cases import alike, hermitian, matrices, several, tensors_of
from support.numpy_law import CALLS, evaluated, given_to, in_layouts, outcome
from support.reference import on_ranks
from support.sampling import sampled
from support.tensors import layout_of, on_a_mesh

U = "unsharded"
pytestmark = pytest.mark.filterwarnings("ignore")  # of numbers that are not finite


# -- one law over all functions ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", sampled(range(40), 5))
@pytest.mark.parametrize("call", CALLS["linear algebra"])
def test_layouts_that_are_asked_for(call, seed):
    """`test_numpy` compares these calls with NumPy; their results have its names."""
    given = given_to(call, seed)
    expected = outcome(call, given)
    if isinstance(expected, Exception):
        return

    def program(random, mesh):
        names = {"np": np, "mc": mc, **in_layouts(random, mesh, given)}
        assert getattr(evaluated(call, names), "_fields", None) == getattr(expected, "_fields", None)
        layouts = [layout_of(random, mesh, np.shape(each)) for each in several(expected)]
        names["layout"] = layouts if len(layouts) > 1 else layouts[0]
        found = evaluated(f"mc{call[2:-1]}, layout=layout)", names)
        assert [each.layout for each in several(found)] == layouts
        alike(found, expected)

    on_a_mesh(seed, program)


@pytest.mark.parametrize("seed", sampled(range(40), 5))
@pytest.mark.parametrize("name", linalg_cases.SCIPY)
def test_scipys_functions(name, seed):
    ours, scipys, choices, make = linalg_cases.SCIPY[name]
    rng = np.random.default_rng(seed)
    stack, n, dtype = [(), (2,), (3, 1)][seed % 3], 1 + seed % 7, linalg_cases.DTYPES[seed % 5]
    a, b = make(rng, *stack, n, n, dtype=dtype), matrices(rng, n, 3, dtype=dtype)
    b, options = b[:, 0] if seed % 4 == 0 else b, choices[seed % len(choices)]
    expected = np.stack([scipys(each, b, **options) for each in a.reshape(-1, n, n)]).reshape(*stack, *b.shape)

    def program(random, mesh):
        left, right = tensors_of(random, mesh, [a, b])
        alike(ours(left, right, **options), expected, scale=10)
        alike(ours(left, b, **options), expected, scale=10)

    on_a_mesh(seed, program)


@pytest.mark.parametrize("seed", sampled(range(20), 4))
def test_some_eigenvalues(seed):
    a = hermitian(np.random.default_rng(seed), *[(), (2,)][seed % 2], 6, 6, dtype="c16")
    values, vectors = np.linalg.eigh(a)

    def program(random, mesh):
        (t,) = tensors_of(random, mesh, [a])
        w, v = mc.linalg.eigh(t, subset_by_index=[1, 3])
        alike(w, values[..., 1:4])
        alike(abs(v), abs(vectors[..., 1:4]))

    on_a_mesh(seed, program)


@pytest.mark.parametrize("seed", sampled(range(20), 4))
def test_randomized_singular_values(seed):
    rng = np.random.default_rng(seed)
    a = rng.normal(size=(40, 3)) @ rng.normal(size=(3, 25)) + 1e-9 * rng.normal(size=(40, 25))

    def program(random, mesh):
        (t,) = tensors_of(random, mesh, [a])
        u, s, vh = mc.linalg.svd_randomized(t, 3, seed)
        np.testing.assert_allclose(s.to_numpy(), np.linalg.svd(a, compute_uv=False)[:3])
        np.testing.assert_allclose(((u * s) @ vh).to_numpy(), a, atol=1e-6)
        with pytest.raises(ShapeError, match="k is 26"):
            mc.linalg.svd_randomized(t, 26)

    on_a_mesh(seed, program)


# -- layouts, and ways ------------------------------------------------------------------------------------------------


@on_ranks(4)
def test_results_are_cut_like_the_operands():
    mesh = mc.create_mesh([("x", 2), ("y", 2)])
    t = mc.distribute(matrices(np.random.default_rng(0), 6, 6), Layout(["x", "y"], mesh))
    b = mc.distribute(np.ones((6, 4)), Layout([U, "y"], mesh))
    assert np.linalg.inv(t).layout == t.layout
    assert np.linalg.pinv(t).layout.sharding_specs == ["y", "x"]
    assert np.linalg.solve(t, b).layout == b.layout
    assert np.linalg.solve(t, [1.0] * 6).layout.sharding_specs == [U]
    q, r = np.linalg.qr(t)
    assert (q.layout.sharding_specs, r.layout.sharding_specs) == (["x", U], [U, U])
    u, s, vh = np.linalg.svd(t)
    assert [each.layout.sharding_specs for each in (u, s, vh)] == [["x", U], [U], [U, "y"]]
    stack = mc.distribute(np.stack([np.eye(3)] * 5), Layout(["y", U, "x"], mesh))
    assert np.linalg.inv(stack).layout == stack.layout
    assert np.linalg.det(stack).layout.sharding_specs == ["y"]


@on_ranks(4)
def test_nothing_moves_where_matrices_are_whole():
    mesh = mc.create_mesh([("x", 4)])
    stack = mc.distribute(np.stack([np.eye(3)] * 5), Layout(["x", U, U], mesh))
    whole, b = (mc.distribute(np.eye(8), Layout([U, spec], mesh)) for spec in (U, "x"))
    with mc.count() as traffic:
        np.linalg.svd(stack)
        np.linalg.solve(whole, b)  # each device has columns of b
        np.linalg.eigh(whole)
    assert traffic.bytes == 0


@on_ranks(3)
def test_plans():
    rows = Layout(["x", U], mc.create_mesh([("x", 3)]))
    t = mc.distribute(np.eye(5), rows)
    assert mc.linalg.plan("qr", t).way == "small"
    assert mc.linalg.plan("solve", mc.relayout(t, [U, U]), t[:, 0]).way == "small"
    assert mc.linalg.plan("det", mc.relayout(t, [U, U])).way == "stacks"
    assert mc.linalg.plan("svd", rows, shape=(10**7, 30), dtype="f4").way == "tall"
    assert mc.linalg.plan("svd", rows, shape=(30, 10**7), dtype="f4").way == "tall"
    assert mc.linalg.plan("inv", rows, shape=(10**4, 10**4)).way == "large"
    with pytest.raises(ShapeError, match=r"eig: 800,000,000 bytes .*LAPACK alone has it"):
        mc.linalg.plan("eig", rows, shape=(10**4, 10**4))
    with pytest.raises(ShapeError, match="plan knows"):
        mc.linalg.plan("trace", t)
    with pytest.raises(LayoutError, match="plan takes a tensor"):
        mc.linalg.plan("qr", 3)


# -- errors -----------------------------------------------------------------------------------------------------------


@on_ranks(3)
def test_ranks_outside_of_the_mesh():
    mesh = mc.create_mesh([("x", 2)], devices=[2, 0])
    a = matrices(np.random.default_rng(0), 5, 5)
    t = mc.distribute(a, Layout(["x", U], mesh))
    alike(np.linalg.solve(t, np.ones(5)), np.linalg.solve(a, np.ones(5)))
    alike(np.linalg.svd(t), np.linalg.svd(a))
    alike(np.linalg.norm(t, 2), np.linalg.norm(a, 2))
    if mesh.rank is None:
        with pytest.raises(ShapeError, match="outside of the mesh cannot know"):
            np.linalg.eig(t)
    else:
        alike(np.linalg.eig(t), np.linalg.eig(a))


def test_a_matrix_too_large_for_lapack_alone():
    def program(random, mesh):
        a = np.diag(np.arange(1.0, 1026))  # more than 8 MiB, and quickly computed
        t = mc.distribute(a, Layout(["x", *[U]], mesh))
        for call in (np.linalg.eig, lambda t: np.linalg.qr(t, "raw")):
            with pytest.raises(ShapeError, match="relay the matrix first"):
                call(t)
        with pytest.raises((MeshError, ImportError)):
            np.linalg.inv(t)
        whole = mc.relayout(t, [U, U])
        alike(np.linalg.eig(whole), np.linalg.eig(a))

    on_a_mesh(1, program)
