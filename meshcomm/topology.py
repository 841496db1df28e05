"""Topologies and device assignments: where ranks are, and which ones run a replica of a computation together.

A `Topology` says where the ranks are: each is a device at integer coordinates (x, y, z, core). A `DeviceAssignment`
picks the ranks of each replica from it, in the order of their logical devices. Both are pure values; only
`Topology.from_comm` asks a world. Source: Topology and DeviceAssignment of TensorFlow, where a device is a TPU core.
"""

import math
import socket
from collections.abc import Sequence
from enum import IntEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from meshcomm import guard, wire
from meshcomm.context import world_of
from meshcomm.errors import MeshError
from meshcomm.groups import World
from meshcomm.mesh import integer, quote
from meshcomm.simulate import current_world

if TYPE_CHECKING:
    from mpi4py import MPI

Integers: TypeAlias = NDArray[np.int32]
Coordinates: TypeAlias = tuple[int, ...]

MESH_RANK = 4  # x, y, z, core
_LARGEST = 2**31 - 1  # the wire form has 32 bits
_MOST_PLACES = 2**24  # of a topology; the missing ones may have to be listed
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")

TOPOLOGY_MESSAGE = wire.Message(
    "tensorflow.tpu.TopologyProto",
    (
        wire.Field(1, "mesh_shape", "int64", repeated=True),
        wire.Field(2, "num_tasks", "int64"),
        wire.Field(3, "num_tpu_devices_per_task", "int64"),
        wire.Field(4, "device_coordinates", "int64", repeated=True),
        wire.Field(1000, "ranks", "int64", repeated=True),  # ours, and only where they are not counted through
    ),
)


class DeviceOrderMode(IntEnum):
    """How replicas and their logical devices follow each other: along rings, or row by row. Local.

    AUTO is RING where that is possible, and MESH elsewhere.
    """

    AUTO = 0
    RING = 1
    MESH = 2


class _Place(NamedTuple):
    task: int
    device: int


class Topology:
    """The devices of a system at integer coordinates (x, y, z, core); one device is one rank; a frozen value. Local.

    *mesh_shape* is the extent along each coordinate, and *device_coordinates*, of shape [tasks, devices per task, 4],
    says where the devices of each task are: a task is a host. *ranks*, of shape [tasks, devices per task], are their
    ranks in the world, by default counted through. *serialized* is the wire form of all this. ``MeshError`` for what
    makes no topology. `from_comm` makes one of the ranks that there are. Source: Topology of TensorFlow.

    >>> topology = Topology(mesh_shape=[2, 1, 1, 2], device_coordinates=[[[0, 0, 0, 0], [0, 0, 0, 1]],
    ...                                                                  [[1, 0, 0, 0], [1, 0, 0, 1]]])
    >>> topology.num_tasks, topology.num_tpus_per_task
    (2, 2)
    >>> topology.tpu_device_name_at_coordinates([1, 0, 0, 1], job="w"), topology.rank_at_coordinates([1, 0, 0, 1])
    ('/job:w/task:1/device:TPU:1', 3)
    """

    __slots__ = ("_comm", "_device_coordinates", "_mesh_shape", "_missing", "_places", "_ranks")

    _mesh_shape: Integers
    _device_coordinates: Integers
    _ranks: Integers
    _places: dict[Coordinates, _Place]
    _missing: Integers | None
    _comm: Any  # where the ranks count; not part of the value

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
                raise MeshError("a topology is given in its wire form or by its parts, not both")
            mesh_shape, device_coordinates, ranks = _parsed(serialized)
        self._mesh_shape = _positive(mesh_shape, "mesh_shape", (MESH_RANK,))
        places = math.prod(self._mesh_shape.tolist())
        if places > _MOST_PLACES:
            raise MeshError(f"mesh_shape {self._mesh_shape.tolist()} has {places} places; it may have {_MOST_PLACES}")
        self._device_coordinates = _integers(device_coordinates, "device_coordinates", (None, None, MESH_RANK))
        self._places = _places_of(self._device_coordinates, self._mesh_shape)
        self._ranks = _ranks_of(ranks, (self.num_tasks, self.num_tpus_per_task))
        self._missing = self._comm = None

    @classmethod
    def from_comm(cls, comm: "MPI.Intracomm | None" = None, mesh_shape: ArrayLike | None = None) -> "Topology":
        """Return the topology of the ranks of a world: a task is a host, its devices are its ranks. Collective.

        Over *comm*, else the simulated world around (then Local), else COMM_WORLD. Hosts come in the order of their
        first ranks; if they have different numbers of ranks, each rank is a task of its own. The devices lie row-major
        in *mesh_shape*, 4 integers whose product is the number of ranks, by default [hosts, ranks per host, 1, 1] or
        else [ranks, 1, 1, 1]. ``MeshError`` on all ranks if it is anything else.

        >>> import meshcomm as mc
        >>> with mc.simulate(8):
        ...     print(Topology.from_comm(), Topology.from_comm(mesh_shape=[1, 2, 2, 2]))
        Topology([1, 8, 1, 1], tasks=1, devices=8) Topology([1, 2, 2, 2], tasks=1, devices=8)
        """
        world = current_world() if comm is None else None
        if world is not None:
            hosts = ["this"] * world.size
            shape = _arrangement(mesh_shape, world.size)
        else:
            hosts, shape = _gathered_hosts(world_of(comm), mesh_shape)
        topology = cls._of_hosts(hosts, shape)
        topology._comm = comm
        return topology

    @classmethod
    def _of_hosts(cls, hosts: Sequence[str], shape: list[int] | None) -> "Topology":
        """Return the topology of ranks of which rank i is on ``hosts[i]``."""
        ranks = _ranks_by_host(hosts)
        if shape is None:
            shape = [*ranks.shape, 1, 1]
        coordinates = np.indices(shape).reshape(MESH_RANK, -1).T.reshape(*ranks.shape, MESH_RANK)
        return cls(mesh_shape=shape, device_coordinates=coordinates, ranks=ranks)

    # -- parts --------------------------------------------------------------------------------------------------------

    @property
    def mesh_rank(self) -> int:
        """The number of coordinates of a device, 4. Local."""
        return MESH_RANK

    @property
    def mesh_shape(self) -> Integers:
        """The extent along each coordinate. Local."""
        return self._mesh_shape

    @property
    def num_tasks(self) -> int:
        """The number of tasks. Local."""
        return len(self._device_coordinates)

    @property
    def num_tpus_per_task(self) -> int:
        """The number of devices of each task. Local."""
        return int(self._device_coordinates.shape[1])

    @property
    def device_coordinates(self) -> Integers:
        """The coordinates of each device, of shape [tasks, devices per task, 4]. Local."""
        return self._device_coordinates

    @property
    def ranks(self) -> Integers:
        """The rank of each device, of shape [tasks, devices per task]. Local."""
        return self._ranks

    @property
    def missing_devices(self) -> Integers:
        """The coordinates within the mesh shape at which there is no device, of shape [any, 4]. Local."""
        if self._missing is None:
            absent = np.ones(self._mesh_shape, dtype=bool)
            absent[tuple(self._device_coordinates.reshape(-1, MESH_RANK).T)] = False
            self._missing = _frozen(np.argwhere(absent))
        return self._missing

    # -- what is at which coordinates ---------------------------------------------------------------------------------

    def task_ordinal_at_coordinates(self, device_coordinates: Sequence[int]) -> int:
        """Return the task of the device at *device_coordinates*; ``MeshError`` if there is none. Local."""
        return self._place_at(_point(device_coordinates)).task

    def tpu_device_ordinal_at_coordinates(self, device_coordinates: Sequence[int]) -> int:
        """Return the number of the device at *device_coordinates* in its task. Local; ``MeshError`` as above."""
        return self._place_at(_point(device_coordinates)).device

    def rank_at_coordinates(self, device_coordinates: Sequence[int]) -> int:
        """Return the rank in the world of the device at *device_coordinates*. Local; ``MeshError`` as above."""
        return int(self._ranks[self._place_at(_point(device_coordinates))])

    def cpu_device_name_at_coordinates(self, device_coordinates: Sequence[int], job: str | None = None) -> str:
        """Return the name of the host of the device at *device_coordinates*. Local; ``MeshError`` as above."""
        return f"{_task_name(self._place_at(_point(device_coordinates)), job)}/device:CPU:0"

    def tpu_device_name_at_coordinates(self, device_coordinates: Sequence[int], job: str | None = None) -> str:
        """Return the name of the device at *device_coordinates*. Local; ``MeshError`` as above."""
        place = self._place_at(_point(device_coordinates))
        return f"{_task_name(place, job)}/device:TPU:{place.device}"

    def _place_at(self, at: Coordinates) -> _Place:
        place = self._places.get(at)
        if place is None:
            raise MeshError(
                f"there is no device at coordinates {at}: the topology has shape {self._mesh_shape.tolist()} and "
                f"{len(self._places)} devices"
            )
        return place

    # -- wire form and the other protocols of values ------------------------------------------------------------------

    def serialized(self) -> bytes:
        """Return the bytes of the topology's TopologyProto. Local.

        Ranks that are not counted through stand in a field of our own, which other readers skip.

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

    def __reduce__(self) -> tuple[Any, ...]:
        return Topology, (self.serialized(),)


class DeviceAssignment:
    """Which device of a topology is which logical device of which replica; a frozen value. Local.

    *core_assignment*, of shape [replicas, logical devices per replica, 4], are their coordinates; a device has at most
    one place in it. ``MeshError`` for anything else. `build` makes one. Source: DeviceAssignment of TensorFlow.

    >>> import meshcomm as mc
    >>> with mc.simulate(4):
    ...     assignment = DeviceAssignment(Topology.from_comm(), [[[0, 3, 0, 0], [0, 0, 0, 0]]])
    >>> assignment.num_replicas, assignment.num_cores_per_replica, assignment.ranks.tolist()
    (1, 2, [[3, 0]])
    """

    __slots__ = ("_core_assignment", "_ranks", "_replicas_at", "_topology")

    _topology: Topology
    _core_assignment: Integers
    _ranks: Integers
    _replicas_at: dict[tuple[int, int], list[int]]

    def __init__(self, topology: Topology, core_assignment: ArrayLike) -> None:
        if not isinstance(topology, Topology):
            raise MeshError(f"topology must be a Topology, not {quote(topology)}, a {type(topology).__name__}")
        self._topology = topology
        self._core_assignment = _integers(core_assignment, "core_assignment", (None, None, MESH_RANK))
        if not self.num_cores_per_replica:
            raise MeshError(
                f"core_assignment has shape {self._core_assignment.shape}; a replica has at least one core"
            )
        self._ranks, self._replicas_at = self._found()

    def _found(self) -> tuple[Integers, dict[tuple[int, int], list[int]]]:
        """Return the ranks, and which replicas have a logical core in a task."""
        ranks = np.empty(self._core_assignment.shape[:2], dtype=np.int32)
        replicas_at: dict[tuple[int, int], list[int]] = {}
        owners: dict[int, tuple[int, int]] = {}
        for replica, core in np.ndindex(*ranks.shape):
            at = tuple(self._core_assignment[replica, core].tolist())
            place = self._topology._place_at(at)
            ranks[replica, core] = rank = int(self._topology.ranks[place])
            if owners.setdefault(rank, (replica, core)) != (replica, core):
                raise MeshError(
                    f"core_assignment[{replica}, {core}] is {at}, as core_assignment{list(owners[rank])} is already; "
                    "a device is one logical device"
                )
            replicas_at.setdefault((place.task, core), []).append(replica)
        return _frozen(ranks), replicas_at

    @classmethod
    def build(
        cls,
        topology: Topology | bytes,
        computation_shape: ArrayLike | None = None,
        computation_stride: ArrayLike | None = None,
        num_replicas: int = 1,
        device_order_mode: DeviceOrderMode = DeviceOrderMode.AUTO,
    ) -> "DeviceAssignment":
        """Return the assignment of *num_replicas* boxes of *computation_shape* devices in *topology*. Local.

        Neighbours within a box are *computation_stride* devices apart along each coordinate, and other replicas lie
        between them; both default to ones. In a topology with missing devices, replicas take devices in the order of
        tasks. ``MeshError`` if the boxes do not fit, or the order asked for is not possible. *topology* may be in its
        wire form.

        >>> import meshcomm as mc
        >>> with mc.simulate(8):
        ...     topology = Topology.from_comm(mesh_shape=[2, 2, 2, 1])
        >>> DeviceAssignment.build(topology, [1, 2, 2, 1], num_replicas=2).ranks.tolist()
        [[0, 2, 3, 1], [4, 6, 7, 5]]
        >>> DeviceAssignment.build(topology, [1, 2, 2, 1], num_replicas=2, device_order_mode=DeviceOrderMode.MESH)
        DeviceAssignment of 2 replicas x 4 logical devices: ranks [[0, 1, 2, 3], [4, 5, 6, 7]]
        """
        if not isinstance(topology, Topology):
            topology = Topology(_refused_none(topology))
        shape = _per_axis(computation_shape, "computation_shape")
        stride = _per_axis(computation_stride, "computation_stride")
        count, mode = integer(num_replicas, "num_replicas"), _order_mode(device_order_mode)
        counts = _replica_counts(topology.mesh_shape, shape, stride)
        _check_count(count, counts, topology, shape, stride)
        rings = _allows_rings(topology, shape, stride, count, counts)
        if mode is DeviceOrderMode.RING and not rings:
            raise MeshError(
                f"device_order_mode RING is not possible for {count} replicas of shape {shape.tolist()} and "
                f"computation_stride {stride.tolist()} in {topology!r}: it needs all replicas that fit, all cores of "
                "a chip in one replica, a stride of ones and no missing devices. AUTO takes what is possible"
            )
        if len(topology.missing_devices):
            return cls(topology, _in_task_order(topology, shape, stride, count))
        order = _along_rings if rings and mode is not DeviceOrderMode.MESH else _row_by_row
        return cls(topology, order(shape, stride, _replica_box(counts.tolist(), count), count))

    # -- parts --------------------------------------------------------------------------------------------------------

    @property
    def topology(self) -> Topology:
        """The topology. Local."""
        return self._topology

    @property
    def num_replicas(self) -> int:
        """The number of replicas. Local."""
        return len(self._core_assignment)

    @property
    def num_cores_per_replica(self) -> int:
        """The number of logical devices of each replica. Local."""
        return int(self._core_assignment.shape[1])

    @property
    def core_assignment(self) -> Integers:
        """The coordinates of each logical device, of shape [replicas, logical devices, 4]. Local."""
        return self._core_assignment

    @property
    def ranks(self) -> Integers:
        """The rank of each logical device, of shape [replicas, logical devices]. Local."""
        return self._ranks

    # -- lookups ------------------------------------------------------------------------------------------------------

    def coordinates(self, replica: int, logical_core: int) -> Coordinates:
        """Return the coordinates of a logical device; ``MeshError`` if the replica has no such. Local."""
        for what, value, size in (
            ("replica", replica, self.num_replicas),
            ("logical_core", logical_core, self.num_cores_per_replica),
        ):
            if not 0 <= integer(value, what) < size:
                raise MeshError(f"{what} {quote(value)} of an assignment with {size}; it is 0 <= {what} < {size}")
        return tuple(self._core_assignment[replica, logical_core].tolist())

    def tpu_ordinal(self, replica: int = 0, logical_core: int = 0) -> int:
        """Return the number of a logical device in its task. Local; ``MeshError`` as for `coordinates`."""
        return self._topology.tpu_device_ordinal_at_coordinates(self.coordinates(replica, logical_core))

    def tpu_device(self, replica: int = 0, logical_core: int = 0, job: str | None = None) -> str:
        """Return the name of a logical device. Local; ``MeshError`` as for `coordinates`."""
        return self._topology.tpu_device_name_at_coordinates(self.coordinates(replica, logical_core), job)

    def host_device(self, replica: int = 0, logical_core: int = 0, job: str | None = None) -> str:
        """Return the name of the host of a logical device. Local; ``MeshError`` as for `coordinates`."""
        return self._topology.cpu_device_name_at_coordinates(self.coordinates(replica, logical_core), job)

    def lookup_replicas(self, task_id: int, logical_core: int) -> list[int]:
        """Return the replicas whose *logical_core* is in *task_id*, ascending; ``MeshError`` if none is. Local."""
        found = self._replicas_at.get((integer(task_id, "task_id"), integer(logical_core, "logical_core")))
        if found is None:
            raise MeshError(f"no replica has its logical core {logical_core} in task {task_id}, out of {self!r}")
        return list(found)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, DeviceAssignment):
            return NotImplemented
        same = np.array_equal(self._core_assignment, other._core_assignment)
        return self is other or (same and self._topology == other._topology)

    def __hash__(self) -> int:
        return hash((self._topology, self._core_assignment.tobytes()))

    def __repr__(self) -> str:
        sizes = f"{self.num_replicas} replicas x {self.num_cores_per_replica} logical devices"
        return f"DeviceAssignment of {sizes}: ranks {quote(self._ranks.tolist())}"

    def __reduce__(self) -> tuple[Any, ...]:
        return DeviceAssignment, (self._topology, self._core_assignment)


# -- where devices are ------------------------------------------------------------------------------------------------


def _frozen(values: NDArray[Any]) -> Integers:
    array = np.array(values, dtype=np.int32)
    array.flags.writeable = False
    return array


def _integers(values: Any, what: str, shape: tuple[int | None, ...]) -> Integers:
    """Return *values* as integers of *shape*, in which None is any length, or raise ``MeshError``."""
    try:
        array = np.asarray(values)
    except (ValueError, OverflowError):
        raise MeshError(f"{what} must be an array of integers, not {quote(values)}") from None
    if array.dtype.kind not in "iu" and array.size:
        raise MeshError(f"{what} must be integers, not {quote(values)}")
    if array.ndim != len(shape) or any(n not in (None, m) for n, m in zip(shape, array.shape, strict=True)):
        form = ", ".join("any" if n is None else str(n) for n in shape)
        raise MeshError(f"{what} must have shape [{form}]; got {array.shape}")
    if array.size and not -_LARGEST <= int(array.min()) <= int(array.max()) <= _LARGEST:
        raise MeshError(f"{what} {quote(array.tolist())} has numbers beyond 2**31 - 1")
    return _frozen(array)


def _point(device_coordinates: Sequence[int]) -> Coordinates:
    return tuple(_integers(device_coordinates, "device_coordinates", (MESH_RANK,)).tolist())


def _positive(values: Any, what: str, shape: tuple[int | None, ...] = (MESH_RANK,)) -> Integers:
    array = _integers(values, what, shape)
    if (array < 1).any():
        raise MeshError(f"{what} must be positive; got {what}={array.tolist()}")
    return array


def _parsed(serialized: object) -> tuple[list[int], NDArray[Any], NDArray[Any] | None]:
    """Return the mesh shape, coordinates and ranks of a TopologyProto."""
    try:
        values = wire.decode(TOPOLOGY_MESSAGE, wire.as_bytes(serialized))
    except wire.WireError as error:
        raise MeshError(f"not a TopologyProto: {error}") from error
    tasks, devices = values["num_tasks"], values["num_tpu_devices_per_task"]
    listed, ranks = values["device_coordinates"], values["ranks"]
    if not (0 <= tasks <= _LARGEST and 0 <= devices <= _LARGEST):
        raise MeshError(f"a topology of {tasks} tasks with {devices} devices each; both are 0 .. 2**31 - 1")
    if len(listed) != tasks * devices * MESH_RANK:
        raise MeshError(
            f"{len(listed)} device coordinates for {tasks} tasks with {devices} devices each; "
            f"it must be {MESH_RANK} per device"
        )
    if len(ranks) not in (0, tasks * devices):
        raise MeshError(f"{len(ranks)} ranks for {tasks} tasks with {devices} devices each; it must be one per device")
    coordinates = np.array(listed, dtype=np.int64).reshape(tasks, devices, MESH_RANK)
    return values["mesh_shape"], coordinates, np.reshape(ranks, (tasks, devices)) if ranks else None


def _places_of(coordinates: Integers, mesh_shape: Integers) -> dict[Coordinates, _Place]:
    """Return which device of which task is at which coordinates."""
    if ((coordinates < 0) | (coordinates >= mesh_shape)).any():
        task, device = np.argwhere(((coordinates < 0) | (coordinates >= mesh_shape)).any(axis=-1))[0].tolist()
        raise MeshError(
            f"device_coordinates[{task}, {device}] is {coordinates[task, device].tolist()}, outside of the mesh shape "
            f"{mesh_shape.tolist()}; it is 0 <= coordinate < extent"
        )
    places: dict[Coordinates, _Place] = {}
    for task, devices in enumerate(coordinates.tolist()):
        for device, at in enumerate(devices):
            place = _Place(task, device)
            if places.setdefault(tuple(at), place) != place:
                raise MeshError(
                    f"device_coordinates[{task}, {device}] is {at}, where {tuple(places[tuple(at)])} is already; "
                    "each device has a place of its own"
                )
    return places


def _ranks_of(ranks: ArrayLike | None, shape: tuple[int, int]) -> Integers:
    """Return *ranks* after checking them, by default counted through."""
    if ranks is None:
        return _frozen(np.arange(shape[0] * shape[1]).reshape(shape))
    array = _integers(ranks, "ranks", shape)
    if (array < 0).any() or len(np.unique(array)) < array.size:
        raise MeshError(f"ranks {quote(array.tolist())} must be different from each other and not negative")
    return array


def _task_name(place: _Place, job: str | None) -> str:
    return f"/task:{place.task}" if job is None else f"/job:{job}/task:{place.task}"


def _this_host() -> str:
    """Return what tells this host from others: names alone may repeat."""
    boot = _BOOT_ID.read_text().strip() if _BOOT_ID.exists() else ""
    return f"{socket.gethostname()} {boot}"


def _arrangement(mesh_shape: ArrayLike | None, size: int) -> list[int] | None:
    """Return *mesh_shape* after checking that it has *size* places."""
    if mesh_shape is None:
        return None
    shape: list[int] = _positive(mesh_shape, "mesh_shape").tolist()
    if math.prod(shape) != size:
        raise MeshError(
            f"mesh_shape {shape} has {math.prod(shape)} places for {size} ranks; the product of the extents is the "
            "number of ranks"
        )
    return shape


def _gathered_hosts(world: World, mesh_shape: ArrayLike | None) -> tuple[list[str], list[int] | None]:
    """Return the host of every rank, and the mesh shape that all agree on. Collective over the world."""
    team, shape, error = world.team(range(world.size)), None, None
    guard.begin("Topology.from_comm", team)
    try:
        try:
            shape = _arrangement(mesh_shape, world.size)
        except Exception as problem:
            error = problem
        guard.agree(team, f"Topology.from_comm with mesh_shape {shape}", error)
        hosts = team.everyone.communicator().allgather(_this_host().encode())
    finally:
        guard.end()
    return [host.decode() for host in hosts], shape


def _ranks_by_host(hosts: Sequence[str]) -> NDArray[Any]:
    """Return the ranks of each host in a row; one rank per row if the hosts have different numbers of them.

    >>> _ranks_by_host(["a", "b", "a", "b"]).tolist(), _ranks_by_host(["a", "b", "a"]).tolist()
    ([[0, 2], [1, 3]], [[0], [2], [1]])
    """
    on: dict[str, list[int]] = {}
    for rank, host in enumerate(hosts):
        on.setdefault(host, []).append(rank)
    even = len({len(ranks) for ranks in on.values()}) == 1
    return np.array(list(on.values()) if even else [[rank] for ranks in on.values() for rank in ranks])


# -- which devices a replica takes ------------------------------------------------------------------------------------


def _refused_none(topology: object) -> object:
    if topology is None:
        raise MeshError("topology must be a Topology or its wire form, not None")
    return topology


def _order_mode(mode: object) -> DeviceOrderMode:
    try:
        return DeviceOrderMode(mode)  # type: ignore[arg-type]
    except ValueError:
        names = ", ".join(known.name for known in DeviceOrderMode)
        raise MeshError(f"device_order_mode {quote(mode)} is not a DeviceOrderMode; there are {names}") from None


def _per_axis(values: ArrayLike | None, what: str) -> Integers:
    return _positive(np.ones(MESH_RANK, dtype=int) if values is None else values, what)


def _replica_counts(mesh_shape: Integers, shape: Integers, stride: Integers) -> NDArray[Any]:
    """Return how many replicas fit along each coordinate."""
    footprint = shape.astype(np.int64) * stride
    if (footprint > mesh_shape).any():
        raise MeshError(
            f"computation footprint {footprint.tolist()} does not fit in a topology of shape {mesh_shape.tolist()}; "
            f"it is computation_shape {shape.tolist()} times computation_stride {stride.tolist()}"
        )
    counts: NDArray[Any] = mesh_shape // footprint * stride  # replicas interleave within each footprint
    return counts


def _check_count(count: int, counts: NDArray[Any], topology: Topology, shape: Integers, stride: Integers) -> None:
    most = math.prod(counts.tolist())
    if not 0 <= count <= most:
        raise MeshError(
            f"requested {count} replicas but only {most} replicas with shape {shape.tolist()} and "
            f"computation_stride {stride.tolist()} fit in a mesh of shape {topology.mesh_shape.tolist()}"
        )


def _allows_rings(topology: Topology, shape: Integers, stride: Integers, count: int, counts: NDArray[Any]) -> bool:
    """Return whether the replicas fill the topology with whole chips, which then can be ordered along rings."""
    whole_chips = bool(shape[-1] == topology.mesh_shape[-1] and (stride == 1).all())
    return whole_chips and count == math.prod(counts.tolist()) and not len(topology.missing_devices)


def _ceil_root(value: int, degree: int) -> int:
    """Return the smallest integer whose power *degree* is at least *value*."""
    root: int = max(1, math.floor(value ** (1 / degree)) - 1)
    while root**degree < value:
        root += 1
    return root


def _replica_box(counts: list[int], num_replicas: int) -> list[int]:
    """Return the box of replicas to use, as close to a cube as *counts* allow. Local.

    The coordinate with the fewest replicas is decided first, since it is the least free; of equal ones the core, so
    that replicas share a chip, and then x, y, z.

    >>> _replica_box([4, 4, 1, 1], 6), _replica_box([2, 2, 1, 2], 4)
    ([3, 2, 1, 1], [2, 1, 1, 2])
    """
    remaining, box = num_replicas, list(counts)
    axes = sorted(range(MESH_RANK), key=lambda axis: (counts[axis], (axis + 1) % MESH_RANK))
    for done, axis in enumerate(axes):
        box[axis] = min(_ceil_root(remaining, MESH_RANK - done), counts[axis])
        remaining = -(-remaining // box[axis])
    return box


def _row_by_row(shape: Integers, stride: Integers, box: list[int], num_replicas: int) -> NDArray[Any]:
    """Return the coordinates of all logical devices: replicas count core first, then x, y, z; devices row-major."""
    x, y, z, core = box
    numbers = np.unravel_index(np.arange(num_replicas), (z, y, x, core))
    positions = np.stack([numbers[2], numbers[1], numbers[0], numbers[3]], axis=-1)
    starts = positions // stride * (shape * stride) + positions % stride
    cells = np.indices(shape.tolist()).reshape(MESH_RANK, -1).T * stride
    every: NDArray[Any] = starts[:, None, :] + cells[None, :, :]
    return every


def _along_rings(shape: Integers, stride: Integers, box: list[int], num_replicas: int) -> NDArray[Any]:
    """Return the coordinates of all logical devices: replicas along a ring, the chips of each along a ring too."""
    chips = np.repeat(_ring(shape[:3].tolist()), shape[3], axis=0)
    cores = np.tile(np.arange(shape[3]), len(chips) // shape[3])
    cells = np.column_stack([chips, cores])
    rings = np.array(_ring(box[:3]))
    starts = np.column_stack([rings, np.zeros(len(rings), dtype=int)]) * shape
    every: NDArray[Any] = starts[:, None, :] + cells[None, :, :]
    return every[:num_replicas]


def _ring(sizes: Sequence[int]) -> list[Coordinates]:
    """Return the points of a grid in an order in which neighbours, also the last and the first, are one step apart.

    A ring through a layer is opened at its corner; the layers are gone through forth and back, and then their corners
    all the way home. Where a size is odd that does not close, and the points come row by row, x first.

    >>> _ring([4, 2])
    [(0, 0), (1, 0), (2, 0), (3, 0), (3, 1), (2, 1), (1, 1), (0, 1)]
    """
    if sum(size > 1 for size in sizes) > 1 and any(size > 1 and size % 2 for size in sizes):
        return [tuple(reversed(point)) for point in np.ndindex(*reversed(sizes))]
    ring: list[Coordinates] = [()]
    for size in sizes:
        corner, rest = ring[0], ring[1:]
        up = [(*corner, layer) for layer in range(size)]
        if not rest:
            ring = up
        else:
            layers = [(*point, i) for i in range(size) for point in (rest[::-1] if i % 2 else rest)]
            ring = [up[0], *layers, *reversed(up[1:])]
    return ring


def _in_task_order(topology: Topology, shape: Integers, stride: Integers, num_replicas: int) -> NDArray[Any]:
    """Return the coordinates of all logical devices in a topology with missing devices: those that are there."""
    cores = math.prod(shape.tolist())
    devices = topology.device_coordinates.reshape(-1, MESH_RANK)
    if (stride > 1).any():
        raise MeshError(
            f"computation_stride {stride.tolist()} in {topology!r}, of whose places {len(topology.missing_devices)} "
            "have no device; there it must be ones"
        )
    if num_replicas * cores > len(devices):
        raise MeshError(
            f"requested {num_replicas} replicas of {cores} devices each, but {topology!r} has {len(devices)}"
        )
    return devices[: num_replicas * cores].reshape(num_replicas, cores, MESH_RANK)
