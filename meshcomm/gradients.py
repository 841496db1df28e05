"""Gradients of the operations that move data: the public names of :mod:`meshcomm.numpy.gradients`."""

from typing import TYPE_CHECKING

from meshcomm.core._mistakes import only_public
from meshcomm.numpy.gradients import (
    all_gather_vjp,
    all_reduce_vjp,
    all_to_all_vjp,
    broadcast_vjp,
    collective_permute_vjp,
    einsum_vjp,
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
    "einsum_vjp",
    "matmul_vjp",
    "matmul_vjp_of_left",
    "matmul_vjp_of_right",
    "reduce_scatter_vjp",
    "relayout_like_vjp",
    "relayout_vjp",
    "sum_vjp",
]

if not TYPE_CHECKING:
    __getattr__, __dir__ = only_public(__name__, __all__)
