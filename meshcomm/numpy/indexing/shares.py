"""``np.add.at(t, index, values)`` and its like, where all ranks have ``t`` whole, and the index or the values are cut.

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


class _Combining(NamedTuple):
    """How the shares of ranks are combined.

    Parameters
    ----------
    merge: reduction of the shares of all ranks
    kinds: kinds of dtypes for which the result equals that of one element after the other
    neutral: initial value of all shares but one, which begins from the elements; None if all begin from the elements
    """

    merge: str | Merge
    kinds: str
    neutral: float | None = None


_COMBINED: dict[np.ufunc, _Combining] = {
    np.add: _Combining("sum", "iufc", -0.0),  # beside 0.0, a sum of -0.0 would lose its sign
    np.subtract: _Combining("sum", "iufc", -0.0),
    np.multiply: _Combining("prod", "iufc", 1),
    np.maximum: _Combining("max", "iuf"),
    np.minimum: _Combining("min", "iuf"),
    np.fmax: _Combining(np.fmax.reduce, "iuf"),
    np.fmin: _Combining(np.fmin.reduce, "iuf"),
    np.bitwise_and: _Combining(np.bitwise_and.reduce, "biu"),
    np.bitwise_or: _Combining(np.bitwise_or.reduce, "biu"),
}


def combine_in_shares(name: str, base: DTensor, query: IndexRequest, value: Operand, how: np.ufunc) -> bool:
    """Return whether ranks have combined *value* with elements of *base* in shares. Collective over the mesh.

    If not, that is no faster, or not the same. Arguments are those of `index_arrays.put`.
    """
    way = _COMBINED.get(how)
    if way is None or base.dtype.kind not in way.kinds or not base.layout.is_fully_replicated():
        return False
    rest = [axis for axis in range(base.ndim) if axis not in query.axes]
    row = tuple(base.shape[axis] for axis in rest)
    spread = in_front(name, base, query, rest, value)
    layout = _index_layout(base, query, rest, spread)
    if not any(layout.axes) or base.size > prod(query.shape) * prod(row):
        return False
    index = [local_index(name, array, query.shape, layout) for array in query.indices]
    repeats = all(n == 1 for n in shape_of(spread)[: len(query.shape)])
    shape = (*((1,) * len(query.shape) if repeats else query.shape), *row)
    to = Layout((*(((),) * len(query.shape) if repeats else layout.axes), *((),) * len(row)), base.mesh)
    rows = local_rows(name, spread, shape, to, None)
    first = {layout.block_numbers(0), layout.block_numbers(base.mesh.rank or 0)}

    def share(block: Array) -> Array:
        begins = way.neutral is None or len(first) == 1
        out = block.copy() if begins else np.full(block.shape, way.neutral, block.dtype)
        # NumPy's function reads beyond an array of values that is shorter than the index.
        local, lengths = as_combined(how, rows, block), layout.block_shape(query.shape)
        local = local.reshape(()) if local.size == 1 else np.broadcast_to(local, (*lengths, *row))
        try:
            how.at(np.moveaxis(out, query.axes, range(len(query.axes))), tuple(x.array for x in index), local)
        except IndexError:
            for share, axis in zip(index, query.axes, strict=True):
                in_bounds(share, axis, base.shape[axis])  # its error says where
            raise
        return out

    text = index_call_text(name, base, query)
    if not isinstance(value, DTensor) and not shape_of(value):
        text = f"{text}, of {value!r}"
    combined_here = agree_on_result(name, base.mesh, text, lambda: on_blocks(share, base))
    values = make(None, layout, query.shape, base.dtype)  # how they are cut
    result = added_up(name, values, combined_here, base.shape, base.dtype, op=way.merge)
    on_blocks(lambda block, new: np.copyto(block, new), base, result)
    return True


def _index_layout(base: DTensor, query: IndexRequest, rest: list[int], spread: Operand) -> Layout:
    """Return how the axes of the index are cut: as its tensors are, or else as the values."""
    layout = index_layout(base, query, rest)
    if any(layout.axes) or not isinstance(spread, DTensor):
        return layout
    lengths: Shape = spread.shape[: len(query.shape)]
    axes = [spread.layout.axes[axis] if n == query.shape[axis] else () for axis, n in enumerate(lengths)]
    return Layout(axes, base.mesh)
