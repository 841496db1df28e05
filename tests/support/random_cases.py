"""Random relayouts, each made from its number alone: the same in every process and on every rank."""

import re
from functools import lru_cache
from math import prod
from random import Random
from typing import NamedTuple

import numpy as np
import pytest

from meshcomm import Cuts, Cyclic, Layout, Machine, Mesh, ShapeError, plan_relayout
from meshcomm.core._tuning import DEFAULT_SCRATCH
from meshcomm.core.layouts.mesh import bound_world
from support.lockstep import blocks_between, lockstep
from support.reference import random_bits, same_bits

RANKS = 12
SIZES = [1, 1, 2, 2, 2, 2, 2, 2, 3, 3, 3, 3, 4, 4, 4, 5, 6, 6]
ITEMSIZES = [1, 2, 3, 4, 8, 8, 16, 24]


class Case(NamedTuple):
    """A relayout of an array of *shape*, planned with a scratch limit.

    *tightness* determines the limit: 0 is the minimum, 1 is the minimum plus two blocks, None is the default limit.
    """

    shape: tuple
    dtype: np.dtype
    source: Layout
    target: Layout
    machine: Machine
    tightness: float | None

    def __str__(self):
        layouts = " to ".join(f"{layout.sharding_specs} on {layout.mesh!r}" for layout in (self.source, self.target))
        return f"{self.shape} {self.dtype} from {layouts}, {self.machine}, tightness {self.tightness}"


def random_case(number, ranks=RANKS, sizes=tuple(SIZES)):
    """Case *number*, on meshes over some of *ranks* ranks; a mesh has one of these *sizes*."""
    random = Random(number)
    if random.random() < 0.1:
        return grid_case(random, ranks)
    source_mesh = random_mesh(random, ranks, sizes)
    target_mesh = source_mesh if random.random() < 0.4 else another_mesh(random, source_mesh, ranks, sizes)
    rank = random.choice([0, 1, 1, 2, 2, 2, 3, 3, 3, 4, 5])
    shape = random_shape(random, rank)
    source, target = (random_layout(random, mesh, rank) for mesh in (source_mesh, target_mesh))
    return finished(random, ranks, shape, source, target)


def any_case(number, ranks=RANKS, sizes=tuple(SIZES)):
    """Case *number*: with even cuts only if it is even, with cuts of all kinds if it is odd."""
    return (case_of_kinds if number % 2 else random_case)(number, ranks, sizes)


def case_of_kinds(number, ranks=RANKS, sizes=tuple(SIZES)):
    """Case *number* with cuts of all kinds: that of `random_case`, with other cuts, and some axes longer."""
    case, random = random_case(number, ranks, sizes), Random(f"kinds of {number}")
    shape = tuple(longer(random, length, len(case.shape)) for length in case.shape)
    source = of_kinds(random, case.source, shape)
    target = of_kinds(random, case.target, shape, like=source if random.random() < 0.5 else None)
    return case._replace(shape=shape, source=source, target=target)


def longer(random, length, rank):
    """The length, or sometimes a larger one, along which cyclic blocks repeat."""
    return random.randint(length, 70) if rank <= 2 and random.random() < 0.5 else length


def of_kinds(random, layout, shape, like=None):
    """The layout with any kind of cut on each axis; a cut may be related to that of the layout *like*."""
    specs = []
    for axis, (names, length) in enumerate(zip(layout.axes, shape, strict=True)):
        other_spec = like.axes[axis] if like is not None else None
        specs.append(random_spec(random, names, length, layout.num_shards(axis), other_spec) if names else names)
    return Layout(specs, layout.mesh)


def random_spec(random, names, length, blocks, like=None):
    """A spec of any kind for an axis that *names* cut into *blocks* blocks."""
    kind = random.random()
    if kind < 0.25:
        return names
    if kind < 0.6:
        return Cuts(names, random_boundaries(random, length, blocks, like))
    if isinstance(like, Cyclic) and random.random() < 0.6:
        block = max(1, random.choice([like.block, 2 * like.block, 3 * like.block, like.block // 2]))
    else:
        block = random.choice([1, 1, 2, 3, 4, 5, 8, max(1, length // 2), max(1, length), length + 3])
    return Cyclic(names, block, offset=random.choice([0, 0, random.randrange(blocks)]))


def random_boundaries(random, length, blocks, like=None):
    """Random boundaries: any, with empty blocks, those of torch.chunk, or even ones; often some of *like*."""
    kind = random.random()
    if kind < 0.1:  # all in one block
        return (0, *sorted(random.choices([0, length], k=blocks - 1)), length)
    if kind < 0.25:
        block_length = max(1, -(-length // blocks))
        return tuple(min(number * block_length, length) for number in range(blocks + 1))
    if kind < 0.3:
        return (0, *np.cumsum([len(block) for block in np.array_split(np.arange(length), blocks)]).tolist())
    choices = list(range(length + 1))
    if isinstance(like, Cuts) and random.random() < 0.5:
        choices = list(like.boundaries)
    return (0, *sorted(random.choices(choices, k=blocks - 1)), length)


def grid_case(random, ranks):
    """A case on a grid where every mesh dimension cuts an axis of even length: some go in several steps."""
    sizes = random.choice(
        [shape for shape in [(2, 2), (2, 2), (3, 2), (2, 4), (2, 2, 2)] if prod(shape) <= ranks] or [(1,)]
    )
    mesh = mesh_over(range(prod(sizes)), sizes)
    shape = tuple(random.choice([2, 4, 4, 8]) for _ in range(3))
    source, target = (random_layout(random, mesh, 3, min_axis=0) for _ in range(2))
    case = finished(random, ranks, shape, source, target)
    # Blocks between steps are scratch; and steps save messages, not bytes.
    return case._replace(tightness=random.choice([None, random.random()]), machine=Machine(1e-3, 1e-2))


def finished(random, ranks, shape, source, target):
    """The case of a relayout with random dtype, machine and tightness."""
    dtype = np.dtype(f"V{random.choice(ITEMSIZES)}")
    tightness = random.choice([None, None, 0.0, random.random() ** 2])
    return Case(shape, dtype, source, target, random_machine(random, ranks), tightness)


def random_shape(random, rank):
    """Lengths that are often uneven, sometimes 1 or 0, and rarely large."""
    longest = 13 if rank <= 2 else 7 if rank == 3 else 4
    lengths = [random.randint(1, longest) for _ in range(rank)]
    if rank and random.random() < 0.05:
        lengths[random.randrange(rank)] = random.choice([0, 40])
    return tuple(lengths)


def random_mesh(random, ranks, sizes):
    """A mesh over the first ranks, or over any of them in any order."""
    shape = random.choice(SHAPES[random.choice(sizes)])
    size = prod(shape)
    kind = random.random()
    if kind < 0.6:
        devices = range(size)
    elif kind < 0.75:
        first_rank = random.randint(0, ranks - size)
        devices = range(first_rank, first_rank + size)
    else:
        devices = tuple(random.sample(range(ranks), size))
    return mesh_over(devices, shape)


def another_mesh(random, mesh, ranks, sizes):
    """A mesh of the ranks of *mesh* in another shape or order, or of ranks that are all or partly different."""
    kind = random.random()
    if kind < 0.25:
        return mesh_over(mesh.ranks, random.choice(SHAPES[mesh.size]))
    if kind < 0.5:
        return mesh_over(tuple(random.sample(mesh.ranks, mesh.size)), random.choice(SHAPES[mesh.size]))
    other_ranks = [rank for rank in range(ranks) if rank not in mesh.ranks]
    candidates = [size for size in sizes if size <= len(other_ranks)]
    if kind < 0.75 and candidates:
        shape = random.choice(SHAPES[random.choice(candidates)])
        return mesh_over(tuple(random.sample(other_ranks, prod(shape))), shape)
    return random_mesh(random, ranks, sizes)


def shapes_of(size):
    """Every shape of one to three dimensions for a mesh of *size* devices."""
    factors = [n for n in range(1, size + 1) if size % n == 0]
    planes = [(a, size // a) for a in factors]
    cubes = [(a, b, size // a // b) for a in factors for b in factors if size % (a * b) == 0]
    return [(size,), *planes, *cubes]


SHAPES = {size: shapes_of(size) for size in range(1, RANKS + 1)}


@lru_cache(maxsize=4096)
def mesh_over(devices, shape):
    """A mesh of *shape* over these ranks, with dimensions x, y, z in some order."""
    return Mesh(devices, list(zip("xyz"[: len(shape)], shape, strict=True)))


def random_layout(random, mesh, rank, min_axis=-1):
    """A layout in which each mesh dimension cuts some axis; if *min_axis* is -1, some may cut none."""
    axes = [[] for _ in range(rank)]
    for name in random.sample(mesh.dim_names, len(mesh.dim_names)):
        axis = random.randint(min_axis, rank - 1)
        if axis >= 0:
            axes[axis].append(name)
    return layout_of(mesh, tuple(map(tuple, axes)))


def layout_of(mesh, axes):
    # Equal meshes of two worlds must not stand for each other.
    return _layout_of(mesh, axes) if bound_world(mesh) is None else Layout(axes, mesh)


@lru_cache(maxsize=16384)
def _layout_of(mesh, axes):
    return Layout(axes, mesh)


def random_machine(random, ranks):
    """A machine of one node or several, with costs dominated by messages or by bytes."""
    kind, nodes = random.random(), 0
    if kind < 0.2:
        nodes = random.randint(1, 5)
    elif kind < 0.4:
        nodes = tuple(random.choices(range(4), k=ranks))
    scale = 10.0 ** random.randint(-3, 2)
    return Machine(alpha_within=2e-6 * scale, alpha_between=1e-5 * scale, nodes=nodes)


# -- checks of every case ---------------------------------------------------------------------------------------------


def planned(case):
    """The plan of a case, and its scratch limit."""
    if case.tightness is None:
        return plan_of(case, None), DEFAULT_SCRATCH
    min_scratch = least_scratch(case)
    bound = min_scratch + int(case.tightness * 2 * max_block_bytes(case))
    return plan_of(case, bound), bound


def plan_of(case, bound):
    return plan_relayout(case.shape, case.dtype, case.source, case.target, bound, case.machine)


def least_scratch(case):
    """The minimum scratch limit of a case, as the error names it; check that one byte less is refused."""
    try:
        plan_of(case, 0)
    except ShapeError as error:
        min_scratch = int(re.search(r"the minimum is (\d+) bytes", str(error))[1])
    else:
        return 0
    with pytest.raises(ShapeError):
        plan_of(case, min_scratch - 1)
    return min_scratch


def max_block_bytes(case):
    """The bytes of the largest block before or after the relayout."""
    return max(layout.largest_block(case.shape) for layout in (case.source, case.target)) * case.dtype.itemsize


def check_case(case, predicted=True):
    """Run the plan of a case in lockstep, and check the block and scratch of every device.

    If *predicted*, also compare bytes, messages and peak memory with the prediction of the plan.
    """
    plan, bound = planned(case)
    array = random_bits(case.shape, case.dtype, seed=1)
    run = lockstep(plan, blocks_between(array, case.source, plan))
    for device, expected in enumerate(blocks_between(array, case.target, plan)):
        block = run.blocks[device]
        assert (block is None) == (expected is None), f"device {device}"
        assert expected is None or same_bits(block, expected), f"device {device}: {block} is not {expected}"
        assert run.scratch[device] <= bound, f"device {device}: scratch beyond {bound}"
        if predicted:
            device_plan = plan.for_device(device)
            assert device_plan.bytes_moved == run.bytes_moved[device], f"device {device}: bytes"
            assert device_plan.messages == run.messages[device], f"device {device}: messages"
            assert device_plan.peak_bytes >= run.peak_bytes[device], f"device {device}: peak"
