from collections.abc import Callable

from meshcomm.core._types import Array, DType
from meshcomm.core.arrays._expressions import Expression
from meshcomm.core.arrays.folds import Folding

def let_cut(size: int) -> int: ...
def array_of(x: Expression | Array) -> Array: ...
def reduce_pieces(
    top: Expression,
    reduce: Callable[[Array], Array],
    axes: tuple[int, ...],
    dtype: DType,
    folding: Folding | None = None,
) -> Array: ...
