"""ScaLAPACK under mpiexec: results against NumPy, and relayouts against its own redistribution, bit for bit."""

import re

import numpy as np
import pytest
from mpi4py import MPI

import meshcomm as mc
import meshcomm.linalg.scalapack as scalapack
from meshcomm import DTypeError, LayoutError, MeshError, ShapeError
from meshcomm.blocks.session import in_session
from meshcomm.core.failures.watch import watch
from meshcomm.linalg.block_cyclic import cyclic_axes
from meshcomm.linalg.grids import grid_of, grid_of_all
from meshcomm.linalg.library import library
from support.paths import DOCS
from support.random_cases import shapes_of
from support.redistributions import redistributions
from support.reference import random_bits, same_bits
from support.sampling import sampled
from support.scalapack import layouts_on, planes, random, skip_without_scalapack
from support.verdicts import agree_mismatch, agree_raises

skip_without_scalapack()

WORLD = MPI.COMM_WORLD
RANK, SIZE = WORLD.rank, WORLD.size
U = mc.UNSHARDED
mesh = planes(sampled([shape for shape in shapes_of(SIZE) if len(shape) == 2], 3))
DTYPES = ("f4", "f8", "c8", "c16")
TOLERANCE = {"f4": 1e-4, "c8": 1e-4, "f8": 1e-12, "c16": 1e-12}


def positive(n, dtype):
    """A Hermitian matrix that is positive definite."""
    a = random((n, n), dtype).astype("c16")
    a = a @ a.conj().T + n * np.eye(n)
    return (a if np.dtype(dtype).kind == "c" else a.real).astype(dtype)


def check(tensor, expected, layout, tolerance):
    """Compare a tensor with an array, element by element in its blocks."""
    assert (tensor.layout, tensor.shape, tensor.dtype) == (layout, expected.shape, expected.dtype)
    if layout.mesh.rank is None:
        assert tensor.local is None
        return
    indices = [layout.global_indices(expected.shape, layout.mesh.rank, axis) for axis in range(2)]
    scale = max(1.0, abs(expected).max(initial=0))
    np.testing.assert_allclose(tensor.local, expected[np.ix_(*indices)], rtol=0, atol=tolerance * scale)


# -- Cholesky ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("lower", [True, False])
def test_cholesky(mesh, dtype, lower):
    for number, layout in enumerate(layouts_on(mesh)):
        n = (29, 1, 12, 7)[number % 4]
        a = positive(n, dtype)
        tensor = mc.distribute(a, layout)
        before = tensor.local.copy()
        factor = scalapack.cholesky(tensor, lower=lower, block=(4, 64)[number % 2])
        expected = np.linalg.cholesky(a)
        check(factor, expected if lower else expected.conj().T, layout, TOLERANCE[dtype])
        assert same_bits(tensor.local, before)
        assert not np.shares_memory(tensor.local, factor.local)


def test_cholesky_reads_only_the_triangle_of_the_factor(mesh):
    a = positive(23, "f8")
    for lower in (True, False):
        half = np.tril(a) if lower else np.triu(a)
        layout = layouts_on(mesh)[0]
        factor = scalapack.cholesky(mc.distribute(half, layout), lower=lower)
        expected = np.linalg.cholesky(a)
        check(factor, expected if lower else expected.T, layout, 1e-12)


def test_results_in_another_layout(mesh):
    first, *_, last = layouts_on(mesh)
    a = positive(17, "f8")
    tensor = mc.distribute(a, first)
    check(scalapack.cholesky(tensor, layout=last), np.linalg.cholesky(a), last, 1e-12)
    check(scalapack.matmul(tensor, tensor, layout=last), a @ a, last, 1e-12)
    other = mc.Layout([mc.Cuts("z", sizes=[17] + [0] * (SIZE - 1)), U], mc.create_mesh({"z": SIZE}))
    check(scalapack.cholesky(tensor, layout=other), np.linalg.cholesky(a), other, 1e-12)


@pytest.mark.parametrize("minor", [1, 9, 20])
def test_a_matrix_that_is_not_positive_definite(mesh, minor):
    a = positive(20, "f8")
    a[minor - 1, minor - 1] = -1
    for layout in layouts_on(mesh):
        with agree_raises(np.linalg.LinAlgError, f"leading minor of order {minor} "):
            scalapack.cholesky(mc.distribute(a, layout), block=3)
    again = positive(20, "f8")
    check(scalapack.cholesky(mc.distribute(again, layout)), np.linalg.cholesky(again), layout, 1e-12)


# -- products ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
def test_matmul(mesh, dtype):
    layouts = layouts_on(mesh)
    pairs = [(one, other) for one in layouts for other in layouts]
    for number, (one, other) in enumerate(sampled(pairs, 6)):
        m, k, n = [(13, 7, 10), (1, 30, 2), (6, 1, 9), (20, 21, 22)][number % 4]
        a, b = random((m, k), dtype), random((k, n), dtype, 1)
        product = scalapack.matmul(mc.distribute(a, one), mc.distribute(b, other), block=(3, 64)[number % 2])
        check(product, a @ b, one, TOLERANCE[dtype])


def test_empty_matrices(mesh):
    for layout in layouts_on(mesh):
        check(scalapack.cholesky(mc.zeros((0, 0), "f8", layout)), np.zeros((0, 0)), layout, 0)
        for m, k, n in [(0, 3, 4), (5, 0, 4), (5, 3, 0)]:
            a, b = (mc.ones(shape, "f8", layout) for shape in ((m, k), (k, n)))
            check(scalapack.matmul(a, b), np.zeros((m, n)), layout, 0)


def test_a_mesh_of_some_ranks():
    some = mc.create_mesh({"x": max(1, SIZE - 1)}, devices=list(range(max(1, SIZE - 1)))[::-1])
    layout = mc.Layout(["x", U], some)
    a = positive(19, "f8")
    tensor = mc.distribute(a, layout)
    check(scalapack.cholesky(tensor), np.linalg.cholesky(a), layout, 1e-12)
    check(scalapack.matmul(tensor, tensor, block=4), a @ a, layout, 1e-12)
    with agree_raises(ShapeError, "square"):
        scalapack.cholesky(mc.zeros((2, 3), "f8", layout))
    if some.rank is not None:
        some.close()


# -- what is wrong ----------------------------------------------------------------------------------------------------


def test_bad_operands_are_refused_on_all_ranks(mesh):
    rows = mc.Layout(["x", U], mesh)
    square = mc.ones((4, 4), "f8", rows)
    with agree_raises(ShapeError, "2 axes"):
        scalapack.cholesky(mc.ones((4,), "f8", mc.Layout(["x"], mesh)))
    with agree_raises(ShapeError, "square"):
        scalapack.cholesky(mc.ones((4, 3), "f8", rows))
    with agree_raises(ShapeError, r"\(4, 4\) and \(3, 4\)"):
        scalapack.matmul(square, mc.ones((3, 4), "f8", rows))
    for dtype in ("i8", "f2", ">f8"):
        with agree_raises(DTypeError, "float32, float64"):
            scalapack.cholesky(mc.ones((4, 4), dtype, rows))
    with agree_raises(DTypeError, "must be equal"):
        scalapack.matmul(square, mc.ones((4, 4), "f4", rows))
    for call in (lambda: scalapack.cholesky(square, block=0), lambda: scalapack.matmul(square, square, block=0)):
        with agree_raises(LayoutError, "block 0"):
            call()
    with agree_raises(LayoutError, "block 2.0 is a float"):
        scalapack.cholesky(square, block=2.0)
    with agree_raises(LayoutError, "for DTensors, not for ndarray"):
        scalapack.cholesky(np.eye(3))
    with agree_raises(LayoutError, "must be a Layout"):
        scalapack.cholesky(square, layout="x")
    if SIZE > 1:
        other = mc.Layout([mc.Cuts(("x", "y"), sizes=[5] + [0] * (SIZE - 1)), U], mesh)
        with agree_raises(ShapeError, "last boundary must be the length"):
            scalapack.cholesky(square, layout=other)
    check(scalapack.matmul(square, square), np.full((4, 4), 4.0), rows, 0)


def test_operands_stay_on_one_mesh(mesh):
    one, all_of_them = mc.create_mesh({"z": 1}), mc.create_mesh({"z": SIZE})
    a = mc.ones((4, 4), "f8", mc.Layout(["x", U], mesh))
    with agree_raises(MeshError, "must be on one mesh"):
        scalapack.matmul(a, mc.ones((4, 4), "f8", mc.Layout(["z", U], all_of_them)))
    if SIZE > 1:
        with agree_raises(MeshError, "stays on the ranks"):
            scalapack.cholesky(a, layout=mc.Layout(["z", U], one))


SEVERAL = pytest.mark.skipif(SIZE == 1, reason="one rank makes no different calls")


@SEVERAL
def test_different_calls_are_found_before_the_library_is_entered(mesh):
    a = mc.distribute(positive(8, "f8"), mc.Layout(["x", U], mesh))
    for _ in range(2):
        scalapack.cholesky(a)
        scalapack.matmul(a, a)
    with agree_mismatch(mesh, "scalapack.cholesky"):
        scalapack.matmul(a, a) if RANK == 0 else scalapack.cholesky(a)


@SEVERAL
def test_different_arguments_are_found_before_the_library_is_entered(mesh):
    a = mc.distribute(positive(8, "f8"), mc.Layout(["x", U], mesh))
    with agree_mismatch(mesh, "lower=False"):
        scalapack.cholesky(a, lower=RANK > 0)


def test_the_page_runs():
    program = "".join(re.findall(r"^```py\n(.*?)^```$", (DOCS / "linear-algebra.md").read_text(), re.M | re.S))
    exec(compile(program, "linear-algebra.md", "exec"), {})


# -- grids ------------------------------------------------------------------------------------------------------------


def test_grids_are_kept_and_freed_with_the_mesh():
    mesh = mc.create_mesh([("x", SIZE)])
    layouts = [mc.Layout([mc.Cyclic("x", 2), U], mesh), mc.Layout([mc.Cyclic("x", 3, offset=SIZE - 1), U], mesh)]
    here = in_session("grids", mesh, lambda here: here)
    mc.barrier(mesh)
    first, second = (grid_of(here, layout, library()) for layout in layouts)
    assert first is second
    assert grid_of(here, mc.Layout([U, mc.Cyclic("x", 2)], mesh), library()).context != first.context
    mesh.close()
    for _ in sampled(range(250), 3):  # all of them: more than MPI could make if they were kept
        mesh = mc.create_mesh([("x", SIZE)])
        grids = [mc.Layout(specs, mesh) for specs in ([mc.Cyclic("x", 2), U], [U, mc.Cyclic("x", 2)], ["x", U])]
        for layout in grids:
            scalapack.matmul(*[mc.ones((3, 3), "f8", layout)] * 2)
        mesh.close()


def test_the_watchdog_knows_that_a_rank_is_in_the_library(mesh, monkeypatch):
    rows, columns = layouts_on(mesh)[:2]
    called = []
    call = type(library()).call
    monkeypatch.setattr(
        type(library()),
        "call",
        lambda *given: called.append((watch.operation(), watch.is_in_file_io_or_library())) or call(*given),
    )
    tensor = mc.distribute(random((6, 6), "f8"), rows)
    scalapack.matmul(tensor, tensor)
    scalapack.gemr2d(tensor, columns)
    assert called == [("scalapack's pdgemm", True), ("scalapack's pdgemr2d", True)]
    assert not watch.in_library


def test_many_grids_on_one_mesh():
    """More than are kept: those that were used longest ago are freed."""
    dims = [(f"d{i}", SIZE if i == 0 else 1) for i in range(12)]
    mesh = mc.create_mesh(dims)
    for turn in range(2):
        for i in range(1, 12):
            layout = mc.Layout([mc.Cyclic((f"d{i}", "d0"), 2), U], mesh)
            a = positive(5 + turn, "f8")
            check(scalapack.cholesky(mc.distribute(a, layout)), np.linalg.cholesky(a), layout, 1e-12)
    mesh.close()


# -- redistribution ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
def test_gemr2d_and_relayout_agree(mesh, dtype):
    layouts = [layout for layout in layouts_on(mesh) if cyclic_axes(layout)]
    array = random_bits((31, 18), dtype)
    for source in layouts:
        tensor = mc.distribute(array, source)
        for target in sampled(layouts, 2):
            out = mc.zeros_like(mc.relayout(tensor, target))
            assert scalapack.gemr2d(tensor, target, out=out) is out
            for moved in (out, scalapack.gemr2d(tensor, target)):
                assert same_bits(moved.local, mc.relayout(tensor, target).local)
    with agree_raises(LayoutError, "out must have"):
        scalapack.gemr2d(tensor, target, out=mc.zeros((3, 3), dtype, target))
    if SIZE > 1:
        with agree_raises(LayoutError, "no replicas"):
            scalapack.gemr2d(tensor, mc.Layout([U, U], mesh))
        with agree_raises(LayoutError, "unequal lengths"):
            scalapack.gemr2d(tensor, mc.Layout([mc.Cuts(("x", "y"), sizes=[1] * (SIZE - 1) + [32 - SIZE]), U], mesh))


@pytest.mark.skipif(SIZE < 2, reason="needs two meshes")
def test_gemr2d_between_meshes():
    meshes = [mc.create_mesh({"x": len(ranks)}, devices=ranks) for ranks in (range(SIZE - 1), [SIZE - 1])]
    source, target = (mc.Layout([mc.Cyclic("x", 2), U], mesh) for mesh in meshes)
    tensor = mc.distribute(random_bits((9, 5), "f8"), source)
    for other in (target, source):
        moved, expected = scalapack.gemr2d(tensor, other), mc.relayout(tensor, other)
        assert (moved.local is None) == (other.mesh.rank is None)
        assert moved.local is None or same_bits(moved.local, expected.local)


FITTING = [(number, each) for number, each in enumerate(redistributions(), 1) if each.processes <= SIZE]


def layout_of(side, mesh):
    """The layout of a side. ScaLAPACK's columns lie one after the other: so this is the layout of the transpose."""
    (first_row, first_column), (rows, columns) = side.first, side.block
    return mc.Layout([mc.Cyclic("q", columns, first_column), mc.Cyclic("p", rows, first_row)], mesh)


def descriptor_of(side, context, block):
    """The descriptor of a side as the driver of the reference makes it, not as `Layout.descriptor` does."""
    leading = 1 if block is None else max(1, block.shape[1])
    return (1, context, *side.shape, *side.block, *side.first, leading)


def check_descriptor(found, expected, side):
    """All nine numbers agree; but where a single process has all of an axis, a layout calls it one block."""
    pairs = zip(side.block, side.grid, side.shape, strict=True)
    blocks = [length if size == 1 else block for block, size, length in pairs]
    assert found == (*expected[:4], *blocks, *expected[6:])


def redistributed(each, tensor, layout):
    """The block that the library's own pdgemr2d gives this rank."""
    here = in_session("grids", tensor.mesh, lambda here: here, layout.mesh)
    contexts = [grid_of(here, its, library()).context for its in (tensor.layout, layout)]
    device = layout.mesh.rank
    block = None if device is None else np.full(layout.block_shape(tensor.shape, device), -1.0)
    arguments = []
    for side, data, context in zip((each.source, each.target), (tensor.local, block), contexts, strict=True):
        numbers = descriptor_of(side, context, data)
        arguments += [np.zeros(1) if data is None else data, *side.begin, numbers]
    library().call("pdgemr2d", *each.shape, *arguments, grid_of_all(here, library()).context)
    return block


def test_all_redistributions_of_the_reference_are_of_whole_matrices():
    found = redistributions()
    assert len(found) == 90
    assert all(each.whole for each in found)
    assert max(each.processes for each in found) == 4
    assert len(FITTING) == 90 or SIZE < 4


@pytest.mark.skipif(SIZE < 3, reason="the redistributions of the reference need 3 or 4 ranks")
def test_redistributions_of_the_reference():
    """Each of them: what `relayout` gives is what pdgemr2d gives, bit for bit, and what the index definition says."""
    meshes = {}
    for number, each in FITTING if SIZE == 4 else sampled(FITTING, 8):
        sides = each.source, each.target
        for side in sides:
            if side.grid not in meshes:
                meshes[side.grid] = mc.create_mesh(list(zip("pq", side.grid, strict=True)))
        source, target = (layout_of(side, meshes[side.grid]) for side in sides)
        shape = each.shape[::-1]
        array = random_bits(shape, "f8", number)
        tensor = mc.distribute(array, source)
        moved = mc.relayout(tensor, target)
        if source.mesh.rank is not None or target.mesh.rank is not None:
            expected = redistributed(each, tensor, target)
            device = target.mesh.rank
            if device is not None:
                assert same_bits(moved.local, expected), f"redistribution {number}: {each}"
                indices = [target.global_indices(shape, device, axis) for axis in range(2)]
                assert same_bits(expected, array[np.ix_(*indices)]), f"redistribution {number}: {each}"
                check_descriptor(target.descriptor(shape, 7), descriptor_of(each.target, 7, expected), each.target)
    for mesh in meshes.values():
        if mesh.rank is not None:
            mesh.close()
