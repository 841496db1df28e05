"""Type aliases that several folders use."""

from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Array: TypeAlias = NDArray[Any]
Indices: TypeAlias = NDArray[np.intp]
Bytes: TypeAlias = NDArray[np.uint8]
Counts: TypeAlias = list[int] | NDArray[np.int64]  # bytes for each rank of a communicator, or where they begin
Names: TypeAlias = tuple[str, ...]  # of mesh dimensions
Ranks: TypeAlias = range | tuple[int, ...]
Shape: TypeAlias = tuple[int, ...]
ShapeLike: TypeAlias = int | Sequence[int]
Axis: TypeAlias = int | tuple[int, ...] | None
DType: TypeAlias = np.dtype[Any]
Groups: TypeAlias = Sequence[Sequence[int]] | NDArray[np.integer[Any]]  # rows of ranks, each a group in its order
Pairs: TypeAlias = Iterable[tuple[int, int]]  # of a source and a target rank

Json: TypeAlias = Any
"""What JSON can hold."""
