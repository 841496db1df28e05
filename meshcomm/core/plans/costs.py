"""The cost of the steps of a plan, by the model of a machine, when they run packed over MPI."""

from collections.abc import Iterable
from dataclasses import replace
from functools import lru_cache
from math import ceil
from typing import NamedTuple

import numpy as np

from meshcomm.core._types import Indices
from meshcomm.core.layouts.coordinates import single_index
from meshcomm.core.layouts.machine import Load, Machine
from meshcomm.core.plans.step import AllGather, Slice, Step


def costed_devices(step: Step) -> list[int]:
    """Return the devices on which the cost of *step* is computed: the first, a middle and the last.

    If none of them receives anything, as with an array smaller than its mesh, the device that receives the most is
    added. It takes longer to find.
    """
    size = len(step.ranks)
    devices = sorted({0, size // 2, size - 1})
    any_received = step.received(np.array(devices, dtype=np.intp))[0].any()
    return devices if any_received else [*devices, step.busiest_device]


def seconds(step: Step, machine: Machine) -> float:
    """Return the cost of *step* by the model, in seconds: the largest among `costed_devices`."""
    if isinstance(step, Slice):
        return 0.0
    return max(machine.seconds(step_load(step, machine, device)) for device in costed_devices(step))


def step_load(step: Step, machine: Machine, device: int) -> Load:
    """Return the work of *device* in *step*."""
    boxes = step.receives(device)
    sizes, devices = boxes.sizes * step.itemsize, step.members(device, boxes.peers)
    is_self = devices == device
    ranks = np.array([step.ranks[int(d)] for d in devices] + [step.ranks[device]], dtype=np.intp)
    nodes = machine.node_of(ranks)
    on_node = (nodes[:-1] == nodes[-1]) & ~is_self
    off_node = ~on_node & ~is_self
    # In one round, scratch holds all packed and unpacked bytes. Boxes for the device itself are copied.
    scratch_bytes = (replace(step, rounds=1) if step.rounds > 1 else step).traffic(single_index(device)).scratch[0]
    messages, off_node_messages = float(on_node.sum()) * step.rounds, float(off_node.sum()) * step.rounds
    return Load(
        on_node_exchanges=float(step.rounds if messages and not off_node_messages else 0),
        on_node_messages=messages,
        on_node_bytes=float(sizes[on_node].sum()),
        off_node_exchanges=float(step.rounds if off_node_messages else 0),
        off_node_messages=off_node_messages,
        off_node_bytes=float(sizes[off_node].sum()),
        passed_bytes=float(sizes[is_self].sum() + scratch_bytes),
    )


ALWAYS: bool | None = None
"""Whether all exchanges between nodes go through aggregators, or none; None: those for which it pays."""


class OffNodeCosts(NamedTuple):
    """The cost of the exchange of a step between nodes, in seconds by the model: direct, or through aggregators."""

    direct: float
    relayed: float


def relay_pays(step: Step, machine: Machine) -> bool:
    """Return whether *step* goes through aggregators on nodes with shared memory: the same on all ranks.

    It does if that costs less than half of the direct exchange by the model, on the costliest of `costed_devices`.
    The reason for half: ranks wait for each other once more, and may come late or share a processor, which the model
    leaves out. A step in rounds does not, because it has to keep to the scratch limit.
    """
    if isinstance(step, Slice) or step.rounds > 1 or machine.one_node:
        return False
    return _pays(step, machine) if ALWAYS is None else ALWAYS


@lru_cache(maxsize=1024)
def _pays(step: Step, machine: Machine) -> bool:
    costs = [off_node_costs(step, machine, device) for device in costed_devices(step)]
    return 2 * max(cost.relayed for cost in costs) < max(cost.direct for cost in costs)


def predicted_seconds(steps: Iterable[Step], machine: Machine) -> float:
    """Return the cost of *steps* by the model, in seconds, where each is direct or goes through aggregators.

    The costliest of `costed_devices` counts in each step.
    """
    return sum(_relay_time(step, machine) if relay_pays(step, machine) else seconds(step, machine) for step in steps)


def _relay_time(step: Step, machine: Machine) -> float:
    times = []
    for device in costed_devices(step):
        direct, relayed = off_node_costs(step, machine, device)
        times.append(machine.seconds(step_load(step, machine, device)) - direct + relayed)
    return max(times)


def off_node_costs(step: Step, machine: Machine, device: int) -> OffNodeCosts:
    """Return the costs of the messages to *device* from other nodes, if its local peers receive as many bytes."""
    boxes = step.receives(device)
    sizes, nodes = boxes.sizes * step.itemsize, _nodes_of(step, machine, device, boxes.peers)
    group_nodes = _nodes_of(step, machine, device, np.arange(step.group_size, dtype=np.intp))
    node = int(group_nodes[step.position_of(device)])
    off_node = (nodes != node) & (sizes > 0)
    messages, nbytes = int(off_node.sum()), int(sizes[off_node].sum())
    packed_bytes = nbytes * (step.packs + step.unpacks)
    direct = machine.seconds(Load(0, 0, 0, 1 if messages else 0, messages, nbytes, packed_bytes))
    if not messages:
        return OffNodeCosts(direct, direct)
    senders, local_count = len(np.unique(nodes[off_node])), int((group_nodes == node).sum())
    turns = ceil(senders / local_count)
    # In a gather, all ranks of the node need the same blocks.
    node_bytes = nbytes if isinstance(step, AllGather) else nbytes * local_count
    hops = 2 * min(local_count, senders)  # to aggregators, and from them
    # The ranks of a node wait for each other twice: before the messages and after them.
    return OffNodeCosts(direct, machine.seconds(Load(2, hops, 2 * nbytes, 1, turns, turns * node_bytes / senders, 0)))


def _nodes_of(step: Step, machine: Machine, device: int, positions: Indices) -> Indices:
    """Return the node of the rank at each of *positions* in the group of *device*."""
    devices = step.members(device, positions)
    ranks = step.ranks
    if isinstance(ranks, range):
        return machine.node_of(devices + ranks.start)
    return machine.node_of(np.array([ranks[member] for member in devices.tolist()], dtype=np.intp))
