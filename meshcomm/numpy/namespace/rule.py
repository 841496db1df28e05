"""The rule of creation: in which layout a new tensor lies, if its maker names none.

It is a pure function of shape, dtype and mesh:

1. What has less than 1 MiB (`WHOLE_BELOW`) is whole on every rank.
2. Of anything larger, the first axis with 8 elements or more for each rank (`LONG_ENOUGH`) is cut over the whole mesh,
   over all its dimensions.
3. If no axis is so long, the longest one is cut, if it has an element for each rank.
4. Else the array is whole on every rank.
"""

from collections.abc import Iterable
from functools import lru_cache
from math import prod

from meshcomm.core._types import DType, Names, Shape
from meshcomm.core.layouts.layout import Layout
from meshcomm.core.layouts.mesh import Mesh
from meshcomm.core.ranks.sizes import whole_below

WHOLE_BELOW = whole_below()
"""Bytes: the environment is read once, because all arrays of a program follow one rule."""

LONG_ENOUGH = 8
"""Elements for each rank. A new array is cut along the first axis that has so many: blocks differ by an eighth.
A compromise: small first axes, such as the colours of a picture, stay whole."""


def axis_to_cut(shape: Shape, itemsize: int, ranks: int) -> int | None:
    """Return the axis of an array of *shape* that is cut over so many *ranks*; None if it is whole on each.

    >>> axis_to_cut((100,), 8, 4), axis_to_cut((3, 100_000), 8, 4), axis_to_cut((10, 6, 5, 800), 8, 16)
    (None, 1, 3)
    """
    if ranks == 1 or not shape or prod(shape) * itemsize < WHOLE_BELOW:
        return None
    first = next((axis for axis, n in enumerate(shape) if n >= LONG_ENOUGH * ranks), None)
    if first is not None:
        return first
    longest = max(range(len(shape)), key=shape.__getitem__)
    return longest if shape[longest] >= ranks else None


def layout_for(shape: Shape, dtype: DType, mesh: Mesh) -> Layout:
    """Return the layout of a new array of *shape* and *dtype* on *mesh*. Equal ones are one object.

    >>> import numpy as np
    >>> mesh = Mesh(range(4), {"x": 2, "y": 2})
    >>> layout_for((1000, 1000), np.dtype("f8"), mesh).axes, layout_for((3,), np.dtype("f8"), mesh).axes
    ((('x', 'y'), ()), ((),))
    """
    return _cut_along(axis_to_cut(shape, dtype.itemsize, mesh.size), len(shape), _Same(mesh))


class _Same:
    """A mesh, equal to itself only: equal meshes may belong to different worlds."""

    def __init__(self, mesh: Mesh) -> None:
        self.mesh = mesh

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and self.mesh is other.mesh

    def __hash__(self) -> int:
        return id(self.mesh)


@lru_cache(maxsize=256)
def _cut_along(axis: int | None, ndim: int, same: _Same) -> Layout:
    names: Names = tuple(same.mesh.dim_names)
    axes: Iterable[Names] = (names if number == axis else () for number in range(ndim))
    return Layout(list(axes), same.mesh)
