from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

_Buffer: TypeAlias = NDArray[Any] | bytearray | memoryview

class BoxCopies:
    count: int
    source_size: int
    target_size: int
    single_runs: bool
    def __init__(
        self,
        source_size: int,
        target_size: int,
        itemsize: int,
        source_offsets: NDArray[np.intp],
        source_strides: NDArray[np.intp],
        target_offsets: NDArray[np.intp],
        target_strides: NDArray[np.intp],
        extents: NDArray[np.intp],
    ) -> None: ...
    def run(self, source: _Buffer, target: _Buffer) -> None: ...
