"""The cut of one axis: numpy.array_split, the questions that plans ask about it, and that nobody else answers them."""

from itertools import pairwise, product

import numpy as np
import pytest

import meshcomm as mc
from meshcomm import Layout, Mesh
from meshcomm.core.layouts.partition import Cut, max_round_elements, round_starts
from meshcomm.core.plans import costs
from meshcomm.core.plans.search import forget_plans
from support import reference
from support.random_cases import check_case, random_case
from support.reference import blocks_of, numbered, same_bits
from support.sampling import sampled

LENGTHS, BLOCKS = range(20), range(1, 10)


@pytest.mark.parametrize("blocks", BLOCKS)
def test_blocks_are_those_of_array_split(blocks):
    for n in LENGTHS:
        cut, pieces = Cut(n, blocks), np.array_split(np.arange(n), blocks)
        for number, piece in enumerate(pieces):
            start, stop = cut.interval(number)
            assert list(range(start, stop)) == piece.tolist()
            assert all(cut.block_of(index) == number for index in piece.tolist())
        assert cut.start(blocks) == n
        assert (cut.shortest, cut.longest) == (min(map(len, pieces)), max(map(len, pieces)))


@pytest.mark.parametrize("blocks", BLOCKS)
def test_many_at_once_are_as_one_by_one(blocks):
    numbers = np.arange(blocks)
    for n in LENGTHS:
        cut, indices = Cut(n, blocks), np.arange(n)
        assert list(zip(*map(np.ndarray.tolist, cut.ends(numbers)), strict=True)) == [*map(cut.interval, numbers)]
        assert cut.blocks_of(indices).tolist() == [cut.block_of(index) for index in range(n)]
        starts, stops = (ends.ravel() for ends in np.meshgrid(indices, indices + 1, indexing="ij"))
        first, last = cut.first_and_last(starts, stops)
        for start, stop, a, b in zip(starts.tolist(), stops.tolist(), first, last, strict=True):
            assert start >= stop or range(a, b + 1) == cut.overlapping((start, stop))


def test_refines_is_whether_flat_and_nested_cuts_agree():
    for n, blocks, pieces in product(range(40), range(1, 7), range(1, 7)):
        nested = [
            piece.tolist() for block in np.array_split(np.arange(n), blocks) for piece in np.array_split(block, pieces)
        ]
        flat = [block.tolist() for block in np.array_split(np.arange(n), blocks * pieces)]
        assert Cut(n, blocks).refines(pieces) == (nested == flat), (n, blocks, pieces)


def test_no_round_moves_more_than_the_bound():
    for sizes in product(range(1, 6), repeat=3):
        elements = np.array(sizes)
        for rounds in range(1, 8):
            starts = [round_starts(elements, rounds, number) for number in range(rounds + 1)]
            assert starts[0].tolist() == [0, 0, 0]
            assert starts[-1].tolist() == list(sizes)
            most = max(int((b - a).sum()) for a, b in pairwise(starts))
            assert most <= max_round_elements(np.array([sum(sizes)]), 3, rounds)[0]


def test_blocks_of_axes_beyond_64_bits_of_elements_squared():
    cut = Cut(2**62 + 3, 2**20 + 7)
    assert cut.start(cut.blocks) == cut.length
    assert cut.block_of(cut.length - 1) == cut.blocks - 1
    assert cut.interval(5)[1] == cut.interval(6)[0]


# -- one owner --------------------------------------------------------------------------------------------------------
#
# Under another legal rule, in which the last blocks are the longer ones, everything must still fit together. Code that
# cuts an axis by a rule of its own then cuts it elsewhere than all other code, and blocks, plans or exchanges differ.


def mirrored_pieces(length, blocks):
    """The blocks of `numpy.array_split` with the last ones longer, in NumPy alone."""
    return [length - 1 - piece[::-1] for piece in np.array_split(np.arange(length), blocks)[::-1]]


@pytest.fixture
def mirrored(monkeypatch):
    """The mirror image of the rule, which is `start` and `block_of`, for one number and for many."""
    start, block_of, starts, blocks_of = Cut.start, Cut.block_of, Cut.starts, Cut.blocks_of
    rule = {
        "start": lambda cut, number: cut.length - start(cut, cut.blocks - number),
        "block_of": lambda cut, index: cut.blocks - 1 - block_of(cut, cut.length - 1 - index),
        "starts": lambda cut, numbers: cut.length - starts(cut, cut.blocks - numbers),
        "blocks_of": lambda cut, indices: cut.blocks - 1 - blocks_of(cut, cut.length - 1 - indices),
    }
    for name, function in rule.items():
        monkeypatch.setattr(Cut, name, function)
    monkeypatch.setattr(reference, "even_pieces", mirrored_pieces)
    forget_everything()
    yield
    monkeypatch.undo()
    forget_everything()


def forget_everything():
    forget_plans()
    costs._pays.cache_clear()


def test_the_mirrored_rule_is_another_one(mirrored):
    layout = Layout(["x"], Mesh(range(3), {"x": 3}))
    assert [layout.block_shape((7,), device) for device in range(3)] == [(2,), (2,), (3,)]
    assert [len(piece) for piece in np.array_split(np.arange(7), 3)] == [3, 2, 2]


def test_plans_follow_another_rule(mirrored):
    for number in sampled(range(500_000, 500_400), 80):
        check_case(random_case(number))


def program(specs, other, shape):
    mesh = mc.create_mesh([("x", 3), ("y", 2)])
    source, target = mc.Layout(specs, mesh), mc.Layout(other, mesh)
    array = numbered(shape)
    cut = mc.distribute(array, source)
    agreed = mc.from_local(cut.local, source)
    called = mc.from_callback(shape, array.dtype, source, lambda slices: array[slices])
    sent = mc.distribute(array if mesh.rank == 0 else None, source, root=0)
    moved = mc.relayout(agreed, target)
    return {
        "source": [agreed.local, called.local, sent.local, cut.local],
        "shape": agreed.shape,
        "moved": moved.local,
        "whole": moved.to_numpy(),
        "again": mc.relayout_like(moved, cut).local,
        "sum": np.sum(cut, axis=0).to_numpy(),
        "product": (cut @ mc.relayout(cut, target).T).to_numpy(),
        "total": mc.all_reduce(np.arange(7.0), [list(range(6))]),
    }


@pytest.mark.parametrize(
    ("specs", "other"),
    [
        (["x", "y"], ["y", "x"]),
        ([("x", "y"), mc.UNSHARDED], [mc.UNSHARDED, ("y", "x")]),
        (["y", "x"], [("y", "x"), mc.UNSHARDED]),
    ],
    ids=str,
)
def test_tensors_follow_another_rule(mirrored, specs, other):
    shape = (11, 7)
    array = numbered(shape)
    with mc.simulate(6) as world:
        found = world.run(program, specs, other, shape)
    mesh = Mesh(range(6), {"x": 3, "y": 2})
    sources, targets = (blocks_of(array, Layout(each, mesh)) for each in (specs, other))
    for rank, result in enumerate(found):
        assert all(same_bits(block, sources[rank]) for block in result["source"])
        assert result["shape"] == shape
        assert same_bits(result["moved"], targets[rank])
        assert same_bits(result["whole"], array)
        assert same_bits(result["again"], sources[rank])
        assert result["sum"].tolist() == array.sum(axis=0).tolist()
        assert result["product"].tolist() == (array @ array.T).tolist()
        assert result["total"].tolist() == (6 * np.arange(7.0)).tolist()
