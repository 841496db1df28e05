"""What all calls of ScaLAPACK on tensors need: agreement, descriptors, workspace, and errors that all ranks raise."""

import ctypes
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import DTypeLike

from meshcomm.blocks.make import changed
from meshcomm.core._arguments import integer, quote
from meshcomm.core._types import Array, DType, Shape
from meshcomm.core.arrays.dtensor import DTensor, unwrapped
from meshcomm.core.failures.watch import watch
from meshcomm.core.layouts.layout import Layout
from meshcomm.core.layouts.layout_text import specs_text
from meshcomm.core.layouts.mesh import Mesh
from meshcomm.core.memory.blocks import as_bytes
from meshcomm.core.memory.copies import contiguous
from meshcomm.core.ranks._envelope import Envelope
from meshcomm.core.ranks.calls import agree_on, collective
from meshcomm.core.ranks.mpi import MPIWorld
from meshcomm.core.ranks.teams import Location
from meshcomm.errors import DTypeError, LayoutError, MeshError, ShapeError
from meshcomm.linalg.block_cyclic import Work, descriptor
from meshcomm.linalg.grids import Grid, grid_of
from meshcomm.linalg.library import Argument, Library, library

_LETTERS = {"f4": "s", "f8": "d", "c8": "c", "c16": "z"}  # of the dtypes that ScaLAPACK has, in names of routines


class Process(NamedTuple):
    """This process in grids: where it is, the library, and the grid of each layout of a call."""

    here: Location
    library: Library
    grids: list[Grid]

    def matrix(self, tensor: DTensor, *blocks: int) -> tuple[Argument, ...]:
        """Return the arguments that describe a matrix: the block, row and column, and the descriptor.

        *blocks* are the sizes of blocks of rows and of columns.
        """
        rows, columns = blocks
        numbers = descriptor(tensor.layout, (rows, columns), tensor.shape, self.grids[0].context, tensor.mesh.rank)
        return contiguous(tensor.local), 1, 1, numbers

    def call(self, routine: str, dtype: DType, *arguments: Argument) -> None:
        """Call a routine; its name lacks ``p`` and the letter of *dtype*. Collective over the team."""
        name = f"p{_LETTERS[dtype.str[1:]]}{routine}"
        with Envelope(f"scalapack's {name}", self.here.team), watch.library():
            self.library.call(name, *arguments)

    def call_checked(self, routine: str, dtype: DType, *arguments: Argument) -> int:
        """Call a routine whose last argument is *info*; return the largest of all ranks. Collective over the team."""
        info = ctypes.c_int(0)
        self.call(routine, dtype, *arguments, info)
        with Envelope(f"scalapack's {routine}", self.here.team):
            numbers = np.array([info.value, -info.value])
            largest, of_negatives = self.here.team.everyone.communicator().allreduce_max(numbers).tolist()
        assert of_negatives <= 0, f"argument {of_negatives} of {routine} is wrong"
        return int(largest)

    def call_in_workspace(
        self, routine: str, dtype: DType, works: str, *arguments: Argument, at_least: int = 1
    ) -> int:
        """Call a routine with the workspaces that it asks for; return *info* as above. Collective over the team.

        *works* has a letter for each workspace: ``w`` for elements of *dtype*, ``r`` for real numbers, ``i`` for
        integers, each followed by its length; ``R`` for real numbers without a length. Each has *at_least* so many.
        """
        asking = [_Workspace(np.zeros(8, _work_dtype(letter, dtype)), letter != "R") for letter in works]
        self.call_checked(routine, dtype, *arguments, *[a for each in asking for a in each.arguments(-1)])
        with Envelope(f"scalapack's {routine}", self.here.team):
            works_of = agree_on(
                self.here.team, f"the workspace of {routine}", lambda: [each.as_asked(at_least) for each in asking]
            )
        given = [a for each in works_of for a in each.arguments(each.memory.size)]
        return self.call_checked(routine, dtype, *arguments, *given)

    def zeros(self, shape: Shape, dtype: DTypeLike) -> Array:
        """Return an array of zeros; if one rank lacks memory, all raise the error. Collective over the team."""
        with Envelope("memory for scalapack", self.here.team):
            return agree_on(self.here.team, "memory for scalapack", lambda: np.zeros(shape, dtype))

    def told(self, message: object) -> list[Any]:
        """Return what each rank tells, as JSON holds it. Collective over the team."""
        with Envelope("scalapack", self.here.team):
            return self.here.team.everyone.communicator().told(message)

    def same_on_all(self, array: Array) -> None:
        """Overwrite a C-contiguous *array* by that of the first rank. Collective over the team."""
        with Envelope("scalapack", self.here.team):
            self.here.team.everyone.communicator().broadcast(as_bytes(array), 0)


class _Workspace(NamedTuple):
    """Memory for a routine to work in, and whether the routine takes its length."""

    memory: Array
    counted: bool

    def arguments(self, length: int) -> tuple[Argument, ...]:
        """Return the arguments for a routine; a *length* of -1 asks for what it needs."""
        return (self.memory, length) if self.counted else (self.memory,)

    def as_asked(self, at_least: int) -> "_Workspace":
        """Return memory of the size that the routine has written into this one."""
        asked = self.memory[0].real
        # A float32 may have been rounded down.
        size = int(asked) if self.memory.dtype.kind == "i" else int(np.ceil(np.nextafter(asked, np.inf)))
        if size > np.iinfo(np.intc).max:
            raise ShapeError(f"ScaLAPACK asks for a workspace of {size} elements, more than its integers can count")
        return _Workspace(np.zeros(max(at_least, size), self.memory.dtype), self.counted)


def _work_dtype(letter: str, dtype: DType) -> DType:
    """Return the dtype of a workspace."""
    return np.dtype(np.intc) if letter == "i" else dtype if letter == "w" else real_of(dtype)


def real_of(dtype: DType) -> DType:
    """Return the dtype of the real part.

    >>> real_of(np.dtype("c8")), real_of(np.dtype("f8"))
    (dtype('float32'), dtype('float64'))
    """
    return np.empty(0, dtype).real.dtype


def matrix_of(name: str, operand: object) -> DTensor:
    """Return the tensor that is *operand*; ``LayoutError`` if it is none."""
    tensor = unwrapped(operand)
    if not isinstance(tensor, DTensor):
        raise LayoutError(f"{name} is for DTensors, not for {type(operand).__name__}; SciPy has its own for arrays")
    return tensor


def check_same_mesh(tensors: Sequence[DTensor], *, grids: bool = True) -> None:
    """Raise ``MeshError`` if *tensors* are on several meshes; without *grids*, only if those have other ranks."""
    first = tensors[0].mesh
    for tensor in tensors[1:]:
        same = tensor.mesh == first if grids else set(tensor.mesh.ranks) == set(first.ranks)
        if not same or tensor.mesh.world is not first.world:
            raise MeshError(f"operands must be on one mesh, but are on the {first} and the {tensor.mesh}")


def check_matrices(tensors: Sequence[DTensor]) -> None:
    """Raise what is wrong with the operands of any routine."""
    for tensor in tensors:
        if tensor.ndim != 2:
            raise ShapeError(f"ScaLAPACK works on matrices, which have 2 axes; the shape is {tensor.shape}")
        if tensor.dtype.str[1:] not in _LETTERS or not tensor.dtype.isnative:
            raise DTypeError(f"ScaLAPACK has float32, float64, complex64 and complex128, but no {tensor.dtype}")
        if tensor.dtype != tensors[0].dtype:
            raise DTypeError(f"the operands have the dtypes {tensors[0].dtype} and {tensor.dtype}; they must be equal")


def check_target(target: Layout, shape: Sequence[int], tensor: DTensor, *, same_mesh: bool = True) -> None:
    """Raise what is wrong with the layout of a result of *shape*."""
    if not isinstance(target, Layout):
        raise LayoutError(f"layout must be a Layout, not {type(target).__name__}")
    if same_mesh and set(target.mesh.ranks) != set(tensor.mesh.ranks):
        raise MeshError(f"the result stays on the ranks of the {tensor.mesh}, but layout is on the {target.mesh}")
    target.block_shape(shape, 0)


def check_block(block: object) -> None:
    """Raise ``LayoutError`` unless *block* can be the rows and columns of a block."""
    if integer(block, "block", LayoutError) < 1:
        raise LayoutError(f"block {quote(block)}; a block has 1 row and column or more")


def agreed(
    name: str,
    planned: Callable[[], Work],
    tensors: Sequence[DTensor],
    *,
    target: Mesh | None = None,
    options: str,
) -> tuple[Work, Process | None]:
    """Return what *planned* returns, and this process, or None outside of the meshes. Collective.

    The ranks agree on every call before they enter the library: there, nothing would tell them that calls differ. What
    *planned* raises, all ranks raise.
    """
    if not isinstance(tensors[0].mesh.world, MPIWorld):
        raise MeshError(f"{name} needs MPI, which a simulated world does not have; run the program with mpiexec")
    operands = ", ".join(f"{t.shape} {t.dtype} in {specs_text(t.layout.sharding_specs)}" for t in tensors)

    with collective(name, tensors[0].mesh, target) as here:
        if here is None:
            return planned(), None
        _ = here.team.machine  # agreed on when the team first communicates
        work, found = agree_on(here.team, f"{name}({operands}; {options})", lambda: (planned(), library()))
        return work, Process(here, found, [grid_of(here.team, layout, found) for layout in work.layouts])


def clear_triangle(factor: DTensor, lower: bool) -> None:
    """Set the other triangle than the *lower* or upper one to zero, which the library leaves as it was."""

    def clear(block: Array) -> None:
        rows, columns = (factor.layout.global_indices(factor.shape, None, axis) for axis in range(2))
        # Indices ascend, so a row has its elements on the diagonal and left of it in front.
        ends = np.searchsorted(columns, rows, side="right" if lower else "left")
        for row, end in zip(block, ends.tolist(), strict=True):
            row[slice(end, None) if lower else slice(end)] = 0

    changed(clear, factor)
