"""Small sharded matrices: gathered to one rank, where LAPACK computes, so that all ranks get the same bits."""

from collections.abc import Sequence

from meshcomm.blocks.make import make
from meshcomm.blocks.small import broadcast_from_device
from meshcomm.core._types import Array, DType, Shape
from meshcomm.core.arrays.dtensor import DTensor
from meshcomm.core.layouts.dtype_text import dtype_of_text, dtype_text
from meshcomm.core.layouts.layout import Layout
from meshcomm.linalg.tasks import Task, unknown_outside

_ROOT = 0  # the device that computes


def at_root(task: Task, operands: Sequence[DTensor], forms: list[tuple[Shape, DType]] | None) -> list[DTensor]:
    """Return the results of *task* as tensors on one device of the mesh, to be relaid. Collective over the mesh.

    All ranks raise its errors.
    """
    mesh = operands[0].mesh
    arrays = [tensor.to_numpy(root=_ROOT) for tensor in operands]
    results: list[Array] = []

    def compute() -> list[tuple[tuple[int, ...], str]]:
        results.extend(task.computed([array for array in arrays if array is not None]))
        return [(result.shape, dtype_text(result.dtype)) for result in results]

    result_forms = broadcast_from_device(task.name, mesh, task.text(operands), compute, _ROOT)
    if result_forms is not None:
        forms = [(tuple(shape), dtype_of_text(text)) for shape, text in result_forms]
    if forms is None:
        raise unknown_outside(task)
    root_mesh = mesh.of_ranks([mesh.ranks[_ROOT]], {"device": 1})
    blocks: list[Array] | list[None] = results or [None] * len(forms)
    return [
        make(block, Layout.replicated(root_mesh, len(shape)), shape, dtype)
        for block, (shape, dtype) in zip(blocks, forms, strict=True)
    ]
