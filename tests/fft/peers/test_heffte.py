"""The boxes of heFFTe's own tests, on the numbers of ranks that they are for, against SciPy.

tests/data/heffte_boxes.json has them: the grids into which heFFTe's tests cut an array for input and output, by how
many the boxes are shifted from rank to rank, sizes, types, and which axis a real transform halves. heFFTe's first axis
is the fastest: here it is the last one. Its boxes are those of `split_world`.
"""

import json
from itertools import product
from math import prod
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("scipy.fft")

import scipy.fft

import meshcomm as mc
from support.fft_cases import array_of

FOUND = json.loads((Path(__file__).parents[2] / "data" / "heffte_boxes.json").read_text())
SCALES = ["backward", "ortho", "forward"]
"""heFFTe scales the forward transforms of one test after the other by none, symmetric and full."""


def split_world(size, grid):
    """heFFTe's boxes, each (low, high) with both ends, in its order of axes; the first axis is the fastest."""

    def start(axis, i):
        return i * (size[axis] // grid[axis]) + min(i, size[axis] % grid[axis])

    numbers = [tuple(reversed(number)) for number in np.ndindex(*reversed(grid))]
    return [
        (tuple(start(a, i) for a, i in enumerate(number)), tuple(start(a, i + 1) - 1 for a, i in enumerate(number)))
        for number in numbers
    ]


def layout_of(size, grid, shift):
    """The layout in which rank r has heFFTe's box of number r + *shift*, and the slices of that box for each rank."""
    count = prod(grid)
    mesh = mc.Mesh([(n - shift) % count for n in range(count)], list(zip("zyx", reversed(grid), strict=True)))
    boxes = split_world(size, grid)
    slices = [
        tuple(slice(low, high + 1) for low, high in zip(*map(reversed, boxes[(rank + shift) % count]), strict=True))
        for rank in range(count)
    ]
    return mc.Layout(list("zyx"), mesh), slices


def halved(size, dim):
    return [n // 2 + 1 if axis == dim else n for axis, n in enumerate(size)]


def block(array, slices, rank, layout):
    """The tensor of which each rank passes its box; ranks beyond the boxes have none."""
    if rank >= len(slices):
        return mc.empty(array.shape, array.dtype, layout)
    return mc.from_local(np.ascontiguousarray(array[slices[rank]]), layout)


def transforms(case):
    """Yield the transform, its arguments, and the grids of input and output of each test of a case."""
    outputs = case.get("output_grids", case["grids"])
    for (number, grid), dtype in product(enumerate(case["grids"]), case["types"]):
        output = outputs[number % len(outputs)]
        if case["kind"] == "r2r":
            for name in FOUND["cosines and sines of 1 to 24"]:
                kind, variant = name.split()
                yield kind, {"type": int(variant)}, grid, output, dtype
        elif case["kind"] == "r2c":
            for dim in case["dims"]:
                axes = (*(axis for axis in range(3) if axis != 2 - dim), 2 - dim)
                yield "rfftn", {"axes": axes, "norm": SCALES[number % 3]}, grid, output, dtype
        else:
            yield "fftn", {"norm": SCALES[number % 3]}, grid, output, dtype


def is_close(found, box, whole):
    """Whether the error of a box is that of rounding, relative to the largest element of the whole array."""
    limit = 60 * np.finfo(found.dtype).eps * abs(whole).max()
    return (found.shape, found.dtype) == (box.shape, box.dtype) and np.allclose(found, box, rtol=0, atol=limit)


def check(world, case, kind, arguments, grids, dtype):
    """Transform from heFFTe's boxes to heFFTe's boxes, and back, and compare the box of each rank."""
    size, (shift, other) = case["size"], case["shifts"]
    shape = tuple(reversed(size))
    array = np.arange(1, 25).reshape(shape).astype(dtype) if case["kind"] == "r2r" else array_of(shape, dtype)
    after = halved(size, 2 - arguments["axes"][-1]) if kind == "rfftn" else size
    source, at = layout_of(size, grids[0], shift)
    target, to = layout_of(after, grids[1], other)
    wanted = getattr(scipy.fft, kind)(array, **arguments)
    lengths = {"s": [shape[a] for a in arguments["axes"]]} if kind == "rfftn" else {}

    def program():
        rank = world.rank
        t = block(array, at, rank, source)
        spectrum = getattr(mc.fft, kind)(t, **arguments, layout=target)
        assert spectrum.layout == target
        if rank < len(to):
            assert is_close(spectrum.local, wanted[to[rank]], wanted)
        back = getattr(mc.fft, f"i{kind}")(spectrum, **lengths, **arguments, layout=source)
        if rank < len(at):
            assert is_close(back.local, array[at[rank]].astype(back.dtype), array)
        if case["kind"].startswith("batch"):
            plan = mc.fft.plan(shape, dtype, source, target, kind=kind, **arguments)
            fields = plan.forward([t * k for k in range(5)])
            assert all(is_close(field.local, k * wanted[to[rank]], k * wanted) for k, field in enumerate(fields))

    if case["kind"] == "r2r":
        known = FOUND["cosines and sines of 1 to 24"][f"{kind} {arguments['type']}"]
        assert np.allclose(wanted.ravel(), known, rtol=0, atol=60 * np.finfo(dtype).eps * 2400)
    world.run(program)


SLOW = [pytest.param(n, marks=pytest.mark.slow) for n in (4, 6, 8, 12)]


@pytest.mark.parametrize("ranks", [1, 2, *SLOW])
def test_boxes_of_heffte(ranks):
    count = 0
    with mc.simulate(ranks) as world:
        for case in FOUND["cases"]:
            if ranks == max(prod(grid) for grid in (*case["grids"], *case.get("output_grids", ()))):
                for kind, arguments, grid, output, dtype in transforms(case):
                    check(world, case, kind, arguments, (grid, output), dtype)
                    count += 1
    assert count >= 14
