"""Gradients of the operations that move data: the public names of :mod:`meshcomm.numpy.gradients`."""

from typing import TYPE_CHECKING

from meshcomm.core._mistakes import facade
from meshcomm.numpy.gradients import all_gather_vjp as all_gather_vjp
from meshcomm.numpy.gradients import all_reduce_vjp as all_reduce_vjp
from meshcomm.numpy.gradients import all_to_all_vjp as all_to_all_vjp
from meshcomm.numpy.gradients import broadcast_vjp as broadcast_vjp
from meshcomm.numpy.gradients import collective_permute_vjp as collective_permute_vjp
from meshcomm.numpy.gradients import einsum_vjp as einsum_vjp
from meshcomm.numpy.gradients import matmul_vjp as matmul_vjp
from meshcomm.numpy.gradients import matmul_vjp_of_left as matmul_vjp_of_left
from meshcomm.numpy.gradients import matmul_vjp_of_right as matmul_vjp_of_right
from meshcomm.numpy.gradients import reduce_scatter_vjp as reduce_scatter_vjp
from meshcomm.numpy.gradients import relayout_like_vjp as relayout_like_vjp
from meshcomm.numpy.gradients import relayout_vjp as relayout_vjp
from meshcomm.numpy.gradients import sum_vjp as sum_vjp

if not TYPE_CHECKING:
    __all__, __getattr__, __dir__ = facade(__name__)
