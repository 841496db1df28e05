"""Sorts: `sort` and `argsort` of NumPy.

Where no mesh dimension cuts the axis, each device sorts its block. Where there are other axes, the tensor is relaid so
that the axis is whole, sorted, and relaid to its own layout: `whole_along`. Else the elements are sorted by a sample
sort: :mod:`meshcomm.ops.samplesort`.
"""

from collections.abc import Callable
from typing import NamedTuple, NoReturn

import numpy as np

from meshcomm._arguments import normalised_axes, quote
from meshcomm._types import Array, DType, Names, Shape
from meshcomm.arrays.dtensor import DTensor, as_tensor
from meshcomm.arrays.views import check_writable
from meshcomm.errors import ShapeError
from meshcomm.layouts.layout import Layout
from meshcomm.ops.elementwise import relaid, store
from meshcomm.ops.rules import sample, sharding
from meshcomm.ops.samplesort import in_order, kind_to_sort
from meshcomm.ops.whole import in_flat_order, is_one_line, of_whole_blocks


class _How(NamedTuple):
    """A sort.

    Parameters
    ----------
    name: ``sort`` or ``argsort``
    kind, stable: as NumPy has them
    """

    name: str
    kind: str | None
    stable: bool | None

    @property
    def indexed(self) -> bool:
        """Whether the result is indices."""
        return self.name == "argsort"

    @property
    def is_stable(self) -> bool:
        """Whether equal elements have to stay in their order."""
        return bool(self.stable) or self.kind in ("stable", "mergesort")

    def of(self, block: Array, axis: int | None) -> Array:
        """Return what NumPy's function makes of an array."""
        options: dict[str, object] = {} if self.stable is None else {"stable": self.stable}  # NumPy 1 has no stable=
        function: Callable[..., Array] = np.argsort if self.indexed else np.sort
        kind = self.kind
        if not self.indexed and ((kind is None and self.stable is None) or kind in ("quicksort", "heapsort")):
            kind = kind_to_sort(block.dtype) or kind
        return np.asarray(function(block, axis=axis, kind=kind, **options), order="C")


def sort(
    a: DTensor, axis: int | None = -1, kind: str | None = None, order: object = None, *, stable: bool | None = None
) -> DTensor:
    """Return a sorted copy, as numpy.sort. Collective over the mesh if *axis* is sharded.

    The result is in the layout of *a*. With ``axis=None`` it has one axis, which all mesh dimensions that shard *a*
    cut; if *a* has one axis, in its layout. NaN is last.

    Parameters
    ----------
    a: a tensor
    axis: the axis, or None for all elements; ``ShapeError`` if there is no such axis
    kind, stable: as NumPy has them. A sort that NumPy would make stable is stable over all ranks
    order: not supported: ``TypeError``

    >>> import numpy as np, meshcomm as mc
    >>> def program():
    ...     t = mc.distribute(np.array([3, 1, 2, 0]), mc.Layout(["x"], mc.create_mesh([("x", 2)])))
    ...     return np.sort(t).local.tolist(), np.argsort(t).local.tolist()
    >>> with mc.simulate(2) as world:
    ...     print(world.run(program))
    [([0, 1], [3, 1]), ([2, 3], [2, 0])]
    """
    return _sorted(a, axis, _How("sort", kind, stable), order)


def argsort(
    a: DTensor, axis: int | None = -1, kind: str | None = None, order: object = None, *, stable: bool | None = None
) -> DTensor:
    """Return the global indices that sort *a*, as numpy.argsort. Collective over the mesh if *axis* is sharded.

    With ``axis=None`` they count the elements of *a* in C order. Parameters, layout and errors are those of `sort`.
    """
    return _sorted(a, axis, _How("argsort", kind, stable), order)


def sort_blocks(
    a: DTensor, axis: int = -1, kind: str | None = None, order: object = None, *, stable: bool | None = None
) -> None:
    """Sort the blocks of *a* as `sort` does. Collective over the mesh if *axis* is sharded.

    ``TypeError`` if *axis* is None.
    """
    if axis is None:
        raise TypeError("t.sort: axis must be an integer; numpy.sort(t, axis=None) returns all elements in order")
    check_writable("t.sort", as_tensor("t.sort", a))
    store("sort", [a], [sort(a, axis, kind, order, stable=stable)])


def _sorted(a: object, axis: object, how: _How, order: object) -> DTensor:
    tensor, name = as_tensor(f"numpy.{how.name}", a), how.name
    if order is not None:
        raise TypeError(f"numpy.{name}: order= is not supported for DTensors; sort the field that you need")
    axes = _axes(name, axis, tensor.ndim)
    how.of(np.asarray(sample(tensor)).reshape(-1), -1)  # NumPy's errors for the dtype and the kind
    layout, shape, kind = tensor.layout, tensor.shape, np.dtype(np.intp) if how.indexed else tensor.dtype
    if axis is None and tensor.ndim != 1:
        return _line(tensor, how, sharding(tensor.mesh, [each for names in layout.axes for each in names]), kind)
    if not is_one_line(shape, axes) or layout.num_shards(axes[0]) == 1:
        local, whole = of_whole_blocks(tensor, axes, name, lambda block: how.of(block, axes[0]))
        return relaid(DTensor(local, whole, shape, kind), layout.axes, name)
    names = layout.axes[axes[0]]
    line = _without_others(tensor, axes[0], name)
    result = _with_others(_line(line, how, names, kind), axes[0], shape)
    return relaid(result, layout.axes, name)


def _axes(name: str, axis: object, ndim: int) -> tuple[int, ...]:
    """Return the axis to sort along, or all."""
    if axis is not None:
        if isinstance(axis, tuple | list):
            raise TypeError(f"numpy.{name}: axis must be an integer or None, not {quote(axis)}")
        if ndim == 0:
            raise ShapeError(f"numpy.{name}: axis {quote(axis)} of a tensor without axes; use axis=None")
    return normalised_axes(axis, ndim)


def _line(tensor: DTensor, how: _How, names: Names, dtype: DType) -> DTensor:
    """Return all elements of *tensor* in order, along one axis that *names* cut. Collective over the mesh."""
    target, shape = Layout([names], tensor.mesh), (tensor.size,)
    if tensor.layout.is_fully_replicated() or not tensor.nbytes:
        whole = relaid(tensor, ((),) * tensor.ndim, how.name)
        local = None if whole.local is None else how.of(whole.local, None)
        return relaid(DTensor(local, Layout([()], tensor.mesh), shape, dtype), target.axes, how.name)
    if how.indexed or how.is_stable:
        tensor = in_flat_order(tensor, how.name)
    found = in_order(how.name, tensor, stable=how.is_stable, indexed=how.indexed)
    values = found.indices if found.indices is not None else found.values
    return DTensor(None, target, shape, dtype) if values.local is None else relaid(values, target.axes, how.name)


def _without_others(tensor: DTensor, axis: int, operation: str) -> DTensor:
    """Return *tensor* with *axis* only; the others have one element. Collective over the mesh if they are sharded."""
    names = tuple(spec if number == axis else () for number, spec in enumerate(tensor.layout.axes))
    line = relaid(tensor, names, operation)
    local = None if line.local is None else line.local.reshape(-1)
    return DTensor(local, Layout([names[axis]], tensor.mesh), (tensor.size,), tensor.dtype)


def _with_others(line: DTensor, axis: int, shape: Shape) -> DTensor:
    """Return the tensor of one axis with that of *shape*: the others have one element."""
    names = [line.layout.axes[0] if number == axis else () for number in range(len(shape))]
    local = line.local
    if local is not None:
        local = local.reshape([-1 if number == axis else 1 for number in range(len(shape))])
    return DTensor(local, Layout(names, line.mesh), shape, line.dtype)


def _refused(name: str) -> Callable[..., NoReturn]:
    def refuse(*args: object, **kwargs: object) -> NoReturn:
        less = name.removeprefix("arg")
        raise TypeError(f"numpy.{name} is not defined for DTensors; numpy.{name.replace(less, 'sort')} is")

    return refuse


FUNCTIONS: dict[Callable[..., object], Callable[..., object]] = {
    np.sort: sort,
    np.argsort: argsort,
    np.ndarray.sort: sort_blocks,
    np.partition: _refused("partition"),
    np.argpartition: _refused("argpartition"),
}
"""NumPy's functions that this module defines for tensors."""
