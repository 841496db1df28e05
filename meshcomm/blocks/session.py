"""Several steps of one call that its ranks make together: what they compare, tell each other, and look up."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from time import monotonic_ns
from typing import TypeVar

from meshcomm.core._tracing import Value
from meshcomm.core._types import Bytes
from meshcomm.core.arrays.create import told_by_root
from meshcomm.core.arrays.dtensor import member
from meshcomm.core.layouts.mesh import Mesh
from meshcomm.core.ranks.agreement import agree
from meshcomm.core.ranks.calls import agree_on, collective, exchanging
from meshcomm.core.ranks.teams import Location
from meshcomm.core.ranks.traffic import note_received
from meshcomm.errors import MeshError

R = TypeVar("R")


def in_session(operation: str, mesh: Mesh, steps: "Callable[[Session], R]") -> R | None:
    """Return what *steps* returns; None on a rank outside of *mesh*, where it is not called. Collective over the mesh.

    >>> import meshcomm as mc
    >>> def program():
    ...     mesh = mc.create_mesh([("x", 2)])
    ...     return in_session("an example", mesh, lambda here: here.told(here.device * 10))
    >>> with mc.simulate(3) as world:
    ...     print(world.run(program))
    [[0, 10], [0, 10], None]
    """
    with collective(operation, mesh) as here:
        return None if here is None else steps(Session(here, mesh))


class Session:
    """What a rank does together with the others of a mesh, in a call that `in_session` has begun.

    Each method but `check` is Collective over the mesh.
    """

    def __init__(self, here: Location, mesh: Mesh) -> None:
        self._team, self._here, self._mesh = here.team, here, mesh

    @property
    def device(self) -> int:
        """The device of this rank in the mesh."""
        return self._here.device

    @property
    def position(self) -> int:
        """The position of this rank among those of the mesh, by their ranks."""
        return self._team.rank

    def check(self) -> None:
        """Raise ``MeshError`` if the ranks can make no call any more."""
        if self._team.turn.over is not None:
            raise MeshError(self._team.turn.over)

    def exchanging(self) -> AbstractContextManager[None]:
        """Return a context for several steps: if an error ends it on one rank only, no further call is possible."""
        return exchanging(self._team)

    def agree(self, call: str, error: Exception | None = None, value: int = 0) -> int:
        """Return the largest *value*; raise on all ranks the *error* of one, or that their *calls* differ."""
        return agree(self._team, call, error, value)

    def together(self, call: str | Callable[[R], str], make: Callable[[], R]) -> R:
        """Return what *make* returns; what it raises on one rank, all ranks raise. They compare *call*."""
        return agree_on(self._team, call, make)

    def looked_up(self, call: str, look: Callable[[], object]) -> Value:
        """Return what *look* returns on device 0, as JSON holds it. The ranks compare *call* before."""
        return told_by_root(0, look, call, self._mesh, self._here)

    def told(self, own: object) -> list[Value]:
        """Return what each rank tells, as JSON holds it, by positions."""
        with exchanging(self._team):
            return self._team.everyone.communicator().told(own)

    def told_to_first(self, own: object) -> list[Value]:
        """Return on device 0 what each device tells, as JSON holds it; elsewhere nothing."""
        first = member(self._here, self._mesh, 0)
        with exchanging(self._team):
            every = self._team.everyone.communicator().told_to(first, own)
        return [every[member(self._here, self._mesh, device)] for device in range(self._mesh.size)] if every else []

    def broadcast(self, data: Bytes) -> None:
        """Overwrite *data* by that of the rank in position 0."""
        if data.nbytes:
            began, sender = monotonic_ns(), self._team.ranks[:1]
            self._team.everyone.communicator().broadcast(data, 0)
            note_received(self._team, sender, [data.nbytes if self._team.rank else 0], began)
