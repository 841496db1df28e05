"""The protobuf wire format (proto3): plain values in, bytes out, and back.

A :class:`MessageType` declares its fields; :func:`encode` and :func:`decode` move between a dict of plain values and
bytes, without the ``protobuf`` package. Decoding takes linear time and raises :class:`WireError` for anything
malformed. :func:`as_message` returns a real protobuf message where the package is installed, else a
:class:`PlainMessage`.
Source of the format: https://protobuf.dev/programming-guides/encoding/.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, TypeAlias

from meshcomm.core._json import read

if TYPE_CHECKING:
    from google.protobuf.descriptor_pb2 import FileDescriptorProto
    from google.protobuf.descriptor_pool import DescriptorPool
    from google.protobuf.message import Message

Values: TypeAlias = Mapping[str, object]  # field name -> plain value; a list where repeated, Values where embedded
AnyMessage: TypeAlias = Any  # a real protobuf message, or a PlainMessage
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_WIDTHS = {_FIXED64: 8, _FIXED32: 4}
_MAX_FIELD_NUMBER = 2**29 - 1


class WireError(ValueError):
    """Bytes that are no well-formed message; callers of public functions see a MeshError or a LayoutError instead."""


@dataclass(frozen=True)
class EnumType:
    """An enumeration inside a message: its values, numbered from zero."""

    name: str
    values: tuple[str, ...]


@dataclass(frozen=True)
class MessageType:
    """A message type: its full name, and its fields in ascending order of their numbers."""

    name: str
    fields: "tuple[Field, ...]"


@dataclass(frozen=True)
class Field:
    """A field of a message; its kind is ``"int64"``, ``"bool"``, ``"string"``, an `EnumType` or a `MessageType`."""

    number: int
    name: str
    kind: str | EnumType | MessageType
    repeated: bool = False

    @property
    def is_varint(self) -> bool:
        """Whether a value is one number on the wire."""
        return isinstance(self.kind, EnumType) or self.kind in ("int64", "bool")


def encode(message: MessageType, values: Values) -> bytes:
    """Return *values* as the bytes of a *message*; absent fields and default values are left out.

    >>> point = MessageType("Point", (Field(1, "name", "string"), Field(2, "at", "int64", repeated=True)))
    >>> encode(point, {"name": "a", "at": [1, 300]})
    b'\\n\\x01a\\x12\\x03\\x01\\xac\\x02'
    """
    return b"".join(_encode_field(field, values[field.name]) for field in message.fields if field.name in values)


def decode(message: MessageType, data: bytes) -> dict[str, object]:
    """Return the value of every field of *message* in *data*, or raise WireError.

    As in protobuf, the last value counts if a scalar is given twice, an embedded message given twice is merged,
    repeated numbers may be packed or not, and unknown fields are skipped. Groups, long deprecated, are refused.

    >>> point = MessageType("Point", (Field(1, "name", "string"), Field(2, "at", "int64", repeated=True)))
    >>> decode(point, b"\\x12\\x03\\x01\\xac\\x02")
    {'name': '', 'at': [1, 300]}
    """
    fields = {field.number: field for field in message.fields}
    values_by_number: dict[int, list[int | str | bytes]] = {number: [] for number in fields}
    for number, wire_type, payload in _payloads(data):
        if number in fields:
            values_by_number[number].extend(_decode_payload(fields[number], wire_type, payload))
    return {field.name: _field_value(field, values_by_number[field.number]) for field in message.fields}


def as_bytes(proto: object) -> bytes:
    """Return *proto*, which is bytes or an object with ``SerializeToString()``, as bytes.

    >>> as_bytes(bytearray(b"ab"))
    b'ab'
    """
    if hasattr(proto, "SerializeToString"):
        proto = proto.SerializeToString()
    if isinstance(proto, bytes | bytearray | memoryview):
        return bytes(proto)
    raise WireError(f"{type(proto).__name__} is neither bytes nor a message with SerializeToString()")


def as_message(message: MessageType, values: Values) -> AnyMessage:
    """Return *values* as a real protobuf message if the protobuf package is installed, else a PlainMessage."""
    data = encode(message, values)
    message_class = _protobuf_class(message)
    return PlainMessage(message, data) if message_class is None else message_class.FromString(data)


class PlainMessage:
    """A message where the protobuf package is not installed: with read-only fields, bytes and equality.

    Fields have the same names and values as in a real message; a repeated field is a tuple.

    >>> PlainMessage(MessageType("Point", (Field(2, "x", "int64"),)), b"\\x10\\x05")
    Point(x=5)
    >>> _.x
    5
    """

    __slots__ = ("_data", "_message_type")

    def __init__(self, message: MessageType, data: bytes) -> None:
        self._message_type = message
        self._data = data

    def __getattr__(self, name: str) -> object:
        field = next((field for field in self._message_type.fields if field.name == name), None)
        if field is None:
            raise AttributeError(f"{self._message_type.name} has no field {name!r}")
        value = decode(self._message_type, self._data)[name]
        return (
            tuple(_wrapped_if_embedded(field, item) for item in read(list, value))
            if field.repeated
            else _wrapped_if_embedded(field, value)
        )

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *(field.name for field in self._message_type.fields)]

    def __reduce__(self) -> tuple[object, ...]:
        return PlainMessage, (self._message_type, self._data)

    def SerializeToString(self) -> bytes:  # noqa: N802 - protobuf's own name
        """Return the message's bytes."""
        return self._data

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, PlainMessage):
            return NotImplemented
        return self._message_type == other._message_type and self._data == other._data

    def __hash__(self) -> int:
        return hash((self._message_type, self._data))

    def __repr__(self) -> str:
        values = decode(self._message_type, self._data)
        return f"{self._message_type.name}({', '.join(f'{name}={value!r}' for name, value in values.items())})"


def _wrapped_if_embedded(field: Field, value: object) -> object:
    return PlainMessage(field.kind, _payload_bytes(field, value)) if isinstance(field.kind, MessageType) else value


def _encode_field(field: Field, value: object) -> bytes:
    if field.repeated:
        assert isinstance(value, Iterable)
        if field.is_varint:  # proto3 packs repeated numbers
            payload = b"".join(map(_varint, value))
            return _delimited(field, payload) if payload else b""
        return b"".join(_delimited(field, _payload_bytes(field, item)) for item in value)
    if not value and not isinstance(field.kind, MessageType):  # an empty embedded message is written
        return b""
    if field.is_varint:
        return _varint(field.number << 3 | _VARINT) + _varint(read(int, value))
    return _delimited(field, _payload_bytes(field, value))


def _payload_bytes(field: Field, value: object) -> bytes:
    return encode(field.kind, read(dict, value)) if isinstance(field.kind, MessageType) else read(str, value).encode()


def _delimited(field: Field, payload: bytes) -> bytes:
    return _varint(field.number << 3 | _BYTES) + _varint(len(payload)) + payload


def _varint(value: int) -> bytes:
    """Return *value* as a varint: seven bits a byte, lowest first; negative numbers as 64 bits in two's complement."""
    if not -(2**63) <= value < 2**63:
        raise WireError(f"{value:#x} does not fit into 64 bits; an int64 field holds -2**63 .. 2**63 - 1")
    value &= 2**64 - 1
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def _read_varint(data: bytes, index: int) -> tuple[int, int]:
    """Return the unsigned 64-bit number at *index*, and the index after it."""
    value = 0
    for shift in range(0, 70, 7):
        if index >= len(data):
            raise WireError(f"the message ends at byte {index}, inside a varint")
        byte = data[index]
        index += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value & (2**64 - 1), index
    raise WireError(f"the varint that ends before byte {index} is not over after 10 bytes; 10 bytes hold any int64")


def _payloads(data: bytes) -> Iterator[tuple[int, int, int | bytes]]:
    """Yield ``(field number, wire type, int or bytes)`` for each field of *data*, in order."""
    index = 0
    while index < len(data):
        start = index
        tag, index = _read_varint(data, index)
        number, wire_type = tag >> 3, tag & 7
        if not 1 <= number <= _MAX_FIELD_NUMBER:
            raise WireError(f"field number {number} at byte {start}; field numbers are 1 .. 2**29 - 1")
        if wire_type == _VARINT:
            value, index = _read_varint(data, index)
            yield number, wire_type, value
            continue
        if wire_type == _BYTES:
            length, index = _read_varint(data, index)
        elif wire_type in _WIDTHS:
            length = _WIDTHS[wire_type]
        else:
            raise WireError(f"wire type {wire_type} of field {number} at byte {start}; known are 0, 1, 2 and 5")
        if length > len(data) - index:
            raise WireError(f"field {number} at byte {start} is {length} bytes long, but {len(data) - index} are left")
        yield number, wire_type, data[index : index + length]
        index += length


def _decode_payload(field: Field, wire_type: int, payload: int | bytes) -> Iterable[int | str | bytes]:
    """Return the values in one occurrence of *field*; embedded messages stay bytes, which are merged later."""
    if isinstance(payload, int):
        if field.is_varint:
            return (_decoded_number(field, payload),)
    elif wire_type == _BYTES and field.is_varint and field.repeated:
        return _unpacked_numbers(field, payload)
    elif wire_type == _BYTES and not field.is_varint:
        return (_decoded_text(field, payload) if field.kind == "string" else payload,)
    raise WireError(f"field {field.number} ({field.name}) has wire type {wire_type}, which does not fit its type")


def _unpacked_numbers(field: Field, payload: bytes) -> Iterator[int]:
    index = 0
    while index < len(payload):
        value, index = _read_varint(payload, index)
        yield _decoded_number(field, value)


def _decoded_number(field: Field, value: int) -> int:
    if field.kind == "bool":
        return value != 0
    return value - 2**64 if value >= 2**63 else value


def _decoded_text(field: Field, payload: bytes) -> str:
    try:
        return payload.decode()
    except UnicodeDecodeError as error:
        raise WireError(f"field {field.number} ({field.name}) is not UTF-8: {error}") from None


def _field_value(field: Field, values: list[int | str | bytes]) -> object:
    """Return the value of a field from the *values* of all its occurrences."""
    if isinstance(field.kind, MessageType):
        payloads = [payload for payload in values if isinstance(payload, bytes)]
        if field.repeated:
            return [decode(field.kind, payload) for payload in payloads]
        return decode(field.kind, b"".join(payloads))  # joining the bytes of messages is how protobuf merges them
    if field.repeated:
        return values
    return values[-1] if values else {"string": "", "bool": False}.get(str(field.kind), 0)


@cache
def _descriptor_pool() -> "DescriptorPool | None":
    # Use a separate pool: TensorFlow registers the same message names in the default one, where they would clash.
    try:
        from google.protobuf.descriptor_pool import DescriptorPool
        from google.protobuf.message_factory import GetMessageClass  # noqa: F401 - older packages lack it
    except ImportError:
        return None
    return DescriptorPool()


@cache
def _protobuf_class(message: MessageType) -> "type[Message] | None":
    """Return the real protobuf class of *message*, or None without the protobuf package."""
    pool = _descriptor_pool()
    if pool is None:
        return None
    from google.protobuf.message_factory import GetMessageClass

    embedded_types = [field.kind for field in message.fields if isinstance(field.kind, MessageType)]
    for kind in embedded_types:
        _protobuf_class(kind)  # registers it
    pool.Add(_file_descriptor(message, embedded_types))
    return GetMessageClass(pool.FindMessageTypeByName(message.name))


def _file_descriptor(message: MessageType, embedded_types: list[MessageType]) -> "FileDescriptorProto":
    from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto

    package, _, name = message.name.rpartition(".")
    file = FileDescriptorProto(name=_file_name(message), package=package, syntax="proto3")
    file.dependency.extend(map(_file_name, embedded_types))
    message_proto = file.message_type.add(name=name)
    for field in message.fields:
        label = FieldDescriptorProto.LABEL_REPEATED if field.repeated else FieldDescriptorProto.LABEL_OPTIONAL
        proto = message_proto.field.add(name=field.name, number=field.number, label=label)
        if isinstance(field.kind, MessageType):
            proto.type, proto.type_name = FieldDescriptorProto.TYPE_MESSAGE, f".{field.kind.name}"
        elif isinstance(field.kind, EnumType):
            proto.type, proto.type_name = FieldDescriptorProto.TYPE_ENUM, f".{message.name}.{field.kind.name}"
            enum_proto = message_proto.enum_type.add(name=field.kind.name)
            for number, value in enumerate(field.kind.values):
                enum_proto.value.add(name=value, number=number)
        else:
            proto.type = FieldDescriptorProto.Type.Value(f"TYPE_{field.kind.upper()}")
    return file


def _file_name(message: MessageType) -> str:
    return f"meshcomm/{message.name}.proto"
