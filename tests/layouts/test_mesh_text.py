"""What no mesh is made from, and generated devices; test_layout_text.py has hostile text and bytes."""

import pickle
import tracemalloc

import pytest

from meshcomm import Mesh
from meshcomm.core._arguments import quote
from meshcomm.errors import MeshError


@pytest.mark.parametrize(
    ("parse", "wrong"),
    [
        (Mesh.from_string, [None, 3, b"|x=2|*CPU", ["a"]]),
        (Mesh.from_proto, [None, 3, "|x=2|*CPU", ["a"]]),
        (Mesh.from_device, [None, 3, b"CPU:0", "", "a,b", "CPU"]),
    ],
)
def test_what_no_mesh_is_made_from(parse, wrong):
    for value in wrong:
        with pytest.raises(MeshError):
            parse(value)


def test_a_name_may_be_long():
    mesh = Mesh.from_string("|" + "x" * 2**20 + "=2|*CPU")
    assert mesh.shape() == [2]
    with pytest.raises(MeshError) as raised:
        mesh.dim_size("y")
    assert len(str(raised.value)) < 1000


def test_quote():
    class Rude:
        def __repr__(self):
            raise RuntimeError

    assert quote("a") == "'a'"
    assert quote(Rude()) == "<Rude>"
    assert quote(10**5000) == "<int>"
    assert len(quote(list(range(10**5)))) == 200


def test_generated_devices_are_made_when_they_are_asked_for():
    """A text of 16 bytes may name a million devices: what does not list them takes no time, and no memory."""
    tracemalloc.start()
    try:
        mesh = Mesh.from_string("|x=1000000|*CPU")
        again = pickle.loads(pickle.dumps(mesh))
        assert (mesh == again, hash(mesh) == hash(again), mesh.host_mesh() == mesh) == (True, True, True)
        assert (mesh.size, mesh.ranks, mesh.device_type()) == (10**6, range(10**6), "CPU")
        assert tracemalloc.get_traced_memory()[1] < 2**17
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("text", ["a|x=2,y=3|*TPU", "|x=1|*CPU", "|x=12|*gpu"])
def test_generated_devices_equal_listed_ones(text):
    short = Mesh.from_string(text)
    devices = short.local_devices()
    listed = Mesh(devices, short.dims, short.name)
    assert devices == [f"/job:localhost/task:0/device:{text.partition('*')[2]}:{i}" for i in range(short.size)]
    for mesh in (listed, Mesh.from_string(short.to_string()), Mesh.from_proto(short.serialized_string())):
        assert (mesh, hash(mesh), mesh.to_string()) == (short, hash(short), short.to_string())
    assert short.host_mesh() == listed.host_mesh()
    if short.size > 1:
        assert Mesh([*devices[1:], devices[0]], short.dims, short.name) != short
