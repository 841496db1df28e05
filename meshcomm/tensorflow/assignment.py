"""Device assignments: the ranks that run each replica together."""

import math
from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from meshcomm.core._arguments import as_integer, counted, quote
from meshcomm.core._tracing import Value
from meshcomm.core._types import Indices
from meshcomm.errors import MeshError
from meshcomm.tensorflow.topology import (
    MESH_RANK,
    Coordinates,
    DeviceOrderMode,
    Int32Array,
    Topology,
    check_int_array,
    check_positive_array,
    readonly_int32,
)

Counts: TypeAlias = NDArray[np.int64]


class DeviceAssignment:
    """The device in a topology of each logical device of each replica; a frozen value.

    *core_assignment* has their coordinates, in shape [replicas, logical devices per replica, 4]. No device appears in
    it twice. ``MeshError`` for anything else. `build` makes an assignment. Source: DeviceAssignment of TensorFlow.

    >>> import meshcomm as mc
    >>> with mc.simulate(4):
    ...     assignment = DeviceAssignment(Topology.from_comm(), [[[0, 3, 0, 0], [0, 0, 0, 0]]])
    >>> assignment.num_replicas, assignment.num_cores_per_replica, assignment.ranks.tolist()
    (1, 2, [[3, 0]])
    """

    __module__ = "meshcomm"

    __slots__ = ("_core_assignment", "_ranks", "_replicas_at", "_topology")

    _topology: Topology
    _core_assignment: Int32Array
    _ranks: Int32Array
    _replicas_at: dict[tuple[int, int], list[int]]

    def __init__(self, topology: Topology, core_assignment: ArrayLike) -> None:
        if not isinstance(topology, Topology):
            raise MeshError(f"topology must be a Topology, not {quote(topology)}, a {type(topology).__name__}")
        self._topology = topology
        self._core_assignment = check_int_array(core_assignment, "core_assignment", (None, None, MESH_RANK))
        if not self.num_cores_per_replica:
            raise MeshError(
                f"core_assignment has shape {self._core_assignment.shape}; a replica has at least one core"
            )
        self._ranks, self._replicas_at = self._ranks_and_replicas()

    def _ranks_and_replicas(self) -> tuple[Int32Array, dict[tuple[int, int], list[int]]]:
        """Return the rank of each logical device, and the replicas by the task and the number of a logical device."""
        ranks = np.empty(self._core_assignment.shape[:2], dtype=np.int32)
        replicas_at: dict[tuple[int, int], list[int]] = {}
        owners: dict[int, tuple[int, int]] = {}
        for replica, core in np.ndindex(*ranks.shape):
            coordinates = tuple(self._core_assignment[replica, core].tolist())
            device = self._topology._device_at(coordinates)
            ranks[replica, core] = rank = int(self._topology.ranks[device])
            if owners.setdefault(rank, (replica, core)) != (replica, core):
                raise MeshError(
                    f"core_assignment[{replica}, {core}] is {coordinates}, as core_assignment{list(owners[rank])} "
                    "is already; a device can be only one logical device"
                )
            replicas_at.setdefault((device.task, core), []).append(replica)
        return readonly_int32(ranks), replicas_at

    @classmethod
    def build(
        cls,
        topology: Topology | bytes,
        computation_shape: ArrayLike | None = None,
        computation_stride: ArrayLike | None = None,
        num_replicas: int = 1,
        device_order_mode: DeviceOrderMode = DeviceOrderMode.AUTO,
    ) -> "DeviceAssignment":
        """Return the assignment of *num_replicas* boxes of *computation_shape* devices in *topology*.

        In a topology with missing devices, replicas take devices in the order of tasks. ``MeshError`` if the boxes do
        not fit, or the order is not possible.

        Parameters
        ----------
        topology: a topology, or its wire form
        computation_shape: the devices of a replica along each coordinate, by default ones
        computation_stride: the distance between neighbours in a box along each coordinate, by default ones; devices of
            other replicas lie between them
        num_replicas: the number of boxes
        device_order_mode: the order of the replicas and of their logical devices

        >>> import meshcomm as mc
        >>> with mc.simulate(8):
        ...     topology = Topology.from_comm(mesh_shape=[2, 2, 2, 1])
        >>> DeviceAssignment.build(topology, [1, 2, 2, 1], num_replicas=2).ranks.tolist()
        [[0, 2, 3, 1], [4, 6, 7, 5]]
        >>> DeviceAssignment.build(topology, [1, 2, 2, 1], num_replicas=2, device_order_mode=DeviceOrderMode.MESH)
        DeviceAssignment of 2 replicas x 4 logical devices: ranks [[0, 1, 2, 3], [4, 5, 6, 7]]
        """
        if not isinstance(topology, Topology):
            topology = Topology(_checked_not_none(topology))
        shape = _axis_values(computation_shape, "computation_shape")
        stride = _axis_values(computation_stride, "computation_stride")
        count, mode = as_integer(num_replicas, "num_replicas"), _order_mode(device_order_mode)
        counts = _replica_counts(topology.mesh_shape, shape, stride)
        _check_count(count, counts, topology, shape, stride)
        allows_rings = _allows_rings(topology, shape, stride, count, counts)
        if mode is DeviceOrderMode.RING and not allows_rings:
            raise MeshError(
                f"device_order_mode RING is not possible for {count} replicas of shape {shape.tolist()} and "
                f"computation_stride {stride.tolist()} in {topology!r}: it needs all replicas that fit, all cores of "
                "a chip in one replica, a stride of ones and no missing devices. AUTO takes what is possible"
            )
        if len(topology.missing_devices):
            return cls(topology, _task_coordinates(topology, shape, stride, count))
        order = _ring_coordinates if allows_rings and mode is not DeviceOrderMode.MESH else _row_coordinates
        return cls(topology, order(shape, stride, _replica_box(counts.tolist(), count), count))

    @property
    def topology(self) -> Topology:
        """The topology."""
        return self._topology

    @property
    def num_replicas(self) -> int:
        """The number of replicas."""
        return len(self._core_assignment)

    @property
    def num_cores_per_replica(self) -> int:
        """The number of logical devices of each replica."""
        return int(self._core_assignment.shape[1])

    @property
    def core_assignment(self) -> Int32Array:
        """The coordinates of each logical device, of shape [replicas, logical devices, 4].

        >>> topology = Topology(mesh_shape=[2, 1, 1, 1], device_coordinates=[[[0, 0, 0, 0], [1, 0, 0, 0]]])
        >>> DeviceAssignment.build(topology, num_replicas=2).core_assignment.tolist()
        [[[0, 0, 0, 0]], [[1, 0, 0, 0]]]
        """
        return self._core_assignment

    @property
    def ranks(self) -> Int32Array:
        """The rank of each logical device, of shape [replicas, logical devices]."""
        return self._ranks

    def coordinates(self, replica: int, logical_core: int) -> Coordinates:
        """Return the coordinates of a logical device; ``MeshError`` if there is none.

        >>> topology = Topology(mesh_shape=[2, 1, 1, 1], device_coordinates=[[[0, 0, 0, 0]], [[1, 0, 0, 0]]])
        >>> DeviceAssignment.build(topology, num_replicas=2).coordinates(replica=1, logical_core=0)
        (1, 0, 0, 0)
        """
        for name, value, size in (
            ("replica", replica, self.num_replicas),
            ("logical_core", logical_core, self.num_cores_per_replica),
        ):
            if not 0 <= as_integer(value, name) < size:
                raise MeshError(f"{name} {quote(value)} of an assignment with {size}; it must be 0 <= {name} < {size}")
        return tuple(self._core_assignment[replica, logical_core].tolist())

    def tpu_ordinal(self, replica: int = 0, logical_core: int = 0) -> int:
        """Return the number of a logical device in its task; ``MeshError`` if there is none.

        >>> topology = Topology(mesh_shape=[2, 1, 1, 1], device_coordinates=[[[0, 0, 0, 0], [1, 0, 0, 0]]])
        >>> DeviceAssignment.build(topology, num_replicas=2).tpu_ordinal(replica=1)
        1
        """
        return self._topology.tpu_device_ordinal_at_coordinates(self.coordinates(replica, logical_core))

    def tpu_device(self, replica: int = 0, logical_core: int = 0, job: str | None = None) -> str:
        """Return the name of a logical device; ``MeshError`` if there is none.

        >>> topology = Topology(mesh_shape=[2, 1, 1, 1], device_coordinates=[[[0, 0, 0, 0], [1, 0, 0, 0]]])
        >>> DeviceAssignment.build(topology, num_replicas=2).tpu_device(replica=1)
        '/task:0/device:TPU:1'
        """
        return self._topology.tpu_device_name_at_coordinates(self.coordinates(replica, logical_core), job)

    def host_device(self, replica: int = 0, logical_core: int = 0, job: str | None = None) -> str:
        """Return the name of the host of a logical device; ``MeshError`` if there is none.

        >>> topology = Topology(mesh_shape=[2, 1, 1, 1], device_coordinates=[[[0, 0, 0, 0], [1, 0, 0, 0]]])
        >>> DeviceAssignment.build(topology, num_replicas=2).host_device(replica=1)
        '/task:0/device:CPU:0'
        """
        return self._topology.cpu_device_name_at_coordinates(self.coordinates(replica, logical_core), job)

    def lookup_replicas(self, task_id: int, logical_core: int) -> list[int]:
        """Return the replicas with this *logical_core* in task *task_id*, ascending; ``MeshError`` if none has.

        >>> topology = Topology(mesh_shape=[2, 1, 1, 1], device_coordinates=[[[0, 0, 0, 0], [1, 0, 0, 0]]])
        >>> DeviceAssignment.build(topology, num_replicas=2).lookup_replicas(task_id=0, logical_core=0)
        [0, 1]
        """
        replicas = self._replicas_at.get((as_integer(task_id, "task_id"), as_integer(logical_core, "logical_core")))
        if replicas is None:
            raise MeshError(f"no replica has its logical core {logical_core} in task {task_id}: {self!r}")
        return list(replicas)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, DeviceAssignment):
            return NotImplemented
        is_equal = np.array_equal(self._core_assignment, other._core_assignment)
        return self is other or (is_equal and self._topology == other._topology)

    def __hash__(self) -> int:
        return hash((self._topology, self._core_assignment.tobytes()))

    def __repr__(self) -> str:
        sizes = f"{self.num_replicas} replicas x {self.num_cores_per_replica} logical devices"
        return f"DeviceAssignment of {sizes}: ranks {quote(self._ranks.tolist())}"

    def __reduce__(self) -> tuple[type["DeviceAssignment"], tuple[Topology, Int32Array]]:
        return DeviceAssignment, (self._topology, self._core_assignment)


def _checked_not_none(topology: object) -> object:
    if topology is None:
        raise MeshError("topology must be a Topology or its wire form, not None")
    return topology


def _order_mode(mode: Value) -> DeviceOrderMode:
    try:
        return DeviceOrderMode(mode)
    except ValueError:
        names = ", ".join(known_mode.name for known_mode in DeviceOrderMode)
        raise MeshError(
            f"device_order_mode {quote(mode)} is not a DeviceOrderMode; it must be one of {names}"
        ) from None


def _axis_values(values: ArrayLike | None, argument_name: str) -> Int32Array:
    return check_positive_array(np.ones(MESH_RANK, dtype=int) if values is None else values, argument_name)


def _replica_counts(mesh_shape: Int32Array, shape: Int32Array, stride: Int32Array) -> Counts:
    """Return the number of replicas that fit along each coordinate."""
    strides: Counts = stride.astype(np.int64)
    footprint: Counts = shape.astype(np.int64) * strides
    if (footprint > mesh_shape).any():
        raise MeshError(
            f"computation footprint {footprint.tolist()} does not fit in a topology of shape {mesh_shape.tolist()}; "
            f"it is computation_shape {shape.tolist()} times computation_stride {stride.tolist()}"
        )
    return mesh_shape.astype(np.int64) // footprint * strides  # replicas interleave in a footprint


def _check_count(count: int, counts: Counts, topology: Topology, shape: Int32Array, stride: Int32Array) -> None:
    limit = math.prod(counts.tolist())
    if not 0 <= count <= limit:
        raise MeshError(
            f"requested {count} replicas but only {limit} replicas with shape {shape.tolist()} and "
            f"computation_stride {stride.tolist()} fit in a mesh of shape {topology.mesh_shape.tolist()}"
        )


def _allows_rings(topology: Topology, shape: Int32Array, stride: Int32Array, count: int, counts: Counts) -> bool:
    """Return whether the replicas fill the topology with whole chips; these can be ordered along rings."""
    whole_chips = bool(shape[-1] == topology.mesh_shape[-1] and (stride == 1).all())
    return whole_chips and count == math.prod(counts.tolist()) and not len(topology.missing_devices)


def _ceil_root(value: int, degree: int) -> int:
    """Return the smallest integer n with ``n**degree >= value``."""
    root: int = max(1, math.floor(value ** (1 / degree)) - 1)
    while root**degree < value:
        root += 1
    return root


def _replica_box(counts: list[int], num_replicas: int) -> list[int]:
    """Return the shape of a box of *num_replicas* replicas or more, as close to a cube as *counts* allow.

    The coordinate with the smallest count is fixed first, because it has the least choice. Among equal ones, core
    comes first, so that replicas share a chip; then come x, y, z.

    >>> _replica_box([4, 4, 1, 1], 6), _replica_box([2, 2, 1, 2], 4)
    ([3, 2, 1, 1], [2, 1, 1, 2])
    """
    remaining_replicas, box = num_replicas, list(counts)
    axes = sorted(range(MESH_RANK), key=lambda axis: (counts[axis], (axis + 1) % MESH_RANK))
    for position, axis in enumerate(axes):
        box[axis] = min(_ceil_root(remaining_replicas, MESH_RANK - position), counts[axis])
        remaining_replicas = -(-remaining_replicas // box[axis])
    return box


def _row_coordinates(shape: Int32Array, stride: Int32Array, box: list[int], num_replicas: int) -> Indices:
    """Return the coordinates of all logical devices, row by row.

    Among replicas core varies fastest, then x, y, z. The devices of a replica are in row-major order.
    """
    x, y, z, core = box
    numbers = np.unravel_index(np.arange(num_replicas), (z, y, x, core))
    positions = np.stack([numbers[2], numbers[1], numbers[0], numbers[3]], axis=-1)
    starts = positions // stride * (shape * stride) + positions % stride
    offsets = np.indices(shape.tolist()).reshape(MESH_RANK, -1).T * stride
    return starts[:, None, :] + offsets[None, :, :]


def _ring_coordinates(shape: Int32Array, stride: Int32Array, box: list[int], num_replicas: int) -> Indices:
    """Return the coordinates of all logical devices; the replicas, and the chips in each replica, follow a ring."""
    chips = np.repeat(_ring(shape[:3].tolist()), shape[3], axis=0)
    cores = np.tile(np.arange(shape[3]), len(chips) // shape[3])
    offsets = np.column_stack([chips, cores])
    rings = np.array(_ring(box[:3]))
    starts = np.column_stack([rings, np.zeros(len(rings), dtype=int)]) * shape
    coordinates: Indices = starts[:, None, :] + offsets[None, :, :]
    return coordinates[:num_replicas]


def _ring(sizes: Sequence[int]) -> list[Coordinates]:
    """Return the points of a grid in the order of a ring: neighbours, also the last and the first, are one step apart.

    The ring starts at the corner of the first layer. It goes through the other points of each layer, forth and back in
    turn, and returns along the corners of the layers. If a size is odd there is no ring: the points come row by row, x
    fastest.

    >>> _ring([4, 2])
    [(0, 0), (1, 0), (2, 0), (3, 0), (3, 1), (2, 1), (1, 1), (0, 1)]
    """
    if sum(size > 1 for size in sizes) > 1 and any(size > 1 and size % 2 for size in sizes):
        return [tuple(reversed(point)) for point in np.ndindex(*reversed(sizes))]
    ring: list[Coordinates] = [()]
    for size in sizes:
        corner, points = ring[0], ring[1:]
        corners = [(*corner, layer) for layer in range(size)]
        if not points:
            ring = corners
        else:
            layer_points = [(*point, i) for i in range(size) for point in (points[::-1] if i % 2 else points)]
            ring = [corners[0], *layer_points, *reversed(corners[1:])]
    return ring


def _task_coordinates(topology: Topology, shape: Int32Array, stride: Int32Array, num_replicas: int) -> Int32Array:
    """Return the coordinates of all logical devices in a topology with missing devices, in the order of tasks."""
    cores = math.prod(shape.tolist())
    devices = topology.device_coordinates.reshape(-1, MESH_RANK)
    if (stride > 1).any():
        raise MeshError(
            f"computation_stride {stride.tolist()} in {topology!r}, which has {len(topology.missing_devices)} missing "
            "devices; there it must be ones"
        )
    if num_replicas * cores > len(devices):
        raise MeshError(
            f"requested {num_replicas} replicas of {counted(cores, 'device')} each, but {topology!r} has "
            f"{len(devices)}"
        )
    return devices[: num_replicas * cores].reshape(num_replicas, cores, MESH_RANK)
