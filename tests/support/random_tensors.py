"""Random tensors of integers in layouts of all kinds, the same on all ranks, and their arrays."""

from math import prod
from random import Random

import numpy as np

import meshcomm as mc
from meshcomm import Layout
from support.gradient_cases import on
from support.random_cases import of_kinds, random_layout

SIZES = [(2,), (3,), (2, 2), (2, 3), (2, 1, 2)]


def on_a_mesh(seed, program):
    """Run a program with this seed on the ranks of a mesh: other calls than relayouts are for those only."""
    sizes = SIZES[seed % len(SIZES)]

    def on_rank():
        program(Random(seed), mc.create_mesh(list(zip("xyz", sizes, strict=False))))

    on(prod(sizes), on_rank)


def layout_of(random, mesh, shape):
    return Layout(of_kinds(random, random_layout(random, mesh, len(shape)), shape).axes, mesh)  # on this very mesh


def integers(*shape, seed=0, dtype="f8"):
    """Small integers: sums of their products are exact in any order."""
    return np.random.default_rng([seed, *shape]).integers(-4, 5, shape).astype(dtype)


def tensor_of(random, mesh, shape, seed=0, dtype="f8"):
    whole = integers(*shape, seed=seed, dtype=dtype)
    return mc.distribute(whole, layout_of(random, mesh, shape)), whole


def shape_of(random):
    return tuple(random.randint(0 if random.random() < 0.1 else 1, 11) for _ in range(random.randint(1, 3)))
