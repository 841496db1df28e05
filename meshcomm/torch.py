"""Exchanges of PyTorch's tensors, with gradients: the public names of :mod:`meshcomm.adapters.torch`.

It needs PyTorch, which nothing else of meshcomm imports.
"""

from typing import TYPE_CHECKING

from meshcomm._mistakes import only_public
from meshcomm.adapters.torch import (
    all_gather,
    all_reduce,
    all_to_all,
    block_of,
    from_placements,
    reduce_scatter,
    relayout,
    sum_gradients,
    to_placements,
)

__all__ = [
    "all_gather",
    "all_reduce",
    "all_to_all",
    "block_of",
    "from_placements",
    "reduce_scatter",
    "relayout",
    "sum_gradients",
    "to_placements",
]

if not TYPE_CHECKING:
    __getattr__, __dir__ = only_public(__name__, __all__)
