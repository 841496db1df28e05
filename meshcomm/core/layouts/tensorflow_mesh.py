"""TensorFlow's methods of meshes: lists of devices, text and wire form; `Mesh` derives from it."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from meshcomm.core._arguments import as_integer, counted, quote
from meshcomm.core._json import read
from meshcomm.core._types import Ranks
from meshcomm.core.layouts import mesh_text, wire
from meshcomm.core.layouts.devices import GeneratedDevices, canonical_devices, device_type_of, on_host, rank_device
from meshcomm.core.layouts.dimensions import Dims, MeshDimension
from meshcomm.errors import MeshError


class DeviceListing(NamedTuple):
    """The device lists that a text or proto gave a mesh: of this process and of all processes, and the first id."""

    first_id: int
    local_ids: tuple[int, ...]
    local_devices: tuple[str, ...]
    global_devices: tuple[str, ...]


class TensorFlowMesh:
    """The methods of TensorFlow's meshes that no layout needs."""

    __slots__ = ()

    if TYPE_CHECKING:
        _name: str
        _dims: tuple[MeshDimension, ...]
        _ranks: Ranks
        _device_names: Sequence[str] | None
        _listing: DeviceListing | None
        _use_xla_spmd: bool

        def __new__(cls, devices: Sequence[str] | Sequence[int], dims: Dims) -> Self: ...
        @property
        def size(self) -> int: ...
        @property
        def dim_names(self) -> list[str]: ...
        @property
        def single_device(self) -> str: ...
        def shape(self) -> list[int]: ...
        def is_single_device(self) -> bool: ...
        def coords(self, device: int) -> list[int]: ...
        def _bound_to_same_world(self, mesh: Self) -> Self: ...
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
        ) -> Self: ...

    def global_device_ids(self) -> NDArray[np.int64]:
        """Return the numbers of all devices as an int64 array in the shape of the mesh.

        >>> from meshcomm import Mesh
        >>> Mesh(range(6), [("x", 3), ("y", 2)]).global_device_ids().tolist()
        [[0, 1], [2, 3], [4, 5]]
        """
        first = self.min_global_device_id()
        return np.arange(first, first + self.size, dtype=np.int64).reshape(self.shape())

    def global_devices(self) -> list[str]:
        """Return the device strings of all processes if a text or proto listed them separately; else ``[]``.

        >>> from meshcomm import Mesh
        >>> Mesh.from_string("|x=2|0,1|1|CPU:1|CPU:0,CPU:1").global_devices()
        ['CPU:0', 'CPU:1']
        """
        return list(self._listing.global_devices) if self._listing else []

    def local_device_ids(self) -> list[int]:
        """Return the numbers of the local devices; a mesh made here lists all of its devices as local.

        >>> from meshcomm import Mesh
        >>> Mesh(range(2), {"x": 2}).local_device_ids()
        [0, 1]
        >>> Mesh.from_string("|x=2|0,1|1|CPU:1|CPU:0,CPU:1").local_device_ids()
        [1]
        """
        return list(self._listing.local_ids if self._listing else range(self.size))

    def local_devices(self) -> list[str]:
        """Return the device strings of the local devices; a mesh made here lists all of its devices as local.

        >>> from meshcomm import Mesh
        >>> Mesh([4, 7], {"x": 2}).local_devices()
        ['/job:mpi/replica:0/task:4/device:CPU:0', '/job:mpi/replica:0/task:7/device:CPU:0']
        """
        if self._listing:
            return list(self._listing.local_devices)
        return [rank_device(rank) for rank in self._ranks] if self._device_names is None else list(self._device_names)

    def num_local_devices(self) -> int:
        """Return the number of local devices.

        >>> from meshcomm import Mesh
        >>> Mesh.from_string("|x=2|0,1|1|CPU:1|CPU:0,CPU:1").num_local_devices()
        1
        """
        return len(self._listing.local_ids) if self._listing else self.size

    def min_global_device_id(self) -> int:
        """Return the number of the first device.

        >>> from meshcomm import Mesh
        >>> Mesh(range(2), {"x": 2}).min_global_device_id()
        0
        """
        return self._listing.first_id if self._listing else 0

    def device_type(self) -> str:
        """Return the type of the devices, in capitals: ``CPU``, ``GPU``, ``TPU``.

        >>> from meshcomm import Mesh
        >>> Mesh(range(2), {"x": 2}).device_type(), Mesh(["TPU:0"], {"x": 1}).device_type()
        ('CPU', 'TPU')
        """
        if self._listing:
            return device_type_of((self._listing.local_devices or self._listing.global_devices)[0])
        return "CPU" if self._device_names is None else device_type_of(self._device_names[0])

    def is_remote(self) -> bool:
        """Return whether no device is local.

        >>> from meshcomm import Mesh
        >>> Mesh(range(2), {"x": 2}).is_remote(), Mesh.from_string("|x=2|0,1|||CPU:0,CPU:1").is_remote()
        (False, True)
        """
        return self.num_local_devices() == 0

    def use_xla_spmd(self) -> bool:
        """Return whether the mesh was marked for XLA SPMD; meshcomm itself makes no use of it.

        >>> from meshcomm import Mesh
        >>> Mesh(["TPU:0"], {"x": 1}, use_xla_spmd=True).use_xla_spmd()
        True
        """
        return self._use_xla_spmd

    def host_mesh(self) -> Self:
        """Return the mesh of the CPUs beside these devices, in the same world, without the mesh's name.

        >>> from meshcomm import Mesh
        >>> Mesh(["TPU:0", "TPU:1"], {"x": 2}, "pod").host_mesh()
        Mesh(x=2, devices=['CPU:0', 'CPU:1'])
        """
        return self._bound_to_same_world(self._unbound_host_mesh())

    def _unbound_host_mesh(self) -> Self:
        if self.is_single_device():
            return self.from_device(on_host(self.single_device))
        if self._listing is None:
            if isinstance(self._device_names, GeneratedDevices):
                return type(self)(GeneratedDevices("CPU", self.size), self._dims)
            return type(self)(
                self._ranks if self._device_names is None else tuple(map(on_host, self._device_names)), self._dims
            )
        local_devices, global_devices = (
            tuple(map(on_host, devices)) for devices in (self.local_devices(), self.global_devices())
        )
        fields = self._text_fields()._replace(
            name="", local_devices=local_devices, global_devices=global_devices, use_xla_spmd=False
        )
        return self._from_fields(fields)

    def device_location(self, offset: int) -> list[int]:
        """Return the coordinates of device *offset*; MeshError unless ``0 <= offset < size``.

        >>> from meshcomm import Mesh
        >>> Mesh(range(6), [("x", 3), ("y", 2)]).device_location(5)
        [2, 1]
        """
        if not 0 <= as_integer(offset, "mesh offset") < self.size:
            raise MeshError(
                f"mesh offset {quote(offset)} of a mesh of {counted(self.size, 'device')}; it is 0 <= offset < size"
            )
        return self.coords(offset)

    def unravel_index(self) -> dict[int, dict[str, int]]:
        """Return the coordinates of every device by the names of the dimensions.

        >>> from meshcomm import Mesh
        >>> Mesh(range(2), {"x": 2}).unravel_index()
        {0: {'x': 0}, 1: {'x': 1}}
        """
        return {device: self._named_coords(device) for device in range(self.size)}

    def local_device_locations(self) -> list[dict[str, int]]:
        """Return the coordinates of every local device by the names of the dimensions.

        >>> from meshcomm import Mesh
        >>> Mesh.from_string("|x=2|0,1|1|CPU:1|CPU:0,CPU:1").local_device_locations()
        [{'x': 1}]
        """
        first = self.min_global_device_id()
        return [self._named_coords(number - first) for number in self.local_device_ids()]

    def _named_coords(self, device: int) -> dict[str, int]:
        return dict(zip(self.dim_names, self.coords(device), strict=True))

    def to_string(self) -> str:
        """Return the mesh as one line of text.

        Source: Mesh::ToString of TensorFlow: name, dimensions, global ids, local ids, local devices and, if the mesh
        has them, global devices and a mark for XLA SPMD. The text of a single-device mesh is its device string.

        >>> from meshcomm import Mesh
        >>> Mesh(["TPU:0", "TPU:1"], [("x", 2)], "pod").to_string()
        'pod|x=2|0,1|0,1|TPU:0,TPU:1'
        """
        return self.single_device if self.is_single_device() else mesh_text.to_text(self._text_fields())

    @classmethod
    def from_string(cls, text: str) -> Self:
        """Return the mesh that *text* describes; MeshError for any other text.

        It takes texts of ``to_string``, and the short form ``name|dimensions|*TYPE``, which makes up device strings.

        >>> from meshcomm import Mesh
        >>> Mesh.from_string("|x=2|*TPU").local_devices()
        ['/job:localhost/task:0/device:TPU:0', '/job:localhost/task:0/device:TPU:1']
        """
        if not isinstance(text, str):
            raise MeshError(f"{type(text).__name__} is no text of a mesh; from_string takes a str")
        if text == "empty_mesh":
            raise MeshError("the text 'empty_mesh' describes no mesh; a mesh has at least one device")
        return cls._from_fields(mesh_text.from_text(text)) if "|" in text else cls.from_device(text)

    def _text_fields(self) -> mesh_text.MeshFields:
        first = self.min_global_device_id()
        return mesh_text.MeshFields(
            self._name,
            self._dims,
            range(first, first + self.size),
            self.local_device_ids(),
            self.local_devices(),
            self.global_devices(),
            self._use_xla_spmd,
        )

    @classmethod
    def _from_fields(cls, fields: mesh_text.MeshFields) -> Self:
        """Return the mesh of the content of a text or proto, after checking its lists of devices."""
        mesh_text.check(fields)
        name, dims, ids, local_ids, local_devices, global_devices, use_xla_spmd = fields
        if not global_devices and (local_ids == range(len(ids)) or tuple(local_ids) == tuple(range(len(ids)))):
            ranks, device_names = canonical_devices(local_devices)
            return cls._make(name, dims, ranks, device_names=device_names, use_xla_spmd=use_xla_spmd)
        listing = DeviceListing(ids[0], tuple(local_ids), tuple(local_devices), tuple(global_devices))
        ordered_devices = mesh_text.devices_in_order(fields)
        ranks = canonical_devices(ordered_devices)[0] if ordered_devices else range(len(ids))
        return cls._make(name, dims, ranks, listing=listing, use_xla_spmd=use_xla_spmd)

    @classmethod
    def from_device(cls, device: str) -> Self:
        """Return the mesh of a single device, without dimensions; its text is the device string.

        >>> from meshcomm import Mesh
        >>> mesh = Mesh.from_device("CPU:0")
        >>> mesh.size, mesh.shape(), mesh.single_device
        (1, [], 'CPU:0')
        """
        if not isinstance(device, str):
            raise MeshError(f"device {quote(device)} is a {type(device).__name__}; a single device is a string")
        ranks, device_names = canonical_devices((device,))
        return cls._make("", (), ranks, device_names=device_names)

    def as_proto(self) -> wire.AnyMessage:
        """Return the mesh as a MeshProto: a protobuf message, or a stand-in where protobuf is not installed.

        >>> from meshcomm import Mesh
        >>> mesh = Mesh(["CPU:0"], [("x", 1)])
        >>> Mesh.from_proto(mesh.as_proto()) == mesh
        True
        """
        return wire.as_message(mesh_text.MESH_MESSAGE, self._wire_values())

    def serialized_string(self) -> bytes:
        """Return the bytes of the mesh's MeshProto.

        >>> from meshcomm import Mesh
        >>> Mesh.from_proto(Mesh(["CPU:0"], [("x", 1)]).serialized_string())
        Mesh(x=1, devices=['CPU:0'])
        """
        return wire.encode(mesh_text.MESH_MESSAGE, self._wire_values())

    def _wire_values(self) -> wire.Values:
        """Return the plain values of the mesh's MeshProto.

        >>> from meshcomm import Mesh
        >>> Mesh.from_device("CPU:0")._wire_values()
        {'single_device': 'CPU:0'}
        """
        if self.is_single_device():
            return {"single_device": self.single_device}
        return mesh_text.to_wire(self._text_fields())

    @classmethod
    def from_proto(cls, proto: object) -> Self:
        """Return the mesh of a MeshProto, given as any message with ``SerializeToString()`` or as bytes.

        >>> from meshcomm import Mesh
        >>> Mesh.from_proto(Mesh.from_device("CPU:0").serialized_string()).single_device
        'CPU:0'
        """
        try:
            values = wire.decode(mesh_text.MESH_MESSAGE, wire.as_bytes(proto))
        except wire.WireError as error:
            raise MeshError(f"not a MeshProto: {error}") from error
        return cls._from_wire_values(values)

    @classmethod
    def _from_wire_values(cls, values: wire.Values) -> Self:
        """Return the mesh of the plain values of a MeshProto; MeshError if they make none.

        >>> from meshcomm import Mesh
        >>> Mesh._from_wire_values(Mesh.from_device("CPU:0")._wire_values()).single_device
        'CPU:0'
        """
        device = read(str, values, "single_device")
        if device:
            return cls.from_device(device)
        return cls._from_fields(mesh_text.from_wire(values))
