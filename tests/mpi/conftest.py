"""Worlds for the tests of this folder whose ranks share memory, and worlds whose ranks do not."""

import shutil
import tempfile
from pathlib import Path

import pytest

import meshcomm as mc


@pytest.fixture(params=["shared memory", "MPI"])
def world(request, comm, monkeypatch):
    """A communicator of its own, whose ranks share memory or do not."""
    if request.param == "MPI":
        monkeypatch.setenv("MESHCOMM_SHARED_MEMORY", "0")
    made = comm.Dup()
    yield made
    comm.Barrier()
    made.Free()


@pytest.fixture
def grid(world):
    """A mesh of all ranks of such a world, with more dimensions where their number allows it."""
    sizes = {4: (2, 2), 6: (3, 2), 8: (2, 2, 2)}.get(world.size, (world.size,))
    made = mc.create_mesh(list(zip("xyz", sizes, strict=False)), comm=world)
    yield made
    made.close()


@pytest.fixture
def line(comm):
    """A mesh of all ranks with one dimension."""
    made = mc.create_mesh([("x", comm.size)], comm=comm)
    yield made
    made.close()


@pytest.fixture
def folder(comm):
    """A new folder that all ranks see."""
    made = Path(comm.bcast(tempfile.mkdtemp() if comm.rank == 0 else None))
    yield made
    comm.Barrier()
    if comm.rank == 0:
        shutil.rmtree(made)


@pytest.fixture
def there(world):
    """A function from a layout to the same one on such a world, which ends with all meshes."""
    made = {}

    def moved(layout):
        mesh = layout.mesh
        if mesh not in made:
            made[mesh] = mc.create_mesh([tuple(dim) for dim in mesh.dims], devices=list(mesh.ranks), comm=world)
        return mc.Layout(layout.axes, made[mesh])

    yield moved
    world.Barrier()
    for mesh in made.values():
        mesh.close()


@pytest.fixture
def own(comm):
    """Rows and columns on a mesh of all ranks, on a world of its own: no rank set of it has communicated yet."""
    alone = comm.Dup()
    mesh = mc.create_mesh([("x", comm.size)], comm=alone)
    yield mc.Layout(["x", mc.UNSHARDED], mesh), mc.Layout([mc.UNSHARDED, "x"], mesh)
    mesh.close()
    alone.Free()
