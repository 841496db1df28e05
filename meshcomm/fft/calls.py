"""Conversion of SciPy's arguments of a call to a `Transform`."""

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np

from meshcomm.core._arguments import as_integer, counted, quote
from meshcomm.core._types import Shape
from meshcomm.errors import AxisError, ShapeError
from meshcomm.fft.kinds import KINDS, NORMS, Transform, full_name

Ints: TypeAlias = int | Sequence[int] | None
"""Axes or lengths, as callers pass them."""


def transform_of(
    name: str,
    shape: Shape,
    s: Ints,
    axes: Ints,
    *,
    norm: str | None = None,
    variant: int = 2,
    orthogonalize: bool | None = None,
) -> Transform:
    """Return the transform of an array of *shape* by SciPy's function *name* with these arguments.

    ``ShapeError`` for lengths below 1, for another number of lengths than of axes, for repeated axes, and for an
    unknown norm; ``AxisError`` for an axis that the array does not have.

    >>> transform_of("irfftn", (4, 5), None, None).lengths
    (4, 8)
    """
    kind = full_name(name)
    requested: list[int | None] = [None if n is None else as_integer(n, "a length", ShapeError) for n in listed(s)]
    axis_numbers = axes_of(axes, None if s is None else requested, len(shape))
    lengths = [None] * len(axis_numbers) if s is None else requested
    if len(lengths) != len(axis_numbers):
        raise ShapeError(f"when given, axes and shape arguments have to be of the same length: {axes}, {s}")
    doubles = KINDS[kind].change == "doubles"
    if not axis_numbers and KINDS[kind].change != "complex" and KINDS[kind].change != "same_dtype":
        raise ShapeError(f"at least 1 axis must be transformed by {name}")
    is_nd = name.endswith(("n", "2"))  # SciPy's transforms of one axis do not take -1 for its length
    sizes = []
    for a, n in zip(axis_numbers, lengths, strict=True):
        if n is None and doubles and a == axis_numbers[-1]:
            sizes.append(2 * (shape[a] - 1) or int(is_nd))  # one frequency comes from one point in SciPy's irfftn
        else:
            sizes.append(shape[a] if n is None or (n == -1 and is_nd) else n)
        if sizes[-1] < 1:
            raise ShapeError(f"invalid number of data points ({sizes[-1]}) specified for axis {a} of shape {shape}")
    if len(set(axis_numbers)) != len(axis_numbers):
        raise ShapeError(f"all axes must be unique, not {tuple(axis_numbers)}")
    if norm not in NORMS:
        raise ShapeError(f'invalid norm value {quote(norm)}, should be "backward", "ortho" or "forward"')
    if variant not in (1, 2, 3, 4):
        raise ShapeError(f"invalid type ({quote(variant)}) of {name}, should be 1, 2, 3 or 4")
    if variant == 1 and KINDS[kind].change == "same_dtype" and kind.endswith("dctn") and min(sizes, default=2) < 2:
        raise ShapeError("the cosine transform of type 1 needs 2 elements or more along each axis")
    return Transform(kind, tuple(axis_numbers), tuple(sizes), norm, variant, orthogonalize, name)


def listed(values: Ints) -> list[int]:
    """Return one number, or several, as a list."""
    if isinstance(values, Sequence | np.ndarray):
        return list(values)
    return [] if values is None else [values]


def axes_of(axes: Ints, lengths: Sequence[int | None] | None, ndim: int) -> list[int]:
    """Return the axes of a call, counted from 0: by default all, or the last ones if there are *lengths*."""
    if axes is None:
        count = ndim if lengths is None else len(lengths)
        if count > ndim:
            raise ShapeError(f"shape requires more axes than are present: {count} for {counted(ndim, 'axis')}")
        return list(range(ndim - count, ndim))
    numbers = []
    for axis in listed(axes):
        number = as_integer(axis, "an axis", TypeError)
        if not -ndim <= number < ndim:
            raise AxisError(
                f"axes exceeds dimensionality of input: axis {number} of an array with {counted(ndim, 'axis')}"
            )
        numbers.append(number % ndim)
    return numbers
