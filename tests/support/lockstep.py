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
    """The blocks of all devices after a plan, and the counts of each device."""

    blocks: list
    bytes_moved: list
    messages: list
    peak_bytes: list
    scratch: list


def devices_on(mesh, ranks):
    """The device of each of *ranks* in *mesh*, None for one outside."""
    return [mesh.ranks.index(rank) if rank in mesh.ranks else None for rank in ranks]


def blocks_between(array, layout, plan):
    """The block of each device of *plan* in *layout*, None for a device outside of the mesh."""
    return [None if d is None else block_of(array, layout, d) for d in devices_on(layout.mesh, plan.ranks)]


def lockstep(plan, blocks):
    """Run *plan* over MPI on the blocks of all devices, step by step, and count what they receive and hold."""
    devices = range(len(plan.ranks))
    programs = [operations(plan, SimpleNamespace(device=device, rank_set=_RankSet())) for device in devices]
    data = first_blocks = [np.empty(0, np.uint8) if block is None else as_bytes(block) for block in blocks]
    bytes_moved, messages, peak_bytes, scratch = ([0 for _ in devices] for _ in range(4))
    for number, step_operations in enumerate(zip(*programs, strict=True)):
        steps = [over_mpi(operation) for operation, _ in step_operations]
        targets = [np.full(size, 0xEE, np.uint8) for _, size in step_operations]
        if isinstance(steps[0], LocalCopy):
            for step, block, target in zip(steps, data, targets, strict=True):
                step.run([block], [target])
        else:
            members = [
                [plan.ranks.index(rank) for rank in operation._group.members] for operation, _ in step_operations
            ]
            _exchange(steps, members, data, targets, bytes_moved, messages)
        is_last = number == len(programs[0]) - 1
        for device, step in enumerate(steps):
            # The first step takes from the block that the caller keeps.
            block_bytes = len(data[device]) if number else 0
            bytes_in_use = block_bytes + (0 if isinstance(step, LocalCopy) else step.scratch_bytes)
            peak_bytes[device] = max(
                peak_bytes[device], len(first_blocks[device]) + bytes_in_use + len(targets[device])
            )
            scratch[device] = max(scratch[device], bytes_in_use + (0 if is_last else len(targets[device])))
        data = targets
    shapes = [target_shape(plan, device) for device in devices]
    final_blocks = [
        None if s is None else as_block(device, s, plan.dtype) for device, s in zip(data, shapes, strict=True)
    ]
    return Run(final_blocks, bytes_moved, messages, peak_bytes, scratch)


def over_mpi(operation):
    """Return an exchange as it runs over MPI; usually it chooses between MPI and shared memory when it runs."""
    return operation if isinstance(operation, LocalCopy) else operation._over_mpi()


def _exchange(steps, members, data, targets, bytes_moved, messages):
    """Run one exchange of all devices. *members* has for each device the devices of its group."""
    pairs = set()
    rounds = steps[0].rounds
    for number in range(rounds):
        sent_blocks, outgoing = [], [step.send.counts(number, rounds) for step in steps]
        for step, block in zip(steps, data, strict=True):
            if step.send.packing is not None:
                buffer = np.full(step.send.buffer_bytes(rounds), 0xDD, np.uint8)
                step.send.packing.pack([block], buffer, number, rounds)
                block = buffer
            sent_blocks.append(block)
        for device, step in enumerate(steps):
            packing, received = step.receive.packing, targets[device]
            if packing is not None:
                received = np.full(step.receive.buffer_bytes(rounds), 0xCC, np.uint8)
            own_position = members[device].index(device)
            counts, offsets = step.receive.counts(number, rounds)
            for position, peer in enumerate(members[device]):
                peer_counts, peer_offsets = outgoing[peer]
                # A gather sends the same to all.
                target_position = own_position if isinstance(step, Packed) else position
                count = counts[position]
                assert peer_counts[target_position] == count, (
                    f"device {peer} sends {peer_counts[target_position]} bytes, device {device} expects {count}"
                )
                if not count:
                    continue
                received[offsets[position] : offsets[position] + count] = sent_blocks[peer][
                    peer_offsets[target_position] :
                ][:count]
                if peer != device:
                    bytes_moved[device] += count
                    pairs.add((peer, device))
            if packing is not None:
                packing.unpack(received, [targets[device]], number, rounds)
    for step, block, target in zip(steps, data, targets, strict=True):
        for copies in step.own if isinstance(step, Packed) else ():
            copies.run([block], [target])
    for _, device in pairs:
        messages[device] += 1


class _RankSet:
    """Stands for a rank set: it only makes groups."""

    large_counts = oversubscribed = True
    machine = Machine()
    world = SimpleNamespace(takes_turns=True)

    def group(self, key, color, members):
        return SimpleNamespace(members=members, rank_set=self)
