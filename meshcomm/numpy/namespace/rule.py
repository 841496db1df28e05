"""The rule of creation: the layout of a new tensor if the program passes none.

It is a pure function of shape, dtype and mesh:

1. An array of less than 1 MiB (`WHOLE_BELOW`) is whole on every rank.
2. Of a larger array, the first axis with 8 elements or more for each rank (`LONG_ENOUGH`) is cut over all dimensions
   of the mesh.
3. If no axis is long enough, the longest one is cut, if it has an element for each rank.
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
"""Bytes below which an array is whole on every rank. The environment is read once, so all arrays follow one rule."""

LONG_ENOUGH = 8
"""Elements per rank. A new array is cut along the first axis with at least this many, so that blocks differ by at most
an eighth. A compromise: small first axes, such as the colours of a picture, stay whole."""


def axis_to_cut(shape: Shape, itemsize: int, ranks: int) -> int | None:
    """Return the axis of an array of *shape* that is cut over *ranks* ranks; None if each rank has the whole array.

    >>> axis_to_cut((100,), 8, 4), axis_to_cut((3, 100_000), 8, 4), axis_to_cut((10, 6, 5, 800), 8, 16)
    (None, 1, 3)
    """
    if ranks == 1 or not shape or prod(shape) * itemsize < WHOLE_BELOW:
        return None
    first_long_axis = next((axis for axis, n in enumerate(shape) if n >= LONG_ENOUGH * ranks), None)
    if first_long_axis is not None:
        return first_long_axis
    longest_axis = max(range(len(shape)), key=shape.__getitem__)
    return longest_axis if shape[longest_axis] >= ranks else None


def layout_for(shape: Shape, dtype: DType, mesh: Mesh) -> Layout:
    """Return the layout of a new array of *shape* and *dtype* on *mesh*. Equal layouts are one object.

    >>> import numpy as np
    >>> mesh = Mesh(range(4), {"x": 2, "y": 2})
    >>> layout_for((1000, 1000), np.dtype("f8"), mesh).axes, layout_for((3,), np.dtype("f8"), mesh).axes
    ((('x', 'y'), ()), ((),))
    """
    return _cut_along(axis_to_cut(shape, dtype.itemsize, mesh.size), len(shape), _MeshIdentity(mesh))


class _MeshIdentity:
    """A mesh compared by identity, as a key of a cache: equal meshes may belong to different worlds."""

    def __init__(self, mesh: Mesh) -> None:
        self.mesh = mesh

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _MeshIdentity) and self.mesh is other.mesh

    def __hash__(self) -> int:
        return id(self.mesh)


@lru_cache(maxsize=256)
def _cut_along(axis: int | None, ndim: int, mesh_identity: _MeshIdentity) -> Layout:
    names: Names = tuple(mesh_identity.mesh.dim_names)
    axes: Iterable[Names] = (names if other == axis else () for other in range(ndim))
    return Layout(list(axes), mesh_identity.mesh)
