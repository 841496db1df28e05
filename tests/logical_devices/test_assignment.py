"""Device assignments: which devices a replica has."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshcomm import DeviceAssignment, DeviceOrderMode
from meshcomm.errors import MeshError
from meshcomm.tensorflow import assignment
from support.logical_device_cases import CELL, REPEATABLE, degraded, row_major, strategy_of
from support.tensors import on

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
    ring = np.array(assignment._ring(sizes))
    assert {tuple(point) for point in ring.tolist()} == set(np.ndindex(*sizes))
    assert len(ring) == math.prod(sizes)
    assert (abs(ring - np.roll(ring, -1, axis=0)).sum(axis=1) == 1).all()


def test_lines_and_odd_grids_are_no_rings():
    assert assignment._ring([1, 3, 1]) == [(0, 0, 0), (0, 1, 0), (0, 2, 0)]
    assert assignment._ring([3, 2, 1])[:4] == [(0, 0, 0), (1, 0, 0), (2, 0, 0), (0, 1, 0)]


@REPEATABLE
@given(st.integers(1, 10**6), st.integers(1, 4))
def test_roots(value, degree):
    root = assignment._ceil_root(value, degree)
    assert root**degree >= value > (root - 1) ** degree


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
    with pytest.raises(MeshError, match="4 missing devices; there it must be ones"):
        DeviceAssignment.build(topology, None, [2, 1, 1, 1])


def test_a_ring_with_missing_devices():
    with pytest.raises(MeshError, match="RING is not possible"):
        DeviceAssignment.build(degraded(), [1, 1, 1, 2], num_replicas=1, device_order_mode=DeviceOrderMode.RING)


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
        (
            (row_major([2, 1, 1, 1]), None, None, 1, 7),
            "7 is not a DeviceOrderMode; it must be one of AUTO, RING, MESH",
        ),
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

    assert on(2, program) == [None, None]
