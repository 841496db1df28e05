"""Mesh dimensions: their names and sizes, and the checks of a list of them."""

import math
from collections.abc import Iterable, Mapping
from typing import NamedTuple, TypeAlias

from meshcomm.core._arguments import as_integer, quote
from meshcomm.core.layouts.devices import as_tuple, checked_name
from meshcomm.errors import MeshError

Dims: TypeAlias = Iterable[tuple[str, int]] | Mapping[str, int]

# In the text form of a layout, "scalar" and "any" have another meaning than a mesh dimension.
RESERVED_NAMES = frozenset({"unsharded", "match", "any", "scalar"})
MAX_INT64 = 2**63 - 1
_MAX_DIMS = 32  # the number of axes of an ndarray that every supported NumPy allows


class MeshDimension(NamedTuple):
    """A mesh dimension: its name and its size, the number of devices along it."""

    name: str
    size: int


MeshDimension.__module__ = "meshcomm"  # type checkers would take it for a field


def canonical_dims(dims: Dims) -> tuple[MeshDimension, ...]:
    """Return *dims* as MeshDimensions; ``MeshError`` if a mesh cannot have these names and sizes."""
    pairs = as_tuple("mesh dimensions", dims.items() if isinstance(dims, Mapping) else dims)
    if not 1 <= len(pairs) <= _MAX_DIMS:
        raise MeshError(f"{len(pairs)} mesh dimensions; a mesh has between 1 and {_MAX_DIMS}")
    mesh_dims = tuple(_canonical_dim(i, pair) for i, pair in enumerate(pairs))
    names = [dim.name for dim in mesh_dims]
    for name in names:
        if names.count(name) > 1:
            raise MeshError(f"repeated mesh dimension {quote(name)} in {quote(names)}; the names in a mesh are unique")
    if math.prod(dim.size for dim in mesh_dims) > MAX_INT64:
        raise MeshError(f"a mesh of shape {[dim.size for dim in mesh_dims]}; it has at most 2**63 - 1 devices")
    return mesh_dims


def _canonical_dim(i: int, pair: object) -> MeshDimension:
    if not isinstance(pair, list | tuple) or len(pair) != 2:
        raise MeshError(
            f"mesh dimension {i} is {quote(pair)}; a mesh dimension is a pair (name, size), as in [('x', 4)]"
        )
    name = checked_name(f"name of mesh dimension {i}", pair[0], "+,=|")
    if name in RESERVED_NAMES:
        raise MeshError(f"mesh dimension name {name} is reserved; reserved are {', '.join(sorted(RESERVED_NAMES))}")
    size = as_integer(pair[1], f"size of mesh dimension {quote(name)}")
    if not 1 <= size <= MAX_INT64:
        raise MeshError(f"mesh dimension {quote(name)} has size {quote(size)}; sizes are 1 .. 2**63 - 1")
    return MeshDimension(name, size)


def row_major_strides(dims: tuple[MeshDimension, ...]) -> tuple[int, ...]:
    """Return the distance, in the list of devices, between neighbours along each dimension."""
    strides = [1]
    for dim in dims[:0:-1]:
        strides.append(strides[-1] * dim.size)
    return tuple(reversed(strides)) if dims else ()
