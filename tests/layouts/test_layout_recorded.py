"""Layouts: every answer recorded from TensorFlow, the cases of its own LayoutTest, and where we differ."""

import base64
import json
import pickle
import re

import numpy as np
import pytest

from meshcomm import MATCH, UNSHARDED, Cyclic, Layout, Mesh
from meshcomm.core.layouts.layout import LayoutType
from meshcomm.errors import LayoutError, MeshError, ShapeError
from support.departures import refuses
from support.layout_cases import DEPARTURES, MESH, golden_key, host_devices
from support.paths import DATA

GOLDEN = json.loads((DATA / "layout_methods.json").read_text())


def recorded_layout(case):
    size = int(np.prod([size for _, size in case["mesh_dims"]]))
    return Layout(case["sharding_specs"], Mesh(host_devices(size), case["mesh_dims"], case["mesh_name"]))


RECORDED = [
    pytest.param(case, id=f"{case['to_string'].split('|')[1]}-{','.join(case['sharding_specs'])}")
    for case in GOLDEN["layouts"]
]


# -- recorded answers of TensorFlow -----------------------------------------------------------------------------------


def test_all_is_recorded():
    assert {key: len(value) for key, value in GOLDEN.items() if isinstance(value, list)} == {
        "meshes": 8,
        "layouts": 118,
        "factories": 50,
        "equality": 49,
        "layout_from_string": 21,
        "mesh_from_string": 15,
        "constructor": 10,
    }


@pytest.mark.parametrize("case", RECORDED)
def test_recorded_forms_and_members(case):
    layout = recorded_layout(case)
    data = base64.b64decode(case["as_proto_b64"])
    mesh_data = base64.b64decode(case["mesh_proto_b64"])
    assert layout.to_string() == case["to_string"]
    assert case["repr"] == f"Layout.from_string({layout.to_string()})"  # TensorFlow's repr is the wire text
    assert layout.serialized_string() == layout.as_proto().SerializeToString() == data
    assert layout.mesh_proto().SerializeToString() == layout.mesh.serialized_string() == mesh_data
    assert layout.mesh_proto() == layout.as_proto().mesh_config
    assert (Layout.from_string(case["to_string"]) == layout) == case["roundtrip_string"]
    assert (Layout.from_proto(layout.as_proto()) == layout) == case["roundtrip_proto"]
    assert Layout.from_str(data) == Layout.from_proto(data) == layout
    assert pickle.loads(pickle.dumps(layout)) == layout
    assert layout.sharding_specs == case["sharding_specs"]
    assert layout.rank == case["rank"]
    assert layout.shape == case["shape_2_9"]
    assert layout.mesh.shape() == case["shape_2_21"]
    assert layout.type.name == case["type"]
    assert layout.is_fully_replicated() == case["is_fully_replicated_by_num_shards"]
    assert all(spec == UNSHARDED for spec in layout.sharding_specs) == case["is_fully_replicated_2_21"]
    assert layout.is_batch_parallel() == case["is_batch_parallel_2_21"]
    assert layout.is_single_device() == case["is_single_device"]
    assert [layout.num_shards(axis) for axis in range(layout.rank)] == case["num_shards"]


@pytest.mark.parametrize("case", RECORDED)
def test_recorded_blocks_and_relatives(case):
    layout = recorded_layout(case)
    assert layout.offset_to_shard() == [tuple(shard) for shard in case["offset_to_shard"]]
    for offset, index in case["offset_tuple_to_global_index"]:
        assert layout.offset_tuple_to_global_index(tuple(offset)) == index
    assert layout.local_shape_from_global_shape(case["global_shape"]) == tuple(case["local_shape_from_global_shape"])
    assert layout.global_shape_from_local_shape(case["local_shape"]) == tuple(case["global_shape_from_local_shape"])
    for device in range(layout.mesh.size):
        assert layout.block_shape(case["global_shape"], device) == tuple(case["local_shape"])
    for axis, specs in case["delete"].items():
        assert (
            layout.delete(int(axis)).sharding_specs == layout.delete([int(axis) - layout.rank]).sharding_specs == specs
        )
    if layout.rank:
        assert layout.delete([0, layout.rank - 1]).sharding_specs == case["delete_0_and_last"]
    assert layout.to_parted().to_string() == case["to_parted"]
    assert (layout == layout.to_parted()) == case["equals_parted"]
    assert (layout == Layout.replicated(layout.mesh, layout.rank)) == case["equals_replicated"]


@pytest.mark.parametrize(("name", "arguments", "specs"), GOLDEN["factories"])
def test_recorded_factory(name, arguments, specs):
    mesh = Mesh.from_string(arguments["mesh"])
    assert getattr(Layout, name)(**{**arguments, "mesh": mesh}) == Layout(specs, mesh)


@pytest.mark.parametrize(("a", "b", "equal", "equal_hashes"), GOLDEN["equality"])
def test_recorded_equality(a, b, equal, equal_hashes):
    first, second = Layout.from_string(a), Layout.from_string(b)
    assert (first == second) == equal
    assert (first != second) != equal
    assert (hash(first) == hash(second)) == equal_hashes


@pytest.mark.parametrize(
    ("text", "answer"), [pytest.param(*case, id=case[0][:40]) for case in GOLDEN["layout_from_string"]]
)
def test_recorded_from_string(text, answer):
    if golden_key("Layout", text) in DEPARTURES or isinstance(answer, dict):
        with pytest.raises(LayoutError):
            Layout.from_string(text)
    else:
        assert Layout.from_string(text).to_string() == answer


@pytest.mark.parametrize(("specs", "answer"), GOLDEN["constructor"])
def test_recorded_constructor(specs, answer):
    if isinstance(answer, dict):
        with pytest.raises(ValueError, match=re.escape(answer["message"])) as raised:
            Layout(specs, MESH)
        assert raised.type is LayoutError
    else:
        assert Layout(specs, MESH).to_string() == answer


# -- departures -------------------------------------------------------------------------------------------------------


PROOFS = {
    **{
        f"Layout.from_string('{text}mesh:…')": lambda text=text: refuses(
            LayoutError, Layout.from_string, f"{text}mesh:|x=2|*CPU"
        )
        for text in ("sharding_specs:x ", "sharding_specs:any, ", "sharding_specs:any,any, ")
    },
    "Layout.from_string('empty_layout')": lambda: refuses(LayoutError, Layout.from_string, "empty_layout"),
    "Mesh.from_string('empty_mesh')": lambda: refuses(MeshError, Mesh.from_string, "empty_mesh"),
    "Layout.shape": lambda: Layout(["y"], MESH).shape == [2],
    "Layout.is_fully_replicated": lambda: Layout(["x"], Mesh(range(1), {"x": 1})).is_fully_replicated(),
    "negative axes": lambda: (
        Layout(["x", "y"], MESH).num_shards(-1) == 2
        and Layout(["x", "y"], MESH).delete(-1) == Layout(["x"], MESH)
        and Layout.batch_sharded(MESH, "x", 2, axis=-1) == Layout([UNSHARDED, "x"], MESH)
    ),
    "axes or ranks out of range in `num_shards`, `delete`, `batch_sharded`": lambda: (
        all(refuses(LayoutError, Layout(["x", "y"], MESH).num_shards, axis) for axis in (2, -3, 2**70))
        and all(
            refuses(LayoutError, Layout(["x", "y"], MESH).delete, axes) for axes in (2, -3, [0, 2], "0", None, ["x"])
        )
        and all(
            refuses(LayoutError, Layout.batch_sharded, MESH, "x", rank, axis)
            for rank, axis in [(0, 0), (-1, 0), (2, 2), (2, -3), (1.0, 0), (2, "x")]
        )
        and refuses(LayoutError, Layout.inner_sharded, MESH, "x", 0)
    ),
    "Layout.num_shards(axis of MATCH)": lambda: Layout([MATCH], MESH).num_shards(0) == -1,
    "other wrong arguments of layouts": lambda: (
        refuses(LayoutError, Layout.batch_sharded, MESH, "q", 2)
        and refuses(LayoutError, Layout.replicated, MESH, -1)
        and refuses(LayoutError, Layout([MATCH], MESH).offset_to_shard)
        and all(refuses(LayoutError, Layout, specs, MESH) for specs in ("x", None, 3, iter(["x"]), {"x": 1}))
    ),
    "Layout.offset_tuple_to_global_index(out of range)": lambda: (
        all(
            refuses(LayoutError, Layout(["x", "y"], MESH).offset_tuple_to_global_index, offset)
            for offset in [(3, 0), (0, 2), (-1, 0), (0, 0, 0), (0, 0.5), None]
        )
        and Layout(["x", "y"], MESH).offset_tuple_to_global_index((2,)) == 4
    ),
    "Layout.local_shape_from_global_shape(uneven)": lambda: refuses(
        ShapeError, Layout(["x"], MESH).local_shape_from_global_shape, (7,)
    ),
    "shapes with another number of axes": lambda: all(
        refuses(LayoutError, function, shape)
        for shape in [(), (3, 3), None, 3]
        for function in (
            Layout(["x"], MESH).local_shape_from_global_shape,
            Layout(["x"], MESH).global_shape_from_local_shape,
        )
    ),
    "a tuple of mesh dimensions on one axis": lambda: (
        Layout([("x", "y")], MESH).to_string().startswith("sharding_specs:x+y, ")
    ),
    "Mesh('TPU:0', ...)": lambda: Mesh(["TPU:0", "TPU:1"], [("x", 2)]).local_devices() == ["TPU:0", "TPU:1"],
    "names of mesh dimensions that text cannot hold: with spaces, reserved ('scalar'), repeated": lambda: all(
        refuses(MeshError, Mesh, range(4), dims)
        for dims in ({"a b": 4}, {"any": 4}, {"scalar": 4}, [("x", 2), ("x", 2)])
    ),
    "more than 32 mesh dimensions": lambda: refuses(MeshError, Mesh, range(1), {f"d{i}": 1 for i in range(33)}),
    "duplicate devices": lambda: refuses(MeshError, Mesh, ["CPU:0", "CPU:0"], {"x": 2}),
    "mesh[unknown name]": lambda: refuses(MeshError, lambda: MESH["q"]) and refuses(KeyError, lambda: MESH["q"]),
    "== with another type": lambda: not (MESH == 3 or Layout([], MESH) == 3),
    "repr of layouts and meshes": lambda: repr(Layout(["x"], Mesh(range(2), {"x": 2}))) == "Layout(['x'], Mesh(x=2))",
    "sizes like ' 3', '+3' or '3abc' in text": lambda: all(
        refuses(MeshError, Mesh.from_string, f"|x={size}|*CPU") for size in (" 3", "+3", "3abc")
    ),
    "'|x=999999999999|*CPU'": lambda: refuses(MeshError, Mesh.from_string, "|x=999999999999|*CPU"),
    "wrong wire types or deprecated groups in a proto": lambda: all(
        refuses(MeshError, Mesh.from_proto, mesh) and refuses(LayoutError, Layout.from_proto, layout)
        for mesh, layout in ((b"\x18\x01", b"\x08\x01"), (b"\x4b\x4c", b"\x4b\x4c"))
    ),
    "an axis with `Cuts` or `Cyclic`, in a proto": lambda: (
        [spec.sharding_spec for spec in Layout([Cyclic("x", 2), "y"], MESH).as_proto().sharding_specs] == ["x", "y"]
    ),
}


@pytest.mark.parametrize("case", PROOFS)
def test_departure(case):
    assert PROOFS[case]()


def test_departures_are_documented():
    assert list(PROOFS) == DEPARTURES


# -- the cases of TensorFlow's own LayoutTest -------------------------------------------------------------------------


def test_no_axes_are_not_one_unsharded_axis():
    assert Layout([], MESH) != Layout([UNSHARDED], MESH)
    assert Layout([], MESH).is_fully_replicated()


def test_single_device_layout():
    layout = Layout.from_device("CPU:0")
    assert layout == Layout.from_single_device_mesh(Mesh.from_device("CPU:0"))
    assert (layout.type, layout.is_single_device(), layout.rank) == (LayoutType.SINGLE_DEVICE, True, 0)
    assert repr(layout) == "Layout.from_device('CPU:0')"
    assert Layout.from_string(layout.to_string()) == Layout.from_proto(layout.as_proto()) == layout
    assert layout.serialized_string() == b"\x12\x07\x42\x05CPU:0\x18\x03"
    assert pickle.loads(pickle.dumps(layout)) == layout
    assert layout != Layout([], layout.mesh)
    assert layout.block_slices((7, 4), 0) == (slice(0, 7), slice(0, 4))
    assert layout.local_shape_from_global_shape((7, 4)) == layout.global_shape_from_local_shape((7, 4)) == (7, 4)
    with pytest.raises(LayoutError, match="single device"):
        layout.to_parted()
    with pytest.raises(LayoutError, match="layout for 0 axes"):
        layout.num_shards(0)


def test_parted_type():
    layout = Layout([("x", "y"), UNSHARDED], MESH)
    parted = layout.to_parted()
    assert (parted.type, parted.sharding_specs) == (LayoutType.PARTED, layout.sharding_specs)
    assert parted != layout
    for other in (
        Layout.from_string(parted.to_string()),
        Layout.from_proto(parted.as_proto()),
        pickle.loads(pickle.dumps(parted)),
        parted.to_parted(),
    ):
        assert other == parted
        assert hash(other) == hash(parted)
    assert parted.delete(1).type is LayoutType.PARTED


def test_an_old_proto_without_type_is_static():
    layout = Layout(["x", UNSHARDED], MESH)
    assert Layout.from_str(layout.serialized_string().removesuffix(b"\x18\x01")) == layout
