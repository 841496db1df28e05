"""Sorts of NumPy: `sort`, `argsort`, `partition`, `lexsort`.

If no mesh dimension cuts the axis, each device sorts its block. If there are other axes, the tensor is relaid so that
the axis is unsharded, sorted, and relaid to its own layout: `whole_along`. Else the elements are sorted by a sample
sort: :mod:`meshcomm.numpy.order.samplesort`.
"""

from collections.abc import Callable, Sequence
from math import prod
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from meshcomm.blocks.align import agree_on_plain, relaid
from meshcomm.blocks.make import make, mapped
from meshcomm.blocks.map import copy_into
from meshcomm.blocks.rules import mesh_of, sample
from meshcomm.blocks.views import check_writable
from meshcomm.blocks.whole import in_flat_order, is_one_line, of_whole_blocks, whole_along
from meshcomm.core._arguments import as_array, normalised_axes, quote
from meshcomm.core._types import Array, DType, Names, Shape
from meshcomm.core.arrays.create import distribute
from meshcomm.core.arrays.dtensor import DTensor, Tensor, as_tensor, unwrapped
from meshcomm.core.layouts.layout import Layout
from meshcomm.errors import ShapeError
from meshcomm.numpy.elementwise.signatures import implements
from meshcomm.numpy.elementwise.values import astype
from meshcomm.numpy.order.samplesort import in_order, kind_to_sort


class _SortKind(NamedTuple):
    """The kind of a sort: which function of NumPy, with which arguments.

    Parameters
    ----------
    name: ``sort`` or ``argsort``
    kind, stable: NumPy's arguments
    """

    name: str
    kind: str | None
    stable: bool | None

    @property
    def returns_indices(self) -> bool:
        """Whether the sort returns indices."""
        return self.name == "argsort"

    @property
    def is_stable(self) -> bool:
        """Whether equal elements have to stay in their order."""
        return bool(self.stable) or self.kind in ("stable", "mergesort")

    def apply(self, array: Array, axis: int | None) -> Array:
        """Return the result of NumPy's function for an array."""
        function: Callable[..., Array] = np.argsort if self.returns_indices else np.sort
        kind = self.kind
        if not self.returns_indices and ((kind is None and self.stable is None) or kind in ("quicksort", "heapsort")):
            kind = kind_to_sort(array.dtype) or kind
        return np.asarray(function(array, axis=axis, kind=kind, stable=self.stable), order="C")


@implements(np.sort)
def sort(
    a: DTensor, axis: int | None = -1, kind: str | None = None, order: object = None, *, stable: bool | None = None
) -> DTensor:
    """Return a sorted copy, as numpy.sort. Collective over the mesh if *axis* is sharded.

    The result is in the layout of *a*. With ``axis=None`` it has one axis, sharded over all mesh dimensions that shard
    *a*; if *a* has one axis, its layout stays. NaN is last.

    Parameters
    ----------
    a: a tensor
    axis: axis along which to sort; None for all elements. ``ShapeError`` if there is no such axis
    kind, stable: NumPy's arguments. A sort that is stable in NumPy is stable over all ranks
    order: not supported: ``TypeError``

    >>> import numpy as np, meshcomm as mc
    >>> def program():
    ...     t = mc.distribute(np.array([3, 1, 2, 0]), mc.Layout(["x"], mc.create_mesh([("x", 2)])))
    ...     return np.sort(t).local.tolist(), np.argsort(t).local.tolist()
    >>> with mc.simulate(2) as world:
    ...     print(world.run(program))
    [([0, 1], [3, 1]), ([2, 3], [2, 0])]
    """
    return _sort_tensor(a, axis, _SortKind("sort", kind, stable), order)


@implements(np.argsort)
def argsort(
    a: DTensor, axis: int | None = -1, kind: str | None = None, order: object = None, *, stable: bool | None = None
) -> DTensor:
    """Return the global indices that sort *a*, as numpy.argsort. Collective over the mesh if *axis* is sharded.

    With ``axis=None`` they count the elements of *a* in C order. Parameters, layout and errors are those of `sort`.
    """
    return _sort_tensor(a, axis, _SortKind("argsort", kind, stable), order)


@implements(np.ndarray.sort)
def sort_blocks(
    a: DTensor, axis: int = -1, kind: str | None = None, order: object = None, *, stable: bool | None = None
) -> None:
    """Sort the blocks of *a* as `sort` does. Collective over the mesh if *axis* is sharded.

    ``TypeError`` if *axis* is None.
    """
    if axis is None:
        raise TypeError("t.sort: axis must be an integer; numpy.sort(t, axis=None) returns all elements in order")
    check_writable("t.sort", as_tensor("t.sort", a))
    copy_into("sort", [a], [sort(a, axis, kind, order, stable=stable)])


def _sort_tensor(a: object, axis: object, sort_kind: _SortKind, order: object) -> DTensor:
    tensor, name = as_tensor(f"numpy.{sort_kind.name}", a), sort_kind.name
    if order is not None:
        raise TypeError(f"numpy.{name}: order= is not supported for DTensors; sort the field that you need")
    axes = _sort_axes(name, axis, tensor.ndim)
    sort_kind.apply(np.asarray(sample(tensor)).reshape(-1), -1)  # NumPy's errors for the dtype and the kind
    layout, shape, result_dtype = (
        tensor.layout,
        tensor.shape,
        np.dtype(np.intp) if sort_kind.returns_indices else tensor.dtype,
    )
    if axis is None and tensor.ndim != 1:
        return _sorted_line(tensor, sort_kind, layout.sharding_dims, result_dtype)
    if not is_one_line(shape, axes) or layout.num_shards(axes[0]) == 1:
        blocks = of_whole_blocks(tensor, axes, name, lambda block: sort_kind.apply(block, axes[0]))
        return relaid(make(*blocks, shape, result_dtype), layout.axes, name)
    names = layout.axes[axes[0]]
    line = _as_line(tensor, axes[0], name)
    result = _from_line(_sorted_line(line, sort_kind, names, result_dtype), axes[0], shape)
    return relaid(result, layout.axes, name)


def _sort_axes(name: str, axis: object, ndim: int) -> tuple[int, ...]:
    """Return the axis to sort along, in a tuple; all axes for None."""
    if axis is not None:
        if isinstance(axis, tuple | list):
            raise TypeError(f"numpy.{name}: axis must be an integer or None, not {quote(axis)}")
        if ndim == 0:
            raise ShapeError(f"numpy.{name}: axis {quote(axis)} of a tensor without axes; use axis=None")
    return normalised_axes(axis, ndim)


def _sorted_line(tensor: DTensor, sort_kind: _SortKind, names: Names, dtype: DType) -> DTensor:
    """Return all elements of *tensor* in order, along one axis that *names* cut. Collective over the mesh."""
    target_layout, shape = Layout([names], tensor.mesh), (tensor.size,)
    if tensor.layout.is_fully_replicated() or not tensor.nbytes:
        whole = relaid(tensor, ((),) * tensor.ndim, sort_kind.name)
        layout = Layout([()], tensor.mesh)
        result = mapped(lambda block: sort_kind.apply(block, None), whole, layout=layout, shape=shape, dtype=dtype)
        return relaid(result, target_layout.axes, sort_kind.name)
    if sort_kind.returns_indices or sort_kind.is_stable:
        tensor = in_flat_order(tensor, sort_kind.name)
    elements = in_order(sort_kind.name, tensor, stable=sort_kind.is_stable, indexed=sort_kind.returns_indices)
    result_line = elements.indices if elements.indices is not None else elements.values
    return relaid(result_line, target_layout.axes, sort_kind.name)


def _as_line(tensor: DTensor, axis: int, operation: str) -> DTensor:
    """Return *tensor* with *axis* only; other axes have length 1. Collective over the mesh if they are sharded."""
    line = relaid(tensor, tensor.layout.only(axis).axes, operation)
    return mapped(lambda block: block.reshape(-1), line, layout=line.layout.take([axis]), shape=(tensor.size,))


def _from_line(line: DTensor, axis: int, shape: Shape) -> DTensor:
    """Return *line* as a tensor of *shape*, with its elements along *axis*; the other axes have length 1."""
    layout = Layout([line.layout.axes[0] if other == axis else () for other in range(len(shape))], line.mesh)
    lengths = [-1 if other == axis else 1 for other in range(len(shape))]
    return mapped(lambda block: block.reshape(lengths), line, layout=layout, shape=shape)


# -- partitions -------------------------------------------------------------------------------------------------------


@implements(np.partition)
def partition(
    a: DTensor, kth: ArrayLike, axis: int | None = -1, kind: str = "introselect", order: object = None
) -> DTensor:
    """Return *a* sorted, which includes numpy.partition's guarantee. Collective over the mesh if *axis* is sharded.

    Parameters
    ----------
    a: a tensor
    kth: indices at which elements are as in a sorted array; NumPy's errors for indices out of bounds
    axis: axis along which to sort; None for all elements
    kind: ``introselect``
    order: not supported: ``TypeError``

    >>> import numpy as np, meshcomm as mc
    >>> def program():
    ...     t = mc.distribute(np.array([3, 1, 2, 0]), mc.Layout(["x"], mc.create_mesh([("x", 2)])))
    ...     return np.partition(t, 1).local.tolist(), np.argpartition(t, 1).local.tolist()
    >>> with mc.simulate(2) as world:
    ...     print(world.run(program))
    [([0, 1], [3, 1]), ([2, 3], [2, 0])]
    """
    _check_kth("partition", a, kth, axis, kind)
    return sort(a, axis, None, order)


@implements(np.argpartition)
def argpartition(
    a: DTensor, kth: ArrayLike, axis: int | None = -1, kind: str = "introselect", order: object = None
) -> DTensor:
    """Return the indices that sort *a*, which includes numpy.argpartition's guarantee. Collective as `partition`.

    Parameters are those of `partition`.
    """
    _check_kth("argpartition", a, kth, axis, kind)
    return argsort(a, axis, None, order)


@implements(np.ndarray.partition)
def partition_blocks(
    a: DTensor, kth: ArrayLike, axis: int = -1, kind: str = "introselect", order: object = None
) -> None:
    """Sort the blocks of *a* as `sort_blocks` does. Collective over the mesh if *axis* is sharded."""
    _check_kth("partition", a, kth, axis, kind)
    sort_blocks(a, axis, None, order)


def _check_kth(name: str, a: object, kth: ArrayLike, axis: object, kind: str) -> None:
    tensor, indices = as_tensor(f"numpy.{name}", a), as_array(kth)
    if kind != "introselect":
        raise ShapeError(f"numpy.{name}: kind must be 'introselect', not {quote(kind)}")
    if indices.dtype.kind not in "iu":
        raise TypeError(f"numpy.{name}: Partition index must be integer, not {indices.dtype}")
    n = prod(tensor.shape[number] for number in _sort_axes(name, axis, tensor.ndim))
    wrong_indices = indices[(indices < -n) | (indices >= n)]
    if wrong_indices.size and tensor.size:
        raise ShapeError(f"numpy.{name}: kth(={wrong_indices.flat[0]}) out of bounds ({n})")


@implements(np.sort_complex)
def sort_complex(a: DTensor) -> DTensor:
    """Return the elements sorted along the last axis as complex numbers. Collective as `sort`."""
    sorted_tensor = sort(as_tensor("numpy.sort_complex", a))
    return astype(sorted_tensor, np.sort_complex(np.zeros(1, sorted_tensor.dtype)).dtype)


# -- several keys -----------------------------------------------------------------------------------------------------


@implements(np.lexsort)
def lexsort(keys: DTensor | Sequence[Tensor], axis: int = -1) -> DTensor:
    """Return the indices that sort by several keys; the last is the primary key. Collective over the mesh.

    As numpy.lexsort, the result is in the layout of the first tensor. If the axis is sharded, and the other axes have
    length 1, the elements are sorted by one key after the other; each next key is first fetched in the order so far.

    Parameters
    ----------
    keys: tensors and arrays of one shape, else ``ShapeError``; or a tensor with a row for each key
    axis: axis along which to sort

    >>> import numpy as np, meshcomm as mc
    >>> def program():
    ...     t = mc.distribute(np.array([3, 1, 2, 0]), mc.Layout(["x"], mc.create_mesh([("x", 2)])))
    ...     return np.lexsort((t, t % 2)).local.tolist()
    >>> with mc.simulate(2) as world:
    ...     print(world.run(program))
    [[3, 2], [1, 0]]
    """
    name, unwrapped_keys = "numpy.lexsort", unwrapped(keys)
    key_list = (
        [unwrapped_keys[i] for i in range(len(unwrapped_keys))]
        if isinstance(unwrapped_keys, DTensor)
        else [*map(unwrapped, unwrapped_keys)]
    )
    agreed_keys = agree_on_plain(name, key_list, mesh_of(key_list))
    arrays = [x if isinstance(x, DTensor) else np.asarray(x) for x in agreed_keys]
    first_tensor = next(x for x in arrays if isinstance(x, DTensor))
    if len({x.shape for x in arrays}) > 1:
        raise ShapeError(f"{name}: all keys need to be the same shape, not {', '.join(str(x.shape) for x in arrays)}")
    np.lexsort([np.zeros(1, x.dtype) for x in arrays])  # NumPy's errors
    layout, shape, dtype = first_tensor.layout, first_tensor.shape, np.dtype(np.intp)
    tensors = [relaid(x, layout.axes, name) if isinstance(x, DTensor) else distribute(x, layout) for x in arrays]
    if not shape:
        return mapped(lambda _: np.zeros((), dtype), first_tensor, dtype=dtype)
    (axis_number,) = normalised_axes(axis, first_tensor.ndim)
    if layout.num_shards(axis_number) == 1 or not is_one_line(shape, (axis_number,)) or not first_tensor.size:
        whole_keys = [whole_along(x, (axis_number,), name) for x in tensors]
        return relaid(mapped(lambda *keys: np.lexsort(keys, axis_number), *whole_keys, dtype=dtype), layout.axes, name)
    line_keys = [_as_line(x, axis_number, name) for x in tensors]
    order = argsort(line_keys[0], kind="stable")
    for line in line_keys[1:]:
        order = order[argsort(line[order], kind="stable")]
    return relaid(_from_line(order, axis_number, shape), layout.axes, name)
