"""Small matrices that are sharded: gathered to one rank, where LAPACK computes, so that all get the same bits."""

from collections.abc import Sequence

from meshcomm.blocks.make import make
from meshcomm.blocks.small import looked_up
from meshcomm.core._types import Array, DType, Shape
from meshcomm.core.arrays.dtensor import DTensor
from meshcomm.core.layouts.dtype_text import dtype_of_text, dtype_text
from meshcomm.core.layouts.layout import Layout
from meshcomm.linalg.tasks import Task, unknown_outside

_ROOT = 0  # the device that computes


def at_root(task: Task, operands: Sequence[DTensor], forms: list[tuple[Shape, DType]] | None) -> list[DTensor]:
    """Return the results of *task* on one device of the mesh, from which they can be relaid. Collective over the mesh.

    What it raises there, all ranks raise.
    """
    mesh = operands[0].mesh
    wholes = [tensor.to_numpy(root=_ROOT) for tensor in operands]
    made: list[Array] = []

    def compute() -> list[tuple[tuple[int, ...], str]]:
        made.extend(task.made([whole for whole in wholes if whole is not None]))
        return [(each.shape, dtype_text(each.dtype)) for each in made]

    told = looked_up(task.name, mesh, task.text(operands), compute, _ROOT)
    if told is not None:
        forms = [(tuple(shape), dtype_of_text(text)) for shape, text in told]
    if forms is None:
        raise unknown_outside(task)
    at = mesh.of_ranks([mesh.ranks[_ROOT]], {"device": 1})
    blocks: list[Array] | list[None] = made or [None] * len(forms)
    return [
        make(block, Layout.replicated(at, len(shape)), shape, dtype)
        for block, (shape, dtype) in zip(blocks, forms, strict=True)
    ]
