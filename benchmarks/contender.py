"""A contender: a call that is timed, the blocks that it reads, and how to see its result as blocks."""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from cases import Case, values
from numpy.typing import NDArray

import meshcomm as mc

Array = NDArray[Any]


class Cannot(Exception):
    """A contender cannot express a case; the message says why. All ranks raise it alike."""


FRESH = 1000  # the verification adds this to the seed of the values


def layout(specs: list[str], mesh: mc.Mesh) -> mc.Layout:
    """Return the layout with these names of mesh dimensions."""
    return mc.Layout([mc.UNSHARDED if name == "-" else name for name in specs], mesh)


class Job:
    """One tensor of a case on one rank. *block* is the user's own memory."""

    def __init__(self, case: Case, mesh: mc.Mesh, rank: int, seed: int) -> None:
        self.case, self.mesh, self.rank, self.seed = case, mesh, rank, seed
        self.source, self.target = (layout(specs, mesh) for specs in case.specs())

    @functools.cached_property
    def block(self) -> Array:
        """The block of this rank in the source layout; made when a contender asks for it."""
        return self.held(self.source, self.seed)

    def held(self, where: mc.Layout, seed: int) -> Array:
        """Return the values in the block of this rank in a layout."""
        return values(self.case, where.block_slices(self.case.shape, self.rank), seed)

    def empty(self) -> Array:
        """Return new memory for the target's block."""
        return np.empty(self.target.block_shape(self.case.shape, self.rank), self.case.dtype)


class Contender(NamedTuple):
    """*call* is timed. *verifies* says whether its result is a relayout that can be compared.

    *sources* are the blocks that it reads, one per tensor. *blocks* returns the new blocks of its result.
    """

    call: Callable[[], Any]
    verifies: bool = False
    sources: Sequence[Array] = ()
    blocks: Callable[[Any], list[Array]] = list


Maker = Callable[[list[Job]], Contender]


def is_relayout(case: Case) -> bool:
    """Whether the case is one relayout, not a loop of them or another call."""
    return not case.live and not case.other


class Peer(NamedTuple):
    """A contender, the packages that it needs, and for which cases it is of interest."""

    make: Maker
    needs: tuple[str, ...] = ()
    wanted: Callable[[Case], bool] = is_relayout


def each(make: Callable[[Job], tuple[Callable[[], Any], Callable[[Any], Array], Array]]) -> Maker:
    """Return a maker for several tensors. *make* returns call, view and source for one tensor."""

    def loop(jobs: list[Job]) -> Contender:
        calls, views, sources = zip(*map(make, jobs), strict=True)
        if len(jobs) == 1:
            return Contender(calls[0], True, sources, lambda result: [views[0](result)])

        def blocks(results: list[Any]) -> list[Array]:
            return [view(result) for view, result in zip(views, results, strict=True)]

        return Contender(lambda: [call() for call in calls], True, sources, blocks)

    return loop
