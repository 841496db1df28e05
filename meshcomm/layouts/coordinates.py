"""Coordinates: which blocks the devices of a mesh hold, from their coordinates along its dimensions."""

from math import prod

import numpy as np

from meshcomm._types import Indices, Names
from meshcomm.layouts.layout import Layout
from meshcomm.layouts.mesh import Mesh
from meshcomm.layouts.partition import Interval, overlapping, refines


def effective(layout: Layout) -> tuple[Names, ...]:
    """Return the names per axis without mesh dimensions of size 1, which divide nothing. Local."""
    return tuple(tuple(n for n in names if layout.mesh.dim_size(n) > 1) for names in layout.axes)


def used(layout: Layout) -> set[str]:
    """Return the mesh dimensions that divide some axis. Local."""
    return {name for names in layout.axes for name in names}


def parts_of(mesh: Mesh, names: Names) -> int:
    """Return into how many blocks *names* cut an axis. Local."""
    return prod(mesh.dim_size(name) for name in names)


def coarser(mesh: Mesh, n: int, a: Names, b: Names) -> bool:
    """Return whether an axis of *n* elements cut by *b* is cut by *a* and then further. Local."""
    return b[: len(a)] == a and refines(n, parts_of(mesh, a), parts_of(mesh, b[len(a) :]))


def coordinates_of(mesh: Mesh, device: int) -> dict[str, int]:
    return {name: device // mesh.stride(name) % size for name, size in mesh.dims}


def block_candidates(mesh: Mesh, n: int, names: Names, interval: Interval, fixed: dict[str, int]) -> Indices:
    """Return the numbers of the blocks of *names* that meet *interval*, at the *fixed* coordinates only."""
    numbers = overlapping(n, parts_of(mesh, names), interval)
    if not fixed.keys() & set(names):
        return np.arange(numbers.start, numbers.stop, dtype=np.intp)
    allowed = np.zeros(1, dtype=np.intp)
    for name in names:
        size = mesh.dim_size(name)
        here = np.array([fixed[name]], dtype=np.intp) if name in fixed else np.arange(size, dtype=np.intp)
        allowed = (allowed[:, None] * size + here).ravel()
    return allowed[(numbers.start <= allowed) & (allowed < numbers.stop)]


def decode(mesh: Mesh, names: Names, numbers: Indices) -> list[tuple[str, Indices]]:
    """Return the coordinate along each name of the blocks *numbers*, the first name slowest. Local."""
    decoded = []
    for name in reversed(names):
        numbers, coordinate = np.divmod(numbers, mesh.dim_size(name))
        decoded.append((name, coordinate))
    return decoded


def encode(mesh: Mesh, names: Names, coordinates: dict[str, Indices]) -> Indices:
    """Return the block numbers along *names* at *coordinates*, the inverse of `decode`. Local."""
    numbers = np.zeros_like(next(iter(coordinates.values()), np.zeros(1, dtype=np.intp)))
    for name in names:
        numbers = numbers * mesh.dim_size(name) + coordinates[name]
    return numbers


def numbers_of(layout: Layout, devices: Indices) -> Indices:
    """Return the block numbers of *devices*, a row each."""
    mesh = layout.mesh
    coordinates = {name: devices // mesh.stride(name) % size for name, size in mesh.dims}
    columns = [encode(mesh, names, coordinates) if names else np.zeros_like(devices) for names in layout.axes]
    return np.stack(columns, axis=1) if columns else np.zeros((len(devices), 0), dtype=np.intp)


def _unused(layout: Layout) -> Names:
    return tuple(name for name in layout.mesh.dim_names if name not in used(layout))


def replica_count(layout: Layout) -> int:
    return parts_of(layout.mesh, _unused(layout))


def replica_numbers(layout: Layout, devices: Indices) -> Indices:
    """Return which replica of its block each of *devices* holds."""
    mesh, names = layout.mesh, _unused(layout)
    coordinates = {name: devices // mesh.stride(name) % mesh.dim_size(name) for name in names}
    return encode(mesh, names, coordinates) if names else np.zeros_like(devices)


def devices_with(layout: Layout, numbers: Indices, replicas: Indices) -> Indices:
    """Return the devices that hold these replicas of the blocks of these *numbers*, a row each."""
    mesh, devices = layout.mesh, np.zeros(len(numbers), dtype=np.intp)
    for axis, names in enumerate(layout.axes):
        for name, coordinate in decode(mesh, names, numbers[:, axis]):
            devices += coordinate * mesh.stride(name)
    for name, coordinate in decode(mesh, _unused(layout), replicas):
        devices += coordinate * mesh.stride(name)
    return devices


def one(number: int) -> Indices:
    return np.array([number], dtype=np.intp)
