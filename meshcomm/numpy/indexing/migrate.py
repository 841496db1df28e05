"""Rows to ranks: each rank says which device gets each of its rows, such as particles that have left its block."""

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
    """What a rank passes: its arrays, where each row goes, and what all ranks have alike."""

    arrays: list[Array]
    devices: Indices
    text: str
    again: Callable[[list[Array]], Rows]  # puts arrays together as they were passed


def migrate(rows: Rows, devices: ArrayLike, mesh: Mesh | None = None) -> Migrated:
    """Send each row to a device of the mesh, and return those that come to this one. Collective over the mesh.

    A row is what an array has at one index of its first axis: a number, a record, or an array. Each rank may pass
    another number of rows. They arrive in the order of the devices that had them, and of one device in its order.
    Beyond the result, a rank uses memory within the scratch limit of a relayout. Source: MPI_Alltoallv.

    Parameters
    ----------
    rows: plain array, or list, tuple or dict of arrays with equally many rows, which travel together. Dtypes,
        and the shapes of rows, are the same on all ranks
    devices: target device of each row
    mesh: mesh of the devices; by default that of `default_mesh`

    On all ranks ``ShapeError`` if there are not as many devices as rows, ``DTypeError`` if they are no integers,
    ``MeshError`` for one that is not in the mesh, ``CollectiveMismatch`` for rows that differ between ranks.

    >>> import numpy as np, meshcomm as mc
    >>> def program():
    ...     mesh = mc.create_mesh([("x", 2)])
    ...     found = mc.migrate(10 * mesh.rank + np.arange(3), [1, 0, 1], mesh)
    ...     return found.rows.tolist(), found.sources.tolist()
    >>> with mc.simulate(2) as world:
    ...     print(world.run(program))
    [([1, 11], [0, 1]), ([0, 2, 10, 12], [0, 0, 1, 1])]
    """
    where = required_default_mesh("mesh=") if mesh is None else mesh
    if not isinstance(where, Mesh):
        raise MeshError(f"migrate: mesh must be a Mesh, not {quote(mesh)}")
    if where.rank is None:
        raise MeshError("migrate: a rank outside of the mesh gets no rows: call it on the ranks of the mesh only")
    with ranks_along("migrate", where, tuple(where.dim_names), "rows") as ranks:
        sent = ranks.agree_on_result(
            lambda: _sent_rows(rows, devices, where.size), lambda sent: f"migrate {sent.text}"
        )
        arrays, counts = migrate_rows(ranks, sent.arrays, sent.devices)
    return Migrated(sent.again(arrays), np.repeat(np.arange(len(counts)), counts))


def _sent_rows(rows: Rows, devices: ArrayLike, size: int) -> _SentRows:
    """Return what a rank passes after its checks; *size* is that of the mesh."""
    items, names, again = _taken_apart(rows)
    arrays = [as_array(item) for item in items]
    to = as_array(devices)
    if to.size and to.dtype.kind not in "iu":
        raise DTypeError(f"migrate: devices are integers, not {to.dtype}")
    for name, array in zip(names, arrays, strict=True):
        if array.ndim == 0:
            raise ShapeError(f"migrate: rows{name} has no axes, but its first axis counts rows")
        if to.shape != array.shape[:1]:
            raise ShapeError(
                f"migrate: rows{name} has {counted(array.shape[0], 'row')}, but devices has shape {to.shape}: "
                "it says for each row which device gets it"
            )
    wrong = np.flatnonzero((to < 0) | (to >= size))
    if wrong.size:
        at = int(wrong[0])
        raise MeshError(f"migrate: row {at} is for device {to[at]}, but the mesh has devices 0 to {size - 1}")
    text = ", ".join(
        f"rows{name} of {array.shape[1:]} {array.dtype}" for name, array in zip(names, arrays, strict=True)
    )
    return _SentRows(arrays, to.astype(np.intp, copy=False), text, again)


def _taken_apart(rows: Rows) -> tuple[list[object], list[str], Callable[[list[Array]], Rows]]:
    """Return the arrays in *rows*, what messages call each one, and what puts arrays together in the same way."""
    if isinstance(rows, Mapping):
        keys = list(rows)
        return list(rows.values()), [f"[{key!r}]" for key in keys], lambda arrays: dict(zip(keys, arrays, strict=True))
    if isinstance(rows, list | tuple) and any(isinstance(column, np.ndarray) and column.ndim for column in rows):
        whole = getattr(rows, "_make", list if isinstance(rows, list) else tuple)  # a named tuple has _make
        return list(rows), [f"[{number}]" for number in range(len(rows))], whole
    return [rows], [""], lambda arrays: arrays[0]
