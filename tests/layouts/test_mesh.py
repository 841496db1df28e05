"""Meshes: construction, ranks, groups, values."""

import copy
import pickle

import numpy as np
import pytest

from meshcomm import Mesh
from meshcomm.core import _hooks
from meshcomm.core.layouts.mesh import bound_to, bound_world
from meshcomm.errors import MeshError
from support.reference import mesh_of as grid

# -- construction -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "dims", [[("x", 3), ("y", 2)], {"x": 3, "y": 2}, (["x", 3], ["y", np.int64(2)]), iter([("x", 3), ("y", 2)])]
)
def test_dims_are_pairs_or_a_dict(dims):
    mesh = Mesh(range(6), dims)
    assert mesh.dims == (("x", 3), ("y", 2))
    assert type(mesh.dims[1].size) is int


def test_names_become_plain_strings():
    mesh = Mesh([np.str_("CPU:0")], {np.str_("x"): 1}, np.str_("m"))
    assert {type(text) for text in (mesh.name, mesh.dim_names[0], mesh.local_devices()[0])} == {str}


@pytest.mark.parametrize(
    ("devices", "dims", "says"),
    [
        (range(0), [("x", 1)], "no devices"),
        (range(1), [(f"d{i}", 1) for i in range(33)], "33 mesh dimensions"),
        (range(1), None, "must be a sequence"),
        (range(1), ["x1"], "mesh dimension 0 is 'x1'"),
        (range(1), [("x", 1, 1)], "is a pair"),
        (range(1), [5], "is a pair"),
        (range(1), [(None, 1)], "must be a str"),
        (range(1), [("x", "1")], "is a str"),
        (range(1), [("x", -1)], "sizes are 1"),
        (range(1), [("x", 10**5000)], "sizes are 1"),
        (range(1), [("x", np.ones(2, int))], "must be an integer"),
        (b"ab", [("x", 2)], "must be a sequence"),
        (3, [("x", 3)], "must be a sequence"),
        (None, [("x", 1)], "must be a sequence"),
        ([0, "TPU:1"], [("x", 2)], "rank of device 1 'TPU:1' is a str"),
        ([True], [("x", 1)], "is a bool"),
        (range(-1, 1), [("x", 2)], "rank -1"),
        (range(1, -1, -1), [("x", 3)], "2 devices for"),
        (range(2**40), [("x", 2**40)], "ranks are 0"),
        (range(2**80), [("x", 2)], "ranks are 0"),
        ([0, 1, 0], [("x", 3)], "duplicate devices found in mesh specification: 0 is device 0 and device 2"),
        (["CPU:0,CPU:1"], [("x", 1)], "cannot be written"),
        (["a|CPU:0"], [("x", 1)], "cannot be written"),
        ([""], [("x", 1)], "is empty"),
    ],
)
def test_what_makes_no_mesh(devices, dims, says):
    with pytest.raises(MeshError, match=says):
        Mesh(devices, dims)


def test_names_that_a_mesh_cannot_have():
    unwritable = ["a b", "a\tb", "a\nb", "a,b", "a=b", "a|b", "a+b", "a\u2003b", "a\x00", "\ud800", " "]
    for name in ("unsharded", "match", "any", "scalar", *unwritable):
        with pytest.raises(MeshError, match="cannot be written" if name in unwritable else f"{name} is reserved"):
            Mesh(range(2), {name: 2})
    for name in ("a b", "a|b", "a\n", "\ud800", None, 3, b"a"):
        with pytest.raises(MeshError, match="mesh name" if isinstance(name, str) else "must be a str"):
            Mesh(range(2), {"x": 2}, name)


@pytest.mark.parametrize("name", ["a,b", "a=b", "a+b", "größe", "a:b"])
def test_mesh_names_that_are_fine(name):
    mesh = Mesh(range(2), {"x": 2, "größe": 1}, name)
    assert Mesh.from_string(mesh.to_string()) == Mesh.from_proto(mesh.as_proto()) == mesh


@pytest.mark.parametrize("name", ["zz", "", "unsharded", None, 3, ["x"], "z" * 10**6])
def test_a_missing_dimension_is_a_mesh_error_and_a_key_error(name):
    mesh = grid(3, 2)
    assert name not in mesh
    for ask in (mesh.__getitem__, mesh.dim_size, mesh.stride):
        with pytest.raises(
            MeshError, match=r"^dimension .* does not exist in mesh; available dimensions: \['x', 'y'\]$"
        ):
            ask(name)
        with pytest.raises(KeyError):
            ask(name)


@pytest.mark.parametrize("device", ["0", 1.0, None, True])
def test_devices_are_integers(device):
    for ask in (grid(3, 2).coords, grid(3, 2).device_location):
        with pytest.raises(MeshError, match=r"must be an integer|is None, as mesh.rank is on a rank outside"):
            ask(device)


# -- ranks ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("devices", "ranks"),
    [
        (range(4), range(4)),
        ([0, 1, 2, 3], range(4)),
        (np.arange(4), range(4)),
        (range(4, 8), range(4, 8)),
        ((4, 5, 6, 7), range(4, 8)),
        (range(3, -1, -1), (3, 2, 1, 0)),
        ((3, 1, 2, 0), (3, 1, 2, 0)),
        (["TPU:3", "TPU:2", "TPU:1", "TPU:0"], range(4)),
        ([f"/job:mpi/replica:0/task:{i}/device:CPU:0" for i in range(4)], range(4)),
        ([f"/job:mpi/replica:0/task:{i}/device:CPU:0" for i in (7, 5, 3, 1)], (7, 5, 3, 1)),
        ([f"/job:mpi/replica:0/task:0{i}/device:CPU:0" for i in (7, 5, 3, 1)], range(4)),
        ([f"/job:mpi/replica:0/task:{i}/device:CPU:0" for i in (1, 2, 3, 2**31)], range(4)),
        ([f"/job:mpi/replica:0/task:{i}/device:CPU:1" for i in (7, 5, 3, 1)], range(4)),
        ([f"/job:mpi/replica:0/task:{i}/device:CPU:0" for i in (7, 5, 3)] + ["CPU:0"], range(4)),
    ],
)
def test_ranks(devices, ranks):
    mesh = Mesh(devices, {"x": 4})
    assert mesh.ranks == ranks
    assert type(mesh.ranks) is type(ranks)
    assert Mesh.from_string(mesh.to_string()) == Mesh.from_proto(mesh.as_proto()) == mesh
    assert Mesh(mesh.local_devices(), mesh.dims) == mesh
    assert Mesh.from_string(mesh.to_string()).ranks == ranks


def test_ranks_of_a_partly_local_mesh():
    devices = ",".join(f"/job:mpi/replica:0/task:{i}/device:CPU:0" for i in (7, 5))
    assert Mesh.from_string(f"|x=2|0,1|||{devices}").ranks == (7, 5)
    assert Mesh.from_string(f"|x=2|0,1|1,0|{devices}").ranks == (5, 7)
    assert Mesh.from_string("|x=2|0,1|1|CPU:1").ranks == range(2)
    assert Mesh.from_string("|x=2|8,9|8,9|CPU:0,CPU:1").ranks == range(2)
    assert Mesh.from_device("/job:mpi/replica:0/task:3/device:CPU:0").ranks == range(3, 4)


def test_a_partly_local_mesh():
    mesh = Mesh.from_string("|x=2,y=2|4,5,6,7|6,7|CPU:2,CPU:3|CPU:0,CPU:1,CPU:2,CPU:3")
    assert (mesh.min_global_device_id(), mesh.num_local_devices(), mesh.is_remote()) == (4, 2, False)
    assert mesh.global_device_ids().tolist() == [[4, 5], [6, 7]]
    assert mesh.local_device_ids() == [6, 7]
    assert mesh.local_devices() == ["CPU:2", "CPU:3"]
    assert mesh.global_devices() == ["CPU:0", "CPU:1", "CPU:2", "CPU:3"]
    assert mesh.local_device_locations() == [{"x": 1, "y": 0}, {"x": 1, "y": 1}]
    assert Mesh.from_string("|x=2|0,1|||CPU:0,CPU:1").is_remote()


def test_device_type():
    devices = {
        "TPU:0": "TPU",
        "tpu:0": "TPU",
        "/device:GPU:3": "GPU",
        "/job:a/task:1/device:CPU:0": "CPU",
        "/gpu:1": "GPU",
    }
    for device, kind in devices.items():
        assert Mesh([device], {"x": 1}).device_type() == Mesh.from_device(device).device_type() == kind


# -- a large mesh costs nothing until it is listed --------------------------------------------------------------------


def test_a_mesh_of_a_million_ranks(no_list):
    mesh = Mesh(range(2**20), [("x", 1024), ("y", 1024)])
    assert mesh.ranks == range(2**20)
    assert mesh.coords(2**20 - 1) == [1023, 1023]
    assert mesh == Mesh(range(2**20), {"x": 1024, "y": 1024})
    assert hash(mesh) == hash(copy.copy(mesh))
    assert repr(mesh) == "Mesh(x=1024, y=1024)"
    assert len(pickle.dumps(mesh)) < 300
    assert pickle.loads(pickle.dumps(mesh)) == mesh
    assert mesh.dim_size("y") == mesh.stride("x") == 1024


# -- groups -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("names", "groups"),
    [
        ("x", ((0, 2, 4), (1, 3, 5))),
        (["y"], ((0, 1), (2, 3), (4, 5))),
        (["x", "y"], ((0, 1, 2, 3, 4, 5),)),
        (("y", "x"), ((0, 1, 2, 3, 4, 5),)),
        ([], ((0,), (1,), (2,), (3,), (4,), (5,))),
        (["x", "x"], ((0, 2, 4), (1, 3, 5))),
    ],
)
def test_groups_along(names, groups):
    assert grid(3, 2).groups_along(names) == groups
    assert Mesh([9, 8, 7, 6, 5, 4], [("x", 3), ("y", 2)]).groups_along(names) == groups


@pytest.mark.parametrize("names", [["x"], ["y"], ["z"], ["x", "z"], ["z", "y"], ["x", "y", "z"], []])
def test_groups_differ_only_along_their_dimensions(names):
    mesh = Mesh(range(24), {"x": 2, "y": 3, "z": 4})
    groups = mesh.groups_along(names)
    assert sorted(sum(groups, ())) == list(range(24))
    for group in groups:
        assert list(group) == sorted(group)
        for i, name in enumerate(mesh.dim_names):
            along = {mesh.coords(device)[i] for device in group}
            assert len(along) == (mesh.dim_size(name) if name in names else 1)


# -- a mesh is a value ------------------------------------------------------------------------------------------------


def test_equality_knows_name_dimensions_and_devices():
    mesh = grid(3, 2)
    assert mesh == grid(3, 2)
    for other in (grid(2, 3), grid(6), grid(3, 2, name="a"), Mesh(range(1, 7), {"x": 3, "y": 2})):
        assert mesh != other
    assert mesh != Mesh([f"CPU:{i}" for i in range(6)], {"x": 3, "y": 2})
    assert mesh != Mesh(range(6), {"a": 3, "y": 2})


@pytest.mark.parametrize("mesh", [grid(3, 2, name="m"), Mesh([4, 2], {"x": 2}), Mesh(["TPU:0"], {"x": 1})])
def test_copies(mesh):
    assert copy.copy(mesh) is copy.deepcopy(mesh) is mesh
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        other = pickle.loads(pickle.dumps(mesh, protocol))
        assert (other, hash(other), repr(other), other.ranks) == (mesh, hash(mesh), repr(mesh), mesh.ranks)


def test_lists_are_copies():
    mesh = Mesh(["CPU:0", "CPU:1"], {"x": 2})
    for listed in (mesh.dim_names, mesh.strides, mesh.shape(), mesh.local_devices(), mesh.local_device_ids()):
        listed.clear()
    assert mesh == Mesh(["CPU:0", "CPU:1"], {"x": 2})
    assert (mesh.dim_names, mesh.shape(), mesh.num_local_devices()) == (["x"], [2], 2)


def test_where_a_mesh_runs_is_not_part_of_its_value():
    world = object()
    mesh = grid(3, 2)
    bound = bound_to(world, mesh)
    assert bound.world is bound.host_mesh().world is world
    assert bound == mesh
    assert hash(bound) == hash(mesh)
    assert bound.to_string() == mesh.to_string()
    assert bound_world(pickle.loads(pickle.dumps(bound))) is bound_world(mesh) is None


def test_rank_and_close_are_those_of_the_world(monkeypatch):
    class World:
        closed = None

        def device_in(self, mesh):
            return mesh.size + 1

        def close_mesh(self, mesh):
            self.closed = mesh

    world, mesh = World(), grid(3, 2)
    monkeypatch.setitem(_hooks._registered, "world", lambda: world)
    assert (mesh.world, mesh.rank, mesh.close()) == (world, 7, None)
    assert world.closed is mesh
