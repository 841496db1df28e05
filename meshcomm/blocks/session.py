"""One collective call of several steps, in which its ranks compare, gather and broadcast."""

from collections.abc import Callable, Hashable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from time import monotonic_ns
from typing import NoReturn, TypeVar

import numpy as np

from meshcomm.core._types import Array, Ranks
from meshcomm.core.arrays.create import broadcast_from_root
from meshcomm.core.arrays.dtensor import member
from meshcomm.core.failures.watch import watch
from meshcomm.core.layouts.machine import Machine
from meshcomm.core.layouts.mesh import Mesh
from meshcomm.core.memory.blocks import as_bytes
from meshcomm.core.ranks._call_scope import CallScope
from meshcomm.core.ranks.agreement import agree
from meshcomm.core.ranks.calls import agree_on, exchanging, join_and_raise, leave_with
from meshcomm.core.ranks.communicator import Communicator
from meshcomm.core.ranks.meshes import location_between, location_in
from meshcomm.core.ranks.rank_sets import Location, Resource
from meshcomm.core.ranks.traffic import note_received
from meshcomm.errors import MeshError

R = TypeVar("R")
K = TypeVar("K", bound=Resource)


_OUTSIDE: AbstractContextManager[None] = nullcontext()


def session(
    operation: str, mesh: Mesh, target: Mesh | None = None
) -> "AbstractContextManager[Session] | AbstractContextManager[None]":
    """Return the context of one call of several steps by the ranks of *mesh*, and of *target*. Collective.

    It gives a `Session`, or None on a rank outside of the meshes. Messages and the watchdog report collective calls
    inside the context under the name *operation*. ``MeshError`` if a mesh is closed, or does not fit into its world.

    >>> import meshcomm as mc
    >>> def program():
    ...     with session("an example", mc.create_mesh([("x", 2)])) as call:
    ...         return call and call.device
    >>> with mc.simulate(3) as world:
    ...     print(world.run(program))
    [0, 1, None]
    """
    location = location_in(mesh) if target is None else location_between(mesh, target)
    return _OUTSIDE if location is None else CallScope(operation, location.rank_set, None, Session(location, mesh))


def in_session(operation: str, mesh: Mesh, steps: "Callable[[Session], R]", target: Mesh | None = None) -> R | None:
    """Return the result of *steps* in a `session`; None on a rank outside, without a call. Collective.

    >>> import meshcomm as mc
    >>> def program():
    ...     mesh = mc.create_mesh([("x", 2)])
    ...     return in_session("an example", mesh, lambda call: call.allgather(call.device * 10))
    >>> with mc.simulate(3) as world:
    ...     print(world.run(program))
    [[0, 10], [0, 10], None]
    """
    with session(operation, mesh, target) as call_session:
        return None if call_session is None else steps(call_session)


class Session:
    """What a rank can do together with the others of a mesh, in a call that `session` has begun.

    Collective methods are collective over the ranks of the call: the ranks of the mesh, and of the target mesh if any.
    """

    __slots__ = ("_mesh", "_rank_set", "location")

    def __init__(self, location: Location, mesh: Mesh) -> None:
        self._rank_set, self._mesh, self.location = location.rank_set, mesh, location
        """The rank set and the device of this rank, to pass to other functions."""

    @property
    def device(self) -> int:
        """The device of this rank in the mesh."""
        return self.location.device

    @property
    def position(self) -> int:
        """The rank of this process in the call's communicator, where world ranks ascend."""
        return self._rank_set.rank

    @property
    def ranks(self) -> Ranks:
        """The world ranks of the call, ascending."""
        return self._rank_set.ranks

    @property
    def machine(self) -> Machine:
        """The cost model of the machine for plans. Collective when the ranks first agree on it."""
        return self._rank_set.machine

    @property
    def communicator(self) -> Communicator:
        """The communicator of all ranks of the call. Collective when it is opened."""
        return self._rank_set.everyone.communicator()

    def open(self) -> None:
        """Open the communicator and the shared memory of the ranks, if they have not. Collective."""
        if self._rank_set.everyone.opened is None:
            self._rank_set.everyone.communicator()

    def check(self) -> None:
        """Raise ``MeshError`` if the ranks can make no call any more."""
        if self._rank_set.call_lock.end_reason is not None:
            raise MeshError(self._rank_set.call_lock.end_reason)

    def new_call(self, operation: str) -> AbstractContextManager[object]:
        """Return the context of another call of the same ranks, after that of the session; *operation* is its name."""
        return CallScope(operation, self._rank_set)

    @contextmanager
    def in_library(self, operation: str) -> Iterator[None]:
        """Return the context of a `new_call` in another library, which calls MPI itself."""
        with self.new_call(operation), watch.in_library_call():
            yield

    def cached_resource(self, key: Hashable, create: Callable[[], K]) -> K:
        """Return the resource *key* of the mesh; *create* it if the mesh has none. Collective.

        The mesh closes it when it is closed itself.
        """
        return self._rank_set.resource(key, create)

    def exchanging(self) -> AbstractContextManager[None]:
        """Return a context for several steps: if an error ends it on one rank only, no further call is possible."""
        return exchanging(self._rank_set)

    def disable_after(self, error: BaseException) -> None:
        """Make further calls of these ranks impossible, as an *error* ends this one on this rank only."""
        leave_with(error, self._rank_set)

    def join_and_raise(self, error: Exception, exchange: Callable[[], object]) -> NoReturn:
        """Take part in the *exchange* of a known call, so that no rank waits; then raise *error*. Collective."""
        join_and_raise(error, self._rank_set, exchange)

    def agree(self, call: str, error: Exception | None = None, value: int = 0) -> int:
        """Return the largest *value*; raise on all ranks if one has an *error* or another *call*. Collective."""
        return agree(self._rank_set, call, error, value)

    def agree_on_result(self, call: str | Callable[[R], str], function: Callable[[], R]) -> R:
        """Return the local result of *function*; all ranks raise if it raises on one. Collective.

        They also raise if *call* differs: a text, or a function from the result to a text.
        """
        return agree_on(self._rank_set, call, function)

    def broadcast_from_first(self, call: str, function: Callable[[], R]) -> R:
        """Return the result of *function* on device 0, sent as JSON. Collective; the ranks compare *call* before."""
        return broadcast_from_root(0, function, call, self._mesh, self.location)

    def allgather(self, value: R) -> list[R]:
        """Return the *value* of each rank, sent as JSON, in the order of `ranks`. Collective."""
        with exchanging(self._rank_set):
            return self.communicator.allgather_json(value)

    def allreduce_max(self, *values: int) -> list[int]:
        """Return the maximum of each value over the ranks. Collective."""
        with exchanging(self._rank_set):
            maxima: list[int] = self.communicator.allreduce_max(np.array(values, dtype=np.int64)).tolist()
        return maxima

    def gather_to_first(self, value: R) -> list[R]:
        """Return on device 0 the *value* of each device, sent as JSON, in their order; else []. Collective."""
        first_rank = member(self.location, self._mesh, 0)
        with exchanging(self._rank_set):
            values = self.communicator.gather_json(first_rank, value)
        return [values[member(self.location, self._mesh, d)] for d in range(self._mesh.size)] if values else []

    def broadcast(self, array: Array) -> None:
        """Overwrite a C-contiguous *array* with the array of `position` 0. Collective."""
        if array.nbytes:
            start_ns, sender = monotonic_ns(), self._rank_set.ranks[:1]
            self.communicator.broadcast(as_bytes(array), 0)
            note_received(self._rank_set, sender, [array.nbytes if self._rank_set.rank else 0], start_ns)
