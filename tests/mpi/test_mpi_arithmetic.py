"""Arithmetic, gradients and barriers under mpiexec, on meshes of every shape that the number of ranks allows."""

from itertools import product

import numpy as np
import pytest
from mpi4py import MPI

import meshcomm as mc
from meshcomm import gradients
from meshcomm.errors import CollectiveTimeout, MeshError
from meshcomm.ranks.barrier import barrier
from support.reference import tuple_layouts
from support.sampling import sampled
from support.verdicts import agree_mismatch

WORLD = MPI.COMM_WORLD
RANK, SIZE = WORLD.rank, WORLD.size
U = mc.UNSHARDED
PLANES = [(n, SIZE // n) for n in range(1, SIZE + 1) if SIZE % n == 0]


@pytest.fixture(params=PLANES, ids=str)
def mesh(request):
    made = mc.create_mesh(list(zip("xy", request.param, strict=True)))
    yield made
    made.close()


def random(*shape):
    return np.random.default_rng(sum(shape)).normal(size=shape) * 3


def check(tensor, expected):
    expected = np.asarray(expected)
    assert (tensor.shape, tensor.dtype) == (expected.shape, expected.dtype)
    block = expected[(..., *tensor.layout.block_slices(expected.shape, tensor.mesh.rank))]
    np.testing.assert_allclose(tensor.local, block, rtol=1e-9, atol=1e-12)


def test_elementwise(mesh):
    a, b = random(7, 5), random(5)
    for one, other in sampled(product(tuple_layouts(mesh, 2), tuple_layouts(mesh, 1)), 12):
        t, u = mc.distribute(a, one), mc.distribute(b, other)
        check(t * u - 1, a * b - 1)
        t /= u
        check(t, a / b)
        check(np.where(t > b, t, u), np.where(a / b > b, a / b, b))


def test_reductions(mesh):
    a = random(7, 5)
    for layout, axis in sampled(product(tuple_layouts(mesh, 2), (None, 0, 1)), 12):
        t = mc.distribute(a, layout)
        for name in ("sum", "mean", "max", "min"):
            check(getattr(t, name)(axis=axis), getattr(a, name)(axis=axis))
        bits = WORLD.allgather(t.sum().local.tobytes())
        assert len(set(bits)) == 1


def test_matmul(mesh):
    a, b = random(7, 5), random(5, 3)
    for one, other in sampled(product(tuple_layouts(mesh, 2), tuple_layouts(mesh, 2)), 12):
        check(mc.distribute(a, one) @ mc.distribute(b, other), a @ b)


def test_plain_arrays_must_be_the_same():
    mesh = mc.create_mesh([("x", SIZE)])
    t = mc.ones((4,), "f8", mc.Layout(["x"], mesh))
    check(t + random(4), random(4) + 1)
    if SIZE > 1:
        with agree_mismatch(mesh, "a plain array must be the same on every rank"):
            t + np.full(4, RANK)


def test_a_mesh_of_some_ranks():
    mesh = mc.create_mesh([("x", max(1, SIZE - 1))])
    t = mc.distribute(random(5, 3), mc.Layout(["x", U], mesh))
    total = (t @ t.T).sum() + t.mean()
    assert (total.local is None) == (mesh.rank is None)
    if mesh.rank is not None:
        assert float(total) == pytest.approx((random(5, 3) @ random(5, 3).T).sum() + random(5, 3).mean())
        mesh.close()


def test_meshes_do_not_mix(mesh):
    other = mc.create_mesh([("z", SIZE)])
    t, u = (mc.ones((4,), "f8", mc.Layout([U], m)) for m in (mesh, other))
    with pytest.raises(MeshError, match="operands must be on one mesh"):
        t + u


def test_adjoints():
    x = np.random.default_rng(RANK).normal(size=(2 * SIZE, 3 * SIZE))
    for operation, adjoint in (
        (lambda v: mc.all_to_all(v, None, 0, 1, SIZE), lambda g: gradients.all_to_all_vjp(g, None, 0, 1, SIZE)),
        (lambda v: mc.all_gather(v, None, 0), lambda g: gradients.all_gather_vjp(g, None, 0)),
        (lambda v: mc.reduce_scatter(v, None, 1), lambda g: gradients.reduce_scatter_vjp(g, None, 1)),
        (lambda v: mc.broadcast(v, None, SIZE - 1), lambda g: gradients.broadcast_vjp(g, None, SIZE - 1)),
    ):
        ax = operation(x)
        y = np.random.default_rng(100 + RANK).normal(size=ax.shape)
        assert WORLD.allreduce(np.sum(ax * y)) == pytest.approx(WORLD.allreduce(np.sum(x * adjoint(y))))


def test_autograd(mesh):
    autograd = pytest.importorskip("autograd")
    a, w = random(6, 4), random(4, 4)

    def loss(w, a, move):
        return autograd.numpy.mean(move(autograd.numpy.tanh(a @ w)) ** 2) + autograd.numpy.max(w)

    expected = autograd.grad(loss)(w, a, lambda h: h)
    for one, other in sampled(product(tuple_layouts(mesh, 2), tuple_layouts(mesh, 2)), 12):
        t = mc.distribute(w, one)
        grad = autograd.grad(loss)(t, mc.distribute(a, other), lambda h: mc.relayout(h, one))  # noqa: B023
        assert grad.layout == one
        check(grad, expected)


def test_barriers(mesh):
    barrier(mesh)
    barrier(mesh, "the same")
    barrier(mesh, "with time", timeout_in_ms=600_000)
    if SIZE > 1:
        with agree_mismatch(mesh, "barrier 'of "):
            barrier(mesh, f"of {RANK}")


def test_a_late_rank():
    mesh = mc.create_mesh([("x", SIZE)])
    barrier(mesh)
    if RANK == SIZE - 1:
        WORLD.barrier()  # after the others have given up
        barrier(mesh, "late", timeout_in_ms=600_000)
    else:
        with pytest.raises(CollectiveTimeout, match=r"barrier 'late' timed out: rank . has waited 100 ms"):
            barrier(mesh, "late", timeout_in_ms=100)
        WORLD.barrier()
    barrier(mesh, "the mesh can be used")
    mesh.close()
