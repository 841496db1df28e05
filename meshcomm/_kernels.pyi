from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from meshcomm.core._types import Array

_Buffer: TypeAlias = Array | bytearray | memoryview
_Indices: TypeAlias = NDArray[np.intp]

class RegionCopies:
    def run(self, sources: Sequence[_Buffer | None], targets: Sequence[_Buffer | None]) -> None: ...

class BoxCopies(RegionCopies):
    @property
    def count(self) -> int: ...
    def __init__(
        self,
        source_sizes: Sequence[int],
        target_sizes: Sequence[int],
        itemsize: int,
        sources: _Indices,
        source_offsets: _Indices,
        source_strides: _Indices,
        targets: _Indices,
        target_offsets: _Indices,
        target_strides: _Indices,
        extents: _Indices,
        at_once: int = 1,
    ) -> None: ...

class RowCopies(RegionCopies):
    def __init__(
        self, source_sizes: Sequence[int], row: int, regions: NDArray[np.int32], row_numbers: _Indices
    ) -> None: ...

def find_rows(
    indices: NDArray[np.int64],
    boundaries: NDArray[np.int64],
    owners: NDArray[np.int32],
    regions: NDArray[np.int32],
    row_numbers: _Indices,
) -> int: ...

class Packing:
    nbytes: int
    contiguous: bool
    @property
    def count(self) -> int: ...
    def __init__(
        self,
        sizes: Sequence[int],
        itemsize: int,
        regions: _Indices,
        offsets: _Indices,
        strides: _Indices,
        extents: _Indices,
    ) -> None: ...
    def round_bytes(self, number: int, rounds: int) -> int: ...
    def pack(self, regions: Sequence[_Buffer | None], buffer: _Buffer, number: int = 0, rounds: int = 1) -> None: ...
    def unpack(self, buffer: _Buffer, regions: Sequence[_Buffer | None], number: int = 0, rounds: int = 1) -> None: ...

def overlap(written: Sequence[_Buffer], read: Sequence[_Buffer]) -> bool: ...
