"""Short tensors go to all ranks without a plan: each rank sends one message to all.

Loops over rows read numbers and short rows of a tensor, each at another index. To plan and agree on a relayout for
each takes longer than to send the data. Each message has a header that identifies its call, so ranks that make
different calls find that at once.
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

HEADER_BYTES = 8
"""Bytes of a message before its data."""


def gather_short(name: str, spec: TensorSpec, block: Array, rank_set: RankSet) -> Array:
    """Return all elements of a short tensor. Collective over the *rank_set* of its mesh.

    Parameters
    ----------
    name: name of the operation
    spec, block: spec of the tensor, and its block on this rank
    """
    data, (sizes, nonempty_blocks) = as_bytes(contiguous(block)), _blocks_by_rank(spec)
    message_size = SMALL_MESSAGE if prod(spec.shape) * spec.dtype.itemsize <= SMALL_MESSAGE - HEADER_BYTES else 0
    if message_size:
        messages = exchange_messages(
            rank_set, operation_fingerprint(name, spec), lambda: _gather_text(name, spec), data.tobytes()
        )
    else:
        with exchanging(rank_set):
            agree(rank_set, _gather_text(name, spec))
            received = np.empty(sum(sizes), np.uint8)
            offsets = [sum(sizes[:position]) for position in range(len(sizes))]
            rank_set.everyone.communicator().allgatherv(data, (received, sizes, offsets))
            messages = received.tobytes()
    result = np.empty(spec.shape, spec.dtype)
    for position, shape, slices in nonempty_blocks:
        offset = position * message_size + HEADER_BYTES if message_size else sum(sizes[:position])
        opaque(result)[slices] = opaque(np.ndarray(shape, spec.dtype, messages, offset))
    return result


def exchange_messages(
    rank_set: RankSet, call_fingerprint: int, make_text: Callable[[], str], data: bytes, size: int = SMALL_MESSAGE
) -> bytes:
    """Return the messages of all ranks of *rank_set*: each a header, *data*, and padding. Collective.

    Parameters
    ----------
    call_fingerprint: number that the ranks compare
    make_text: function that returns the text to compare if the numbers differ
    data: bytes of this rank, at most *size* minus the header
    size: byte count of a message, the same on all ranks
    """
    count = len(rank_set.ranks)
    header = (call_fingerprint ^ rank_set.call_digest).to_bytes(HEADER_BYTES, "little", signed=True)
    message, received = np.frombuffer((header + data).ljust(size, b"\0"), np.uint8), np.empty(size * count, np.uint8)
    offsets = [*range(0, size * count, size)]
    with exchanging(rank_set):
        rank_set.everyone.communicator().allgatherv(message, (received, [size] * count, offsets))
        messages = received.tobytes()
        if any(messages[offset : offset + HEADER_BYTES] != header for offset in offsets):
            agree(rank_set, make_text())
    return messages


def gather_counts(rank_set: RankSet, text: str, count: int) -> list[int]:
    """Return the *count* of each rank of *rank_set*, in the order of its ranks. Collective.

    *text* is the text that the ranks compare.
    """
    size = 2 * HEADER_BYTES
    messages = exchange_messages(
        rank_set, _cached_fingerprint(text), lambda: text, count.to_bytes(HEADER_BYTES, "little"), size
    )
    return [int.from_bytes(messages[i + HEADER_BYTES : i + size], "little") for i in range(0, len(messages), size)]


_cached_fingerprint = lru_cache(maxsize=1024)(fingerprint)


@lru_cache(maxsize=1024)
def _blocks_by_rank(spec: TensorSpec) -> tuple[list[int], list[tuple[int, Shape, tuple[slice, ...]]]]:
    """Return the byte count of each rank's block; and position, shape and slices of each nonempty block."""
    sizes, nonempty_blocks = list[int](), list[tuple[int, Shape, tuple[slice, ...]]]()
    device_of = {rank: device for device, rank in enumerate(spec.mesh.ranks)}
    for position, rank in enumerate(sorted(device_of)):
        slices = spec.layout.block_slices(spec.shape, device_of[rank])
        shape = tuple([interval.stop - interval.start for interval in slices])
        sizes.append(prod(shape) * spec.dtype.itemsize)
        if sizes[-1]:
            nonempty_blocks.append((position, shape, slices))
    return sizes, nonempty_blocks


def _gather_text(name: str, spec: TensorSpec) -> str:
    return f"{name}: all of {spec.shape} {spec.dtype} in {spec.layout.specs_text}"


@lru_cache(maxsize=1024)
def operation_fingerprint(name: str, spec: TensorSpec) -> int:
    """Return the number by which the ranks compare an operation on a tensor."""
    return fingerprint(_gather_text(name, spec))
