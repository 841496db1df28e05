"""A function of linear algebra: its description, and the layouts of its operands and results."""

from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np

from meshcomm.blocks.make import make
from meshcomm.blocks.rules import broadcast_shape, common_layout
from meshcomm.core._arguments import as_dtype, quote
from meshcomm.core._tracing import Value
from meshcomm.core._types import Array, DType, Names, Shape
from meshcomm.core.arrays.dtensor import DTensor
from meshcomm.core.arrays.relayout import relayout
from meshcomm.core.layouts.layout import Layout
from meshcomm.core.layouts.specs import free_names
from meshcomm.errors import LayoutError, ShapeError
from meshcomm.linalg.choose import MatrixOperand, Way, choose_algorithm

LAPACK: Value = np.linalg
"""NumPy's functions, which take arrays of more dtypes than NumPy's stubs say."""

Origin: TypeAlias = tuple[int, int] | None
"""The operand and its axis that an axis of a result is cut like; None for an unsharded axis."""

ResultLayouts: TypeAlias = Layout | Sequence[Layout | None] | None
"""The argument ``layout=`` of a function: a layout, or for several results a layout or None for each."""

ForLarge: TypeAlias = Callable[[str, list[DTensor]], Sequence[DTensor]]
"""A function for matrices too large for one rank. Arguments: the algorithm, ``"tall"`` or ``"large"``; matrices."""


class Task(NamedTuple):
    """A function of linear algebra with its options; its operands may be stacks of matrices.

    Parameters
    ----------
    name: name of the function
    compute: NumPy's or SciPy's function of arrays; it returns one result, or several
    origins: for each result, the origin of each axis of its matrix
    cores: for each operand, how many of its last axes are those of a matrix
    options: other arguments that the ranks compare, as text
    stacked: whether *compute* takes stacks
    columns: whether the columns of the last operand are independent
    either: whether results may be real or complex, depending on values
    for_large: function for large matrices
    """

    name: str
    compute: Callable[..., object]
    origins: tuple[tuple[Origin, ...], ...]
    cores: tuple[int, ...] = (2,)
    options: str = ""
    stacked: bool = True
    columns: bool = False
    either: bool = False
    for_large: ForLarge | None = None

    def computed(self, arrays: Sequence[Array]) -> list[Array]:
        """Return the results for *arrays*, each in C's order."""
        results = self.compute(*arrays)
        result_tuple = results if isinstance(results, tuple) else (results,)
        return [np.asarray(result, order="C") for result in result_tuple]

    def text(self, operands: Sequence[DTensor]) -> str:
        """Return the text that the ranks compare."""
        return f"{self.name}({', '.join(f'{t.shape} {t.dtype}' for t in operands)}; {self.options})"


def stack_of(task: Task, operands: Sequence[DTensor]) -> tuple[Shape, Layout]:
    """Return shape and layout of the stack of the results, by the rules of elementwise operations."""
    stacks = []
    for tensor, core in zip(operands, task.cores, strict=True):
        ndim = tensor.ndim - core
        layout = tensor.layout.take(range(ndim))
        stacks.append(make(None, layout, tensor.shape[:ndim], tensor.dtype))
    shape = broadcast_shape(task.name, [tensor.shape for tensor in stacks])
    return shape, common_layout(shape, stacks)


def result_specs_of(task: Task, operands: Sequence[DTensor], stack: Shape) -> list[tuple[Shape, DType]] | None:
    """Return shape and dtype of each result; None if they depend on values. Raise NumPy's errors for the arguments.

    They come from a call of NumPy on empty stacks.
    """
    if not task.stacked:
        return None
    samples = [np.empty((0, *t.shape[t.ndim - core :]), t.dtype) for t, core in zip(operands, task.cores, strict=True)]
    try:
        results = task.computed(samples)
    except (ValueError, TypeError) as error:
        kind = next(base for base in (TypeError, np.linalg.LinAlgError, ValueError) if isinstance(error, base))
        operands_text = ", ".join(f"{t.shape} {t.dtype}" for t in operands)
        raise (ShapeError if kind is ValueError else kind)(f"{task.name} of {operands_text}: {error}") from None
    return None if task.either else [((*stack, *result.shape[1:]), as_dtype(result.dtype)) for result in results]


def usual_layout(task: Task, number: int, operands: Sequence[DTensor], shape: Shape) -> Layout:
    """Return the default layout of a result: its axes are cut like their origins."""
    _, stack = stack_of(task, operands)
    axes: list[Names] = list(stack.axes)
    used_names = {name for spec in axes for name in spec}
    for length, origin in zip(shape[len(axes) :], task.origins[number], strict=True):
        names: Names = ()
        if origin is not None and operands[origin[0]].shape[origin[1]] == length:
            names = free_names(operands[origin[0]].layout.axes[origin[1]], used_names)
        axes.append(names)
        used_names.update(names)
    return Layout(axes, operands[0].mesh)


def way_of(task: Task, operands: Sequence[DTensor]) -> Way:
    """Return the way that a call goes."""
    forms = [MatrixOperand(t.shape, t.dtype, t.layout, core) for t, core in zip(operands, task.cores, strict=True)]
    if task.columns and forms[0].is_whole():
        return Way(task.name, "stacks", "each device has the whole matrix")
    return choose_algorithm(task.name.removeprefix("linalg."), forms)


def target_layout(name: str, requested: ResultLayouts, number: int, count: int) -> Layout | None:
    """Return the requested layout of result *number* of *count*; ``LayoutError`` if ``layout=`` does not fit."""
    if requested is None:
        return None
    layouts = [requested] if isinstance(requested, Layout) else list(requested)
    if len(layouts) != count or not all(entry is None or isinstance(entry, Layout) for entry in layouts):
        raise LayoutError(
            f"{name}: layout= must be {'a Layout' if count == 1 else f'a tuple of {count} Layouts, or None for some'}"
            f", not {quote(requested)}"
        )
    return layouts[number]


def check_axes(task: Task, operands: Sequence[DTensor]) -> None:
    """Raise NumPy's error for operands with too few axes."""
    for tensor, core in zip(operands, task.cores, strict=True):
        if tensor.ndim < core:
            raise np.linalg.LinAlgError(
                f"{task.name}: {tensor.ndim}-dimensional array given. Array must be at least "
                f"{'two' if core == 2 else 'one'}-dimensional"
            )
        if not task.stacked and tensor.ndim > core:
            raise np.linalg.LinAlgError(f"{tensor.ndim}-dimensional array given. Array must be two-dimensional")


def laid_out(
    task: Task, results: Sequence[DTensor], operands: Sequence[DTensor], requested: ResultLayouts
) -> list[DTensor]:
    """Return *results* in the requested or the default layouts. Collective if one has to move."""
    relaid = []
    for number, result in enumerate(results):
        target = target_layout(task.name, requested, number, len(results))
        target = usual_layout(task, number, operands, result.shape) if target is None else target
        relaid.append(result if result.layout == target else relayout(result, target))
    return relaid


def unknown_outside(task: Task) -> ShapeError:
    """Return the error for a rank outside of the mesh, which cannot know the results."""
    return ShapeError(f"{task.name}: a rank outside of the mesh cannot know shape or dtype of the results")
