"""Cyclic blocks, and what a device holds of an axis: against arrays of indices."""

from itertools import product
from random import Random

import numpy as np
import pytest

from meshcomm.core.layouts.cyclic import CyclicCut, cyclic_cut
from meshcomm.core.layouts.partition import (
    ChosenCut,
    Cut,
    Runs,
    intervals_of,
    length_of,
    local_indices,
    local_steps,
)
from support.cuts import indices_by_definition, random_cut
from support.sampling import sampled

CUTS = [
    CyclicCut(length, blocks, block, offset)
    for length, blocks, block in product((0, 1, 2, 5, 6, 7, 12, 13, 25), range(1, 5), (1, 2, 3, 5, 8, 30))
    for offset in range(blocks)
]


def test_a_cut_answers_what_the_definition_says():
    for cut in CUTS:
        numbers = np.arange(cut.blocks)
        blocks = [indices_by_definition(cut, number) for number in range(cut.blocks)]
        assert cut.lengths(numbers).tolist() == [len(block) for block in blocks], cut
        assert (cut.shortest, cut.longest) == (min(map(len, blocks)), max(map(len, blocks))), cut
        for index in range(cut.length + 1):
            assert cut.before(numbers, index).tolist() == [int((block < index).sum()) for block in blocks], cut
        short = np.arange(-(-cut.length // cut.block))
        owners = cut.owners(short)
        for number, first in zip(owners.tolist(), (short * cut.block).tolist(), strict=True):
            assert first in blocks[number]
        held = [[] for _ in blocks]
        for start, stop, number in map(cut.run, range(cut.runs)):
            held[number] += range(start, stop)
        assert held == [block.tolist() for block in blocks], cut
        for block, first in zip(blocks, cut.first_run_starts(numbers).tolist(), strict=True):
            assert (block[0] == first) if len(block) else first >= cut.length, cut


def test_spans_have_their_indices_in_the_order_of_memory():
    for number in sampled(range(20_000), 2000):
        random = Random(number)
        cut = random_cut(random, random.randint(0, 40), random.randint(1, 6))
        for block in range(cut.blocks):
            span, indices = cut.span(block), indices_by_definition(cut, block)
            assert length_of(span) == len(indices)
            assert cut.indices(block).tolist() == indices.tolist()
            runs = intervals_of(span)
            assert [i for start, stop in runs for i in range(start, stop)] == indices.tolist()
            assert all(start < stop for start, stop in runs)
            assert local_indices(span, indices).tolist() == list(range(len(indices)))
            if isinstance(span, Runs):
                steps = [k * span.period for k in range(3)] + list(range(span.block))
                apart = [0, span.block, 2 * span.block, *range(span.block)]
                assert local_steps(span, np.array(steps)).tolist() == apart


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ((7, 1, 2, 0), Cut(7, 1)),
        ((6, 3, 2, 0), Cut(6, 3)),
        ((5, 3, 2, 0), Cut(5, 3)),
        ((4, 3, 2, 0), ChosenCut((0, 2, 4, 4))),
        ((0, 3, 2, 0), Cut(0, 3)),
        ((7, 3, 2, 0), CyclicCut(7, 3, 2, 0)),
        ((3, 3, 100, 0), ChosenCut((0, 3, 3, 3))),
    ],
)
def test_the_simplest_form_of_a_cut(arguments, expected):
    found = cyclic_cut(*arguments)
    assert (type(found), found) == (type(expected), expected)


def test_long_axes_take_no_longer():
    cut = CyclicCut(10**15 + 1, 4096, 1, 17)
    numbers = np.arange(4096)
    assert int(cut.lengths(numbers).sum()) == 10**15 + 1
    assert cut.longest - cut.shortest == 1
    assert cut.span(17).first == 0
    assert local_indices(cut.span(17), np.array([4096 * 10**9])).tolist() == [10**9]
