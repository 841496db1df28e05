"""Logical devices: every answer recorded from TensorFlow, and what our ranks, replicas and tensors do."""

import itertools
import json
import math
import pickle
import re
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import meshcomm as mc
from meshcomm import topology as topologies
from meshcomm import wire
from meshcomm.errors import LayoutError, MeshError, ShapeError
from meshcomm.logical_devices import (
    DeviceAssignment,
    DeviceOrderMode,
    PerReplica,
    Strategy,
    Topology,
    check_partition,
)

GOLDEN = json.loads((Path(__file__).parent / "data" / "logical_devices.json").read_text())
DOC = Path(__file__).parent.parent / "docs" / "logical_devices.md"
REPEATABLE = settings(derandomize=True, database=None, deadline=None, max_examples=200)
FEWER = settings(REPEATABLE, max_examples=40)


class Departure(NamedTuple):
    """Where we deliberately answer otherwise than TensorFlow."""

    tensorflow: str
    ours: str
    why: str


# Every deliberate departure; each key is proved in test_departure, and the page in docs shows the same table.
DEPARTURES = {
    "the strategy": Departure(
        "made from a cluster resolver, with one process per host",
        "made from a `DeviceAssignment` (and a communicator), with one process per device",
        "one rank is one device",
    ),
    "the result of a split": Departure(
        "the same tensor with a note for the compiler",
        "a DTensor: each logical device has its block, and `relayout` works on it",
        "there is no compiler; the data moves",
    ),
    "splitting a tensor that is split": Departure(
        "a second note", "moves the blocks (Collective over the replica)", "as above"
    ),
    "the result of run": Departure(
        "a value of all replicas", "what the step returned on this rank, None in no replica", "one rank is one device"
    ),
    "assign_to_logical_device in SPMD mode": Departure("ValueError", "works", "there is no such mode"),
    "a scalar, [] and one logical device": Departure("TypeError", "the scalar on that device", "an error that leaks"),
    "0 in partition_dimensions": Departure("ZeroDivisionError", "ShapeError", "an error that leaks"),
    "negative partition_dimensions": Departure(
        "an error about reshaping", "ShapeError: entries are positive", "an error that leaks"
    ),
    "floats in partition_dimensions": Departure("TypeError", "ShapeError", "an error that leaks"),
    "device_coordinates of another rank": Departure("IndexError", "MeshError", "an error that leaks"),
    "Topology(serialized, mesh_shape, ...)": Departure(
        "the other arguments are ignored", "MeshError", "no silent errors"
    ),
    "two devices at one place": Departure("the last one counts", "MeshError", "no silent errors"),
    "coordinates without a device": Departure(
        "-1, or the place counted from the end, or IndexError", "MeshError", "no silent errors"
    ),
    "a replica or core out of range": Departure(
        "the one counted from the end, or IndexError", "MeshError", "no silent errors"
    ),
    "a device in two replicas": Departure("accepted", "MeshError", "two replicas would hang on one rank"),
    "floats in computation_shape": Departure("rounded down", "MeshError", "no silent errors"),
    "missing devices with a stride, or too few": Departure("AssertionError", "MeshError", "an error that leaks"),
    "ranks that are not counted through": Departure(
        "not expressible", "field 1000 of the wire form, which TensorFlow skips", "hosts may share the ranks in turns"
    ),
}


def numbers(text):
    return [int(number) for number in re.findall(r"\d+", re.sub(r"RING|3D", "", text))]


def row_major(mesh_shape, num_tasks=1):
    """The topology of the recorded cases: devices row-major, evenly over the tasks."""
    coordinates = np.indices(mesh_shape).reshape(4, -1).T.reshape(num_tasks, -1, 4)
    return Topology(mesh_shape=mesh_shape, device_coordinates=coordinates)


def on_ranks(size, program):
    with mc.simulate(size) as world:
        return world.run(program), world


def strategy_of(size, shape, replicas=1, mesh_shape=None, **options):
    topology = Topology.from_comm(mesh_shape=mesh_shape or [size, 1, 1, 1])
    return Strategy(DeviceAssignment.build(topology, shape, num_replicas=replicas, **options))


def row(cores):
    return [cores, 1, 1, 1]


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
    12: "length 4, but a tensor of shape .16, 4, 8. has rank 3",
    13: "product of partition_dimensions .1, 2, 2, 1. is 4; it must be .* 8",
    14: r"axis 1 of shape .* has 5 elements; partition_dimensions\[1\] = 2",
    15: r"axis 1 of shape .* has 5 elements; partition_dimensions\[1\] = 2",
    16: "length 3, but a tensor of shape .16, 5. has rank 2",
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

    results, _ = on_ranks(count + 1, program)  # the last rank, in no replica, sees the error too
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

    blocks, _ = on_ranks(count, program)
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


def test_topology_is_a_value():
    topology = row_major([2, 2, 1, 2], 4)
    same, other = row_major((2, 2, 1, 2), 4), row_major([2, 2, 1, 2], 2)
    assert topology == same
    assert hash(topology) == hash(same)
    assert topology != other
    assert topology != "topology"
    assert repr(topology) == "Topology([2, 2, 1, 2], tasks=4, devices=8)"
    assert pickle.loads(pickle.dumps(topology)) == topology
    for array in (topology.mesh_shape, topology.device_coordinates, topology.ranks, topology.missing_devices):
        with pytest.raises(ValueError):
            array[...] = 0
    with pytest.raises(AttributeError):
        topology.num_tasks = 3


def test_assignment_is_a_value():
    topology = row_major([2, 2, 1, 2], 4)
    assignment = DeviceAssignment.build(topology, [1, 1, 1, 2], num_replicas=2)
    same = DeviceAssignment(topology, assignment.core_assignment.tolist())
    assert assignment == same
    assert hash(assignment) == hash(same)
    assert assignment != DeviceAssignment.build(topology, [1, 1, 1, 2])
    assert assignment != "assignment"
    assert pickle.loads(pickle.dumps(assignment)) == assignment
    assert repr(assignment) == "DeviceAssignment of 2 replicas x 2 logical devices: ranks [[0, 1], [4, 5]]"


def test_wire_form():
    topology = row_major([1, 2, 1, 1], 2)
    data = bytes.fromhex("0a0401020101 1002 1801 22080000000000010000")
    assert topology.serialized() == data
    assert Topology(data) == Topology(serialized=bytearray(data)) == topology
    real = wire._protobuf_class(topologies.TOPOLOGY_MESSAGE)
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


CELL = [[[0, 0, 0, 0]]]
BROKEN_TOPOLOGIES = {
    "nothing": ({}, "mesh_shape must be integers, not None"),
    "three extents": ({"mesh_shape": [1, 1, 1], "device_coordinates": CELL}, r"shape \[4\]; got \(3,\)"),
    "an extent of zero": ({"mesh_shape": [1, 0, 1, 1], "device_coordinates": CELL}, "positive; got mesh_shape="),
    "no coordinates": ({"mesh_shape": [1, 1, 1, 1]}, "device_coordinates must be integers, not None"),
    "coordinates of rank 2": (
        {"mesh_shape": [1, 1, 1, 1], "device_coordinates": CELL[0]},
        r"shape \[any, any, 4\]; got \(1, 4\)",
    ),
    "three coordinates": ({"mesh_shape": [1, 1, 1, 1], "device_coordinates": [[[0, 0, 0]]]}, r"got \(1, 1, 3\)"),
    "ragged coordinates": ({"mesh_shape": [1, 1, 1, 1], "device_coordinates": [CELL[0], []]}, "array of integers"),
    "floats": ({"mesh_shape": [1, 1, 1, 1], "device_coordinates": [[[0.5, 0, 0, 0]]]}, "must be integers"),
    "booleans": ({"mesh_shape": [True] * 4, "device_coordinates": CELL}, "must be integers"),
    "outside": (
        {"mesh_shape": [1, 1, 1, 1], "device_coordinates": [[[0, 0, 0, 1]]]},
        r"device_coordinates\[0, 0\] is \[0, 0, 0, 1\], outside of the mesh shape \[1, 1, 1, 1\]",
    ),
    "negative": ({"mesh_shape": [1, 1, 1, 1], "device_coordinates": [[[0, 0, 0, -1]]]}, "outside of the mesh shape"),
    "one place twice": (
        {"mesh_shape": [1, 1, 1, 1], "device_coordinates": [CELL[0], CELL[0]]},
        r"device_coordinates\[1, 0\] is \[0, 0, 0, 0\], where \(0, 0\) is already",
    ),
    "too large": ({"mesh_shape": [2**31] * 4, "device_coordinates": CELL}, "beyond"),
    "too many places": ({"mesh_shape": [2**20, 2**20, 1, 1], "device_coordinates": CELL}, "places; it may have"),
    "both forms": ({"serialized": b"", "mesh_shape": [1, 1, 1, 1]}, "not both"),
    "no bytes": ({"serialized": 3}, "not a TopologyProto"),
    "a cut message": ({"serialized": b"\x0a"}, "not a TopologyProto"),
    "too few coordinates": (
        {"serialized": bytes.fromhex("0a0401010101 1002 1801 220400000000")},
        "4 device coordinates for 2 tasks with 1 devices each",
    ),
    "negative tasks": (
        {"serialized": bytes.fromhex("0a0401010101 10ffffffffffffffffff01 1801")},
        "topology of -1 tasks",
    ),
    "one rank twice": (
        {"mesh_shape": [2, 1, 1, 1], "device_coordinates": [CELL[0] + [[1, 0, 0, 0]]], "ranks": [[0, 0]]},
        "different from each other",
    ),
    "a negative rank": ({"mesh_shape": [1, 1, 1, 1], "device_coordinates": CELL, "ranks": [[-1]]}, "not negative"),
    "ranks of another shape": ({"mesh_shape": [1, 1, 1, 1], "device_coordinates": CELL, "ranks": [0]}, r"\[1, 1\]"),
}


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


# -- assignments ------------------------------------------------------------------------------------------------------

EXTENTS = st.lists(st.integers(1, 4), min_size=4, max_size=4)


@REPEATABLE
@given(st.data())
def test_replicas_are_boxes_apart(data):
    counts, shape, stride = (data.draw(EXTENTS) for _ in range(3))
    stride = [min(extent, 3) for extent in stride]
    mesh_shape = [min(a * b * c, 6) for a, b, c in zip(counts, shape, stride, strict=True)]
    shape = [min(a, b // c) or 1 for a, b, c in zip(shape, mesh_shape, stride, strict=True)]
    stride = [min(a, b // c) for a, b, c in zip(stride, mesh_shape, shape, strict=True)]
    most = math.prod(n // (a * b) * b for n, a, b in zip(mesh_shape, shape, stride, strict=True))
    count = data.draw(st.integers(0, min(most, 50)))
    assignment = DeviceAssignment.build(row_major(mesh_shape), shape, stride, count)
    cores = assignment.core_assignment
    assert cores.shape == (count, math.prod(shape), 4)
    assert len(np.unique(cores.reshape(-1, 4), axis=0)) == count * math.prod(shape)
    box = {tuple(np.multiply(cell, stride)) for cell in np.ndindex(*shape)}
    for replica in cores:
        assert {tuple(cell) for cell in (replica - replica.min(axis=0)).tolist()} == box


@pytest.mark.parametrize("sizes", [[4, 4, 4], [2, 4, 6], [2, 2, 1], [1, 4, 2], [6, 1, 2]])
def test_rings_close(sizes):
    ring = np.array(topologies._ring(sizes))
    assert {tuple(point) for point in ring.tolist()} == set(np.ndindex(*sizes))
    assert len(ring) == math.prod(sizes)
    assert (abs(ring - np.roll(ring, -1, axis=0)).sum(axis=1) == 1).all()


def test_lines_and_odd_grids_are_no_rings():
    assert topologies._ring([1, 3, 1]) == [(0, 0, 0), (0, 1, 0), (0, 2, 0)]
    assert topologies._ring([3, 2, 1])[:4] == [(0, 0, 0), (1, 0, 0), (2, 0, 0), (0, 1, 0)]


@REPEATABLE
@given(st.integers(1, 10**6), st.integers(1, 4))
def test_roots(value, degree):
    root = topologies._ceil_root(value, degree)
    assert root**degree >= value > (root - 1) ** degree


def degraded():
    """Two tasks of two devices, in a mesh with room for eight."""
    coordinates = [[[0, 0, 0, 1], [1, 1, 0, 1]], [[0, 1, 0, 0], [1, 0, 0, 0]]]
    return Topology(mesh_shape=[2, 2, 1, 2], device_coordinates=coordinates)


def test_missing_devices():
    topology = degraded()
    assert topology.missing_devices.tolist() == [[0, 0, 0, 0], [0, 1, 0, 1], [1, 0, 0, 1], [1, 1, 0, 0]]
    with pytest.raises(MeshError, match=r"no device at coordinates \(0, 0, 0, 0\)"):
        topology.rank_at_coordinates([0, 0, 0, 0])
    for mode in (DeviceOrderMode.AUTO, "MESH"):
        mode = DeviceOrderMode[mode] if isinstance(mode, str) else mode
        assignment = DeviceAssignment.build(topology, [2, 1, 1, 1], num_replicas=2, device_order_mode=mode)
        assert assignment.core_assignment.tolist() == topology.device_coordinates.tolist()
    with pytest.raises(MeshError, match=r"requested 3 replicas of 2 devices each, but .* has 4"):
        DeviceAssignment.build(topology, [2, 1, 1, 1], num_replicas=3)
    with pytest.raises(MeshError, match="4 have no device; there it must be ones"):
        DeviceAssignment.build(topology, None, [2, 1, 1, 1])
    with pytest.raises(MeshError, match="RING is not possible"):
        DeviceAssignment.build(topology, [1, 1, 1, 2], num_replicas=1, device_order_mode=DeviceOrderMode.RING)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((None,), "topology must be a Topology"),
        (("here",), "not a TopologyProto"),
        ((b"",), "mesh_shape must have shape"),
        ((row_major([2, 1, 1, 1]), [1.5, 1, 1, 1]), "computation_shape must be integers"),
        ((row_major([2, 1, 1, 1]), None, "1111"), "computation_stride must be integers"),
        ((row_major([2, 1, 1, 1]), None, None, -1), "requested -1 replicas but only 2"),
        ((row_major([2, 1, 1, 1]), None, None, 1.0), "num_replicas 1.0 is a float"),
        ((row_major([2, 1, 1, 1]), None, None, 1, 7), "7 is not a DeviceOrderMode; there are AUTO, RING, MESH"),
        ((row_major([2, 1, 1, 1]), None, None, 1, DeviceOrderMode.RING), "for 1 replicas of shape"),
    ],
)
def test_build_refuses(arguments, message):
    with pytest.raises(MeshError, match=message):
        DeviceAssignment.build(*arguments)


@pytest.mark.parametrize(
    ("cores", "message"),
    [
        ([[0, 0, 0, 0]], r"core_assignment must have shape \[any, any, 4\]; got \(1, 4\)"),
        ([[[0, 0, 0]]], r"got \(1, 1, 3\)"),
        (np.zeros((2, 0, 4), int), "at least one core"),
        ([[[0, 0, 0, 0]], [[2, 0, 0, 0]]], r"no device at coordinates \(2, 0, 0, 0\)"),
        ([[[0, 0, 0, 0]], [[0, 0, 0, 0]]], r"core_assignment\[1, 0\] is \(0, 0, 0, 0\), as core_assignment\[0, 0\]"),
        (None, "must be integers"),
    ],
)
def test_assignment_refuses(cores, message):
    with pytest.raises(MeshError, match=message):
        DeviceAssignment(row_major([2, 1, 1, 1]), cores)


def test_assignment_lookups_refuse():
    assignment = DeviceAssignment.build(row_major([2, 1, 1, 1]), num_replicas=2)
    assert assignment.coordinates(1, 0) == (1, 0, 0, 0)
    for place in ((2, 0), (-1, 0), (0, 1), (0, -1), (0.0, 0)):
        for lookup in (assignment.coordinates, assignment.tpu_device, assignment.tpu_ordinal, assignment.host_device):
            with pytest.raises(MeshError):
                lookup(*place)
    with pytest.raises(MeshError, match="topology must be a Topology, not 'here'"):
        DeviceAssignment("here", CELL)


def test_no_replicas():
    def program():
        strategy = strategy_of(2, None, replicas=0)
        assert strategy.num_replicas_in_sync == 0
        return strategy.run(lambda: 1)

    assert on_ranks(2, program)[0] == [None, None]


# -- the strategy: who is who, and running steps ----------------------------------------------------------------------


def test_logical_devices_follow_the_assignment():
    """The page's computation shape is a ring: logical device k is not rank k."""

    def program():
        strategy = strategy_of(8, [1, 2, 2, 2], mesh_shape=[1, 2, 2, 2])
        split = strategy.experimental_split_to_logical_devices(np.arange(8), [8])
        assert split.mesh == strategy.replica_mesh() == strategy.replica_mesh([8])
        assert split.mesh.rank == strategy.logical_device_id == split.local.item()
        return strategy.logical_device_id

    assert on_ranks(8, program)[0] == [0, 1, 6, 7, 2, 3, 4, 5]


def test_ids():
    def program():
        strategy = strategy_of(5, row(2), replicas=2)
        assert (strategy.num_replicas_in_sync, strategy.num_logical_devices) == (2, 2)
        assert strategy.device_assignment.num_replicas == 2
        return strategy.replica_id, strategy.logical_device_id

    assert on_ranks(5, program)[0] == [(0, 0), (0, 1), (1, 0), (1, 1), (None, None)]


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
    assert on_ranks(5, program)[0] == [first, first, second, second, None]


@pytest.mark.parametrize(
    ("arguments", "kind", "message"),
    [
        ((lambda x: x, (PerReplica([1, 2, 3]),)), MeshError, "has 3 values for 2 replicas"),
        ((lambda x: x, ([PerReplica([1])],)), MeshError, "has 1 values for 2 replicas"),
        ((lambda x: x, (), {"x": PerReplica([])}), MeshError, "has 0 values for 2 replicas"),
        ((lambda x: x, (PerReplica(()),)), MeshError, "has 0 values for 2 replicas"),
        ((3,), TypeError, "step_fn must be a function, not 3"),
        ((lambda x: x, np.arange(3)), TypeError, "args must be a tuple"),
    ],
)
def test_run_refuses_on_every_rank(arguments, kind, message):
    def program():
        strategy = strategy_of(5, row(2), replicas=2)
        with pytest.raises(kind, match=message):
            strategy.run(*arguments)
        return True

    assert all(on_ranks(5, program)[0])


def test_per_replica_is_a_container():
    assert PerReplica(iter([1, 2])).values == (1, 2)
    assert repr(PerReplica([1, 2])) == "PerReplica([1, 2])"
    with pytest.raises(MeshError, match="one value per replica, in a list, not 3"):
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

    results, _ = on_ranks(8, program)
    for rank, (total, members) in enumerate(results):
        replica = rank // 4
        assert total == arrays[replica].sum()
        assert members == list(range(4 * replica, 4 * replica + 4))


def test_a_world_too_small():
    assignment = DeviceAssignment.build(row_major([4, 1, 1, 1]), row(2), num_replicas=2)

    def program():
        strategy = Strategy(assignment)
        for call in (lambda: strategy.run(int), lambda: strategy.replica_id, strategy.replica_mesh):
            with pytest.raises(MeshError, match="needs ranks up to 3, but the world has 3"):
                call()
        return True

    assert all(on_ranks(3, program)[0])


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
        return True

    assert all(on_ranks(3, program)[0])


def test_one_strategy_in_several_worlds():
    with mc.simulate(4):
        strategy = strategy_of(4, row(4))
    for _ in range(2):

        def step():
            t = strategy.experimental_split_to_logical_devices(np.arange(8), [4])
            return strategy.experimental_split_to_logical_devices(t, [4]).to_numpy().tolist()

        assert on_ranks(4, lambda: strategy.run(step))[0] == [list(range(8))] * 4


def test_close_and_go_on():
    def program():
        strategy = strategy_of(4, row(4))
        for _ in range(3):
            t = strategy.experimental_split_to_logical_devices(np.arange(16).reshape(4, 4), [2, 2])
            one = strategy.experimental_assign_to_logical_device(t, 3)
            assert (one.local is None) == (strategy.logical_device_id != 3)
            strategy.close()
        with pytest.raises(MeshError, match="closed"):
            t.to_numpy()
        return True

    assert all(on_ranks(4, program)[0])


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
        return True

    assert all(on_ranks(count, program)[0])


def test_splitting_again_is_one_exchange():
    whole = np.arange(64, dtype="u1").reshape(8, 8)

    def program():
        strategy = strategy_of(4, row(4))
        t = strategy.experimental_split_to_logical_devices(whole, [4, 1])
        strategy.experimental_split_to_logical_devices(t, [1, 4])

    _, world = on_ranks(4, program)
    assert world.bytes_moved == [12] * 4  # three quarters of 16: no rank ever has the whole tensor


def test_any_tensor_of_the_replica():
    whole = np.arange(24).reshape(4, 6)

    def program():
        strategy = strategy_of(6, row(6))
        mesh = mc.create_mesh([("rows", 2), ("columns", 3)])
        for specs in (["rows", "columns"], [mc.UNSHARDED, ("columns", "rows")], [mc.UNSHARDED, mc.UNSHARDED]):
            t = mc.distribute(whole, mc.Layout(specs, mesh))
            split = strategy.experimental_split_to_logical_devices(t, [1, 6])
            assert np.array_equal(split.local, whole[:, split.mesh.rank : split.mesh.rank + 1])
            everywhere = strategy.experimental_replicate_to_logical_devices(t)
            assert everywhere.mesh is mesh
            assert np.array_equal(everywhere.local, whole)
        return True

    assert all(on_ranks(6, program)[0])


def test_tensors_of_others_are_refused():
    def program():
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
        return True

    assert all(on_ranks(4, program)[0])


def test_replicate():
    def program():
        strategy = strategy_of(2, row(2))
        array = np.arange(6).reshape(2, 3)
        whole = strategy.experimental_replicate_to_logical_devices(array)
        assert whole.layout.is_fully_replicated()
        assert np.array_equal(whole.local, array)
        assert not np.shares_memory(whole.local, array)
        split = strategy.experimental_split_to_logical_devices(whole, [2, 1])
        assert np.array_equal(strategy.experimental_replicate_to_logical_devices(split).local, array)
        assert strategy.experimental_replicate_to_logical_devices(2.5).local == 2.5
        return True

    assert all(on_ranks(2, program)[0])


def test_assign():
    def program():
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
        return True

    assert all(on_ranks(4, program)[0])


@pytest.mark.parametrize("device", [-1, 2, 99, 0.0, True, "0", None])
def test_assign_refuses(device):
    def program():
        strategy = strategy_of(3, row(2))
        with pytest.raises(ValueError, match="logical_device_id"):
            strategy.experimental_assign_to_logical_device(np.zeros(2), device)
        return True

    assert all(on_ranks(3, program)[0])


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

    assert on_ranks(2, program)[0] == [whole.tobytes()] * 2


@pytest.mark.parametrize("dims", ["22", 4, [2, 2.0], [[2], [2]], [True, 4], [None, 4], None])
def test_partitions_that_are_none(dims):
    with pytest.raises(ShapeError, match="partition_dimensions"):
        check_partition((4, 4), dims, 4)


@pytest.mark.parametrize("dims", [[2, 2], (2, 2), np.array([2, 2]), [np.int8(2), np.uint64(2)]])
def test_partitions_of_any_kind(dims):
    assert check_partition((4, 4), dims, 4) == (2, 2)


# -- departures and the page ------------------------------------------------------------------------------------------


def refused_partition(dims):
    with pytest.raises(ShapeError):
        check_partition((4, 4), dims, 8)


def refused_topology(name):
    with pytest.raises(MeshError):
        Topology(**BROKEN_TOPOLOGIES[name][0])


PROOFS = {
    "the strategy": test_ids,
    "the result of a split": lambda: check_split([4], [2], 2),
    "splitting a tensor that is split": test_splitting_again_is_one_exchange,
    "the result of run": test_run_gives_each_replica_its_values,
    "assign_to_logical_device in SPMD mode": test_assign,
    "a scalar, [] and one logical device": lambda: check_split([], [], 1),
    "0 in partition_dimensions": lambda: refused_partition([0, 8]),
    "negative partition_dimensions": lambda: refused_partition([-2, -4]),
    "floats in partition_dimensions": lambda: refused_partition([2.0, 4.0]),
    "device_coordinates of another rank": lambda: refused_topology("coordinates of rank 2"),
    "Topology(serialized, mesh_shape, ...)": lambda: refused_topology("both forms"),
    "two devices at one place": lambda: refused_topology("one place twice"),
    "coordinates without a device": lambda: test_no_device_there((-1, 0, 0, 0)),
    "a replica or core out of range": test_assignment_lookups_refuse,
    "a device in two replicas": lambda: test_assignment_refuses(CELL * 2, r"core_assignment\[1, 0\]"),
    "floats in computation_shape": lambda: test_build_refuses((row_major([2, 1, 1, 1]), [1.5, 1, 1, 1]), "integers"),
    "missing devices with a stride, or too few": test_missing_devices,
    "ranks that are not counted through": test_wire_form_of_ranks_in_turns,
}


@pytest.mark.parametrize("case", DEPARTURES)
def test_departure(case):
    PROOFS[case]()


@pytest.mark.parametrize("case", DEPARTURES)
def test_departures_are_documented(case):
    cells = (cell.replace("|", "\\|") for cell in (case, *DEPARTURES[case]))
    assert f"| {' | '.join(cells)} |" in DOC.read_text().splitlines()


def test_the_page_runs():
    programs = re.findall(r"```python\n(.*?)```", DOC.read_text(), re.DOTALL)
    assert programs
    for text in programs:
        on_ranks(8, lambda text=text: exec(compile(text, str(DOC), "exec"), {}))


def test_layouts_of_the_result_must_name_its_mesh():
    def program():
        strategy = strategy_of(2, row(2))
        split = strategy.experimental_split_to_logical_devices(np.arange(4), [2])
        with pytest.raises(LayoutError):
            mc.Layout(["d1"], split.mesh)
        return True

    assert all(on_ranks(2, program)[0])
