"""Strategies: run a step on every replica of a computation, and split tensors over the ranks of a replica.

A `Topology` has the coordinates of the ranks. A `DeviceAssignment` says which ranks are the logical devices of each
replica. A `Strategy` runs a step on every replica; within the step it splits tensors over the logical devices of the
replica. Source: tf.distribute.TPUStrategy.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar

import numpy as np
from numpy.typing import ArrayLike

from meshcomm.core._arguments import as_array, as_integer, counted, quote
from meshcomm.core._types import Array
from meshcomm.core.arrays.create import distribute
from meshcomm.core.arrays.dtensor import DTensor
from meshcomm.core.arrays.relayout import relayout
from meshcomm.core.layouts.layout import Layout
from meshcomm.core.layouts.mesh import Mesh
from meshcomm.core.ranks.local_errors import refusable
from meshcomm.core.ranks.meshes import create_mesh, world_of
from meshcomm.core.ranks.rank_sets import World
from meshcomm.errors import MeshError, ShapeError
from meshcomm.tensorflow.assignment import DeviceAssignment

if TYPE_CHECKING:
    from mpi4py import MPI

R = TypeVar("R")
V = TypeVar("V")


class PerReplica:
    """One value for each replica: `Strategy.run` gives each replica its own value as the argument.

    >>> PerReplica([1, 2]).values
    (1, 2)
    """

    __module__ = "meshcomm"

    __slots__ = ("_values",)

    def __init__(self, values: Iterable[object]) -> None:
        if not hasattr(values, "__iter__"):
            raise MeshError(f"PerReplica takes one value for each replica, in a list, not {quote(values)}")
        self._values = tuple(values)

    @property
    def values(self) -> tuple[object, ...]:
        """The value of each replica."""
        return self._values

    def __repr__(self) -> str:
        return f"PerReplica({list(self._values)!r})"


class Strategy:
    """Runs a step on every replica of an assignment, and splits tensors over the logical devices of a replica.

    Every rank makes a strategy and calls `run`. All ranks of a replica run the step together; in it, the methods
    ``experimental_...`` bring tensors to the logical devices. Ranks are those of *comm*, by default those of the
    topology's communicator, of the simulated world around, or of COMM_WORLD. Source: tf.distribute.TPUStrategy.

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

    __module__ = "meshcomm"

    def __init__(self, device_assignment: DeviceAssignment, comm: "MPI.Intracomm | None" = None) -> None:
        if not isinstance(device_assignment, DeviceAssignment):
            kind = type(device_assignment).__name__
            raise MeshError(f"device_assignment must be a DeviceAssignment, not {quote(device_assignment)}, a {kind}")
        self._assignment = device_assignment
        self._comm = device_assignment.topology._comm if comm is None else comm
        positions = np.ndindex(*device_assignment.ranks.shape)
        self._positions = dict(zip(device_assignment.ranks.reshape(-1).tolist(), positions, strict=True))
        self._last_rank = max(self._positions, default=-1)
        self._meshes: dict[tuple[World, tuple[int, ...], tuple[int, ...]], Mesh] = {}

    # -- replicas and logical devices ---------------------------------------------------------------------------------

    @property
    def device_assignment(self) -> DeviceAssignment:
        """The assignment."""
        return self._assignment

    @property
    def num_replicas_in_sync(self) -> int:
        """The number of replicas."""
        return self._assignment.num_replicas

    @property
    def num_logical_devices(self) -> int:
        """The number of logical devices of each replica."""
        return self._assignment.num_cores_per_replica

    @property
    def replica_id(self) -> int | None:
        """The replica that this rank belongs to, or None.

        >>> import meshcomm as mc
        >>> def program():
        ...     strategy = Strategy(DeviceAssignment.build(Topology.from_comm(), num_replicas=2))
        ...     return strategy.replica_id, strategy.logical_device_id
        >>> with mc.simulate(3) as world:
        ...     print(world.run(program))
        [(0, 0), (1, 0), (None, None)]
        """
        position = self._position()
        return None if position is None else position[0]

    @property
    def logical_device_id(self) -> int | None:
        """The logical device that this rank is in its replica, or None."""
        position = self._position()
        return None if position is None else position[1]

    def replica_mesh(self, partition_dimensions: Sequence[int] | None = None) -> Mesh:
        """Return the mesh of this rank's replica, in the shape *partition_dimensions*, by default one dimension.

        Its dimensions are called d0, d1, ...; its device k is logical device k of the replica. ``ShapeError`` unless
        the shape holds all logical devices, ``MeshError`` on a rank in no replica.

        >>> import meshcomm as mc
        >>> def program():
        ...     strategy = Strategy(DeviceAssignment.build(Topology.from_comm(), [1, 2, 1, 1]))
        ...     return strategy.replica_mesh([2, 1])
        >>> with mc.simulate(2) as world:
        ...     print(world.run(program))
        [Mesh(d0=2, d1=1), Mesh(d0=2, d1=1)]
        """
        count = self.num_logical_devices
        sizes = (count,) if partition_dimensions is None else _checked_sizes(partition_dimensions)
        _check_product(sizes, count)
        return self._mesh(self._replica_ranks(), sizes)

    def _position(self) -> tuple[int, ...] | None:
        """Return the replica and the logical device of this rank, or None; ``MeshError`` if the world is too small."""
        world = world_of(self._comm)
        if self._last_rank >= world.size:
            raise MeshError(
                f"{self._assignment!r} needs ranks up to {self._last_rank}, but the world has {world.size}: launch "
                f"the program with mpiexec -n {self._last_rank + 1}, or build a smaller assignment"
            )
        return self._positions.get(world.rank)

    def _replica_ranks(self) -> tuple[int, ...]:
        """Return the ranks of this rank's replica; ``MeshError`` if there is none."""
        replica = self.replica_id
        if replica is None:
            raise MeshError(
                f"rank {world_of(self._comm).rank} is in no replica of {self._assignment!r}: call this inside a step "
                "given to run, which only the ranks of replicas run"
            )
        return tuple(self._assignment.ranks[replica].tolist())

    def _mesh(self, ranks: tuple[int, ...], sizes: tuple[int, ...]) -> Mesh:
        """Return the mesh of *ranks* in the shape *sizes*, the same mesh each time."""
        key = (world_of(self._comm), ranks, sizes or (1,))
        if key not in self._meshes:
            dims = [(f"d{i}", size) for i, size in enumerate(sizes or (1,))]
            self._meshes[key] = create_mesh(dims, devices=ranks, comm=self._comm)
        return self._meshes[key]

    def close(self) -> None:
        """Free the communicators of this rank's replica; the next call opens new ones. Collective over the replica.

        >>> import meshcomm as mc
        >>> def program():
        ...     strategy = Strategy(DeviceAssignment.build(Topology.from_comm(), [1, 2, 1, 1]))
        ...     mc.barrier(strategy.replica_mesh())
        ...     strategy.close()
        >>> with mc.simulate(2) as world:
        ...     print(world.run(program))
        [None, None]
        """
        world = world_of(self._comm)
        for key in [key for key in self._meshes if key[0] is world]:
            self._meshes.pop(key).close()

    # -- running steps ------------------------------------------------------------------------------------------------

    def run(
        self, step_fn: Callable[..., R], args: Sequence[object] = (), kwargs: Mapping[str, object] | None = None
    ) -> R | None:
        """Run *step_fn* on every replica, and return its result on this rank, or None on a rank in no replica.

        The ranks of a replica run the step together, so the step may make calls that are Collective over the replica.
        Replicas do not wait for each other. In the arguments, and in lists, tuples and dicts among them, the value of
        the replica replaces each `PerReplica`. ``MeshError`` on all ranks unless that has one value for each replica;
        ``TypeError`` if *step_fn* is no function or *args* no tuple.

        >>> import meshcomm as mc
        >>> def program():
        ...     strategy = Strategy(DeviceAssignment.build(Topology.from_comm(), num_replicas=2))
        ...     return strategy.run(lambda x, y: x + y, args=(PerReplica([1, 2]),), kwargs={"y": 10})
        >>> with mc.simulate(3) as world:
        ...     print(world.run(program))
        [11, 12, None]
        """
        if not callable(step_fn):
            raise TypeError(f"step_fn must be a function, not {quote(step_fn)}, a {type(step_fn).__name__}")
        if not isinstance(args, list | tuple):
            raise TypeError(f"args must be a tuple of the arguments of step_fn, not a {type(args).__name__}")
        replica = self.replica_id
        positional = [_replica_value(arg, replica, self.num_replicas_in_sync) for arg in args]
        kwds = {name: _replica_value(arg, replica, self.num_replicas_in_sync) for name, arg in (kwargs or {}).items()}
        return None if replica is None else step_fn(*positional, **kwds)

    def experimental_local_results(self, value: V) -> tuple[V, ...]:
        """Return the results of `run` that are on this rank: one, or none on a rank in no replica.

        >>> import meshcomm as mc
        >>> def program():
        ...     strategy = Strategy(DeviceAssignment.build(Topology.from_comm(), num_replicas=2))
        ...     return strategy.experimental_local_results(strategy.run(lambda: "done"))
        >>> with mc.simulate(3) as world:
        ...     print(world.run(program))
        [('done',), ('done',), ()]
        """
        return () if self.replica_id is None else (value,)

    # -- tensors on logical devices -----------------------------------------------------------------------------------

    @refusable
    def experimental_split_to_logical_devices(
        self, tensor: DTensor | ArrayLike, partition_dimensions: Sequence[int]
    ) -> DTensor:
        """Return *tensor* split over the logical devices of the replica. Collective over the replica for a DTensor.

        Axis i is cut into ``partition_dimensions[i]`` equal blocks. Logical device k holds the block at
        ``unravel_index(k, partition_dimensions)``. The result is on the `replica_mesh` of that shape, with axis i
        sharded over d{i}. All ranks of the replica pass the same array, or a DTensor that is on the replica already.

        ``ShapeError``, a ValueError, for the first of these mistakes: 1) *partition_dimensions* does not have one
        entry for each axis; 2) an entry does not divide its axis; 3) the product is not the number of logical devices.
        Source: tf.distribute.TPUStrategy.experimental_split_to_logical_devices.

        >>> import numpy as np, meshcomm as mc
        >>> def program():
        ...     strategy = Strategy(DeviceAssignment.build(Topology.from_comm(), [1, 2, 1, 1]))
        ...     t = strategy.experimental_split_to_logical_devices(np.arange(8).reshape(2, 4), [1, 2])
        ...     return t.local.tolist()
        >>> with mc.simulate(2) as world:
        ...     print(world.run(program))
        [[[0, 1], [4, 5]], [[2, 3], [6, 7]]]
        """
        tensor = tensor if isinstance(tensor, DTensor) else as_array(tensor)
        sizes = check_partition(tensor.shape, partition_dimensions, self.num_logical_devices)
        mesh = self._mesh(self._replica_ranks(), sizes)
        return self._on_replica(tensor, Layout([f"d{i}" for i in range(len(sizes))], mesh))

    @refusable
    def experimental_replicate_to_logical_devices(self, tensor: DTensor | ArrayLike) -> DTensor:
        """Return *tensor* whole on every logical device. Collective over the replica for a DTensor.

        A DTensor over the replica stays on its mesh. The result of anything else is on the `replica_mesh` of one
        dimension.

        >>> import meshcomm as mc
        >>> def program():
        ...     strategy = Strategy(DeviceAssignment.build(Topology.from_comm(), [1, 2, 1, 1]))
        ...     return strategy.experimental_replicate_to_logical_devices([1, 2]).local.tolist()
        >>> with mc.simulate(2) as world:
        ...     print(world.run(program))
        [[1, 2], [1, 2]]
        """
        tensor = tensor if isinstance(tensor, DTensor) else as_array(tensor)
        mesh = self.replica_mesh()
        if isinstance(tensor, DTensor) and tensor.mesh.ranks == mesh.ranks and tensor.mesh.world is mesh.world:
            mesh = tensor.mesh
        return self._on_replica(tensor, Layout.replicated(mesh, tensor.ndim))

    @refusable
    def experimental_assign_to_logical_device(self, tensor: DTensor | ArrayLike, logical_device_id: int) -> DTensor:
        """Return *tensor* whole on one logical device. Collective over the replica for a DTensor.

        The result is on a mesh of that device alone; on the others `local` is None. ``MeshError`` unless
        ``0 <= logical_device_id < num_logical_devices``.

        >>> import meshcomm as mc
        >>> def program():
        ...     strategy = Strategy(DeviceAssignment.build(Topology.from_comm(), [1, 2, 1, 1]))
        ...     return strategy.experimental_assign_to_logical_device([1, 2], 0).local
        >>> with mc.simulate(2) as world:
        ...     print(world.run(program))
        [array([1, 2]), None]
        """
        device, count = as_integer(logical_device_id, "logical_device_id"), self.num_logical_devices
        if not 0 <= device < count:
            raise MeshError(
                f"logical_device_id {quote(device)} to assign must be lower than the number of logical devices per "
                f"replica, which is {count}, and not negative"
            )
        ranks = self._replica_ranks()
        tensor = tensor if isinstance(tensor, DTensor) else as_array(tensor)
        layout = Layout.replicated(self._mesh((ranks[device],), (1,)), tensor.ndim)
        return self._on_replica(tensor, layout)

    def _on_replica(self, tensor: DTensor | Array, target: Layout) -> DTensor:
        """Return *tensor* in the layout *target* on the replica. Collective over the replica for a DTensor."""
        if not isinstance(tensor, DTensor):
            return distribute(tensor, target)
        ranks, mesh = self._replica_ranks(), tensor.mesh
        if set(mesh.ranks) <= set(ranks) and mesh.world is target.mesh.world:
            return relayout(tensor, target)
        raise MeshError(
            f"the tensor is on ranks {quote(tuple(mesh.ranks))} of {mesh.world!r}, but the logical devices of this "
            f"replica are ranks {quote(ranks)} of {target.mesh.world!r}; pass an array, or a tensor of this replica"
        )


def check_partition(
    shape: Sequence[int | None] | None, partition_dimensions: Sequence[int], num_logical_devices: int
) -> tuple[int, ...]:
    """Return *partition_dimensions* as a tuple, after checking that they split *shape* over *num_logical_devices*.

    A length of None is unknown and is not checked. ``ShapeError`` as
    `Strategy.experimental_split_to_logical_devices` raises it.

    >>> check_partition((None, 4, 8, 3), [1, 2, 4, 1], 8)
    (1, 2, 4, 1)
    """
    if shape is None:
        raise ShapeError("a tensor of unknown rank cannot be split: partition_dimensions has one entry for each axis")
    sizes = _checked_sizes(partition_dimensions)
    if len(sizes) != len(shape):
        raise ShapeError(
            f"partition_dimensions {list(sizes)} has length {len(sizes)}, but a tensor of shape {tuple(shape)} has "
            f"{counted(len(shape), 'axis')}; it must have one entry for each axis"
        )
    for axis, size in enumerate(sizes):
        if size < 1:
            raise ShapeError(f"partition_dimensions[{axis}] is {size} in {list(sizes)}; entries must be positive")
    for axis, (length, size) in enumerate(zip(shape, sizes, strict=True)):
        if length is not None and length % size:
            raise ShapeError(
                f"axis {axis} of shape {tuple(shape)} has {counted(length, 'element')}; "
                f"partition_dimensions[{axis}] = {size} "
                "does not divide it"
            )
    _check_product(sizes, num_logical_devices)
    return sizes


def _checked_sizes(partition_dimensions: object) -> tuple[int, ...]:
    if isinstance(partition_dimensions, str | bytes) or not isinstance(partition_dimensions, Iterable):
        raise ShapeError(f"partition_dimensions {quote(partition_dimensions)} must be a sequence of integers")
    return tuple(
        as_integer(size, f"partition_dimensions[{axis}]", ShapeError) for axis, size in enumerate(partition_dimensions)
    )


def _check_product(sizes: tuple[int, ...], count: int) -> None:
    if math.prod(sizes) != count or min(sizes, default=1) < 1:
        raise ShapeError(
            f"the product of partition_dimensions {list(sizes)} is {math.prod(sizes)}; it must be the number of "
            f"logical devices per replica, {count}"
        )


def _replica_value(value: object, replica: int | None, count: int) -> object:
    """Return *value* with each PerReplica in it replaced by the value of *replica*, one of *count* replicas."""
    if isinstance(value, PerReplica):
        if len(value.values) != count:
            raise MeshError(
                f"{quote(value)} has {counted(len(value.values), 'value')} for {count} replicas; it must have one each"
            )
        return None if replica is None else value.values[replica]
    if type(value) is list:
        return [_replica_value(item, replica, count) for item in value]
    if type(value) is tuple:
        return tuple(_replica_value(item, replica, count) for item in value)
    if type(value) is dict:
        return {key: _replica_value(item, replica, count) for key, item in value.items()}
    return value
