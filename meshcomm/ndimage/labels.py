"""Labels of connected elements, as by scipy.ndimage.label, and the boxes of these objects.

    1. each rank labels its block; its labels follow those of lower ranks
    2. with ghosts around its block, each rank finds pairs of labels that are neighbours across a border. All ranks get
       all pairs
    3. connected labels are one object. SciPy numbers objects in the C order of their first elements. So the indices of
       first elements are sorted over the ranks. The rank that holds the first element of an object looks up the
       position of its index in this order: it is the number of the object

The pairs grow with the borders of the blocks; all other data have the size of a block.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from math import prod

import numpy as np
from numpy.typing import ArrayLike

from meshcomm.blocks.make import make, mapped, on_blocks
from meshcomm.blocks.reduce import reduce_shares
from meshcomm.blocks.rows import RowRanks, ask, migrate_rows, ranks_along
from meshcomm.blocks.small import allgather_array, compare_call
from meshcomm.core._tracing import Value
from meshcomm.core._types import Array, DType, Indices, Shape, Slices
from meshcomm.core.arrays.dtensor import DTensor, TensorLike
from meshcomm.core.layouts.layout import Layout
from meshcomm.core.ranks.local_errors import refusable
from meshcomm.halos.halo import Halo
from meshcomm.halos.make import halo
from meshcomm.ndimage.arguments import Output
from meshcomm.ndimage.binary import generate_binary_structure
from meshcomm.ndimage.calls import call_text, input_tensor, refuse_cyclic, requested_dtype, scipy_ndimage, write_output
from meshcomm.numpy.indexing.nonzero import nonzero

_INT64 = np.dtype(np.int64)


@refusable
def label(input: TensorLike, structure: DTensor | ArrayLike | None = None, output: Output = None) -> Value:
    """Return a tensor with a number for each object of elements that are not zero, and their count. Collective.

    If *output* is a tensor, it is filled, and only the number of objects is returned. A rank outside of the mesh gets
    None for it. Objects are numbered as by SciPy: in the order of their first elements.

    Source: scipy.ndimage.label.

    Parameters
    ----------
    input: a tensor
    structure: array of the neighbours of an element, of length 3 along each axis; by default the neighbours along one
        axis
    output: a dtype for the result, or a tensor to write into

    >>> import numpy as np, meshcomm as mc
    >>> def program():
    ...     rows = mc.Layout(["x"], mc.create_mesh([("x", 2)]))
    ...     found, count = mc.ndimage.label(mc.distribute([1, 0, 1, 1, 0, 1], rows))
    ...     return found.local.tolist(), count
    >>> with mc.simulate(2) as world:
    ...     print(world.run(program))
    [([1, 0, 2], 3), ([2, 0, 3], 3)]
    """
    tensor = input_tensor("label", input)
    refuse_cyclic(tensor)
    structure_array = None if structure is None else allgather_array("label", structure).astype(bool)
    scipy_ndimage().label(np.zeros((1,) * tensor.ndim, tensor.dtype), structure_array)  # SciPy validates the arguments
    if isinstance(output, DTensor) and output.shape != tensor.shape:
        raise ValueError("output shape not correct")
    default_dtype = np.intp if tensor.size >= 2**31 - 2 else np.int32
    dtype = np.dtype(default_dtype if output is None else requested_dtype(output))
    result, count = _label_tensor(
        tensor, generate_binary_structure(tensor.ndim, 1) if structure_array is None else structure_array, dtype
    )
    if isinstance(output, DTensor):
        write_output(result, output)
        return count
    return result, count


def _label_tensor(tensor: DTensor, structure: Array, dtype: DType) -> tuple[DTensor, int | None]:
    names = tensor.layout.sharding_dims
    count: int | None = None

    def label_block(block: Array) -> Array:
        nonlocal count
        numbers, total = np.zeros(block.shape, _INT64), 0
        if block.size:
            numbers, total = scipy_ndimage().label(block, structure, _INT64)
        if names and tensor.size:
            compare_call("filter", tensor.mesh, call_text("label", {"structure": structure}))
            call = f"label {tensor.shape} {tensor.layout.sharding_specs}"
            with ranks_along("label", tensor.mesh, names, call) as ranks:
                numbers, total = _Objects(ranks, tensor.layout, tensor.shape, total).relabel(numbers, structure)
        if np.array(total).astype(dtype) != total:
            raise RuntimeError("insufficient bit-depth in requested output type")
        count = total
        return numbers.astype(dtype)

    return mapped(label_block, tensor, dtype=dtype), count


@dataclass(frozen=True)
class _Objects:
    """The objects of a tensor, computed from those of the blocks.

    Parameters
    ----------
    ranks: the ranks along the sharding dimensions of the tensor
    layout, shape: layout and shape of the tensor
    count: number of labels in the block of this rank
    """

    ranks: RowRanks
    layout: Layout
    shape: Shape
    count: int

    def relabel(self, labels: Array, structure: Array) -> tuple[Array, int]:
        """Return the block of global object numbers for its local *labels*, and the number of objects. Collective."""
        counts = self.ranks.alltoall_counts(np.full(self.ranks.size, self.count))
        label_offset = int(counts[: self.ranks.position].sum())
        block = np.where(labels > 0, labels + label_offset, 0)
        sharded = [self.layout.cut(axis, n).blocks > 1 for axis, n in enumerate(self.shape)]
        label_halo = halo(make(block, self.layout, self.shape, _INT64), [(int(is_cut),) * 2 for is_cut in sharded], 0)
        first_indices = self._first_indices(labels)
        pairs = _pairs(label_halo, structure, sharded)
        rows = (
            np.column_stack([pairs, first_indices[pairs[:, 0] - label_offset - 1]])
            if len(pairs)
            else pairs.reshape(0, 3)
        )
        objects, local_labels, object_firsts = _united_objects(self._allgather_rows(rows), label_offset, self.count)
        owns_number = np.ones(self.count, bool)
        owns_number[local_labels] = first_indices[local_labels] == object_firsts[objects]
        keys = first_indices[owns_number]
        numbers, count = self._global_positions(keys)
        table = np.zeros(self.count + 1, _INT64)
        table[1:][owns_number] = numbers
        border_owns_number = owns_number[local_labels]
        owned_numbers = [objects[border_owns_number], table[1:][local_labels[border_owns_number]]]
        all_numbers = self._allgather_rows(np.column_stack(owned_numbers))
        object_numbers = np.zeros(len(object_firsts), _INT64)
        object_numbers[all_numbers[:, 0]] = all_numbers[:, 1]
        table[1:][local_labels] = object_numbers[objects]
        return table[labels], count

    def _first_indices(self, labels: Array) -> Indices:
        """Return the flat index in the global array of the first element of each label of the block."""
        flat = labels.reshape(-1)
        labelled = np.flatnonzero(flat)[::-1]
        first_indices = np.zeros(self.count + 1, _INT64)
        first_indices[flat[labelled]] = labelled
        box = self.layout.block_box(self.shape)
        if not self.count:
            return first_indices[1:]
        index = [
            local_index + start
            for local_index, (start, *_) in zip(np.unravel_index(first_indices[1:], labels.shape), box, strict=True)
        ]
        return np.ravel_multi_index(index, self.shape).astype(_INT64)

    def _allgather_rows(self, rows: Array) -> Array:
        """Return the rows of all ranks. Collective."""
        messages = self.ranks.communicator.allgather(np.ascontiguousarray(rows, _INT64).tobytes())
        return np.frombuffer(b"".join(messages), _INT64).reshape(-1, rows.shape[1])

    def _global_positions(self, keys: Indices) -> tuple[Indices, int]:
        """Return the position of each key, from 1 on, among the sorted keys of all ranks, and their number.

        Collective. All keys differ.
        """
        owners = keys * self.ranks.size // prod(self.shape)
        (received_keys,), _ = migrate_rows(self.ranks, [keys], owners)
        received_keys = np.sort(received_keys)
        counts = self.ranks.alltoall_counts(np.full(self.ranks.size, len(received_keys)))
        first_number = int(counts[: self.ranks.position].sum()) + 1
        numbers = np.empty(len(keys), _INT64)
        ask(self.ranks, owners, keys, lambda queries: first_number + np.searchsorted(received_keys, queries), numbers)
        return numbers, int(counts.sum())


def _pairs(label_halo: Halo, structure: Array, sharded: list[bool]) -> Array:
    """Return pairs of labels that are neighbours across borders: one of this block, one of another block."""
    with_ghosts, inner = label_halo.local, label_halo.inner
    pairs = [np.zeros((0, 2), _INT64)]
    if inner.size:
        for face, neighbours in _faces(inner.shape, structure, sharded):
            face_labels, other_labels = inner[face], with_ghosts[neighbours]
            are_labelled = (face_labels > 0) & (other_labels > 0)
            pairs.append(np.unique(np.column_stack([face_labels[are_labelled], other_labels[are_labelled]]), axis=0))
    return np.unique(np.concatenate(pairs), axis=0)


def _faces(shape: Shape, structure: Array, sharded: list[bool]) -> Iterator[tuple[Slices, Slices]]:
    """Yield the slices of each face of the block, and of its neighbours in the block with ghosts."""
    for step in product((-1, 0, 1), repeat=len(shape)):
        if not structure[tuple(1 + offset for offset in step)]:
            continue
        for axis, is_cut in enumerate(sharded):
            if not is_cut or not step[axis]:
                continue
            face, neighbours = [], []
            for a, n in enumerate(shape):
                start, stop = (0, n) if a != axis else (0, 1) if step[a] < 0 else (n - 1, n)
                if not sharded[a]:  # no ghosts, so no neighbour beyond the ends
                    start, stop = max(start, -step[a]), min(stop, n - step[a])
                face.append(slice(start, stop))
                neighbours.append(slice(start + step[a] + sharded[a], stop + step[a] + sharded[a]))
            yield tuple(face), tuple(neighbours)


def _united_objects(rows: Array, label_offset: int, count: int) -> tuple[Indices, Indices, Indices]:
    """Unite connected labels. Return the objects of labels of this rank, these labels, and each object's first index.

    Parameters
    ----------
    rows: rows of all ranks: two labels of one object, and the first index of the first label
    label_offset, count: number of labels on lower ranks, and on this rank
    """
    import scipy.sparse

    nodes, node_numbers = np.unique(rows[:, :2], return_inverse=True)
    node_numbers = node_numbers.reshape(-1, 2)
    graph = scipy.sparse.coo_array(
        (np.ones(len(node_numbers), bool), (node_numbers[:, 0], node_numbers[:, 1])), (len(nodes), len(nodes))
    )
    total, objects = scipy.sparse.csgraph.connected_components(graph, directed=False) if len(nodes) else (0, nodes)
    object_firsts = np.full(total, np.iinfo(_INT64).max)
    np.minimum.at(object_firsts, objects[node_numbers[:, 0]], rows[:, 2])
    is_local = (nodes > label_offset) & (nodes <= label_offset + count)
    return objects[is_local], nodes[is_local] - label_offset - 1, object_firsts


@refusable
def find_objects(input: TensorLike, max_label: int = 0) -> list[tuple[slice, ...] | None] | None:
    """Return the slices of the box around each label, in a list; None for missing labels. Collective.

    All ranks get the list; a rank outside of the mesh gets None. Source: scipy.ndimage.find_objects.

    Parameters
    ----------
    input: a tensor of integers, such as a result of `label`
    max_label: the largest label; by default the largest one of the tensor

    >>> import numpy as np, meshcomm as mc
    >>> def program():
    ...     rows = mc.Layout(["x"], mc.create_mesh([("x", 2)]))
    ...     return mc.ndimage.find_objects(mc.distribute([1, 1, 0, 0, 2, 1], rows))
    >>> with mc.simulate(2) as world:
    ...     print(world.run(program)[0])
    [(slice(0, 6, None),), (slice(4, 5, None),)]
    """
    tensor = input_tensor("find_objects", input)
    refuse_cyclic(tensor)
    scipy_ndimage().find_objects(np.zeros((1,) * tensor.ndim, tensor.dtype), 1)  # SciPy validates the arguments

    def boxes(block: Array) -> list[tuple[slice, ...] | None]:
        largest = int(max_label)
        if largest < 1:
            share = np.array(block.max(initial=0), _INT64)
            largest = int(reduce_shares("find_objects", tensor, share, (), _INT64, op="max")._block)
        bounds = np.full((2, largest, tensor.ndim), np.iinfo(_INT64).max)  # starts, and negated stops
        if block.size and largest:
            block_starts = [start for start, *_ in tensor.layout.block_box(tensor.shape)]
            for number, slices in enumerate(scipy_ndimage().find_objects(block, largest)):
                if slices is not None:
                    bounds[0, number] = [
                        interval.start + offset for interval, offset in zip(slices, block_starts, strict=True)
                    ]
                    bounds[1, number] = [
                        -interval.stop - offset for interval, offset in zip(slices, block_starts, strict=True)
                    ]
        bounds_of_all = reduce_shares("find_objects", tensor, bounds, bounds.shape, _INT64, op="min")._block
        return [
            None if start[:1] == [np.iinfo(_INT64).max] else tuple(map(slice, start, np.negative(stop).tolist()))
            for start, stop in zip(bounds_of_all[0].tolist(), bounds_of_all[1], strict=True)
        ]

    return on_blocks(boxes, tensor)  # a rank outside of the mesh does not know the largest label


@refusable
def value_indices(arr: TensorLike, *, ignore_value: object = None) -> dict[int, tuple[DTensor, ...]] | None:
    """Return a dict from each number in a tensor to its indices along each axis, as tensors. Collective.

    Source: scipy.ndimage.value_indices. The tensor is searched once for each number in it; a rank outside gets None.

    Parameters
    ----------
    arr: a tensor of integers
    ignore_value: a number to leave out

    >>> import numpy as np, meshcomm as mc
    >>> def program():
    ...     rows = mc.Layout(["x"], mc.create_mesh([("x", 2)]))
    ...     found = mc.ndimage.value_indices(mc.distribute([5, 0, 5, 5], rows), ignore_value=0)
    ...     return {key: each.to_numpy().tolist() for key, (each,) in found.items()}
    >>> with mc.simulate(2) as world:
    ...     print(world.run(program)[0])
    {5: [0, 2, 3]}
    """
    tensor = input_tensor("value_indices", arr)
    scipy_ndimage().value_indices(np.zeros((1,) * tensor.ndim, tensor.dtype))  # SciPy validates the arguments

    def indices_by_number(block: Array) -> dict[int, tuple[DTensor, ...]]:
        numbers = allgather_array("value_indices", np.unique(tensor)).tolist()
        return {number: nonzero(tensor == number) for number in numbers if number != ignore_value}

    return on_blocks(indices_by_number, tensor)
