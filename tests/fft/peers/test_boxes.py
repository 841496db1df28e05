"""Transforms from any boxes to any boxes, as heFFTe's tests have them: box by box, against SciPy.

Those tests cut an array into a grid of boxes, give the boxes of input and output to the ranks in different orders, and
transform on 1, 2, 4, 6, 8 and 12 ranks, complex to complex, and real to complex along each of the axes. Source:
test/test_fft3d_np*.cpp and test_fft3d_r2c.cpp of github.com/icl-utk-edu/heffte. The cases here are our own: besides
grids of even boxes, also some with boundaries anywhere, and other grids for the output.
"""

from itertools import accumulate, pairwise, product
from math import prod
from random import Random

import numpy as np
import pytest

pytest.importorskip("scipy.fft")

import scipy.fft

import meshcomm as mc
from support.fft_cases import array_of
from support.sampling import sampled
from support.scipy_fft import close_to

GRIDS = {
    1: [(1, 1, 1)],
    2: [(2, 1, 1), (1, 2, 1), (1, 1, 2)],
    4: [(2, 2, 1), (1, 2, 2), (4, 1, 1)],
    6: [(2, 3, 1), (1, 2, 3), (3, 1, 2)],
    8: [(2, 2, 2), (4, 1, 2), (1, 8, 1)],
    12: [(3, 2, 2), (2, 3, 2), (2, 2, 3), (1, 12, 1)],
}
SHAPES = {1: (6, 7, 5), 2: (9, 10, 8), 4: (12, 11, 10), 6: (13, 12, 19), 8: (17, 16, 14), 12: (20, 19, 21)}
NORMS = ["backward", "ortho", "forward"]


def even(n, boxes):
    """Boxes of an axis of *n* elements, the larger ones first."""
    return [len(box) for box in np.array_split(np.arange(n), boxes)]


def anywhere(random):
    """A function that cuts at random boundaries: boxes may be empty."""

    def cut(n, boxes):
        boundaries = [0, *sorted(random.choices(range(n + 1), k=boxes - 1)), n]
        return [b - a for a, b in pairwise(boundaries)]

    return cut


def boxes_of(shape, grid, cut, turned):
    """A layout of boxes in a *grid*, of which rank r has that of number r + *turned*, and the slices of each rank."""
    ranks = prod(grid)
    lengths = [cut(n, count) for n, count in zip(shape, grid, strict=True)]
    starts = [list(accumulate(axis, initial=0)) for axis in lengths]
    numbers = list(np.ndindex(*grid))
    mesh = mc.Mesh([(number - turned) % ranks for number in range(ranks)], list(zip("xyz", grid, strict=True)))
    shapes = [tuple(lengths[axis][i] for axis, i in enumerate(number)) for number in numbers]
    slices = {}
    for device, number in enumerate(numbers):
        box = tuple(slice(starts[axis][i], starts[axis][i] + lengths[axis][i]) for axis, i in enumerate(number))
        slices[mesh.ranks[device]] = box
    return mc.Layout.from_blocks(shapes, list("xyz"), mesh), slices


def check(world, case, shape, kind, cut):
    """Transform there and back between boxes, and compare the box of each rank."""
    grid, other, axes, norm, dtype = case
    array = array_of(shape, dtype)
    wanted = getattr(scipy.fft, kind)(array, axes=axes, norm=norm)
    source, at = boxes_of(shape, grid, cut, 2)
    target, to = boxes_of(wanted.shape, other, cut, 3)
    limit, s = 40 * np.finfo(dtype).eps, [shape[a] for a in axes]

    def program():
        t = mc.from_local(np.ascontiguousarray(array[at[world.rank]]), source)
        spectrum = getattr(mc.fft, kind)(t, axes=axes, norm=norm, layout=target)
        assert spectrum.layout == target
        expected = wanted[to[world.rank]]
        assert spectrum.local.shape == expected.shape
        assert np.allclose(spectrum.local, expected, rtol=0, atol=limit * np.abs(wanted).max())
        assert close_to(spectrum.to_numpy(), wanted)
        back = getattr(mc.fft, f"i{kind}")(spectrum, s=s, axes=axes, norm=norm, layout=source)
        assert back.layout == source
        assert np.allclose(back.local, array[at[world.rank]], rtol=0, atol=limit)

    world.run(program)


SLOW = [pytest.param(n, marks=pytest.mark.slow) for n in (4, 6, 8, 12)]


@pytest.mark.parametrize("kind", ["fftn", "rfftn"])
@pytest.mark.parametrize("ranks", [1, 2, *SLOW])
def test_boxes_to_boxes(ranks, kind):
    grids, random = GRIDS[ranks], Random(ranks)
    with mc.simulate(ranks) as world:
        for (number, grid), last in sampled(product(enumerate(grids), range(3)), 6):
            axes = (*(axis for axis in range(3) if axis != last), last)
            dtype = ["f4", "f8"][last % 2] if kind == "rfftn" else ["c8", "c16"][last % 2]
            other = grid if last else grids[(number + 1) % len(grids)]
            cut = even if (number + last) % 3 else anywhere(random)
            check(world, (grid, other, axes, NORMS[last], dtype), SHAPES[ranks], kind, cut)
