"""What is short goes to all ranks in one message of each, without a plan.

Row loops take numbers and short rows of a tensor, each at another index. Each would be a relayout that the ranks plan
and agree on, which takes longer than to send it. Each message has a header that says which call it belongs to: so
calls that differ are found at once, as always.
"""

from collections.abc import Callable
from functools import lru_cache
from math import prod

import numpy as np

from meshcomm.core._tuning import SMALL_MESSAGE
from meshcomm.core._types import Array, Shape
from meshcomm.core.arrays.spec import TensorSpec
from meshcomm.core.memory.blocks import as_bytes
from meshcomm.core.memory.copies import contiguous, opaque
from meshcomm.core.ranks.agreement import agree, fingerprint
from meshcomm.core.ranks.calls import exchanging
from meshcomm.core.ranks.rank_sets import RankSet

HEADER = 8
"""Bytes of a message before its data."""


def whole_of(name: str, spec: TensorSpec, block: Array, rank_set: RankSet) -> Array:
    """Return all elements of a short tensor. Collective over the *rank_set* of its mesh.

    Parameters
    ----------
    name: name of the operation
    spec, block: spec of the tensor, and its block on this rank
    """
    data, (sizes, filled) = as_bytes(contiguous(block)), _blocks_by_rank(spec)
    step = SMALL_MESSAGE if prod(spec.shape) * spec.dtype.itemsize <= SMALL_MESSAGE - HEADER else 0
    if step:
        messages = exchange_messages(rank_set, number_of(name, spec), lambda: _gather_text(name, spec), data.tobytes())
    else:
        with exchanging(rank_set):
            agree(rank_set, _gather_text(name, spec))
            into = np.empty(sum(sizes), np.uint8)
            offsets = [sum(sizes[:position]) for position in range(len(sizes))]
            rank_set.everyone.communicator().allgatherv(data, (into, sizes, offsets))
            messages = into.tobytes()
    whole = np.empty(spec.shape, spec.dtype)
    for position, shape, at in filled:
        begin = position * step + HEADER if step else sum(sizes[:position])
        opaque(whole)[at] = opaque(np.ndarray(shape, spec.dtype, messages, begin))
    return whole


def exchange_messages(
    rank_set: RankSet, number: int, text: Callable[[], str], data: bytes, size: int = SMALL_MESSAGE
) -> bytes:
    """Return the messages of all ranks of *rank_set*: each a header, *data*, and what fills it up. Collective.

    Parameters
    ----------
    number, text: number that the ranks compare, and a function for the text if numbers differ
    data: bytes of this rank, *size* at most, less those of the header
    size: bytes of a message, the same on all ranks
    """
    count = len(rank_set.ranks)
    header = (number ^ rank_set.call_digest).to_bytes(HEADER, "little", signed=True)
    message, into = np.frombuffer((header + data).ljust(size, b"\0"), np.uint8), np.empty(size * count, np.uint8)
    offsets = [*range(0, size * count, size)]
    with exchanging(rank_set):
        rank_set.everyone.communicator().allgatherv(message, (into, [size] * count, offsets))
        messages = into.tobytes()
        if any(messages[at : at + HEADER] != header for at in offsets):
            agree(rank_set, text())
    return messages


def gathered_counts(rank_set: RankSet, call: str, count: int) -> list[int]:
    """Return the *count* of each rank of *rank_set*, in the order of its ranks. Collective.

    *call* is what the ranks compare.
    """
    size = 2 * HEADER
    messages = exchange_messages(rank_set, _number_of(call), lambda: call, count.to_bytes(HEADER, "little"), size)
    return [int.from_bytes(messages[at + HEADER : at + size], "little") for at in range(0, len(messages), size)]


_number_of = lru_cache(maxsize=1024)(fingerprint)


@lru_cache(maxsize=1024)
def _blocks_by_rank(spec: TensorSpec) -> tuple[list[int], list[tuple[int, Shape, tuple[slice, ...]]]]:
    """Return the bytes of each rank; and of those with some: the shape of the block, and where it is."""
    sizes, filled = list[int](), list[tuple[int, Shape, tuple[slice, ...]]]()
    device_of = {rank: device for device, rank in enumerate(spec.mesh.ranks)}
    for position, rank in enumerate(sorted(device_of)):
        at = spec.layout.block_slices(spec.shape, device_of[rank])
        shape = tuple([interval.stop - interval.start for interval in at])
        sizes.append(prod(shape) * spec.dtype.itemsize)
        if sizes[-1]:
            filled.append((position, shape, at))
    return sizes, filled


def _gather_text(name: str, spec: TensorSpec) -> str:
    return f"{name}: all of {spec.shape} {spec.dtype} in {spec.layout.specs_text}"


@lru_cache(maxsize=1024)
def number_of(name: str, spec: TensorSpec) -> int:
    """Return what the ranks compare about an operation on a tensor."""
    return fingerprint(_gather_text(name, spec))
