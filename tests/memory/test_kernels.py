"""The kernel: the same bytes as its NumPy twin, and no byte outside of the regions."""

from math import prod

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from meshcomm._kernels import BoxCopies, Packing
from support import reference

LARGEST = 2**63 - 1


def column(values):
    return np.array(list(values), dtype=np.intp)


def matrix(boxes, i, ndim):
    return np.array([box[i] for box in boxes], dtype=np.intp).reshape(len(boxes), ndim)


MANY = 2**62
"""Of so many processes at once, any list exceeds the caches."""


def copies(source_sizes, target_sizes, itemsize, boxes, ndim=1, at_once=1):
    """Boxes as (source, offset, strides, target, offset, strides, extents)."""
    return BoxCopies(
        source_sizes,
        target_sizes,
        itemsize,
        column(box[0] for box in boxes),
        column(box[1] for box in boxes),
        matrix(boxes, 2, ndim),
        column(box[3] for box in boxes),
        column(box[4] for box in boxes),
        matrix(boxes, 5, ndim),
        matrix(boxes, 6, ndim),
        at_once,
    )


def packing(sizes, itemsize, boxes, ndim=1):
    """Boxes as (region, offset, strides, extents)."""
    return Packing(
        sizes,
        itemsize,
        column(box[0] for box in boxes),
        column(box[1] for box in boxes),
        matrix(boxes, 2, ndim),
        matrix(boxes, 3, ndim),
    )


def noise(size, seed=1):
    return np.random.default_rng(seed).integers(0, 256, size, np.uint8)


def misaligned(size, by):
    """Zeros at an address that is *by* more than a multiple of 64, with nothing of ours before and after them."""
    memory = np.zeros(size + 256, np.uint8)
    start = 64 + -memory.ctypes.data % 64 + by
    return memory[start : start + size]


def clean_around(array):
    """Whether nothing was written before and after what `misaligned` returned."""
    return np.count_nonzero(array.base) == np.count_nonzero(array)


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
    """Boxes between a few regions; each writes to bytes of its own."""
    ndim, itemsize = draw(st.integers(0, 4)), draw(st.integers(1, 16))
    boxes, source_sizes, target_sizes = (
        [],
        draw(st.lists(st.integers(0, 8), max_size=3)),
        [0] * draw(st.integers(1, 3)),
    )
    source_sizes = source_sizes or [0]
    for _ in range(draw(st.integers(0, 4))):
        extents = draw(st.lists(st.integers(0, 4), min_size=ndim, max_size=ndim))
        source, target = (draw(st.integers(0, len(sizes) - 1)) for sizes in (source_sizes, target_sizes))
        source_offset, source_strides, source_size = draw(sides(extents, itemsize, may_overlap=True))
        target_offset, target_strides, target_size = draw(sides(extents, itemsize, may_overlap=False))
        target_offset += target_sizes[target]
        boxes.append((source, source_offset, source_strides, target, target_offset, target_strides, extents))
        source_sizes[source] = max(source_sizes[source], source_size)
        target_sizes[target] += target_size
    return source_sizes, target_sizes, itemsize, boxes, ndim


def check_copies(source_sizes, target_sizes, itemsize, boxes, ndim, alignment=0):
    sources = [misaligned(size, alignment * 3 % 64) for size in source_sizes]
    for i, source in enumerate(sources):
        source[:] = noise(len(source), i)
    targets = [misaligned(size, alignment) for size in target_sizes]
    for target in targets:
        target[:] = 0xEE
    expected = [target.copy() for target in targets]
    reference.box_copies(sources, expected, itemsize, boxes)
    for at_once in (1, MANY):
        prepared = copies(source_sizes, target_sizes, itemsize, boxes, ndim, at_once)
        for _ in range(2):  # checked once, run any number of times
            for target in targets:
                target[:] = 0xEE
            prepared.run(sources, targets)
            for target, right in zip(targets, expected, strict=True):
                assert (target == right).all()
                assert clean_around(target)
        assert prepared.count == sum(0 not in box[6] for box in boxes)


@given(problems(), st.integers(0, 63))
@example(([8], [8], 2, [(0, 6, [-2], 0, 0, [2], [4])], 1), 1)
@example(([2], [8], 2, [(0, 0, [0], 0, 0, [2], [4])], 1), 0)
@example(([0], [0], 3, [(0, 0, [5], 0, 0, [5], [0])], 1), 0)
def test_copies_what_its_twin_copies(problem, alignment):
    check_copies(*problem, alignment)


@st.composite
def packings(draw):
    ndim, itemsize = draw(st.integers(0, 4)), draw(st.integers(1, 16))
    boxes, sizes = [], [0] * draw(st.integers(1, 3))
    for _ in range(draw(st.integers(0, 4))):
        extents = draw(st.lists(st.integers(0, 4), min_size=ndim, max_size=ndim))
        region = draw(st.integers(0, len(sizes) - 1))
        offset, strides, size = draw(sides(extents, itemsize, may_overlap=False))
        boxes.append((region, sizes[region] + offset, strides, extents))
        sizes[region] += size
    return sizes, itemsize, boxes, ndim


@given(packings(), st.integers(1, 5))
@example(([40], 2, [(0, 0, [8, 2], [5, 3])], 2), 4)
def test_packs_and_unpacks_what_its_twin_packs(problem, rounds):
    sizes, itemsize, boxes, _ = problem
    prepared = packing(*problem)
    regions = [noise(size, i) for i, size in enumerate(sizes)]
    back = [np.full(size, 0xEE, np.uint8) for size in sizes]
    assert prepared.nbytes == sum(prod(box[3]) * itemsize for box in boxes)
    assert prepared.count == sum(0 not in box[3] for box in boxes)
    for number in range(rounds):
        expected = reference.packed(regions, itemsize, boxes, number, rounds)
        assert prepared.round_bytes(number, rounds) == len(expected)
        buffer = np.full(len(expected) + 3, 0xEE, np.uint8)
        prepared.pack(regions, buffer, number, rounds)
        assert (buffer[: len(expected)] == expected).all()
        assert (buffer[len(expected) :] == 0xEE).all()
        prepared.unpack(buffer, back, number, rounds)
    for i, (region, filled) in enumerate(zip(regions, back, strict=True)):
        touched = np.zeros(len(region), bool)
        for _, offset, strides, extents in (box for box in boxes if box[0] == i):
            for s in reference.items_of(offset, strides, extents):
                touched[s : s + itemsize] = True
        assert (filled == np.where(touched, region, 0xEE)).all()


# Larger boxes, of the shapes that the kernel has ways of its own for: compared with what NumPy copies.

LENGTHS = st.sampled_from([1, 2, 3, 4, 5, 7, 8, 16, 17, 33, 64, 100, 130, 300, 1000])
ITEMS = st.sampled_from([1, 2, 3, 4, 8, 12, 16, 24, 60, 100, 300, 3000])


@st.composite
def shapes(draw, itemsize):
    """Shapes of up to 4 axes and of about 64 KiB at most."""
    room, shape = max(1, 2**16 // itemsize), []
    for _ in range(draw(st.integers(1, 4))):
        shape.append(min(draw(LENGTHS), room))
        room = max(1, room // shape[-1])
    return draw(st.permutations(shape))


@st.composite
def views(draw):
    """Items of a source array as a view with its axes permuted, cut and reversed, and a view to copy them to."""
    itemsize = draw(ITEMS)
    shape = draw(shapes(itemsize))
    steps = [draw(st.sampled_from([1, 1, 1, 2, -1])) for _ in shape]
    padded = [(n + draw(st.sampled_from([0, 0, 1, 3]))) * abs(step) for n, step in zip(shape, steps, strict=True)]
    source = noise(prod(padded) * itemsize)
    view = source.reshape(*padded, itemsize)[tuple(slice(None, None, step) for step in steps)]
    view = view[tuple(slice(n) for n in shape)].transpose(*draw(st.permutations(range(len(shape)))), len(shape))
    wide = [n + draw(st.sampled_from([0, 0, 2])) for n in view.shape[:-1]]
    target = misaligned(prod(wide) * itemsize, draw(st.integers(0, 63)))
    into = target.reshape(*wide, itemsize)[tuple(slice(n) for n in view.shape)]
    return itemsize, source, view, target, into


def box_of(region, array, view):
    """The region, offset and strides of a view of items in an array."""
    return region, view.ctypes.data - array.ctypes.data, view.strides[:-1]


@given(views())
def test_copies_what_numpy_copies_from_view_to_view(case):
    itemsize, source, view, target, into = case
    box = (*box_of(0, source, view), *box_of(0, target, into), view.shape[:-1])
    target[:] = 0xEE
    expected = target.copy()
    into[...] = view
    expected, target[:] = target.copy(), expected
    copies([source.nbytes], [target.nbytes], itemsize, [box], view.ndim - 1).run([source], [target])
    assert (target == expected).all()
    assert clean_around(target)


@given(views(), st.integers(1, 7))
def test_packs_views_in_rounds(case, rounds):
    itemsize, source, view, _, _ = case
    prepared = packing([source.nbytes], itemsize, [(*box_of(0, source, view), view.shape[:-1])], view.ndim - 1)
    items, back = np.ascontiguousarray(view).reshape(-1, itemsize), np.zeros_like(source)
    for number, expected in enumerate(np.array_split(items, rounds)):
        packed = misaligned(expected.nbytes + 5, number)
        prepared.pack([source], packed, number, rounds)
        assert (packed[: expected.nbytes] == expected.ravel()).all()
        assert not packed[expected.nbytes :].any()
        assert clean_around(packed)
        prepared.unpack(packed, [back], number, rounds)
    touched = np.zeros(len(source), bool)
    np.lib.stride_tricks.as_strided(touched[box_of(0, source, view)[1] :], view.shape, view.strides)[...] = True
    assert (back == np.where(touched, source, 0)).all()


@st.composite
def cut_arrays(draw):
    """An array of items, and the blocks into which an axis is cut."""
    itemsize = draw(ITEMS)
    shape = draw(shapes(itemsize))
    whole = noise(prod(shape) * itemsize).reshape(*shape, itemsize)
    axis, count = draw(st.integers(0, len(shape) - 1)), draw(st.sampled_from([1, 2, 3, 4, 5, 8, 9, 70]))
    blocks = [np.ascontiguousarray(block) for block in np.array_split(whole, count, axis)]
    starts = np.cumsum([0] + [block.shape[axis] for block in blocks[:-1]]) * whole.strides[axis]
    return itemsize, whole, blocks, [(0, start, whole.strides[:-1]) for start in starts]


@given(cut_arrays())
@example((2, np.zeros((9, 2), np.uint8), [np.ones((3, 2), np.uint8)] * 3, [(0, 6 * i, (2,)) for i in range(3)]))
def test_blocks_of_several_regions_are_joined_and_split(case):
    itemsize, whole, blocks, places = case
    ndim, sizes, extents = whole.ndim - 1, [block.nbytes for block in blocks], [block.shape[:-1] for block in blocks]
    there = [(i, 0, block.strides[:-1]) for i, block in enumerate(blocks)]
    joined = misaligned(whole.nbytes, 4)
    boxes = [(*a, *b, shape) for a, b, shape in zip(there, places, extents, strict=True)]
    copies(sizes, [whole.nbytes], itemsize, boxes, ndim).run([block.ravel() for block in blocks], [joined])
    expected = whole.copy()
    for place, block in zip(places, blocks, strict=True):
        np.lib.stride_tricks.as_strided(expected.ravel()[place[1] :], block.shape, whole.strides)[...] = block
    assert (joined == expected.ravel()).all()
    assert clean_around(joined)

    split = [misaligned(size, i % 16) for i, size in enumerate(sizes)]
    boxes = [(*b, *a, shape) for a, b, shape in zip(there, places, extents, strict=True)]
    copies([whole.nbytes], sizes, itemsize, boxes, ndim).run([joined], split)
    assert all((part == block.ravel()).all() for part, block in zip(split, blocks, strict=True))
    assert all(map(clean_around, split))

    prepared = packing([whole.nbytes], itemsize, [(*b, shape) for b, shape in zip(places, extents, strict=True)], ndim)
    packed = misaligned(whole.nbytes, 1)
    prepared.pack([joined], packed)
    assert (packed == np.concatenate([block.ravel() for block in blocks])).all()
    joined[:] = 0
    prepared.unpack(packed, [joined])
    assert (joined == expected.ravel()).all()


@pytest.mark.parametrize("itemsize", [1, 2, 4, 8, 16])
@pytest.mark.parametrize("left_out", [0, 1, 3])
@pytest.mark.parametrize("at_once", [1, MANY])
def test_items_of_few_columns(itemsize, left_out, at_once):
    """Joined and split; registers read and write more than there is, but not outside of what is given."""
    for count in range(2, 10):
        for length in (1, 2, 15, 16, 17, 100, 2500 // count):
            columns = [noise(length * itemsize, i) for i in range(count)]
            row = itemsize * (count + left_out)
            boxes = [(i, 0, (itemsize,), 0, i * itemsize, (row,), (length,)) for i in range(count)]
            nbytes = length * row - left_out * itemsize
            joined = misaligned(nbytes, 3)
            copies([length * itemsize] * count, [nbytes], itemsize, boxes, at_once=at_once).run(columns, [joined])
            assert clean_around(joined)
            rows = np.concatenate([joined, np.zeros(left_out * itemsize, np.uint8)]).reshape(length, -1, itemsize)
            for i, column in enumerate(columns):
                assert (rows[:, i].ravel() == column).all()
            assert not rows[:, count:].any()
            split = [misaligned(length * itemsize, i) for i in range(count)]
            boxes = [(*box[3:6], *box[:3], box[6]) for box in boxes]
            copies([nbytes], [length * itemsize] * count, itemsize, boxes, at_once=at_once).run([joined.copy()], split)
            for part, column in zip(split, columns, strict=True):
                assert (part == column).all()
                assert clean_around(part)


@pytest.mark.parametrize("itemsize", [1, 4, 8])
def test_lists_larger_than_the_caches(itemsize):
    """These are written past the caches, and a transpose is one of many tiles."""
    rows, columns = 2**11 + 1, 2**14 // itemsize - 1
    source = noise(rows * columns * itemsize)
    turned = np.ascontiguousarray(source.reshape(rows, columns, itemsize).transpose(1, 0, 2))
    box = (0, 0, (itemsize, columns * itemsize), 0, 0, (rows * itemsize, itemsize), (columns, rows))
    for shift in (0, 1, 8):
        target = misaligned(len(source), shift)
        copies([len(source)], [len(source)], itemsize, [box], 2).run([source], [target])
        assert (target == turned.ravel()).all()
        copies([len(source)], [len(source)], 1, [(0, 0, (1,), 0, 0, (1,), (len(source),))]).run([source], [target])
        assert (target == source).all()
        assert clean_around(target)


def test_the_order_of_boxes_does_not_matter():
    """Columns of many regions in no order, more than are run together at once."""
    columns = np.random.default_rng(1).permutation(150)
    sources = [noise(300, i) for i in range(150)]
    boxes = [(i, 0, [3], 0, 3 * i, [450], [100]) for i in columns]
    target = np.zeros(45000, np.uint8)
    copies([300] * 150, [45000], 3, boxes).run(sources, [target])
    assert (target.reshape(100, 150, 3) == np.stack([a.reshape(100, 3) for a in sources], axis=1)).all()


@given(packings())
def test_contiguous_boxes_are_single_runs(problem):
    itemsize, boxes = problem[1:3]
    assert packing(*problem).contiguous == all(
        0 in extents or _is_one_run(itemsize, extents, strides) for _, _, strides, extents in boxes
    )


def _is_one_run(itemsize, extents, strides):
    for axis in reversed(range(len(extents))):
        if extents[axis] > 1:
            if strides[axis] != itemsize:
                return False
            itemsize *= extents[axis]
    return True


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


@pytest.mark.parametrize("side", ["source", "target", "region"])
@pytest.mark.parametrize("name", OUTSIDE)
def test_boxes_outside_are_refused(side, name):
    offset, strides, extents, itemsize = OUTSIDE[name]
    wrong, right = (1, offset, strides), (0, 0, [0])
    prepare = {
        "source": lambda: copies([LARGEST, 12], [LARGEST], itemsize, [(*wrong, *right, extents)]),
        "target": lambda: copies([LARGEST], [LARGEST, 12], itemsize, [(*right, *wrong, extents)]),
        "region": lambda: packing([LARGEST, 12], itemsize, [(*wrong, extents)]),
    }
    with pytest.raises(ValueError, match=rf"box 0 .* outside of the 12 bytes of {side} 1"):
        prepare[side]()


def test_empty_boxes_may_lie_anywhere():
    target = np.full(2, 7, np.uint8)
    prepared = copies([0], [2], 1, [(5, 99, [5, 5], -5, -99, [5, 5], [3, 0])], ndim=2)
    prepared.run([b""], [target])
    assert prepared.count == 0
    assert target.tolist() == [7, 7]
    nothing = packing([0], 1, [(5, 99, [5, 5], [0, LARGEST])], ndim=2)
    assert (nothing.nbytes, nothing.count, nothing.contiguous) == (0, 0, True)
    of_no_size = packing([0], 0, [(5, 99, [5], [LARGEST])])
    assert (of_no_size.nbytes, of_no_size.count, of_no_size.contiguous) == (0, 0, True)


def test_no_regions_and_no_boxes():
    copies([], [], 1, []).run([], [])
    packing([], 1, []).pack([], bytearray())


def test_more_axes_than_numpy_has_are_refused():
    with pytest.raises(ValueError, match="at most 64 axes, not 65"):
        packing([1], 1, [(0, 0, [0] * 65, [1] * 65)], ndim=65)
    packing([1], 1, [(0, 0, [0] * 64, [2, 1] * 32)], ndim=64)


@pytest.mark.parametrize("extents", [[2**31, 2**32], [2**62, 2], [LARGEST, LARGEST]])
def test_boxes_too_large_to_be_packed_are_refused(extents):
    with pytest.raises(ValueError, match=rf"box 0 .* is too large to pack: {LARGEST} bytes at most"):
        packing([1], 1, [(0, 0, [0, 0], extents)], ndim=2)
    with pytest.raises(ValueError, match=f"2 boxes are too large to pack together: {LARGEST} bytes at most"):
        packing([1], 1, [(0, 0, [0], [LARGEST]), (0, 0, [0], [1])])
    assert packing([3], 3, [(0, 0, [0], [LARGEST // 3])]).nbytes == LARGEST // 3 * 3
    assert packing([1], 1, [(0, 0, [0], [LARGEST])]).round_bytes(2**40 - 1, 2**40) == LARGEST // 2**40


def test_negative_extents_and_sizes_are_refused():
    with pytest.raises(ValueError, match="an extent cannot be negative: -1 on axis 0"):
        copies([12], [12], 1, [(0, 0, [1], 0, 0, [1], [-1])])
    with pytest.raises(ValueError, match="an item cannot have -1 bytes"):
        packing([12], -1, [(0, 0, [1], [1])])
    for sizes in [([12, -1], [12]), ([12], [12, -1])]:
        with pytest.raises(ValueError, match=r"(source|target) 1 has -1 bytes: a size cannot be negative"):
            copies(*sizes, 1, [])


def test_arguments_of_different_lengths_are_refused():
    one, two = np.zeros(1, np.intp), np.zeros(2, np.intp)
    row, rows, wide = np.zeros((1, 1), np.intp), np.zeros((2, 1), np.intp), np.zeros((1, 2), np.intp)
    for prepare, same in [
        (lambda *args: BoxCopies([1], [1], 1, *args), [one, one, row, one, one, row, row]),
        (lambda *args: Packing([1], 1, *args), [one, one, row, row]),
    ]:
        prepare(*same)
        for place, right in enumerate(same):
            with pytest.raises(ValueError, match="same number of boxes"):
                prepare(*same[:place], two if right is one else rows, *same[place + 1 :])
            if right is row:
                with pytest.raises(ValueError, match="same number of axes"):
                    prepare(*same[:place], wide, *same[place + 1 :])
            with pytest.raises(TypeError):
                prepare(*same[:place], None, *same[place + 1 :])
        with pytest.raises(ValueError, match="dtype mismatch"):
            prepare(np.zeros(1), *same[1:])


def test_run_takes_buffers_of_the_checked_sizes_only():
    prepared = copies([4], [4], 1, [(0, 0, [1], 0, 0, [1], [4])])
    four = np.arange(4, dtype=np.uint8)
    for source, target in [(4, 3), (4, 5), (3, 4), (5, 4), (0, 4), (4, 0)]:
        with pytest.raises(
            ValueError, match=rf"of (source|target) 0 has {source if source != 4 else target} bytes.* against 4"
        ):
            prepared.run([np.zeros(source, np.uint8)], [np.zeros(target, np.uint8)])
    for sources, targets in [([], [four]), ([four], []), ([four, four], [four]), ([four], [four, four])]:
        with pytest.raises(ValueError, match=r"got [02] buffers for 1 (source|target) regions"):
            prepared.run(sources, targets)
    with pytest.raises((ValueError, BufferError)):
        prepared.run([four], [b"0000"])
    with pytest.raises((ValueError, BufferError)):
        prepared.run([np.arange(8, dtype=np.uint8)[::2]], [four.copy()])
    for sources, targets in [([four], [None]), ([None], [four])]:
        with pytest.raises(TypeError):
            prepared.run(sources, targets)
    target = bytearray(4)
    prepared.run((four.view(np.int32),), (target,))  # any dtype: bytes are bytes
    assert bytes(target) == bytes(four)
    target.append(0)  # no longer held


def test_regions_that_no_box_uses_may_be_none():
    prepared = copies([4, 4], [4, 4, 4], 1, [(1, 0, [1], 2, 0, [1], [4])])
    target = np.zeros(4, np.uint8)
    prepared.run([None, np.arange(4, dtype=np.uint8)], [None, None, target])
    assert target.tolist() == [0, 1, 2, 3]
    with pytest.raises(ValueError, match="target 1 has 3 bytes: the boxes were checked against 4"):
        prepared.run([None, target], [None, np.zeros(3, np.uint8), target])
    with pytest.raises(TypeError):
        prepared.run([target, None], [None, None, target])


def test_packing_takes_large_enough_buffers_only():
    prepared = packing([4], 1, [(0, 0, [1], [4])])
    region = np.arange(4, dtype=np.uint8)
    with pytest.raises(ValueError, match="the buffer has 3 bytes, but this round needs 4"):
        prepared.pack([region], bytearray(3))
    with pytest.raises(ValueError, match="the buffer has 0 bytes, but this round needs 1"):
        prepared.unpack(b"", [region], 3, 4)
    with pytest.raises(ValueError, match="the buffer of region 0 has 3 bytes: the boxes were checked against 4"):
        prepared.pack([region[:3]], bytearray(4))
    with pytest.raises((ValueError, BufferError)):
        prepared.pack([region], b"0000")
    with pytest.raises((ValueError, BufferError)):
        prepared.unpack(region, [b"0000"])
    with pytest.raises(TypeError):
        prepared.unpack(region, [None])
    for number, rounds in [(-1, 1), (1, 1), (0, 0), (0, -1)]:
        for call in (prepared.round_bytes, lambda *which: prepared.pack([region], bytearray(4), *which)):
            with pytest.raises(ValueError, match=f"round {number} of {rounds}"):
                call(number, rounds)
