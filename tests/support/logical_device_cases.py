"""Topologies and strategies for tests."""

import numpy as np
from hypothesis import settings

from meshcomm import DeviceAssignment, Strategy, Topology
from support.sampling import examples

REPEATABLE = settings(derandomize=True, database=None, deadline=None, max_examples=examples(200))


def row_major(mesh_shape, num_tasks=1):
    """The topology of the recorded cases: devices row-major, evenly over the tasks."""
    coordinates = np.indices(mesh_shape).reshape(4, -1).T.reshape(num_tasks, -1, 4)
    return Topology(mesh_shape=mesh_shape, device_coordinates=coordinates)


def strategy_of(size, shape, replicas=1, mesh_shape=None, **options):
    topology = Topology.from_comm(mesh_shape=mesh_shape or [size, 1, 1, 1])
    return Strategy(DeviceAssignment.build(topology, shape, num_replicas=replicas, **options))


def row(cores):
    return [cores, 1, 1, 1]


CELL = [[[0, 0, 0, 0]]]


def at(coordinates, shape=(1, 1, 1, 1), **more):
    """Return the arguments of a topology of this shape, with devices at these coordinates."""
    return {"mesh_shape": list(shape), "device_coordinates": coordinates, **more}


BROKEN_TOPOLOGIES = {
    "nothing": ({}, "mesh_shape must be integers, not None"),
    "three extents": (at(CELL, (1, 1, 1)), r"shape \[4\]; got \(3,\)"),
    "an extent of zero": (at(CELL, (1, 0, 1, 1)), "positive; got mesh_shape="),
    "no coordinates": ({"mesh_shape": [1, 1, 1, 1]}, "device_coordinates must be integers, not None"),
    "coordinates with two axes": (at(CELL[0]), r"shape \[any, any, 4\]; got \(1, 4\)"),
    "three coordinates": (at([[[0, 0, 0]]]), r"got \(1, 1, 3\)"),
    "ragged coordinates": (at([CELL[0], []]), "array of integers"),
    "floats": (at([[[0.5, 0, 0, 0]]]), "must be integers"),
    "booleans": (at(CELL, [True] * 4), "must be integers"),
    "outside": (
        at([[[0, 0, 0, 1]]]),
        r"device_coordinates\[0, 0\] is \[0, 0, 0, 1\], outside of the mesh shape \[1, 1, 1, 1\]",
    ),
    "negative": (at([[[0, 0, 0, -1]]]), "outside of the mesh shape"),
    "one location twice": (
        at([CELL[0], CELL[0]]),
        r"device_coordinates\[1, 0\] is \[0, 0, 0, 0\], where device \(0, 0\) is already",
    ),
    "too large": (at(CELL, [2**31] * 4), "beyond"),
    "too many devices": (at(CELL, [2**20, 2**20, 1, 1]), "holds 1099511627776 devices; at most"),
    "both forms": ({"serialized": b"", "mesh_shape": [1, 1, 1, 1]}, "not both"),
    "no bytes": ({"serialized": 3}, "not a TopologyProto"),
    "a cut message": ({"serialized": b"\x0a"}, "not a TopologyProto"),
    "too few coordinates": (
        {"serialized": bytes.fromhex("0a0401010101 1002 1801 220400000000")},
        "4 device coordinates for 2 tasks with 1 device each",
    ),
    "negative tasks": (
        {"serialized": bytes.fromhex("0a0401010101 10ffffffffffffffffff01 1801")},
        "topology of -1 tasks",
    ),
    "one rank twice": (at([CELL[0] + [[1, 0, 0, 0]]], (2, 1, 1, 1), ranks=[[0, 0]]), "different from each other"),
    "a negative rank": (at(CELL, ranks=[[-1]]), "not negative"),
    "ranks of another shape": (at(CELL, ranks=[0]), r"\[1, 1\]"),
}


def degraded():
    """Two tasks of two devices, in a mesh of eight."""
    coordinates = [[[0, 0, 0, 1], [1, 1, 0, 1]], [[0, 1, 0, 0], [1, 0, 0, 0]]]
    return Topology(mesh_shape=[2, 2, 1, 2], device_coordinates=coordinates)
