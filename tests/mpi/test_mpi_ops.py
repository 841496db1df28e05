"""Functions on tensors under mpiexec, against NumPy: arithmetic, statistics, shapes, indices, sorts and transforms.

The same on simulated ranks, with more cases, is in tests/numpy and tests/fft.
"""

from itertools import permutations, product
from random import Random

import numpy as np
import pytest
import scipy.fft
from mpi4py import MPI

import meshcomm as mc
from meshcomm import Layout, ShapeError, barrier, gradients
from meshcomm.errors import CollectiveTimeout
from support import indexing
from support.migrations import migrations
from support.numpy_law import CALLS, law
from support.numpy_operands import any_shape, values
from support.random_programs import run_program
from support.reference import same_numbers, tuple_layouts
from support.sampling import sampled
from support.tensors import check, close, layout_of, some_ranks
from support.verdicts import agree_mismatch, agree_raises
from support.wrong_calls import CALLS as WRONG
from support.wrong_calls import wrong

WORLD = MPI.COMM_WORLD
RANK, SIZE = WORLD.rank, WORLD.size
U = mc.UNSHARDED


@pytest.mark.parametrize("seed", sampled(range(40)))
def test_random_programs(comm, seed):
    run_program(1000 * SIZE + seed, RANK, SIZE, comm)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", CALLS)
def test_functions_are_those_of_numpy(grid, name):
    law(name, SIZE, grid, 1)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", sampled(CALLS, 40))
def test_functions_on_some_ranks_only(name):
    mesh = some_ranks(Random(f"{SIZE} {name}"), SIZE)
    law(name, 10 + SIZE, mesh, 1)
    if mesh.rank is not None:
        mesh.close()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("title", WRONG)
def test_wrong_calls(line, title):
    if SIZE > 1:  # one rank alone has all elements
        other = mc.create_mesh([("y", SIZE)])
        wrong(title, line, other)
        other.close()


# -- arithmetic -------------------------------------------------------------------------------------------------------


def test_plain_arrays_must_be_the_same(line):
    t, plain = mc.ones((4,), "f8", Layout(["x"], line)), np.linspace(-3, 3, 4)
    close(t + plain, plain + 1)
    if SIZE > 1:
        with agree_mismatch(line, "a plain array must be the same on every rank"):
            t + np.full(4, RANK)


def test_a_mesh_of_some_ranks():
    mesh, a = mc.create_mesh([("x", max(1, SIZE - 1))]), np.random.default_rng(8).normal(size=(5, 3))
    t = mc.distribute(a, Layout(["x", U], mesh))
    total = (t @ t.T).sum() + t.mean()
    assert (total.local is None) == (mesh.rank is None)
    if mesh.rank is not None:
        assert float(total) == pytest.approx((a @ a.T).sum() + a.mean())
        mesh.close()


def test_adjoints():
    x = np.random.default_rng(RANK).normal(size=(2 * SIZE, 3 * SIZE))
    for name, *arguments in (
        ("all_to_all", None, 0, 1, SIZE),
        ("all_gather", None, 0),
        ("reduce_scatter", None, 1),
        ("broadcast", None, SIZE - 1),
    ):
        ax = getattr(mc, name)(x, *arguments)
        y = np.random.default_rng(100 + RANK).normal(size=ax.shape)
        adjoint = getattr(gradients, f"{name}_vjp")(y, *arguments)
        assert WORLD.allreduce(np.sum(ax * y)) == pytest.approx(WORLD.allreduce(np.sum(x * adjoint)))


@pytest.mark.parametrize("sizes", [(n, SIZE // n) for n in range(1, SIZE + 1) if SIZE % n == 0], ids=str)
def test_autograd(sizes):
    autograd = pytest.importorskip("autograd")
    mesh = mc.create_mesh(list(zip("xy", sizes, strict=True)))
    a, w = (np.random.default_rng(n).normal(size=(n, 4)) for n in (6, 4))

    def loss(w, a, move):
        return autograd.numpy.mean(move(autograd.numpy.tanh(a @ w)) ** 2) + autograd.numpy.max(w)

    expected = autograd.grad(loss)(w, a, lambda h: h)
    for one, other in sampled(product(tuple_layouts(mesh, 2), tuple_layouts(mesh, 2)), 12):
        t = mc.distribute(w, one)
        grad = autograd.grad(loss)(t, mc.distribute(a, other), lambda h: mc.relayout(h, one))  # noqa: B023
        assert grad.layout == one
        close(grad, expected, rtol=1e-9)
    mesh.close()


# -- barriers ---------------------------------------------------------------------------------------------------------


def test_barriers(line):
    barrier(line)
    barrier(line, "the same")
    barrier(line, "with time", timeout_in_ms=600_000)
    if SIZE > 1:
        with agree_mismatch(line, "barrier 'of "):
            barrier(line, f"of {RANK}")


def test_a_late_rank(line):
    barrier(line)
    if RANK == SIZE - 1:
        WORLD.barrier()  # after the others have given up
        barrier(line, "late", timeout_in_ms=600_000)
    else:
        with pytest.raises(CollectiveTimeout, match=r"barrier 'late' timed out: rank . has waited 100 ms"):
            barrier(line, "late", timeout_in_ms=100)
        WORLD.barrier()
    barrier(line, "the mesh can be used")


# -- statistics -------------------------------------------------------------------------------------------------------


def test_bits_are_the_same_on_all_ranks(line):
    whole = np.random.default_rng(3).normal(size=(4 * SIZE + 1, 5)).astype("f4")
    tensor = mc.distribute(whole, Layout(["x", U], line))
    means = tensor.std(), tensor.var(axis=0), np.linalg.norm(tensor, axis=0), np.nanmean(tensor, axis=0), tensor.sum()
    for result in means:
        assert len(set(WORLD.allgather(result.local.tobytes()))) == 1
        close(result, result.to_numpy())


def test_what_one_rank_sees_all_raise(line):
    whole = np.ones((2 * SIZE, 3))
    whole[-1] = np.nan
    tensor = mc.distribute(whole, Layout(["x", U], line))
    for _ in range(2):
        with agree_raises(ValueError, "All-NaN slice encountered"):
            np.nanargmax(tensor, axis=1)
    assert float(np.nansum(tensor)) == 3 * (2 * SIZE - 1)


# -- shapes and indices -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", sampled(range(12), 2))
@pytest.mark.filterwarnings("ignore")  # what NumPy has to say about NaN and bool, in sets
@pytest.mark.parametrize(
    "program",
    [
        *(indexing.slices, indexing.assignments, indexing.overlaps, indexing.masks, indexing.arrays),
        migrations,
    ],
)
def test_indexing(world, grid, program, seed):
    line = mc.create_mesh([("x", SIZE)], comm=world)
    for mesh in (line, grid):
        program(Random(seed), mesh)
    line.close()


@pytest.mark.parametrize("order", list(permutations(range(3))))
def test_a_transpose_that_relays_in_one_copy(line, order):
    def layouts(n):
        uneven = mc.Cuts("x", (0, *(n for _ in range(SIZE))))
        return [Layout(axes, line) for axes in (["x", U, U], [U, U, "x"], [U, mc.Cyclic("x", 2), U], [U, uneven, U])]

    whole = np.arange(4 * 7 * 5, dtype="i4").reshape(4, 7, 5)
    wanted = whole.transpose(order)
    for source in [*layouts(7), Layout.replicated(line, 3)]:
        t = mc.distribute(whole, source)
        for target in [*layouts(wanted.shape[1]), Layout.replicated(line, 3)]:
            for _ in range(2):  # the second time it is known
                result = mc.transpose(t, order, target)
                assert result.layout == target
                check(result, wanted)


# -- sorts ------------------------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("dtype", ["f8", "i8", "c16", "f2"])
@pytest.mark.parametrize("few", [False, True])
def test_sorts_of_long_tensors(grid, dtype, few):
    """Messages that MPI does not send at once."""
    n, names = 300_000, tuple(grid.dim_names)
    a = values(Random(SIZE), n, dtype, few)
    for spec in (names, mc.Cuts(names, sizes=[n - SIZE + 1] + [1] * (SIZE - 1)), names[:1]):
        t = mc.distribute(a, Layout([spec], grid))
        check(np.sort(t), np.sort(a, kind="stable"))  # by default NumPy 2.4.6 sorts float16 wrongly
        check(np.argsort(t, kind="stable"), np.argsort(a, kind="stable"))
        t.sort(kind="stable")
        check(t, np.sort(a, kind="stable"), same_numbers)


def test_a_sort_of_a_wrong_block(grid):
    layout = Layout([tuple(grid.dim_names)], grid)
    wrong = mc.DTensor(np.zeros(3 + (RANK == SIZE - 1)), layout, (3 * SIZE,), np.dtype(float))
    if SIZE > 1:
        with agree_raises(ShapeError, "the block is"):
            np.sort(wrong)
    check(np.sort(mc.distribute(np.arange(9.0), layout)), np.arange(9.0))
    if SIZE > 1:
        with agree_mismatch(grid):
            (np.sort if RANK else np.argsort)(mc.distribute(np.arange(9.0), layout))


# -- transforms -------------------------------------------------------------------------------------------------------

KINDS = ("fftn", "ifftn", "rfftn", "irfftn", "hfftn", "ihfftn", "dctn", "dstn")


def fields(shape, kind, seed):
    rng = np.random.default_rng(seed)
    a = rng.standard_normal(shape)
    return a if kind in ("rfftn", "ihfftn", "dctn", "dstn") else a + 1j * rng.standard_normal(shape)


def transformed(found, expected):
    whole = found.to_numpy()
    assert (whole.dtype, whole.shape) == (expected.dtype, expected.shape)
    assert np.abs(whole - expected).max(initial=0) <= 1e-13 * max(1, np.abs(expected).max(initial=0))


@pytest.mark.parametrize("seed", sampled(range(40), 4))
def test_transforms(grid, seed):
    random = Random(seed)
    for number in range(5):
        shape, kind = tuple(max(2, n) for n in any_shape(random, 1)), random.choice(KINDS)
        a = fields(shape, kind, (seed, number))
        t = mc.distribute(a, layout_of(random, grid, shape))
        axes = tuple(random.sample(range(len(shape)), random.randint(1, len(shape))))
        for given in ({}, {"layout": "same"}):
            transformed(getattr(mc.fft, kind)(t, axes=axes, **given), getattr(scipy.fft, kind)(a, axes=axes))


@pytest.mark.parametrize(("n", "kind"), [(60_000, "fft"), (2**16, "ifft"), (60_000, "rfft"), (99_991, "fft")])
def test_transforms_of_one_long_axis(grid, n, kind):
    a, line = fields(n, f"{kind}n", SIZE), Layout([tuple(grid.dim_names)], grid)
    t, expected = mc.distribute(a, line), getattr(scipy.fft, kind)(a)
    transformed(getattr(mc.fft, kind)(t, layout=line), expected)
    transformed(getattr(mc.fft, kind)(t), expected)


def test_a_plan_of_transforms_and_back_on_large_blocks(grid):
    """Blocks beyond the sizes at which messages are sent at once."""
    shape, names = (64, 48, 80), tuple(grid.dim_names)
    source = Layout([names, (), ()] if len(names) == 1 else [names[0], names[1:], ()], grid)
    plan = mc.fft.plan(shape, "f8", source, machine=mc.machine_of(grid))
    a = fields(shape, "rfftn", 1)
    tensors = [mc.distribute(a, source), mc.distribute(2 * a, source)]
    for _ in range(3):
        spectra = plan.forward(tensors)
        transformed(spectra[1], scipy.fft.rfftn(2 * a))
        tensors = plan.backward(spectra, out=tensors)
    transformed(tensors[0], a)


def test_errors_of_transforms_are_raised_on_all_ranks(grid):
    t = mc.ones((8, 8), "c16", Layout([tuple(grid.dim_names), ()], grid))
    with agree_raises(ShapeError, "invalid norm"):
        mc.fft.fft(t, axis=0, norm="both")
    transformed(mc.fft.fft(t, axis=0), scipy.fft.fft(np.ones((8, 8), complex), axis=0))
