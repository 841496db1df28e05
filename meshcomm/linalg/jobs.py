"""A job of ScaLAPACK: matrices in one layout, the routines that run on them, and what comes out of it."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import DTypeLike

from meshcomm.blocks.make import changed, make, mapped
from meshcomm.core._types import Array, Shape
from meshcomm.core.arrays.dtensor import DTensor
from meshcomm.core.arrays.relayout import relayout
from meshcomm.core.arrays.transposed import relayout_transposed
from meshcomm.core.layouts.layout import Layout
from meshcomm.core.layouts.mesh import Mesh
from meshcomm.core.layouts.specs import Cyclic
from meshcomm.linalg.block_cyclic import Work, dealt_axes, grid_mesh, square_work
from meshcomm.linalg.library import Argument
from meshcomm.linalg.routines import Process, agreed, check_block, check_matrices, check_same_mesh, matrix_of

SINGULAR = "Singular matrix"


class Job(NamedTuple):
    """Where a call works: all of its matrices are in one layout with square blocks, on one grid."""

    mesh: Mesh
    layout: Layout
    block: int
    process: Process | None

    @classmethod
    def begun(
        cls,
        name: str,
        operands: Sequence[DTensor],
        block: int,
        check: Callable[..., object],
        options: str = "",
        *,
        in_order: bool = False,
        along: int | None = None,
    ) -> "Job":
        """Return the job of a call on which all ranks have agreed. Collective.

        Parameters
        ----------
        name: of the function
        operands: its matrices; the layout of the first one is used if it fits
        block: the size of blocks, if it does not
        check: raises what is wrong with the shapes of the operands, which it gets
        options: what else the ranks compare
        in_order: whether the grid has its processes row by row in the order of their ranks, whatever the layout
        along: the axis along which most devices of a new grid lie: see `grid_mesh`
        """
        tensors = [matrix_of(name, operand) for operand in operands]
        check_same_mesh(tensors, grids=False)

        def planned() -> Work:
            check_block(block)
            check_matrices(tensors)
            check(name, *(tensor.shape for tensor in tensors))
            return _in_order(tensors[0].mesh, block) if in_order else _work(tensors[0].layout, block, along)

        ((layout,), (size,)), process = agreed(name, planned, tensors, options=f"{block=} {options}")
        return cls(tensors[0].mesh, layout, size, process)

    # -- matrices -----------------------------------------------------------------------------------------------------

    def placed(self, tensor: DTensor) -> DTensor:
        """Return a copy in the layout of the job: ScaLAPACK sees its transpose. Collective."""
        return relayout(tensor, self.layout)

    def transposed(self, tensor: DTensor) -> DTensor:
        """Return a copy of the transpose in the layout of the job: ScaLAPACK sees *tensor* itself. Collective."""
        return relayout_transposed(tensor, (1, 0), self.layout)

    def resized(self, tensor: DTensor, shape: Shape) -> DTensor:
        """Return the first rows and columns of *tensor* as a new matrix of *shape*; what it lacks is 0. Collective."""

        def resize(block: Array) -> Array:
            assert self.process is not None
            new = self.process.zeros(self.layout.block_shape(shape), block.dtype)
            # The first rows and columns are dealt round to the same devices, and come first in their blocks.
            both = tuple(map(slice, map(min, new.shape, block.shape)))
            new[both] = block[both]
            return new

        return mapped(resize, tensor, layout=self.layout, shape=shape)

    def matrix(self, tensor: DTensor) -> tuple[Argument, ...]:
        """Return the arguments that describe a matrix in the layout of the job.

        Blocks are square in the descriptor, also where an axis is shorter: routines compare the sizes.
        """
        assert self.process is not None
        *where, numbers = self.process.matrix(tensor, self.block, self.block)
        assert isinstance(numbers, tuple)
        return *where, (*numbers[:4], self.block, self.block, *numbers[6:])

    def panels(self, tensor: DTensor) -> int:
        """Return the elements of the panels that reflections of *tensor* are applied in.

        Drivers ask for less where a matrix is smaller than its blocks, and return wrong results.
        """
        return (sum(tensor.local.shape) + 2 * self.block) * self.block

    def indices(self, tensor: DTensor, axis: int) -> Array:
        """Return the global indices of the block of this rank along *axis*."""
        return self.layout.global_indices(tensor.shape, None, axis)

    def diagonal(self, tensor: DTensor) -> tuple[Array, Array]:
        """Return the elements of the diagonal that this rank has, and in which columns of its block they are."""
        rows, columns = self.indices(tensor, 0), self.indices(tensor, 1)
        _, row, column = np.intersect1d(rows, columns, assume_unique=True, return_indices=True)
        return tensor.local[row, column], column

    # -- vectors ------------------------------------------------------------------------------------------------------

    def along_columns(self, tensor: DTensor, dtype: DTypeLike) -> Array:
        """Return memory for a number for each column of the block, which is a row to ScaLAPACK, and for a block more.

        So pivots lie, and the factors of reflections. Collective.
        """
        assert self.process is not None
        return self.process.zeros((tensor.local.shape[1] + self.block,), dtype)

    def replicated(self, array: Array) -> DTensor:
        """Return an array that all ranks have as a tensor; the first rank's bits are those of all. Collective."""
        local = None
        if self.process is not None:
            local = array
            self.process.same_on_all(local)
        return make(local, Layout.replicated(self.mesh, array.ndim), array.shape, array.dtype)

    # -- routines -----------------------------------------------------------------------------------------------------

    def factored(self, matrix: DTensor) -> Array:
        """Overwrite a square *matrix*, as ScaLAPACK sees it, by its factors; return the pivots. Collective.

        ``LinAlgError`` if it is singular.
        """
        assert self.process is not None
        pivots = self.along_columns(matrix, np.intc)
        self.lu(matrix, pivots)
        self.check_diagonal(matrix, SINGULAR)  # as getrf does not report every zero
        return pivots

    def lu(self, matrix: DTensor, pivots: Array) -> None:
        """Overwrite *matrix*, as ScaLAPACK sees it, by its factors, and *pivots*. Collective."""
        assert self.process is not None
        self.process.call_checked("getrf", matrix.dtype, *matrix.shape[::-1], *self.matrix(matrix), pivots)

    def check_diagonal(self, triangle: DTensor, message: str) -> None:
        """Raise ``LinAlgError`` on all ranks if the diagonal of *triangle* has a zero. Collective.

        The *message* may say which is the first one: ``{0}``.
        """
        assert self.process is not None
        diagonal, columns = self.diagonal(triangle)
        zeros = self.indices(triangle, 1)[columns[diagonal == 0]]
        first = min(self.process.told(int(zeros.min(initial=triangle.shape[0]))))
        raise_if(first < triangle.shape[0], message.format(first))

    def check_finite(self, tensor: DTensor, message: str) -> None:
        """Raise ``LinAlgError`` on all ranks if one has infinity or NaN, with which routines never end. Collective."""
        if self.process is not None:
            raise_if(not all(self.process.told(bool(np.isfinite(tensor.local).all()))), message)


def raise_if(wrong: bool, message: str) -> None:
    """Raise ``LinAlgError`` with *message* if something is *wrong*, which all ranks know."""
    if wrong:
        raise np.linalg.LinAlgError(message)


def conjugate(tensor: DTensor) -> None:
    """Conjugate the block of this rank in place."""
    if tensor.dtype.kind == "c":
        changed(lambda block: np.conjugate(block, out=block), tensor)


def _work(layout: Layout, block: int, along: int | None) -> Work:
    """Return the layout of a job: *layout* if its first device has the first block, and blocks are square."""
    axes = dealt_axes(layout)
    if axes is not None and not any(axis.offset for axis in axes):
        return square_work(layout, block)
    return Work((Layout([Cyclic("rows", block), Cyclic("columns", block)], grid_mesh(layout.mesh, along)),), (block,))


def _in_order(mesh: Mesh, block: int) -> Work:
    """Return the layout of a job on a grid that has its processes row by row in the order of their ranks."""
    ordered = grid_mesh(mesh.of_ranks(sorted(mesh.ranks), {"x": mesh.size}))
    # Axis 1 is along the rows of ScaLAPACK's grid.
    return Work((Layout([Cyclic("columns", block), Cyclic("rows", block)], ordered),), (block,))
