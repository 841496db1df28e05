"""Results in memory that the caller has, and plans that are executed again and again, on simulated ranks."""

import tracemalloc
import weakref

import numpy as np
import pytest

import meshcomm as mc
from meshcomm import DTypeError, Layout, LayoutError, ShapeError
from meshcomm.core import _tuning
from meshcomm.core.arrays import moving
from meshcomm.core.ranks import agreement
from meshcomm.core.ranks.meshes import location_in
from meshcomm.core.ranks.rank_sets import RankSet
from meshcomm.core.ranks.simulated_communicator import SimulatedCommunicator
from support.reference import blocks_of, numbered, on_ranks, random_bits, same_bits, simulated
from support.sampling import sampled
from support.strategies import PADDED
from support.tensors import is_right

U = "unsharded"
ARRAY = numbered((7, 6))


def grid():
    return mc.create_mesh([("x", 2), ("y", 2)])


def rows_and_columns(mesh):
    return Layout(["x", U], mesh), Layout([U, "x"], mesh)


def with_layouts(program, dims=(("x", 2),)):
    """Return *program* for a rank: it is given layouts of rows and columns on a mesh, too."""
    return lambda rank: program(rank, *rows_and_columns(mc.create_mesh(dims)))


# -- into a tensor ----------------------------------------------------------------------------------------------------


def test_all_that_takes_out():
    def program(rank):
        mesh = grid()
        rows, columns = rows_and_columns(mesh)
        tensor, like = mc.distribute(ARRAY, rows), mc.zeros((3, 3), "f4", columns)
        moved = mc.distribute(ARRAY, columns)
        calls = [
            lambda out: mc.relayout(tensor, columns, out=out),
            lambda out: mc.relayout_like(tensor, like, out=out),
            lambda out: mc.plan_relayout(ARRAY.shape, "i8", rows, columns).execute(tensor, out=out),
            lambda out: mc.relayout(ARRAY, columns, out=out),
            lambda out: mc.relayout([tensor], [columns], out=[out])[0],
            lambda out: mc.relayout({"a": tensor}, columns, out={"a": out})["a"],
            lambda out: mc.relayout((ARRAY,), (columns,), out=(out,))[0],
            lambda out: mc.start_relayout(tensor, columns, out=out).wait(),
            lambda out: mc.relayout(moved, Layout([U, mc.MATCH], mesh), out=out),
        ]
        for call in calls:
            out = mc.zeros(ARRAY.shape, "i8", columns)
            assert call(out) is out
            assert is_right(out, ARRAY, columns)
        return len(calls)

    assert simulated(4, program) == [9] * 4


@on_ranks(4)
def test_to_another_mesh():
    here, there = mc.create_mesh([("x", 2)]), mc.create_mesh([("x", 2)], devices=[2, 1])
    rows, columns = Layout(["x", U], here), Layout([U, "x"], there)
    tensor, out = mc.distribute(ARRAY, rows), mc.zeros(ARRAY.shape, "i8", columns)
    for _ in range(2):
        assert mc.relayout(tensor, columns, out=out) is out
    assert mc.plan_relayout(ARRAY.shape, "i8", rows, columns).execute(tensor, out) is out
    assert there.rank is None or is_right(out, ARRAY, columns)


def test_plain_arrays_keep_their_padding():
    array = random_bits((5,), PADDED)

    def program(rank):
        mesh = mc.create_mesh([("x", 2)])
        layout = Layout(["x"], mesh)
        out = mc.relayout(array, layout, out=mc.zeros((5,), PADDED, layout))
        return same_bits(out.local.view("V24"), blocks_of(array.view("V24"), layout)[rank])

    assert simulated(2, program) == [True] * 2


# -- what cannot be written to ----------------------------------------------------------------------------------------


def find_out_errors(mesh):
    rows, columns = rows_and_columns(mesh)
    tensor = mc.distribute(ARRAY, rows)
    yield LayoutError, "out must be a DTensor", tensor, columns, np.zeros((7, 3), "i8")
    yield ShapeError, r"out has shape \(6, 7\)", tensor, columns, mc.zeros((6, 7), "i8", columns)
    yield DTypeError, "out has dtype float64", tensor, columns, mc.zeros((7, 6), "f8", columns)
    yield LayoutError, "but the relayout goes to", tensor, columns, mc.zeros((7, 6), "i8", rows)
    other = mc.create_mesh([("x", 2), ("y", 2)], devices=[1, 0, 2, 3])
    yield LayoutError, "but the relayout goes to", tensor, columns, mc.zeros((7, 6), "i8", Layout([U, "x"], other))
    yield LayoutError, "shares memory", tensor, rows, tensor


@pytest.mark.parametrize("number", range(6))
@on_ranks(4)
def test_all_ranks_refuse_what_all_can_see(number):
    mesh = grid()
    error, text, tensor, layout, out = list(find_out_errors(mesh))[number]
    plan = mc.plan_relayout(ARRAY.shape, "i8", tensor.layout, layout)
    calls = [
        lambda: mc.relayout(tensor, layout, out=out),
        lambda: plan.execute(tensor, out=out),
        lambda: mc.start_relayout(tensor, layout, out=out),
    ]
    for call in calls * 2:
        with pytest.raises(error, match=text):
            call()
    with pytest.raises(error, match=text if out is not tensor else "none of the tensors that are read"):
        mc.relayout([tensor], [layout], out=[out])
    assert is_right(mc.relayout(tensor, layout), ARRAY, layout)


def test_ranks_outside_find_the_out_first():
    """Of two errors all ranks find the same one, those of the mesh and those outside."""

    def program(rank):
        mesh = mc.create_mesh([("x", 2)])
        tensor, columns = mc.distribute(ARRAY, Layout(["x", U], mesh)), Layout([U, "x"], mesh)
        out = mc.zeros((2, 2), "i8", columns)
        with pytest.raises(ShapeError, match="out has shape") as found:
            mc.relayout(tensor, columns, out=out, max_scratch_bytes=-1)
        return str(found.value)

    assert len(set(simulated(4, program))) == 1


def test_a_tensor_is_no_out_of_itself():
    """All ranks see that, also those whose block is empty, and those outside of the mesh."""

    def program(rank):
        mesh = mc.create_mesh([("x", 3)])
        rows = Layout(["x", U], mesh)
        tensor = mc.distribute(np.ones((2, 3)), rows)
        mc.relayout(tensor, rows)
        for _ in range(2):
            for call in into_out(tensor, rows, tensor):
                with pytest.raises(LayoutError, match=r"shares memory|none of the tensors that are read"):
                    call()
        return mc.relayout(tensor, rows).shape

    assert simulated(4, program) == [(2, 3)] * 4


@pytest.mark.parametrize("culprit", range(4))
@pytest.mark.parametrize("what", ["read-only", "overlapping"])
def test_all_ranks_refuse_what_one_can_see(culprit, what):
    def program(rank):
        mesh = grid()
        rows, columns = rows_and_columns(mesh)
        memory = np.zeros(100, "i8")
        mine = memory[1 : 1 + 24].reshape(4, 6)[: 4 if mesh.coords(rank)[0] == 0 else 3]
        tensor = mc.from_local(mine, rows, global_shape=(7, 6))
        start = 10 if what == "overlapping" and rank == culprit else 50
        out = mc.from_local(memory[start : start + 21].reshape(7, 3), columns, global_shape=(7, 6))
        out.local.flags.writeable = what != "read-only" or rank != culprit
        plan = mc.plan_relayout((7, 6), "i8", rows, columns)
        text = "out cannot be written to" if what == "read-only" else "shares memory"
        for call in [
            lambda: mc.relayout(tensor, columns, out=out),
            lambda: plan.execute(tensor, out),
            lambda: mc.relayout([tensor, tensor], columns, out=[mc.zeros((7, 6), "i8", columns), out]),
            lambda: mc.start_relayout(tensor, columns, out=out),
        ]:
            with pytest.raises(LayoutError, match=text):
                call()
        return mc.relayout(tensor, columns).shape

    assert simulated(4, program) == [(7, 6)] * 4


@on_ranks(2)
def test_a_read_only_result_of_a_plain_array():
    out = mc.zeros((4,), "i8", Layout(["x"], mc.create_mesh([("x", 2)])))
    out.local.flags.writeable = False
    with pytest.raises(LayoutError, match="read-only"):
        mc.relayout(np.arange(4), out.layout, out=out)


def test_results_in_one_memory_are_refused():
    def program(rank, rows, columns):
        a, b = mc.zeros((4, 4), "i8", rows), mc.ones((4, 4), "i8", rows)
        memory = np.zeros((4, 2), "i8")
        outs = [mc.from_local(memory, columns, global_shape=(4, 4)) for _ in range(2)]
        for alone in (False, True):  # each is free in a call of its own
            with pytest.raises(LayoutError, match="shares memory"):
                mc.relayout([a, b], columns, out=outs)
            if not alone:
                mc.relayout([a], columns, out=outs[:1])
                mc.relayout([b], columns, out=outs[1:])
        with pytest.raises(LayoutError, match="out may name no tensor twice"):
            mc.relayout([a, b], columns, out=[outs[0], outs[0]])
        with pytest.raises(LayoutError, match="none of the tensors that are read"):
            mc.relayout([a, b], [rows, rows], out=[b, a])

    simulated(2, with_layouts(program))


# -- calls that were made before --------------------------------------------------------------------------------------


def into_out(tensor, layout, out):
    """Every call that writes to an out."""
    plan = mc.plan_relayout(tensor.shape, tensor.dtype, tensor.layout, layout)
    return [
        lambda: mc.relayout(tensor, layout, out=out),
        lambda: plan.execute(tensor, out),
        lambda: mc.relayout([tensor], layout, out=[out]),
        lambda: mc.start_relayout(tensor, layout, out=out).wait(),
    ]


@pytest.mark.parametrize("culprits", sampled([[1], [0, 2]]))
@on_ranks(4)
def test_ranks_may_wrap_their_blocks_anew(culprits, rank):
    """What a rank makes for itself, Local and of the same memory, changes nothing for the others."""
    mesh = grid()
    rows, columns = rows_and_columns(mesh)
    tensor, out = mc.distribute(ARRAY, rows), mc.zeros(ARRAY.shape, "i8", columns)
    for turn in range(_tuning.COMPARE_EVERY // 2 + 9):  # of four calls
        if turn > 2 and rank in culprits:
            tensor = mc.from_local(tensor.local, rows, global_shape=ARRAY.shape)
            out = mc.from_local(out.local, columns, global_shape=ARRAY.shape)
        for call in into_out(tensor, columns, out):
            out.local[...] = 0
            call()
            assert is_right(out, ARRAY, columns)


@pytest.mark.parametrize("what", ["read-only", "overlapping", "of another shape"])
def test_all_ranks_may_find_an_out_wrong_in_a_known_call(what):
    """All raise the error, the mesh stays usable, and the out stays as it was."""

    def program(rank, rows, columns):
        mesh = rows.mesh
        tensor, wrong = mc.distribute(ARRAY, rows), mc.ones(ARRAY.shape, "i8", columns)
        if what == "overlapping":
            memory, lines = np.ones(45, "i8"), 4 - rank
            tensor = mc.from_local(memory[: 6 * lines].reshape(lines, 6), rows, ARRAY.shape)
            wrong = mc.from_local(memory[6 * lines - 1 :][:21].reshape(7, 3), columns, ARRAY.shape)
        elif what == "read-only":
            wrong.local.flags.writeable = False
        else:
            wrong = mc.ones((7, 5), "i8", columns)
        before = tensor.to_numpy()
        good = mc.zeros(ARRAY.shape, "i8", columns)
        for call in into_out(tensor, columns, good):
            call()
        for _ in range(3):
            for call in into_out(tensor, columns, wrong):
                with pytest.raises(mc.MeshcommError, match=r"read-only|shares memory|out has shape"):
                    call()
            assert (wrong.local == 1).all()
            mc.relayout(tensor, columns, out=good)
            assert is_right(good, before, columns)
        mc.barrier(mesh)

    simulated(2, with_layouts(program))


@pytest.mark.parametrize("several", [False, True])
def test_what_one_rank_alone_finds_wrong_in_a_known_call_is_found_by_all(several):
    """It raises its error, and the others find that its call differs from theirs."""

    def program(rank, rows, columns):
        tensor, out = mc.distribute(ARRAY, rows), mc.zeros(ARRAY.shape, "i8", columns)
        arguments = ([tensor], [columns]) if several else (tensor, columns)
        into = [out] if several else out
        mc.relayout(*arguments, out=into)
        out.local.flags.writeable = rank != 1
        error = (LayoutError, "read-only"), (mc.CollectiveMismatch, "different collective calls")
        with pytest.raises(error[rank != 1][0], match=error[rank != 1][1]):
            mc.relayout(*arguments, out=into)
        with pytest.raises(mc.MeshError, match="earlier call"):
            mc.relayout(tensor, rows)

    simulated(2, with_layouts(program))


def test_a_plain_array_among_tensors_with_a_wrong_out():
    """The ranks that the tensors move among hear of it."""

    def program(rank, rows, columns):
        tensor, out = mc.distribute(ARRAY, rows), mc.zeros(ARRAY.shape, "i8", columns)
        out.local.flags.writeable = rank != 1
        for _ in range(2):
            with pytest.raises(LayoutError, match="read-only"):
                mc.relayout([ARRAY, tensor], columns, out=[out, None])

    simulated(2, with_layouts(program))


def test_nothing_keeps_tensors_that_were_written_to():
    def program(rank, rows, columns):
        kept, gone = mc.zeros(ARRAY.shape, "i8", columns), []
        for _ in range(5):
            source, out = mc.distribute(ARRAY, rows), mc.zeros(ARRAY.shape, "i8", columns)
            for call in into_out(source, columns, out) + into_out(source, columns, kept):
                call()
            gone += [weakref.ref(source), weakref.ref(out)]
            del source, out, call
        return [each() for each in gone]

    assert simulated(2, with_layouts(program)) == [[None] * 10] * 2


# -- plans that are executed ------------------------------------------------------------------------------------------


def test_the_plan_given_is_the_one_that_runs():
    """Its rounds, which differ from what relayout would choose, are counted."""

    def program(rank):
        mesh = mc.create_mesh([("x", 2)])
        rows, columns = rows_and_columns(mesh)
        plan = mc.plan_relayout((8, 8), "i8", rows, columns, max_scratch_bytes=32)
        assert is_right(plan.execute(mc.distribute(numbered((8, 8)), rows)), numbered((8, 8)), columns)
        return plan.steps[0].rounds

    with mc.simulate(2) as world:
        rounds, _ = world.run(lambda: program(world.rank))
    assert rounds > 1
    assert world.messages == [rounds] * 2


@pytest.fixture
def counted(monkeypatch):
    """How often what a plan should not need was called."""
    counts = {}

    def count(owner, name):
        function = getattr(owner, name)

        def counting(*args, **kwargs):
            counts[name] = counts.get(name, 0) + 1
            return function(*args, **kwargs)

        monkeypatch.setattr(owner, name, counting)

    for name in ("plan_relayout", "prepare"):
        count(moving, name)
    for owner, name in [(agreement, "agree"), (RankSet, "remember"), (SimulatedCommunicator, "allreduce_max")]:
        count(owner, name)
    return counts


def test_executing_again_plans_and_agrees_on_nothing(counted):
    def program(rank):
        mesh = grid()
        rows, columns = rows_and_columns(mesh)
        tensor, out = mc.distribute(ARRAY, rows), mc.zeros(ARRAY.shape, "i8", columns)
        plan = mc.plan_relayout(ARRAY.shape, "i8", rows, columns)
        plan.execute(tensor, out)
        mc.relayout(tensor, columns, out=out)
        mc.barrier(mesh)
        counted.clear()
        for _ in range(_tuning.COMPARE_EVERY // 2 - 1):
            plan.execute(tensor, out)
            mc.relayout(tensor, columns, out=out)
        return dict(counted)

    assert simulated(4, program) == [{}] * 4


def test_an_error_of_one_rank_when_a_comparison_is_due_is_reported_as_such():
    """The others raise what that rank has found, with its name, not that calls differ."""

    def program(rank, rows, columns):
        mesh = rows.mesh
        tensor, out = mc.distribute(ARRAY, rows), mc.zeros(ARRAY.shape, "i8", columns)
        rank_set = location_in(mesh).rank_set
        mc.relayout(tensor, columns, out=out)
        while rank_set.noted < rank_set._compare_at - 1:
            mc.relayout(tensor, columns, out=out)
        out.local.flags.writeable = rank != 1
        with pytest.raises(LayoutError, match="read-only" + r" \(seen by rank 1\)" * (rank == 0)):
            mc.relayout(tensor, columns, out=out)
        mc.relayout(tensor, columns)

    simulated(2, with_layouts(program))


# -- loops allocate nothing -------------------------------------------------------------------------------------------


def loops(mesh):
    """Calls that should need no memory of their own once they were made."""
    rows, columns = rows_and_columns(mesh)
    shape = (512, 512)
    tensor, out = mc.ones(shape, "f8", rows), mc.zeros(shape, "f8", columns)
    gathered = mc.zeros(shape, "f8", Layout([U, U], mesh))
    plan = mc.plan_relayout(shape, "f8", rows, columns)
    small = [mc.ones((16, 16), "f8", rows) for _ in range(8)]
    outs = [mc.zeros((16, 16), "f8", columns) for _ in range(8)]
    return {
        "relayout": lambda: mc.relayout(tensor, columns, out=out),
        "there and back": lambda: mc.relayout(mc.relayout(tensor, columns, out=out), rows, out=tensor),
        "gather": lambda: mc.relayout(tensor, Layout([U, U], mesh), out=gathered),
        "bounded": lambda: mc.relayout(tensor, columns, out=out, max_scratch_bytes=2**14),
        "plan": lambda: plan.execute(tensor, out=out),
        "many": lambda: mc.relayout(small, columns, out=outs),
    }


@pytest.mark.parametrize("name", ["relayout", "there and back", "gather", "bounded", "plan", "many"])
def test_a_loop_allocates_nothing_after_its_first_turn(name):
    def program(rank):
        mesh = grid()
        loop = loops(mesh)[name]
        for _ in range(3):
            loop()
        mc.barrier(mesh)
        tracemalloc.reset_peak()
        before = tracemalloc.get_traced_memory()[0]
        for _ in range(20):
            loop()
        mc.barrier(mesh)
        return tracemalloc.get_traced_memory()[1] - before

    tracemalloc.start()
    try:
        growth = simulated(4, program)
    finally:
        tracemalloc.stop()
    assert max(growth) < 2**16, "a block has half a MiB"
