"""Oracles in plain NumPy, and a lockstep loop that runs what every device does, without threads and without MPI."""

from itertools import combinations, permutations, product
from types import SimpleNamespace

import numpy as np

from meshcomm import UNSHARDED, Layout
from meshcomm.collectives import Gather, as_block, as_bytes, incoming, outgoing
from meshcomm.execute import operations


def box_copies(source, target, itemsize, source_offsets, source_strides, target_offsets, target_strides, extents):
    """The twin of the kernel: copy boxes of bytes, element by element."""
    for box, shape in enumerate(extents):
        for index in product(*(range(n) for n in shape)):
            s = source_offsets[box] + sum(i * d for i, d in zip(index, source_strides[box], strict=True))
            t = target_offsets[box] + sum(i * d for i, d in zip(index, target_strides[box], strict=True))
            target[t : t + itemsize] = source[s : s + itemsize]


def blocks_of(array, layout):
    """What each device holds, by the one sentence that defines it."""
    return [array[(..., *layout.block_slices(array.shape, d))].copy(order="C") for d in range(layout.mesh.size)]


def lockstep(plan, blocks):
    """Run *plan* on the blocks of all devices: returns their new blocks, and per device the bytes and messages."""
    mesh = plan.target.mesh
    programs = [operations(plan, SimpleNamespace(device=d, team=_Team(d))) for d in range(mesh.size)]
    data = [as_bytes(block) for block in blocks]
    moved, messages = [0] * mesh.size, [0] * mesh.size
    for steps in zip(*programs, strict=True):
        data = _exchange(steps, data, moved, messages) if hasattr(steps[0], "receive") else [
            step.run(block) for step, block in zip(steps, data, strict=True)
        ]
    shapes = [plan.target.block_shape(plan.shape, d) for d in range(mesh.size)]
    return [as_block(d, shape, plan.dtype) for d, shape in zip(data, shapes, strict=True)], moved, messages


def _exchange(steps, data, moved, messages):
    sent = [outgoing(step.send, block).copy() for step, block in zip(steps, data, strict=True)]
    targets = []
    for device, step in enumerate(steps):
        target = np.full(step.receive.size, 0xEE, np.uint8)
        into = incoming(step.receive, target)
        me = step.group.members.index(device)
        for place, peer in enumerate(step.group.members):
            other = steps[peer].send
            if isinstance(step, Gather):
                block = sent[peer][steps[peer].part]
            else:
                block = sent[peer][other.offsets[me] : other.offsets[me] + other.counts[me]]
            start, count = step.receive.offsets[place], step.receive.counts[place]
            assert len(block) == count, f"device {peer} sends {len(block)} bytes, device {device} expects {count}"
            into[start : start + count] = block
            if peer != device and count:
                moved[device] += count
                messages[device] += 1
        step.finish(data[device], into, target)
        targets.append(target)
    return targets


class _Team:
    """A team of which only the groups are needed."""

    large_counts = True

    def __init__(self, device):
        self.device = device

    def group(self, key, color, members):
        return SimpleNamespace(members=members, team=self)


def single_name_layouts(mesh, rank):
    """Every layout of tensors of *rank* with at most one mesh dimension per axis."""
    names = mesh.dim_names
    for count in range(min(rank, len(names)) + 1):
        for axes in combinations(range(rank), count):
            for used in permutations(names, count):
                specs = [UNSHARDED] * rank
                for axis, name in zip(axes, used, strict=True):
                    specs[axis] = name
                yield Layout(specs, mesh)


def tuple_layouts(mesh, rank):
    """Every layout of tensors of *rank*, with any number of mesh dimensions per axis in any order."""
    names = mesh.dim_names
    for count in range(len(names) + 1):
        for used in permutations(names, count):
            for axes in product(range(rank), repeat=count):
                if list(axes) == sorted(axes):
                    yield Layout([tuple(n for n, a in zip(used, axes, strict=True) if a == i) for i in range(rank)], mesh)
