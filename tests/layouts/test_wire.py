"""The wire format: against the real protobuf package, and against hostile bytes."""

import copy

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshcomm import Layout, Mesh
from meshcomm.core.layouts import wire
from meshcomm.core.layouts.layout_text import LAYOUT_MESSAGE
from meshcomm.core.layouts.mesh_text import MESH_MESSAGE
from meshcomm.core.layouts.wire import EnumType, Field, MessageType, PlainMessage, WireError, decode, encode
from support.layout_cases import no_protobuf
from support.sampling import examples

INNER = MessageType("test.Inner", (Field(1, "x", "int64"), Field(2, "tags", "string", repeated=True)))
OUTER = MessageType(
    "test.Outer",
    (
        Field(1, "number", "int64"),
        Field(2, "flag", "bool"),
        Field(3, "text", "string"),
        Field(5, "numbers", "int64", repeated=True),
        Field(6, "inner", INNER),
        Field(7, "inners", INNER, repeated=True),
        Field(16, "kind", EnumType("Kind", ("A", "B", "C"))),
        Field(17, "flags", "bool", repeated=True),
    ),
)
EMPTY = {"number": 0, "flag": False, "text": "", "numbers": [], "inner": {"x": 0, "tags": []}}
EMPTY |= {"inners": [], "kind": 0, "flags": []}

REPEATABLE = settings(derandomize=True, database=None, deadline=None, max_examples=examples(200))
INT64 = st.integers(-(2**63), 2**63 - 1)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
INNERS = st.fixed_dictionaries({"x": INT64, "tags": st.lists(TEXT, max_size=3)})
OUTERS = st.fixed_dictionaries(
    {
        "number": INT64,
        "flag": st.booleans(),
        "text": TEXT,
        "numbers": st.lists(INT64, max_size=5),
        "inner": INNERS,
        "inners": st.lists(INNERS, max_size=3),
        "kind": st.integers(0, 2),
        "flags": st.lists(st.booleans(), max_size=3),
    }
)


def real_class(message):
    pytest.importorskip("google.protobuf")
    return wire._protobuf_class(message)


@pytest.mark.parametrize("value", [2**63, -(2**63) - 1, 10**30])
def test_encoding_refuses_what_does_not_fit(value):
    with pytest.raises(WireError, match="64 bits"):
        encode(OUTER, {"number": value})


def test_defaults_are_omitted_and_read_back():
    assert encode(OUTER, {name: value for name, value in EMPTY.items() if name != "inner"}) == b""
    assert decode(OUTER, b"") == EMPTY


def test_an_empty_embedded_message_is_written():
    assert encode(OUTER, {"inner": {}}) == b"\x32\x00"


def test_defaults_are_not_shared():
    decode(OUTER, b"")["numbers"].append(1)
    assert decode(OUTER, b"") == EMPTY


@REPEATABLE
@given(OUTERS)
def test_decode_inverts_encode(values):
    assert decode(OUTER, encode(OUTER, values)) == values


@REPEATABLE
@given(OUTERS)
def test_bytes_are_those_of_protobuf(values):
    data = encode(OUTER, values)
    message = real_class(OUTER).FromString(data)
    assert message.SerializeToString(deterministic=True) == data
    assert message.number == values["number"]
    assert list(message.numbers) == values["numbers"]
    assert message.text == values["text"]
    assert [list(inner.tags) for inner in message.inners] == [inner["tags"] for inner in values["inners"]]


@REPEATABLE
@given(st.lists(OUTERS.map(lambda values: encode(OUTER, values)), min_size=1, max_size=4).map(b"".join))
def test_concatenated_messages_merge_as_in_protobuf(data):
    ours = decode(OUTER, data)
    message = real_class(OUTER).FromString(data)
    assert decode(OUTER, message.SerializeToString()) == ours


@REPEATABLE
@given(st.lists(INT64, max_size=6))
def test_unpacked_numbers_are_accepted(values):
    data = b"".join(b"\x28" + wire._varint(value) for value in values)
    assert decode(OUTER, data)["numbers"] == values
    assert list(real_class(OUTER).FromString(data).numbers) == values


@pytest.mark.parametrize(
    "unknown",
    [b"\xf8\x01\x07", b"\xfa\x01\x02ab", b"\xf9\x01" + bytes(8), b"\xfd\x01" + bytes(4)],
    ids=["varint", "bytes", "fixed64", "fixed32"],
)
def test_unknown_fields_are_skipped(unknown):
    assert decode(OUTER, unknown + b"\x08\x01" + unknown)["number"] == 1


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"\x08", "inside a varint"),
        (b"\x08\x80", "inside a varint"),
        (b"\x80", "inside a varint"),
        (b"\x08" + b"\x80" * 10 + b"\x01", "10 bytes"),
        (b"\xff" * 11, "10 bytes"),
        (b"\x1a\x05ab", "5 bytes long, but 2 are left"),
        (b"\x1a" + b"\xff" * 9 + b"\x01", "are left"),
        (b"\xf9\x01\x00", "8 bytes long, but 1 are left"),
        (b"\x00\x01", "field number 0"),
        (b"\x80\x80\x80\x80\x10\x01", "field number"),
        (b"\x0b\x0c", "wire type 3"),
        (b"\x0c", "wire type 4"),
        (b"\x0e", "wire type 6"),
        (b"\x0f", "wire type 7"),
        (b"\x0a\x01\x01", "does not fit its type"),
        (b"\x09" + bytes(8), "does not fit its type"),
        (b"\x18\x01", "does not fit its type"),
        (b"\x30\x01", "does not fit its type"),
        (b"\x1a\x01\xff", "not UTF-8"),
        (b"\x1a\x03\xed\xa0\x80", "not UTF-8"),
        (b"\x2a\x01\x80", "inside a varint"),
        (b"\x32\x01\x08", "inside a varint"),
    ],
)
def test_malformed_bytes(data, says):
    with pytest.raises(WireError, match=says):
        decode(OUTER, data)


@REPEATABLE
@given(st.binary(max_size=60))
def test_any_bytes_decode_or_raise_wire_error(data):
    try:
        values = decode(OUTER, data)
    except WireError:
        return
    assert values.keys() == EMPTY.keys()
    assert decode(OUTER, encode(OUTER, values)) == values


@REPEATABLE
@given(st.binary(max_size=40))
def test_what_is_accepted_reads_as_in_protobuf(data):
    real = real_class(INNER)
    try:
        values = decode(INNER, data)
    except WireError:
        return
    message = real.FromString(data)
    assert (message.x, list(message.tags)) == (values["x"], values["tags"])


@pytest.mark.parametrize(
    "data",
    [
        b"\x28\x01" * examples(2**18),
        b"\x32\x00" * examples(2**18),
        b"\x3a\x00" * examples(2**18),
        b"\x08\x01" * 2**19,
        b"\xf8\x01\x00" * 2**18,
        b"\x2a\x80\x80\x40" + b"\x01" * 2**20,
    ],
    ids=["unpacked", "merged", "repeated", "scalar", "unknown", "packed"],
)
def test_a_mebibyte_takes_linear_time(data):
    assert decode(OUTER, data).keys() == EMPTY.keys()


def test_as_bytes():
    for value in (b"ab", bytearray(b"ab"), memoryview(b"ab"), PlainMessage(INNER, b"ab")):
        assert wire.as_bytes(value) == b"ab"
    for value in ("ab", None, 3, ["ab"]):
        with pytest.raises(WireError, match=type(value).__name__):
            wire.as_bytes(value)


def test_plain_message():
    message = PlainMessage(INNER, b"\x08\x05")
    assert message == PlainMessage(INNER, b"\x08\x05")
    assert hash(message) == hash(PlainMessage(INNER, b"\x08\x05"))
    assert message != PlainMessage(INNER, b"\x08\x06")
    assert message != PlainMessage(OUTER, b"\x08\x05")
    assert message != b"\x08\x05"
    assert repr(message) == "test.Inner(x=5, tags=[])"
    assert copy.deepcopy(message) == message


@REPEATABLE
@given(OUTERS)
def test_a_plain_message_has_the_fields_of_a_real_one(values):
    real, plain = real_class(OUTER).FromString(encode(OUTER, values)), PlainMessage(OUTER, encode(OUTER, values))
    for field in OUTER.fields:
        found, expected = getattr(plain, field.name), getattr(real, field.name)
        if field.kind is INNER:
            pairs = zip(found, expected, strict=True) if field.repeated else [(found, expected)]
            assert all((a.x, list(a.tags)) == (b.x, list(b.tags)) for a, b in pairs)
        else:
            assert found == (tuple(expected) if field.repeated else expected)
    assert {field.name for field in OUTER.fields} <= set(dir(plain))


def test_a_plain_message_has_no_other_fields():
    with pytest.raises(AttributeError, match=r"test\.Inner has no field 'y'"):
        PlainMessage(INNER, b"").y  # noqa: B018


def test_real_messages_have_the_names_and_numbers_of_tensorflow():
    layout = real_class(LAYOUT_MESSAGE).DESCRIPTOR
    mesh = real_class(MESH_MESSAGE).DESCRIPTOR
    assert (layout.full_name, mesh.full_name) == ("tensorflow.dtensor.LayoutProto", "tensorflow.dtensor.MeshProto")
    assert {field.name: field.number for field in layout.fields} == {"sharding_specs": 1, "mesh_config": 2, "type": 3}
    assert layout.fields_by_name["mesh_config"].message_type is mesh
    types = [value.name for value in layout.enum_types_by_name["LayoutType"].values]
    assert types == ["UNKNOWN", "STATIC", "PARTED", "SINGLE_DEVICE"]
    spec = layout.fields_by_name["sharding_specs"].message_type
    assert spec.full_name == "tensorflow.dtensor.ShardingSpec"
    assert (spec.fields[0].name, spec.fields[0].number) == ("sharding_spec", 2)
    assert mesh.fields_by_name["mesh_dimensions"].message_type.full_name == "tensorflow.dtensor.MeshDimensionProto"


def test_the_default_descriptor_pool_is_left_alone():
    pool = pytest.importorskip("google.protobuf.descriptor_pool")
    real_class(LAYOUT_MESSAGE)
    with pytest.raises(KeyError):
        pool.Default().FindMessageTypeByName("tensorflow.dtensor.LayoutProto")


def test_without_protobuf_a_stand_in_is_returned():
    mesh = Mesh(range(2), {"x": 2})
    layout = Layout(["x"], mesh)
    with no_protobuf():
        proto = layout.as_proto()
        assert isinstance(proto, PlainMessage)
        assert Mesh.from_proto(layout.mesh_proto()) == mesh
        assert [spec.sharding_spec for spec in proto.sharding_specs] == ["x"]
        assert proto.type == 1
        for found in (proto.mesh_config, layout.mesh_proto(), mesh.as_proto()):
            assert [(dim.name, dim.size) for dim in found.mesh_dimensions] == [("x", 2)]
            assert (found.global_device_ids, found.name) == ((0, 1), "")
            assert found.local_devices[1] == mesh.local_devices()[1]
        specs = "[{'sharding_spec': 'x', 'meshcomm_rule': ''}]"
        assert repr(proto).startswith(f"tensorflow.dtensor.LayoutProto(sharding_specs={specs}, ")
