"""Strategies: which rank is which replica, running steps, and splitting tensors."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import meshcomm as mc
from meshcomm import DeviceAssignment, PerReplica, Strategy
from meshcomm.errors import MeshError, ShapeError
from meshcomm.logical_devices import check_partition
from support.logical_device_cases import REPEATABLE, row, row_major, strategy_of
from support.reference import on_ranks
from support.sampling import examples
from support.tensors import on

FEWER = settings(REPEATABLE, max_examples=examples(40))


# -- the strategy: who is who, and running steps ----------------------------------------------------------------------


def test_logical_devices_follow_the_assignment():
    """The page's computation shape is a ring: logical device k is not rank k."""

    def program():
        strategy = strategy_of(8, [1, 2, 2, 2], mesh_shape=[1, 2, 2, 2])
        split = strategy.experimental_split_to_logical_devices(np.arange(8), [8])
        assert split.mesh == strategy.replica_mesh() == strategy.replica_mesh([8])
        assert split.mesh.rank == strategy.logical_device_id == split.local.item()
        return strategy.logical_device_id

    assert on(8, program) == [0, 1, 6, 7, 2, 3, 4, 5]


def test_ids():
    def program():
        strategy = strategy_of(5, row(2), replicas=2)
        assert (strategy.num_replicas_in_sync, strategy.num_logical_devices) == (2, 2)
        assert strategy.device_assignment.num_replicas == 2
        return strategy.replica_id, strategy.logical_device_id

    assert on(5, program) == [(0, 0), (0, 1), (1, 0), (1, 1), (None, None)]


def test_run_gives_each_replica_its_values():
    def step(x, *, scale, more):
        return x * scale, more

    def program():
        strategy = strategy_of(5, row(2), replicas=2)
        nested = {"a": [PerReplica("pq"), 1], "b": (PerReplica([[3], [4]]),)}
        args, kwargs = (PerReplica([10, 20]),), {"scale": 3, "more": nested}
        result = strategy.run(step, args, kwargs)
        assert strategy.experimental_local_results(result) == (() if result is None else (result,))
        return result

    first, second = (30, {"a": ["p", 1], "b": ([3],)}), (60, {"a": ["q", 1], "b": ([4],)})
    assert on(5, program) == [first, first, second, second, None]


@pytest.mark.parametrize(
    ("arguments", "kind", "message"),
    [
        ((lambda x: x, (PerReplica([1, 2, 3]),)), MeshError, "has 3 values for 2 replicas"),
        ((lambda x: x, ([PerReplica([1])],)), MeshError, "has 1 value for 2 replicas"),
        ((lambda x: x, (), {"x": PerReplica([])}), MeshError, "has 0 values for 2 replicas"),
        ((lambda x: x, (PerReplica(()),)), MeshError, "has 0 values for 2 replicas"),
        ((3,), TypeError, "step_fn must be a function, not 3"),
        ((lambda x: x, np.arange(3)), TypeError, "args must be a tuple"),
    ],
)
@on_ranks(5)
def test_run_refuses_on_every_rank(arguments, kind, message):
    strategy = strategy_of(5, row(2), replicas=2)
    with pytest.raises(kind, match=message):
        strategy.run(*arguments)


def test_per_replica_is_a_container():
    assert PerReplica(iter([1, 2])).values == (1, 2)
    assert repr(PerReplica([1, 2])) == "PerReplica([1, 2])"
    with pytest.raises(MeshError, match="one value for each replica, in a list, not 3"):
        PerReplica(3)


def test_replicas_do_not_touch_each_other():
    """Replica 0 makes other relayouts than replica 1, and more of them."""
    arrays = [np.arange(32).reshape(4, 8), np.arange(100, 132).reshape(8, 4)]

    def program():
        strategy = strategy_of(8, [1, 2, 2, 1], replicas=2, mesh_shape=[2, 2, 2, 1])

        def step(x):
            replica = strategy.replica_id
            t = strategy.experimental_split_to_logical_devices(x, [2, 2] if replica == 0 else [4, 1])
            layouts = [mc.Layout(specs, t.mesh) for specs in (["d1", "d0"], [("d0", "d1"), mc.UNSHARDED])]
            for i in range(7 if replica == 0 else 2):
                t = mc.relayout(t, layouts[i % 2])
            return t.to_numpy().sum(), sorted(t.mesh.ranks)

        results = strategy.run(step, (PerReplica(arrays),))
        strategy.close()
        return results

    results = on(8, program)
    for rank, (total, members) in enumerate(results):
        replica = rank // 4
        assert total == arrays[replica].sum()
        assert members == list(range(4 * replica, 4 * replica + 4))


@on_ranks(3)
def test_a_world_too_small():
    assignment = DeviceAssignment.build(row_major([4, 1, 1, 1]), row(2), num_replicas=2)
    strategy = Strategy(assignment)
    for call in (lambda: strategy.run(int), lambda: strategy.replica_id, strategy.replica_mesh):
        with pytest.raises(MeshError, match="needs ranks up to 3, but the world has 3"):
            call()


def test_strategy_refuses():
    with pytest.raises(MeshError, match="device_assignment must be a DeviceAssignment, not 3"):
        Strategy(3)

    def program():
        strategy = strategy_of(3, row(2))
        for wrong in ([3], [1, 1], [-1, -2], "2", 2, [2.0]):
            with pytest.raises(ShapeError):
                strategy.replica_mesh(wrong)
        if strategy.replica_id is None:
            for call in (
                strategy.replica_mesh,
                lambda: strategy.experimental_split_to_logical_devices([0, 1], [2]),
                lambda: strategy.experimental_replicate_to_logical_devices([0]),
                lambda: strategy.experimental_assign_to_logical_device([0], 0),
            ):
                with pytest.raises(MeshError, match="rank 2 is in no replica"):
                    call()

    on(3, program)


def test_one_strategy_in_several_worlds():
    with mc.simulate(4):
        strategy = strategy_of(4, row(4))
    for _ in range(2):

        def step():
            t = strategy.experimental_split_to_logical_devices(np.arange(8), [4])
            return strategy.experimental_split_to_logical_devices(t, [4]).to_numpy().tolist()

        assert on(4, lambda: strategy.run(step)) == [list(range(8))] * 4


@on_ranks(4)
def test_close_and_go_on():
    strategy = strategy_of(4, row(4))
    for _ in range(3):
        t = strategy.experimental_split_to_logical_devices(np.arange(16).reshape(4, 4), [2, 2])
        one = strategy.experimental_assign_to_logical_device(t, 3)
        assert (one.local is None) == (strategy.logical_device_id != 3)
        strategy.close()
    with pytest.raises(MeshError, match="closed"):
        t.to_numpy()


# -- the strategy: placing tensors ------------------------------------------------------------------------------------


def factorizations(count):
    """Pairs of sizes whose product is *count*."""
    return [(size, count // size) for size in range(1, count + 1) if count % size == 0]


@pytest.mark.parametrize("count", [1, 2, 4, 6, 8])
def test_splitting_again(count):
    """From any partition to any other, also where the two meshes have no common refinement."""
    whole = np.arange(24 * 24).reshape(24, 24)

    def program():
        strategy = strategy_of(count, row(count))
        for first, second in itertools.product(factorizations(count), repeat=2):
            t = strategy.experimental_split_to_logical_devices(whole, first)
            again = strategy.experimental_split_to_logical_devices(t, second)
            assert again.mesh.shape() == list(second)
            assert np.array_equal(again.local, whole[again.layout.block_slices(whole.shape, again.mesh.rank)])
            assert not np.shares_memory(again.local, t.local)
            back = strategy.experimental_split_to_logical_devices(again, first)
            assert back.layout == t.layout
            assert np.array_equal(back.local, t.local)

    on(count, program)


def test_splitting_again_is_one_exchange():
    whole = np.arange(64, dtype="u1").reshape(8, 8)

    def program():
        strategy = strategy_of(4, row(4))
        t = strategy.experimental_split_to_logical_devices(whole, [4, 1])
        strategy.experimental_split_to_logical_devices(t, [1, 4])

    with mc.simulate(4) as world:
        world.run(program)
    assert world.bytes_moved == [12] * 4  # three quarters of 16: no rank ever has the whole tensor


@on_ranks(6)
def test_any_tensor_of_the_replica():
    whole = np.arange(24).reshape(4, 6)
    strategy = strategy_of(6, row(6))
    mesh = mc.create_mesh([("rows", 2), ("columns", 3)])
    for specs in (["rows", "columns"], [mc.UNSHARDED, ("columns", "rows")], [mc.UNSHARDED, mc.UNSHARDED]):
        t = mc.distribute(whole, mc.Layout(specs, mesh))
        split = strategy.experimental_split_to_logical_devices(t, [1, 6])
        assert np.array_equal(split.local, whole[:, split.mesh.rank : split.mesh.rank + 1])
        replicated = strategy.experimental_replicate_to_logical_devices(t)
        assert replicated.mesh is mesh
        assert np.array_equal(replicated.local, whole)


@on_ranks(4)
def test_tensors_of_others_are_refused():
    strategy = strategy_of(4, row(2), replicas=2)
    reversed_mesh = mc.create_mesh([("x", 4)], devices=[3, 2, 1, 0])
    t = mc.distribute(np.arange(4), mc.Layout(["x"], reversed_mesh))
    calls = [
        lambda: strategy.experimental_split_to_logical_devices(t, [2]),
        lambda: strategy.experimental_replicate_to_logical_devices(t),
        lambda: strategy.experimental_assign_to_logical_device(t, 0),
    ]
    for call in calls:
        with pytest.raises(MeshError, match="the tensor is on ranks"):
            call()


@on_ranks(2)
def test_replicate():
    strategy = strategy_of(2, row(2))
    array = np.arange(6).reshape(2, 3)
    whole = strategy.experimental_replicate_to_logical_devices(array)
    assert whole.layout.is_fully_replicated()
    assert np.array_equal(whole.local, array)
    assert not np.shares_memory(whole.local, array)
    split = strategy.experimental_split_to_logical_devices(whole, [2, 1])
    assert np.array_equal(strategy.experimental_replicate_to_logical_devices(split).local, array)
    assert strategy.experimental_replicate_to_logical_devices(2.5).local == 2.5


@on_ranks(4)
def test_assign():
    strategy = strategy_of(4, row(4))
    array, me = np.arange(16).reshape(4, 4), strategy.logical_device_id
    split = strategy.experimental_split_to_logical_devices(array, [2, 2])
    for device, source in itertools.product(range(4), (array, split, "assigned")):
        if isinstance(source, str):
            source = strategy.experimental_assign_to_logical_device(array, (device + 1) % 4)
        one = strategy.experimental_assign_to_logical_device(source, device)
        assert (one.shape, one.dtype, one.mesh.size) == (array.shape, array.dtype, 1)
        assert (one.local is None) == (me != device)
        assert one.local is None or np.array_equal(one.local, array)
        back = strategy.experimental_split_to_logical_devices(one, [4, 1])
        assert np.array_equal(back.local, array[me : me + 1])
        assert np.array_equal(strategy.experimental_replicate_to_logical_devices(one).local, array)


@pytest.mark.parametrize("device", [-1, 2, 99, 0.0, True, "0", None])
@on_ranks(3)
def test_assign_refuses(device):
    strategy = strategy_of(3, row(2))
    with pytest.raises(ValueError, match="logical_device_id"):
        strategy.experimental_assign_to_logical_device(np.zeros(2), device)


@FEWER
@given(st.sampled_from(["?", "i1", ">u4", "f2", "c16", "M8[s]", "S3", "i4,f8"]), st.data())
def test_bytes_stay(dtype, data):
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    size = 4 * np.dtype(dtype).itemsize
    whole = np.frombuffer(rng.integers(0, 2 if dtype == "?" else 256, size, dtype="u1").tobytes(), dtype)

    def program():
        strategy = strategy_of(2, row(2))
        split = strategy.experimental_split_to_logical_devices(whole, [2])
        return strategy.experimental_replicate_to_logical_devices(split).local.tobytes()

    assert on(2, program) == [whole.tobytes()] * 2


@pytest.mark.parametrize("dims", ["22", 4, [2, 2.0], [[2], [2]], [True, 4], [None, 4], None])
def test_partitions_that_are_none(dims):
    with pytest.raises(ShapeError, match="partition_dimensions"):
        check_partition((4, 4), dims, 4)


@pytest.mark.parametrize("dims", [[2, 2], (2, 2), np.array([2, 2]), [np.int8(2), np.uint64(2)]])
def test_partitions_of_any_kind(dims):
    assert check_partition((4, 4), dims, 4) == (2, 2)
