"""The text and the wire form of meshes.

Source: Mesh::ToString and MeshProto of TensorFlow's DTensor.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

from meshcomm.core._arguments import counted, quote
from meshcomm.core._json import read
from meshcomm.core.layouts import wire
from meshcomm.core.layouts.devices import GeneratedDevices, canonical_devices, check_device_types
from meshcomm.core.layouts.dimensions import MAX_INT64, MeshDimension, canonical_dims
from meshcomm.errors import MeshError

_MAX_GENERATED = 2**20  # devices that a text like "|x=4|*CPU" may ask for
_XLA_SPMD = "use_xla_spmd"

DIMENSION_MESSAGE = wire.MessageType(
    "tensorflow.dtensor.MeshDimensionProto", (wire.Field(1, "name", "string"), wire.Field(2, "size", "int64"))
)
MESH_MESSAGE = wire.MessageType(
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


class MeshFields(NamedTuple):
    """The content of a text or a MeshProto of a mesh with dimensions."""

    name: str
    dims: tuple[MeshDimension, ...]
    ids: Sequence[int]
    local_ids: Sequence[int]
    local_devices: Sequence[str]
    global_devices: Sequence[str]
    use_xla_spmd: bool = False


def to_text(mesh: MeshFields) -> str:
    """Return a mesh as one line of text."""
    fields = [
        mesh.name,
        ",".join(f"{dim.name}={dim.size}" for dim in mesh.dims),
        ",".join(map(str, mesh.ids)),
        ",".join(map(str, mesh.local_ids)),
        ",".join(mesh.local_devices),
    ]
    if mesh.global_devices:
        fields.append(",".join(mesh.global_devices))
    if mesh.use_xla_spmd:
        fields.append(_XLA_SPMD)
    return "|".join(fields)


def from_text(text: str) -> MeshFields:
    """Return the content of a mesh's *text*, which has several fields; ``MeshError`` if it is malformed."""
    fields = text.split("|")
    if len(fields) not in (3, 5, 6, 7):
        raise MeshError(f"expected either 5, 6, 7 or 3 mesh parts but found {len(fields)} in {quote(text)}")
    name, dims = fields[0], canonical_dims(map(_parse_dim, fields[1].split(",")))
    if len(fields) == 3:
        devices = _generated_devices(fields[2], dims)
        return MeshFields(name, dims, range(len(devices)), range(len(devices)), devices, ())
    use_xla_spmd = fields[-1] == _XLA_SPMD and len(fields) > 5
    if len(fields) == 7 and not use_xla_spmd:
        raise MeshError(f"part 7 of the mesh is {quote(fields[6])}; the only text it may be is {_XLA_SPMD!r}")
    global_devices = fields[5] if len(fields) - use_xla_spmd == 6 else ""
    ids, local_ids = _parse_ids(fields[2], "global"), _parse_ids(fields[3], "local")
    return MeshFields(name, dims, ids, local_ids, _split(fields[4]), _split(global_devices), use_xla_spmd)


def to_wire(mesh: MeshFields) -> wire.Values:
    """Return the plain values of the MeshProto of a mesh."""
    return {
        "mesh_dimensions": [dim._asdict() for dim in mesh.dims],
        "global_device_ids": mesh.ids,
        "name": mesh.name,
        "local_device_ids": mesh.local_ids,
        "local_devices": mesh.local_devices,
        "global_devices": mesh.global_devices,
        "use_xla_spmd": mesh.use_xla_spmd,
    }


def from_wire(values: wire.Values) -> MeshFields:
    """Return the content of the plain values of a MeshProto; ``MeshError`` if the dimensions are wrong."""
    dims = canonical_dims((dim["name"], dim["size"]) for dim in read(list, values, "mesh_dimensions"))
    list_names = ("global_device_ids", "local_device_ids", "local_devices", "global_devices")
    ids, local_ids, local_devices, global_devices = (tuple(read(list, values, name)) for name in list_names)
    name, use_xla_spmd = read(str, values, "name"), read(bool, values, "use_xla_spmd")
    return MeshFields(name, dims, ids, local_ids, local_devices, global_devices, use_xla_spmd)


def check(mesh: MeshFields) -> None:
    """Raise ``MeshError`` unless the lists of a written mesh fit each other."""
    if isinstance(mesh.local_devices, GeneratedDevices):  # with the ids that fit them
        return
    _check_ids(tuple(mesh.ids), tuple(mesh.local_ids), math.prod(dim.size for dim in mesh.dims))
    _check_listed_devices(len(mesh.ids), len(mesh.local_ids), tuple(mesh.local_devices), tuple(mesh.global_devices))


def devices_in_order(mesh: MeshFields) -> Sequence[str]:
    """Return the devices in the order of the mesh if the text lists all of them, else nothing."""
    if mesh.global_devices:
        return mesh.global_devices
    by_id = dict(zip(mesh.local_ids, mesh.local_devices, strict=True))
    return tuple(by_id[i] for i in mesh.ids) if len(by_id) == len(mesh.ids) else ()


def _parse_dim(text: str) -> tuple[str, int]:
    name, equals, size = text.partition("=")
    if not equals:
        raise MeshError(f"mesh dimension {quote(text)} has no size; it is written name=size")
    return name, _parse_int(size, f"size of mesh dimension {quote(name)}")


def _parse_ids(text: str, kind: str) -> tuple[int, ...]:
    return tuple(_parse_int(number, f"{kind} device id") for number in _split(text))


def _parse_int(text: str, subject: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 19 and int(text) <= MAX_INT64):
        raise MeshError(f"{subject} {quote(text)} is not a number; it is written in decimal digits, at most 2**63 - 1")
    return int(text)


def _split(text: str) -> tuple[str, ...]:
    return tuple(text.split(",")) if text else ()


def _generated_devices(text: str, dims: tuple[MeshDimension, ...]) -> GeneratedDevices:
    """Return the devices of the short form of a mesh's text, ``*TYPE``."""
    size = math.prod(dim.size for dim in dims)
    if not text.startswith("*"):
        raise MeshError(f"part 3 of the mesh is {quote(text)}; of three parts, the last one is * and a device type")
    if size > _MAX_GENERATED:
        raise MeshError(f"the text asks for {counted(size, 'device')}; it may ask for at most {_MAX_GENERATED}")
    return GeneratedDevices(text[1:], size)


def _check_ids(ids: tuple[int, ...], local_ids: tuple[int, ...], size: int) -> None:
    if len(ids) != size:
        raise MeshError(f"mesh size {size} doesn't match number of devices: {len(ids)} global device ids are listed")
    if not 0 <= ids[0] <= MAX_INT64 - size or ids != tuple(range(ids[0], ids[0] + size)):
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
        canonical_devices(devices)
    check_device_types(local_devices + global_devices)
