"""Cholesky factors and matrix products of tensors by ScaLAPACK, which is loaded when the first of them is called.

meshcomm brings no ScaLAPACK with it: docs/linear-algebra.md says how to install one. Tensors may be in any layout.
They are relaid to blocks dealt round over a grid of all ranks of their mesh, and the result is relaid back.
"""

import ctypes
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from meshcomm._arguments import integer, quote
from meshcomm._mistakes import only_public
from meshcomm._types import DType
from meshcomm.arrays.dtensor import DTensor, unwrapped
from meshcomm.arrays.relayout import relayout
from meshcomm.arrays.views import check_writable, filled
from meshcomm.errors import DTypeError, LayoutError, MeshError, ShapeError
from meshcomm.layouts.layout import Layout
from meshcomm.layouts.layout_text import specs_text
from meshcomm.layouts.mesh import Mesh
from meshcomm.linalg.block_cyclic import USUAL_BLOCK, Work, descriptor, product_work, square_work
from meshcomm.linalg.grids import Grid, grid_of, grid_of_all
from meshcomm.linalg.library import Argument, Library, library, use
from meshcomm.memory.copies import contiguous
from meshcomm.ranks._envelope import Envelope
from meshcomm.ranks.calls import agree_on, collective
from meshcomm.ranks.local_errors import refusable
from meshcomm.ranks.meshes import location_text
from meshcomm.ranks.mpi import MPIWorld
from meshcomm.ranks.teams import Location

__all__ = ["cholesky", "gemr2d", "matmul", "use"]

if not TYPE_CHECKING:
    __getattr__, __dir__ = only_public(__name__, __all__)

_LETTERS = {"f4": "s", "f8": "d", "c8": "c", "c16": "z"}  # of the dtypes that ScaLAPACK has, in names of routines


class _Process(NamedTuple):
    """This process in grids: where it is, the library, and the grid of each layout of a call."""

    here: Location
    library: Library
    grids: list[Grid]

    def matrix(self, tensor: DTensor, *blocks: int) -> tuple[Argument, ...]:
        """Return the arguments that describe a matrix: the block, row and column, and the descriptor.

        *blocks* are the sizes of blocks of rows and of columns.
        """
        assert tensor.local is not None
        rows, columns = blocks
        numbers = descriptor(tensor.layout, (rows, columns), tensor.shape, self.grids[0].context, self.here.device)
        return contiguous(tensor.local), 1, 1, numbers


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
    layout: that of the result, on the ranks of *a*; by default the layout of *a*

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
    tensor = _operand("cholesky", a)
    target = tensor.layout if layout is None else layout

    def planned() -> Work:
        _check(target, tensor.shape, [tensor])
        _check_block(block)
        if tensor.shape[0] != tensor.shape[1]:
            raise ShapeError(f"cholesky takes a square matrix, but the shape is {tensor.shape}")
        return square_work(tensor.layout, block)

    ((work,), (size,)), process = _agreed("cholesky", planned, [tensor], options=f"{lower=}, {block=}, {target}")
    factor = tensor.copy() if work == tensor.layout else relayout(tensor, work)
    if process is not None and tensor.size:
        info = ctypes.c_int(0)
        _call(
            process,
            "potrf",
            tensor.dtype,
            b"U" if lower else b"L",
            tensor.shape[0],
            *process.matrix(factor, size, size),
            info,
        )
        _raise_together(info.value, factor.mesh)
        _clear_triangle(factor, lower)
    return factor if target == work else relayout(factor, target)


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
    layout: that of the result, on the ranks of *a*; by default the layout of *a*

    ``ShapeError`` if the shapes do not fit, ``DTypeError`` for other dtypes, ``MeshError`` if the meshes differ, or
    in a simulated world, ``ImportError`` if no ScaLAPACK is found.

    >>> import numpy as np, meshcomm as mc
    >>> import meshcomm.linalg.scalapack as scalapack
    >>> a = mc.distribute(np.eye(3), mc.Layout(["x", mc.UNSHARDED], mc.create_mesh()))  # doctest: +SKIP
    >>> scalapack.matmul(a, a).to_numpy().trace()  # doctest: +SKIP
    3.0
    """
    left, right = _operand("matmul", a), _operand("matmul", b)
    target = left.layout if layout is None else layout
    if right.mesh != left.mesh or right.mesh.world is not left.mesh.world:
        raise MeshError(f"operands must be on one mesh, but are on the {left.mesh} and the {right.mesh}")
    shape = (*left.shape[:1], *right.shape[-1:])

    def planned() -> Work:
        _check(target, shape, [left, right])
        _check_block(block)
        if left.shape[1] != right.shape[0]:
            raise ShapeError(f"matmul of shapes {left.shape} and {right.shape}: columns of a and rows of b differ")
        return product_work(left.layout, right.layout, block)

    (works, (rows, summed, columns)), process = _agreed(
        "matmul", planned, [left, right], options=f"{block=}, {target}"
    )
    left, right = (t if t.layout == work else relayout(t, work) for t, work in zip((left, right), works, strict=False))
    local = None if process is None else np.zeros(works[2].block_shape(shape, process.here.device), left.dtype)
    result = DTensor(local, works[2], shape, left.dtype)
    if process is not None and all((*shape, left.shape[1])):
        # The transposed problem: see `meshcomm.linalg.block_cyclic`.
        sizes = shape[1], shape[0], left.shape[1]
        one, zero = np.ones(1, left.dtype), np.zeros(1, left.dtype)
        factors = *process.matrix(right, summed, columns), *process.matrix(left, rows, summed)
        _call(
            process,
            "gemm",
            left.dtype,
            b"N",
            b"N",
            *sizes,
            one,
            *factors,
            zero,
            *process.matrix(result, rows, columns),
        )
    return result if target == works[2] else relayout(result, target)


@refusable
def gemr2d(t: DTensor, layout: Layout, *, out: DTensor | None = None) -> DTensor:
    """Return a matrix in another layout, by ScaLAPACK's pdgemr2d: a peer to compare `relayout` with. Collective.

    `relayout` does the same for all layouts and dtypes. This is Collective over the meshes of both layouts. *out* is a
    tensor of the same shape and dtype in *layout*, to overwrite and return.
    ``LayoutError`` unless both are layouts that ``Layout.descriptor`` describes, without replicas. Other errors are
    those of `cholesky`.
    """
    tensor = _operand("gemr2d", t)
    source, shape, dtype = tensor.layout, tensor.shape, tensor.dtype

    def planned() -> Work:
        _check(layout, shape, [tensor], same_mesh=False)
        if out is not None and (out.layout, out.shape, out.dtype) != (layout, shape, dtype):
            raise LayoutError(f"out must have shape {shape}, dtype {dtype} and the layout, but it is {quote(out)}")
        if out is not None:
            check_writable("gemr2d: out=", out)
        for each in (source, layout):
            if math.prod(each.shape) != each.mesh.size:
                raise LayoutError(f"gemr2d knows no replicas, which blocks in {specs_text(each.sharding_specs)} have")
            each.descriptor(shape, 0)
        return Work((source, layout))

    target = f"to {specs_text(layout.sharding_specs)} on {location_text(layout.mesh)}"
    _, process = _agreed("gemr2d", planned, [tensor], target=layout.mesh, options=target)
    device = layout.mesh.rank
    if out is None:
        local = None if device is None else np.empty(layout.block_shape(shape, device), dtype)
        out = DTensor(local, layout, shape, dtype)
    block = out.local if out.local is None or out.local.flags.c_contiguous else np.empty(out.local.shape, dtype)
    if process is not None:
        everyone = grid_of_all(process.here.team, process.library).context
        matrices: list[Argument] = []
        for data, each, grid in zip((tensor.local, block), (source, layout), process.grids, strict=True):
            given = np.empty(1) if data is None else contiguous(data)
            matrices += [given, 1, 1, each.descriptor(shape, grid.context)]
        _call(process, "gemr2d", dtype, shape[1], shape[0], *matrices, everyone)
    return filled(out, block)


def _operand(name: str, operand: object) -> DTensor:
    tensor = unwrapped(operand)
    if not isinstance(tensor, DTensor):
        raise LayoutError(f"{name} is for DTensors, not for {type(operand).__name__}; SciPy has its own for arrays")
    return tensor


def _check(target: Layout, shape: Sequence[int], tensors: Sequence[DTensor], *, same_mesh: bool = True) -> None:
    """Raise what is wrong with the operands of any routine, and with the layout of its result."""
    for tensor in tensors:
        if tensor.ndim != 2:
            raise ShapeError(f"ScaLAPACK works on matrices, which have 2 axes; the shape is {tensor.shape}")
        if tensor.dtype.str[1:] not in _LETTERS or not tensor.dtype.isnative:
            raise DTypeError(f"ScaLAPACK has float32, float64, complex64 and complex128, but no {tensor.dtype}")
        if tensor.dtype != tensors[0].dtype:
            raise DTypeError(f"the operands have the dtypes {tensors[0].dtype} and {tensor.dtype}; they must be equal")
    if not isinstance(target, Layout):
        raise LayoutError(f"layout must be a Layout, not {type(target).__name__}")
    if same_mesh and set(target.mesh.ranks) != set(tensors[0].mesh.ranks):
        raise MeshError(f"the result stays on the ranks of the {tensors[0].mesh}, but layout is on the {target.mesh}")
    target.block_shape(shape, 0)


def _check_block(block: object) -> None:
    if integer(block, "block", LayoutError) < 1:
        raise LayoutError(f"block {quote(block)}; a block has 1 row and column or more")


def _agreed(
    operation: str,
    planned: Callable[[], Work],
    tensors: Sequence[DTensor],
    *,
    target: Mesh | None = None,
    options: str,
) -> tuple[Work, _Process | None]:
    """Return what *planned* returns, and this process, or None outside of the meshes. Collective.

    The ranks agree on every call before they enter the library: there, nothing would tell them that calls differ. What
    *planned* raises, all ranks raise.
    """
    name = f"scalapack.{operation}"
    if not isinstance(tensors[0].mesh.world, MPIWorld):
        raise MeshError(f"{name} needs MPI, which a simulated world does not have; run the program with mpiexec")
    operands = ", ".join(f"{t.shape} {t.dtype} in {specs_text(t.layout.sharding_specs)}" for t in tensors)

    with collective(name, tensors[0].mesh, target) as here:
        if here is None:
            return planned(), None
        _ = here.team.machine  # agreed on when the team first communicates
        work, found = agree_on(here.team, f"{name}({operands}; {options})", lambda: (planned(), library()))
        return work, _Process(here, found, [grid_of(here.team, layout, found) for layout in work.layouts])


def _call(process: _Process, routine: str, dtype: DType, *arguments: Argument) -> None:
    name = f"p{_LETTERS[dtype.str[1:]]}{routine}"
    with Envelope(f"scalapack's {name}", process.here.team):
        process.library.call(name, *arguments)


def _raise_together(info: int, mesh: Mesh) -> None:
    """Raise the same error on all ranks if the library reports one on some. Collective over the mesh."""
    with collective("scalapack.cholesky", mesh) as here:
        assert here is not None
        largest, of_negatives = here.team.everyone.communicator().allreduce_max(np.array([info, -info])).tolist()
    assert of_negatives <= 0, f"argument {of_negatives} is wrong"
    if largest > 0:
        raise np.linalg.LinAlgError(
            f"the matrix is not positive definite: its leading minor of order {largest} is not"
        )


def _clear_triangle(factor: DTensor, lower: bool) -> None:
    """Set the other triangle to zero, which the library leaves as it was."""
    assert factor.local is not None
    layout, device = factor.layout, factor.mesh.rank
    assert device is not None
    rows, columns = (layout.global_indices(factor.shape, device, axis) for axis in range(2))
    # Indices ascend, so a row has its elements on the diagonal and left of it in front.
    ends = np.searchsorted(columns, rows, side="right" if lower else "left")
    for row, end in zip(factor.local, ends.tolist(), strict=True):
        row[slice(end, None) if lower else slice(end)] = 0
