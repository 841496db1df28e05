"""Meshes: every answer recorded from TensorFlow, and the cases of its own MeshTest."""

import base64
import json
import pickle

import numpy as np
import pytest

from meshcomm import Mesh, MeshDimension
from meshcomm.errors import MeshError
from support.layout_cases import DEPARTURES, golden_key
from support.paths import DATA
from support.reference import mesh_of as grid

GOLDEN = json.loads((DATA / "layout_methods.json").read_text())
HOST = "/job:localhost/replica:0/task:0/device:CPU:"
CPU2 = f"{HOST}0,{HOST}1"
RECORDED = [pytest.param(case, id=case["to_string"].split("|0")[0]) for case in GOLDEN["meshes"]]


def recorded_mesh(case):
    return Mesh(case["local_devices"], case["dims"], case["name"])


# -- recorded answers of TensorFlow -----------------------------------------------------------------------------------


METHODS = (
    *("to_string", "shape", "local_device_ids", "local_devices", "global_devices", "num_local_devices", "is_remote"),
    *("min_global_device_id", "is_single_device", "device_type", "use_xla_spmd", "local_device_locations"),
)
PROPERTIES = ("name", "size", "dim_names", "strides")


@pytest.mark.parametrize("case", RECORDED)
def test_recorded_members(case):
    mesh = recorded_mesh(case)
    found = {name: getattr(mesh, name)() for name in METHODS} | {name: getattr(mesh, name) for name in PROPERTIES}
    assert found == {name: case[name] for name in found}


@pytest.mark.parametrize("case", RECORDED)
def test_recorded_forms_places_and_dimensions(case):
    mesh = recorded_mesh(case)
    data = base64.b64decode(case["proto_b64"])
    assert case["repr"] == f"Mesh.from_string({mesh.to_string()})"  # TensorFlow's repr is the wire text
    assert mesh.host_mesh().to_string() == case["host_mesh"]
    assert mesh.serialized_string() == data
    assert mesh.as_proto().SerializeToString() == data
    assert Mesh.from_proto(data) == Mesh.from_proto(mesh.as_proto()) == mesh
    assert Mesh.from_string(case["to_string"]) == mesh
    assert mesh.global_device_ids().tolist() == case["global_device_ids"]
    assert mesh.global_device_ids().dtype == np.int64
    assert mesh.unravel_index() == {int(i): at for i, at in case["unravel_index"].items()}
    assert [mesh.device_location(i) for i in range(mesh.size)] == case["device_location"]
    assert [mesh.coords(i) for i in range(len(case["coords"]))] == case["coords"]
    for name, contained in case["contains"].items():
        assert mesh.contains_dim(name) == contained
        assert (name in mesh) == contained
    for name, dim in case["getitem"].items():
        assert mesh[name] == tuple(dim)
        assert mesh.dim_size(name) == dim[1]
    assert mesh.dims == tuple(MeshDimension(*dim) for dim in case["dims"])


@pytest.mark.parametrize(
    ("text", "answer"), [pytest.param(*case, id=case[0][:40]) for case in GOLDEN["mesh_from_string"]]
)
def test_recorded_from_string(text, answer):
    if golden_key("Mesh", text) in DEPARTURES or isinstance(answer, dict):
        with pytest.raises(MeshError):
            Mesh.from_string(text)
    else:
        assert Mesh.from_string(text).to_string() == answer


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a|b|c|d", "expected either 5, 6, 7 or 3 mesh parts but found 4"),
        (f"|x=3|0,1|0,1|{CPU2}", "mesh size 3 doesn't match number of devices"),
        (f"|x=2,x=1|0,1|0,1|{CPU2}", "repeated mesh dimension 'x'"),
        ("|x=+2|*CPU", "is not a number"),
        ("|x= 2|*CPU", "is not a number"),
        ("|x=2_0|*CPU", "is not a number"),
        ("|x=\u0662|*CPU", "is not a number"),
        ("|x=9223372036854775808|*CPU", "is not a number"),
        ("|x=0|*CPU", "sizes are 1"),
        ("|x=|*CPU", "is not a number"),
        ("|x|*CPU", "has no size"),
        ("|=2|*CPU", "is empty"),
        ("||*CPU", "has no size"),
        ("|x=2|CPU", "the last one is \\* and a device type"),
        ("|x=2|*", "has no device type"),
        ("|x=2|*C PU", "cannot be written"),
        ("a b|x=2|*CPU", "mesh name 'a b' cannot be written"),
        ("|x=999999999999|*CPU", "at most 1048576"),
        ("|x=4000000000,y=4000000000|*CPU", "at most 2\\*\\*63 - 1 devices"),
        (f"|x=999999999999|0,1|0,1|{CPU2}", "doesn't match number of devices"),
        (f"|x=2|1,0|0,1|{CPU2}", "must increase by one"),
        (f"|x=2|0,2|0,1|{CPU2}", "must increase by one"),
        (f"|x=2|9223372036854775806,9223372036854775807|0,1|{CPU2}", "must increase by one"),
        (f"|x=2|0,1|0,0|{CPU2}", "local device ids"),
        (f"|x=2|0,1|1,2|{CPU2}", "local device ids"),
        (f"|x=2|0,1,|0,1|{CPU2}", "is not a number"),
        ("|x=2|0,1|0,1|CPU:0,TPU:0", "multiple device types"),
        ("|x=2|0,1|0,1|CPU:0,", "device 1 is empty"),
        ("|x=2|0,1||", "empty list of devices"),
        (f"|x=2|0,1|0,1|{CPU2}|{HOST}0", "1 global devices are listed for 2"),
        ("|x=2|0,1|0|CPU:0|TPU:0,TPU:1", "multiple device types"),
        (f"|x=2|0,1|0,1|{CPU2}|use_xla_spmd", "XLA SPMD needs TPU"),
        ("|x=6|0,1,2,3,4,5|0,1,2,3|CPU:0,CPU:1,CPU:2,CPU:3", "uneven local clusters"),
        ("CPU", "has no device type"),
        ("/job:localhost/task:0", "has no device type"),
        ("CPU:0,CPU:1", "cannot be written"),
        ("", "is empty"),
    ],
)
def test_text_of_no_mesh(text, says):
    with pytest.raises(MeshError, match=says):
        Mesh.from_string(text)


@pytest.mark.parametrize(
    "text",
    [
        f"|x=2|0,1|0,1|{CPU2}",
        "pod|x=2,y=1|0,1|0,1|TPU:0,TPU:1",
        "|x=2|0,1|0,1|TPU:0,TPU:1|use_xla_spmd",
        f"|x=2|0,1|0|{HOST}0|{HOST}0,{HOST}1",
        "|x=2|0,1|0|TPU:0|TPU:0,TPU:1|use_xla_spmd",
        f"|x=2|0,1|1|{HOST}1",
        f"|x=2|5,6|5,6|{CPU2}",
        f"|x=2|0,1|1,0|{CPU2}",
        f"|x=2|0,1|||{CPU2}",
        f"{HOST}3",
        "TPU:0",
        "/job:mpi/replica:0/task:3/device:CPU:0",
    ],
)
def test_text_and_wire_forms_round_trip(text):
    mesh = Mesh.from_string(text)
    assert mesh.to_string() == text
    assert Mesh.from_string(mesh.to_string()) == mesh
    assert Mesh.from_proto(mesh.as_proto()) == mesh
    assert Mesh.from_proto(mesh.serialized_string()).to_string() == text
    assert pickle.loads(pickle.dumps(mesh)) == mesh
    assert hash(Mesh.from_string(text)) == hash(mesh)


# -- the cases of TensorFlow's own MeshTest ---------------------------------------------------------------------------


def test_single_device():
    mesh = Mesh.from_device("/job:localhost/replica:0/task:0/device:CPU:0")
    assert mesh.is_single_device()
    assert mesh.single_device == mesh.to_string() == "/job:localhost/replica:0/task:0/device:CPU:0"
    assert repr(mesh) == "Mesh.from_device('/job:localhost/replica:0/task:0/device:CPU:0')"
    assert (mesh.size, mesh.shape(), mesh.strides, mesh.coords(0)) == (1, [], [], [])
    assert mesh.global_device_ids().shape == ()
    assert mesh.unravel_index() == {0: {}}
    assert mesh.serialized_string() == b"\x42\x2c" + mesh.single_device.encode()
    assert Mesh.from_string(mesh.to_string()) == Mesh.from_proto(mesh.as_proto()) == mesh
    assert mesh != Mesh([mesh.single_device], [("x", 1)])


def test_a_mesh_with_dimensions_is_no_single_device():
    assert (grid(1).is_single_device(), grid(1).single_device) == (False, "")


def test_coords_wrap_around():
    mesh = grid(4, 2)
    for i in range(-8, 24):
        assert mesh.coords(i) == list(np.unravel_index(i % 8, (4, 2)))


@pytest.mark.parametrize("devices", [["GPU:0", "GPU:1"], ["CPU:0", "CPU:1"], range(2)])
def test_xla_spmd_needs_tpus(devices):
    with pytest.raises(MeshError, match="XLA SPMD"):
        Mesh(devices, {"x": 2}, use_xla_spmd=True)


def test_use_xla_spmd_is_kept():
    mesh = Mesh(["TPU:0", "TPU:1"], [("x", 2)], use_xla_spmd=True)
    assert mesh.use_xla_spmd()
    assert Mesh.from_string(mesh.to_string()).use_xla_spmd()
    assert Mesh.from_proto(mesh.as_proto()).use_xla_spmd()
    assert pickle.loads(pickle.dumps(mesh)) == mesh
    assert mesh != Mesh(["TPU:0", "TPU:1"], [("x", 2)])


def test_host_mesh_drops_the_name_and_takes_cpus():
    mesh = Mesh(["/job:w/task:0/device:TPU:0", "/job:w/task:0/device:TPU:1"], [("x", 2)], "pod", use_xla_spmd=True)
    assert mesh.host_mesh().to_string() == "|x=2|0,1|0,1|/job:w/task:0/device:CPU:0,/job:w/task:0/device:CPU:1"
    remote = Mesh.from_string("pod|x=2|4,5|||TPU:0,TPU:1|use_xla_spmd")
    assert remote.host_mesh().to_string() == "|x=2|4,5|||CPU:0,CPU:1"
    assert Mesh([3, 5], {"x": 2}, "a").host_mesh() == Mesh([3, 5], {"x": 2})
    assert Mesh.from_device("TPU:0").host_mesh() == Mesh.from_device("CPU:0")
