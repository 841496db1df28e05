"""DTensor under mpiexec: constructors, root, memory of any order, and errors on all ranks."""

import pickle
from contextlib import contextmanager

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mpi4py import MPI

import meshcomm as mc
from meshcomm import DTypeError, Layout, LayoutError, MeshError, ShapeError
from support.reference import blocks_of, numbered, random_bits, same_bits
from support.sampling import examples
from support.strategies import DTYPES, relayouts, strided
from support.verdicts import agree_mismatch, agree_raises, agreed

RANK, SIZE = MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size
U = "unsharded"


def line():
    return mc.create_mesh([("x", SIZE)])


def usable(mesh):
    array = numbered((7, 5))
    rows, columns = Layout([mesh.dim_names[0], U], mesh), Layout([U, mesh.dim_names[0]], mesh)
    return same_bits(mc.relayout(mc.distribute(array, rows), columns).to_numpy(), array)


@settings(max_examples=examples(100))
@given(relayouts(sizes=[SIZE], max_rank=4), st.sampled_from(["i2", "c16", "V5"]), st.integers(0, SIZE - 1), st.data())
@agreed
def test_every_constructor(relayout, dtype, root, data):
    shape, layout, _ = relayout
    mesh = mc.create_mesh(list(layout.mesh.dims))
    layout = Layout(layout.sharding_specs, mesh)
    array = random_bits(shape, dtype)
    mine = blocks_of(array, layout)[RANK]
    given_array = data.draw(strided(array))
    for tensor in (
        mc.distribute(given_array, layout),
        mc.distribute(given_array if root == RANK else None, layout, root=root),
        mc.from_local(data.draw(strided(mine)), layout),
        mc.from_local(mine.copy(), layout, shape),
        mc.from_callback(shape, dtype, layout, lambda slices: array[(..., *slices)]),
    ):
        assert same_bits(tensor.local, mine)
        assert (tensor.shape, tensor.dtype, tensor.layout) == (shape, array.dtype, layout)
    assert same_bits(tensor.to_numpy(), array)
    whole = tensor.to_numpy(root=root)
    assert (whole is None) == (root != RANK)
    assert whole is None or same_bits(whole, array)


@pytest.fixture
def no_pickles(monkeypatch):
    """A context in which pickle, and that of mpi4py, raise an error."""

    def refuse(*args, **kwargs):
        raise AssertionError("something is pickled")

    @contextmanager
    def context():
        with monkeypatch.context() as patch:
            for name in ("dumps", "loads", "dump", "load", "Pickler", "Unpickler"):
                patch.setattr(pickle, name, refuse)
            MPI.pickle.__init__(refuse, refuse)
            try:
                yield
            finally:
                MPI.pickle.__init__()  # as it was at first

    return context


def test_nothing_is_pickled(no_pickles):
    with no_pickles():
        mesh = line()
        rows = Layout(["x"], mesh)
        for dtype in DTYPES:
            array = random_bits((7,), dtype) if RANK == SIZE - 1 else None
            tensor = mc.relayout(mc.distribute(array, rows, root=SIZE - 1), Layout([U], mesh))
            assert tensor.dtype == dtype
        with pytest.raises(ShapeError):
            mc.distribute(None, rows, root=0)
        rules = mc.LayoutMap(mesh)
        rules[".*kernel"] = rows
        tree = rules.distribute({"kernel": np.arange(7), "deep": {"bias": 1.0}} if RANK == 0 else None, root=0)
        assert (tree["kernel"].shape, tree["deep"]["bias"].shape) == ((7,), ())
        with pytest.raises(LayoutError):
            rules.distribute({"kernel": np.eye(2)} if RANK == 0 else None, root=0)
        assert mc.from_local(np.zeros(2), rows).shape == (2 * SIZE,)
        assert sum(tree["kernel"].to_numpy()) == 21
        mc.barrier(mesh)
        mesh.close()
        with pytest.raises(AssertionError, match="something is pickled"):
            MPI.COMM_SELF.bcast(object())


@pytest.mark.parametrize("dims", [1, 2])
def test_root_sends_a_large_array(dims):
    mesh = line()
    array = numbered((1001, 301)) if RANK == SIZE - 1 else None
    specs = ["x", U] if dims == 1 else [U, "x"]
    tensor = mc.distribute(array, Layout(specs, mesh), root=SIZE - 1)
    assert same_bits(tensor.local, blocks_of(numbered((1001, 301)), tensor.layout)[RANK])
    whole = tensor.to_numpy(root=0)
    assert RANK or same_bits(whole, numbered((1001, 301)))


def test_read_only_blocks_are_sent_as_they_are():
    mesh = line()
    rows, columns = Layout(["x", U], mesh), Layout([U, "x"], mesh)
    array = numbered((2 * SIZE, 3 * SIZE))
    array.flags.writeable = False
    for source, target in [(rows, columns), (columns, rows), (rows, Layout([U, U], mesh))]:
        block = blocks_of(array, source)[RANK]
        block.flags.writeable = False
        moved = mc.relayout(mc.from_local(block, source), target)
        assert same_bits(moved.local, blocks_of(array, target)[RANK])
        assert moved.local.flags.writeable
    assert same_bits(mc.all_gather(array, None, 0)[: 2 * SIZE], array)
    assert same_bits(mc.broadcast(array, None), array)
    assert same_bits(mc.all_reduce(array, None, "max"), array)
    assert same_bits(mc.collective_permute(array, [(r, r) for r in range(SIZE)]), array)


def test_blocks_that_do_not_fit_are_refused_on_all_ranks():
    mesh = line()
    layout = Layout(["x"], mesh)
    assert mc.from_local(np.zeros(2 if RANK == 0 else 1), layout).shape == (SIZE + 1,)
    if SIZE > 1:
        with agree_raises(ShapeError, "of which device"):
            mc.from_local(np.zeros(1 + 2 * (RANK == SIZE - 1)), layout)
    with agree_raises(LayoutError, "axes"):
        mc.from_local(np.zeros((2, 2) if RANK == SIZE - 1 else 2), layout)
    with agree_raises(DTypeError, "Python objects"):
        mc.from_local(np.array([None]) if RANK == SIZE - 1 else np.zeros(2), layout)
    assert usable(mesh)
    if SIZE > 1:
        with agree_mismatch(mesh, "from_local"):
            mc.from_local(np.zeros(2, "f4" if RANK else "f8"), layout)


def test_errors_of_root_are_raised_on_all_ranks():
    mesh = line()
    rows = Layout(["x", U], mesh)
    for array, error in [(None, ShapeError), (np.zeros(3), LayoutError), (np.zeros((2, 2), "O"), DTypeError)]:
        with agree_raises(error):
            mc.distribute(array if RANK == SIZE - 1 else None, rows, root=SIZE - 1)
        assert usable(mesh)
    with agree_raises(MeshError, "root"):
        mc.distribute(np.zeros((2, 2)), rows, root=SIZE)
    assert usable(mesh)
    if SIZE > 1:
        with agree_mismatch(mesh, "from device"):
            mc.distribute(np.zeros((2, 2)), rows, root=min(RANK, 1))


def test_one_rank_may_print_alone():
    tensor = mc.zeros((5, 5), "f4", Layout(["x", U], line()))
    if RANK == 0:
        assert "DTensor of (5, 5) float32" in repr(tensor)
        assert tensor.nbytes == 100
        print(mc.plan_relayout(tensor.shape, tensor.dtype, tensor.layout, Layout([U, U], tensor.mesh)))
    assert usable(tensor.mesh)
