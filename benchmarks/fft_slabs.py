"""What the slabs of FFTW and of MKL have in common: one buffer, for the values and then for the spectrum.

Real numbers stand in rows that are padded to those of the half spectrum. The spectrum is left transposed.
"""

from math import prod

import numpy as np
from fft_turns import Array, Case, Transform, Where


class Slabs(Transform):
    """The buffer of a rank: *rows* along the first axis of the values, *columns* along the second of the spectrum."""

    def __init__(self, case: Case, items: int, rows: range, columns: range, order: tuple[int, ...]) -> None:
        """*order* is that of the spectrum's axes in memory."""
        self.rows, self.columns, self.order = rows, columns, order
        self.buffer = np.zeros(items, "c8" if case.single else "c16")
        first = (len(rows), *case.spectrum[1:])
        self.field: Array = self.buffer[: prod(first)].reshape(first)
        if case.real:
            self.field = self.field.view(case.dtype)[..., : case.shape[-1]]
        then = (case.spectrum[0], len(columns), *case.spectrum[2:])
        stored = self.buffer[: prod(then)].reshape([then[axis] for axis in order])
        self.bins = stored.transpose(np.argsort(order))

    def put(self, whole: Array) -> None:
        self.field[...] = whole[self.rows.start : self.rows.stop]

    def values(self) -> tuple[Where, Array]:
        return (slice(self.rows.start, self.rows.stop),), self.field

    def spectrum(self) -> tuple[Where, Array]:
        return (slice(None), slice(self.columns.start, self.columns.stop)), self.bins
