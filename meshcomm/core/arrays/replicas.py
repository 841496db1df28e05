"""A check with MESHCOMM_CHECK=1: replicas, which are equal blocks by the layout, must not differ."""

from collections.abc import Callable
from hashlib import blake2b
from typing import Concatenate, ParamSpec, TypeVar

import numpy as np

from meshcomm.core._types import Array, Shape
from meshcomm.core.layouts.coordinates import numbers_of, replica_count
from meshcomm.core.layouts.layout import Layout
from meshcomm.core.ranks import agreement
from meshcomm.core.ranks.rank_sets import Location
from meshcomm.errors import LayoutError

P = ParamSpec("P")
R = TypeVar("R")


def comparing_replicas(
    run: Callable[Concatenate[Array | None, P], R], operation: str, shape: Shape, source: Layout, location: Location
) -> Callable[Concatenate[Array | None, P], R]:
    """Return *run*, a function of a block; with ``MESHCOMM_CHECK=1`` it first compares replicas in layout *source*.

    To call it is Collective over the rank set. It raises ``LayoutError`` on all ranks if two replicas differ.
    """
    if not agreement.checks_every_call() or replica_count(source) == 1:
        return run

    def compare_and_run(block: Array | None, /, *args: P.args, **kwargs: P.kwargs) -> R:
        digests = location.rank_set.everyone.communicator().allgather(b"" if block is None else _digest(block))
        digest_of = dict(zip(location.rank_set.ranks, digests, strict=True))
        first_ranks: dict[bytes, int] = {}  # by block numbers, the first rank that holds the block
        for rank, number in zip(source.mesh.ranks, numbers_of(source, np.arange(source.mesh.size)), strict=True):
            other = first_ranks.setdefault(number.tobytes(), rank)
            if digest_of[rank] != digest_of[other]:
                raise LayoutError(
                    f"{operation} of a tensor of shape {shape} in {source.specs_text}: by this layout "
                    f"ranks {other} and {rank} hold the same block, but the values differ. Make them equal first, for "
                    "example by mc.broadcast or, for gradients, by mc.all_reduce over the replicas"
                )
        return run(block, *args, **kwargs)

    return compare_and_run


def _digest(block: Array) -> bytes:
    """Return a digest of the values of *block*, without the gaps between the fields of records."""
    digest, fields = blake2b(digest_size=16), [block]
    while fields:
        field = fields.pop()
        if field.dtype.names:
            fields += [field[name] for name in field.dtype.names]
        else:
            digest.update(field.tobytes())
    return digest.digest()
