"""relayout and relayout_like on simulated ranks: recorded results of TensorFlow, and laws."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import meshcomm as mc
from meshcomm import Layout, LayoutError
from support.lockstep import lockstep
from support.paths import DATA
from support.reference import blocks_of, mesh_of, numbered, on_ranks, random_bits, same_bits, simulated
from support.sampling import examples, sampled
from support.strategies import DTYPES, dtype_id, relayouts

U = "unsharded"
GOLDEN = json.loads((DATA / "relayout.json").read_text())["cases"]


def golden_id(case):
    sizes = "x".join(str(size) for _, size in case["mesh_dims"])
    return f"{sizes}:{case['global_shape']}:{','.join(case['src'])}->{','.join(case['dst'])}"


def rebuilt(layout, mesh):
    """The same layout on a mesh of the world that asks."""
    return Layout(layout.sharding_specs, mesh)


def relaid(rank, array, source, target):
    """Distribute *array* and relayout it, on this rank's own mesh; returns the tensors before and after."""
    mesh = mc.create_mesh([(d.name, d.size) for d in source.mesh.dims])
    before = mc.distribute(array, rebuilt(source, mesh))
    return before, mc.relayout(before, rebuilt(target, mesh))


# -- recorded ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", GOLDEN, ids=golden_id)
def test_recorded_relayouts(case):
    mesh = mesh_of(*(size for _, size in case["mesh_dims"]))
    assert [list(dim) for dim in mesh.dims] == case["mesh_dims"]
    source, target = Layout(case["src"], mesh), Layout(case["dst"], mesh)
    array = numbered(case["global_shape"], case["dtype"])
    before, after = ([np.array(c, case["dtype"]) for c in case[f"{side}_components"]] for side in ("src", "dst"))
    assert all(same_bits(a, b) for a, b in zip(blocks_of(array, source), before, strict=True))
    plan = mc.plan_relayout(array.shape, array.dtype, source, target)
    run = lockstep(plan, before)
    assert all(same_bits(a, b) for a, b in zip(run.blocks, after, strict=True))
    tensors = simulated(mesh.size, relaid, array, source, target)
    assert all(same_bits(t.local, b) for (_, t), b in zip(tensors, after, strict=True))
    assert all(t.layout.sharding_specs == case["dst"] for _, t in tensors)


def test_the_recording_is_all_there():
    assert len(GOLDEN) == 75
    assert sum(not case.get("tf221_default_alltoall_path_correct", True) for case in GOLDEN) == 4


# -- simulated ranks do what the lockstep loop does -------------------------------------------------------------------


@settings(max_examples=examples(200))
@given(relayouts(), st.sampled_from(["i2", "f4", "c16", "V3"]))
def test_any_relayout(relayout, dtype):
    shape, source, target = relayout
    array = random_bits(shape, dtype)
    plan = mc.plan_relayout(shape, dtype, source, target)
    run = lockstep(plan, blocks_of(array, source))
    with mc.simulate(source.mesh.size) as world:
        tensors = world.run(lambda: relaid(world.rank, array, source, target))
        for (_, tensor), block in zip(tensors, run.blocks, strict=True):
            assert same_bits(tensor.local, block)
            assert (tensor.shape, tensor.dtype) == (shape, np.dtype(dtype))
            assert tensor.layout == target
    assert (world.bytes_moved, world.messages) == (run.bytes_moved, run.messages)


@pytest.mark.parametrize("dtype", DTYPES, ids=dtype_id)
def test_every_dtype(dtype):
    raw = random_bits((7, 5), f"V{dtype.itemsize}" if dtype.names else dtype).view(f"V{dtype.itemsize}")
    pairs = [(["x", U], [U, "x"]), (["x", "y"], ["y", "x"]), (["x", "y"], [U, U]), ([U, "y"], ["x", U])]

    def program(rank):
        mesh = mc.create_mesh([("x", 2), ("y", 2)])
        for source, target in sampled(pairs):
            layouts = Layout(source, mesh), Layout(target, mesh)
            before, after = (blocks_of(raw, layout)[rank] for layout in layouts)  # as V, so that padding counts too
            tensor = mc.relayout(mc.from_local(before.view(dtype), layouts[0], raw.shape), layouts[1])
            assert tensor.dtype == tensor.local.dtype == dtype
            assert same_bits(tensor.local.view(raw.dtype), after)
            assert same_bits(tensor.to_numpy().view(raw.dtype), raw)

    simulated(4, program)


# -- results ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("target", [["x", U], [U, "x"], [U, U], [U, "y"], ["y", "x"]])
def test_results_are_new_and_inputs_stay(target):
    array = numbered((6, 4))

    def program(rank):
        mesh = mc.create_mesh([("x", 2), ("y", 2)])
        tensor = mc.distribute(array, Layout(["x", U], mesh))
        tensor.local.flags.writeable = False
        before = tensor.local.copy()
        results = [mc.relayout(tensor, Layout(target, mesh)) for _ in range(2)]
        for result in results:
            assert not np.shares_memory(result.local, tensor.local)
            assert result.local.flags.c_contiguous
            assert result.local.flags.writeable
            result.local[...] = -1
        assert same_bits(tensor.local, before)
        assert not np.shares_memory(*(result.local for result in results))

    simulated(4, program)


def test_a_block_changed_in_place_moves_as_it_is_now():
    def program(rank):
        mesh = mc.create_mesh([("x", 2)])
        tensor = mc.zeros((4,), "i4", Layout(["x"], mesh))
        tensor.local[...] = rank + 1
        return mc.relayout(tensor, Layout([U], mesh)).local.tolist()

    assert simulated(2, program) == [[1, 1, 2, 2]] * 2


def test_match():
    def program(rank):
        mesh = mc.create_mesh([("x", 2), ("y", 2)])
        tensor = mc.distribute(numbered((4, 6)), Layout(["x", U], mesh))
        found = []
        for target in (["match", U], [U, "match"], ["match", "y"], ["y", "match"], ["match", "x"]):
            result = mc.relayout(tensor, Layout(target, mesh))
            assert same_bits(result.to_numpy(), numbered((4, 6)))
            found.append(result.layout.sharding_specs)
        found.append(mc.relayout(numbered((4, 6)), Layout(["match", "y"], mesh)).layout.sharding_specs)
        return found

    assert simulated(4, program)[0] == [["x", U], [U, U], ["x", "y"], ["y", U], [U, "x"], [U, "y"]]


@on_ranks(2)
def test_plain_arrays_count_as_replicated(rank):
    mesh = mc.create_mesh([("x", 2)])
    rows = Layout(["x", U], mesh)
    array = numbered((3, 2))
    for plain in (array, array.tolist(), np.asfortranarray(array)):
        result = mc.relayout(plain, rows)
        assert result.local.tolist() == array[rows.block_slices((3, 2), rank)].tolist()
        assert not np.shares_memory(result.local, array)
    assert mc.relayout(5, Layout([], mesh)).local.tolist() == 5


@on_ranks(2)
def test_relayout_like_takes_only_the_layout():
    mesh = mc.create_mesh([("x", 2), ("y", 1)])
    like = mc.zeros((9, 9), "c16", Layout([U, "x"], mesh))
    tensor = mc.distribute(numbered((3, 4), "i2"), Layout(["x", U], mesh))
    result = mc.relayout_like(tensor, like)
    assert result.layout == like.layout
    assert (result.shape, result.dtype) == ((3, 4), np.dtype("i2"))
    assert same_bits(result.to_numpy(), numbered((3, 4), "i2"))
    assert same_bits(mc.relayout_like(numbered((3, 4)), like).to_numpy(), numbered((3, 4)))
    with pytest.raises(LayoutError, match="1 axis"):
        mc.relayout_like(mc.zeros((3,), "i2", Layout(["x"], mesh)), like)
    for other in (numbered((3, 4)), like.layout, None):
        with pytest.raises(LayoutError, match="layout_tensor must be a DTensor"):
            mc.relayout_like(tensor, other)


def test_the_result_has_the_layout_given_not_only_an_equal_one():
    """Also with a plan that was made for an equal mesh of another world, or for a mesh closed since."""

    def program(rank):
        for _ in range(2):
            mesh = mc.create_mesh([("x", 2)])
            rows, all_of_it = Layout(["x"], mesh), Layout([U], mesh)
            tensor = mc.distribute(numbered((5,)), rows)
            plan = mc.plan_relayout((5,), tensor.dtype, rows, all_of_it)
            for result in (mc.relayout(tensor, all_of_it), plan.execute(tensor)):
                assert result.mesh is mesh
                back = mc.relayout(result, rows)
                assert back.local is None if rank == 2 else same_bits(back.local, tensor.local)
                assert back.mesh is mesh
            mesh.close()

    for _ in range(2):
        simulated(3, program)


@on_ranks(2)
def test_a_plan_executes_what_it_was_made_for_only(rank):
    mesh = mc.create_mesh([("x", 2)])
    rows, columns = Layout(["x", U], mesh), Layout([U, "x"], mesh)
    plan = mc.plan_relayout((3, 4), "i8", rows, columns)
    tensor = mc.distribute(numbered((3, 4)), rows)
    assert same_bits(plan.execute(tensor).local, blocks_of(numbered((3, 4)), columns)[rank])
    for other in (
        mc.zeros((4, 4), "i8", rows),
        mc.zeros((3, 4), "f8", rows),
        mc.zeros((3, 4), "i8", columns),
        numbered((3, 4)),
        None,
    ):
        with pytest.raises(mc.MeshcommError, match=r"this plan is for a DTensor of \(3, 4\) int64"):
            plan.execute(other)
    mesh.close()
    with pytest.raises(mc.MeshError, match="is closed"):
        plan.execute(tensor)


@on_ranks(2)
def test_meshes_may_differ():
    mesh = mc.create_mesh([("x", 2)])
    tensor = mc.zeros((4,), "i4", Layout(["x"], mesh))
    named = mc.create_mesh([("x", 2)], mesh_name="other")
    assert mc.relayout(tensor, Layout([U], named)).mesh is named
    for other in (
        mc.create_mesh([("y", 2)]),
        mc.create_mesh([("x", 2)], devices=[1, 0]),
        mc.create_mesh([("x", 1)]),
    ):
        moved = mc.relayout(tensor, Layout([U], other))
        assert moved.mesh is other
        assert (moved.local is None) == (other.rank is None)


def test_permuted_and_partial_meshes():
    array = numbered((5, 4))

    def program(rank, devices):
        mesh = mc.create_mesh([("x", len(devices))], devices=devices)
        rows, columns = Layout(["x", U], mesh), Layout([U, "x"], mesh)
        result = mc.relayout(mc.distribute(array, rows), columns)
        if rank not in devices:
            assert result.local is None
            assert (result.shape, result.dtype, result.layout) == (array.shape, array.dtype, columns)
            assert result.to_numpy() is None
            return
        assert same_bits(result.local, blocks_of(array, columns)[devices.index(rank)])
        assert same_bits(result.to_numpy(), array)

    for devices in ([0, 1, 2, 3], [3, 1], [2, 0, 3], [1], [3, 2, 1, 0]):
        simulated(4, program, devices)


def test_the_third_argument_is_a_name(tmp_path):
    """As on TensorFlow's pages; what is ours is given by keyword only."""

    def program(rank):
        rows, columns = (Layout(specs, mc.create_mesh([("x", 1)])) for specs in (["x", U], [U, "x"]))
        tensor = mc.distribute(numbered((4, 4)), rows)
        with mc.trace(tmp_path / "t.json"):
            mc.relayout(tensor, columns, "a")
            mc.relayout_like(tensor, tensor, "b")
            mc.start_relayout(tensor, columns, "c").wait()
        for call in (mc.relayout, mc.relayout_like, mc.start_relayout):
            with pytest.raises(TypeError, match="positional"):
                call(tensor, columns, None, tensor)

    simulated(1, program)
    events = json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    names = [event["name"] for event in events if " named " in event["name"]]
    assert names == ["relayout named 'a'", "relayout named 'b'", "start_relayout named 'c'"]


@pytest.mark.parametrize("specs", [[U, "x"], (U, "x"), [("y", "x"), U], [mc.MATCH, "y"], [mc.Cyclic("y", 1), "x"]])
def test_a_list_of_specs_is_a_layout_on_the_mesh_of_the_tensor(specs):
    def program(rank):
        mesh = mc.create_mesh([("x", 2), ("y", 2)])
        t = mc.distribute(np.arange(35).reshape(7, 5), mc.Layout(["x", U], mesh))
        expected = mc.relayout(t, mc.Layout(specs, mesh))
        moved = [mc.relayout(t, specs), t.relayout(specs), t.relayout(expected.layout, "again")]
        moved += [mc.relayout(mc.DVariable(t), specs), mc.start_relayout(t, specs).wait()]
        out = mc.zeros_like(expected)
        assert t.relayout(specs, out=out, max_scratch_bytes=2**20) is out
        for u in (*moved, out):
            assert u.layout == expected.layout
            assert np.array_equal(u.local, expected.local)
        for wrong, text in ((["z", U], "valid mesh dimension"), (["x"], "axes"), ("x", "takes a list with a spec")):
            with pytest.raises(mc.LayoutError, match=text):
                t.relayout(wrong)
        with pytest.raises(mc.LayoutError, match="a relayout goes to a Layout, not list"):
            mc.relayout(np.zeros((7, 5)), specs if isinstance(specs, list) else list(specs))

    with mc.simulate(4) as world:
        world.run(program, None)


@on_ranks(3)
def test_slices_of_the_own_rank():
    mesh = mc.create_mesh([("x", 2)])
    array = np.arange(12).reshape(3, 4)
    t = mc.distribute(array, mc.Layout(["x", U], mesh))
    cyclic = mc.Layout([mc.Cyclic("x", 1), U], mesh)
    if mesh.rank is None:
        for ask in (lambda: t.slices, lambda: t.layout.block_slices((3, 4)), lambda: t.layout.block_shape((3, 4))):
            with pytest.raises(mc.MeshError, match="outside of the mesh x=2 over ranks 0 to 1"):
                ask()
        return
    assert t.slices == t.layout.block_slices((3, 4)) == t.layout.block_slices((3, 4), mesh.rank)
    assert np.array_equal(array[t.slices], t.local)
    assert t.layout.block_shape((3, 4)) == t.local.shape
    assert list(cyclic.blocks((3, 4))) == list(cyclic.blocks((3, 4), mesh.rank))
    with pytest.raises(mc.LayoutError, match="blocks"):
        _ = mc.relayout(t, cyclic).slices
