"""A job of ScaLAPACK: matrices in one layout, the routines that run on them, and their results."""

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import DTypeLike

from meshcomm.blocks.make import make, map_into, mapped
from meshcomm.blocks.session import Session, in_session
from meshcomm.core._types import Array, DType, Shape
from meshcomm.core.arrays.dtensor import DTensor
from meshcomm.core.arrays.relayout import relayout
from meshcomm.core.layouts.layout import Layout
from meshcomm.core.layouts.mesh import Mesh
from meshcomm.core.layouts.specs import Cyclic
from meshcomm.core.memory.copies import contiguous
from meshcomm.errors import ShapeError
from meshcomm.linalg.block_cyclic import WorkLayouts, cyclic_axes, descriptor, grid_mesh, square_work
from meshcomm.linalg.grids import BlacsGrid, grid_of
from meshcomm.linalg.library import Argument, library
from meshcomm.linalg.native import check_is_mpi
from meshcomm.linalg.routines import LETTERS, check_block, check_matrices, check_same_mesh, matrix_of, real_of
from meshcomm.numpy.shapes.linalg import transpose

SINGULAR = "Singular matrix"


@dataclass(frozen=True)
class ScalapackJob:
    """A call of ScaLAPACK on which all ranks have agreed: its layouts, and the session and grids of this rank.

    Ranks outside of the meshes have a job, too: they take part where tensors move, and call no routine.

    Parameters
    ----------
    mesh: mesh of the operands
    layouts: layouts of the matrices
    blocks: sizes of blocks in the descriptors
    session: session of the ranks that call routines; None outside of the meshes
    grids: a grid of processes for each layout; empty outside of the meshes
    """

    mesh: Mesh
    layouts: tuple[Layout, ...]
    blocks: tuple[int, ...]
    session: Session | None
    grids: Sequence[BlacsGrid]

    @classmethod
    def agreed(
        cls,
        name: str,
        plan_layouts: Callable[[], WorkLayouts],
        tensors: Sequence[DTensor],
        *,
        target: Mesh | None = None,
        options: str,
    ) -> "ScalapackJob":
        """Return the job of a call, in the layouts that *plan_layouts* returns. Collective over both meshes.

        The ranks agree on every call before they enter the library, which does not notice that calls differ. All
        ranks raise the errors of *plan_layouts*. *target* is the mesh of the result, if it is another one.
        """
        mesh = tensors[0].mesh
        check_is_mpi(name, mesh)
        operands = ", ".join(f"{t.shape} {t.dtype} in {t.layout.specs_text}" for t in tensors)

        def open_job(session: Session) -> ScalapackJob:
            call = f"{name}({operands}; {options})"
            (layouts, blocks), scalapack = session.agree_on_result(call, lambda: (plan_layouts(), library()))
            return cls(mesh, layouts, blocks, session, [grid_of(session, layout, scalapack) for layout in layouts])

        return in_session(name, mesh, open_job, target) or cls(mesh, *plan_layouts(), None, ())

    @classmethod
    def begin(
        cls,
        name: str,
        operands: Sequence[DTensor],
        block: int,
        check: Callable[..., object],
        options: str = "",
        *,
        in_order: bool = False,
        along: int | None = None,
    ) -> "ScalapackJob":
        """Return the job of a call whose matrices are all in one layout with square blocks, on one grid. Collective.

        Parameters
        ----------
        name: name of the function
        operands: matrices; the layout of the first one is used if it fits
        block: size of blocks in a new layout
        check: function of the name and the shapes of the operands; it raises an error for wrong shapes
        options: other arguments that the ranks compare, as text
        in_order: whether the grid has its processes in the order of their ranks, row by row, whatever the layout is
        along: axis along which most devices of a new grid lie: see `grid_mesh`
        """
        tensors = [matrix_of(name, operand) for operand in operands]
        check_same_mesh(tensors, grids=False)

        def plan_layouts() -> WorkLayouts:
            check_block(block)
            check_matrices(tensors)
            check(name, *(tensor.shape for tensor in tensors))
            return _in_order(tensors[0].mesh, block) if in_order else _work_layouts(tensors[0].layout, block, along)

        return cls.agreed(name, plan_layouts, tensors, options=f"{block=} {options}")

    @property
    def is_inside(self) -> bool:
        """Whether this rank calls routines."""
        return self.session is not None

    @property
    def rank_session(self) -> Session:
        """The session of this rank, inside of the meshes."""
        assert self.session is not None
        return self.session

    @property
    def layout(self) -> Layout:
        """The layout of all matrices, in a job from `begin`."""
        return self.layouts[0]

    @property
    def block(self) -> int:
        """The rows and columns of a block, in a job from `begin`."""
        return self.blocks[0]

    # -- matrices -----------------------------------------------------------------------------------------------------

    def placed(self, tensor: DTensor) -> DTensor:
        """Return a copy in the layout of the job: ScaLAPACK sees its transpose. Collective."""
        return relayout(tensor, self.layout)

    def transposed(self, tensor: DTensor) -> DTensor:
        """Return a copy of the transpose in the layout of the job: ScaLAPACK sees *tensor* itself. Collective."""
        return transpose(tensor, (1, 0), self.layout)

    def resized(self, tensor: DTensor, shape: Shape) -> DTensor:
        """Return *tensor* cropped, or extended by zeros, to a new matrix of *shape*. Collective."""

        def resize(block: Array) -> Array:
            result = self.zeros(self.layout.block_shape(shape), block.dtype)
            # The first rows and columns are on the same devices, first in their blocks.
            common = tuple(map(slice, map(min, result.shape, block.shape)))
            result[common] = block[common]
            return result

        return mapped(resize, tensor, layout=self.layout, shape=shape)

    def matrix(self, tensor: DTensor) -> tuple[Argument, ...]:
        """Return the arguments that describe a matrix in the layout of the job.

        Blocks are square in the descriptor, also where an axis is shorter: routines compare the sizes.
        """
        *start, numbers = self.described(tensor, self.block, self.block)
        assert isinstance(numbers, tuple)
        return *start, (*numbers[:4], self.block, self.block, *numbers[6:])

    def panels(self, tensor: DTensor) -> int:
        """Return the number of elements of the panels in which reflections are applied to *tensor*.

        Drivers ask for less if a matrix is smaller than its blocks, and then return wrong results.
        """
        return (sum(tensor._block.shape) + 2 * self.block) * self.block

    def indices(self, tensor: DTensor, axis: int) -> Array:
        """Return the global indices of the block of this rank along *axis*."""
        return self.layout.global_indices(tensor.shape, None, axis)

    def diagonal(self, tensor: DTensor) -> tuple[Array, Array]:
        """Return the local elements of the diagonal, and their columns in the block."""
        rows, columns = self.indices(tensor, 0), self.indices(tensor, 1)
        _, row, column = np.intersect1d(rows, columns, assume_unique=True, return_indices=True)
        return tensor._block[row, column], column

    # -- vectors ------------------------------------------------------------------------------------------------------

    def along_columns(self, tensor: DTensor, dtype: DTypeLike) -> Array:
        """Return zeros, one for each column of the block (a row to ScaLAPACK), and one block more. Collective.

        Arrays of pivots, and of the scales of reflections, have this length.
        """
        return self.zeros((tensor._block.shape[1] + self.block,), dtype)

    def replicated(self, array: Array) -> DTensor:
        """Return an array of all ranks as a tensor; all get the bits of the first rank. Collective."""
        local = None
        if self.is_inside:
            local = array
            with self.rank_session.new_call("scalapack"):
                self.rank_session.broadcast(local)
        return make(local, Layout.replicated(self.mesh, array.ndim), array.shape, array.dtype)

    # -- routines -----------------------------------------------------------------------------------------------------

    def factored(self, matrix: DTensor) -> Array:
        """Overwrite a square *matrix*, as ScaLAPACK sees it, with its LU factors; return the pivots. Collective.

        ``LinAlgError`` if it is singular.
        """
        pivots = self.along_columns(matrix, np.intc)
        self.lu(matrix, pivots)
        self.check_diagonal(matrix, SINGULAR)  # getrf does not report every zero
        return pivots

    def lu(self, matrix: DTensor, pivots: Array) -> None:
        """Overwrite *matrix*, as ScaLAPACK sees it, with its LU factors, and *pivots*. Collective."""
        self.call_checked("getrf", matrix.dtype, *matrix.shape[::-1], *self.matrix(matrix), pivots)

    def check_diagonal(self, triangle: DTensor, message: str) -> None:
        """Raise ``LinAlgError`` on all ranks if the diagonal of *triangle* has a zero. Collective.

        ``{0}`` in *message* is the index of the first zero.
        """
        diagonal, columns = self.diagonal(triangle)
        zeros = self.indices(triangle, 1)[columns[diagonal == 0]]
        first_zero = min(self.all_gathered(int(zeros.min(initial=triangle.shape[0]))))
        raise_if(first_zero < triangle.shape[0], message.format(first_zero))

    def check_finite(self, tensor: DTensor, message: str) -> None:
        """Raise ``LinAlgError`` on all ranks if *tensor* has infinity or NaN: routines would never end. Collective."""
        if self.is_inside:
            raise_if(not all(self.all_gathered(bool(np.isfinite(tensor._block).all()))), message)

    # -- calls of the library -----------------------------------------------------------------------------------------

    def described(self, tensor: DTensor, rows: int, columns: int) -> tuple[Argument, ...]:
        """Return the arguments that describe a matrix: the block, its first row and column (1), and the descriptor.

        *rows* and *columns* are the sizes of its blocks.
        """
        numbers = descriptor(tensor.layout, (rows, columns), tensor.shape, self.grids[0].context, tensor.mesh.rank)
        return contiguous(tensor._block), 1, 1, numbers

    def call(self, routine: str, dtype: DType, *arguments: Argument) -> None:
        """Call the routine with this name after ``p`` and the letter of *dtype*. Collective over the rank set."""
        name = f"p{LETTERS[dtype.str[1:]]}{routine}"
        with self.rank_session.in_library(f"scalapack's {name}"):
            library().call(name, *arguments)

    def call_checked(self, routine: str, dtype: DType, *arguments: Argument) -> int:
        """Call a routine whose last argument is *info*; return the largest *info* of all ranks. Collective."""
        info = ctypes.c_int(0)
        self.call(routine, dtype, *arguments, info)
        with self.rank_session.new_call(f"scalapack's {routine}"):
            largest, wrong_argument = self.rank_session.allreduce_max(info.value, -info.value)
        assert wrong_argument <= 0, f"argument {wrong_argument} of {routine} is wrong"
        return largest

    def call_in_workspace(
        self, routine: str, dtype: DType, letters: str, *arguments: Argument, at_least: int = 1
    ) -> int:
        """Call a routine with the workspaces that it asks for; return *info* as `call_checked` does.

        Collective over the rank set. *letters* has a letter for each workspace: ``w`` for elements of *dtype*, ``r``
        for real numbers, ``i`` for integers, each followed by its length; ``R`` for real numbers without a length.
        *at_least* is the minimum length.
        """
        queries = [_Workspace(np.zeros(8, _work_dtype(letter, dtype)), letter != "R") for letter in letters]
        self.call_checked(routine, dtype, *arguments, *[a for workspace in queries for a in workspace.arguments(-1)])
        with self.rank_session.new_call(f"scalapack's {routine}"):
            workspaces = self.rank_session.agree_on_result(
                f"the workspace of {routine}", lambda: [workspace.allocated(at_least) for workspace in queries]
            )
        arguments_of_workspaces = [a for workspace in workspaces for a in workspace.arguments(workspace.memory.size)]
        return self.call_checked(routine, dtype, *arguments, *arguments_of_workspaces)

    def zeros(self, shape: Shape, dtype: DTypeLike) -> Array:
        """Return an array of zeros. Collective over the rank set: if one rank lacks memory, all raise its error."""
        with self.rank_session.new_call("memory for scalapack"):
            return self.rank_session.agree_on_result("memory for scalapack", lambda: np.zeros(shape, dtype))

    def all_gathered(self, value: object) -> list[Any]:
        """Return the *value* of each rank, sent as JSON. Collective over the rank set."""
        with self.rank_session.new_call("scalapack"):
            return self.rank_session.allgather(value)


class _Workspace(NamedTuple):
    """Memory for a routine to work in, and whether its length is an argument of the routine."""

    memory: Array
    has_length: bool

    def arguments(self, length: int) -> tuple[Argument, ...]:
        """Return the arguments for a routine; a *length* of -1 asks for the size that it needs."""
        return (self.memory, length) if self.has_length else (self.memory,)

    def allocated(self, at_least: int) -> "_Workspace":
        """Return a workspace of the size that the routine has written into this one."""
        requested = self.memory[0].real
        # The size may have been rounded down to a float32.
        size = int(requested) if self.memory.dtype.kind == "i" else int(np.ceil(np.nextafter(requested, np.inf)))
        if size > np.iinfo(np.intc).max:
            raise ShapeError(f"ScaLAPACK asks for a workspace of {size} elements, more than its integers can count")
        return _Workspace(np.zeros(max(at_least, size), self.memory.dtype), self.has_length)


def _work_dtype(letter: str, dtype: DType) -> DType:
    """Return the dtype of a workspace."""
    return np.dtype(np.intc) if letter == "i" else dtype if letter == "w" else real_of(dtype)


def raise_if(condition: bool, message: str) -> None:
    """Raise ``LinAlgError`` with *message* if *condition*, which is the same on all ranks, is true."""
    if condition:
        raise np.linalg.LinAlgError(message)


def conjugate(tensor: DTensor) -> None:
    """Conjugate the block of this rank in place."""
    if tensor.dtype.kind == "c":
        map_into(lambda block: np.conjugate(block, out=block), tensor)


def _work_layouts(layout: Layout, block: int, long_axis: int | None) -> WorkLayouts:
    """Return the layout of a job: *layout* if its first device has the first block, and blocks are square."""
    axes = cyclic_axes(layout)
    if axes is not None and not any(axis.offset for axis in axes):
        return square_work(layout, block)
    return (Layout([Cyclic("rows", block), Cyclic("columns", block)], grid_mesh(layout.mesh, long_axis)),), (block,)


def _in_order(mesh: Mesh, block: int) -> WorkLayouts:
    """Return the layout of a job on a grid that has its processes row by row in the order of their ranks."""
    ordered_mesh = grid_mesh(mesh.of_ranks(sorted(mesh.ranks), {"x": mesh.size}))
    # Axis 1 is along the rows of ScaLAPACK's grid.
    return (Layout([Cyclic("columns", block), Cyclic("rows", block)], ordered_mesh),), (block,)
