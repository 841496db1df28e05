"""Checks before a call of ScaLAPACK on tensors, and clearing a triangle after it."""

from collections.abc import Sequence

import numpy as np

from meshcomm.blocks.make import map_into
from meshcomm.core._arguments import as_integer, quote
from meshcomm.core._types import Array, DType, Shape
from meshcomm.core.arrays.dtensor import DTensor, unwrapped
from meshcomm.core.layouts.layout import Layout
from meshcomm.errors import DTypeError, LayoutError, MeshError, ShapeError

LETTERS = {"f4": "s", "f8": "d", "c8": "c", "c16": "z"}
"""The letters of ScaLAPACK's dtypes in names of routines."""


def real_of(dtype: DType) -> DType:
    """Return the dtype of the real part.

    >>> real_of(np.dtype("c8")), real_of(np.dtype("f8"))
    (dtype('float32'), dtype('float64'))
    """
    return np.empty(0, dtype).real.dtype


def matrix_of(name: str, operand: object) -> DTensor:
    """Return *operand* as a tensor; ``LayoutError`` if it is none."""
    tensor = unwrapped(operand)
    if not isinstance(tensor, DTensor):
        raise LayoutError(f"{name} is for DTensors, not for {type(operand).__name__}; SciPy has its own for arrays")
    return tensor


def check_same_mesh(tensors: Sequence[DTensor], *, grids: bool = True) -> None:
    """Raise ``MeshError`` if *tensors* are on several meshes; without *grids*, only if the meshes have other ranks."""
    first_mesh = tensors[0].mesh
    for tensor in tensors[1:]:
        is_same = tensor.mesh == first_mesh if grids else set(tensor.mesh.ranks) == set(first_mesh.ranks)
        if not is_same or tensor.mesh.world is not first_mesh.world:
            raise MeshError(f"operands must be on one mesh, but are on the {first_mesh} and the {tensor.mesh}")


def check_matrices(tensors: Sequence[DTensor]) -> None:
    """Raise an error unless *tensors* can be operands of ScaLAPACK."""
    for tensor in tensors:
        if tensor.ndim != 2:
            raise ShapeError(f"ScaLAPACK works on matrices, which have 2 axes; the shape is {tensor.shape}")
        if tensor.dtype.str[1:] not in LETTERS or not tensor.dtype.isnative:
            raise DTypeError(f"ScaLAPACK has float32, float64, complex64 and complex128, but no {tensor.dtype}")
        if tensor.dtype != tensors[0].dtype:
            raise DTypeError(f"the operands have the dtypes {tensors[0].dtype} and {tensor.dtype}; they must be equal")


def any_shape(name: str, shape: Shape) -> None:
    """Accept all shapes: the check of a routine for any matrix."""


def check_square(name: str, shape: Shape, rhs_shape: Shape | None = None) -> None:
    """Raise ``ShapeError`` unless a matrix is square, and right sides have the same number of rows."""
    if shape[0] != shape[1]:
        raise ShapeError(f"{name} takes a square matrix, but the shape is {shape}")
    if rhs_shape is not None:
        check_rows(name, shape, rhs_shape)


def check_rows(name: str, shape: Shape, rhs_shape: Shape) -> None:
    """Raise ``ShapeError`` unless right sides have the same number of rows as a matrix."""
    if rhs_shape[0] != shape[0]:
        raise ShapeError(f"{name}: a of shape {shape} and b of shape {rhs_shape} differ in their rows")


def check_target(target: Layout, shape: Sequence[int], tensor: DTensor, *, same_mesh: bool = True) -> None:
    """Raise an error unless *target* can be the layout of a result of *shape*."""
    if not isinstance(target, Layout):
        raise LayoutError(f"layout must be a Layout, not {type(target).__name__}")
    if same_mesh and set(target.mesh.ranks) != set(tensor.mesh.ranks):
        raise MeshError(f"the result stays on the ranks of the {tensor.mesh}, but layout is on the {target.mesh}")
    target.block_shape(shape, 0)


def check_block(block: object) -> None:
    """Raise ``LayoutError`` unless *block* can be the rows and columns of a block."""
    if as_integer(block, "block", LayoutError) < 1:
        raise LayoutError(f"block {quote(block)}; a block has 1 row and column or more")


def clear_triangle(factor: DTensor, lower: bool) -> None:
    """Set the triangle opposite to the *lower* or upper one to zero: the library does not touch it."""

    def clear(block: Array) -> None:
        rows, columns = (factor.layout.global_indices(factor.shape, None, axis) for axis in range(2))
        # Indices ascend, so a row begins with its elements up to the diagonal.
        ends = np.searchsorted(columns, rows, side="right" if lower else "left")
        for row, end in zip(block, ends.tolist(), strict=True):
            row[slice(end, None) if lower else slice(end)] = 0

    map_into(clear, factor)
