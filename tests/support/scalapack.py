"""Matrices in layouts of all kinds for the tests of ScaLAPACK, which are skipped if it is not found."""

import numpy as np
import pytest

import meshcomm as mc
from meshcomm.linalg.library import library


def skip_without_scalapack():
    """Skip a module of tests if ScaLAPACK is not found."""
    try:
        library()
    except ImportError as error:
        pytest.skip(str(error), allow_module_level=True)


def planes(sizes):
    """Return a fixture with meshes of dimensions x, y of these sizes."""

    @pytest.fixture(params=sizes, ids=str)
    def mesh(request):
        new_mesh = mc.create_mesh(list(zip("xy", request.param, strict=True)))
        yield new_mesh
        new_mesh.close()

    return mesh


def layouts_on(mesh):
    """Layouts of all kinds for matrices: some that ScaLAPACK can use as they are, and some that are relaid."""
    x, y = mesh.shape()
    specs = [
        [mc.Cyclic("x", 3), mc.Cyclic("y", 3)],
        [mc.Cyclic("y", 2, offset=y - 1), mc.Cyclic("x", 2, offset=x - 1)],
        [mc.Cyclic("x", 5), mc.Cyclic("y", 2)],
        [mc.Cyclic(("y", "x"), 2, offset=1 % mesh.size), mc.UNSHARDED],
        [mc.UNSHARDED, mc.Cyclic(("x", "y"), 100)],
        ["x", "y"],
        [("x", "y"), mc.UNSHARDED],
        [mc.Cyclic("x", 2), mc.UNSHARDED],
        [mc.UNSHARDED, mc.UNSHARDED],
    ]
    return [mc.Layout(axis_specs, mesh) for axis_specs in specs]


def random(shape, dtype, seed=0):
    rng = np.random.default_rng(seed)
    values = rng.standard_normal(shape)
    return (values + 1j * rng.standard_normal(shape) if np.dtype(dtype).kind == "c" else values).astype(dtype)
