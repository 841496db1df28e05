"""Random halos, equal on all ranks, and their expected blocks: cut from the global array by NumPy alone."""

from typing import NamedTuple

import numpy as np

import meshcomm as mc
from meshcomm import Layout
from support.random_cases import random_layout
from support.reference import random_bits, same_bits, same_numbers

NUMPY_MODES = {"periodic": "wrap", "nearest": "edge", "reflect": "symmetric", "mirror": "reflect"}
"""numpy.pad's names for boundaries that repeat elements."""
DTYPES = ("f8", "f4", "?", "i1", "u2", "c16", "f2", "g", ">i4", "M8[s]")


class Case(NamedTuple):
    tensor: mc.DTensor
    whole: np.ndarray
    width: list
    boundary: list
    corners: bool


def random_case(random, mesh, dtype=None, most=9):
    """A tensor in any layout that is not Cyclic, and any halo of it."""
    ndim = random.choice([1, 1, 2, 2, 2, 3])
    shape = tuple(random.randint(1, most if ndim < 3 else 5) for _ in range(ndim))
    layout = with_cuts(random, random_layout(random, mesh, ndim), shape, mesh)
    array = random_bits(shape, dtype or random.choice(DTYPES), random.randrange(99))
    width = [(random.choice([0, 1, 1, 2, 3, 11]), random.choice([0, 1, 1, 2, 3, 11])) for _ in shape]
    boundary = [random_boundary(random, array.dtype) for _ in shape]
    return Case(mc.distribute(array, layout), array, width, boundary, random.random() < 0.7)


def random_boundary(random, dtype):
    names = ["none", "none", "periodic", "periodic", "nearest", "reflect", "mirror"]
    return random.choice(names if dtype.kind == "M" else [*names, 0, 1])


def with_cuts(random, layout, shape, mesh):
    """The layout, on this very mesh, with chosen boundaries along some axes."""
    specs = []
    for axis, (names, n) in enumerate(zip(layout.axes, shape, strict=True)):
        if names and random.random() < 0.4:
            inner = sorted(random.randint(0, n) for _ in range(layout.num_shards(axis) - 1))
            specs.append(mc.Cuts(names, (0, *inner, n)))
        else:
            specs.append(names)
    return Layout(specs, mesh)


def expected(case, device):
    """The block of a device with its ghosts, and a mask of the ghosts that are outside of it along several axes."""
    array, outside_count = case.whole, np.zeros((), int)
    slices = []
    box = case.tensor.layout.block_slices(array.shape, device)
    for axis, (width, boundary, span) in enumerate(zip(case.width, case.boundary, box, strict=True)):
        n, pads = case.whole.shape[axis], [(0, 0)] * array.ndim
        pads[axis] = width
        start, stop = span.start - width[0], span.stop + width[1]
        if boundary == "none":
            start, stop = max(0, start), min(n, stop)
            shift = 0
        else:
            mode = {"mode": NUMPY_MODES[boundary]} if isinstance(boundary, str) else {"constant_values": boundary}
            array, shift = np.pad(array, pads, **mode), width[0]
        slices.append(slice(start + shift, stop + shift))
        ghost = [not span.start <= i < span.stop for i in range(start, stop)]
        outside_count = outside_count[..., None] + np.array(ghost, int)
    return array[tuple(slices)], outside_count > 1


def check_halo(case, halo):
    """Compare the local array of a halo with its definition."""
    device = case.tensor.mesh.rank
    if device is None:
        assert halo.local is None
        assert halo.inner is None
        return
    expected_block, corners = expected(case, device)
    local = halo.local.copy()
    assert local.shape == expected_block.shape
    if not case.corners:
        local[corners] = expected_block[corners]
    equal = same_numbers if local.dtype == np.longdouble else same_bits  # NumPy copies its padding or not
    assert equal(local, expected_block), (case, local, expected_block)
    box = case.tensor.layout.block_slices(case.whole.shape, device)
    assert equal(np.ascontiguousarray(halo.inner), np.ascontiguousarray(case.whole[box]))
    assert np.shares_memory(halo.inner, halo.local) or not halo.inner.size


def made(case):
    return mc.halo(case.tensor, case.width, case.boundary, corners=case.corners)


def dot(a, b):
    """The inner product of two blocks, or 0 if there are none."""
    return 0 if a is None else float((a.astype("f8") * b.astype("f8")).sum())
