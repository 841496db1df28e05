"""What the steps of a plan cost by the model of a machine."""

from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from meshcomm._types import Indices
from meshcomm.layouts.coordinates import one
from meshcomm.layouts.machine import Load, Machine
from meshcomm.plans.step import AllGather, Slice, Step


def seconds(step: Step, machine: Machine) -> float:
    """Return what *step* costs by the model: the most of three devices, the first, the last and one between. Local."""
    if isinstance(step, Slice):
        return 0.0
    size = len(step.ranks)
    return max(machine.seconds(step_load(step, machine, device)) for device in sorted({0, size // 2, size - 1}))


def step_load(step: Step, machine: Machine, device: int) -> Load:
    boxes = step.receives(device)
    sizes, devices = boxes.sizes * step.itemsize, step.members(device, boxes.peers)
    own = devices == device
    ranks = np.array([step.ranks[int(d)] for d in devices] + [step.ranks[device]], dtype=np.intp)
    nodes = machine.node_of(ranks)
    near = (nodes[:-1] == nodes[-1]) & ~own
    far = ~near & ~own
    # What is packed and unpacked lies in scratch, all of it if there is one round; what stays is copied.
    through_scratch = (replace(step, rounds=1) if step.rounds > 1 else step).traffic(one(device)).scratch[0]
    messages, far_messages = float(near.sum()) * step.rounds, float(far.sum()) * step.rounds
    return Load(
        float(step.rounds if messages and not far_messages else 0),
        messages,
        float(sizes[near].sum()),
        float(step.rounds if far_messages else 0),
        far_messages,
        float(sizes[far].sum()),
        float(sizes[own].sum() + through_scratch),
    )


ALWAYS: bool | None = None
"""Whether all exchanges between nodes go through partners, or none; by default those for which it pays."""


class Costs(NamedTuple):
    """What the part of a step that crosses between nodes costs by the model, in seconds."""

    direct: float
    through: float


def relay_pays(step: Step, machine: Machine) -> bool:
    """Return whether *step* goes through partners where ranks share memory: the same on all ranks. Local.

    It does if that costs less than half by the model, for the costliest of three devices, the first, the last and one
    between: the model leaves out that ranks come late, or share a processor, when they wait for each other again.
    What runs in rounds, to keep to a bound on memory, does not.
    """
    if isinstance(step, Slice) or step.rounds > 1 or machine.one_node:
        return False
    return _pays(step, machine) if ALWAYS is None else ALWAYS


@lru_cache(maxsize=1024)
def _pays(step: Step, machine: Machine) -> bool:
    size = len(step.ranks)
    found = [costs(step, machine, device) for device in sorted({0, size // 2, size - 1})]
    return 2 * max(each.through for each in found) < max(each.direct for each in found)


def costs(step: Step, machine: Machine, device: int) -> Costs:
    """Return what *device* spends on other nodes, both ways, if the others of its node receive as much. Local."""
    received = step.receives(device)
    sizes, nodes = received.sizes * step.itemsize, _nodes_of(step, machine, device, received.peers)
    group = _nodes_of(step, machine, device, np.arange(step.group_size, dtype=np.intp))
    here = int(group[step.position_of(device)])
    far = (nodes != here) & (sizes > 0)
    messages, nbytes = int(far.sum()), int(sizes[far].sum())
    packed = nbytes * (step.packs + step.unpacks)
    direct = machine.seconds(Load(0, 0, 0, 1 if messages else 0, messages, nbytes, packed))
    if not messages:
        return Costs(direct, direct)
    others, mates = len(np.unique(nodes[far])), int((group == here).sum())
    turns = -(-others // mates)
    # In a gather all ranks of the node need the same.
    crossing = nbytes if isinstance(step, AllGather) else nbytes * mates
    handed = 2 * min(mates, others)  # to partners, and from them
    # The ranks of a node wait for each other twice: before the messages and after them.
    return Costs(direct, machine.seconds(Load(2, handed, 2 * nbytes, 1, turns, turns * crossing / others, 0)))


def _nodes_of(step: Step, machine: Machine, device: int, places: Indices) -> Indices:
    devices = step.members(device, places)
    ranks = step.ranks
    if isinstance(ranks, range):
        return machine.node_of(devices + ranks.start)
    return machine.node_of(np.array([ranks[each] for each in devices.tolist()], dtype=np.intp))
