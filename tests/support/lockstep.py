"""A loop that runs the steps of a plan on all devices in lockstep, without threads and without MPI."""

from types import SimpleNamespace
from typing import NamedTuple

import numpy as np

from meshcomm import Machine
from meshcomm.core.arrays.compile import operations, target_shape
from meshcomm.core.memory.blocks import as_block, as_bytes
from meshcomm.core.transport.choose import LocalCopy
from meshcomm.core.transport.packed import Packed
from support.reference import block_of


class Run(NamedTuple):
    """What all devices hold after a plan, and what was counted on each one."""

    blocks: list
    bytes_moved: list
    messages: list
    peak_bytes: list
    scratch: list


def devices_on(mesh, ranks):
    """The device of each of *ranks* in *mesh*, None for one outside."""
    return [mesh.ranks.index(rank) if rank in mesh.ranks else None for rank in ranks]


def blocks_between(array, layout, plan):
    """What each device of *plan* holds in *layout*, None where it is outside of the mesh."""
    return [None if d is None else block_of(array, layout, d) for d in devices_on(layout.mesh, plan.ranks)]


def lockstep(plan, blocks):
    """Run *plan* over MPI on the blocks of all devices, step by step, and count what they receive and hold."""
    devices = range(len(plan.ranks))
    programs = [operations(plan, SimpleNamespace(device=d, rank_set=_RankSet())) for d in devices]
    data = begin = [np.empty(0, np.uint8) if block is None else as_bytes(block) for block in blocks]
    moved, messages, peaks, scratch = ([0 for _ in devices] for _ in range(4))
    for number, made in enumerate(zip(*programs, strict=True)):
        steps = [over_mpi(operation) for operation, _ in made]
        targets = [np.full(size, 0xEE, np.uint8) for _, size in made]
        if isinstance(steps[0], LocalCopy):
            for step, block, target in zip(steps, data, targets, strict=True):
                step.run([block], [target])
        else:
            members = [[plan.ranks.index(rank) for rank in operation._group.members] for operation, _ in made]
            _exchange(steps, members, data, targets, moved, messages)
        last = number == len(programs[0]) - 1
        for d, step in enumerate(steps):
            held = len(data[d]) if number else 0  # the first step takes from the block that the caller keeps
            used = held + (0 if isinstance(step, LocalCopy) else step.scratch_bytes)
            peaks[d] = max(peaks[d], len(begin[d]) + used + len(targets[d]))
            scratch[d] = max(scratch[d], used + (0 if last else len(targets[d])))
        data = targets
    shapes = [target_shape(plan, d) for d in devices]
    ends = [None if s is None else as_block(d, s, plan.dtype) for d, s in zip(data, shapes, strict=True)]
    return Run(ends, moved, messages, peaks, scratch)


def over_mpi(operation):
    """The form over MPI of an exchange whose way is chosen when it runs."""
    return operation if isinstance(operation, LocalCopy) else operation._over_mpi()


def _exchange(steps, members, data, targets, moved, messages):
    """Run one exchange of all devices; *members* are the devices of the group of each."""
    pairs = set()
    rounds = steps[0].rounds
    for number in range(rounds):
        sent, outgoing = [], [step.send.counts(number, rounds) for step in steps]
        for step, block in zip(steps, data, strict=True):
            if step.send.packing is not None:
                buffer = np.full(step.send.buffer_bytes(rounds), 0xDD, np.uint8)
                step.send.packing.pack([block], buffer, number, rounds)
                block = buffer
            sent.append(block)
        for device, step in enumerate(steps):
            packing, into = step.receive.packing, targets[device]
            if packing is not None:
                into = np.full(step.receive.buffer_bytes(rounds), 0xCC, np.uint8)
            me = members[device].index(device)
            counts, offsets = step.receive.counts(number, rounds)
            for position, peer in enumerate(members[device]):
                its_counts, its_offsets = outgoing[peer]
                to = me if isinstance(step, Packed) else position  # a gather sends the same to all
                count = counts[position]
                assert its_counts[to] == count, (
                    f"device {peer} sends {its_counts[to]} bytes, device {device} expects {count}"
                )
                if not count:
                    continue
                into[offsets[position] : offsets[position] + count] = sent[peer][its_offsets[to] :][:count]
                if peer != device:
                    moved[device] += count
                    pairs.add((peer, device))
            if packing is not None:
                packing.unpack(into, [targets[device]], number, rounds)
    for step, block, target in zip(steps, data, targets, strict=True):
        for copies in step.own if isinstance(step, Packed) else ():
            copies.run([block], [target])
    for _, device in pairs:
        messages[device] += 1


class _RankSet:
    """A rank set of which only the groups are needed."""

    large_counts = oversubscribed = True
    machine = Machine()
    world = SimpleNamespace(takes_turns=True)

    def group(self, key, color, members):
        return SimpleNamespace(members=members, rank_set=self)
