"""Several steps of one call that its ranks make together: what they compare, gather, and look up."""

from collections.abc import Callable, Hashable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from time import monotonic_ns
from typing import NoReturn, TypeVar

import numpy as np

from meshcomm.core._tracing import Value
from meshcomm.core._types import Array, Ranks
from meshcomm.core.arrays.create import broadcast_from_root
from meshcomm.core.arrays.dtensor import member
from meshcomm.core.failures.watch import watch
from meshcomm.core.layouts.machine import Machine
from meshcomm.core.layouts.mesh import Mesh
from meshcomm.core.memory.blocks import as_bytes
from meshcomm.core.ranks._envelope import Envelope
from meshcomm.core.ranks.agreement import agree
from meshcomm.core.ranks.calls import agree_on, exchanging, join_and_raise, leave_with
from meshcomm.core.ranks.communicator import Communicator
from meshcomm.core.ranks.meshes import location_between, location_in
from meshcomm.core.ranks.teams import Location, Resource
from meshcomm.core.ranks.traffic import note_received
from meshcomm.errors import MeshError

R = TypeVar("R")
K = TypeVar("K", bound=Resource)


_OUTSIDE: AbstractContextManager[None] = nullcontext()


def session(
    operation: str, mesh: Mesh, target: Mesh | None = None
) -> "AbstractContextManager[Session] | AbstractContextManager[None]":
    """Return the context of one call, of several steps, which the ranks of *mesh*, and of *target*, make. Collective.

    It gives a `Session`, or None on a rank outside of the meshes. In messages, and for the watchdog, all that is
    Collective in it is a part of *operation*. ``MeshError`` if a mesh is closed, or does not fit into its world.

    >>> import meshcomm as mc
    >>> def program():
    ...     with session("an example", mc.create_mesh([("x", 2)])) as call:
    ...         return call and call.device
    >>> with mc.simulate(3) as world:
    ...     print(world.run(program))
    [0, 1, None]
    """
    location = location_in(mesh) if target is None else location_between(mesh, target)
    return _OUTSIDE if location is None else Envelope(operation, location.team, None, Session(location, mesh))


def in_session(operation: str, mesh: Mesh, steps: "Callable[[Session], R]", target: Mesh | None = None) -> R | None:
    """Return what *steps* returns in a `session`; None on a rank outside, where it is not called. Collective.

    >>> import meshcomm as mc
    >>> def program():
    ...     mesh = mc.create_mesh([("x", 2)])
    ...     return in_session("an example", mesh, lambda call: call.gathered(call.device * 10))
    >>> with mc.simulate(3) as world:
    ...     print(world.run(program))
    [[0, 10], [0, 10], None]
    """
    with session(operation, mesh, target) as call_session:
        return None if call_session is None else steps(call_session)


class Session:
    """What a rank does together with the others of a mesh, in a call that `session` has begun.

    Each method but `check` is Collective over the ranks of the call.
    """

    __slots__ = ("_mesh", "_team", "location")

    def __init__(self, location: Location, mesh: Mesh) -> None:
        self._team, self._mesh, self.location = location.team, mesh, location
        """Where this rank is, for other verbs."""

    @property
    def device(self) -> int:
        """The device of this rank in the mesh."""
        return self.location.device

    @property
    def position(self) -> int:
        """The position of this rank among those of the mesh, by their ranks."""
        return self._team.rank

    @property
    def ranks(self) -> Ranks:
        """The ranks of the call, ascending."""
        return self._team.ranks

    @property
    def machine(self) -> Machine:
        """The costs that plans of the ranks go by. Collective when they first agree on them."""
        return self._team.machine

    @property
    def communicator(self) -> Communicator:
        """That of all ranks of the call. Collective when it is opened."""
        return self._team.everyone.communicator()

    def open(self) -> None:
        """Open what the ranks share, if they have not: new blocks can lie in memory that the others read."""
        if self._team.everyone.opened is None:
            self._team.everyone.communicator()

    def check(self) -> None:
        """Raise ``MeshError`` if the ranks can make no call any more."""
        if self._team.turn.over is not None:
            raise MeshError(self._team.turn.over)

    def later(self, operation: str) -> AbstractContextManager[object]:
        """Return a context for a step after the call that began the session has ended: *operation*, for messages."""
        return Envelope(operation, self._team)

    @contextmanager
    def in_library(self, operation: str) -> Iterator[None]:
        """Return a context for a step in another library, which calls MPI itself, as `later`."""
        with self.later(operation), watch.library():
            yield

    def kept(self, key: Hashable, make: Callable[[], K]) -> K:
        """Return what is kept for *key* until the mesh is closed, else what *make* returns. Collective."""
        return self._team.resource(key, make)

    def exchanging(self) -> AbstractContextManager[None]:
        """Return a context for several steps: if an error ends it on one rank only, no further call is possible."""
        return exchanging(self._team)

    def end_after(self, error: BaseException) -> None:
        """Let no further call be made after an *error* that ends this one on this rank only, as `exchanging` does."""
        leave_with(error, self._team)

    def join_and_raise(self, wrong: Exception, exchange: Callable[[], object]) -> NoReturn:
        """Take part in the *exchange* of a known call, so that no rank waits for this one; then raise *wrong*."""
        join_and_raise(wrong, self._team, exchange)

    def agree(self, call: str, error: Exception | None = None, value: int = 0) -> int:
        """Return the largest *value*; raise on all ranks the *error* of one, or that their *calls* differ."""
        return agree(self._team, call, error, value)

    def together(self, call: str | Callable[[R], str], make: Callable[[], R]) -> R:
        """Return what *make* returns; what it raises on one rank, all ranks raise. They compare *call*."""
        return agree_on(self._team, call, make)

    def looked_up(self, call: str, look: Callable[[], object]) -> Value:
        """Return what *look* returns on device 0, as JSON holds it. The ranks compare *call* before."""
        return broadcast_from_root(0, look, call, self._mesh, self.location)

    def gathered(self, value: object) -> list[Value]:
        """Return the *value* of each rank, as JSON holds it, by positions."""
        with exchanging(self._team):
            return self.communicator.allgather_json(value)

    def largest(self, *values: int) -> list[int]:
        """Return the largest of each value over the ranks."""
        with exchanging(self._team):
            maxima: list[int] = self.communicator.allreduce_max(np.array(values, dtype=np.int64)).tolist()
        return maxima

    def gathered_by_first(self, value: object) -> list[Value]:
        """Return on device 0 the *value* of each device, as JSON holds it; elsewhere nothing."""
        first = member(self.location, self._mesh, 0)
        with exchanging(self._team):
            every = self.communicator.gather_json(first, value)
        return [every[member(self.location, self._mesh, device)] for device in range(self._mesh.size)] if every else []

    def broadcast(self, array: Array) -> None:
        """Overwrite a C-contiguous *array* by that of the rank in position 0."""
        if array.nbytes:
            began, sender = monotonic_ns(), self._team.ranks[:1]
            self.communicator.broadcast(as_bytes(array), 0)
            note_received(self._team, sender, [array.nbytes if self._team.rank else 0], began)
