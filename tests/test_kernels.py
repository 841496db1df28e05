"""The kernel: the same bytes as its NumPy twin, and no byte outside of the two buffers."""

import numpy as np
import pytest
import reference
from hypothesis import example, given
from hypothesis import strategies as st

from meshcomm._kernels import BoxCopies

LARGEST = 2**63 - 1


def copies(source_size, target_size, itemsize, boxes, ndim=1):
    """Boxes as (source offset, source strides, target offset, target strides, extents)."""

    def column(i):
        return np.array([box[i] for box in boxes], dtype=np.intp)

    def rows(i):
        return np.array([box[i] for box in boxes], dtype=np.intp).reshape(len(boxes), ndim)

    return BoxCopies(source_size, target_size, itemsize, column(0), rows(1), column(2), rows(3), rows(4))


@st.composite
def sides(draw, extents, itemsize, may_overlap):
    """An offset, strides and a size in which boxes of *extents* fit; only what is read may overlap."""
    strides, reach = [0] * len(extents), itemsize
    for axis in draw(st.permutations(range(len(extents)))):
        stride = reach + draw(st.integers(0, 3))
        strides[axis] = draw(st.sampled_from([stride, -stride, *([0, 1] if may_overlap else [])]))
        reach += (extents[axis] - 1) * abs(strides[axis]) if extents[axis] else 0
    before, after = draw(st.integers(0, 5)), draw(st.integers(0, 5))
    offset = before + sum((n - 1) * -stride for n, stride in zip(extents, strides, strict=True) if stride < 0 and n)
    return offset, strides, before + reach + after


@st.composite
def problems(draw):
    ndim, itemsize = draw(st.integers(0, 4)), draw(st.integers(1, 16))
    boxes, sizes = [], [draw(st.integers(0, 8)), 0]
    for _ in range(draw(st.integers(0, 4))):
        extents = draw(st.lists(st.integers(0, 4), min_size=ndim, max_size=ndim))
        source, source_strides, source_size = draw(sides(extents, itemsize, may_overlap=True))
        target, target_strides, target_size = draw(sides(extents, itemsize, may_overlap=False))
        boxes.append((source, source_strides, sizes[1] + target, target_strides, extents))
        sizes = [max(sizes[0], source_size), sizes[1] + target_size]
    return (*sizes, itemsize, boxes, ndim)


@given(problems())
@example((8, 8, 2, [(6, [-2], 0, [2], [4])], 1))
@example((2, 8, 2, [(0, [0], 0, [2], [4])], 1))
@example((0, 0, 3, [(0, [5], 0, [5], [0])], 1))
def test_copies_what_its_twin_copies(problem):
    source_size, target_size, itemsize, boxes, _ = problem
    source = np.random.default_rng(1).integers(0, 256, source_size, np.uint8)
    target = np.full(target_size, 0xEE, np.uint8)
    expected = target.copy()
    columns = list(zip(*boxes, strict=True)) or [()] * 5
    source_offsets, source_strides, target_offsets, target_strides, extents = columns
    reference.box_copies(
        source, expected, itemsize, source_offsets, source_strides, target_offsets, target_strides, extents
    )
    prepared = copies(*problem)
    assert (prepared.source_size, prepared.target_size) == (source_size, target_size)
    for _ in range(2):  # checked once, run any number of times
        prepared.run(source, target)
        assert (target == expected).all()
    if prepared.single_runs:
        assert all(0 in shape or _is_one_run(itemsize, shape, s, t) for _, s, _, t, shape in boxes)


def _is_one_run(itemsize, extents, *sides):
    for axis in reversed(range(len(extents))):
        if extents[axis] > 1:
            if any(strides[axis] != itemsize for strides in sides):
                return False
            itemsize *= extents[axis]
    return True


@pytest.mark.parametrize("itemsize", range(1, 17))
def test_unaligned_items_of_every_size(itemsize):
    source = np.arange(7 * (itemsize + 3) + 1, dtype=np.uint8)
    target = np.zeros(7 * (itemsize + 1) + 1, np.uint8)
    expected = target.copy()
    box = (1, [itemsize + 3], 1, [itemsize + 1], [7])
    reference.box_copies(source, expected, itemsize, *([part] for part in box))
    copies(len(source), len(target), itemsize, [box]).run(source, target)
    assert (target == expected).all()


# Each box reaches one byte, or very far, outside of 12 bytes on one side.
OUTSIDE = {
    "after the end": (9, [1], [4], 1),
    "last byte of the item": (9, [4], [1], 4),
    "before the start": (2, [-1], [4], 1),
    "far before the start": (0, [-LARGEST - 1], [2], 1),
    "negative offset": (-1, [1], [1], 1),
    "most negative offset": (-LARGEST - 1, [1], [1], 1),
    "offset beyond": (13, [1], [1], 1),
    "largest offset": (LARGEST, [1], [1], 1),
    "huge stride": (0, [LARGEST], [2], 1),
    "huge stride and extent": (0, [LARGEST], [LARGEST], 1),
    "product wraps to zero": (0, [2**32], [2**32 + 1], 1),
    "huge extent": (0, [1], [LARGEST], 1),
    "huge item": (0, [1], [1], LARGEST),
}


@pytest.mark.parametrize("side", ["source", "target"])
@pytest.mark.parametrize("name", OUTSIDE)
def test_boxes_outside_are_refused(side, name):
    offset, strides, extents, itemsize = OUTSIDE[name]
    inside = (0, [0])
    box = (offset, strides, *inside, extents) if side == "source" else (*inside, offset, strides, extents)
    sizes = (12, LARGEST) if side == "source" else (LARGEST, 12)
    with pytest.raises(ValueError, match=rf"box 0 .* outside of the 12 bytes of the {side}"):
        copies(*sizes, itemsize, [box])


def test_two_axes_that_fit_alone_are_refused_together():
    with pytest.raises(ValueError, match="outside of the 12 bytes of the source"):
        copies(12, 99, 1, [(0, [7, 6], 0, [2, 1], [2, 2])], ndim=2)
    with pytest.raises(ValueError, match="outside of the 12 bytes of the source"):
        copies(12, 99, 1, [(6, [-6, -1], 0, [2, 1], [2, 2])], ndim=2)
    copies(12, 99, 1, [(7, [-6, -1], 0, [2, 1], [2, 2])], ndim=2)


def test_the_second_box_is_checked_as_well():
    good, bad = (0, [1], 0, [1], [4]), (9, [1], 0, [1], [4])
    with pytest.raises(ValueError, match="box 1 at offset 9"):
        copies(12, 12, 1, [good, bad])


def test_empty_boxes_may_lie_anywhere():
    target = np.full(2, 7, np.uint8)
    prepared = copies(0, 2, 1, [(99, [5, 5], -99, [5, 5], [3, 0])], ndim=2)
    prepared.run(b"", target)
    assert prepared.count == 0
    assert target.tolist() == [7, 7]


def test_negative_extents_and_sizes_are_refused():
    with pytest.raises(ValueError, match="an extent cannot be negative: -1 on axis 0"):
        copies(12, 12, 1, [(0, [1], 0, [1], [-1])])
    for sizes in [(-1, 12, 1), (12, -1, 1), (12, 12, -1)]:
        with pytest.raises(ValueError, match="sizes cannot be negative"):
            copies(*sizes, [])


def test_arguments_of_different_lengths_are_refused():
    one, two = np.zeros(1, np.intp), np.zeros(2, np.intp)
    row, rows, wide = np.zeros((1, 1), np.intp), np.zeros((2, 1), np.intp), np.zeros((1, 2), np.intp)
    same = [one, row, one, row, row]
    for place, wrong in [(0, two), (1, rows), (2, two), (3, rows), (4, rows)]:
        with pytest.raises(ValueError, match="same number of boxes"):
            BoxCopies(1, 1, 1, *same[:place], wrong, *same[place + 1 :])
    for place in (1, 3, 4):
        with pytest.raises(ValueError, match="same number of axes"):
            BoxCopies(1, 1, 1, *same[:place], wide, *same[place + 1 :])
    with pytest.raises(TypeError):
        BoxCopies(1, 1, 1, None, row, one, row, row)
    with pytest.raises(ValueError, match="dtype mismatch"):
        BoxCopies(1, 1, 1, np.zeros(1), row, one, row, row)


def test_run_takes_buffers_of_the_checked_sizes_only():
    prepared = copies(4, 4, 1, [(0, [1], 0, [1], [4])])
    four = np.arange(4, dtype=np.uint8)
    for source, target in [(4, 3), (4, 5), (3, 4), (5, 4), (0, 4), (4, 0)]:
        with pytest.raises(ValueError, match="checked against 4 and 4 bytes, not against"):
            prepared.run(np.zeros(source, np.uint8), np.zeros(target, np.uint8))
    with pytest.raises((ValueError, BufferError)):
        prepared.run(four, b"0000")
    with pytest.raises((ValueError, BufferError)):
        prepared.run(np.arange(8, dtype=np.uint8)[::2], four.copy())
    with pytest.raises(TypeError):
        prepared.run(four, None)
    target = bytearray(4)
    prepared.run(four.view(np.int32), target)  # any dtype: bytes are bytes
    assert bytes(target) == bytes(four)
