"""Any integers as a description of boxes: refused if a byte lies outside of a buffer, else the bytes of a plain loop.

``make asan`` runs this under the sanitizers: then a byte read or written outside of a buffer ends the program.
"""

from itertools import product
from math import prod

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from meshcomm._kernels import BoxCopies, Packing
from support.sampling import examples

LARGEST = 2**63 - 1
EDGES = [2**31 - 1, 2**31, 2**32, 2**32 + 1, 2**61, 2**62, LARGEST - 1, LARGEST, -LARGEST, -LARGEST - 1]
MAX_ITEMS = 3000  # a box may be larger, with strides of 0: then it is described, but not copied

ANY = st.one_of(st.integers(-3, 300), st.sampled_from(EDGES), st.integers(-LARGEST - 1, LARGEST))
KNOWN = settings(max_examples=examples(3000))


@st.composite
def descriptions(draw, sides):
    """Sizes of the regions of each side, an item's size, boxes and their number of axes.

    A box is its extents and, for each side, a region, an offset and strides. All fit; then some numbers become others.
    """
    ndim, itemsize = draw(st.integers(0, 3)), draw(st.sampled_from([1, 1, 2, 3, 4, 8, 16]))
    sizes = [draw(st.lists(st.integers(0, 20), min_size=1, max_size=3)) for _ in range(sides)]
    listed = []
    for _ in range(draw(st.integers(1, 4))):
        extents = draw(st.lists(st.sampled_from([0, 1, 2, 3, 3, 4, 5]), min_size=ndim, max_size=ndim))
        listed.append((extents, [list(draw(offsets_and_strides(each, itemsize, extents))) for each in sizes]))
    for _ in range(draw(st.sampled_from([0, 0, 1, 1, 2]))):
        itemsize = draw(spoilt(sizes, itemsize, listed))
    return sizes, itemsize, listed, ndim


@st.composite
def offsets_and_strides(draw, sizes, itemsize, extents):
    """A region, an offset and strides for a box; the region becomes as large as the box needs."""
    region = draw(st.integers(0, len(sizes) - 1))
    strides = draw(st.lists(st.integers(-12, 24), min_size=len(extents), max_size=len(extents)))
    steps = [(n - 1) * stride for n, stride in zip(extents, strides, strict=True) if n]
    offset = sum(-step for step in steps if step < 0) + draw(st.integers(0, 3))
    reach = offset + sum(step for step in steps if step > 0) + itemsize
    sizes[region] = max(sizes[region], reach + draw(st.integers(0, 3)))
    return region, offset, strides


@st.composite
def spoilt(draw, sizes, itemsize, listed):
    """Change one number of a description; return the item's size, which may be that number."""
    extents, sides = draw(st.sampled_from(listed))
    side = draw(st.sampled_from(sides))
    lists = [draw(st.sampled_from(sizes)), side, *([extents, side[2]] if extents else [])]
    which = draw(st.sampled_from([*lists, None]))
    if which is None:
        return draw(ANY)
    i = draw(st.integers(0, len(which) - 1 if which is not side else 1))
    which[i] = draw(
        st.one_of(ANY, st.sampled_from([which[i] - 1, which[i] + 1]).filter(lambda n: -LARGEST <= n <= LARGEST))
    )
    return itemsize


def is_right(sizes, itemsize, listed):
    """Whether nothing is negative that counts something, and no byte of a box lies outside of its region."""
    if itemsize < 0 and listed:
        return False
    if min(min(each) for each in sizes) < 0 or any(n < 0 for extents, _ in listed for n in extents):
        return False
    return all(
        0 in extents or not itemsize or is_inside(sizes[which], itemsize, extents, side)
        for extents, sides in listed
        for which, side in enumerate(sides)
    )


def is_inside(sizes, itemsize, extents, side):
    region, offset, strides = side
    steps = [(n - 1) * stride for n, stride in zip(extents, strides, strict=True)]
    low = offset + sum(step for step in steps if step < 0)
    high = offset + sum(step for step in steps if step > 0) + itemsize
    return 0 <= region < len(sizes) and 0 <= low <= high <= sizes[region]


def positions(extents, side):
    """Yield the first byte of each item in row-major order."""
    _, offset, strides = side
    if 0 in extents:
        return
    for index in product(*map(range, extents)):
        yield offset + sum(i * stride for i, stride in zip(index, strides, strict=True))


def bytes_of(size, seed):
    return np.random.default_rng(seed).integers(0, 256, size, np.uint8)


def can_run(sizes, itemsize, listed):
    """Whether the regions can be allocated, and there are few items to copy."""
    items = sum(prod(extents) for extents, _ in listed)
    return itemsize > 0 and max(map(max, sizes)) <= 2**16 and items <= MAX_ITEMS


def column(values):
    return np.array(list(values), dtype=np.intp)


def matrix(rows, ndim):
    return np.array(list(rows), dtype=np.intp).reshape(-1, ndim) if ndim else np.zeros((len(list(rows)), 0), np.intp)


def placed(sides, ndim):
    """Regions, offsets and strides of the boxes, on one side."""
    return column(side[0] for side in sides), column(side[1] for side in sides), matrix([s[2] for s in sides], ndim)


def made(make):
    """Return what *make* makes, or None if it refuses the description."""
    try:
        return make()
    except ValueError as error:
        assert str(error)  # noqa: PT017 - some descriptions are right
        return None


@KNOWN
@given(descriptions(2), st.sampled_from([1, 2**62, LARGEST, -1]))
def test_copies_of_any_boxes(description, at_once):
    sizes, itemsize, listed, ndim = description
    extents = matrix([extents for extents, _ in listed], ndim)
    sides = [placed([sides[i] for _, sides in listed], ndim) for i in range(2)]
    copies = made(lambda: BoxCopies(*sizes, itemsize, *sides[0], *sides[1], extents, at_once))
    assert (copies is not None) == is_right(sizes, itemsize, listed)
    if copies is None or not can_run(sizes, itemsize, listed):
        return
    sources = [bytes_of(size, i) for i, size in enumerate(sizes[0])]
    targets = [bytes_of(size, 9 + i) for i, size in enumerate(sizes[1])]
    allowed = [[{int(byte)} for byte in target] for target in targets]
    written = [np.zeros(size, bool) for size in sizes[1]]
    for box, (source, target) in listed:
        for read, write in zip(positions(box, source), positions(box, target), strict=True):
            for i in range(itemsize):
                if not written[target[0]][write + i]:
                    allowed[target[0]][write + i].clear()
                written[target[0]][write + i] = True
                allowed[target[0]][write + i].add(int(sources[source[0]][read + i]))
    copies.run(sources, targets)
    for target, choices in zip(targets, allowed, strict=True):
        assert all(byte in allowed_here for byte, allowed_here in zip(target.tolist(), choices, strict=True))


@KNOWN
@given(descriptions(1), st.integers(1, 5))
def test_packings_of_any_boxes(description, rounds):
    (sizes,), itemsize, listed, ndim = description
    extents = matrix([extents for extents, _ in listed], ndim)
    sides = placed([side for _, (side,) in listed], ndim)
    packing = made(lambda: Packing(sizes, itemsize, *sides, extents))
    nbytes = itemsize * sum(prod(extents) for extents, _ in listed)
    assert (packing is not None) == (is_right([sizes], itemsize, listed) and nbytes <= LARGEST)
    if packing is None:
        return
    assert packing.nbytes == nbytes == sum(packing.round_bytes(i, rounds) for i in range(rounds))
    if not can_run([sizes], itemsize, listed):
        return
    memory = [bytes_of(size, i) for i, size in enumerate(sizes)]
    expected = [
        memory[side[0]][at : at + itemsize].tobytes()
        for box, (side,) in listed
        for at in positions(box, side)
        if itemsize
    ]
    packed = bytearray(nbytes)
    packing.pack(memory, packed)
    assert bytes(packed) == b"".join(expected)
    back = [np.zeros(size, np.uint8) for size in sizes]
    for i in range(rounds):
        buffer = bytearray(packing.round_bytes(i, rounds))
        packing.pack(memory, buffer, i, rounds)
        packing.unpack(buffer, back, i, rounds)
    for box, (side,) in listed:
        for at in positions(box, side):
            assert (back[side[0]][at : at + itemsize] == memory[side[0]][at : at + itemsize]).all()
