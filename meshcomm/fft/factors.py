"""Numbers for transforms of a sharded axis: rows and columns of four steps, scales, and roots of unity."""

from math import isqrt

import numpy as np

from meshcomm.core._types import Array, DType
from meshcomm.core.layouts.specs import Cyclic
from meshcomm.fft.kinds import Transform


def rows_of(n: int, blocks: int, cyclic: Cyclic | None = None) -> int:
    """Return the number of rows of the matrix for an axis of *n* elements in *blocks* blocks; 0 if there is none.

    There are at least as many rows and columns as blocks. Multiples of *blocks* are best, then nearly square matrices.
    A *cyclic* axis may already have whole columns on each device.

    >>> rows_of(48, 4), rows_of(45, 4), rows_of(47, 4), rows_of(24, 2, Cyclic("x", 4))
    (4, 5, 0, 3)
    """
    if cyclic and cyclic.offset == 0 and n % (cyclic.block * blocks) == 0:
        return n // (cyclic.block * blocks)
    divisors = {r for d in range(1, isqrt(n) + 1) if n % d == 0 for r in (d, n // d)}
    candidates = [r for r in divisors if r >= blocks and n // r >= blocks]

    def badness(rows: int) -> tuple[int, int, int]:
        uneven = (rows % blocks != 0) + (n // rows % blocks != 0)
        return uneven, max(rows, n // rows), rows

    return min(candidates, key=badness, default=0)


def convolved_length(n: int) -> int:
    """Return the length of the convolution for a transform of *n* elements: a power of two.

    >>> convolved_length(5), convolved_length(8)
    (16, 16)
    """
    return 1 << (2 * n - 2).bit_length()


def scale_of(transform: Transform, n: int, real_dtype: DType, factor: int = 1) -> Array:
    """Return the scale for the norm of a transform of *n* elements, times *factor*, as an array without axes.

    >>> scale_of(Transform("fftn", (0,), (4,), "ortho"), 4, np.dtype("f4"))
    array(0.5, dtype=float32)
    """
    if transform.norm == "ortho":
        return np.asarray(factor / np.sqrt(np.array(n, real_dtype)))
    is_scaled = (transform.norm == "forward") != transform.kind.startswith("i")
    return np.asarray(factor / np.array(n if is_scaled else 1, real_dtype))


def roots(numerators: Array, n: int, forward: bool, dtype: DType) -> Array:
    """Return exp(-2 pi i m / n) for each numerator m, in double precision or better."""
    real_type = np.longdouble if dtype.itemsize > 16 else np.float64
    angles: Array = numerators.astype(real_type)
    angles *= (-2 if forward else 2) * np.arccos(real_type(-1)) / n
    return np.cos(angles) + 1j * np.sin(angles)
