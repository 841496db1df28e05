"""`run`: every function of `meshcomm.linalg` makes its call by it."""

from collections.abc import Sequence
from importlib import import_module

import numpy as np

from meshcomm.blocks.align import tensors_of
from meshcomm.core._tuning import WHOLE_ARRAY
from meshcomm.core._types import AnyFunction, DType
from meshcomm.core.arrays.dtensor import DTensor
from meshcomm.core.arrays.scripted import is_scripted
from meshcomm.errors import ShapeError
from meshcomm.linalg.choose import SMALL_MATRICES, Way
from meshcomm.linalg.small import at_root
from meshcomm.linalg.stacks import by_blocks
from meshcomm.linalg.tasks import ResultLayouts, Task, check_axes, laid_out, result_specs_of, stack_of, way_of
from meshcomm.numpy.indexing.indexing import getitem

_OTHERWISE = (
    "Or relay the matrix first to a layout that cuts none of its axes: then LAPACK factors it on each rank, which "
    "needs memory for it"
)


def run(task: Task, values: Sequence[object], layout: ResultLayouts = None) -> list[DTensor]:
    """Return the results of *task* for *values*. Collective over the mesh if one of them is sharded.

    Parameters
    ----------
    task: the function and its options
    values: tensors on one mesh, plain arrays and numbers
    layout: layout of the result; for several results a sequence of layouts or None
    """
    operands = tensors_of(task.name, values)
    check_axes(task, operands)
    stack, _ = stack_of(task, operands)
    forms = result_specs_of(task, operands, stack)
    way = way_of(task, operands)
    if way.way == "stacks":
        results = by_blocks(task, operands, forms)
    elif way.way == "small":
        results = at_root(task, operands, forms)
    else:
        try:
            results = _of_large_matrices(task, operands, way)
        except (ImportError, ShapeError):  # the same on all ranks
            if not is_scripted() or sum(tensor.nbytes for tensor in operands) > WHOLE_ARRAY:
                raise
            results = at_root(task, operands, forms)
    return laid_out(task, results, operands, layout)


def _of_large_matrices(task: Task, operands: Sequence[DTensor], way: Way) -> list[DTensor]:
    """Return the results for matrices too large for one rank. Collective over the mesh."""
    stack, _ = stack_of(task, operands)
    if task.for_large is None or any(n != 1 for n in stack):
        raise too_large_error(task.name, way, "LAPACK alone has it")
    dtype = work_dtype([t.dtype for t, core in zip(operands, task.cores, strict=True) if core])
    matrices = []
    for number, (tensor, core) in enumerate(zip(operands, task.cores, strict=True)):
        matrix = getitem(tensor, (0,) * (tensor.ndim - core)) if tensor.ndim > core else tensor
        is_pivots = number == 1 and len(operands) == 3
        matrices.append(matrix if matrix.dtype == dtype or is_pivots else matrix.astype(dtype))
    try:
        results = list(task.for_large(way.way, matrices))
    except ImportError as error:
        raise ImportError(f"{task.name}: {way.why}: {error}. {_OTHERWISE}") from error
    return [getitem(result, (None,) * len(stack)) if stack else result for result in results]


def too_large_error(name: str, way: Way | str, limitation: str) -> ShapeError:
    """Return the error for a matrix that is too large for *name*."""
    reason = way if isinstance(way, str) else way.why
    return ShapeError(
        f"{name}: {reason}, and for more {limitation} (SMALL_MATRICES is {SMALL_MATRICES:,}). {_OTHERWISE}"
    )


def work_dtype(dtypes: Sequence[DType]) -> DType:
    """Return the dtype in which LAPACK computes for operands of these dtypes.

    >>> work_dtype([np.dtype("i4")]), work_dtype([np.dtype("f4"), np.dtype("c8")])
    (dtype('float64'), dtype('complex64'))
    """
    a, b = (np.empty((0, 1, 1), dtype) for dtype in (dtypes[0], dtypes[-1]))
    return np.linalg.solve(a, b).dtype


def way_to(algorithm: str, name: str) -> AnyFunction:
    """Return the function *name* for large matrices, by the *algorithm* ``"tall"`` or ``"large"``."""
    module = "spectra" if algorithm == "large" and name in ("qr", "svd", "eigh", "eigvalsh") else algorithm
    return getattr(import_module(f"meshcomm.linalg.{module}"), name)
