"""What tests of sorts, quantiles and histograms share."""

from math import prod
from random import Random

import numpy as np

import meshcomm as mc
from support import operands
from support.gradient_cases import on
from support.random_tensors import SIZES, layout_of

DTYPES = ["f8", "f8", "f4", "f2", "g", "c16", "c8", "i8", "i4", "i2", "u1", "u8", "?", ">f8", ">i4", "M8[s]", "U2"]

any_layout = layout_of


def on_a_mesh(seed, program):
    """Run a program with this seed on the ranks of a mesh, and on one rank that is outside of it."""
    sizes = SIZES[seed % len(SIZES)]

    def on_rank():
        dims = list(zip("xyz", sizes, strict=False))
        program(Random(seed), mc.create_mesh(dims, devices=list(range(prod(sizes)))))

    on(prod(sizes) + 1, on_rank)


def any_shape(random, most=3):
    """Up to so many axes; some have one element, or none, so that what is left is one line."""
    shape = [random.choice([1, 1, random.randint(0, 3), *(random.randint(1, 12) for _ in range(5))])]
    shape += [
        random.choice([1, random.randint(1, 9), random.randint(1, 9)]) for _ in range(random.randint(0, most - 1))
    ]
    if random.random() < 0.3:
        shape[random.randrange(len(shape))] = random.randint(20, 200)
    random.shuffle(shape)
    return tuple(shape)


def values(shape, dtype, seed=0, few=False):
    """Random values; *few* different ones; among numbers with a fraction there are NaN, infinities and both zeros."""
    generator, kind = np.random.default_rng(seed), np.dtype(dtype)
    found = generator.integers(0, 4 if few else 100, shape).astype("i8")
    if kind.kind in "fc":
        made = (found - (2 if few else 50)).astype(kind) * generator.choice([-1, 1], shape).astype(kind)
        if kind.kind == "c":
            made += (1j * generator.integers(-2, 2, shape)).astype(kind)
        special = generator.random(shape) < 0.1 * (generator.random() < 0.5)
        made[special] = generator.choice([np.nan, np.inf, -np.inf, -0.0], int(special.sum())).astype(kind)
        return made
    return found.astype(kind)


def check(tensor, expected, bits=False):
    """Compare the block of this rank, if it has one, with the definition of its layout."""

    def exact(local, block):
        np.testing.assert_array_equal(local, block, strict=True)
        if bits and block.dtype.kind in "fc" and block.dtype.itemsize in (2, 4, 8):
            np.testing.assert_array_equal(np.signbit(local.real), np.signbit(block.real))

    operands.check(tensor, expected, exact=exact)
