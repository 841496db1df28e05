"""Products of the blocks of one device, by NumPy's matmul on views, within a limit of memory.

An index is of one of five kinds, by the arrays that have it: a *stack* index is in both operands and the result, a
*row* in the first operand and the result, a *column* in the second and the result, an *inner* one in both operands
only; others are summed before. With rows or columns and inner indices it is a product of matrices, which BLAS does.
BLAS needs one axis per kind, with unit stride along rows or columns. Views that do not fit are copied, and a product
to be added goes to a temporary array. If copies and temporary exceed *limit*, the longest index is
halved, recursively.
"""

from functools import lru_cache
from itertools import pairwise
from math import prod
from typing import NamedTuple

import numpy as np

from meshcomm.core._types import Array, DType
from meshcomm.core.memory.copies import contiguous


class IndexedBlock(NamedTuple):
    """A block of an operand or a result, and the index of each axis."""

    array: Array
    indices: str

    def lengths(self) -> dict[str, int]:
        """Return the number of elements of each index."""
        return dict(zip(self.indices, self.array.shape, strict=True))

    def slice_index(self, index: str, start: int, stop: int) -> "IndexedBlock":
        """Return the view of elements *start* to *stop* of *index*; of all, if the block does not have it."""
        if index not in self.indices:
            return self
        axis = self.indices.index(index)
        return IndexedBlock(self.array[(slice(None),) * axis + (slice(start, stop),)], self.indices)

    def ordered(self, indices: str) -> Array:
        """Return the view with axes in the order of *indices*, and an axis of length 1 for each that is missing."""
        axes = [self.indices.index(index) for index in indices if index in self.indices]
        array = self.array.transpose(axes)
        return array[tuple(slice(None) if index in self.indices else None for index in indices)]

    def by_stride(self, indices: str) -> str:
        """Return *indices* in the order of their axes in memory."""
        strides = dict(zip(self.indices, self.array.strides, strict=True))
        return "".join(sorted(indices, key=lambda index: -abs(strides[index])))


def multiply(operands: list[IndexedBlock], result: IndexedBlock, *, accumulate: bool, limit: int) -> None:
    """Write the sum of one block, or of the products of two, to the block of a result, or add it.

    Parameters
    ----------
    operands: one or two blocks
    result: block to write to; its dtype is that of the arithmetic, but float16 is added up in float32
    accumulate: whether to add to *result* (+=) instead of overwriting it
    limit: scratch limit in bytes; a few elements may take more
    """
    if (
        len(operands) == 2 and not accumulate and _is_plain_matmul(operands[0], operands[1], result)
    ):  # the most common case
        np.matmul(operands[0].array, operands[1].array, out=result.array)
        return
    if result.array.size == 0:
        return
    lengths = {index: n for block in operands for index, n in block.lengths().items()}
    if 0 in lengths.values():
        if not accumulate:
            result.array[...] = 0
        return
    product = _choose_product(operands, result, accumulate)
    if product.scratch_nbytes > limit and prod(lengths.values()) > 1:
        index = max(lengths, key=lambda i: lengths[i])
        half = lengths[index] // 2
        for number, (start, stop) in enumerate(((0, half), (half, lengths[index]))):
            halves = [block.slice_index(index, start, stop) for block in operands]
            accumulate_half = accumulate or (number > 0 and index not in result.indices)
            multiply(halves, result.slice_index(index, start, stop), accumulate=accumulate_half, limit=limit)
        return
    product.run()


def _is_plain_matmul(a: IndexedBlock, b: IndexedBlock, result: IndexedBlock) -> bool:
    """Return whether NumPy's matmul takes the blocks as they are, without a copy."""
    arrays = a.array, b.array, result.array
    dtype = result.array.dtype
    return (
        _is_matmul(a.indices, b.indices, result.indices)
        and all(array.flags.c_contiguous and array.dtype == dtype for array in arrays)
        and dtype != np.float16
    )


@lru_cache(maxsize=1024)
def _is_matmul(a: str, b: str, result: str) -> bool:
    """Return whether indices are those of `numpy.matmul`.

    >>> _is_matmul("sij", "sjk", "sik"), _is_matmul("ij", "jk", "ki")
    (True, False)
    """
    stack, last = a[:-2], a[-1:]
    expected = b[:-2] == stack and b[-2:-1] == last and result == a[:-1] + b[-1:]
    return expected and len(a) == len(b) >= 2 and len(set(a + b)) == len(a) + 1


class _SumOfOne:
    """The sum of one block over indices that the result lacks."""

    def __init__(self, block: IndexedBlock, result: IndexedBlock, accumulate: bool) -> None:
        self._block, self._result, self._accumulate = block, result, accumulate
        self.scratch_nbytes = result.array.nbytes if accumulate or len(block.indices) > len(result.indices) else 0

    def run(self) -> None:
        block, (target, indices) = self._block, self._result
        axes = tuple(axis for axis, index in enumerate(block.indices) if index not in indices)
        remaining = "".join(index for index in block.indices if index in indices)
        total = IndexedBlock(block.array, remaining)
        if axes:
            total = IndexedBlock(np.sum(block.array, axis=axes, dtype=_accumulation_dtype(target.dtype)), remaining)
        store_product(total.ordered(indices), target, accumulate=self._accumulate)


class _MultiplyOrInner:
    """Products without a matrix product: elementwise ones, or inner products of stacks of vectors."""

    def __init__(self, operands: list[IndexedBlock], result: IndexedBlock, accumulate: bool) -> None:
        self._operands, self._result, self._accumulate = operands, result, accumulate
        self._inner = "".join(i for i in operands[0].indices if i not in result.indices)
        widened = result.array.dtype != _accumulation_dtype(result.array.dtype)
        self.scratch_nbytes = result.array.nbytes * (1 + widened) if accumulate or self._inner or widened else 0

    def run(self) -> None:
        (a, b), (target, indices), dtype = self._operands, self._result, _accumulation_dtype(self._result.array.dtype)
        if self._inner:
            axes = {index: number for number, index in enumerate(indices + self._inner)}
            operand_axes = [[axes[index] for index in block.indices] for block in (a, b)]
            result_axes = [axes[index] for index in indices]
            products = np.einsum(
                a.array, operand_axes[0], b.array, operand_axes[1], result_axes, dtype=dtype, casting="unsafe"
            )
            store_product(products, target, accumulate=self._accumulate)
            return
        left, right = a.ordered(indices), b.ordered(indices)
        if self._accumulate or dtype != target.dtype:
            store_product(np.multiply(left, right, dtype=dtype, casting="unsafe"), target, accumulate=self._accumulate)
        else:
            np.multiply(left, right, out=target, dtype=dtype, casting="unsafe")


class _Matrices:
    """Products of matrices: stacks of (rows, inner) times (inner, columns)."""

    def __init__(self, operands: list[IndexedBlock], result: IndexedBlock, accumulate: bool) -> None:
        a, b = operands
        self._accumulate, self._result = accumulate, result
        dtype = self._dtype = _accumulation_dtype(result.array.dtype)
        common = set(a.indices) & set(b.indices)
        stack = "".join(i for i in result.indices if i in common)
        rows = result.by_stride("".join(i for i in result.indices if i in a.indices and i not in common))
        columns = result.by_stride("".join(i for i in result.indices if i in b.indices and i not in common))
        larger_block = a if a.array.nbytes >= b.array.nbytes else b
        inner = larger_block.by_stride("".join(i for i in a.indices if i in common and i not in result.indices))
        self._groups = stack, rows, columns
        self._left = _MatrixStack(a, (stack, rows, inner), dtype)
        self._right = _MatrixStack(b, (stack, inner, columns), dtype)
        self._target = _MatrixStack(result, (stack, rows, columns), dtype)
        self.direct = not accumulate and not self._target.copy_nbytes
        size = 0 if self.direct else result.array.size * dtype.itemsize
        self.scratch_nbytes = self._left.copy_nbytes + self._right.copy_nbytes + size

    def run(self) -> None:
        left, right = self._left.get(), self._right.get()
        if self.direct:
            np.matmul(left, right, out=self._target.view)
            return
        stack, rows, columns = self._groups
        lengths = self._result.lengths()
        products = np.matmul(left, right)
        order = stack + rows + columns
        product = IndexedBlock(products.reshape([lengths[index] for index in order]), order)
        store_product(product.ordered(self._result.indices), self._result.array, accumulate=self._accumulate)


class _MatrixStack:
    """A block as a stack of matrices: a view, or a copy of `copy_nbytes` if BLAS cannot take the view."""

    def __init__(self, block: IndexedBlock, groups: tuple[str, str, str], dtype: DType) -> None:
        self._block, self._groups, self._dtype = block, groups, dtype
        lengths = block.lengths()
        stack = tuple(lengths[index] for index in groups[0])
        self._shape = (*stack, *(prod(lengths[index] for index in group) for group in groups[1:]))
        view = _as_matrices_view(block.ordered("".join(groups)), len(groups[0]), len(groups[1]), self._shape)
        fits = view is not None and view.dtype == dtype and _matmul_needs_no_copy(view)
        self.view = view if fits else None
        self.copy_nbytes = 0 if fits else block.array.size * dtype.itemsize

    def get(self) -> Array:
        """Return the matrices."""
        if self.view is not None:
            return self.view
        ordered = self._block.ordered("".join(self._groups))
        ordered_copy = contiguous(ordered) if ordered.dtype == self._dtype else ordered.astype(self._dtype, order="C")
        return ordered_copy.reshape(self._shape)


def _choose_product(
    operands: list[IndexedBlock], result: IndexedBlock, accumulate: bool
) -> "_SumOfOne | _MultiplyOrInner | _Matrices":
    if len(operands) == 1:
        return _SumOfOne(operands[0], result, accumulate)
    a, b = operands
    common = set(a.indices) & set(b.indices)
    inner = common - set(result.indices)
    outer = (set(a.indices) ^ set(b.indices)) & set(result.indices)
    if not inner or not outer:
        return _MultiplyOrInner(operands, result, accumulate)
    return _Matrices(operands, result, accumulate)


def _accumulation_dtype(dtype: DType) -> DType:
    """Return the dtype in which numbers are multiplied and added up."""
    return np.dtype(np.float32) if dtype == np.float16 else dtype


def sum_partials(partials: Array) -> Array:
    """Return the sum over axis 0; float16 is accumulated in float32."""
    total: Array = np.sum(partials, axis=0, dtype=_accumulation_dtype(partials.dtype))
    return np.asarray(total, partials.dtype, order="C")


def store_product(values: Array, target: Array, *, accumulate: bool) -> None:
    """Write *values* into *target*, or add them to it if *accumulate*."""
    if accumulate:
        np.add(target, values, out=target, casting="unsafe")
    else:
        np.copyto(target, values, casting="unsafe")


def _as_matrices_view(array: Array, num_stack_axes: int, num_row_axes: int, shape: tuple[int, ...]) -> Array | None:
    """Return a view with *shape* (*stack, rows, columns), or None if that needs a copy."""
    if array.ndim == num_stack_axes + 2 and num_row_axes == 1:
        return array
    strides, first_column = list(array.strides[:num_stack_axes]), num_stack_axes + num_row_axes
    for start, stop in ((num_stack_axes, first_column), (first_column, array.ndim)):
        non_unit_axes = [axis for axis in range(start, stop) if array.shape[axis] != 1]
        if any(array.strides[a] != array.strides[b] * array.shape[b] for a, b in pairwise(non_unit_axes)):
            return None
        strides.append(array.strides[non_unit_axes[-1]] if non_unit_axes else array.itemsize)
    return np.lib.stride_tricks.as_strided(array, shape, strides)


def _matmul_needs_no_copy(array: Array) -> bool:
    """Return whether matmul takes the matrices of *array* without a copy: BLAS needs unit stride along one axis."""
    if array.dtype.kind not in "fc" or array.dtype.itemsize > 16 or array.dtype.char in "gG":
        return True  # NumPy's own loops take anything
    (rows, columns), (row_stride, column_stride), size = array.shape[-2:], array.strides[-2:], array.itemsize
    if rows == 1 or columns == 1:
        stride = column_stride if rows == 1 else row_stride
        return max(rows, columns) == 1 or (stride > 0 and stride % size == 0)
    is_row_major = column_stride == size and row_stride % size == 0 and row_stride >= columns * size
    is_column_major = row_stride == size and column_stride % size == 0 and column_stride >= rows * size
    return is_row_major or is_column_major
