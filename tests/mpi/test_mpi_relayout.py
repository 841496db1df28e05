"""Relayouts under mpiexec, on meshes of every shape that the number of ranks allows."""

import gc
import json
import os
import re
from itertools import product

import numpy as np
import pytest
from mpi4py import MPI

import meshcomm as mc
from meshcomm import CollectiveMismatch, DTypeError, Layout, LayoutError, MeshcommError, MeshError, ShapeError
from meshcomm.core._tuning import COMPARE_EVERY
from meshcomm.core.arrays import compile
from meshcomm.core.memory.pools import own_pool
from meshcomm.core.ranks.meshes import location_in
from meshcomm.core.transport import choose
from meshcomm.core.transport.packed import Packed
from support.lockstep import over_mpi
from support.paths import DATA
from support.random_cases import shapes_of
from support.reference import blocks_of, numbered, random_bits, same_bits, single_name_layouts, tuple_layouts
from support.sampling import sampled
from support.strategies import DTYPES, dtype_id
from support.tensors import mesh_of
from support.verdicts import agree_mismatch, agree_raises

WORLD = MPI.COMM_WORLD
RANK, SIZE = WORLD.rank, WORLD.size
U = "unsharded"
GOLDEN = json.loads((DATA / "relayout.json").read_text())["cases"]


def check(array, source, target):
    """Relayout *array* on this rank and compare with its slice."""
    tensor = mc.distribute(array, source)
    moved = mc.relayout(tensor, target)
    device = target.mesh.rank
    if device is None:
        assert moved.local is None
    else:
        assert same_bits(moved.local, blocks_of(array, target)[device]), f"{source} -> {target}"
        assert not np.shares_memory(moved.local, tensor.local)
    return moved


def test_recorded_relayouts_on_meshes_that_fit():
    cases = [case for case in GOLDEN if np.prod([size for _, size in case["mesh_dims"]]) <= SIZE]
    for case in cases:
        mesh = mc.create_mesh([tuple(dim) for dim in case["mesh_dims"]])
        array = numbered(case["global_shape"], case["dtype"])
        moved = check(array, Layout(case["src"], mesh), Layout(case["dst"], mesh))
        if mesh.rank is not None:
            assert moved.local.tolist() == case["dst_components"][mesh.rank]
    assert SIZE < 6 or cases


@pytest.mark.parametrize("sizes", shapes_of(SIZE), ids=str)
def test_pairs_of_layouts(sizes):
    mesh = mesh_of(*sizes)
    for shape in [(), (7,), (6, 4), (5, 3), (1, 2)]:
        layouts = list(single_name_layouts(mesh, len(shape)))
        pairs = list(product(layouts, layouts))
        for source, target in sampled(pairs[:: 1 + len(pairs) // 50], 12):
            check(numbered(shape, "i4"), source, target)
    layouts = list(tuple_layouts(mesh, 2))
    for i, source in enumerate(layouts[:40]):
        check(numbered((8, 7), "i2"), source, layouts[(7 * i + 3) % len(layouts)])
    mesh.close()


@pytest.mark.parametrize("sizes", shapes_of(SIZE), ids=str)
def test_rounds_where_no_rank_waits_for_a_processor(sizes, monkeypatch):
    """As large blocks are moved on a node with a processor for each rank, to new blocks and between users' arrays."""
    monkeypatch.setattr(choose, "ROUND_BYTES", 64)
    mesh = mesh_of(*sizes)
    location = location_in(mesh)
    mc.relayout(mc.zeros((3,), "f8", Layout.replicated(mesh, 1)), Layout(["x"], mesh))
    processors = set().union(*WORLD.allgather(os.sched_getaffinity(0)))
    assert location.rank_set.oversubscribed == (len(processors) < SIZE)
    monkeypatch.setattr(location.rank_set, "oversubscribed", False)
    mc.drop_plans(mesh)
    array = numbered((17, 13), "i4")

    def rounds_of(source, target):
        plan = mc.plan_relayout(array.shape, "i4", source, target, machine=location.rank_set.machine)
        exchanges = [over_mpi(each) for each, _ in compile.operations(plan, location)]
        return [each.rounds for each in exchanges if type(each) is Packed]

    pairs = list(product(single_name_layouts(mesh, 2), repeat=2))
    packed = [pair for pair in pairs if rounds_of(*pair)]
    assert packed or max(sizes) <= 2  # two ranks exchange two messages
    for source, target in [*sampled(packed, 6), *sampled(pairs[:: 1 + len(pairs) // 15], 4)]:
        moved = check(array, source, target)
        assert min(rounds_of(source, target), default=2) > 1
        mine = mc.from_local(np.array(blocks_of(array, source)[mesh.rank]), source)
        out = mc.from_local(np.zeros_like(moved.local), target)
        assert same_bits(mc.relayout(mine, target, out=out).local, moved.local)
    mc.drop_plans(mesh)


@pytest.mark.parametrize("bound", [None, 64])
def test_between_arrays_of_the_user_again_and_again(bound):
    """The first time by messages, then through shared memory, if there is some within the scratch limit."""
    mesh = mesh_of(SIZE)
    shape = (5 * SIZE, 7)
    rows, columns = Layout(["x", U], mesh), Layout([U, "x"], mesh)
    block, out = (np.empty(layout.block_shape(shape, mesh.rank)) for layout in (rows, columns))
    mine, theirs = mc.from_local(block, rows), mc.from_local(out, columns)
    whole = Layout([U, U], mesh)
    gathered = mc.from_local(np.empty(shape), whole)
    for turn in range(4):
        array = numbered(shape, "f8") + 1000 * turn
        block[...] = blocks_of(array, rows)[RANK]
        out[...] = 0
        mc.relayout(mine, columns, out=theirs, max_scratch_bytes=bound)
        assert same_bits(out, blocks_of(array, columns)[RANK])
        mc.relayout(mine, whole, out=gathered)
        assert same_bits(gathered.local, array)
        assert same_bits(mc.relayout(mine, columns).local, out), "into a block that is shared"
        block[...] = -1
    mesh.close()


@pytest.mark.parametrize("dtype", DTYPES, ids=dtype_id)
def test_every_dtype(dtype):
    raw = random_bits((7, 2 * SIZE), f"V{dtype.itemsize}" if dtype.names else dtype).view(f"V{dtype.itemsize}")
    mesh = mesh_of(SIZE)
    rows, columns, whole = (Layout(specs, mesh) for specs in (["x", U], [U, "x"], [U, U]))
    for source, target in [(rows, columns), (columns, rows), (rows, whole), (whole, columns)]:
        moved = mc.relayout(mc.distribute(raw.view(dtype), source), target)
        assert moved.local.dtype == dtype
        assert same_bits(moved.local.view(raw.dtype), blocks_of(raw, target)[RANK])


def test_large_blocks():
    mesh = mesh_of(SIZE)
    array = numbered((401, 1003), "f8")
    rows, columns = Layout(["x", U], mesh), Layout([U, "x"], mesh)
    for source, target in [(rows, columns), (columns, rows), (rows, Layout([U, U], mesh))]:
        check(array, source, target)


def test_many_relayouts_in_a_row_with_one_plan():
    mesh = mesh_of(SIZE)
    rows, columns = Layout(["x", U], mesh), Layout([U, "x"], mesh)
    tensor = mc.distribute(numbered((9, 10)), rows)
    for i in range(200):
        tensor.local[...] += 1
        tensor = mc.relayout(tensor, columns if i % 2 == 0 else rows)
    assert same_bits(tensor.to_numpy(), numbered((9, 10)) + 200)


def test_a_rank_that_asks_for_another_layout():
    mesh = mesh_of(SIZE)
    tensor = mc.distribute(numbered((4, 4)), Layout(["x", U], mesh))
    target = Layout([U, "x"] if RANK else [U, U], mesh)
    if SIZE == 1:
        mc.relayout(tensor, target)
    else:
        with agree_mismatch(mesh, "rank 0: relayout"):
            mc.relayout(tensor, target)
    mesh = mesh_of(SIZE)
    check(numbered((5, 4)), Layout(["x", U], mesh), Layout([U, "x"], mesh))


def test_a_rank_that_asks_for_another_bound():
    for batch in (False, True) if SIZE > 1 else ():
        mesh = mesh_of(SIZE)
        tensor = mc.distribute(numbered((40, 40)), Layout(["x", U], mesh))
        with agree_mismatch(mesh, "rank 0: relayout.* within 512 bytes of scratch"):
            target = Layout([U, "x"], mesh)
            mc.relayout([tensor] if batch else tensor, target, max_scratch_bytes=None if RANK else 512)
    mesh = mesh_of(SIZE)
    check(numbered((5, 4)), Layout(["x", U], mesh), Layout([U, "x"], mesh))


def test_an_out_that_is_wrong_on_one_rank():
    mesh = mesh_of(SIZE)
    rows, columns = Layout(["x", U], mesh), Layout([U, "x"], mesh)
    tensor = mc.distribute(numbered((8, 6), "f8"), rows)
    last = RANK == SIZE - 1
    for shape, dtype, layout, error in [
        ((8, 6), "f4" if last else "f8", columns, DTypeError),
        ((6, 8) if last else (8, 6), "f8", columns, ShapeError),
        ((8, 6), "f8", rows if last else columns, LayoutError),
    ]:
        out = mc.empty(shape, dtype, layout)
        for call in (
            lambda out=out: mc.relayout(tensor, columns, out=out),
            lambda out=out: mc.relayout([tensor], [columns], out=[out]),
            lambda out=out: mc.start_relayout(tensor, columns, out=out),
            lambda out=out: mc.plan_relayout((8, 6), "f8", rows, columns).execute(tensor, out=out),
        ):
            with agree_raises(error, "out "):
                call()
    out = mc.empty((8, 6), "f8", columns)
    assert same_bits(mc.relayout(tensor, columns, out=out).to_numpy(), numbered((8, 6), "f8"))


def test_the_last_rank_wraps_its_blocks_anew_in_each_turn():
    mesh = mesh_of(SIZE)
    rows, columns = Layout(["x", U], mesh), Layout([U, "x"], mesh)
    array = numbered((8, 6), "f8")
    tensor, out = mc.distribute(array, rows), mc.empty((8, 6), "f8", columns)
    for _ in range(COMPARE_EVERY + 1):
        if RANK == SIZE - 1:
            tensor = mc.from_local(tensor.local, rows, global_shape=(8, 6))
            out = mc.from_local(out.local, columns, global_shape=(8, 6))
        for call in (
            lambda t, out: mc.relayout(t, columns, out=out),
            lambda t, out: mc.relayout([t], [columns], out=[out]),
            lambda t, out: mc.start_relayout(t, columns, out=out).wait(),
        ):
            out.local[...] = 0
            call(tensor, out)
            assert same_bits(out.local, array[columns.block_slices((8, 6), mesh.rank)])


@pytest.mark.skipif(SIZE == 1, reason="one rank has no others")
@pytest.mark.parametrize(
    "call",
    [
        lambda t, to: mc.relayout(t, to),
        lambda t, to: mc.relayout([t, t], to),
        lambda t, to: mc.start_relayout(t, to).wait(),
        lambda t, to: t.to_numpy(),
    ],
    ids=["relayout", "several", "start_relayout", "to_numpy"],
)
@pytest.mark.parametrize("columns", [2 * SIZE, 1000 * SIZE], ids=["small", "large"])  # something for every rank
def test_one_block_that_does_not_fit_its_tensor_no_rank_waits(call, columns):
    """Over MPI and in shared memory: the rank that knows raises that, now and later; the others find a difference."""
    mesh = mesh_of(SIZE)
    array = numbered((4 * SIZE, columns), "f8")
    layout, target = Layout(["x", U], mesh), Layout([U, "x"], mesh)
    block = np.array(array[layout.block_slices(array.shape, RANK)])
    tensor = mc.from_local(block, layout, global_shape=array.shape)
    call(tensor, target)
    if RANK == SIZE - 1:
        block.resize((1, 1), refcheck=False)
    with pytest.raises(ShapeError if RANK == SIZE - 1 else CollectiveMismatch) as caught:
        call(tensor, target)
    with pytest.raises(MeshError, match=re.escape(f"({type(caught.value).__name__}: {caught.value})")):
        mc.barrier(mesh)
    mesh.close()


@pytest.mark.skipif(SIZE == 1, reason="one rank has no others")
@pytest.mark.skipif(os.environ.get("MESHCOMM_SHARED_MEMORY") == "0", reason="over MPI a job may end instead")
def test_memory_comes_back_when_all_ranks_have_closed_a_mesh_on_which_calls_differed():
    def fail():
        mesh = mesh_of(SIZE)
        layout, target = Layout(["x", U], mesh), Layout([U, "x"], mesh)
        tensor = mc.zeros((40 * SIZE, 50 * SIZE), "f8", layout)
        call = [lambda: mc.relayout(tensor, target), lambda: mc.relayout(tensor, Layout([U, U], mesh))]
        for each in call:
            each()
        with pytest.raises(MeshcommError):
            call[RANK == 0]()
        mesh.close()

    used = []
    for _ in range(4):
        fail()
        gc.collect()
        used.append(own_pool().used)
    assert used == used[:1] * 4


@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize("what", ["resized", "too small", "an out that is resized"])
def test_blocks_that_do_not_fit_their_tensors(what, known):
    """MPI would read or write beyond them, also where it takes bytes straight from a block."""
    mesh = mesh_of(SIZE)
    shape, array = (3 * SIZE + 1, 40), numbered((3 * SIZE + 1, 40), "f8")
    rows, columns, whole = (Layout(specs, mesh) for specs in (["x", U], [U, "x"], [U, U]))
    turned = Layout(["x", U], mesh_of(SIZE, devices=[*range(1, SIZE), 0]))
    targets = [rows, columns, whole, turned]

    def wrong(layout):
        block = np.array(array[layout.block_slices(shape, layout.mesh.rank)])
        tensor = mc.from_local(block, layout, global_shape=shape)
        if what == "too small":
            return mc.DTensor(block[:1, :1].copy(), layout, shape, block.dtype)
        block.resize((1, 1), refcheck=False)
        return tensor

    tensor = mc.distribute(array, rows)
    for target in targets:
        plan = mc.plan_relayout(shape, "f8", rows, target)
        calls = [
            lambda t, out, to=target: mc.relayout(t, to, out=out),
            lambda t, out, to=target: mc.relayout([t, t], to, out=None if out is None else [out, None]),
            lambda t, out, to=target: mc.start_relayout(t, to, out=out).wait(),
            lambda t, out, plan=plan: plan.execute(t, out),
        ]
        for call in calls:
            if known:
                call(tensor, None)
                call(tensor, mc.zeros(shape, "f8", target))
            with agree_raises(ShapeError, "bytes, but by shape, dtype and layout of its tensor it has"):
                call(*((tensor, wrong(target)) if "out" in what else (wrong(rows), None)))
        assert same_bits(mc.relayout(tensor, target).to_numpy(), array), "the mesh stays usable"
    if "out" not in what:
        for call in (lambda: wrong(rows).to_numpy(), lambda: wrong(rows).to_numpy(root=0)):
            with agree_raises(ShapeError, "block"):
                call()


def test_a_started_relayout_of_others_into_their_tensor():
    """Ranks outside of the mesh may call it, too."""
    mesh = mesh_of(1, devices=[0])
    layout = Layout(["x"], mesh)
    out = mc.empty((4,), "i8", layout)
    assert mc.start_relayout(mc.full((4,), 7, "i8", layout), layout, out=out).wait() is out
    assert (out.local is None) == (RANK > 0)
    assert RANK or out.local.tolist() == [7] * 4


def test_a_closed_mesh_is_refused_on_all_ranks():
    mesh = mesh_of(SIZE)
    tensor = mc.distribute(numbered((4, 4)), Layout(["x", U], mesh))
    mesh.close()
    with agree_raises(MeshError, "is closed"):
        mc.relayout(tensor, Layout([U, "x"], mesh))
    again = mesh_of(SIZE)
    moved = mc.relayout(mc.distribute(numbered((4, 4)), Layout(["x", U], again)), Layout([U, "x"], again))
    assert same_bits(moved.to_numpy(), numbered((4, 4)))
