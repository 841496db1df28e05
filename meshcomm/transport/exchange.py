"""What the ranks of a group exchange: the boxes of one or several tensors."""

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

from meshcomm._kernels import BoxCopies
from meshcomm._types import Shape
from meshcomm.layouts.boxes import Boxes
from meshcomm.memory.blocks import nbytes
from meshcomm.memory.copies import joined, placed


class Part(NamedTuple):
    """What one tensor has to do with an exchange: boxes of a block that others get, and of theirs in a new block.

    Boxes are in indices of the block that they lie in. A shape is None where there is no such block.
    """

    itemsize: int
    shape: tuple[int, ...] | None
    sends: Boxes
    target_shape: tuple[int, ...] | None
    receives: Boxes


def own_copies(parts: list[Part], place: int) -> BoxCopies | None:
    """Return the copies of what a rank sends to itself, from block to block, if there are any. Local."""
    froms, tos = [], []
    for region, part in enumerate(parts):
        mine, own = (boxes.which[boxes.peers == place] for boxes in (part.sends, part.receives))
        froms.append(placed(region, part.shape, part.itemsize, part.sends.starts[mine], part.sends.stops[mine]))
        tos.append(
            placed(region, part.target_shape, part.itemsize, part.receives.starts[own], part.receives.stops[own])
        )
    itemsizes = [part.itemsize for part in parts]
    (source, itemsize), (target, _) = joined(froms, itemsizes), joined(tos, itemsizes)
    if not len(source.offsets):
        return None
    sizes = [nbytes(part.shape, part.itemsize) for part in parts]
    target_sizes = [nbytes(part.target_shape, part.itemsize) for part in parts]
    return BoxCopies(sizes, target_sizes, itemsize, *source[:3], *target)


Where: TypeAlias = Callable[[int], tuple[Shape, Any]]


class Far(NamedTuple):
    """The blocks of the other ranks of a group, by their place.

    *source* gives the shape of the block of which this rank gets a box, and where in it that begins; *target* the
    shape of the new block that gets a box from this rank, and where in it that begins.
    """

    source: Where
    target: Where
