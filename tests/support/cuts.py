"""Cuts of one axis for tests: random ones of all kinds, and the indices of their blocks by definition."""

import numpy as np

from meshcomm import Cuts, Cyclic
from meshcomm.core.layouts.cyclic import CyclicCut, cyclic_cut
from meshcomm.core.layouts.partition import ChosenCut, Cut
from support.random_cases import random_spec


def indices_by_definition(cut, number):
    """The indices of one block, by the definition of each kind of cut."""
    indices = np.arange(cut.length)
    if isinstance(cut, CyclicCut):
        return indices[(indices // cut.block + cut.offset) % cut.blocks == number]
    if isinstance(cut, ChosenCut):
        return indices[cut.boundaries[number] : cut.boundaries[number + 1]]
    return np.array_split(indices, cut.blocks)[number]


def random_cut(random, length, blocks):
    """A cut of any kind: even, chosen, cyclic, or cyclic in its simplest form."""
    return cut_of(random, length, blocks, random_spec(random, ("x",), length, blocks))


def cut_of(random, length, blocks, spec):
    """The cut of an axis by a spec; a cyclic one often in its simplest form."""
    if isinstance(spec, Cuts):
        return ChosenCut(spec.boundaries)
    if isinstance(spec, Cyclic):
        return random.choice([CyclicCut, CyclicCut, cyclic_cut])(length, blocks, spec.block, spec.offset)
    return Cut(length, blocks)


def random_pair(random):
    """Two cuts of one axis, often related. The axis may be empty, shorter than the number of blocks, or very long."""
    length = random.choice([0, 1, random.randint(0, 12), random.randint(0, 60), random.randint(0, 200)])
    blocks, other_blocks = (random.choice([1, 2, 2, 3, 4, 5, 6, 9]) for _ in range(2))
    spec = random_spec(random, ("x",), length, blocks)
    other_spec = random_spec(random, ("x",), length, other_blocks, spec if random.random() < 0.5 else None)
    return cut_of(random, length, blocks, spec), cut_of(random, length, other_blocks, other_spec)
