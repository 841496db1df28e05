"""Coordinates: the blocks that the devices of a mesh hold, from their coordinates along its dimensions.

Block numbers and coordinates are two forms of the same thing: `ravel` and `unravel` turn one into the other.
"""

from math import prod
from typing import TypeVar

import numpy as np

from meshcomm.core._types import Indices, Names
from meshcomm.core.layouts.cyclic import AnyCut
from meshcomm.core.layouts.layout import Layout
from meshcomm.core.layouts.mesh import Mesh
from meshcomm.core.layouts.overlaps import is_refined_by
from meshcomm.core.layouts.partition import Cut
from meshcomm.core.layouts.specs import cut_of, renamed

N = TypeVar("N", int, Indices)


def effective(layout: Layout) -> tuple[Names, ...]:
    """Return the names per axis, without mesh dimensions of size 1, which do not cut."""
    return tuple(renamed(names, tuple(n for n in names if layout.mesh.dim_size(n) > 1)) for names in layout.axes)


def used_dims(layout: Layout) -> set[str]:
    """Return the mesh dimensions that shard some axis."""
    return {name for names in layout.axes for name in names}


def cut_over(mesh: Mesh, n: int, names: Names) -> AnyCut:
    """Return the cut of an axis of *n* elements over the mesh dimensions *names*, by their rule."""
    return cut_of(names, n, devices_along(mesh, names))


def devices_along(mesh: Mesh, names: Names) -> int:
    """Return how many devices differ only in their coordinates along *names*."""
    return prod(mesh.dim_size(name) for name in names)


def coarser(mesh: Mesh, n: int, a: Names, b: Names) -> bool:
    """Return whether *b* cuts an axis of *n* elements as *a* does, and then further."""
    if tuple(b)[: len(a)] != tuple(a):
        return False
    cut_a, cut_b = cut_over(mesh, n, a), cut_over(mesh, n, b)
    if isinstance(cut_a, Cut) and isinstance(cut_b, Cut):
        return cut_a.refines(devices_along(mesh, b[len(a) :]))
    return is_refined_by(cut_a, cut_b)


def coordinates_of(mesh: Mesh, device: N) -> dict[str, N]:
    """Return the coordinate of *device*, one or an array of several, along each mesh dimension."""
    return {name: device // mesh.stride(name) % size for name, size in mesh.dims}


def block_numbers_at(mesh: Mesh, names: Names, coords: dict[str, int]) -> Indices | None:
    """Return the numbers of the blocks along *names* at the coordinates *coords*; None is all."""
    if not coords.keys() & set(names):
        return None
    allowed = np.zeros(1, dtype=np.intp)
    for name in names:
        size = mesh.dim_size(name)
        coordinate = np.array([coords[name]], dtype=np.intp) if name in coords else np.arange(size, dtype=np.intp)
        allowed = (allowed[:, None] * size + coordinate).ravel()
    return allowed


def unravel(mesh: Mesh, names: Names, numbers: Indices) -> list[tuple[str, Indices]]:
    """Return the coordinate along each name of the blocks *numbers*, the first name slowest."""
    coordinates = []
    for name in reversed(names):
        numbers, coordinate = np.divmod(numbers, mesh.dim_size(name))
        coordinates.append((name, coordinate))
    return coordinates


def ravel(mesh: Mesh, names: Names, coordinates: dict[str, Indices]) -> Indices:
    """Return the block numbers along *names* at *coordinates*, the inverse of `unravel`."""
    numbers = np.zeros_like(next(iter(coordinates.values()), np.zeros(1, dtype=np.intp)))
    for name in names:
        numbers = numbers * mesh.dim_size(name) + coordinates[name]
    return numbers


def numbers_of(layout: Layout, devices: Indices) -> Indices:
    """Return the block numbers of *devices* along all axes, a row each."""
    mesh, coordinates = layout.mesh, coordinates_of(layout.mesh, devices)
    columns = [ravel(mesh, names, coordinates) if names else np.zeros_like(devices) for names in layout.axes]
    return np.stack(columns, axis=1) if columns else np.zeros((len(devices), 0), dtype=np.intp)


def _unused_dims(layout: Layout) -> Names:
    return tuple(name for name in layout.mesh.dim_names if name not in used_dims(layout))


def replica_count(layout: Layout) -> int:
    """Return how many devices hold the same block."""
    return devices_along(layout.mesh, _unused_dims(layout))


def replica_numbers(layout: Layout, devices: Indices) -> Indices:
    """Return the number of the replica that each of *devices* holds of its block."""
    mesh, names = layout.mesh, _unused_dims(layout)
    return ravel(mesh, names, coordinates_of(mesh, devices)) if names else np.zeros_like(devices)


def devices_with(layout: Layout, numbers: Indices, replicas: Indices) -> Indices:
    """Return the devices that hold the given *replicas* of the blocks with the given *numbers*, a row per block."""
    mesh, devices = layout.mesh, np.zeros(len(numbers), dtype=np.intp)
    for axis, names in enumerate(layout.axes):
        for name, coordinate in unravel(mesh, names, numbers[:, axis]):
            devices += coordinate * mesh.stride(name)
    for name, coordinate in unravel(mesh, _unused_dims(layout), replicas):
        devices += coordinate * mesh.stride(name)
    return devices


def single_index(number: int) -> Indices:
    """Return *number* as an array of one index."""
    return np.array([number], dtype=np.intp)
