"""Meshes: devices arranged in a grid with named dimensions; pure values, without MPI and without data.

One device of a mesh is one MPI rank. Devices are numbered row-major over the mesh dimensions. A mesh is its name, its
dimensions and its devices; where it runs (:attr:`Mesh.world`) is not part of the value.
"""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias, TypeVar

import numpy as np

from meshcomm import _hooks
from meshcomm._arguments import integer, quote
from meshcomm._types import Ranks
from meshcomm.errors import MeshError
from meshcomm.layouts import wire

Dims: TypeAlias = Iterable[tuple[str, int]] | Mapping[str, int]


T = TypeVar("T")


# "scalar" and "any" mean something else than a mesh dimension in the text form of a layout.
RESERVED_NAMES = frozenset({"unsharded", "match", "any", "scalar"})


LONGEST_REPR = 64  # devices; a mesh with more of them is described by its dimensions only


_MAX_RANK = 2**31 - 1  # MPI numbers ranks with a C int


_MAX_INT64 = 2**63 - 1


_MAX_DIMS = 32  # the most axes of an ndarray that every NumPy in use allows


_MAX_GENERATED = 2**20  # devices that a text like "|x=4|*CPU" may ask for


_XLA_SPMD = "use_xla_spmd"


_RANK_DEVICE = re.compile(r"/job:mpi/replica:0/task:(0|[1-9][0-9]{0,9})/device:CPU:0")


_DEVICE_TYPE = re.compile(
    r"(?:.*/)?(?:device:)?(?!(?:job|replica|task):)([A-Za-z_][A-Za-z0-9_]*):[0-9]+", re.IGNORECASE
)


DIMENSION_MESSAGE = wire.Message(
    "tensorflow.dtensor.MeshDimensionProto", (wire.Field(1, "name", "string"), wire.Field(2, "size", "int64"))
)


MESH_MESSAGE = wire.Message(
    "tensorflow.dtensor.MeshProto",
    (
        wire.Field(1, "mesh_dimensions", DIMENSION_MESSAGE, repeated=True),
        wire.Field(2, "global_device_ids", "int64", repeated=True),
        wire.Field(3, "name", "string"),
        wire.Field(4, "local_device_ids", "int64", repeated=True),
        wire.Field(5, "local_devices", "string", repeated=True),
        wire.Field(6, "global_devices", "string", repeated=True),
        wire.Field(7, "use_xla_spmd", "bool"),
        wire.Field(8, "single_device", "string"),
    ),
)


class MeshDimension(NamedTuple):
    """A mesh dimension: its name and how many devices lie along it."""

    name: str
    size: int


class _Listing(NamedTuple):
    """What the mesh of another system may say beyond a list of devices: who has which of them, counted from where."""

    first_id: int
    local_ids: tuple[int, ...]
    local_devices: tuple[str, ...]
    global_devices: tuple[str, ...]


class _UnknownDimensionError(MeshError, KeyError):
    """A mesh dimension asked for by a name the mesh does not have."""

    __str__ = Exception.__str__  # KeyError's would put the message in quotes


class Mesh:
    """Devices in a grid with named dimensions; a frozen value. Local.

    *devices* are device strings or integer ranks, in row-major order; *dims* are pairs ``(name, size)`` or a dict.
    Source: tf.experimental.dtensor.Mesh, in the form its page of Layout writes.

    >>> mesh = Mesh(["TPU:0", "TPU:1", "TPU:2", "TPU:3", "TPU:4", "TPU:5"], [("x", 3), ("y", 2)])
    >>> mesh.size, mesh.shape(), mesh.coords(3), mesh["y"]
    (6, [3, 2], [1, 1], MeshDimension(name='y', size=2))
    >>> Mesh(range(2), {"x": 2}).local_devices()
    ['/job:mpi/replica:0/task:0/device:CPU:0', '/job:mpi/replica:0/task:1/device:CPU:0']
    """

    __slots__ = (
        "__weakref__",
        "_closed",
        "_dims",
        "_hash",
        "_index",
        "_listing",
        "_name",
        "_names",
        "_ranks",
        "_strides",
        "_use_xla_spmd",
        "_world",
    )

    _name: str
    _dims: tuple[MeshDimension, ...]  # none: a single device
    _ranks: Ranks
    _names: tuple[str, ...] | None  # the device strings; None: made from the ranks on demand
    _listing: _Listing | None  # None: all devices are local, counted from zero
    _use_xla_spmd: bool
    _strides: tuple[int, ...]
    _index: dict[str, int]
    _hash: int | None
    _world: Any  # where the mesh runs; None: where all meshes run. Not part of the value
    _closed: frozenset[int]  # the ranks that closed it: simulated ones may share a mesh. Not part of the value

    def __new__(
        cls, devices: Sequence[str] | Sequence[int], dims: Dims, mesh_name: str = "", use_xla_spmd: bool = False
    ) -> "Mesh":
        """Normalise and check the arguments; MeshError for what makes no mesh. Local."""
        ranks, names = _canonical_devices(devices)
        mesh = cls._make(mesh_name, canonical_dims(dims), ranks, names, None, bool(use_xla_spmd))
        product = math.prod(mesh.shape())
        if mesh.size != product:
            raise MeshError(
                f"{mesh.size} devices for a mesh of shape {mesh.shape()}, whose sizes multiply to {product}; "
                "the product of the sizes is the number of devices"
            )
        return mesh

    @classmethod
    def _make(
        cls,
        name: str,
        dims: tuple[MeshDimension, ...],
        ranks: Ranks,
        names: tuple[str, ...] | None,
        listing: _Listing | None,
        use_xla_spmd: bool,
    ) -> "Mesh":
        mesh = object.__new__(cls)
        mesh._name = _checked_name("mesh name", name, "|", may_be_empty=True)
        mesh._dims = dims
        mesh._ranks = ranks
        mesh._names = names
        mesh._listing = listing
        mesh._use_xla_spmd = use_xla_spmd
        mesh._strides = _row_major_strides(dims)
        mesh._index = {dim.name: i for i, dim in enumerate(dims)}
        mesh._hash = mesh._world = None
        mesh._closed = frozenset()
        if use_xla_spmd and mesh.device_type() != "TPU":
            raise MeshError(f"use_xla_spmd on a mesh of {mesh.device_type()} devices; XLA SPMD needs TPU devices")
        return mesh

    def _bound_to(self, world: object) -> "Mesh":
        """Return an equal mesh that runs in *world*. Local."""
        mesh = object.__new__(Mesh)
        for slot in Mesh.__slots__:
            if slot != "__weakref__":
                setattr(mesh, slot, getattr(self, slot))
        mesh._world = world
        mesh._closed = frozenset()
        return mesh

    # -- where it runs ------------------------------------------------------------------------------------------------

    @property
    def world(self) -> Any:
        """The world this mesh runs in: the one it was created in, else the one all meshes share. Local."""
        return _hooks.call("world") if self._world is None else self._world

    @property
    def rank(self) -> int | None:
        """This process's device in the mesh, or None outside it. Local."""
        device: int | None = _hooks.call("mesh_rank", self)
        return device

    def close(self) -> None:
        """Free the communicators that this mesh uses. Collective over the mesh."""
        _hooks.call("close_mesh", self)

    # -- dimensions ---------------------------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        """The mesh's name, ``""`` if it has none. Local."""
        return self._name

    @property
    def dims(self) -> tuple[MeshDimension, ...]:
        """The mesh dimensions, slowest first. Local."""
        return self._dims

    @property
    def dim_names(self) -> list[str]:
        """The names of the mesh dimensions, slowest first. Local."""
        return [dim.name for dim in self._dims]

    @property
    def strides(self) -> list[int]:
        """How far apart neighbours along each mesh dimension are in the list of devices. Local."""
        return list(self._strides)

    @property
    def size(self) -> int:
        """The number of devices. Local."""
        return len(self._ranks)

    def shape(self) -> list[int]:
        """Return the sizes of the mesh dimensions, slowest first. Local."""
        return [dim.size for dim in self._dims]

    def contains_dim(self, dim_name: object) -> bool:
        """Return whether the mesh has a dimension called *dim_name*. Local."""
        return isinstance(dim_name, str) and dim_name in self._index

    def dim_size(self, dim_name: str) -> int:
        """Return the size of the mesh dimension *dim_name*; MeshError if there is none. Local."""
        return self[dim_name].size

    def stride(self, dim_name: str) -> int:
        """Return the stride of the mesh dimension *dim_name*; MeshError if there is none. Local."""
        return self._strides[self._position(dim_name)]

    def __contains__(self, dim_name: object) -> bool:
        return self.contains_dim(dim_name)

    def __getitem__(self, dim_name: str) -> MeshDimension:
        return self._dims[self._position(dim_name)]

    def _position(self, dim_name: str) -> int:
        if not self.contains_dim(dim_name):
            raise _UnknownDimensionError(
                f"dimension {quote(dim_name)} does not exist in mesh; available dimensions: {quote(self.dim_names)}"
            )
        return self._index[dim_name]

    # -- devices ------------------------------------------------------------------------------------------------------

    @property
    def ranks(self) -> Ranks:
        """The rank of each device in the mesh's world, a range wherever they are consecutive. Local."""
        return self._ranks

    @property
    def single_device(self) -> str:
        """The device of a single-device mesh, ``""`` for any other mesh. Local."""
        return self.local_devices()[0] if self.is_single_device() else ""

    def is_single_device(self) -> bool:
        """Return whether this is a single device without mesh dimensions, as made by ``from_device``. Local."""
        return not self._dims

    def global_device_ids(self) -> "np.ndarray[Any, np.dtype[np.int64]]":
        """Return the numbers of all devices as an int64 array in the shape of the mesh. Local."""
        first = self.min_global_device_id()
        return np.arange(first, first + self.size, dtype=np.int64).reshape(self.shape())

    def global_devices(self) -> list[str]:
        """Return the device strings of all processes, where a text or proto listed them apart; else ``[]``. Local."""
        return list(self._listing.global_devices) if self._listing else []

    def local_device_ids(self) -> list[int]:
        """Return the numbers of the local devices; a mesh made here lists all of its devices as local. Local."""
        return list(self._listing.local_ids if self._listing else range(self.size))

    def local_devices(self) -> list[str]:
        """Return the device strings of the local devices; a mesh made here lists all of its devices as local. Local.

        >>> Mesh([4, 7], {"x": 2}).local_devices()
        ['/job:mpi/replica:0/task:4/device:CPU:0', '/job:mpi/replica:0/task:7/device:CPU:0']
        """
        if self._listing:
            return list(self._listing.local_devices)
        return [_rank_device(rank) for rank in self._ranks] if self._names is None else list(self._names)

    def num_local_devices(self) -> int:
        """Return the number of local devices. Local."""
        return len(self._listing.local_ids) if self._listing else self.size

    def min_global_device_id(self) -> int:
        """Return the number of the first device. Local."""
        return self._listing.first_id if self._listing else 0

    def device_type(self) -> str:
        """Return what the devices are, in capitals: ``CPU``, ``GPU``, ``TPU``. Local."""
        if self._listing:
            return _device_type((self._listing.local_devices or self._listing.global_devices)[0])
        return "CPU" if self._names is None else _device_type(self._names[0])

    def is_remote(self) -> bool:
        """Return whether no device is local. Local."""
        return self.num_local_devices() == 0

    def use_xla_spmd(self) -> bool:
        """Return whether the mesh was marked for XLA SPMD; meshcomm itself makes no use of it. Local."""
        return self._use_xla_spmd

    def host_mesh(self) -> "Mesh":
        """Return the mesh of the CPUs beside these devices, in the same world, without the mesh's name. Local."""
        return self._on_hosts()._bound_to(self._world)

    def _on_hosts(self) -> "Mesh":
        if self.is_single_device():
            return Mesh.from_device(_on_host(self.single_device))
        if self._listing is None:
            devices = self._ranks if self._names is None else tuple(map(_on_host, self._names))
            return Mesh(devices, self._dims)
        first, local_ids, *devices_of = self._listing
        local_devices, global_devices = (tuple(map(_on_host, devices)) for devices in devices_of)
        ids = tuple(range(first, first + self.size))
        return self._listed("", self._dims, ids, local_ids, local_devices, global_devices)

    # -- places in the grid -------------------------------------------------------------------------------------------

    def coords(self, device: int) -> list[int]:
        """Return the coordinates of *device*, wrapping around at the number of devices. Local.

        >>> mesh = Mesh(range(6), [("x", 3), ("y", 2)])
        >>> mesh.coords(5), mesh.coords(6), mesh.coords(-1)
        ([2, 1], [0, 0], [2, 1])
        """
        device = integer(device, "device")
        return [device // stride % dim.size for dim, stride in zip(self._dims, self._strides, strict=True)]

    def device_location(self, offset: int) -> list[int]:
        """Return the coordinates of device *offset*; MeshError unless ``0 <= offset < size``. Local."""
        if not 0 <= integer(offset, "mesh offset") < self.size:
            raise MeshError(f"mesh offset {quote(offset)} of a mesh of {self.size} devices; it is 0 <= offset < size")
        return self.coords(offset)

    def unravel_index(self) -> dict[int, dict[str, int]]:
        """Return the coordinates of every device by the names of the dimensions. Local.

        >>> Mesh(range(2), {"x": 2}).unravel_index()
        {0: {'x': 0}, 1: {'x': 1}}
        """
        return {device: self._named_coords(device) for device in range(self.size)}

    def local_device_locations(self) -> list[dict[str, int]]:
        """Return the coordinates of every local device by the names of the dimensions. Local."""
        first = self.min_global_device_id()
        return [self._named_coords(number - first) for number in self.local_device_ids()]

    def _named_coords(self, device: int) -> dict[str, int]:
        return dict(zip(self.dim_names, self.coords(device), strict=True))

    def groups_along(self, dim_names: str | Iterable[str]) -> tuple[tuple[int, ...], ...]:
        """Return the groups of devices that differ only along *dim_names*, as a group assignment. Local.

        Device numbers ascend inside a group; the order of *dim_names* does not matter.

        >>> mesh = Mesh(range(6), [("x", 3), ("y", 2)])
        >>> mesh.groups_along("x"), mesh.groups_along(["y"])
        (((0, 2, 4), (1, 3, 5)), ((0, 1), (2, 3), (4, 5)))
        """
        names = [dim_names] if isinstance(dim_names, str) else dim_names
        along = sorted({self._position(name) for name in names})
        across = [i for i in range(len(self._dims)) if i not in along]
        devices = np.arange(self.size).reshape(self.shape()).transpose(across + along)
        length = math.prod(self._dims[i].size for i in along)
        return tuple(map(tuple, devices.reshape(-1, length).tolist()))

    # -- text, wire form and the other protocols of values ------------------------------------------------------------

    def to_string(self) -> str:
        """Return the mesh as one line of text. Local.

        Source: Mesh::ToString of TensorFlow: name, dimensions, global ids, local ids, local devices and, where the
        mesh has them, global devices and a mark for XLA SPMD. A single-device mesh is its device.

        >>> Mesh(["TPU:0", "TPU:1"], [("x", 2)], "pod").to_string()
        'pod|x=2|0,1|0,1|TPU:0,TPU:1'
        """
        if self.is_single_device():
            return self.single_device
        first = self.min_global_device_id()
        parts = [
            self._name,
            ",".join(f"{dim.name}={dim.size}" for dim in self._dims),
            ",".join(map(str, range(first, first + self.size))),
            ",".join(map(str, self.local_device_ids())),
            ",".join(self.local_devices()),
        ]
        if self.global_devices():
            parts.append(",".join(self.global_devices()))
        if self._use_xla_spmd:
            parts.append(_XLA_SPMD)
        return "|".join(parts)

    @classmethod
    def from_string(cls, text: str) -> "Mesh":
        """Return the mesh that *text* describes; MeshError for any other text. Local.

        Takes what ``to_string`` writes, and the short form ``name|dimensions|*TYPE``, which makes up device strings.

        >>> Mesh.from_string("|x=2|*TPU").local_devices()
        ['/job:localhost/task:0/device:TPU:0', '/job:localhost/task:0/device:TPU:1']
        """
        if not isinstance(text, str):
            raise MeshError(f"{type(text).__name__} is no text of a mesh; from_string takes a str")
        if text == "empty_mesh":
            raise MeshError("the text 'empty_mesh' describes no mesh; a mesh has at least one device")
        parts = text.split("|")
        if len(parts) == 1:
            return cls.from_device(text)
        if len(parts) not in (3, 5, 6, 7):
            raise MeshError(f"expected either 5, 6, 7 or 3 mesh parts but found {len(parts)} in {quote(text)}")
        dims = canonical_dims(map(_parse_dim, parts[1].split(",")))
        if len(parts) == 3:
            return cls(_generated_devices(parts[2], dims), dims, parts[0])
        use_xla_spmd = parts[-1] == _XLA_SPMD and len(parts) > 5
        if len(parts) == 7 and not use_xla_spmd:
            raise MeshError(f"part 7 of the mesh is {quote(parts[6])}; the only text it may be is {_XLA_SPMD!r}")
        global_devices = parts[5] if len(parts) - use_xla_spmd == 6 else ""
        ids, local_ids = _parse_ids(parts[2], "global"), _parse_ids(parts[3], "local")
        return cls._listed(
            parts[0], dims, ids, local_ids, _split(parts[4]), _split(global_devices), use_xla_spmd=use_xla_spmd
        )

    @classmethod
    def _listed(
        cls,
        name: str,
        dims: tuple[MeshDimension, ...],
        ids: tuple[int, ...],
        local_ids: tuple[int, ...],
        local_devices: tuple[str, ...],
        global_devices: tuple[str, ...],
        use_xla_spmd: bool = False,
    ) -> "Mesh":
        """Return the mesh that lists its devices as TensorFlow does, after checking the lists."""
        _check_ids(ids, local_ids, math.prod(dim.size for dim in dims))
        _check_listed_devices(len(ids), len(local_ids), local_devices, global_devices)
        listing = _Listing(ids[0], local_ids, local_devices, global_devices)
        if not global_devices and local_ids == tuple(range(len(ids))):
            return cls._make(name, dims, *_canonical_devices(local_devices), None, use_xla_spmd)
        in_order = global_devices or _in_order(local_ids, local_devices, ids)
        ranks = _canonical_devices(in_order)[0] if in_order else range(len(ids))
        return cls._make(name, dims, ranks, None, listing, use_xla_spmd)

    @classmethod
    def from_device(cls, device: str) -> "Mesh":
        """Return the mesh of a single device, without dimensions; its text is the device string. Local.

        >>> mesh = Mesh.from_device("CPU:0")
        >>> mesh.size, mesh.shape(), mesh.single_device
        (1, [], 'CPU:0')
        """
        if not isinstance(device, str):
            raise MeshError(f"device {quote(device)} is a {type(device).__name__}; a single device is a string")
        return cls._make("", (), *_canonical_devices((device,)), None, False)

    def as_proto(self) -> Any:
        """Return the mesh as a MeshProto: a protobuf message, or a stand-in where protobuf is not installed. Local."""
        return wire.as_message(MESH_MESSAGE, self.wire_values())

    def serialized_string(self) -> bytes:
        """Return the bytes of the mesh's MeshProto. Local.

        >>> Mesh.from_proto(Mesh(["CPU:0"], [("x", 1)]).serialized_string())
        Mesh.from_string(|x=1|0|0|CPU:0)
        """
        return wire.encode(MESH_MESSAGE, self.wire_values())

    def wire_values(self) -> wire.Values:
        """Return the plain values of the mesh's MeshProto. Local."""
        if self.is_single_device():
            return {"single_device": self.single_device}
        first = self.min_global_device_id()
        return {
            "mesh_dimensions": [dim._asdict() for dim in self._dims],
            "global_device_ids": range(first, first + self.size),
            "name": self._name,
            "local_device_ids": self.local_device_ids(),
            "local_devices": self.local_devices(),
            "global_devices": self.global_devices(),
            "use_xla_spmd": self._use_xla_spmd,
        }

    @classmethod
    def from_proto(cls, proto: object) -> "Mesh":
        """Return the mesh of a MeshProto, given as any message with ``SerializeToString()`` or as bytes. Local."""
        try:
            values = wire.decode(MESH_MESSAGE, wire.as_bytes(proto))
        except wire.WireError as error:
            raise MeshError(f"not a MeshProto: {error}") from error
        return cls.from_wire_values(values)

    @classmethod
    def from_wire_values(cls, values: wire.Values) -> "Mesh":
        """Return the mesh of the plain values of a MeshProto; MeshError if they make none. Local."""
        if values["single_device"]:
            return cls.from_device(values["single_device"])
        dims = canonical_dims((dim["name"], dim["size"]) for dim in values["mesh_dimensions"])
        ids, local_ids = tuple(values["global_device_ids"]), tuple(values["local_device_ids"])
        local_devices, global_devices = tuple(values["local_devices"]), tuple(values["global_devices"])
        return cls._listed(values["name"], dims, ids, local_ids, local_devices, global_devices, values["use_xla_spmd"])

    def _value(self) -> tuple[object, ...]:
        return self._dims, self._name, self._ranks, self._names, self._listing, self._use_xla_spmd

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Mesh):
            return NotImplemented
        return self is other or (hash(self) == hash(other) and self._value() == other._value())

    def __hash__(self) -> int:
        if self._hash is None:
            self._hash = hash(self._value())
        return self._hash

    def __repr__(self) -> str:
        if self.size <= LONGEST_REPR:
            return f"Mesh.from_string({self.to_string()})"
        name = [repr(self._name)] if self._name else []
        return f"Mesh({', '.join(name + [f'{dim.name}={dim.size}' for dim in self._dims])})"

    def __str__(self) -> str:
        name = f" {self._name}" if self._name else ""
        dims = ", ".join(f"{dim.name}={dim.size}" for dim in self._dims) or self.single_device
        ranks = self._ranks
        listed = f"{ranks[0]} to {ranks[-1]}" if isinstance(ranks, range) else quote(ranks)
        return f"mesh{name} {dims} over ranks {listed}"

    def __reduce__(self) -> tuple[Any, ...]:
        if self._listing or self.is_single_device():
            return Mesh.from_string, (self.to_string(),)
        devices = self._ranks if self._names is None else self._names
        return Mesh, (devices, [tuple(dim) for dim in self._dims], self._name, self._use_xla_spmd)

    def __copy__(self) -> "Mesh":
        return self

    def __deepcopy__(self, memo: object) -> "Mesh":
        return self


def _checked_name(what: str, name: object, forbidden: str, may_be_empty: bool = False) -> str:
    """Return *name* as a plain str that the text form can hold."""
    if not isinstance(name, str):
        raise MeshError(f"{what} {quote(name)} is a {type(name).__name__}; it must be a str")
    if not (name or may_be_empty):
        raise MeshError(f"{what} is empty; it must have at least one character")
    if not name.isprintable() or any(c in name for c in forbidden + " "):
        raise MeshError(
            f"{what} {quote(name)} cannot be written in the text form of a mesh; "
            f"names are printable and contain neither spaces nor any of {' '.join(forbidden)}"
        )
    return str.__str__(name)


def canonical_dims(dims: Dims) -> tuple[MeshDimension, ...]:
    """Return *dims* as MeshDimensions; ``MeshError`` unless names and sizes are those that a mesh can have. Local."""
    pairs = _as_tuple("mesh dimensions", dims.items() if isinstance(dims, Mapping) else dims)
    if not 1 <= len(pairs) <= _MAX_DIMS:
        raise MeshError(f"{len(pairs)} mesh dimensions; a mesh has between 1 and {_MAX_DIMS}")
    canonical = tuple(_canonical_dim(i, pair) for i, pair in enumerate(pairs))
    names = [dim.name for dim in canonical]
    for name in names:
        if names.count(name) > 1:
            raise MeshError(f"repeated mesh dimension {quote(name)} in {quote(names)}; the names in a mesh are unique")
    if math.prod(dim.size for dim in canonical) > _MAX_INT64:
        raise MeshError(f"a mesh of shape {[dim.size for dim in canonical]}; it has at most 2**63 - 1 devices")
    return canonical


def _canonical_dim(i: int, pair: object) -> MeshDimension:
    if not isinstance(pair, list | tuple) or len(pair) != 2:
        raise MeshError(f"mesh dimension {i} is {quote(pair)}; a mesh dimension is a pair (name, size)")
    name = _checked_name(f"name of mesh dimension {i}", pair[0], "+,=|")
    if name in RESERVED_NAMES:
        raise MeshError(f"mesh dimension name {name} is reserved; reserved are {', '.join(sorted(RESERVED_NAMES))}")
    size = integer(pair[1], f"size of mesh dimension {quote(name)}")
    if not 1 <= size <= _MAX_INT64:
        raise MeshError(f"mesh dimension {quote(name)} has size {quote(size)}; sizes are 1 .. 2**63 - 1")
    return MeshDimension(name, size)


def _row_major_strides(dims: tuple[MeshDimension, ...]) -> tuple[int, ...]:
    strides = [1]
    for dim in dims[:0:-1]:
        strides.append(strides[-1] * dim.size)
    return tuple(reversed(strides)) if dims else ()


def _as_tuple(what: str, values: Iterable[T]) -> tuple[T, ...]:
    if isinstance(values, str | bytes):
        raise MeshError(f"{what} are {quote(values)}, one {type(values).__name__}; they must be a sequence")
    try:
        return tuple(values)
    except TypeError:
        raise MeshError(f"{what} are {quote(values)}, a {type(values).__name__}; they must be a sequence") from None


def _canonical_devices(devices: Sequence[str] | Sequence[int]) -> tuple[Ranks, tuple[str, ...] | None]:
    """Return the rank of each device, and the device strings unless they can be made from the ranks."""
    listed: Sequence[object] = devices if isinstance(devices, range) else _as_tuple("devices", devices)
    if not listed:
        raise MeshError("a mesh of no devices; it needs at least one")
    if not isinstance(listed[0], str):
        return _canonical_ranks(listed), None
    names = tuple(_checked_name(f"device {i}", device, ",|") for i, device in enumerate(listed))
    _check_device_types(names)
    _refuse_duplicates(names)
    ranks = _encoded_ranks(names)
    return (range(len(names)), names) if ranks is None else (_canonical_ranks(ranks), None)


def _canonical_ranks(devices: Sequence[object]) -> Ranks:
    """Return *devices* as ranks: as a range where they are consecutive, else as a tuple."""
    if isinstance(devices, range):  # a range may be long: it is listed only where it must be, and checked at its ends
        _check_ranks({devices[0], devices[-1]})
        ranks: Ranks = devices
    else:
        ranks = tuple(integer(rank, f"rank of device {i}") for i, rank in enumerate(devices))
        _check_ranks(ranks)
        _refuse_duplicates(ranks)
    consecutive = range(ranks[0], ranks[0] + len(ranks))
    if isinstance(ranks, range):
        return consecutive if ranks == consecutive else tuple(ranks)
    return consecutive if ranks == tuple(consecutive) else ranks


def _check_ranks(ranks: Iterable[int]) -> None:
    for rank in ranks:
        if not 0 <= rank <= _MAX_RANK:
            raise MeshError(f"rank {quote(rank)} among the devices of a mesh; ranks are 0 .. {_MAX_RANK}")


def _refuse_duplicates(devices: Sequence[object]) -> None:
    if len(set(devices)) == len(devices):
        return
    first: dict[object, int] = {}
    for i, device in enumerate(devices):
        if first.setdefault(device, i) != i:
            raise MeshError(
                f"duplicate devices found in mesh specification: {quote(device)} is device {first[device]} and "
                f"device {i}; a device has one place in a mesh"
            )


def _encoded_ranks(names: tuple[str, ...]) -> tuple[int, ...] | None:
    """Return the ranks in *names* if all of them are of meshcomm's own form, else None."""
    matches = [_RANK_DEVICE.fullmatch(name) for name in names]
    ranks = tuple(int(match[1]) for match in matches if match)
    return ranks if len(ranks) == len(names) and max(ranks) <= _MAX_RANK else None


def _rank_device(rank: int) -> str:
    return f"/job:mpi/replica:0/task:{rank}/device:CPU:0"


def _device_type(device: str) -> str:
    match = _DEVICE_TYPE.fullmatch(device)
    if not match:
        raise MeshError(f"device {quote(device)} has no device type; a device string ends in TYPE:number, as in CPU:0")
    return match[1].upper()


def _on_host(device: str) -> str:
    match = _DEVICE_TYPE.fullmatch(device)
    assert match, device
    return f"{device[: match.start(1)]}CPU{device[match.end(1) :]}"


def _check_device_types(devices: Sequence[str]) -> None:
    types = {_device_type(device) for device in devices}
    if len(types) > 1:
        raise MeshError(f"devices containing multiple device types: {quote(sorted(types))}; a mesh has one")


def _parse_dim(text: str) -> tuple[str, int]:
    name, equals, size = text.partition("=")
    if not equals:
        raise MeshError(f"mesh dimension {quote(text)} has no size; it is written name=size")
    return name, _parse_int(size, f"size of mesh dimension {quote(name)}")


def _parse_ids(text: str, which: str) -> tuple[int, ...]:
    return tuple(_parse_int(number, f"{which} device id") for number in _split(text))


def _parse_int(text: str, what: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 19 and int(text) <= _MAX_INT64):
        raise MeshError(f"{what} {quote(text)} is not a number; it is written in decimal digits, at most 2**63 - 1")
    return int(text)


def _split(text: str) -> tuple[str, ...]:
    return tuple(text.split(",")) if text else ()


def _generated_devices(text: str, dims: tuple[MeshDimension, ...]) -> list[str]:
    """Return device strings for the short form of a mesh's text, ``*TYPE``."""
    size = math.prod(dim.size for dim in dims)
    if not text.startswith("*"):
        raise MeshError(f"part 3 of the mesh is {quote(text)}; of three parts, the last one is * and a device type")
    if size > _MAX_GENERATED:
        raise MeshError(f"the text asks for {size} devices; it may ask for at most {_MAX_GENERATED}")
    return [f"/job:localhost/task:0/device:{text[1:]}:{i}" for i in range(size)]


def _check_ids(ids: tuple[int, ...], local_ids: tuple[int, ...], size: int) -> None:
    if len(ids) != size:
        raise MeshError(f"mesh size {size} doesn't match number of devices: {len(ids)} global device ids are listed")
    if not 0 <= ids[0] <= _MAX_INT64 - size or ids != tuple(range(ids[0], ids[0] + size)):
        raise MeshError(f"global device ids {quote(ids)}; they must increase by one, from zero or more")
    if len(set(local_ids)) < len(local_ids) or not all(ids[0] <= i <= ids[-1] for i in local_ids):
        raise MeshError(f"local device ids {quote(local_ids)}; they are different ones of {ids[0]} .. {ids[-1]}")
    if local_ids and size % len(local_ids):
        raise MeshError(f"uneven local clusters with {size} global ids and {len(local_ids)} local device ids")


def _check_listed_devices(
    size: int, n_local: int, local_devices: tuple[str, ...], global_devices: tuple[str, ...]
) -> None:
    if n_local != len(local_devices):
        raise MeshError(
            f"number of global_device_ids {size} local_devices ids {n_local} and local devices {len(local_devices)} "
            "not meeting requirements: each local device id has one local device"
        )
    if len(global_devices) not in (0, size):
        raise MeshError(f"{len(global_devices)} global devices are listed for {size} global device ids")
    if not (local_devices or global_devices):
        raise MeshError("empty list of devices; a mesh lists local or global devices")
    for devices in filter(None, (local_devices, global_devices)):
        _canonical_devices(devices)
    _check_device_types(local_devices + global_devices)


def _in_order(local_ids: tuple[int, ...], devices: tuple[str, ...], ids: tuple[int, ...]) -> tuple[str, ...]:
    """Return the devices in the order of the mesh where all of them are local, else nothing."""
    by_id = dict(zip(local_ids, devices, strict=True))
    return tuple(by_id[i] for i in ids) if len(by_id) == len(ids) else ()
