"""Topologies: the coordinates of ranks.

A `Topology` gives each rank a device with integer coordinates (x, y, z, core). It is a pure value; only
`Topology.from_comm` communicates. Source: Topology of TensorFlow, where a device is a TPU core.
"""

import math
from collections.abc import Sequence
from enum import IntEnum
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from meshcomm.blocks.session import Session, in_session
from meshcomm.core._arguments import counted, quote
from meshcomm.core._json import read
from meshcomm.core._types import Indices
from meshcomm.core.layouts import wire
from meshcomm.core.layouts.mesh import Mesh
from meshcomm.core.ranks.hosts import this_host
from meshcomm.core.ranks.meshes import create_mesh
from meshcomm.core.ranks.simulate import current_world
from meshcomm.errors import MeshError

if TYPE_CHECKING:
    from mpi4py import MPI

Int32Array: TypeAlias = NDArray[np.int32]
Coordinates: TypeAlias = tuple[int, ...]

MESH_RANK = 4
"""The number of coordinates of a device: x, y, z, core."""

_INT32_MAX = 2**31 - 1
"""The largest allowed value: arrays are int32. Fields of the wire form are int64: a message may hold larger ones."""

_MAX_DEVICES = 2**24
"""The largest allowed product of a mesh shape: `Topology.missing_devices` allocates a boolean array of that size."""

TOPOLOGY_MESSAGE = wire.MessageType(
    "tensorflow.tpu.TopologyProto",
    (
        wire.Field(1, "mesh_shape", "int64", repeated=True),
        wire.Field(2, "num_tasks", "int64"),
        wire.Field(3, "num_tpu_devices_per_task", "int64"),
        wire.Field(4, "device_coordinates", "int64", repeated=True),
        wire.Field(1000, "ranks", "int64", repeated=True),  # our own field; absent if the ranks are 0, 1, 2, ...
    ),
)


class DeviceOrderMode(IntEnum):
    """The order of replicas and of their logical devices: along rings (RING), or row by row (MESH).

    AUTO means RING where that is possible, and MESH elsewhere.
    """

    __module__ = "meshcomm"

    AUTO = 0
    RING = 1
    MESH = 2


class _Device(NamedTuple):
    """A device, by its task and its number in the task."""

    task: int
    number: int


class Topology:
    """The devices of a system and their integer coordinates (x, y, z, core). One device is one rank; a frozen value.

    `from_comm` makes the topology of the ranks of a job. ``MeshError`` if the arguments do not fit together. Source:
    Topology of TensorFlow.

    Parameters
    ----------
    serialized: the wire form, instead of all other arguments
    mesh_shape: the extent along each coordinate
    device_coordinates: the coordinates of each device, of shape [tasks, devices per task, 4]; a task is a host
    ranks: the rank of each device in the world, of shape [tasks, devices per task]; by default 0, 1, 2, ...

    >>> topology = Topology(mesh_shape=[2, 1, 1, 2], device_coordinates=[[[0, 0, 0, 0], [0, 0, 0, 1]],
    ...                                                                  [[1, 0, 0, 0], [1, 0, 0, 1]]])
    >>> topology.num_tasks, topology.num_tpus_per_task
    (2, 2)
    >>> topology.tpu_device_name_at_coordinates([1, 0, 0, 1], job="w"), topology.rank_at_coordinates([1, 0, 0, 1])
    ('/job:w/task:1/device:TPU:1', 3)
    """

    __module__ = "meshcomm"

    __slots__ = ("_comm", "_device_coordinates", "_devices", "_mesh_shape", "_missing", "_ranks")

    _mesh_shape: Int32Array
    _device_coordinates: Int32Array
    _ranks: Int32Array
    _devices: dict[Coordinates, _Device]
    _missing: Int32Array | None
    _comm: "MPI.Intracomm | None"  # the ranks are those of this communicator; not part of the value

    def __init__(
        self,
        serialized: object = None,
        mesh_shape: ArrayLike | None = None,
        device_coordinates: ArrayLike | None = None,
        *,
        ranks: ArrayLike | None = None,
    ) -> None:
        if serialized is not None:
            if mesh_shape is not None or device_coordinates is not None or ranks is not None:
                raise MeshError(
                    "a topology takes its wire form, or its mesh_shape, device_coordinates and ranks, not both"
                )
            mesh_shape, device_coordinates, ranks = _parsed_topology(serialized)
        self._mesh_shape = check_positive_array(mesh_shape, "mesh_shape", (MESH_RANK,))
        size = math.prod(self._mesh_shape.tolist())
        if size > _MAX_DEVICES:
            raise MeshError(
                f"mesh_shape {self._mesh_shape.tolist()} holds {counted(size, 'device')}; at most {_MAX_DEVICES}"
            )
        self._device_coordinates = check_int_array(device_coordinates, "device_coordinates", (None, None, MESH_RANK))
        self._devices = _devices_of(self._device_coordinates, self._mesh_shape)
        self._ranks = _ranks_of(ranks, (self.num_tasks, self.num_tpus_per_task))
        self._missing = self._comm = None

    @classmethod
    def from_comm(cls, comm: "MPI.Intracomm | None" = None, mesh_shape: ArrayLike | None = None) -> "Topology":
        """Return the topology of the ranks of a world: a task is a host, its devices are its ranks. Collective.

        The world is *comm*, or the world of the enclosing `simulate`, or COMM_WORLD. Hosts are ordered by their lowest
        rank. If they have different numbers of ranks, each rank is a task of its own. The devices fill *mesh_shape*
        in row-major order; these 4 integers multiply to the number of ranks. By default they are
        [hosts, ranks per host, 1, 1], or [ranks, 1, 1, 1] if each rank is a task. ``MeshError`` on all ranks if
        *mesh_shape* is anything else.

        >>> import meshcomm as mc
        >>> with mc.simulate(8):
        ...     print(Topology.from_comm(), Topology.from_comm(mesh_shape=[1, 2, 2, 2]))
        Topology([1, 8, 1, 1], tasks=1, devices=8) Topology([1, 2, 2, 2], tasks=1, devices=8)
        """
        world = current_world() if comm is None else None
        if world is not None:
            hosts = ["this"] * world.size
            shape = _check_mesh_shape(mesh_shape, world.size)
        else:
            hosts, shape = _allgather_hosts(create_mesh(comm=comm), mesh_shape)
        topology = cls._of_hosts(hosts, shape)
        topology._comm = comm
        return topology

    @classmethod
    def _of_hosts(cls, hosts: Sequence[str], shape: list[int] | None) -> "Topology":
        """Return the topology of ranks; rank i is on ``hosts[i]``."""
        ranks = _ranks_by_host(hosts)
        if shape is None:
            shape = [*ranks.shape, 1, 1]
        coordinates = np.indices(shape).reshape(MESH_RANK, -1).T.reshape(*ranks.shape, MESH_RANK)
        return cls(mesh_shape=shape, device_coordinates=coordinates, ranks=ranks)

    @property
    def mesh_rank(self) -> int:
        """The number of coordinates of a device, 4."""
        return MESH_RANK

    @property
    def mesh_shape(self) -> Int32Array:
        """The extent along each coordinate."""
        return self._mesh_shape

    @property
    def num_tasks(self) -> int:
        """The number of tasks."""
        return len(self._device_coordinates)

    @property
    def num_tpus_per_task(self) -> int:
        """The number of devices of each task."""
        return int(self._device_coordinates.shape[1])

    @property
    def device_coordinates(self) -> Int32Array:
        """The coordinates of each device, of shape [tasks, devices per task, 4].

        >>> import meshcomm as mc
        >>> with mc.simulate(2):
        ...     print(Topology.from_comm().device_coordinates.tolist())
        [[[0, 0, 0, 0], [0, 1, 0, 0]]]
        """
        return self._device_coordinates

    @property
    def ranks(self) -> Int32Array:
        """The rank of each device, of shape [tasks, devices per task]."""
        return self._ranks

    @property
    def missing_devices(self) -> Int32Array:
        """The coordinates within the mesh shape that have no device, of shape [any, 4].

        >>> Topology(mesh_shape=[2, 1, 1, 1], device_coordinates=[[[0, 0, 0, 0]]]).missing_devices.tolist()
        [[1, 0, 0, 0]]
        """
        if self._missing is None:
            is_missing = np.ones(self._mesh_shape, dtype=bool)
            is_missing[tuple(self._device_coordinates.reshape(-1, MESH_RANK).T)] = False
            self._missing = readonly_int32(np.argwhere(is_missing))
        return self._missing

    def task_ordinal_at_coordinates(self, device_coordinates: Sequence[int]) -> int:
        """Return the task of the device at *device_coordinates*; ``MeshError`` if there is none.

        >>> hosts = [[[0, 0, 0, 0], [0, 0, 0, 1]], [[1, 0, 0, 0], [1, 0, 0, 1]]]  # two devices on each of two hosts
        >>> Topology(mesh_shape=[2, 1, 1, 2], device_coordinates=hosts).task_ordinal_at_coordinates([1, 0, 0, 0])
        1
        """
        return self._device_at(_checked_point(device_coordinates)).task

    def tpu_device_ordinal_at_coordinates(self, device_coordinates: Sequence[int]) -> int:
        """Return the number in its task of the device at *device_coordinates*; ``MeshError`` if there is none.

        >>> hosts = [[[0, 0, 0, 0], [0, 0, 0, 1]], [[1, 0, 0, 0], [1, 0, 0, 1]]]  # two devices on each of two hosts
        >>> Topology(mesh_shape=[2, 1, 1, 2], device_coordinates=hosts).tpu_device_ordinal_at_coordinates([1, 0, 0, 0])
        0
        """
        return self._device_at(_checked_point(device_coordinates)).number

    def rank_at_coordinates(self, device_coordinates: Sequence[int]) -> int:
        """Return the rank in the world of the device at *device_coordinates*; ``MeshError`` if there is none.

        >>> hosts = [[[0, 0, 0, 0], [0, 0, 0, 1]], [[1, 0, 0, 0], [1, 0, 0, 1]]]  # two devices on each of two hosts
        >>> Topology(mesh_shape=[2, 1, 1, 2], device_coordinates=hosts).rank_at_coordinates([1, 0, 0, 0])
        2
        """
        return int(self._ranks[self._device_at(_checked_point(device_coordinates))])

    def cpu_device_name_at_coordinates(self, device_coordinates: Sequence[int], job: str | None = None) -> str:
        """Return the name of the host of the device at *device_coordinates*; ``MeshError`` if there is none.

        >>> hosts = [[[0, 0, 0, 0], [0, 0, 0, 1]], [[1, 0, 0, 0], [1, 0, 0, 1]]]  # two devices on each of two hosts
        >>> Topology(mesh_shape=[2, 1, 1, 2], device_coordinates=hosts).cpu_device_name_at_coordinates([1, 0, 0, 0])
        '/task:1/device:CPU:0'
        """
        return f"{_task_name(self._device_at(_checked_point(device_coordinates)), job)}/device:CPU:0"

    def tpu_device_name_at_coordinates(self, device_coordinates: Sequence[int], job: str | None = None) -> str:
        """Return the name of the device at *device_coordinates*; ``MeshError`` if there is none.

        >>> hosts = [[[0, 0, 0, 0], [0, 0, 0, 1]], [[1, 0, 0, 0], [1, 0, 0, 1]]]  # two devices on each of two hosts
        >>> Topology(mesh_shape=[2, 1, 1, 2], device_coordinates=hosts).tpu_device_name_at_coordinates([1, 0, 0, 1])
        '/task:1/device:TPU:1'
        """
        device = self._device_at(_checked_point(device_coordinates))
        return f"{_task_name(device, job)}/device:TPU:{device.number}"

    def _device_at(self, coordinates: Coordinates) -> _Device:
        device = self._devices.get(coordinates)
        if device is None:
            raise MeshError(
                f"there is no device at coordinates {coordinates}: the topology has shape "
                f"{self._mesh_shape.tolist()} and {counted(len(self._devices), 'device')}"
            )
        return device

    def serialized(self) -> bytes:
        """Return the bytes of the topology's TopologyProto.

        If the ranks are not 0, 1, 2, ..., they are in a field of our own, which other readers skip.

        >>> topology = Topology(mesh_shape=[1, 1, 1, 1], device_coordinates=[[[0, 0, 0, 0]]])
        >>> topology.serialized().hex(), Topology(topology.serialized()) == topology
        ('0a040101010110011801220400000000', True)
        """
        ranks = self._ranks.reshape(-1)
        values = {
            "mesh_shape": self._mesh_shape.tolist(),
            "num_tasks": self.num_tasks,
            "num_tpu_devices_per_task": self.num_tpus_per_task,
            "device_coordinates": self._device_coordinates.reshape(-1).tolist(),
            "ranks": [] if np.array_equal(ranks, np.arange(len(ranks))) else ranks.tolist(),
        }
        return wire.encode(TOPOLOGY_MESSAGE, values)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Topology):
            return NotImplemented
        return self is other or self.serialized() == other.serialized()

    def __hash__(self) -> int:
        return hash(self.serialized())

    def __repr__(self) -> str:
        return f"Topology({self._mesh_shape.tolist()}, tasks={self.num_tasks}, devices={self._ranks.size})"

    def __reduce__(self) -> tuple[type["Topology"], tuple[bytes]]:
        return Topology, (self.serialized(),)


def readonly_int32(values: ArrayLike) -> Int32Array:
    """Return a read-only int32 copy of *values*."""
    array = np.array(values, dtype=np.int32)
    array.flags.writeable = False
    return array


def check_int_array(values: object, argument_name: str, shape: tuple[int | None, ...]) -> Int32Array:
    """Return *values* as a read-only int32 array of *shape*; None in *shape* is any length. ``MeshError`` if not."""
    try:
        array = np.asarray(values)
    except (ValueError, OverflowError):
        raise MeshError(f"{argument_name} must be an array of integers, not {quote(values)}") from None
    if array.dtype.kind not in "iu" and array.size:
        raise MeshError(f"{argument_name} must be integers, not {quote(values)}")
    if array.ndim != len(shape) or any(n not in (None, m) for n, m in zip(shape, array.shape, strict=True)):
        shape_text = ", ".join("any" if n is None else str(n) for n in shape)
        raise MeshError(f"{argument_name} must have shape [{shape_text}]; got {array.shape}")
    if array.size and not -_INT32_MAX <= int(array.min()) <= int(array.max()) <= _INT32_MAX:
        raise MeshError(f"{argument_name} {quote(array.tolist())} has numbers beyond 2**31 - 1")
    return readonly_int32(array)


def _checked_point(device_coordinates: Sequence[int]) -> Coordinates:
    return tuple(check_int_array(device_coordinates, "device_coordinates", (MESH_RANK,)).tolist())


def check_positive_array(
    values: object, argument_name: str, shape: tuple[int | None, ...] = (MESH_RANK,)
) -> Int32Array:
    """Return *values* as `check_int_array` does; ``MeshError`` unless all are positive."""
    array = check_int_array(values, argument_name, shape)
    if (array < 1).any():
        raise MeshError(f"{argument_name} must be positive; got {argument_name}={array.tolist()}")
    return array


def _parsed_topology(serialized: object) -> tuple[list[int], NDArray[np.int64], NDArray[np.int64] | None]:
    """Return the mesh shape, coordinates and ranks of a TopologyProto."""
    try:
        values = wire.decode(TOPOLOGY_MESSAGE, wire.as_bytes(serialized))
    except wire.WireError as error:
        raise MeshError(f"not a TopologyProto: {error}") from error
    tasks, devices = (read(int, values, name) for name in ("num_tasks", "num_tpu_devices_per_task"))
    flat_coordinates, ranks = (read(list, values, name) for name in ("device_coordinates", "ranks"))
    if not (0 <= tasks <= _INT32_MAX and 0 <= devices <= _INT32_MAX):
        raise MeshError(f"a topology of {tasks} tasks with {counted(devices, 'device')} each; both are 0 .. 2**31 - 1")
    if len(flat_coordinates) != tasks * devices * MESH_RANK:
        raise MeshError(
            f"{len(flat_coordinates)} device coordinates for {tasks} tasks with {counted(devices, 'device')} each; "
            f"it must be {MESH_RANK} per device"
        )
    if len(ranks) not in (0, tasks * devices):
        raise MeshError(
            f"{len(ranks)} ranks for {tasks} tasks with {counted(devices, 'device')} each; it must be one per device"
        )
    coordinates = np.array(flat_coordinates, dtype=np.int64).reshape(tasks, devices, MESH_RANK)
    return (
        read(list, values, "mesh_shape"),
        coordinates,
        np.array(ranks, dtype=np.int64).reshape(tasks, devices) if ranks else None,
    )


def _devices_of(coordinates: Int32Array, mesh_shape: Int32Array) -> dict[Coordinates, _Device]:
    """Return the device at each of the *coordinates*."""
    is_outside = ((coordinates < 0) | (coordinates >= mesh_shape)).any(axis=-1)
    if is_outside.any():
        task, number = np.argwhere(is_outside)[0].tolist()
        raise MeshError(
            f"device_coordinates[{task}, {number}] is {coordinates[task, number].tolist()}, outside of the mesh shape "
            f"{mesh_shape.tolist()}; it must be 0 <= coordinate < extent"
        )
    devices: dict[Coordinates, _Device] = {}
    for task, task_coordinates in enumerate(coordinates.tolist()):
        for number, point in enumerate(task_coordinates):
            device = _Device(task, number)
            if devices.setdefault(tuple(point), device) != device:
                raise MeshError(
                    f"device_coordinates[{task}, {number}] is {point}, where device {tuple(devices[tuple(point)])} is "
                    "already; two devices cannot have the same coordinates"
                )
    return devices


def _ranks_of(ranks: ArrayLike | None, shape: tuple[int, int]) -> Int32Array:
    """Return *ranks* after checking them, by default 0, 1, 2, ..."""
    if ranks is None:
        return readonly_int32(np.arange(shape[0] * shape[1]).reshape(shape))
    array = check_int_array(ranks, "ranks", shape)
    if (array < 0).any() or len(np.unique(array)) < array.size:
        raise MeshError(f"ranks {quote(array.tolist())} must be different from each other and not negative")
    return array


def _task_name(device: _Device, job: str | None) -> str:
    return f"/task:{device.task}" if job is None else f"/job:{job}/task:{device.task}"


def _check_mesh_shape(mesh_shape: ArrayLike | None, num_ranks: int) -> list[int] | None:
    """Return *mesh_shape* after checking that it holds *num_ranks* devices."""
    if mesh_shape is None:
        return None
    shape: list[int] = check_positive_array(mesh_shape, "mesh_shape").tolist()
    if math.prod(shape) != num_ranks:
        raise MeshError(
            f"mesh_shape {shape} holds {math.prod(shape)} devices for {num_ranks} ranks; the product of the extents "
            "must be the number of ranks"
        )
    return shape


def _allgather_hosts(mesh: Mesh, mesh_shape: ArrayLike | None) -> tuple[list[str], list[int] | None]:
    """Return the host of every rank, and the mesh shape that all agree on. Collective over a mesh of all ranks."""

    def steps(session: Session) -> tuple[list[str], list[int] | None]:
        describe = "Topology.from_comm with mesh_shape {}".format
        check_shape = partial(_check_mesh_shape, mesh_shape, mesh.size)
        with session.exchanging():
            shape = session.agree_on_result(describe, check_shape)
            return session.allgather(this_host()), shape

    hosts_and_shape = in_session("Topology.from_comm", mesh, steps)
    assert hosts_and_shape is not None
    return hosts_and_shape


def _ranks_by_host(hosts: Sequence[str]) -> Indices:
    """Return the ranks of each host in a row; if hosts have different numbers of ranks, one rank in each row.

    >>> _ranks_by_host(["a", "b", "a", "b"]).tolist(), _ranks_by_host(["a", "b", "a"]).tolist()
    ([[0, 2], [1, 3]], [[0], [2], [1]])
    """
    ranks_on_host: dict[str, list[int]] = {}
    for rank, host in enumerate(hosts):
        ranks_on_host.setdefault(host, []).append(rank)
    same_count = len({len(ranks) for ranks in ranks_on_host.values()}) == 1
    rows = list(ranks_on_host.values())
    if not same_count:
        rows = [[rank] for ranks in rows for rank in ranks]
    return np.array(rows, dtype=np.intp)
