"""The types of arguments that functions of scipy.ndimage have in common."""

from collections.abc import Iterable, Sequence
from typing import SupportsIndex, TypeAlias

from numpy.typing import ArrayLike, DTypeLike

from meshcomm.blocks.rules import Number as Number
from meshcomm.core.arrays.dtensor import DTensor

Ints: TypeAlias = SupportsIndex | Iterable[SupportsIndex]
"""An integer, or one for each axis."""

Axes: TypeAlias = Ints | None
"""The axes of a window; None for all."""

Reals: TypeAlias = float | Iterable[float]
"""A number, or one for each axis."""

Modes: TypeAlias = str | Sequence[str]
"""The name of a boundary, or one for each axis."""

Operand: TypeAlias = DTensor | ArrayLike | None
"""A tensor, or an array that is the same on all ranks; None for the default."""

Output: TypeAlias = DTensor | DTypeLike | None
"""A dtype, a tensor to write into, or None."""
