"""Reshapes, joins, rolls and takes on real ranks."""

from random import Random

import numpy as np
import pytest
from mpi4py import MPI

import meshcomm as mc
from meshcomm import ShapeError
from support.reference import random_bits
from support.sampling import sampled
from support.shape_cases import check, layout_of
from support.strategies import shapes_of
from support.verdicts import agree_mismatch

SIZE = MPI.COMM_WORLD.size


def mesh_of(random):
    """A mesh over some of the ranks, in any order."""
    size = random.choice([SIZE, SIZE, max(1, SIZE - 1)])
    dims = list(zip("xyz", random.choice(shapes_of(size)), strict=False))
    return mc.create_mesh(dims, devices=random.sample(range(SIZE), size))


@pytest.mark.parametrize("seed", sampled(range(40), 10))
def test_shapes(seed):
    random = Random(f"{SIZE} {seed}")
    mesh = mesh_of(random)
    source, target = random.sample([(12,), (3, 4), (4, 3), (2, 6), (6, 2), (2, 3, 2), (1, 12), (3, 2, 2)], 2)
    x = random_bits(source, "f8", seed)
    t = mc.distribute(x, layout_of(random, mesh, source))
    check(np.reshape(t, target), x.reshape(target))
    layout = layout_of(random, mesh, target)
    made = mc.reshape(t, target, layout)
    assert made.layout == layout
    check(made, x.reshape(target))
    check(np.ravel(t), x.ravel())
    check(np.squeeze(t), np.squeeze(x))
    axis = random.randrange(x.ndim)
    check(np.flip(t), np.flip(x))
    check(np.flip(t, axis), np.flip(x, axis))
    check(np.roll(t, 2, axis), np.roll(x, 2, axis))
    check(np.roll(t, -5), np.roll(x, -5))
    u = mc.distribute(-x, layout_of(random, mesh, source))
    check(np.concatenate([t, u], axis), np.concatenate([x, -x], axis))
    check(mc.stack([u, t], axis), np.stack([-x, x], axis))
    check(np.take(t, [0, -1, 0], axis), np.take(x, [0, -1, 0], axis))
    check(np.repeat(t, 2, axis), np.repeat(x, 2, axis))
    check(np.tile(t, 2), np.tile(x, 2))
    check(np.clip(t, 0, u), np.clip(x, 0, -x))
    for mode in ("constant", "edge", "wrap"):
        check(np.pad(t, (1, 2), mode=mode), np.pad(x, (1, 2), mode=mode))
    for piece, expected in zip(np.array_split(t, 2, axis), np.array_split(x, 2, axis), strict=True):
        check(piece, expected)


def test_all_ranks_raise_alike():
    t = mc.distribute(np.arange(6), mc.Layout(["x"], mc.create_mesh([("x", SIZE)])))
    with pytest.raises(ShapeError):
        t.reshape(5)
    with pytest.raises(IndexError):
        np.take(t, [6])
    check(np.roll(t, 1), np.roll(np.arange(6), 1))
    if SIZE > 1:
        with agree_mismatch(t.mesh):
            np.take(t, [t.mesh.rank % 2])
