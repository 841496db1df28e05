"""``np.add.at(t, index, values)`` and its like, for a replicated ``t`` and a sharded index or sharded values.

Each rank combines its values in its own share, and then the ranks reduce the shares: no index and no value moves. Sums
of floating-point numbers may differ from NumPy's in the last digits, as in all reductions.
"""

from math import prod
from typing import NamedTuple

import numpy as np

from meshcomm.blocks.make import make, on_blocks
from meshcomm.blocks.reduce import Merge, reduce_shares
from meshcomm.blocks.rules import Operand, shape_of
from meshcomm.blocks.small import agree_on_result
from meshcomm.core._types import Array, Shape
from meshcomm.core.arrays.dtensor import DTensor
from meshcomm.core.layouts.layout import Layout
from meshcomm.numpy.indexing.index_arrays import (
    IndexRequest,
    as_combined,
    in_bounds,
    index_call_text,
    index_layout,
    local_index,
    local_rows,
    with_index_axes_first,
)


class _CombiningRule(NamedTuple):
    """How the shares of ranks are combined.

    Parameters
    ----------
    merge: reduction of the shares of all ranks
    kinds: kinds of dtypes for which the result does not depend on the order of the updates
    neutral: initial value of all shares but one, which begins with the elements; None if all begin with the elements
    """

    merge: str | Merge
    kinds: str
    neutral: float | None = None


_RULES: dict[np.ufunc, _CombiningRule] = {
    np.add: _CombiningRule("sum", "iufc", -0.0),  # beside 0.0, a sum of -0.0 would lose its sign
    np.subtract: _CombiningRule("sum", "iufc", -0.0),
    np.multiply: _CombiningRule("prod", "iufc", 1),
    np.maximum: _CombiningRule("max", "iuf"),
    np.minimum: _CombiningRule("min", "iuf"),
    np.fmax: _CombiningRule(np.fmax.reduce, "iuf"),
    np.fmin: _CombiningRule(np.fmin.reduce, "iuf"),
    np.bitwise_and: _CombiningRule(np.bitwise_and.reduce, "biu"),
    np.bitwise_or: _CombiningRule(np.bitwise_or.reduce, "biu"),
}


def combine_in_shares(name: str, base: DTensor, query: IndexRequest, value: Operand, ufunc: np.ufunc) -> bool:
    """Combine *value* with elements of *base* in shares, and return whether that was done. Collective over the mesh.

    Return False, with *base* unchanged, if shares would not be faster or would give a different result. Arguments are
    those of `index_arrays.put`.
    """
    rule = _RULES.get(ufunc)
    if rule is None or base.dtype.kind not in rule.kinds or not base.layout.is_fully_replicated():
        return False
    row_axes = [axis for axis in range(base.ndim) if axis not in query.axes]
    row_shape = tuple(base.shape[axis] for axis in row_axes)
    aligned_value = with_index_axes_first(name, base, query, row_axes, value)
    layout = _index_layout(base, query, row_axes, aligned_value)
    if not any(layout.axes) or base.size > prod(query.shape) * prod(row_shape):
        return False
    indices = [local_index(name, array, query.shape, layout) for array in query.indices]
    is_row = all(n == 1 for n in shape_of(aligned_value)[: len(query.shape)])
    shape = (*((1,) * len(query.shape) if is_row else query.shape), *row_shape)
    rows_layout = Layout((*(((),) * len(query.shape) if is_row else layout.axes), *((),) * len(row_shape)), base.mesh)
    rows = local_rows(name, aligned_value, shape, rows_layout, None)
    holds_first_block = layout.block_numbers(0) == layout.block_numbers(base.mesh.rank or 0)

    def compute_share(block: Array) -> Array:
        starts_from_base = rule.neutral is None or holds_first_block
        out = block.copy() if starts_from_base else np.full(block.shape, rule.neutral, block.dtype)
        # NumPy's function reads beyond an array of values that is shorter than the index.
        values, lengths = as_combined(ufunc, rows, block), layout.block_shape(query.shape)
        values = values.reshape(()) if values.size == 1 else np.broadcast_to(values, (*lengths, *row_shape))
        try:
            ufunc.at(np.moveaxis(out, query.axes, range(len(query.axes))), tuple(x.array for x in indices), values)
        except IndexError:
            for index, axis in zip(indices, query.axes, strict=True):
                in_bounds(index, axis, base.shape[axis])  # its error says where
            raise
        return out

    text = index_call_text(name, base, query)
    if not isinstance(value, DTensor) and not shape_of(value):
        text = f"{text}, of {value!r}"
    local_share = agree_on_result(name, base.mesh, text, lambda: on_blocks(compute_share, base))
    index_tensor = make(None, layout, query.shape, base.dtype)  # without elements: only its layout is used
    result = reduce_shares(name, index_tensor, local_share, base.shape, base.dtype, op=rule.merge)
    on_blocks(lambda block, new_elements: np.copyto(block, new_elements), base, result)
    return True


def _index_layout(base: DTensor, query: IndexRequest, row_axes: list[int], aligned_value: Operand) -> Layout:
    """Return the layout of the axes of the index: that of its tensors, or else that of the values."""
    layout = index_layout(base, query, row_axes)
    if any(layout.axes) or not isinstance(aligned_value, DTensor):
        return layout
    lengths: Shape = aligned_value.shape[: len(query.shape)]
    axes = [aligned_value.layout.axes[axis] if n == query.shape[axis] else () for axis, n in enumerate(lengths)]
    return Layout(axes, base.mesh)
