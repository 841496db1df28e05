"""Layouts as text and as bytes, valid or not."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshcomm import MATCH, UNSHARDED, Layout, Mesh
from meshcomm.core.layouts import wire
from meshcomm.core.layouts.layout_text import LAYOUT_MESSAGE
from meshcomm.errors import LayoutError, MeshError
from support.layout_cases import MESH, REPEATABLE, mutated

# -- text and bytes ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "expected 2 items but found 1"),
        ("sharding_specs:x,  mesh:|x=2|*CPU", "expected 2 items but found 3"),
        ("sharding_specs mesh:|x=2|*CPU", "unknown layout type prefix"),
        ("tiled:x, mesh:|x=2|*CPU", "unknown layout type prefix 'tiled'"),
        ("sharding_specs:x, mesh|x=2|*CPU", "it is mesh: and the text of a mesh"),
        ("parted:x mesh:|x=2|*CPU", "end without a comma"),
        ("sharding_specs:, mesh:|x=2|*CPU", ": A dimension sharding"),
        ("sharding_specs:x+unsharded, mesh:|x=2|*CPU", "a tuple holds names"),
        ("sharding_specs:x+, mesh:|x=2|*CPU", "A dimension sharding"),
        ("maximal:true, mesh:|x=2|*CPU", "mesh is not single device"),
        ("maximal:false, mesh:CPU:0", "unknown layout type prefix 'maximal'"),
        ("maximal:true mesh:CPU:0", "unknown layout type prefix 'maximal'"),
    ],
)
def test_text_of_no_layout(text, says):
    with pytest.raises(LayoutError, match=says):
        Layout.from_string(text)


@pytest.mark.parametrize("text", ["sharding_specs: mesh:", "sharding_specs:x, mesh:|x=2", "maximal:true, mesh:|x=1|*"])
def test_text_of_a_layout_of_no_mesh(text):
    with pytest.raises(MeshError):
        Layout.from_string(text)


def layout_bytes(**values):
    values = {"sharding_specs": [{"sharding_spec": "x"}], "mesh_config": MESH._wire_values(), "type": 1} | values
    return wire.encode(LAYOUT_MESSAGE, values)


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"type": 4}, "layout type 4"),
        ({"type": -1}, "layout type -1"),
        ({"type": 3}, "which has none"),
        ({"type": 3, "sharding_specs": []}, "mesh is not single device"),
        ({"sharding_specs": [{}]}, ": A dimension sharding"),
        ({"sharding_specs": [{"sharding_spec": "x,y"}]}, "A dimension sharding"),
    ],
)
def test_bytes_of_no_layout(values, says):
    with pytest.raises(LayoutError, match=says):
        Layout.from_str(layout_bytes(**values))


def test_bytes_of_a_layout_of_no_mesh():
    with pytest.raises(MeshError):
        Layout.from_str(layout_bytes(mesh_config={}))


@pytest.mark.parametrize("value", [None, 3, "sharding_specs:x, mesh:|x=2|*CPU", ["x"]])
def test_types_of_text_and_bytes(value):
    for parse in (Layout.from_str, Layout.from_proto):
        with pytest.raises(LayoutError):
            parse(value)
    if not isinstance(value, str):
        with pytest.raises(LayoutError, match="takes a str"):
            Layout.from_string(value)
    with pytest.raises(LayoutError, match="takes a str"):
        Layout.from_string(b"sharding_specs: mesh:|x=2|*CPU")


SMALL = Mesh(["CPU:0", "CPU:1"], {"x": 2, "y": 1})


VALID = [
    Layout(["x", UNSHARDED], SMALL),
    Layout([("y", "x"), MATCH], SMALL),
    Layout(["y"], SMALL).to_parted(),
    Layout.from_device("CPU:0"),
    Layout([], SMALL),
]
MESHES = [
    "m|x=2,y=2|0,1,2,3|0,1,2,3|CPU:0,CPU:1,CPU:2,CPU:3",
    "|x=2|0,1|0|TPU:0|TPU:0,TPU:1|use_xla_spmd",
    "|x=2|*CPU",
    "CPU:0",
]


@pytest.mark.parametrize(
    ("kind", "valid", "errors"),
    [(Layout, VALID, (LayoutError, MeshError)), (Mesh, [Mesh.from_string(text) for text in MESHES], MeshError)],
    ids=["layout", "mesh"],
)
@REPEATABLE
@given(st.data())
def test_any_text_and_any_bytes_are_a_value_or_an_error_of_ours(kind, valid, errors, data):
    from_bytes = Layout.from_str if kind is Layout else Mesh.from_proto
    for parse, given_to, strategy, seeds in (
        (kind.from_string, "text", st.text(), [value.to_string() for value in valid]),
        (from_bytes, "bytes", st.binary(), [value.serialized_string() for value in valid]),
    ):
        try:
            made = parse(data.draw(strategy | mutated(seeds), given_to))
        except errors:
            continue
        assert kind.from_string(made.to_string()) == made
        assert from_bytes(made.serialized_string()) == made


@pytest.mark.parametrize(
    "text",
    [
        " " * 2**20,
        ":" * 2**20,
        "," * 2**20,
        "sharding_specs:" + "x," * 2**19 + " mesh:|x=2|*CPU",
        "sharding_specs:" + "+" * 2**20 + ", mesh:|x=2|*CPU",
        "sharding_specs:" + "x" * 2**20 + ", mesh:|x=2|*CPU",
        "sharding_specs:" + "scalar," * 2**17 + " mesh:|x=2|*CPU",
        "sharding_specs:x, mesh:" + "|" * 2**20,
        "sharding_specs:x, mesh:" + "mesh:" * 2**18,
        *(" " * 2**20, "0" * 2**20, "a" * 2**20, "/" * 2**20, "device:" * 2**17, "a/device:" * 2**17 + "CPU:0x"),
        *("|" * 2**20, "|" + "x=2," * 2**18 + "|*CPU", "|x=" + "9" * 2**20 + "|*CPU"),
        *(f"|x=2|{part * 2**19}|0,1|CPU:0,CPU:1" for part in ("0,", "99")),
        "|x=2|0,1|0,1|" + "CPU:0," * 2**17,
    ],
    ids=lambda text: text[:20] + text[-20:],
)
def test_a_mebibyte_takes_linear_time(text):
    for parse, errors in ((Layout.from_string, (LayoutError, MeshError)), (Mesh.from_string, MeshError)):
        with pytest.raises(errors) as raised:
            parse(text)
        assert len(str(raised.value)) < 1000


def test_a_layout_of_very_many_axes():
    text = "sharding_specs:" + "unsharded," * 10**5 + " mesh:|x=2|*CPU"
    assert Layout.from_string(text).rank == 10**5
