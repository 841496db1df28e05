"""Layouts as text and as bytes, valid or not."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshcomm.errors import LayoutError, MeshError
from meshcomm.layouts import wire
from meshcomm.layouts.layout import Layout
from meshcomm.layouts.layout_text import LAYOUT_MESSAGE, MATCH, UNSHARDED
from meshcomm.layouts.mesh import Mesh
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


@REPEATABLE
@given(st.text() | mutated([layout.to_string() for layout in VALID]))
def test_any_text_is_a_layout_or_an_error_of_ours(text):
    try:
        layout = Layout.from_string(text)
    except (LayoutError, MeshError):
        return
    assert Layout.from_string(layout.to_string()) == layout
    assert Layout.from_str(layout.serialized_string()) == layout


@REPEATABLE
@given(st.binary() | mutated([layout.serialized_string() for layout in VALID]))
def test_any_bytes_are_a_layout_or_an_error_of_ours(data):
    try:
        layout = Layout.from_str(data)
    except (LayoutError, MeshError):
        return
    assert Layout.from_str(layout.serialized_string()) == layout
    assert Layout.from_string(layout.to_string()) == layout


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
    ],
    ids=lambda text: text[:20] + text[-20:],
)
def test_a_mebibyte_takes_linear_time(text):
    with pytest.raises((LayoutError, MeshError)) as raised:
        Layout.from_string(text)
    assert len(str(raised.value)) < 1000


def test_a_layout_of_very_many_axes():
    text = "sharding_specs:" + "unsharded," * 10**5 + " mesh:|x=2|*CPU"
    assert Layout.from_string(text).rank == 10**5
