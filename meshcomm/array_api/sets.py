"""The functions of the array API standard for sets and searches: NumPy's, called with tensors by NumPy's protocol.

The results of those for sets are cut as the values fall, over the mesh dimensions that shard the tensor.
"""

from functools import partial
from typing import Any, Literal, NamedTuple

import numpy as np

from meshcomm.core.arrays.dtensor import DTensor

Number = int | float | complex


class UniqueAll(NamedTuple):
    """The distinct elements; where each one is first; which one each element is; and how often each one is there."""

    values: DTensor
    indices: DTensor
    inverse_indices: DTensor
    counts: DTensor


class UniqueCounts(NamedTuple):
    """The distinct elements, and how often each one is there."""

    values: DTensor
    counts: DTensor


class UniqueInverse(NamedTuple):
    """The distinct elements, and which one each element is."""

    values: DTensor
    inverse_indices: DTensor


_unique: Any = partial(np.unique, equal_nan=False)
"""NumPy's function, by its protocol; NaN differs from NaN."""


def unique_all(x: DTensor, /) -> UniqueAll:
    """Return the distinct elements, and all that there is to say about them. Collective over the mesh."""
    return UniqueAll(*_unique(x, return_index=True, return_inverse=True, return_counts=True))


def unique_counts(x: DTensor, /) -> UniqueCounts:
    """Return the distinct elements, and how often each one is there. Collective over the mesh."""
    return UniqueCounts(*_unique(x, return_counts=True))


def unique_inverse(x: DTensor, /) -> UniqueInverse:
    """Return the distinct elements, and which one each element is. Collective over the mesh."""
    return UniqueInverse(*_unique(x, return_inverse=True))


def unique_values(x: DTensor, /) -> DTensor:
    """Return the distinct elements. Collective over the mesh."""
    values: DTensor = _unique(x)
    return values


def isin(x1: DTensor | Number, x2: DTensor | Number, /, *, invert: bool = False) -> DTensor:
    """Return which elements of *x1* are in *x2*, or with *invert* which are not. Collective over the mesh."""
    function: Any = np.isin
    found: DTensor = function(x1, x2, invert=invert)
    return found


def searchsorted(
    x1: DTensor,
    x2: DTensor | Number,
    /,
    *,
    side: Literal["left", "right"] = "left",
    sorter: DTensor | None = None,
) -> DTensor:
    """Return where elements of *x2* belong in *x1*, which is sorted or has a *sorter*. Collective over the mesh."""
    function: Any = np.searchsorted
    found: DTensor = function(x1, x2, side=side, sorter=sorter)
    return found
