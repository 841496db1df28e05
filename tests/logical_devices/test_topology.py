"""Topologies: as values, as bytes, and from the ranks that there are."""

import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import meshcomm as mc
from meshcomm import DeviceAssignment, Topology
from meshcomm.core.layouts import wire
from meshcomm.errors import MeshError
from meshcomm.tensorflow.topology import TOPOLOGY_MESSAGE
from support.logical_device_cases import BROKEN_TOPOLOGIES, REPEATABLE, row_major

# -- topologies -------------------------------------------------------------------------------------------------------


def test_topology_parts():
    topology = row_major([2, 2, 1, 2], 4)
    assert (topology.mesh_rank, topology.num_tasks, topology.num_tpus_per_task) == (4, 4, 2)
    assert topology.mesh_shape.tolist() == [2, 2, 1, 2]
    assert topology.device_coordinates.shape == (4, 2, 4)
    assert topology.missing_devices.shape == (0, 4)
    assert topology.ranks.tolist() == [[0, 1], [2, 3], [4, 5], [6, 7]]
    at = np.array([1, 0, 0, 1])
    assert topology.task_ordinal_at_coordinates(at) == 2
    assert topology.tpu_device_ordinal_at_coordinates(at) == 1
    assert topology.rank_at_coordinates(at) == 5
    assert topology.tpu_device_name_at_coordinates(at) == "/task:2/device:TPU:1"
    assert topology.cpu_device_name_at_coordinates(at, job="w") == "/job:w/task:2/device:CPU:0"


def check_value(value, same, other):
    assert value == same == pickle.loads(pickle.dumps(value))
    assert hash(value) == hash(same)
    assert value not in (other, "value")


def test_topology_is_a_value():
    topology = row_major([2, 2, 1, 2], 4)
    check_value(topology, row_major((2, 2, 1, 2), 4), row_major([2, 2, 1, 2], 2))
    assert repr(topology) == "Topology([2, 2, 1, 2], tasks=4, devices=8)"
    for array in (topology.mesh_shape, topology.device_coordinates, topology.ranks, topology.missing_devices):
        with pytest.raises(ValueError):
            array[...] = 0
    with pytest.raises(AttributeError):
        topology.num_tasks = 3


def test_assignment_is_a_value():
    topology = row_major([2, 2, 1, 2], 4)
    assignment = DeviceAssignment.build(topology, [1, 1, 1, 2], num_replicas=2)
    same = DeviceAssignment(topology, assignment.core_assignment.tolist())
    check_value(assignment, same, DeviceAssignment.build(topology, [1, 1, 1, 2]))
    assert repr(assignment) == "DeviceAssignment of 2 replicas x 2 logical devices: ranks [[0, 1], [4, 5]]"


def test_wire_form():
    topology = row_major([1, 2, 1, 1], 2)
    data = bytes.fromhex("0a0401020101 1002 1801 22080000000000010000")
    assert topology.serialized() == data
    assert Topology(data) == Topology(serialized=bytearray(data)) == topology
    real = wire._protobuf_class(TOPOLOGY_MESSAGE)
    if real is not None:
        message = real(mesh_shape=[1, 2, 1, 1], num_tasks=2, num_tpu_devices_per_task=1)
        message.device_coordinates.extend([0, 0, 0, 0, 0, 1, 0, 0])
        assert message.SerializeToString() == data
        assert Topology(message) == topology


def test_wire_form_of_ranks_in_turns():
    topology = Topology._of_hosts(["a", "b", "a", "b"], None)
    assert topology.serialized().startswith(Topology._of_hosts(["a", "a", "b", "b"], None).serialized())
    assert Topology(topology.serialized()).ranks.tolist() == [[0, 2], [1, 3]]


@REPEATABLE
@given(st.binary(max_size=40) | st.builds(lambda at, value: mutated(at, value), st.integers(0, 18), st.binary()))
def test_hostile_bytes(data):
    try:
        topology = Topology(data)
    except MeshError:
        return
    assert Topology(topology.serialized()) == topology


def mutated(at, value):
    data = row_major([1, 2, 1, 1], 2).serialized()
    return data[:at] + value + data[at + len(value) :]


@pytest.mark.parametrize("name", BROKEN_TOPOLOGIES)
def test_broken_topology(name):
    arguments, message = BROKEN_TOPOLOGIES[name]
    with pytest.raises(MeshError, match=message):
        Topology(**arguments)


@pytest.mark.parametrize("at", [(2, 0, 0, 0), (-1, 0, 0, 0), (0, 0, 0), "0000", (0.5, 0, 0, 0), None])
def test_no_device_there(at):
    topology = row_major([2, 2, 1, 2])
    for lookup in ("task_ordinal", "tpu_device_ordinal", "rank", "cpu_device_name", "tpu_device_name"):
        with pytest.raises(MeshError):
            getattr(topology, f"{lookup}_at_coordinates")(at)


# -- from the ranks that there are ------------------------------------------------------------------------------------


def test_from_simulated_ranks():
    with mc.simulate(8) as world:
        outside = Topology.from_comm(mesh_shape=[1, 2, 2, 2])
        inside = world.run(lambda: Topology.from_comm(mesh_shape=[1, 2, 2, 2]))
        assert Topology.from_comm().mesh_shape.tolist() == [1, 8, 1, 1]
        for wrong in ([1, 2, 2, 1], [8], [8, 1, 1, 0], "8111", 8):
            with pytest.raises(MeshError, match="mesh_shape"):
                Topology.from_comm(mesh_shape=wrong)
    assert all(topology == outside for topology in inside)
    assert outside.rank_at_coordinates([0, 1, 0, 1]) == 5


@pytest.mark.parametrize(
    ("hosts", "shape", "ranks"),
    [
        ("aabb", [2, 2, 1, 1], [[0, 1], [2, 3]]),
        ("abab", [2, 2, 1, 1], [[0, 2], [1, 3]]),
        ("baab", [2, 2, 1, 1], [[0, 3], [1, 2]]),
        ("aba", [3, 1, 1, 1], [[0], [2], [1]]),
        ("a", [1, 1, 1, 1], [[0]]),
    ],
)
def test_from_hosts(hosts, shape, ranks):
    topology = Topology._of_hosts(hosts, None)
    assert topology.mesh_shape.tolist() == shape
    assert topology.ranks.tolist() == ranks
    assert not len(topology.missing_devices)


def test_replicas_stay_on_their_hosts():
    topology = Topology._of_hosts("abababab", None)
    assignment = DeviceAssignment.build(topology, [1, 4, 1, 1], num_replicas=2)
    assert assignment.ranks.tolist() == [[0, 2, 4, 6], [1, 3, 5, 7]]
    assert [assignment.lookup_replicas(task, 0) for task in (0, 1)] == [[0], [1]]
