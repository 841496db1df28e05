"""Meshes: devices arranged in a grid with named dimensions; pure values, without MPI and without data.

One device of a mesh is one MPI rank. Devices are numbered row-major over the mesh dimensions. The value of a mesh is
its name, its dimensions and its devices; where it runs (:attr:`Mesh.world`) is not part of the value.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

import numpy as np

from meshcomm.core import _hooks
from meshcomm.core._arguments import as_integer, counted, listed_briefly, quote
from meshcomm.core._mistakes import suggestion
from meshcomm.core._types import Ranks
from meshcomm.core.layouts.devices import GeneratedDevices, canonical_devices, checked_name
from meshcomm.core.layouts.dimensions import Dims, MeshDimension, canonical_dims, row_major_strides
from meshcomm.core.layouts.tensorflow_mesh import DeviceListing, TensorFlowMesh
from meshcomm.errors import MeshError


class MeshWorld(Protocol):
    """The world in which a mesh runs: ranks over MPI, or simulated ones."""

    size: int

    def here(self) -> Any:
        """Return the world as the calling rank sees it."""

    def device_in(self, mesh: "Mesh") -> int | None:
        """Return the device of the calling rank in *mesh*, or None if it is outside."""

    def close_mesh(self, mesh: "Mesh") -> None:
        """Free the communicators of *mesh*. Collective over the mesh."""


class _UnknownDimensionError(MeshError, KeyError):
    """The mesh has no dimension of this name."""

    __str__ = Exception.__str__  # KeyError's would put the message in quotes


class Mesh(TensorFlowMesh):
    """Devices in a grid with named dimensions; a frozen value.

    Source: tf.experimental.dtensor.Mesh, in the form that its page of Layout writes.

    Parameters
    ----------
    devices: device strings or integer ranks, in row-major order
    dims: the mesh dimensions, slowest first: pairs ``(name, size)`` or a dict
    mesh_name: a name for people, which is part of the value
    use_xla_spmd: a mark that the text and wire forms keep; meshcomm makes no use of it

    >>> mesh = Mesh(["TPU:0", "TPU:1", "TPU:2", "TPU:3", "TPU:4", "TPU:5"], [("x", 3), ("y", 2)])
    >>> mesh.size, mesh.shape(), mesh.coords(3), mesh["y"]
    (6, [3, 2], [1, 1], MeshDimension(name='y', size=2))
    >>> Mesh(range(2), {"x": 2}).local_devices()
    ['/job:mpi/replica:0/task:0/device:CPU:0', '/job:mpi/replica:0/task:1/device:CPU:0']

    The repr shows the ranks, unless they count from 0; `to_string` has all devices.

    >>> mesh, Mesh(range(4), {"x": 4}), Mesh([3, 1], {"x": 2}, "pair")
    (Mesh(x=3, y=2, devices=['TPU:0', ..., 'TPU:5']), Mesh(x=4), Mesh('pair', x=2, ranks=(3, 1)))
    """

    __module__ = "meshcomm"

    __slots__ = (
        "__weakref__",
        "_device_names",
        "_dims",
        "_hash",
        "_index",
        "_listing",
        "_name",
        "_ranks",
        "_steps",
        "_strides",
        "_use_xla_spmd",
        "_world",
    )

    _name: str
    _dims: tuple[MeshDimension, ...]  # none: a single device
    _ranks: Ranks
    _device_names: Sequence[str] | None  # the device strings; None: made from the ranks on demand
    _listing: DeviceListing | None  # None: all devices are local, counted from zero
    _use_xla_spmd: bool
    _strides: tuple[int, ...]
    _index: dict[str, int]
    _steps: dict[str, tuple[int, int]]  # stride and size: each new layout reads them
    _hash: int | None
    _world: MeshWorld | None  # where the mesh runs; None: where all meshes run. Not part of the value

    def __new__(
        cls, devices: Sequence[str] | Sequence[int], dims: Dims, mesh_name: str = "", use_xla_spmd: bool = False
    ) -> "Mesh":
        """Normalise and check the arguments; ``MeshError`` if they make no mesh."""
        ranks, names = canonical_devices(devices)
        mesh = cls._make(mesh_name, canonical_dims(dims), ranks, device_names=names, use_xla_spmd=bool(use_xla_spmd))
        product = math.prod(mesh.shape())
        if mesh.size != product:
            raise MeshError(
                f"{counted(mesh.size, 'device')} for a mesh of shape {mesh.shape()}, whose sizes "
                f"multiply to {product}; "
                "the product of the sizes is the number of devices"
            )
        return mesh

    @classmethod
    def _make(
        cls,
        name: str,
        dims: tuple[MeshDimension, ...],
        ranks: Ranks,
        *,
        device_names: Sequence[str] | None = None,
        listing: DeviceListing | None = None,
        use_xla_spmd: bool = False,
    ) -> "Mesh":
        """Return a mesh of values that are checked and canonical; see the slots."""
        mesh = object.__new__(cls)
        mesh._name = checked_name("mesh name", name, "|", may_be_empty=True)
        mesh._dims = dims
        mesh._ranks = ranks
        mesh._device_names = device_names
        mesh._listing = listing
        mesh._use_xla_spmd = use_xla_spmd
        mesh._strides = row_major_strides(dims)
        mesh._index = {dim.name: i for i, dim in enumerate(dims)}
        mesh._steps = {dim.name: (stride, dim.size) for dim, stride in zip(dims, mesh._strides, strict=True)}
        mesh._hash = mesh._world = None
        if use_xla_spmd and mesh.device_type() != "TPU":
            raise MeshError(f"use_xla_spmd on a mesh of {mesh.device_type()} devices; XLA SPMD needs TPU devices")
        return mesh

    # -- where it runs ------------------------------------------------------------------------------------------------

    @property
    def world(self) -> MeshWorld:
        """The world that this mesh runs in: the one in which it was created, else the one that all meshes share."""
        if self._world is not None:
            return self._world
        return _hooks.call("world")

    @property
    def rank(self) -> int | None:
        """The device of this process in the mesh; None if it is outside.

        >>> import meshcomm as mc
        >>> with mc.simulate(3) as world:
        ...     print(world.run(lambda: mc.create_mesh([("x", 2)], devices=[2, 0]).rank))
        [1, None, 0]
        """
        return self.world.device_in(self)

    def close(self) -> None:
        """Free the communicators that this mesh uses. Collective over the mesh.

        >>> import meshcomm as mc
        >>> mesh = mc.create_mesh([("x", 1)])
        >>> mc.barrier(mesh)
        >>> mesh.close()
        """
        self.world.close_mesh(self)

    # -- dimensions ---------------------------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        """The mesh's name, ``""`` if it has none."""
        return self._name

    @property
    def dims(self) -> tuple[MeshDimension, ...]:
        """The mesh dimensions, slowest first.

        >>> Mesh(range(6), [("x", 3), ("y", 2)]).dims
        (MeshDimension(name='x', size=3), MeshDimension(name='y', size=2))
        """
        return self._dims

    @property
    def dims_text(self) -> str:
        """The mesh dimensions with their sizes, as in messages.

        >>> Mesh(range(6), [("x", 3), ("y", 2)]).dims_text
        'x=3, y=2'
        """
        return ", ".join(f"{name}={size}" for name, size in self._dims)

    @property
    def dim_names(self) -> list[str]:
        """The names of the mesh dimensions, slowest first."""
        return [dim.name for dim in self._dims]

    @property
    def strides(self) -> list[int]:
        """The distance, in the list of devices, between neighbours along each mesh dimension.

        >>> Mesh(range(6), [("x", 3), ("y", 2)]).strides
        [2, 1]
        """
        return list(self._strides)

    @property
    def size(self) -> int:
        """The number of devices."""
        return len(self._ranks)

    def shape(self) -> list[int]:
        """Return the sizes of the mesh dimensions, slowest first.

        >>> Mesh(range(6), [("x", 3), ("y", 2)]).shape()
        [3, 2]
        """
        return [dim.size for dim in self._dims]

    def contains_dim(self, dim_name: object) -> bool:
        """Return whether the mesh has a dimension called *dim_name*.

        >>> mesh = Mesh(range(6), [("x", 3), ("y", 2)])
        >>> mesh.contains_dim("y"), mesh.contains_dim("z"), "y" in mesh
        (True, False, True)
        """
        return isinstance(dim_name, str) and dim_name in self._index

    def dim_size(self, dim_name: str) -> int:
        """Return the size of the mesh dimension *dim_name*; MeshError if there is none.

        >>> Mesh(range(6), [("x", 3), ("y", 2)]).dim_size("x")
        3
        """
        return self[dim_name].size

    def stride(self, dim_name: str) -> int:
        """Return the stride of the mesh dimension *dim_name*; MeshError if there is none.

        >>> Mesh(range(6), [("x", 3), ("y", 2)]).stride("x")
        2
        """
        return self._strides[self._dim_number(dim_name)]

    def __iter__(self) -> NoReturn:
        raise TypeError("a Mesh is not iterated over: mesh.dim_names, mesh.dims and mesh.ranks are lists")

    def __contains__(self, dim_name: object) -> bool:
        return self.contains_dim(dim_name)

    def __getitem__(self, dim_name: str) -> MeshDimension:
        return self._dims[self._dim_number(dim_name)]

    def _dim_number(self, dim_name: str) -> int:
        if not self.contains_dim(dim_name):
            raise _UnknownDimensionError(
                f"dimension {quote(dim_name)} does not exist in mesh; available dimensions: {quote(self.dim_names)}"
                f"{suggestion(dim_name, self.dim_names)}"
            )
        return self._index[dim_name]

    # -- devices ------------------------------------------------------------------------------------------------------

    @property
    def ranks(self) -> Ranks:
        """The rank of each device in the mesh's world: a range if the ranks are consecutive, else a tuple.

        >>> Mesh(range(2), {"x": 2}).ranks, Mesh([4, 7], {"x": 2}).ranks
        (range(0, 2), (4, 7))
        """
        return self._ranks

    @property
    def single_device(self) -> str:
        """The device of a single-device mesh, ``""`` for any other mesh.

        >>> Mesh.from_device("CPU:0").single_device, Mesh(["CPU:0"], {"x": 1}).single_device
        ('CPU:0', '')
        """
        return self.local_devices()[0] if self.is_single_device() else ""

    def is_single_device(self) -> bool:
        """Return whether this is a single device without mesh dimensions, as made by ``from_device``.

        >>> Mesh.from_device("CPU:0").is_single_device(), Mesh(["CPU:0"], {"x": 1}).is_single_device()
        (True, False)
        """
        return not self._dims

    # -- coordinates --------------------------------------------------------------------------------------------------

    def coords(self, device: int) -> list[int]:
        """Return the coordinates of *device*, wrapping around at the number of devices.

        >>> mesh = Mesh(range(6), [("x", 3), ("y", 2)])
        >>> mesh.coords(5), mesh.coords(6), mesh.coords(-1)
        ([2, 1], [0, 0], [2, 1])
        """
        if device is None:
            raise MeshError(f"device is None, as mesh.rank is on a rank outside of the {self}")
        device = as_integer(device, "device")
        return [device // stride % dim.size for dim, stride in zip(self._dims, self._strides, strict=True)]

    def groups_along(self, dim_names: str | Iterable[str]) -> tuple[tuple[int, ...], ...]:
        """Return the groups of devices that differ only along *dim_names*, as a group assignment.

        Device numbers ascend inside a group; the order of *dim_names* does not matter.

        >>> mesh = Mesh(range(6), [("x", 3), ("y", 2)])
        >>> mesh.groups_along("x"), mesh.groups_along(["y"])
        (((0, 2, 4), (1, 3, 5)), ((0, 1), (2, 3), (4, 5)))
        """
        names = [dim_names] if isinstance(dim_names, str) else dim_names
        group_dims = sorted({self._dim_number(name) for name in names})
        other_dims = [i for i in range(len(self._dims)) if i not in group_dims]
        devices = np.arange(self.size).reshape(self.shape()).transpose(other_dims + group_dims)
        group_size = math.prod(self._dims[i].size for i in group_dims)
        return tuple(map(tuple, devices.reshape(-1, group_size).tolist()))

    # -- protocols of values ------------------------------------------------------------------------------------------

    def of_ranks(self, ranks: Sequence[int], dims: Dims) -> "Mesh":
        """Return a mesh of other *ranks* in the world of this one.

        >>> Mesh(range(4), {"x": 4}).of_ranks([3, 1], {"y": 2}).ranks
        (3, 1)
        """
        return self._bound_to_same_world(Mesh(ranks, dims))

    def _bound_to_same_world(self, mesh: "Mesh") -> "Mesh":
        return bound_to(self._world, mesh)

    def _value(self) -> tuple[object, ...]:
        return self._dims, self._name, self._ranks, self._device_names, self._listing, self._use_xla_spmd

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Mesh):
            return NotImplemented
        return self is other or (hash(self) == hash(other) and self._value() == other._value())

    def __hash__(self) -> int:
        if self._hash is None:
            self._hash = hash(self._value())
        return self._hash

    def __repr__(self) -> str:
        if self.is_single_device():
            return f"Mesh.from_device({self.single_device!r})"
        name = [repr(self._name)] if self._name else []
        dims = [f"{dim.name}={dim.size}" for dim in self._dims]
        spmd = ["use_xla_spmd=True"] if self._use_xla_spmd else []
        return f"Mesh({', '.join([*name, *dims, *self._devices_repr(), *spmd])})"

    if TYPE_CHECKING:  # meshcomm.tools.pictures.of_meshes gives meshes this method

        def html(self) -> str:
            """Return the picture of the mesh as HTML with SVG, for notebooks."""

    def _repr_html_(self) -> str:
        return self.html()

    def _devices_repr(self) -> list[str]:
        """Return the arguments in the repr for the devices: none if they are the ranks from 0 on."""
        if self._listing:
            _, local_ids, local_devices, global_devices = self._listing
            device_list = listed_briefly(global_devices or local_devices)
            return [f"devices=[{device_list}]", f"local_ids=[{listed_briefly(local_ids)}]"]
        if isinstance(self._device_names, GeneratedDevices):
            return [f"devices='*{self._device_names.type}'"]
        if self._device_names is not None:
            return [f"devices=[{listed_briefly(self._device_names)}]"]
        if isinstance(self._ranks, range):
            return [f"ranks={self._ranks}"] if self._ranks.start else []
        return [f"ranks=({listed_briefly(self._ranks)})"]

    def __str__(self) -> str:
        name = f" {self._name}" if self._name else ""
        dims = self.dims_text or self.single_device
        ranks = self._ranks
        ranks_text = f"{ranks[0]} to {ranks[-1]}" if isinstance(ranks, range) else quote(ranks)
        return f"mesh{name} {dims} over ranks {ranks_text}"

    def __reduce__(self) -> tuple[object, ...]:
        if self._listing or self.is_single_device():
            return Mesh.from_string, (self.to_string(),)
        if isinstance(self._device_names, GeneratedDevices):
            text = f"{self._name}|{','.join(f'{d.name}={d.size}' for d in self._dims)}|*{self._device_names.type}"
            if not self._use_xla_spmd:
                return Mesh.from_string, (text,)
        devices = self._ranks if self._device_names is None else tuple(self._device_names)
        return Mesh, (devices, [tuple(dim) for dim in self._dims], self._name, self._use_xla_spmd)

    def __copy__(self) -> "Mesh":
        return self

    def __deepcopy__(self, memo: object) -> "Mesh":
        return self


bound_world: Callable[[Mesh], MeshWorld | None] = attrgetter("_world")
"""Return the world that a mesh was created in; None for a mesh in the world that all meshes share."""


def bound_to(world: MeshWorld | None, mesh: Mesh) -> Mesh:
    """Return a mesh equal to *mesh* that runs in *world*."""
    result = object.__new__(Mesh)
    for slot in Mesh.__slots__:
        if slot != "__weakref__":
            setattr(result, slot, getattr(mesh, slot))
    result._world = world
    return result


def one_device_mesh(mesh: Mesh, device: int) -> Mesh:
    """Return a mesh of one *device* of *mesh*, in the same world.

    >>> one_device_mesh(Mesh([4, 5], [("x", 2)]), 1).ranks
    range(5, 6)
    """
    return mesh.of_ranks([mesh.ranks[device]], [("device", 1)])
