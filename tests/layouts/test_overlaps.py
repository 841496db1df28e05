"""What the blocks of two cuts of an axis share, compared with arrays of indices, and asked from both sides."""

import itertools
from random import Random

import numpy as np
import pytest

from meshcomm import ShapeError
from meshcomm.core.layouts.cyclic import CyclicCut, cyclic_cut
from meshcomm.core.layouts.overlaps import (
    axis_overlaps,
    blocks_sharing,
    holder_counts,
    is_refined_by,
    max_overlaps,
    shared_counts,
)
from meshcomm.core.layouts.partition import ChosenCut, Cut, length_of
from support.cuts import indices_by_definition, random_cut, random_pair
from support.sampling import sampled

PAIRS = 20_000


def pairs(count, first=0):
    for number in sampled(range(first, first + PAIRS), count):
        yield number, *random_pair(Random(number))


def rows_of(found):
    """The rows of `axis_overlaps`: the number of a block, and the indices that a row stands for, in its order."""
    repeats = found.repeats
    for row, (number, start, stop) in enumerate(zip(*map(np.ndarray.tolist, found[:3]), strict=True)):
        counts, steps = ([1, 1], [0, 0]) if repeats is None else (a[row].tolist() for a in repeats)
        outer, inner = (np.arange(n) * step for n, step in zip(counts, steps, strict=True))
        yield number, (outer[:, None, None] + inner[:, None] + np.arange(start, stop)).ravel().tolist()


def test_pieces_are_what_blocks_share():
    for number, cut, other in pairs(2000):
        owner = np.empty(cut.length, dtype=int)
        for block in range(other.blocks):
            owner[indices_by_definition(other, block)] = block
        for block in range(cut.blocks):
            mine, found = indices_by_definition(cut, block), list(rows_of(axis_overlaps(cut, block, other)))
            assert all(row for _, row in found), f"{number}: a row without elements"
            assert all((owner[row] == peer).all() for peer, row in found), f"{number}: {cut} {block} {other}"
            everything = sorted(itertools.chain.from_iterable(row for _, row in found))
            assert everything == mine.tolist(), f"{number}: {cut} {block} {other}"
            assert [len(row) for _, row in found] == axis_overlaps(cut, block, other).lengths.tolist()


def test_both_sides_have_the_same_rows_in_the_same_order():
    for number, cut, other in pairs(2000, first=PAIRS):
        here = {block: list(rows_of(axis_overlaps(cut, block, other))) for block in range(cut.blocks)}
        there = {block: list(rows_of(axis_overlaps(other, block, cut))) for block in range(other.blocks)}
        for a, b in itertools.product(here, there):
            sent, received = [row for peer, row in here[a] if peer == b], [row for peer, row in there[b] if peer == a]
            assert sent == received, f"{number}: block {a} of {cut} and block {b} of {other}"


def test_rows_have_the_same_form_on_both_sides():
    """The same starts, stops, counts and steps: a round that is packed by rows is unpacked by the same rows."""
    for number, cut, other in pairs(1500, first=2 * PAIRS):
        for a, b in itertools.product(range(cut.blocks), range(other.blocks)):
            one, two = axis_overlaps(cut, a, other), axis_overlaps(other, b, cut)
            one, two = one.subset(one.other_blocks == b), two.subset(two.other_blocks == a)
            assert (one.starts == two.starts).all(), f"{number}: {cut} {a} {other} {b}"
            assert (one.stops == two.stops).all()
            assert (one.repeats is None) == (two.repeats is None)
            if one.repeats is not None:
                assert (one.repeats.counts == two.repeats.counts).all()
                assert ((one.repeats.steps == two.repeats.steps) | (one.repeats.counts == 1)).all()


def test_pieces_of_some_blocks_are_rows_of_all():
    for number, cut, other in pairs(1000, first=3 * PAIRS):
        allowed = np.array(sorted(Random(number).sample(range(other.blocks), Random(number).randint(0, other.blocks))))
        for block in range(cut.blocks):
            some = list(rows_of(axis_overlaps(cut, block, other, allowed.astype(np.intp))))
            assert some == [row for row in rows_of(axis_overlaps(cut, block, other)) if row[0] in allowed]


def test_no_block_has_more_pieces_than_the_bound():
    for number, cut, other in pairs(1500, first=4 * PAIRS):
        most = max(len(axis_overlaps(cut, block, other).starts) for block in range(cut.blocks))
        assert most <= max_overlaps(cut, other), f"{number}: {cut} {other}"


def test_what_pairs_of_blocks_share_and_how_many_blocks_do():
    for number, cut, other in pairs(1500, first=5 * PAIRS):
        sets = [[set(indices_by_definition(each, b).tolist()) for b in range(each.blocks)] for each in (cut, other)]
        common = np.array([[len(a & b) for b in sets[1]] for a in sets[0]])
        in_cut, in_other = (a.ravel() for a in np.indices(common.shape))
        assert shared_counts(cut, in_cut, other, in_other).tolist() == common.ravel().tolist(), (
            f"{number}: {cut} {other}"
        )
        counted = holder_counts(cut, np.arange(cut.blocks), other)
        assert counted.tolist() == (common > 0).sum(axis=1).tolist(), f"{number}: {cut} {other}"
        for block in range(cut.blocks):
            numbers, lengths = blocks_sharing(cut, block, other)
            assert dict(zip(numbers.tolist(), lengths.tolist(), strict=True)) == {
                b: n for b, n in enumerate(common[block].tolist()) if n
            }


def test_nested_cuts_cut_each_block_further():
    for number in sampled(range(PAIRS), 1500):
        random = Random(number)
        length, blocks = random.randint(0, 12), random.randint(1, 4)
        cut = random_cut(random, length, blocks)
        other = random_cut(random, length, blocks * random.randint(1, 3))
        if not is_refined_by(cut, other):
            continue
        factor = other.blocks // cut.blocks
        for block in range(cut.blocks):
            finer = [indices_by_definition(other, block * factor + i) for i in range(factor)]
            assert sorted(np.concatenate(finer).tolist()) == indices_by_definition(cut, block).tolist(), (cut, other)


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        (Cut(8, 2), ChosenCut((0, 1, 4, 4, 8)), True),
        (ChosenCut((0, 1, 8)), ChosenCut((0, 0, 1, 3, 8)), True),
        (ChosenCut((0, 1, 8)), ChosenCut((0, 1, 3, 3, 8)), False),
        (ChosenCut((0, 1, 8)), ChosenCut((0, 1, 3, 8)), False),
        (CyclicCut(8, 2, 1, 0), CyclicCut(8, 2, 1, 0), True),
        (CyclicCut(8, 2, 1, 0), CyclicCut(8, 2, 1, 1), False),
        (Cut(8, 1), CyclicCut(8, 2, 1, 0), True),
    ],
)
def test_nested(a, b, expected):
    assert is_refined_by(a, b) is expected


# -- the cost, counted ------------------------------------------------------------------------------------------------

BILLION = 10**9


@pytest.mark.parametrize(
    ("cut", "other", "most"),
    [
        (CyclicCut(BILLION, 4096, 1, 0), CyclicCut(BILLION, 4096, 1, 1), 3),
        (CyclicCut(BILLION, 4096, 1, 0), CyclicCut(BILLION, 4096, 2, 0), 6),
        (CyclicCut(BILLION, 4096, 1, 0), CyclicCut(BILLION, 2048, 3, 5), 6000),
        (CyclicCut(BILLION, 4096, 64, 0), CyclicCut(BILLION, 4096, 128, 0), 400),
        (CyclicCut(BILLION, 4096, 1, 0), CyclicCut(BILLION, 64, 64, 63), 10),
        (CyclicCut(BILLION, 4096, 1, 7), Cut(BILLION, 4096), 13_000),
        (Cut(BILLION, 4096), CyclicCut(BILLION, 4096, 1, 7), 13_000),
        (CyclicCut(BILLION, 3, 1, 0), CyclicCut(BILLION, 5, 1, 0), 30),
    ],
    ids=str,
)
def test_a_billion_elements_are_a_few_rows(cut, other, most):
    for block in (0, 1, cut.blocks // 2, cut.blocks - 1):
        found = axis_overlaps(cut, block, other)
        assert len(found.starts) <= most
        assert found.lengths.sum() == length_of(cut.span(block))
        assert len(found.starts) <= max_overlaps(cut, other)


def test_a_longer_axis_has_no_more_rows():
    for block, other_block in [(1, 1), (1, 2), (2, 3), (5, 7), (64, 1)]:
        rows = []
        for length in (10**6, 10**9, 10**12, 10**15):
            cut, other = CyclicCut(length, 4, block, 0), CyclicCut(length, 6, other_block, 1)
            rows.append(max(len(axis_overlaps(cut, b, other).starts) for b in range(4)))
        assert max(rows) <= 2 * rows[0] + 2, (block, other_block, rows)


def test_a_cyclic_cut_in_its_simplest_form_has_the_same_blocks():
    for length, blocks, block in itertools.product(range(20), range(1, 5), range(1, 8)):
        for offset in range(blocks):
            simple, cyclic = cyclic_cut(length, blocks, block, offset), CyclicCut(length, blocks, block, offset)
            for number in range(blocks):
                expected = indices_by_definition(cyclic, number).tolist()
                assert simple.indices(number).tolist() == expected, (length, blocks, block, offset)
                assert cyclic.indices(number).tolist() == expected


def test_cuts_that_share_too_many_runs_are_refused():
    """Their common period is longer than the axis, so nothing repeats."""
    n = 2**60
    with pytest.raises(ShapeError, match="share too many runs to plan with"):
        axis_overlaps(CyclicCut(n, 4, 10**9, 1), 0, CyclicCut(n, 4, 10**9 + 1, 1))
