"""Stacks of matrices: each device computes its own matrices, with LAPACK."""

from collections.abc import Sequence

import numpy as np

from meshcomm.blocks.align import relaid
from meshcomm.blocks.make import make, on_blocks
from meshcomm.blocks.rules import aligned_axes
from meshcomm.blocks.session import in_session
from meshcomm.blocks.small import agree_on_result
from meshcomm.blocks.whole import whole_axes
from meshcomm.core._types import Array, DType, Names, Shape
from meshcomm.core.arrays.dtensor import DTensor
from meshcomm.core.layouts.layout import Axes, Layout
from meshcomm.core.layouts.specs import free_names
from meshcomm.linalg.tasks import Task, stack_of, unknown_outside


def by_blocks(task: Task, operands: Sequence[DTensor], forms: list[tuple[Shape, DType]] | None) -> list[DTensor]:
    """Return the results of *task*, in layouts that cut the stack only. Collective if anything is sharded.

    All ranks raise an error of one rank, such as ``LinAlgError`` for a singular matrix.
    """
    unsharded, layout, columns = _with_whole_matrices(task, operands)
    mesh = layout.mesh
    is_sharded = any(t.layout.sharding_dims for t in unsharded)

    def compute_block(*blocks: Array) -> list[Array]:
        if not is_sharded:
            return task.computed(blocks)
        results = agree_on_result(task.name, mesh, task.text(operands), lambda: task.computed(blocks))
        return _of_one_kind(task, results, layout) if task.either else results

    local_results = on_blocks(compute_block, *unsharded)
    results = []
    for number, origins in enumerate(task.origins):
        last_column = len(task.cores) - 1, -1
        axes: Axes = (*layout.axes, *(columns if origin == last_column else () for origin in origins))
        block = None if local_results is None else local_results[number]
        if forms is not None:
            shape, dtype = forms[number]
        elif block is None:
            raise unknown_outside(task)
        else:
            stack, _ = stack_of(task, unsharded)
            shape, dtype = (*stack, *block.shape[len(stack) :]), block.dtype
        results.append(make(block, Layout(axes, mesh), shape, dtype))
    return results


def _with_whole_matrices(task: Task, operands: Sequence[DTensor]) -> tuple[list[DTensor], Layout, Names]:
    """Return operands with unsharded matrices, the layout of the stack, and the names that cut the last columns.

    Collective if an operand has to move.
    """
    sources = []
    last_operand = len(operands) - 1
    for number, (tensor, core) in enumerate(zip(operands, task.cores, strict=True)):
        has_free_columns = number == last_operand and task.columns and core == 2
        axes = range(tensor.ndim - core, tensor.ndim - has_free_columns)
        layout = Layout(whole_axes(tensor.layout, tensor.shape, axes), tensor.mesh)
        sources.append(make(None, layout, tensor.shape, tensor.dtype))
    stack, layout = stack_of(task, sources)
    columns: Names = ()
    if task.columns and task.cores[last_operand] == 2:
        columns = free_names(sources[last_operand].layout.axes[-1], {name for spec in layout.axes for name in spec})
    unsharded = []
    for number, (tensor, core) in enumerate(zip(operands, task.cores, strict=True)):
        ndim = tensor.ndim - core
        matrix_axes: Axes = ((),) * core
        if number == last_operand and columns:
            matrix_axes = ((), columns)
        unsharded.append(relaid(tensor, (*aligned_axes(tensor.shape[:ndim], stack, layout), *matrix_axes), task.name))
    return unsharded, layout, columns


def _of_one_kind(task: Task, local: list[Array], layout: Layout) -> list[Array]:
    """Return the results, complex if they are complex on any rank. Collective over the mesh."""
    is_complex = [result.dtype.kind == "c" for result in local]
    any_complex = in_session(task.name, layout.mesh, lambda session: session.allreduce_max(*is_complex))
    return [
        result.astype(np.result_type(result.dtype, np.complex64)) if becomes_complex else result
        for result, becomes_complex in zip(local, any_complex or [], strict=True)
    ]
