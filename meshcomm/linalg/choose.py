"""Which way a function of linear algebra goes: a pure function of shapes, dtypes and layouts."""

from collections.abc import Sequence
from math import prod
from typing import NamedTuple

from numpy.typing import DTypeLike

from meshcomm.core._arguments import as_dtype, as_shape, quote
from meshcomm.core._tracing import untraced
from meshcomm.core._tuning import DEFAULT_SCRATCH
from meshcomm.core._types import DType, Shape, ShapeLike
from meshcomm.core.arrays.dtensor import DTensor, unwrapped
from meshcomm.core.layouts.layout import Layout
from meshcomm.errors import LayoutError, ShapeError

SMALL_MATRICES = 2**23
"""Bytes of a matrix. Up to this size a sharded matrix is gathered to one rank, where LAPACK factors it. A compromise:
1024 x 1024 float64; one core factors it in less than 0.1 s, and computes its singular values in a second."""

TALL = ("qr", "svd", "svdvals", "lstsq", "pinv", "matrix_rank", "cond", "norm")
"""Functions of matrices with a long side and a short one that need a factorization of the short side only."""

LARGE = (
    *("solve", "inv", "det", "slogdet", "cholesky", "eigh", "eigvalsh", *TALL),
    *("solve_triangular", "lu_factor", "lu_solve", "cho_factor", "cho_solve"),
)
"""Functions that ScaLAPACK computes, or the largest part of them."""

ALONE = ("eig", "eigvals")
"""Functions that only LAPACK has."""


class MatrixOperand(NamedTuple):
    """Shape, dtype and layout of an operand; its last *core* axes are the axes of a matrix."""

    shape: Shape
    dtype: DType
    layout: Layout
    core: int = 2

    @property
    def stack(self) -> Shape:
        """The lengths of the axes along which matrices are stacked."""
        return self.shape[: len(self.shape) - self.core]

    @property
    def matrix(self) -> Shape:
        """The shape of a matrix."""
        return self.shape[len(self.shape) - self.core :]

    @property
    def nbytes(self) -> int:
        """The bytes of a matrix."""
        return prod(self.matrix) * self.dtype.itemsize

    def is_whole(self) -> bool:
        """Return whether each device has whole matrices."""
        return not self.layout.dims_along(range(len(self.stack), len(self.shape)))


class Way(NamedTuple):
    """Which way a function goes, and why: see `plan`.

    Parameters
    ----------
    name: name of the function
    way: ``"stacks"``, ``"small"``, ``"tall"`` or ``"large"``
    why: the reason, a sentence
    """

    name: str
    way: str
    why: str

    def __str__(self) -> str:
        return f"{self.name}: {self.way}: {self.why}"


def choose_algorithm(name: str, operands: Sequence[MatrixOperand]) -> Way:
    """Return the way of the function *name* for *operands*; the first one is the matrix.

    >>> from meshcomm import Mesh
    >>> rows = Layout(["x", "unsharded"], Mesh(range(4), {"x": 4}))
    >>> import numpy as np
    >>> f8 = np.dtype("f8")
    >>> [choose_algorithm(name, [MatrixOperand(shape, f8, rows)]).way for name, shape in [
    ...     ("qr", (1000, 64)), ("qr", (10**6, 64)), ("eig", (999, 999)), ("inv", (4096, 4096))]]
    ['small', 'tall', 'small', 'large']
    """
    matrix_operand = operands[0]
    largest = max((operand.nbytes for operand in operands), default=0)
    if all(operand.is_whole() for operand in operands):
        return Way(name, "stacks", "matrices are whole on each device, which computes for its own ones")
    single_nbytes = [operand.nbytes for operand in operands if not operand.is_whole() and prod(operand.stack) == 1]
    if any(prod(operand.stack) != 1 for operand in operands) and max(single_nbytes, default=0) <= SMALL_MATRICES:
        return Way(name, "stacks", "a relayout cuts the stack instead of its matrices; then each device has its own")
    if largest <= SMALL_MATRICES:
        return Way(name, "small", f"{largest:,} bytes, of {SMALL_MATRICES:,} at most, are gathered to one rank")
    shape = matrix_operand.matrix
    short_side, long_side = min(shape), max(shape)
    if (
        name in TALL
        and long_side >= 2 * short_side
        and 2 * short_side**2 * matrix_operand.dtype.itemsize <= DEFAULT_SCRATCH
    ):
        line = "columns" if shape[-1] == long_side else "rows"
        return Way(
            name,
            "tall",
            f"each device factors its share of the {long_side:,} {line}; {short_side}² elements are exchanged",
        )
    return Way(name, "large", f"{largest:,} bytes are more than the {SMALL_MATRICES:,} that one rank gathers")


def plan(
    name: str, a: object, b: object = None, *, shape: ShapeLike | None = None, dtype: DTypeLike | None = None
) -> Way:
    """Return which way a function of `meshcomm.linalg` would go, and why. Pure: nothing moves.

    Parameters
    ----------
    name: name of the function, such as ``"qr"``
    a: a tensor, or with *shape* and *dtype* a layout
    b: the right side, a tensor, for functions that have one
    shape, dtype: shape and dtype of the matrix, if *a* is a layout

    ``ShapeError`` for other names, and where there is no way; ``LayoutError`` for other operands. For ``"norm"`` it is
    about the orders that need singular values.

    >>> import meshcomm as mc
    >>> rows = mc.Layout(["x", mc.UNSHARDED], mc.Mesh(range(4), {"x": 4}))
    >>> print(mc.linalg.plan("qr", rows, shape=(1_000_000, 64), dtype="f8"))
    qr: tall: each device factors its share of the 1,000,000 rows; 64² elements are exchanged
    """
    names = {*LARGE, *ALONE}
    if name not in names:
        raise ShapeError(f"plan knows {', '.join(sorted(names))}, not {quote(name)}")
    operands = []
    for operand in (a, b):
        value = untraced(operand)
        if isinstance(value, Layout) and shape is not None:
            operands.append(MatrixOperand(as_shape(shape), as_dtype(float if dtype is None else dtype), value))
        elif isinstance(tensor := unwrapped(value), DTensor):
            operands.append(MatrixOperand(tensor.shape, tensor.dtype, tensor.layout, min(2, tensor.ndim)))
        elif operand is not None or operand is a:
            raise LayoutError(f"plan takes a tensor, or a Layout with shape= and dtype=, not {quote(operand)}")
    way = choose_algorithm(name, operands)
    if way.way == "large" and name in ALONE:
        raise ShapeError(f"{name}: {way.why}, and for more LAPACK alone has it")
    return way
