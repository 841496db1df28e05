"""Logical devices: ranks grouped into replicas of one computation, and tensors split between the ranks of a replica.

A `Topology` says where the ranks are, and a `DeviceAssignment` which of them are the logical devices of each replica.
A `Strategy` runs a step on every replica, and splits tensors over the logical devices of the replica that it is called
in. Source: tf.distribute.TPUStrategy.
"""

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from meshcomm._arguments import as_array, integer, quote
from meshcomm.arrays.create import distribute
from meshcomm.arrays.dtensor import DTensor
from meshcomm.arrays.relayout import relayout
from meshcomm.errors import MeshError, ShapeError
from meshcomm.layouts.layout import Layout
from meshcomm.layouts.mesh import Mesh
from meshcomm.ranks.meshes import create_mesh, world_of
from meshcomm.ranks.teams import World
from meshcomm.training.assignment import DeviceAssignment
from meshcomm.training.topology import DeviceOrderMode, Topology

if TYPE_CHECKING:
    from mpi4py import MPI


__all__ = ["DeviceAssignment", "DeviceOrderMode", "PerReplica", "Strategy", "Topology", "check_partition"]


class PerReplica:
    """One value per replica, as an argument of `Strategy.run`, which gives each replica its own. Local.

    >>> PerReplica([1, 2]).values
    (1, 2)
    """

    __slots__ = ("_values",)

    def __init__(self, values: Sequence[Any]) -> None:
        if not hasattr(values, "__iter__"):
            raise MeshError(f"PerReplica takes one value per replica, in a list, not {quote(values)}")
        self._values = tuple(values)

    @property
    def values(self) -> tuple[Any, ...]:
        """The value of each replica. Local."""
        return self._values

    def __repr__(self) -> str:
        return f"PerReplica({list(self._values)!r})"


class Strategy:
    """Runs a step on every replica of an assignment, and splits tensors over the devices of a replica. Local.

    Every rank makes one, and calls `run`; inside the step, which all ranks of a replica run, the ``experimental_``
    methods place tensors on its logical devices. Ranks count in *comm*, by default that of the topology, else in the
    simulated world around, else in COMM_WORLD. Source: tf.distribute.TPUStrategy.

    >>> import numpy as np, meshcomm as mc
    >>> def program():
    ...     topology = Topology.from_comm(mesh_shape=[2, 2, 1, 1])
    ...     strategy = Strategy(DeviceAssignment.build(topology, [1, 2, 1, 1], num_replicas=2))
    ...     def step(x):
    ...         return strategy.experimental_split_to_logical_devices(x, [2]).local.tolist()
    ...     return strategy.run(step, args=(PerReplica([np.arange(2), np.arange(10, 14)]),))
    >>> with mc.simulate(4) as world:
    ...     print(world.run(program))
    [[0], [1], [10, 11], [12, 13]]
    """

    def __init__(self, device_assignment: DeviceAssignment, comm: "MPI.Intracomm | None" = None) -> None:
        if not isinstance(device_assignment, DeviceAssignment):
            kind = type(device_assignment).__name__
            raise MeshError(f"device_assignment must be a DeviceAssignment, not {quote(device_assignment)}, a {kind}")
        self._assignment = device_assignment
        self._comm = device_assignment.topology._comm if comm is None else comm
        places = np.ndindex(*device_assignment.ranks.shape)
        self._places = dict(zip(device_assignment.ranks.reshape(-1).tolist(), places, strict=True))
        self._last_rank = max(self._places, default=-1)
        self._meshes: dict[tuple[World, tuple[int, ...], tuple[int, ...]], Mesh] = {}

    # -- who is who ---------------------------------------------------------------------------------------------------

    @property
    def device_assignment(self) -> DeviceAssignment:
        """The assignment. Local."""
        return self._assignment

    @property
    def num_replicas_in_sync(self) -> int:
        """The number of replicas. Local."""
        return self._assignment.num_replicas

    @property
    def num_logical_devices(self) -> int:
        """The number of logical devices of each replica. Local."""
        return self._assignment.num_cores_per_replica

    @property
    def replica_id(self) -> int | None:
        """The replica that this rank belongs to, or None. Local."""
        place = self._place()
        return None if place is None else place[0]

    @property
    def logical_device_id(self) -> int | None:
        """The logical device of its replica that this rank is, or None. Local."""
        place = self._place()
        return None if place is None else place[1]

    def replica_mesh(self, partition_dimensions: Sequence[int] | None = None) -> Mesh:
        """Return the mesh of this rank's replica, of shape *partition_dimensions*, by default one dimension. Local.

        Its dimensions are d0, d1, ...; its device k is logical device k of the replica. ``ShapeError`` unless the
        product is the number of logical devices, ``MeshError`` on a rank in no replica.
        """
        count = self.num_logical_devices
        sizes = (count,) if partition_dimensions is None else _sizes(partition_dimensions)
        _check_product(sizes, count)
        return self._mesh(self._replica_ranks(), sizes)

    def _place(self) -> tuple[int, int] | None:
        """Return the replica of this rank, and its number in it; ``MeshError`` if the world is too small."""
        world = world_of(self._comm)
        if self._last_rank >= world.size:
            raise MeshError(
                f"{self._assignment!r} needs ranks up to {self._last_rank}, but the world has {world.size}: launch "
                f"the program with mpiexec -n {self._last_rank + 1}, or build a smaller assignment"
            )
        return self._places.get(world.rank)

    def _here(self) -> tuple[int, int]:
        place = self._place()
        if place is None:
            raise MeshError(
                f"rank {world_of(self._comm).rank} is in no replica of {self._assignment!r}: place tensors inside of "
                "a step given to run, which only the ranks of replicas call"
            )
        return place

    def _replica_ranks(self) -> tuple[int, ...]:
        return tuple(self._assignment.ranks[self._here()[0]].tolist())

    def _mesh(self, ranks: tuple[int, ...], sizes: tuple[int, ...]) -> Mesh:
        """Return the mesh of *ranks* in the shape *sizes*, the same one each time."""
        key = (world_of(self._comm), ranks, sizes or (1,))
        if key not in self._meshes:
            dims = [(f"d{i}", size) for i, size in enumerate(sizes or (1,))]
            self._meshes[key] = create_mesh(dims, devices=ranks, comm=self._comm)
        return self._meshes[key]

    def close(self) -> None:
        """Free the communicators of this rank's replica; the next call makes new ones. Collective over the replica."""
        here = world_of(self._comm)
        for key in [key for key in self._meshes if key[0] is here]:
            self._meshes.pop(key).close()

    # -- running steps ------------------------------------------------------------------------------------------------

    def run(self, step_fn: Callable[..., Any], args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None) -> Any:
        """Return what *step_fn* returns on this rank, None on ranks in no replica; every replica runs the step. Local.

        The ranks of a replica run it together, so that it may make calls that are Collective over the replica;
        replicas do not wait for each other. Each `PerReplica` in the arguments, also in lists, tuples and dicts, is
        replaced by the value of the replica. ``MeshError`` on all ranks unless it has one value per replica; a
        ``TypeError`` if *step_fn* is no function or *args* no tuple.
        """
        if not callable(step_fn):
            raise TypeError(f"step_fn must be a function, not {quote(step_fn)}, a {type(step_fn).__name__}")
        if not isinstance(args, list | tuple):
            raise TypeError(f"args must be a tuple of the arguments of step_fn, not a {type(args).__name__}")
        replica = self.replica_id
        own = [_own_value(arg, replica, self.num_replicas_in_sync) for arg in args]
        named = {name: _own_value(arg, replica, self.num_replicas_in_sync) for name, arg in (kwargs or {}).items()}
        return None if replica is None else step_fn(*own, **named)

    def experimental_local_results(self, value: Any) -> tuple[Any, ...]:
        """Return the results of `run` that are on this rank: one, or none on a rank in no replica. Local."""
        return () if self._place() is None else (value,)

    # -- placing tensors ----------------------------------------------------------------------------------------------

    def experimental_split_to_logical_devices(
        self, tensor: DTensor | ArrayLike, partition_dimensions: Sequence[int]
    ) -> DTensor:
        """Return *tensor* split over the logical devices of the replica. Local; Collective over it for a DTensor.

        Axis i is cut into ``partition_dimensions[i]`` equal blocks, and logical device k holds the block at
        ``unravel_index(k, partition_dimensions)``: the result is on `replica_mesh` of that shape, axis i sharded over
        d{i}. All ranks of the replica pass the same array, or a DTensor that is on the replica already.

        ``ShapeError``, a ValueError, if 1) *partition_dimensions* has not one entry per axis, or 2) an axis is not
        divisible by its entry, or 3) the product is not the number of logical devices; the first of these counts.
        Source: tf.distribute.TPUStrategy.experimental_split_to_logical_devices.
        """
        tensor = tensor if isinstance(tensor, DTensor) else as_array(tensor)
        sizes = check_partition(tensor.shape, partition_dimensions, self.num_logical_devices)
        mesh = self._mesh(self._replica_ranks(), sizes)
        return self._placed(tensor, Layout([f"d{i}" for i in range(len(sizes))], mesh))

    def experimental_replicate_to_logical_devices(self, tensor: DTensor | ArrayLike) -> DTensor:
        """Return *tensor* whole on every logical device. Local; Collective over the replica for a DTensor.

        A DTensor over the replica stays on its mesh, anything else comes to `replica_mesh` of one dimension.
        """
        tensor = tensor if isinstance(tensor, DTensor) else as_array(tensor)
        mesh = self.replica_mesh()
        if isinstance(tensor, DTensor) and tensor.mesh.ranks == mesh.ranks and tensor.mesh.world is mesh.world:
            mesh = tensor.mesh
        return self._placed(tensor, Layout.replicated(mesh, tensor.ndim))

    def experimental_assign_to_logical_device(self, tensor: DTensor | ArrayLike, logical_device_id: int) -> DTensor:
        """Return *tensor* whole on one logical device. Local; Collective over the replica for a DTensor.

        The result is on a mesh of that device alone; `local` is None on the others. ``MeshError`` unless
        ``0 <= logical_device_id < num_logical_devices``.
        """
        device, count = integer(logical_device_id, "logical_device_id"), self.num_logical_devices
        if not 0 <= device < count:
            raise MeshError(
                f"logical_device_id {quote(device)} to assign must be lower than the number of logical devices per "
                f"replica, which is {count}, and not negative"
            )
        ranks = self._replica_ranks()
        tensor = tensor if isinstance(tensor, DTensor) else as_array(tensor)
        layout = Layout.replicated(self._mesh((ranks[device],), (1,)), tensor.ndim)
        return self._placed(tensor, layout)

    def _placed(self, tensor: DTensor | NDArray[Any], target: Layout) -> DTensor:
        """Return *tensor* in the layout *target* on the replica. Local for an array, else Collective over it."""
        if not isinstance(tensor, DTensor):
            return distribute(tensor, target)
        ranks, mesh = self._replica_ranks(), tensor.mesh
        if set(mesh.ranks) <= set(ranks) and mesh.world is target.mesh.world:
            return relayout(tensor, target)
        raise MeshError(
            f"the tensor is on ranks {quote(tuple(mesh.ranks))} of {mesh.world!r}, but the logical devices of this "
            f"replica are ranks {quote(ranks)} of {target.mesh.world!r}; a replica places arrays and its own tensors"
        )


def check_partition(
    shape: Sequence[int | None] | None, partition_dimensions: Sequence[int], num_logical_devices: int
) -> tuple[int, ...]:
    """Return *partition_dimensions* as a tuple if they split *shape* over *num_logical_devices*. Local.

    A length of None is not known, and not checked. ``ShapeError`` as for the method of `Strategy` that splits.

    >>> check_partition((None, 4, 8, 3), [1, 2, 4, 1], 8)
    (1, 2, 4, 1)
    """
    if shape is None:
        raise ShapeError("a tensor of unknown rank cannot be split: partition_dimensions has one entry per axis")
    sizes = _sizes(partition_dimensions)
    if len(sizes) != len(shape):
        raise ShapeError(
            f"partition_dimensions {list(sizes)} has length {len(sizes)}, but a tensor of shape {tuple(shape)} has "
            f"rank {len(shape)}; it has one entry per axis"
        )
    for axis, size in enumerate(sizes):
        if size < 1:
            raise ShapeError(f"partition_dimensions[{axis}] is {size} in {list(sizes)}; entries are positive")
    for axis, (length, size) in enumerate(zip(shape, sizes, strict=True)):
        if length is not None and length % size:
            raise ShapeError(
                f"axis {axis} of shape {tuple(shape)} has {length} elements; partition_dimensions[{axis}] = {size} "
                "does not divide it"
            )
    _check_product(sizes, num_logical_devices)
    return sizes


def _sizes(partition_dimensions: Any) -> tuple[int, ...]:
    if isinstance(partition_dimensions, str | bytes) or not hasattr(partition_dimensions, "__iter__"):
        raise ShapeError(f"partition_dimensions {quote(partition_dimensions)} must be a sequence of integers")
    return tuple(
        integer(size, f"partition_dimensions[{axis}]", ShapeError) for axis, size in enumerate(partition_dimensions)
    )


def _check_product(sizes: tuple[int, ...], count: int) -> None:
    if math.prod(sizes) != count or min(sizes, default=1) < 1:
        raise ShapeError(
            f"the product of partition_dimensions {list(sizes)} is {math.prod(sizes)}; it must be the number of "
            f"logical devices per replica, {count}"
        )


def _own_value(value: Any, replica: int | None, count: int) -> Any:
    """Return *value* with the value of *replica* for each PerReplica in it."""
    if isinstance(value, PerReplica):
        if len(value.values) != count:
            raise MeshError(f"{quote(value)} has {len(value.values)} values for {count} replicas; each gets one")
        return None if replica is None else value.values[replica]
    if type(value) in (list, tuple):
        return type(value)(_own_value(part, replica, count) for part in value)
    if type(value) is dict:
        return {key: _own_value(part, replica, count) for key, part in value.items()}
    return value
