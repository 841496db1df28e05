"""Prepared exchanges of halos: built once for equal halos, on all ranks."""

from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np

from meshcomm.blocks.exchanges import Exchange, Prepared, Repeated
from meshcomm.blocks.session import Session
from meshcomm.core._types import Array, Bytes, Names
from meshcomm.core.layouts.coordinates import used_dims
from meshcomm.core.memory.blocks import new_bytes
from meshcomm.halos.axes import sources_of
from meshcomm.halos.exchange import GhostReturns, HaloPattern, ghosts, returns

MAX_KEPT_EXCHANGES = 8
"""Maximum number of exchanges that a halo keeps: its own, and those of lists of halos that begin with it. Each has
lines in the pool, and keeps the blocks of its halos alive."""

KeptExchanges: TypeAlias = dict[tuple[int, ...], Repeated]
"""The exchanges that update a halo, alone or with others, by the serial numbers of the halos."""

ExchangeAction: TypeAlias = Callable[[Repeated], object]
"""A function that runs or begins an exchange."""


class GhostSum(NamedTuple):
    """A view of a block, and a view of the ghosts to add to it."""

    target: Array
    ghosts: Array


class ReduceBuffers(NamedTuple):
    """The buffer for ghosts returned by others, and the sums to compute once it is filled."""

    buffer: Bytes
    sums: list[GhostSum]


def _all_sums(ghost_returns: GhostReturns, pattern: HaloPattern, padded: Array, buffer: Bytes) -> list[GhostSum]:
    """Return the sums for the *padded* block of this rank once the *buffer* is filled, always in one order."""
    sums = list[GhostSum]()
    assert ghost_returns.there is not None
    box, boxes = ghost_returns.there.source(ghost_returns.position), ghost_returns.receives_of(ghost_returns.position)
    assert box is not None
    buffer_offsets = ghost_returns.offsets(ghost_returns.position)
    starts, stops = boxes.starts[:, 1:], boxes.stops[:, 1:]
    source_starts, steps = np.empty_like(starts), np.empty_like(starts)
    for axis, rule in enumerate(pattern.rules):
        first_sources, steps[:, axis] = sources_of(rule, starts[:, axis], stops[:, axis])
        source_starts[:, axis] = first_sources - box[axis][0]
    for i, box_start in enumerate(map(tuple, boxes.starts.tolist())):
        shape = tuple((stops[i] - starts[i]).tolist())
        returned = np.ndarray(shape, pattern.dtype, buffer, buffer_offsets[box_start])
        sums += _sums(padded, returned, source_starts[i].tolist(), steps[i].tolist())
    return sums


def _sums(padded: Array, returned: Array, source_starts: list[int], steps: list[int]) -> list[GhostSum]:
    """Return the sums for one box: one sum for each of several ghosts of the same element."""
    slices: list[slice] = []
    repeated_axes: list[int] = []
    for axis, (start, step) in enumerate(zip(source_starts, steps, strict=True)):
        n = returned.shape[axis]
        if step == 0:
            repeated_axes.append(axis)
            n = 1
        stop = start + n if step >= 0 else start - n
        slices.append(slice(start, None if stop < 0 else stop, -1 if step < 0 else 1))
    target, sums = padded[tuple(slices)], []
    for offsets in np.ndindex(*(returned.shape[axis] for axis in repeated_axes)):
        selection = [slice(None)] * returned.ndim
        for axis, offset in zip(repeated_axes, offsets, strict=True):
            selection[axis] = slice(offset, offset + 1)
        sums.append(GhostSum(target, returned[tuple(selection)]))
    return sums


def _built_update(pattern: HaloPattern, call_session: Session) -> Callable[[list[Bytes]], None]:
    run = _ghost_exchange([pattern], "update", call_session).to_new_blocks()
    return lambda blocks: run(blocks, blocks)


UPDATE = Prepared[None]("halo update of {}".format, _built_update)
"""Fills the ghosts of a block, by its pattern."""


def _text_of_many(patterns: Sequence[HaloPattern], purpose: str) -> str:
    return f"{purpose}: {'; '.join(map(str, patterns))}"


def _built_many(patterns: Sequence[HaloPattern], purpose: str, call_session: Session) -> Callable[..., object]:
    exchange = _ghost_exchange(patterns, purpose, call_session)

    def run(exchanges: KeptExchanges, serials: tuple[int, ...], blocks: list[Bytes], action: ExchangeAction) -> object:
        try:
            repeated = exchanges.pop(serials, None)
            if repeated is None:
                repeated = exchange.in_same_blocks(blocks)
                if len(exchanges) == MAX_KEPT_EXCHANGES:  # on all ranks alike: they make the same calls
                    del exchanges[next(iter(exchanges))]
            exchanges[serials] = repeated
        except BaseException as error:  # other ranks keep an exchange that this rank lacks
            call_session.disable_after(error)
            raise
        return action(repeated)

    return run


UPDATE_MANY = Prepared[object](_text_of_many, _built_many)
"""Uses the exchange that fills the ghosts of several blocks, by their patterns; the first halo keeps it."""


def _built_reduce(pattern: HaloPattern, call_session: Session) -> Callable[..., ReduceBuffers]:
    ghost_returns = returns(ghosts(pattern, _exchange_dims([pattern]), call_session.device))
    return_ghosts = _ghost_exchange([pattern], "reduce", call_session, [ghost_returns]).to_new_blocks()

    def run(padded: Array, data: Bytes, buffers: ReduceBuffers | None) -> ReduceBuffers:
        if buffers is None:
            buffer = new_bytes(ghost_returns.target_bytes(ghost_returns.position))
            buffers = ReduceBuffers(buffer, _all_sums(ghost_returns, pattern, padded, buffer))
        return_ghosts([data], [buffers.buffer])
        return buffers

    return run


REDUCE = Prepared[ReduceBuffers]("halo reduce of {}".format, _built_reduce)
"""Brings ghosts back to their owners, by their pattern."""


def _exchange_dims(patterns: Sequence[HaloPattern]) -> Names:
    """Return the mesh dimensions along which ranks exchange ghosts."""
    sharding = set().union(*(used_dims(pattern.layout) for pattern in patterns))
    return tuple(name for name, size in patterns[0].layout.mesh.dims if size > 1 and name in sharding)


def _ghost_exchange(
    patterns: Sequence[HaloPattern],
    purpose: str,
    call_session: Session,
    ghost_returns: Sequence[GhostReturns] | None = None,
) -> Exchange:
    """Return the exchange of the ghosts of *patterns*, which are on one mesh, or of *ghost_returns*."""
    dims, text = _exchange_dims(patterns), "; ".join(map(str, patterns))
    tensors = (
        [ghosts(pattern, dims, call_session.device) for pattern in patterns]
        if ghost_returns is None
        else ghost_returns
    )
    limit = sum(pattern.max_block_bytes() for pattern in patterns)
    call = f"{purpose} of ghosts {text}"
    return Exchange(
        call_session,
        patterns[0].layout.mesh,
        dims,
        tensors,
        call=call,
        max_block_bytes=limit,
        is_in_place=ghost_returns is None,
    )
