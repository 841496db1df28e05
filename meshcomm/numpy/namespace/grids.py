"""NumPy's grids and joints that are written by slices: ``mgrid``, ``ogrid``, ``r_`` and ``c_``, as tensors."""

import numpy as np

from meshcomm.core._tracing import Value
from meshcomm.core._types import Array
from meshcomm.numpy.namespace.creation import as_tensors
from meshcomm.numpy.namespace.making import by_blocks


class Grid:
    """``mgrid`` and ``ogrid``: the coordinates of the points of a grid, by slices."""

    def __init__(self, name: str) -> None:
        self._numpys: Value = getattr(np, name)
        self.sparse: bool = self._numpys.sparse

    def __getitem__(self, key: Value) -> Value:
        if self.sparse or not isinstance(key, tuple):
            return as_tensors(self._numpys[key])
        lines = np.ogrid[key]
        shape = tuple(line.size for line in lines)

        def block(slices: tuple[slice, ...]) -> Array:
            cut = [
                line[tuple(s if n > 1 else slice(None) for s, n in zip(slices[1:], line.shape, strict=True))]
                for line in lines
            ]
            lengths = [each.stop - each.start for each in slices[1:]]
            return np.stack([np.broadcast_to(line, lengths) for line in cut[slices[0]]]).reshape([-1, *lengths])

        return by_blocks((len(lines), *shape), np.result_type(*lines), None, block)


class Joined:
    """``r_`` and ``c_``: rows and columns of numbers, arrays and tensors."""

    def __init__(self, name: str) -> None:
        self._numpys: Value = getattr(np, name)

    def __getitem__(self, key: Value) -> Value:
        return as_tensors(self._numpys[key])

    def __len__(self) -> int:
        return 0
