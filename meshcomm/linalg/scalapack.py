"""Cholesky factors and matrix products of tensors by ScaLAPACK, which is loaded when the first of them is called.

meshcomm brings no ScaLAPACK with it: docs/linear-algebra.md says how to install one. Tensors may be in any layout.
They are relaid to block-cyclic layouts over a grid of all ranks of their mesh, and the result is relaid back.
"""

import math
from typing import TYPE_CHECKING

import numpy as np

from meshcomm.blocks.make import map_into, mapped
from meshcomm.blocks.views import check_writable
from meshcomm.core._arguments import quote
from meshcomm.core._mistakes import only_public
from meshcomm.core._types import Array
from meshcomm.core.arrays.create import empty
from meshcomm.core.arrays.dtensor import DTensor
from meshcomm.core.arrays.relayout import relayout
from meshcomm.core.layouts.layout import Layout
from meshcomm.core.memory.copies import contiguous
from meshcomm.core.ranks.local_errors import refusable
from meshcomm.core.ranks.meshes import mesh_description
from meshcomm.errors import LayoutError, ShapeError
from meshcomm.linalg.block_cyclic import USUAL_BLOCK, WorkLayouts, product_work, square_work
from meshcomm.linalg.grids import grid_of_all
from meshcomm.linalg.jobs import ScalapackJob
from meshcomm.linalg.library import Argument, library, use
from meshcomm.linalg.routines import (
    check_block,
    check_matrices,
    check_same_mesh,
    check_square,
    check_target,
    clear_triangle,
    matrix_of,
)

__all__ = ["cholesky", "gemr2d", "matmul", "use"]

if not TYPE_CHECKING:
    __getattr__, __dir__ = only_public(__name__, __all__)


@refusable
def cholesky(a: DTensor, *, lower: bool = True, block: int = USUAL_BLOCK, layout: Layout | None = None) -> DTensor:
    """Return the Cholesky factor of a symmetric or Hermitian matrix, by ScaLAPACK. Collective over the mesh.

    The factor is L with ``a = L L^H``, or U with ``a = U^H U``; its other triangle is zero. Only the same triangle of
    *a* is read. Sources: numpy.linalg.cholesky, and pdpotrf of ScaLAPACK.

    Parameters
    ----------
    a: a square matrix of float32, float64, complex64 or complex128, in any layout
    lower: whether the factor is L, not U
    block: the rows and columns of a block, if *a* has no layout with square `Cyclic` blocks over all devices
    layout: layout of the result, on the ranks of *a*; by default the layout of *a*

    ``numpy.linalg.LinAlgError`` on all ranks of the mesh if the matrix is not positive definite, ``ShapeError`` if it
    is not square, ``DTypeError`` for other dtypes, ``MeshError`` in a simulated world, ``ImportError`` if no ScaLAPACK
    is found.

    >>> import numpy as np, meshcomm as mc
    >>> import meshcomm.linalg.scalapack as scalapack
    >>> rows = mc.Layout(["x", mc.UNSHARDED], mc.create_mesh())  # doctest: +SKIP
    >>> a = mc.distribute(np.array([[4.0, 2.0], [2.0, 2.0]]), rows)  # doctest: +SKIP
    >>> scalapack.cholesky(a).to_numpy()  # doctest: +SKIP
    array([[2., 0.],
           [1., 1.]])
    """
    tensor = matrix_of("cholesky", a)
    target = tensor.layout if layout is None else layout

    def plan_layouts() -> WorkLayouts:
        check_matrices([tensor])
        check_target(target, tensor.shape, tensor)
        check_block(block)
        check_square("cholesky", tensor.shape)
        return square_work(tensor.layout, block)

    job = ScalapackJob.agreed("scalapack.cholesky", plan_layouts, [tensor], options=f"{lower=}, {block=}, {target}")
    (work_layout,), (block_size,) = job.layouts, job.blocks
    factor = tensor.copy() if work_layout == tensor.layout else relayout(tensor, work_layout)
    if job.is_inside and tensor.size:
        triangle = b"U" if lower else b"L"
        failed_order = job.call_checked(
            "potrf", tensor.dtype, triangle, tensor.shape[0], *job.described(factor, block_size, block_size)
        )
        if failed_order > 0:
            raise np.linalg.LinAlgError(
                f"the matrix is not positive definite: its leading minor of order {failed_order} is not"
            )
        clear_triangle(factor, lower)
    return factor if target == work_layout else relayout(factor, target)


@refusable
def matmul(a: DTensor, b: DTensor, *, block: int = USUAL_BLOCK, layout: Layout | None = None) -> DTensor:
    """Return the product of two matrices, by ScaLAPACK. Collective over the mesh.

    ``a @ b`` needs no ScaLAPACK: see `meshcomm.matmul`. This one shards both axes of all three matrices, so it moves
    and stores less on many ranks. Source: pdgemm of ScaLAPACK.

    Parameters
    ----------
    a: a matrix of float32, float64, complex64 or complex128, in any layout
    b: a matrix of the same dtype on the same mesh, in any layout
    block: the rows and columns of a block, where no operand has a layout with `Cyclic` blocks over all devices
    layout: layout of the result, on the ranks of *a*; by default the layout of *a*

    ``ShapeError`` if the shapes do not fit, ``DTypeError`` for other dtypes, ``MeshError`` if the meshes differ, or
    in a simulated world, ``ImportError`` if no ScaLAPACK is found.

    >>> import numpy as np, meshcomm as mc
    >>> import meshcomm.linalg.scalapack as scalapack
    >>> a = mc.distribute(np.eye(3), mc.Layout(["x", mc.UNSHARDED], mc.create_mesh()))  # doctest: +SKIP
    >>> scalapack.matmul(a, a).to_numpy().trace()  # doctest: +SKIP
    3.0
    """
    left, right = matrix_of("matmul", a), matrix_of("matmul", b)
    target = left.layout if layout is None else layout
    check_same_mesh([left, right])
    shape = (*left.shape[:1], *right.shape[-1:])

    def plan_layouts() -> WorkLayouts:
        check_matrices([left, right])
        check_target(target, shape, left)
        check_block(block)
        if left.shape[1] != right.shape[0]:
            raise ShapeError(f"matmul of shapes {left.shape} and {right.shape}: columns of a and rows of b differ")
        return product_work(left.layout, right.layout, block)

    job = ScalapackJob.agreed("scalapack.matmul", plan_layouts, [left, right], options=f"{block=}, {target}")
    work_layouts, (row_block, inner_block, column_block) = job.layouts, job.blocks
    left, right = (
        t if t.layout == work_layout else relayout(t, work_layout)
        for t, work_layout in zip((left, right), work_layouts, strict=False)
    )
    result = mapped(
        lambda block: np.zeros(work_layouts[2].block_shape(shape), block.dtype),
        left,
        layout=work_layouts[2],
        shape=shape,
    )
    if job.is_inside and all((*shape, left.shape[1])):
        # The transposed problem: see `meshcomm.linalg.block_cyclic`.
        sizes = shape[1], shape[0], left.shape[1]
        alpha, beta = np.ones(1, left.dtype), np.zeros(1, left.dtype)
        operands = *job.described(right, inner_block, column_block), *job.described(left, row_block, inner_block)
        job.call(
            "gemm",
            left.dtype,
            b"N",
            b"N",
            *sizes,
            alpha,
            *operands,
            beta,
            *job.described(result, row_block, column_block),
        )
    return result if target == work_layouts[2] else relayout(result, target)


@refusable
def gemr2d(t: DTensor, layout: Layout, *, out: DTensor | None = None) -> DTensor:
    """Return a matrix in another layout, by ScaLAPACK's pdgemr2d: a peer to compare `relayout` with. Collective.

    `relayout` does the same for all layouts and dtypes. This is Collective over the meshes of both layouts. *out* is a
    tensor of the same shape and dtype in *layout*, to overwrite and return.
    ``LayoutError`` unless both are layouts that ``Layout.descriptor`` describes, without replicas. Other errors are
    those of `cholesky`.
    """
    tensor = matrix_of("gemr2d", t)
    source, shape, dtype = tensor.layout, tensor.shape, tensor.dtype

    def plan_layouts() -> WorkLayouts:
        check_matrices([tensor])
        check_target(layout, shape, tensor, same_mesh=False)
        if out is not None and (out.layout, out.shape, out.dtype) != (layout, shape, dtype):
            raise LayoutError(f"out must have shape {shape}, dtype {dtype} and the layout, but it is {quote(out)}")
        if out is not None:
            check_writable("gemr2d: out=", out)
        for side_layout in (source, layout):
            if math.prod(side_layout.shape) != side_layout.mesh.size:
                raise LayoutError(f"gemr2d knows no replicas, which blocks in {side_layout.specs_text} have")
            side_layout.descriptor(shape, 0)
        return (source, layout), ()

    target_text = f"to {layout.specs_text} on {mesh_description(layout.mesh)}"
    job = ScalapackJob.agreed("scalapack.gemr2d", plan_layouts, [tensor], target=layout.mesh, options=target_text)
    out = empty(shape, dtype, layout) if out is None else out
    target_in_c_order = mapped(lambda block: block, out)
    if job.is_inside:
        all_context = grid_of_all(job.rank_session, library()).context
        matrices: list[Argument] = []
        for data, side_layout, grid in zip(
            (tensor._block, target_in_c_order._block), (source, layout), job.grids, strict=True
        ):
            memory = np.empty(1) if data is None else contiguous(data)
            matrices += [memory, 1, 1, side_layout.descriptor(shape, grid.context)]
        job.call("gemr2d", dtype, shape[1], shape[0], *matrices, all_context)
    return map_into(_copy_block, out, target_in_c_order)


def _copy_block(block: Array, source: Array) -> None:
    if source is not block:
        block[...] = source
