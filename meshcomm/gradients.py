"""Gradients of the operations that move data: the public names of :mod:`meshcomm.ops.gradients`."""

from meshcomm.ops.gradients import (
    all_gather_vjp,
    all_reduce_vjp,
    all_to_all_vjp,
    broadcast_vjp,
    collective_permute_vjp,
    matmul_vjp,
    matmul_vjp_of_left,
    matmul_vjp_of_right,
    reduce_scatter_vjp,
    relayout_like_vjp,
    relayout_vjp,
    sum_vjp,
)

__all__ = [
    "all_gather_vjp",
    "all_reduce_vjp",
    "all_to_all_vjp",
    "broadcast_vjp",
    "collective_permute_vjp",
    "matmul_vjp",
    "matmul_vjp_of_left",
    "matmul_vjp_of_right",
    "reduce_scatter_vjp",
    "relayout_like_vjp",
    "relayout_vjp",
    "sum_vjp",
]


def __dir__() -> list[str]:
    return sorted(__all__)
