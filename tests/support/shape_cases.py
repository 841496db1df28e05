"""What tests of functions that reshape, join and take share: random tensors in layouts of all kinds, on some ranks."""

from math import prod
from random import Random

import numpy as np

import meshcomm as mc
from support.gradient_cases import on
from support.random_cases import shapes_of
from support.random_tensors import layout_of as layout_of
from support.reference import block_of, same_bits, same_numbers
from support.sampling import sampled

U = "unsharded"
SIZES = [(2,), (3,), (4,), (2, 2), (2, 3), (2, 1, 2)]
DTYPES = ("f8", "?", "i1", "u2", "c8", "f2", "g", "V3", ">i4")
SEEDS = sampled(range(60), 6)


def check(tensor, expected, same=same_bits):
    """Compare the block of this rank with the definition of its layout."""
    assert (tensor.shape, tensor.dtype) == (expected.shape, expected.dtype)
    device = tensor.mesh.rank
    if device is None:
        assert tensor.local is None
    else:
        assert type(tensor.local) is np.ndarray
        assert same(tensor.local, block_of(expected, tensor.layout, device))


def on_a_mesh(seed, program):
    """Run a program with this seed on a mesh over some ranks; the last rank is outside of it."""
    sizes = SIZES[seed % len(SIZES)]

    def on_rank():
        random = Random(seed)
        ranks = random.sample(range(prod(sizes)), prod(sizes))
        program(random, mc.create_mesh(list(zip("xyz", sizes, strict=False)), devices=ranks))

    on(prod(sizes) + 1, on_rank)


def some_ranks(random, size):
    """Return a mesh over some of the ranks of a world, in any order."""
    count = random.choice([size, size, max(1, size - 1)])
    dims = list(zip("xyz", random.choice(shapes_of(count)), strict=False))
    return mc.create_mesh(dims, devices=random.sample(range(size), count))


def check_numbers(tensor, expected):
    """As `check`, but for the bits that arithmetic leaves open."""
    check(tensor, np.asarray(expected), same_numbers)
