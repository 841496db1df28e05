"""Random tensors in layouts of all kinds on simulated ranks, and comparisons of their blocks with global arrays."""

from math import prod
from random import Random

import numpy as np

import meshcomm as mc
from support.random_cases import of_kinds, random_layout, shapes_of
from support.reference import block_of, same_bits

SIZES = [(2,), (3,), (4,), (2, 2), (2, 3), (2, 1, 2)]

# -- ranks ------------------------------------------------------------------------------------------------------------


def on(size, program, *args):
    """Return the results of a program on each of *size* simulated ranks."""
    with mc.simulate(size) as world:
        return world.run(program, *args)


def mesh_of(*sizes, devices=None):
    return mc.create_mesh(list(zip("xyz", sizes, strict=False)), devices=devices)


def on_a_mesh(seed, program):
    """Run ``program(random, mesh)`` on the ranks of a mesh; *seed* determines both arguments."""
    sizes = SIZES[seed % len(SIZES)]
    on(prod(sizes), lambda: program(Random(seed), mesh_of(*sizes)))


def on_some_ranks(seed, program):
    """Run ``program(random, mesh)``; the mesh has its ranks in any order, and the last rank is outside of it."""
    sizes = SIZES[seed % len(SIZES)]

    def on_rank():
        random = Random(seed)
        program(random, mesh_of(*sizes, devices=random.sample(range(prod(sizes)), prod(sizes))))

    on(prod(sizes) + 1, on_rank)


def some_ranks(random, size):
    """Return a mesh over some of the ranks of a world, in any order."""
    count = random.choice([size, size, max(1, size - 1)])
    return mesh_of(*random.choice(shapes_of(count)), devices=random.sample(range(size), count))


# -- tensors ----------------------------------------------------------------------------------------------------------


def layout_of(random, mesh, shape):
    return mc.Layout(of_kinds(random, random_layout(random, mesh, len(shape)), shape).axes, mesh)  # on this very mesh


def shape_of(random):
    return tuple(random.randint(0 if random.random() < 0.1 else 1, 11) for _ in range(random.randint(1, 3)))


def integers(*shape, seed=0, dtype="f8"):
    """Small integers: sums of their products are exact in any order."""
    return np.random.default_rng([seed, *shape]).integers(-4, 5, shape).astype(dtype)


def tensor_of(random, mesh, shape, seed=0, dtype="f8"):
    """Return a tensor of small integers, and its array."""
    array = integers(*shape, seed=seed, dtype=dtype)
    return mc.distribute(array, layout_of(random, mesh, shape)), array


def numbers(*shape, seed=0, dtype="f8"):
    return np.asarray(np.random.default_rng([seed, *shape]).normal(size=shape)).astype(dtype)


def dot(a, b):
    """The inner product of global arrays: replicas count once."""
    return float((a * b).sum())


# -- comparison -------------------------------------------------------------------------------------------------------


def equal(result, expected):
    np.testing.assert_array_equal(result, expected, strict=True)


def check(tensor, expected, same=equal):
    """Compare the block of this rank with its definition. *same* raises or returns False if they differ."""
    expected = np.asarray(expected)
    assert (tensor.shape, tensor.dtype) == (expected.shape, expected.dtype)
    device = tensor.mesh.rank
    if device is None:
        assert tensor.local is None
        return
    assert type(tensor.local) is np.ndarray
    assert tensor.local.flags.c_contiguous or tensor._view is not None
    block = block_of(expected, tensor.layout, device)
    assert same(tensor.local, block) is not False, f"{tensor.local} is not {block}"


def close(tensor, expected, rtol=1e-12):
    """As `check`, up to the order of sums."""
    check(tensor, expected, lambda result, block: np.testing.assert_allclose(result, block, rtol=rtol, strict=True))


def is_right(tensor, array, layout):
    """Return whether a tensor has this layout, and on this rank the bits of the array."""
    device, block = layout.mesh.rank, tensor.local
    if (tensor.shape, tensor.dtype, tensor.layout) != (array.shape, array.dtype, layout):
        return False
    if device is None:
        return block is None
    return block.flags.c_contiguous and same_bits(block, block_of(array, layout, device))
