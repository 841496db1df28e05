"""The cutting of one axis: numpy.array_split, and the questions that plans ask about it."""

from itertools import product

import numpy as np
import pytest

from meshcomm.layouts.boxes import box_size
from meshcomm.layouts.partition import block_interval, block_number, block_start, overlapping, refines

LENGTHS, PARTS = range(20), range(1, 10)


@pytest.mark.parametrize("parts", PARTS)
def test_blocks_are_those_of_array_split(parts):
    for n in LENGTHS:
        blocks = np.array_split(np.arange(n), parts)
        for number, block in enumerate(blocks):
            start, stop = block_interval(n, parts, number)
            assert list(range(start, stop)) == block.tolist()
            assert all(block_number(n, parts, index) == number for index in block.tolist())
        assert block_start(n, parts, parts) == n


@pytest.mark.parametrize("parts", PARTS)
def test_overlapping_names_the_blocks_that_share_an_element(parts):
    for n in LENGTHS:
        cuts = [set(range(*block_interval(n, parts, i))) for i in range(parts)]
        for start in range(n + 1):
            for stop in range(start, n + 1):
                found = overlapping(n, parts, (start, stop))
                sharing = [i for i, cut in enumerate(cuts) if cut & set(range(start, stop))]
                inside = [i for i in found if cuts[i]]
                assert inside == sharing, (n, parts, start, stop)


def test_refines_is_whether_flat_and_nested_cuts_agree():
    for n, parts, pieces in product(range(40), range(1, 7), range(1, 7)):
        nested = [
            piece.tolist() for block in np.array_split(np.arange(n), parts) for piece in np.array_split(block, pieces)
        ]
        flat = [block.tolist() for block in np.array_split(np.arange(n), parts * pieces)]
        assert refines(n, parts, pieces) == (nested == flat), (n, parts, pieces)


def test_box_size_is_the_number_of_elements():
    for box in [(), ((0, 0),), ((2, 5),), ((2, 5), (1, 3)), ((0, 3), (4, 4), (1, 2)), ((0, 2**40), (0, 2**40))]:
        assert box_size(box) == int(np.prod([stop - start for start, stop in box], dtype=object))


def test_blocks_of_axes_beyond_64_bits_of_elements_squared():
    n, parts = 2**62 + 3, 2**20 + 7
    assert block_start(n, parts, parts) == n
    assert block_number(n, parts, n - 1) == parts - 1
    assert block_interval(n, parts, 5)[1] == block_interval(n, parts, 6)[0]
