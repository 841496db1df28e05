"""The way of the bytes."""

from collections.abc import Callable

import numpy as np

from meshcomm._tuning import GATHERED_AT_ONCE, LARGEST_COUNT
from meshcomm._types import Array
from meshcomm.layouts.boxes import Boxes
from meshcomm.memory.blocks import as_block, as_bytes, nbytes, new_bytes
from meshcomm.ranks.agreement import fingerprint
from meshcomm.ranks.teams import Group
from meshcomm.transport.exchange import Far, Part
from meshcomm.transport.in_place import OnNode
from meshcomm.transport.packed import Exchange, Gather


def exchanged(
    call: str,
    group: Group,
    place: int,
    itemsize: int,
    shape: tuple[int, ...],
    sends: Boxes,
    target_shape: tuple[int, ...],
    receives: Boxes,
    far: Far,
    kind: type[Exchange] = Exchange,
) -> Callable[[Array], Array]:
    """Return a function from an array of *shape* to what its exchange makes of it. Local; to call it is Collective.

    *call* is the same on all ranks; *far* says where the boxes are in the arrays of the others.
    """
    most = max(nbytes(shape, itemsize), nbytes(target_shape, itemsize))
    part = Part(itemsize, shape, sends, target_shape, receives)
    over_mpi = kind(group, place, [part], most)
    return _runner(OnNode(over_mpi, group, place, part, far, most, fingerprint(call)), part)


def gathered(
    call: str,
    group: Group,
    place: int,
    itemsize: int,
    shape: tuple[int, ...],
    target_shape: tuple[int, ...],
    receives: Boxes,
) -> Callable[[Array], Array]:
    """Return a function from an array of *shape*, which all ranks of the group get, to those of all. As above."""
    count = len(group.members)
    zeros = np.zeros((1, len(shape)), dtype=np.intp)
    sends = Boxes(np.arange(count), np.zeros(count, dtype=np.intp), zeros, zeros + shape)
    part = Part(itemsize, shape, sends, target_shape, receives)
    size = nbytes(target_shape, itemsize)
    at_once = size <= min(count * GATHERED_AT_ONCE, LARGEST_COUNT)
    extents = receives.stops - receives.starts
    far = Far(
        lambda peer: (tuple(extents[peer].tolist()), zeros[0]), lambda peer: (target_shape, receives.starts[place])
    )
    over_mpi = Gather(group, place, part) if at_once else Exchange(group, place, [part], size)
    return _runner(OnNode(over_mpi, group, place, part, far, size, fingerprint(call)), part)


def _runner(exchange: OnNode, part: Part) -> Callable[[Array], Array]:
    shape = part.target_shape
    assert shape is not None
    size = nbytes(shape, part.itemsize)

    def run(a: Array) -> Array:
        target = new_bytes(size)
        exchange.run([as_bytes(a)], [target])
        return as_block(target, shape, a.dtype)

    return run


def along(shape: tuple[int, ...], axis: int, length: int, count: int) -> Boxes:
    """Return *count* boxes of *length* one after the other along *axis*, one for each place of the group."""
    starts = np.zeros((count, len(shape)), dtype=np.intp)
    stops = np.tile(np.array(shape, dtype=np.intp), (count, 1))
    starts[:, axis] = np.arange(count) * length
    stops[:, axis] = starts[:, axis] + length
    return Boxes(np.arange(count, dtype=np.intp), np.arange(count, dtype=np.intp), starts, stops)


def whole(shape: tuple[int, ...], *peers: int) -> Boxes:
    """Return the whole block as the box for each of *peers*."""
    stops = np.tile(np.array(shape, dtype=np.intp), (len(peers), 1))
    return Boxes(np.array(peers, dtype=np.intp), np.arange(len(peers), dtype=np.intp), np.zeros_like(stops), stops)
