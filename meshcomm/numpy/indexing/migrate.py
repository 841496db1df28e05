"""Rows sent to devices: each rank names the target device of its rows, such as particles that left its block."""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from meshcomm.blocks.rows import migrate_rows, ranks_along
from meshcomm.core._arguments import as_array, counted, quote
from meshcomm.core._types import Array, Indices
from meshcomm.core.layouts.mesh import Mesh
from meshcomm.core.ranks.meshes import required_default_mesh
from meshcomm.errors import DTypeError, MeshError, ShapeError

Rows: TypeAlias = ArrayLike | Sequence[ArrayLike] | Mapping[str, ArrayLike]


class Migrated(NamedTuple):
    """The rows that `migrate` brought to a device.

    Parameters
    ----------
    rows: array, or list, tuple or dict of arrays, as passed
    sources: device from which each row came, ascending
    """

    rows: Rows
    sources: Indices


Migrated.__module__ = "meshcomm"  # a NamedTuple cannot say so in its body


class _SentRows(NamedTuple):
    """The checked arguments of a rank.

    Parameters
    ----------
    arrays: arrays of rows
    devices: target device of each row
    text: dtypes and row shapes, which are equal on all ranks
    rebuild: function that returns arrays in the container that was passed
    """

    arrays: list[Array]
    devices: Indices
    text: str
    rebuild: Callable[[list[Array]], Rows]


def migrate(rows: Rows, devices: ArrayLike, mesh: Mesh | None = None) -> Migrated:
    """Send each row to a device of the mesh, and return those that come to this one. Collective over the mesh.

    A row is the element of an array at one index of its first axis: a number, a record, or an array. Ranks may pass
    different numbers of rows. Rows arrive ordered by the device that sent them, and those of one device in its order.
    Beyond the result, a rank uses memory within the scratch limit of a relayout. Source: MPI_Alltoallv.

    Parameters
    ----------
    rows: plain array, or list, tuple or dict of arrays with equally many rows, which travel together. Dtypes,
        and the shapes of rows, are the same on all ranks
    devices: target device of each row
    mesh: mesh of the devices; by default that of `default_mesh`

    Errors on all ranks: ``ShapeError`` if the numbers of devices and rows differ, ``DTypeError`` for devices that are
    no integers, ``MeshError`` for a device outside of the mesh, ``CollectiveMismatch`` for dtypes or row shapes that
    differ between ranks.

    >>> import numpy as np, meshcomm as mc
    >>> def program():
    ...     mesh = mc.create_mesh([("x", 2)])
    ...     migrated = mc.migrate(10 * mesh.rank + np.arange(3), [1, 0, 1], mesh)
    ...     return migrated.rows.tolist(), migrated.sources.tolist()
    >>> with mc.simulate(2) as world:
    ...     print(world.run(program))
    [([1, 11], [0, 1]), ([0, 2, 10, 12], [0, 0, 1, 1])]
    """
    target_mesh = required_default_mesh("mesh=") if mesh is None else mesh
    if not isinstance(target_mesh, Mesh):
        raise MeshError(f"migrate: mesh must be a Mesh, not {quote(mesh)}")
    if target_mesh.rank is None:
        raise MeshError("migrate: a rank outside of the mesh gets no rows: call it on the ranks of the mesh only")
    with ranks_along("migrate", target_mesh, tuple(target_mesh.dim_names), "rows") as ranks:
        sent_rows = ranks.agree_on_result(
            lambda: _sent_rows(rows, devices, target_mesh.size), lambda sent_rows: f"migrate {sent_rows.text}"
        )
        arrays, counts = migrate_rows(ranks, sent_rows.arrays, sent_rows.devices)
    return Migrated(sent_rows.rebuild(arrays), np.repeat(np.arange(len(counts)), counts))


def _sent_rows(rows: Rows, devices: ArrayLike, size: int) -> _SentRows:
    """Return the checked arguments of a rank; *size* is that of the mesh."""
    items, names, rebuild = _rows_as_arrays(rows)
    arrays = [as_array(item) for item in items]
    targets = as_array(devices)
    if targets.size and targets.dtype.kind not in "iu":
        raise DTypeError(f"migrate: devices are integers, not {targets.dtype}")
    for name, array in zip(names, arrays, strict=True):
        if array.ndim == 0:
            raise ShapeError(f"migrate: rows{name} has no axes, but its first axis counts rows")
        if targets.shape != array.shape[:1]:
            raise ShapeError(
                f"migrate: rows{name} has {counted(array.shape[0], 'row')}, but devices has shape {targets.shape}: "
                "it says for each row which device gets it"
            )
    wrong_rows = np.flatnonzero((targets < 0) | (targets >= size))
    if wrong_rows.size:
        row = int(wrong_rows[0])
        raise MeshError(f"migrate: row {row} is for device {targets[row]}, but the mesh has devices 0 to {size - 1}")
    text = ", ".join(
        f"rows{name} of {array.shape[1:]} {array.dtype}" for name, array in zip(names, arrays, strict=True)
    )
    return _SentRows(arrays, targets.astype(np.intp, copy=False), text, rebuild)


def _rows_as_arrays(rows: Rows) -> tuple[list[object], list[str], Callable[[list[Array]], Rows]]:
    """Return the arrays in *rows*, their names in messages, and the function that rebuilds the container."""
    if isinstance(rows, Mapping):
        keys = list(rows)
        return list(rows.values()), [f"[{key!r}]" for key in keys], lambda arrays: dict(zip(keys, arrays, strict=True))
    if isinstance(rows, list | tuple) and any(isinstance(column, np.ndarray) and column.ndim for column in rows):
        rebuild = getattr(rows, "_make", list if isinstance(rows, list) else tuple)  # a named tuple has _make
        return list(rows), [f"[{number}]" for number in range(len(rows))], rebuild
    return [rows], [""], lambda arrays: arrays[0]
