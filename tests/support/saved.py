"""Helpers of tests of files: small worlds, layouts in them, and indices."""

from math import prod
from random import Random

import numpy as np

import meshcomm as mc
from meshcomm import Layout
from support.random_cases import any_case
from support.tensors import on as on

RANKS = 6
SIZES = (1, 2, 2, 3, 4, 4, 6)
SUFFIXES = ("", ".npy", ".safetensors", ".safetensors.index.json", ".h5", ".zarr")
INDICES = [np.s_[2:5], np.s_[:, 1:3], np.s_[::2, ::-1], np.s_[3], np.s_[..., -1], np.s_[1:1], np.s_[None, 2:, 0]]


def here(layout):
    """Return *layout* on a mesh of the simulated world that runs."""
    mesh = layout.mesh
    new_mesh = mc.create_mesh([(dim.name, dim.size) for dim in mesh.dims], devices=list(mesh.ranks))
    return Layout(list(layout.axes), new_mesh)


def cases(seed, count):
    """Yield up to *count* random relayouts of small arrays, each with its number and a random generator."""
    for number in range(seed * count, (seed + 1) * count):
        case = any_case(number, RANKS, SIZES)
        if prod(case.shape) <= 20_000:
            yield number, case, Random(number)


def same(tensor, expected):
    """Check the shape, the dtype and every bit of a tensor, in any memory order. Collective over its mesh."""
    array = tensor.to_numpy()
    if array is not None:
        assert (array.shape, array.dtype) == (expected.shape, expected.dtype)
        assert array.tobytes() == expected.tobytes()


def damage(path, at=100):
    """Change a bit of the data of the checkpoint at *path*."""
    (data,) = path.glob("data-*")
    content = bytearray(data.read_bytes())
    content[at] ^= 1
    data.write_bytes(content)


def mesh_of_4():
    """Return a mesh of 2 x 2."""
    return mc.create_mesh([("x", 2), ("y", 2)])
