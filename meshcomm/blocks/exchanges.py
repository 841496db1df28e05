"""Exchanges that a feature describes itself, prepared once for equal calls: of ghosts, panels, shared blocks.

A feature gives the text that its ranks compare, and builds, from the exchanges below, the function that runs a call.
`Prepared` lets all ranks build it, agree, and remember it.
"""

from collections.abc import Callable, Hashable, Sequence
from typing import Generic, TypeAlias, TypeVar

from meshcomm.blocks.reduce import group_along
from meshcomm.blocks.session import Session
from meshcomm.core._types import Array, Bytes, Names, Shape
from meshcomm.core.arrays.compile import BoxOfDevice, prepare
from meshcomm.core.layouts.mesh import Mesh
from meshcomm.core.memory._rendezvous import Rendezvous
from meshcomm.core.plans.plan import Plan
from meshcomm.core.ranks.agreement import fingerprint
from meshcomm.core.ranks.calls import Collective
from meshcomm.core.ranks.communicator import Pending
from meshcomm.core.ranks.rank_sets import RankSet
from meshcomm.core.transport import choose
from meshcomm.core.transport.exchange import BoxExchange, ExchangeSpec
from meshcomm.core.transport.shared_reads import SharedRead

R = TypeVar("R")

BegunExchange: TypeAlias = tuple[Pending | None, RankSet | None]
"""The pending messages of a request and the rank set that waits for them; (None, None) for a complete exchange."""


class Prepared(Generic[R]):
    """Calls that the ranks of a session prepare once, and reuse for equal calls.

    *describe* returns the text that the ranks compare, from the subject of a call. *build* also takes the session, and
    returns a function that runs the call; an error that it raises on one rank is raised on all.
    """

    def __init__(self, describe: Callable[..., str], build: Callable[..., Callable[..., R]]) -> None:
        self._calls = Collective[R](describe, build)

    def run(
        self,
        call_session: Session,
        key: Hashable,
        subject: tuple[object, ...],
        arguments: tuple[object, ...],
        error: Exception | None = None,
    ) -> R:
        """Run a call, and return its result. Collective over the ranks of *call_session*.

        Parameters
        ----------
        call_session: the session
        key: identity of the call on this rank
        subject: arguments of *describe* and *build*, by which calls differ
        arguments: arguments of the function that *build* returns
        error: error that this rank raises, perhaps alone, after it has taken part
        """
        run = self._calls.prepared(call_session.location.rank_set, key, subject, call_session, error=error)
        if error is not None:
            call_session.join_and_raise(error, lambda: run(*arguments))
        return run(*arguments)


class Exchange:
    """An exchange of some tensors among the ranks along mesh dimensions *names*.

    Parameters
    ----------
    call_session: the session that prepares it
    mesh, names: mesh and mesh dimensions of the ranks
    tensors: boxes of each tensor that go from one rank to another
    call: text of the call, the same on all ranks
    max_block_bytes: upper bound on the bytes that a rank sends or receives
    is_in_place: True if the blocks before and after are the same memory, as for ghosts
    """

    def __init__(
        self,
        call_session: Session,
        mesh: Mesh,
        names: Names,
        tensors: Sequence[BoxExchange],
        *,
        call: str,
        max_block_bytes: int,
        is_in_place: bool,
    ) -> None:
        self._group, _ = group_along(call_session.location, mesh, names)
        self._tensors = tensors
        self._spec = ExchangeSpec(fingerprint(call), max_block_bytes, stages=False, is_in_place=is_in_place)

    def to_new_blocks(self) -> Callable[[list[Bytes], list[Bytes]], None]:
        """Return a function that fills the bytes of new blocks from those of the old blocks. Collective."""
        return choose.exchange(self._group, self._tensors, self._spec).run

    def in_same_blocks(self, blocks: list[Bytes]) -> "Repeated":
        """Return the exchange from *blocks* to the same blocks, time and again. Collective."""
        return Repeated(self._group, self._tensors, self._spec, blocks)


class Repeated(choose.RepeatedExchange):
    """An exchange from some blocks to the same blocks, which may start without waiting."""

    def begin(self, buffer: Callable[[str, int], Bytes], make_request: Callable[[BegunExchange], R]) -> R:
        """Begin the exchange, and return *make_request* of it. Collective over the ranks.

        *buffer* allocates memory to pack into, which nobody else may use until the exchange is complete.
        """
        try:
            return make_request((self.start(buffer), self._group.rank_set))
        except BaseException as error:  # no request exists yet
            self.fail(error)
            raise


Move: TypeAlias = Callable[[Array | None, Array | None], Array | None]
"""A function of the old block and, optionally, an array to write to; it returns the new block."""


def move(call_session: Session, plan: Plan, order: Shape | None = None, held_box: BoxOfDevice | None = None) -> Move:
    """Return a function that makes the new block of this rank by *plan*. To call it is Collective.

    Parameters
    ----------
    call_session: the session that prepares it
    plan: plan of the relayout
    order: for each axis, its position in the memory of the old block, if that is in another order
    held_box: function from a device to the box of its block, if that is larger than the plan's source
    """
    return prepare(plan, call_session.location, order, held_box)


class SharedBlocks:
    """Lets ranks on one node read blocks of each other in place, without a copy.

    Parameters
    ----------
    call_session: the session of these ranks
    mesh: mesh of these ranks
    call: text of the call, the same on all ranks
    count: the number of blocks that each rank shares
    """

    def __init__(self, call_session: Session, mesh: Mesh, call: str, count: int) -> None:
        self._group = call_session.location.rank_set.group((mesh, mesh.dim_names, "shared"), 0, tuple(mesh.ranks))
        self._call, self._count = call, count
        self._read: SharedRead | None = None
        self._rendezvous: Rendezvous | None = None

    def is_possible(self) -> bool:
        """Return whether all ranks share the memory of one node. Collective when they first communicate."""
        self._group.communicator()
        return self._group.nodes is not None and len(set(self._group.nodes)) == 1

    def begin(self, blocks: Sequence[Bytes], sizes: Sequence[Sequence[int]]) -> list[list[Bytes]] | None:
        """Return the blocks of each device, a list for each; None if some are not in shared memory. Collective.

        *sizes* has the bytes of the blocks of each device.
        """
        if self._read is None or self._rendezvous is not self._group.rendezvous:  # the group is new or was reopened
            self._read = SharedRead(self._group, fingerprint(self._call), self._count)
            self._rendezvous = self._group.rendezvous
        return self._read.begin(blocks, sizes)

    def end(self) -> None:
        """Wait until no rank reads the blocks of this one any more. Collective."""
        assert self._read is not None
        self._read.end()
