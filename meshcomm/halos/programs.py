"""What the ranks run for halos: exchanges of ghosts, made once for equal halos and then known to all ranks."""

from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np

from meshcomm.core._types import Array, Bytes, Names
from meshcomm.core.layouts.coordinates import used
from meshcomm.core.memory.blocks import new_bytes
from meshcomm.core.ranks.agreement import fingerprint
from meshcomm.core.ranks.calls import Collective
from meshcomm.core.ranks.teams import Group, Location
from meshcomm.core.transport import choose
from meshcomm.core.transport.exchange import ExchangeSpec
from meshcomm.halos.axes import sources_of
from meshcomm.halos.exchange import Ghosts, Pattern, Returns, ghosts, returns

Exchange: TypeAlias = Callable[[list[Bytes]], None]
"""Fills the ghosts of several blocks."""

Open: TypeAlias = Callable[[list[Bytes]], choose.Repeated]
"""Makes the exchange that fills the ghosts of these blocks, time and again. Collective over the team."""


class Sum(NamedTuple):
    """A view of a block, and a view of what has to be added to it."""

    into: Array
    ghosts: Array


class Returning:
    """Brings ghosts back to their owners, and adds them.

    To call it with the bytes of a block and a buffer is Collective over the group.
    """

    def __init__(self, group: Group, tensor: Returns, terms: ExchangeSpec) -> None:
        self.tensor = tensor
        self._exchange = choose.exchange(group, [tensor], terms)

    def __call__(self, data: Bytes, buffer: Bytes) -> None:
        self._exchange.run([data], [buffer])

    def buffer(self) -> Bytes:
        """Return memory for what this rank gets from the ghosts of others."""
        return new_bytes(self.tensor.target_bytes(self.tensor.position))

    def sums(self, pattern: Pattern, padded: Array, buffer: Bytes) -> list[Sum]:
        """Return what to add to the *padded* block of this rank once the *buffer* is filled, always in one order."""
        tensor, found = self.tensor, []
        assert tensor.there is not None
        box, boxes = tensor.there.source(tensor.position), tensor.receives_of(tensor.position)
        assert box is not None
        begins = tensor.offsets(tensor.position)
        starts, stops = boxes.starts[:, 1:], boxes.stops[:, 1:]
        firsts, steps = np.empty_like(starts), np.empty_like(starts)
        for axis, rule in enumerate(pattern.rules):
            first, steps[:, axis] = sources_of(rule, starts[:, axis], stops[:, axis])
            firsts[:, axis] = first - box[axis][0]
        for i, key in enumerate(map(tuple, boxes.starts.tolist())):
            shape = tuple((stops[i] - starts[i]).tolist())
            back = np.ndarray(shape, pattern.dtype, buffer, begins[key])
            found += _sums(padded, back, firsts[i].tolist(), steps[i].tolist())
        return found


def _sums(padded: Array, back: Array, firsts: list[int], steps: list[int]) -> list[Sum]:
    """Return the sums for one box; where several ghosts come from one element, one after the other."""
    into: list[slice] = []
    alike: list[int] = []
    for axis, (first, step) in enumerate(zip(firsts, steps, strict=True)):
        n = back.shape[axis]
        if step == 0:
            alike.append(axis)
            n = 1
        stop = first + n if step >= 0 else first - n
        into.append(slice(first, None if stop < 0 else stop, -1 if step < 0 else 1))
    target, found = padded[tuple(into)], []
    for at in np.ndindex(*(back.shape[axis] for axis in alike)):
        chosen = [slice(None)] * back.ndim
        for axis, index in zip(alike, at, strict=True):
            chosen[axis] = slice(index, index + 1)
        found.append(Sum(target, back[tuple(chosen)]))
    return found


def _built_update(pattern: Pattern, here: Location) -> Exchange:
    group, tensors = _in_group([pattern], here)
    exchange = choose.exchange(group, tensors, _terms([pattern], "update"))

    def update(blocks: list[Bytes]) -> None:
        exchange.run(blocks, blocks)

    return update


UPDATE = Collective[None]("halo update of {}".format, _built_update)
"""The exchange that fills the ghosts of a block, by its pattern."""


def _text_of_many(patterns: Sequence[Pattern], use: str) -> str:
    return f"{use}: {'; '.join(map(str, patterns))}"


def _built_repeated(patterns: Sequence[Pattern], use: str, here: Location) -> Open:
    group, tensors = _in_group(patterns, here)
    terms = _terms(patterns, use)
    return lambda blocks: choose.repeated(group, tensors, terms, blocks)


UPDATE_MANY = Collective[choose.Repeated](_text_of_many, _built_repeated)
"""What makes the exchange that fills the ghosts of certain blocks, by their patterns; it may start without waiting."""


def _built_reduce(pattern: Pattern, here: Location) -> Returning:
    group, (there,) = _in_group([pattern], here)
    return Returning(group, returns(there), _terms([pattern], "reduce"))


REDUCE = Collective[None]("halo reduce of {}".format, _built_reduce)
"""The exchange that brings ghosts back to their owners, by their pattern."""


def _in_group(patterns: Sequence[Pattern], here: Location) -> tuple[Group, list[Ghosts]]:
    """Return the ranks that exchange ghosts with the device *here*, and these ghosts."""
    layout = patterns[0].layout
    mesh = layout.mesh
    sharding = set().union(*(used(pattern.layout) for pattern in patterns))
    dims: Names = tuple(name for name, size in mesh.dims if size > 1 and name in sharding)
    first = here.device - sum(here.device // mesh.stride(n) % mesh.dim_size(n) * mesh.stride(n) for n in dims)
    devices = [first]
    for name in dims:
        stride, size = mesh.stride(name), mesh.dim_size(name)
        devices = [device + i * stride for device in devices for i in range(size)]
    group = here.team.group((mesh, dims), devices[0], tuple(mesh.ranks[device] for device in devices))
    return group, [ghosts(pattern, dims, here.device) for pattern in patterns]


def _terms(patterns: Sequence[Pattern], use: str) -> ExchangeSpec:
    text = "; ".join(map(str, patterns))
    most = sum(pattern.most_bytes() for pattern in patterns)
    return ExchangeSpec(fingerprint(f"{use} of ghosts {text}"), most, stages=False, one_memory=use != "reduce")
