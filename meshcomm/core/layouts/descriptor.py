"""ScaLAPACK's array descriptors: nine numbers for a block-cyclic matrix on a grid of processes."""

from collections.abc import Sequence

from meshcomm.core._arguments import as_integer, quote
from meshcomm.core.layouts.cyclic import AnyCut, CyclicCut
from meshcomm.errors import LayoutError, ShapeError

_DENSE = 1  # DTYPE_ of a dense matrix
_MAX_INT32 = 2**31 - 1


def array_descriptor(cuts: Sequence[AnyCut], lengths: Sequence[int] | None, context: int) -> tuple[int, ...]:
    """Return the descriptor of the transpose of a matrix, as ``Layout.descriptor`` explains.

    Parameters
    ----------
    cuts: cuts of the rows and of the columns of the matrix
    lengths: shape of the block of the process; None outside the grid
    context: context of the grid
    """
    if len(cuts) != 2:
        raise ShapeError(f"a descriptor is for a matrix, which has 2 axes; this array has {len(cuts)}")
    rows, columns = cuts
    (row_block, row_offset), (column_block, column_offset) = (_cyclic_rule(axis, cut) for axis, cut in enumerate(cuts))
    leading_dimension = 1 if lengths is None else max(1, lengths[1])
    handle = as_integer(context, "context", LayoutError)
    if not -_MAX_INT32 <= handle <= _MAX_INT32:
        raise LayoutError(f"context {quote(handle)} does not fit into the 32 bits of ScaLAPACK's descriptors")
    numbers = (columns.length, rows.length, column_block, row_block, column_offset, row_offset, leading_dimension)
    for number in numbers:
        if number > _MAX_INT32:
            raise LayoutError(f"{quote(number)} does not fit into the 32 bits of ScaLAPACK's descriptors")
    return _DENSE, -1 if lengths is None else handle, *numbers


def _cyclic_rule(axis: int, cut: AnyCut) -> tuple[int, int]:
    """Return the block size and the offset with which ScaLAPACK cuts an axis as *cut* does."""
    if isinstance(cut, CyclicCut):
        return cut.block, cut.offset
    block = max(1, cut.longest)
    starts = [min(number * block, cut.length) for number in range(cut.blocks + 1)]
    if [cut.start(number) for number in range(cut.blocks + 1)] != starts:
        raise LayoutError(
            f"axis {axis} is cut into {cut.blocks} blocks of unequal lengths, which ScaLAPACK does not know: only "
            "its last blocks may be shorter. Relayout to Cyclic(dims, block) first"
        )
    return block, 0
