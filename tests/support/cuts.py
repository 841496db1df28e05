"""Cuts of one axis for tests: random ones of all kinds, and the indices of their blocks by definition."""

import numpy as np

from meshcomm.layouts.cyclic import CyclicCut, cyclic_cut
from meshcomm.layouts.partition import ChosenCut, Cut


def indices_by_definition(cut, number):
    """The indices of one block, by the sentence that defines each kind of cut."""
    indices = np.arange(cut.length)
    if isinstance(cut, CyclicCut):
        return indices[(indices // cut.block + cut.offset) % cut.blocks == number]
    if isinstance(cut, ChosenCut):
        return indices[cut.boundaries[number] : cut.boundaries[number + 1]]
    return np.array_split(indices, cut.blocks)[number]


def random_cut(random, length, blocks):
    """A cut of any kind: even, chosen, dealt round, or dealt round in its simplest form."""
    kind = random.random()
    if kind < 0.2:
        return Cut(length, blocks)
    if kind < 0.45:
        inner = sorted(random.choices(range(length + 1), k=blocks - 1))
        if random.random() < 0.2:  # all elements in one block
            inner = sorted(random.choices([0, length], k=blocks - 1))
        return ChosenCut((0, *inner, length))
    block = random.choice([1, 1, 2, 3, 4, 5, 7, 8, max(1, length // 2), max(1, length), length + 5])
    offset = random.choice([0, random.randrange(blocks)])
    return CyclicCut(length, blocks, block, offset) if kind < 0.9 else cyclic_cut(length, blocks, block, offset)


def random_pair(random):
    """Two cuts of one axis, which may be empty, shorter than there are blocks, or many periods long."""
    length = random.choice([0, 1, random.randint(0, 12), random.randint(0, 60), random.randint(0, 200)])
    blocks = [random.choice([1, 2, 2, 3, 4, 5, 6, 9]) for _ in range(2)]
    cut = random_cut(random, length, blocks[0])
    if isinstance(cut, CyclicCut) and random.random() < 0.3:  # patterns that have to do with each other
        block = max(1, random.choice([cut.block, 2 * cut.block, cut.block // 2, cut.block + 1]))
        return cut, CyclicCut(length, blocks[1], block, random.randrange(blocks[1]))
    return cut, random_cut(random, length, blocks[1])
