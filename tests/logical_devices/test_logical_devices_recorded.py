"""Logical devices: every answer recorded from TensorFlow, and where we differ."""

import itertools
import json
import math
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import meshcomm as mc
from logical_devices import test_assignment as assignments
from logical_devices import test_strategy as strategies
from logical_devices import test_topology as topology_tests
from meshcomm import DeviceAssignment, DeviceOrderMode, Topology
from meshcomm.errors import LayoutError, MeshError, ShapeError
from meshcomm.logical_devices import check_partition
from support.departures import departures, refuses
from support.logical_device_cases import BROKEN_TOPOLOGIES, CELL, REPEATABLE, row, row_major, strategy_of
from support.paths import DATA, DOCS
from support.reference import on_ranks
from support.tensors import on

GOLDEN = json.loads((DATA / "logical_devices.json").read_text())


DOC = DOCS / "logical_devices.md"


def numbers(text):
    return [int(number) for number in re.findall(r"\d+", re.sub(r"RING|3D", "", text))]


# -- recorded answers -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", GOLDEN["device_assignment"], ids=range(len(GOLDEN["device_assignment"])))
def test_recorded_assignment(case):
    topology = row_major(case["mesh_shape"], case["num_tasks"])
    mode = DeviceOrderMode[case["device_order_mode"]]
    arguments = (case["computation_shape"], case["computation_stride"], case["num_replicas"], mode)
    expected = case["result"]
    if "error" in expected:
        with pytest.raises(ValueError) as error:
            DeviceAssignment.build(topology, *arguments)
        assert isinstance(error.value, MeshError)
        recorded = numbers(expected["message"])
        if mode is not DeviceOrderMode.RING:
            assert numbers(str(error.value))[: len(recorded)] == recorded
        return
    for form in (topology, topology.serialized()):
        assignment = DeviceAssignment.build(form, *arguments)
        assert assignment.num_replicas == expected["num_replicas"]
        assert assignment.num_cores_per_replica == expected["num_cores_per_replica"]
        assert assignment.core_assignment.tolist() == expected["core_assignment"]
        assert assignment.topology == topology
    places = list(np.ndindex(assignment.ranks.shape))
    assert [assignment.tpu_device(*place) for place in places] == list(itertools.chain(*expected["tpu_device"]))
    for place in places:
        task, ordinal = map(int, re.findall(r"\d+", expected["tpu_device"][place[0]][place[1]]))
        assert assignment.tpu_ordinal(*place) == ordinal
        assert assignment.host_device(*place, job="w") == f"/job:w/task:{task}/device:CPU:0"
        assert assignment.ranks[place] == task * topology.num_tpus_per_task + ordinal
    check_lookups(assignment, expected["lookup_replicas"])


def check_lookups(assignment, recorded):
    tasks, cores = assignment.topology.num_tasks, assignment.num_cores_per_replica
    found = {}
    for replica, core in np.ndindex(assignment.ranks.shape):
        task = assignment.topology.task_ordinal_at_coordinates(assignment.coordinates(replica, core))
        found.setdefault(f"{task},{core}", []).append(replica)
    assert {at: replicas for at, replicas in recorded.items() if "error" not in replicas}.items() <= found.items()
    for task, core in itertools.product(range(tasks + 1), range(cores + 1)):
        if f"{task},{core}" in found:
            assert assignment.lookup_replicas(task, core) == found[f"{task},{core}"]
            assert "error" not in recorded.get(f"{task},{core}", ())
        else:
            with pytest.raises(ValueError, match=f"no replica has its logical core {core} in task {task}"):
                assignment.lookup_replicas(task, core)


# By the number of the recorded case: what our message says. Case 19 is a departure.
SPLIT_ERRORS = {
    12: "length 4, but a tensor of shape .16, 4, 8. has 3 axes",
    13: "product of partition_dimensions .1, 2, 2, 1. is 4; it must be .* 8",
    14: r"axis 1 of shape .* has 5 elements; partition_dimensions\[1\] = 2",
    15: r"axis 1 of shape .* has 5 elements; partition_dimensions\[1\] = 2",
    16: "length 3, but a tensor of shape .16, 5. has 2 axes",
    17: "is 16; it must be .* 8",
    18: r"product of partition_dimensions \[\] is 1; it must be .* 8",
    20: r"partition_dimensions\[0\] is 0 .* positive",
    21: r"partition_dimensions\[0\] is -2 .* positive",
    22: "unknown rank",
}


@pytest.mark.parametrize("number", range(len(GOLDEN["split_to_logical_devices"])))
def test_recorded_split(number):
    case = GOLDEN["split_to_logical_devices"][number]
    shape, dims, count = case["shape"], case["partition_dimensions"], case["num_logical_devices"]
    if number in SPLIT_ERRORS:
        with pytest.raises(ShapeError, match=SPLIT_ERRORS[number]):
            check_partition(shape, dims, count)
        if shape is not None:
            check_all_ranks_raise(shape, dims, count, SPLIT_ERRORS[number])
        return
    sizes = check_partition(shape, dims, count)
    if number != 19:
        assert list(sizes) == case["result"]["tile_assignment_dimensions"]
        assert case["result"]["tile_assignment_devices"] == list(range(count))
    if None in shape:
        shape = [size or 3 for size, length in zip(dims, shape, strict=True) for size in [length or 2 * size]]
    check_split(shape, dims, count, case.get("slices"))


def check_all_ranks_raise(shape, dims, count, message):
    def program():
        strategy = strategy_of(count + 1, row(count))
        with pytest.raises(ShapeError, match=message):
            strategy.experimental_split_to_logical_devices(np.zeros(shape), dims)
        return strategy.run(lambda: strategy.experimental_split_to_logical_devices(np.ones(count), [count]).local)

    results = on(count + 1, program)  # the last rank, in no replica, sees the error too
    assert results[-1] is None
    assert all(block.tolist() == [1] for block in results[:-1])


def check_split(shape, dims, count, slices=None):
    whole = np.arange(math.prod(shape)).reshape(shape)

    def program():
        strategy = strategy_of(count, row(count))
        split = strategy.experimental_split_to_logical_devices(whole, dims)
        assert split.shape == tuple(shape)
        assert split.mesh.shape() == list(dims or [1])
        assert split.mesh.rank == strategy.logical_device_id
        assert split.layout.sharding_specs == [f"d{axis}" for axis in range(len(shape))]
        assert np.array_equal(split.to_numpy(), whole)
        return split.local

    blocks = on(count, program)
    for k, block in enumerate(blocks):
        at = np.unravel_index(k, dims) if dims else ()
        cut = [slice(c * n // d, (c + 1) * n // d) for c, n, d in zip(at, shape, dims, strict=True)]
        assert np.array_equal(block, whole[tuple(cut)])
        assert not np.shares_memory(block, whole)
        if slices is not None:
            assert [[part.start, part.stop] for part in cut] == slices[str(k)]


@REPEATABLE
@given(st.lists(st.tuples(st.integers(1, 3), st.integers(0, 3)), max_size=3))
def test_blocks_cover_the_tensor_once(axes):
    dims, shape = [size for size, _ in axes], [size * length for size, length in axes]
    check_split(shape, dims, math.prod(dims))


# -- departures and the page ------------------------------------------------------------------------------------------


def refused_partition(dims):
    refuses(ShapeError, check_partition, (4, 4), dims, 8)


def refused_topology(name):
    refuses(MeshError, lambda: Topology(**BROKEN_TOPOLOGIES[name][0]))


PROOFS = {
    "the strategy": strategies.test_ids,
    "the result of a split": lambda: check_split([4], [2], 2),
    "splitting a tensor that is split": strategies.test_splitting_again_is_one_exchange,
    "the result of run": strategies.test_run_gives_each_replica_its_values,
    "assign_to_logical_device in SPMD mode": strategies.test_assign,
    "a scalar, [] and one logical device": lambda: check_split([], [], 1),
    "0, negative numbers or floats in partition_dimensions": lambda: [
        refused_partition(dims) for dims in ([0, 8], [-2, -4], [2.0, 4.0])
    ],
    "two devices at one location, coordinates with other axes, both forms of a topology at once": lambda: [
        refused_topology(name) for name in ("one location twice", "coordinates with two axes", "both forms")
    ],
    "coordinates without a device; a replica or core out of range": lambda: [
        topology_tests.test_no_device_there((-1, 0, 0, 0)),
        assignments.test_assignment_lookups_refuse(),
    ],
    "a device in two replicas": lambda: assignments.test_assignment_refuses(CELL * 2, r"core_assignment\[1, 0\]"),
    "floats in computation_shape; missing devices with a stride, or too few": lambda: [
        assignments.test_build_refuses((row_major([2, 1, 1, 1]), [1.5, 1, 1, 1]), "integers"),
        assignments.test_missing_devices(),
    ],
    "device_order_mode RING with missing devices": assignments.test_a_ring_with_missing_devices,
    "ranks that are not counted through": topology_tests.test_wire_form_of_ranks_in_turns,
}


@pytest.mark.parametrize("case", PROOFS)
def test_departure(case):
    PROOFS[case]()


def test_departures_are_documented():
    assert departures("logical devices") == list(PROOFS)


def test_the_page_runs():
    programs = re.findall(r"```python\n(.*?)```", DOC.read_text(), re.DOTALL)
    assert programs
    for text in programs:
        on(8, lambda text=text: exec(compile(text, str(DOC), "exec"), {}))


@on_ranks(2)
def test_layouts_of_the_result_must_name_its_mesh():
    strategy = strategy_of(2, row(2))
    split = strategy.experimental_split_to_logical_devices(np.arange(4), [2])
    with pytest.raises(LayoutError):
        mc.Layout(["d1"], split.mesh)
