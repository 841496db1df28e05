"""``np.add.at(t, index, values)`` and its like, for a replicated ``t`` and a sharded index or sharded values.

Each rank combines its values in a share of its own, and then the ranks reduce their shares: no index and no value
travels. Sums of numbers with fractions may differ from NumPy's in the last digits, as those of all reductions do.
"""

from math import prod
from typing import NamedTuple

import numpy as np

from meshcomm.blocks.make import make, on_blocks
from meshcomm.blocks.reduce import Merge, added_up
from meshcomm.blocks.rules import Operand, shape_of
from meshcomm.blocks.small import agree_on_result
from meshcomm.core._types import Array, Shape
from meshcomm.core.arrays.dtensor import DTensor
from meshcomm.core.layouts.layout import Layout
from meshcomm.numpy.indexing.index_arrays import (
    IndexRequest,
    as_combined,
    in_bounds,
    in_front,
    index_call_text,
    index_layout,
    local_index,
    local_rows,
)


class _CombiningRule(NamedTuple):
    """How the shares of ranks are combined.

    Parameters
    ----------
    merge: reduction of the shares of all ranks
    kinds: kinds of dtypes for which the result does not depend on the order of the updates
    neutral: initial value of all shares but one, which begins from the elements; None if all begin from the elements
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
    """Return whether ranks have combined *value* with elements of *base* in shares. Collective over the mesh.

    It returns False, with *base* unchanged, if this would be no faster or would give a different result. Arguments are
    those of `index_arrays.put`.
    """
    rule = _RULES.get(ufunc)
    if rule is None or base.dtype.kind not in rule.kinds or not base.layout.is_fully_replicated():
        return False
    rest = [axis for axis in range(base.ndim) if axis not in query.axes]
    row = tuple(base.shape[axis] for axis in rest)
    aligned_value = in_front(name, base, query, rest, value)
    layout = _index_layout(base, query, rest, aligned_value)
    if not any(layout.axes) or base.size > prod(query.shape) * prod(row):
        return False
    index = [local_index(name, array, query.shape, layout) for array in query.indices]
    is_broadcast = all(n == 1 for n in shape_of(aligned_value)[: len(query.shape)])
    shape = (*((1,) * len(query.shape) if is_broadcast else query.shape), *row)
    rows_layout = Layout((*(((),) * len(query.shape) if is_broadcast else layout.axes), *((),) * len(row)), base.mesh)
    rows = local_rows(name, aligned_value, shape, rows_layout, None)
    holds_first_block = layout.block_numbers(0) == layout.block_numbers(base.mesh.rank or 0)

    def compute_share(block: Array) -> Array:
        starts_from_base = rule.neutral is None or holds_first_block
        out = block.copy() if starts_from_base else np.full(block.shape, rule.neutral, block.dtype)
        # NumPy's function reads beyond an array of values that is shorter than the index.
        local, lengths = as_combined(ufunc, rows, block), layout.block_shape(query.shape)
        local = local.reshape(()) if local.size == 1 else np.broadcast_to(local, (*lengths, *row))
        try:
            ufunc.at(np.moveaxis(out, query.axes, range(len(query.axes))), tuple(x.array for x in index), local)
        except IndexError:
            for index_share, axis in zip(index, query.axes, strict=True):
                in_bounds(index_share, axis, base.shape[axis])  # its error says where
            raise
        return out

    text = index_call_text(name, base, query)
    if not isinstance(value, DTensor) and not shape_of(value):
        text = f"{text}, of {value!r}"
    combined_here = agree_on_result(name, base.mesh, text, lambda: on_blocks(compute_share, base))
    cut_like = make(None, layout, query.shape, base.dtype)  # without elements: only its layout is used
    result = added_up(name, cut_like, combined_here, base.shape, base.dtype, op=rule.merge)
    on_blocks(lambda block, new: np.copyto(block, new), base, result)
    return True


def _index_layout(base: DTensor, query: IndexRequest, rest: list[int], aligned_value: Operand) -> Layout:
    """Return how the axes of the index are cut: as its tensors are, or else as the values."""
    layout = index_layout(base, query, rest)
    if any(layout.axes) or not isinstance(aligned_value, DTensor):
        return layout
    lengths: Shape = aligned_value.shape[: len(query.shape)]
    axes = [aligned_value.layout.axes[axis] if n == query.shape[axis] else () for axis, n in enumerate(lengths)]
    return Layout(axes, base.mesh)
