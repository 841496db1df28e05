"""Worlds, rank sets and groups: which ranks exchange with each other, and over which communicator.

A `World` is where a program runs: the ranks of an MPI communicator, or simulated ranks. A `RankSet` is a set of its
ranks that make collective calls together, such as the ranks of a mesh. A `Group` is one row of a group assignment
within a rank set. Communicators are made when a group is first used, kept up to a limit, and freed explicitly: by
`RankSet.free`, at the limit, or at exit.
"""
# Why all ranks evict alike
# =========================
#
# To open a group is Collective over its rank set, and so is to close one. So when a limit is reached, all ranks must
# drop the same group, or the same program, at the same call. They do, without a word between them:
#
# (A) The ranks of a rank set make the same calls in the same order. They agree on each new call, and compare the
#     digest of all known ones (`RankSet.recall`, `RankSet.compare`); a program in which they differ ends.
# (B) A rank set has a clock. A call stamps with it what it uses: its program (`recall`, `prepared_call`, `remember`),
#     then the group of each exchange, in the order of its steps (`Group.communicator`). Every rank of the rank set
#     does so: all rows of an assignment are equally long, so either all ranks are alone in their rows, or none is.
# (C) So the keys of programs and groups, in the order of their last stamps, are one list on all ranks. A group has a
#     row of its own on each rank, but one key. The stamps themselves may differ: within an exchange the clock may grow
#     by more on some ranks than on others, as when the rows of an assignment go different ways. But all that these
#     ranks stamp is the group of this exchange, which comes last in the list anyway.
# (D) Stamps on one rank are distinct, as the clock has grown in between. So all ranks drop what is first in the list.
#     Nothing depends on time, on memory, or on the order of a hash table.
#
# A closed group can be used again, as programs hold on to it: the next call opens it. As long as one does, there is no
# other group on its key.

from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar
from weakref import WeakValueDictionary, ref

import numpy as np

from meshcomm.core._tuning import (
    GROUPS_PER_RANK_SET,
    GROUPS_PER_WORLD,
    PREPARED_PER_RANK_SET,
    RANK_SETS_PER_WORLD,
    RESOURCES_PER_RANK_SET,
)
from meshcomm.core._types import Ranks
from meshcomm.core.failures import long_messages
from meshcomm.core.failures.liveness import LivenessCheck
from meshcomm.core.failures.messages import Unfinished, never_waited_for, why_over
from meshcomm.core.failures.watch import watch
from meshcomm.core.layouts.machine import Machine
from meshcomm.core.layouts.mesh import Mesh
from meshcomm.core.layouts.refinement import ranks_between, same_devices
from meshcomm.core.memory._rendezvous import Rendezvous
from meshcomm.core.ranks._call_scope import CallLock, CallScope
from meshcomm.core.ranks.call_log import CallLog
from meshcomm.core.ranks.communicator import Communicator
from meshcomm.core.ranks.hosts import agreed_machine, compared_settings
from meshcomm.core.ranks.rendezvous import open_rendezvous
from meshcomm.errors import CollectiveMismatch, MeshcommError, MeshError

R = TypeVar("R", bound="Resource")


class Location(NamedTuple):
    """Where this process is in a mesh: the rank set of its ranks, and its device."""

    rank_set: "RankSet"
    device: int


class Resource(Protocol):
    """What another library has made for the ranks of a rank set."""

    def free(self) -> None:
        """Give it back. Collective over the rank set."""


class World(ABC):
    """Where a program runs, seen by one of its ranks."""

    large_counts = True  # whether counts and displacements may exceed 2**31 - 1 bytes
    ends_job_on_failure = False  # whether a rank that fails or does not come ends the job
    takes_turns = False  # whether only one rank runs at a time, as simulated ranks do
    shares_memory: bool = False  # whether its ranks are processes; those on one node may then share memory

    def __init__(self, size: int, rank: int) -> None:
        self.size = size
        self.rank = rank
        self._rank_sets: dict[Ranks, RankSet] = {}
        self._locations: OrderedDict[Mesh | tuple[Mesh, Mesh], Location | None] = OrderedDict()
        self._closed: dict[int, ref[Mesh]] = {}  # by identity: an equal mesh that is made later is open
        self.unfinished: dict[int, Unfinished] = {}
        """Nonblocking calls that this rank has to wait for, by their id; each leaves when it is complete."""

    @abstractmethod
    def connect(self, ranks: Ranks) -> Communicator:
        """Return a communicator of our own over *ranks*, ascending. Collective over *ranks*."""

    def open_liveness(
        self, rank_set: "RankSet", communicator: Communicator, hosts: Sequence[str]
    ) -> LivenessCheck | None:
        """Return how ranks of *rank_set* learn who is missing, if there is a way. Collective over the rank set."""
        return None

    def ranks_in_comm_world(self, ranks: Ranks) -> tuple[int, ...]:
        """Return the ranks in COMM_WORLD of these *ranks* of this world."""
        return tuple(ranks)

    def here(self) -> "World":
        """Return the world as the calling rank sees it."""
        return self

    def location(self, mesh: Mesh) -> Location | None:
        """Return where this process is in *mesh*, or None if it is outside.

        ``MeshError`` if the mesh needs ranks that the world does not have, or is closed.
        """
        if id(mesh) in self._closed:
            raise MeshError(f"the {mesh} is closed")
        try:
            return self._locations[mesh]
        except KeyError:
            pass  # what is raised below has nothing to do with it
        refuse_larger(mesh, self.size, self.takes_turns)
        return self._find(mesh, mesh.ranks)

    def newest_mesh_without_me(self) -> Mesh | None:
        """Return the newest mesh of this world that this process is not in; None if there is none."""
        meshes = (key for key, at in reversed(self._locations.items()) if at is None and isinstance(key, Mesh))
        return max(meshes, key=lambda mesh: mesh.size > 1, default=None)  # not that of one device for `to_numpy(root)`

    def location_between(self, source: Mesh, target: Mesh) -> Location | None:
        """Return where this process is among the devices of a plan from mesh to mesh, None if outside of both.

        ``MeshError`` as for `location`.
        """
        in_target = self.location(target)
        if same_devices(source, target):
            return in_target
        self.location(source)  # its ranks must be there, too
        pair = source, target
        return self._locations[pair] if pair in self._locations else self._find(pair, ranks_between(source, target))

    def _find(self, key: Mesh | tuple[Mesh, Mesh], ranks: Ranks) -> Location | None:
        """Return where this process is among *ranks*, and keep it for *key*."""
        ascending = ranks if isinstance(ranks, range) else tuple(sorted(ranks))
        location = Location(self.rank_set(ascending), ranks.index(self.rank)) if self.rank in ranks else None
        self._locations[key] = location
        if len(self._locations) > PREPARED_PER_RANK_SET:
            self._locations.popitem(last=False)
        return location

    def rank_set(self, ranks: Ranks) -> "RankSet":
        """Return the rank set of *ranks*, ascending, this rank among them."""
        if len(ranks) == ranks[-1] - ranks[0] + 1:
            ranks = range(ranks[0], ranks[-1] + 1)  # one form for each set of ranks
        if ranks not in self._rank_sets:
            new_rank_set = RankSet(self, ranks)
            for other in self._rank_sets.values():
                new_rank_set.end_with(other)
            self._rank_sets[ranks] = new_rank_set
        return self._rank_sets[ranks]

    def close_on(self, mesh: Mesh) -> bool:
        """Close *mesh* on this rank, and return whether it was open. Collective over the mesh."""
        if id(mesh) in self._closed:
            return False
        location = self.location(mesh)
        number, closed = id(mesh), self._closed
        closed[number] = ref(mesh, lambda _: closed.pop(number, None))
        watch.any_closed = True
        if location is not None:
            self.leave(location.rank_set)
        return True

    def leave(self, rank_set: "RankSet") -> None:
        """Forget *rank_set* and free its communicators. Collective over the rank set."""
        self._rank_sets.pop(rank_set.ranks, None)
        for mesh in [mesh for mesh, location in self._locations.items() if location and location.rank_set is rank_set]:
            del self._locations[mesh]
        rank_set.free()
        for other in self._rank_sets.values():
            other.go_on_without(rank_set)

    def has_mesh_on(self, rank_set: "RankSet") -> bool:
        """Return whether *rank_set* is that of a mesh, and not only that of ranks which called something together."""
        return any(
            at is not None and at.rank_set is rank_set for key, at in self._locations.items() if isinstance(key, Mesh)
        )

    @property
    def communicators(self) -> int:
        """How many communicators of ours are open."""
        return sum(rank_set.communicators for rank_set in self._rank_sets.values())

    @property
    def open_rank_sets(self) -> int:
        """How many rank sets have a communicator."""
        return sum(rank_set.everyone.opened is not None for rank_set in self._rank_sets.values())

    def all_rank_sets(self) -> "list[RankSet]":
        """Return all rank sets of this rank, also those that have not communicated yet."""
        return list(self._rank_sets.values())

    @property
    def failures(self) -> list[str]:
        """Why no call can be made any more on rank sets whose exchange ended with an error."""
        return [
            rank_set.call_lock.end_reason
            for rank_set in self._rank_sets.values()
            if rank_set.call_lock.end_reason is not None
        ]

    # -- nonblocking calls --------------------------------------------------------------------------------------------

    def finish_all(self) -> None:
        """Complete nonblocking calls that nobody waited for, and raise ``MeshcommError`` if there are any."""
        left = list(self.unfinished.values())
        for request in left:
            request.wait()
        if left:
            raise MeshcommError(never_waited_for(left))

    def close(self) -> None:
        """Free every communicator that this world opened. Collective over the world."""
        # In one order on all ranks, which may have asked for their rank sets in any: else ranks would wait crosswise.
        for rank_set in sorted(self._rank_sets.values(), key=lambda rank_set: tuple(rank_set.ranks)):
            self.leave(rank_set)


def refuse_larger(mesh: Mesh, size: int, simulated: bool) -> None:
    """Raise ``MeshError`` if *mesh* needs ranks beyond a world of *size* ranks, which may be a simulated one."""
    beyond = mesh.ranks[-1] if isinstance(mesh.ranks, range) else max(mesh.ranks)
    if beyond >= size:
        cure = f"use simulate({beyond + 1})" if simulated else f"launch the program with mpiexec -n {beyond + 1}"
        raise MeshError(
            f"the mesh needs {mesh.size} ranks up to rank {beyond}, but the world has {size}: {cure}, "
            "or make a smaller mesh"
        )


class RankSet(CallLog):
    """Ranks of a world that make collective calls together. To make one takes no communication.

    `everyone` is the group of all its ranks. `RankSet` and `Group` are one unit: a group adds to the clock of its rank
    set.
    """

    def __init__(self, world: World, ranks: Ranks) -> None:
        super().__init__()
        self.world = world
        self.ranks = ranks
        self.name = ""
        """What all its ranks call it, and no other rank set that they have or had; nothing until they communicate."""
        self.liveness: LivenessCheck | None = None
        self.local_error: Exception | None = None  # what is wrong, on this rank, with the call that it takes part in
        self._differed = ""  # for smaller rank sets: how calls of these ranks differed, if they did
        self._ended_with: RankSet | None = None  # a larger rank set whose calls differed
        self.oversubscribed = True
        """Whether ranks may have to wait for a processor, the same on all of them; known with the `machine`."""
        self._machine: Machine | str = ""  # or why there is none
        self._limit = GROUPS_PER_WORLD if len(ranks) == world.size else GROUPS_PER_RANK_SET
        self._groups: dict[Hashable, Group] = {}  # those that are open
        self._known: WeakValueDictionary[Hashable, Group] = WeakValueDictionary()
        self._resources: dict[Hashable, Resource] = {}  # in the order of their last use
        self.everyone = Group(self, None, 0, tuple(ranks))

    @property
    def rank(self) -> int:
        """The position of this process in the rank set."""
        return self.ranks.index(self.world.rank)

    @property
    def large_counts(self) -> bool:
        """Whether counts and displacements may exceed 2**31 - 1 bytes."""
        return self.world.large_counts

    @property
    def machine(self) -> Machine:
        """What all its ranks plan by; to ask is Collective if the rank set has not communicated yet.

        ``MeshError`` on all ranks if the first one could not read its file.
        """
        if not self._machine:
            self.everyone.communicator()
        if isinstance(self._machine, str):
            raise MeshError(self._machine)
        return self._machine

    @property
    def communicators(self) -> int:
        """How many communicators of the rank set are open."""
        return sum(group.opened is not None for group in (self.everyone, *self._groups.values()))

    # -- groups -------------------------------------------------------------------------------------------------------

    def group(self, key: Hashable, color: int, members: tuple[int, ...]) -> "Group":
        """Return this rank's group in the assignment named *key*; its first use is Collective over the rank set.

        *members* are the world ranks of this rank's row in order; *color* is the number of the row.
        """
        if members == self.everyone.members:
            return self.everyone
        group = self._known.get(key)
        if group is None:
            group = self._known[key] = Group(self, key, color, members)
        return group

    def open(self, group: "Group") -> Communicator:
        """Open *group*; at the limit the group used longest ago is closed. Collective over the rank set."""
        if group is self.everyone:
            communicator = group.use(self._connect())
            # This belongs to the opening. So whatever ranks call first, what they do next is to compare their calls,
            # and ranks whose first calls differ find that out.
            try:
                self._machine, oversubscribed = agreed_machine(communicator, self.ranks)
            except MeshError as error:  # on all ranks; raised by the call that needs the machine
                self._machine = str(error)
            else:
                self.oversubscribed = oversubscribed or self.world.takes_turns
            return communicator
        if len(self._groups) >= self._limit:
            oldest = min(self._groups.values(), key=lambda group: group.used)
            del self._groups[oldest.key]
            oldest.free()
        base = self.everyone.communicator()
        self._groups[group.key] = group
        return group.use(base.split(group.color, group.members.index(self.world.rank)))

    def _connect(self) -> Communicator:
        communicator = self.world.connect(self.ranks)
        too_many = np.array([self.world.open_rank_sets >= RANK_SETS_PER_WORLD], dtype=np.int64)
        try:
            if communicator.allreduce_max(too_many)[0]:
                raise MeshError(
                    f"a rank takes part in meshes over more than {RANK_SETS_PER_WORLD} different sets of ranks; "
                    "close() those that are not needed any more"
                )
            if self.world.ends_job_on_failure:
                self._begin_liveness(communicator)
        except MeshError:  # on all ranks
            communicator.free()
            raise
        self.name = communicator.name
        return communicator

    def _begin_liveness(self, communicator: Communicator) -> None:
        hosts = compared_settings(communicator, self.ranks)
        if self.liveness is None:
            self.liveness = self.world.open_liveness(self, communicator, hosts)

    def listen(self) -> None:
        """Begin liveness checks before the first call on the rank set. Collective over the rank set."""
        communicator = self.world.connect(self.ranks)
        try:
            self._begin_liveness(communicator)
        finally:
            communicator.free()

    def explain(self, error: BaseException) -> None:
        """If *error* is MPI's and means that calls differ, raise ``CollectiveMismatch``, and let no call follow."""
        mismatch = long_messages.mismatch(error, self.world.rank)
        if mismatch is not None:
            self._end(self.local_error or mismatch)
            raise mismatch from error

    def fail(self, error: BaseException) -> None:
        """Let no further call be made: one ended with *error* on this rank. Others may be in it, or at other steps.

        Raises what `explain` does.
        """
        self.explain(error)
        self._end(self.local_error or error)

    def _end(self, error: BaseException) -> None:
        why, why_smaller = why_over(error, self.refused, self.ranks, self.world.has_mesh_on(self))
        self.call_lock.end(why)
        if isinstance(error, CollectiveMismatch):
            self._differed = why_smaller
            for other in self.world.all_rank_sets():
                other.end_with(self)

    def end_with(self, other: "RankSet") -> None:
        """Let no call be made if calls of *other* have differed, and all ranks of this rank set are among its ranks.

        They are at different steps of the program, until they have closed *other*.
        """
        if (
            self.call_lock.end_reason is None
            and other._differed
            and len(self.ranks) > 1
            and set(self.ranks) < set(other.ranks)
        ):
            self._ended_with = other
            self.call_lock.end(other._differed)

    def go_on_without(self, other: "RankSet") -> None:
        """Let calls be made again that only the end of *other* kept from being made: its ranks have closed it."""
        if self._ended_with is other:
            self._ended_with, self.call_lock = None, CallLock()
            for rank_set in self.world.all_rank_sets():
                self.end_with(rank_set)

    def resource(self, key: Hashable, make: Callable[[], R]) -> R:
        """Return what is kept for *key*, else what *make* returns. Collective over the rank set.

        It is freed with the rank set, or at the limit if it was used longest ago.
        """
        resource: Any = self._resources.pop(key, None)
        if resource is None:
            resource = make()
        self._resources[key] = resource
        if len(self._resources) > RESOURCES_PER_RANK_SET:
            self._resources.pop(next(iter(self._resources))).free()
        return resource

    def free(self) -> None:
        """Free every communicator of the rank set. Collective over the rank set.

        ``CollectiveMismatch`` if the ranks have made different calls since they last compared them.
        """
        self.forget_prepared()
        for resource in self._resources.values():
            resource.free()
        self._resources.clear()
        all_left = self.liveness is not None
        if self.liveness is not None:
            usable = self.call_lock.end_reason is None  # else a call scope on the rank set refuses
            self.liveness.close(CallScope("the end of its communicators", self if usable else None))
            self.liveness = None
        differ = self._made_different_calls()
        for group in (*self._groups.values(), self.everyone):
            group.free(all_left)
        self._groups.clear()
        if differ:
            raise CollectiveMismatch(
                "ranks made different collective calls before, and noticed it only at the end. Run again with "
                "MESHCOMM_CHECK=1 to stop at the first difference"
            )

    def abandon(self) -> None:
        """Begin anew, with nothing of what was before, as all ranks are in no call: some left one before its end.

        The next call connects the ranks again. Communicators are left to MPI: messages may still come to them.
        """
        self.forget_prepared()
        self.start_over()
        self._resources.clear()
        for group in (self.everyone, *self._groups.values()):
            if group.rendezvous is not None:
                group.rendezvous.close(all_left=True)
            group.opened = group.rendezvous = group.nodes = None
        self._groups.clear()
        self.call_lock, self.calls, self._clock, self._machine, self.name = CallLock(), 0, 0, "", ""
        self._differed, self._ended_with = "", None

    def _made_different_calls(self) -> bool:
        """Compare the calls since the ranks last did. Collective over the rank set, if it has communicated."""
        communicator = self.everyone.opened
        if communicator is None or self.call_lock.end_reason is not None:
            return False
        with CallScope("the end of its communicators", self):
            return not communicator.start_comparison(self.call_digest).equal()

    def compare(self, number: int) -> int:
        """Note the call *number*, which all ranks now compare, and return the digest of the calls so far."""
        # Local peers that go straight to an exchange see that this rank agrees on a call with all of the rank set
        # first.
        for group in (self.everyone, *self._groups.values()):
            if group.rendezvous is not None:
                group.rendezvous.agree()
        return super().compare(number)


class Group:
    """One row of a group assignment: ranks that exchange with each other, in the order of the row.

    Parameters
    ----------
    rank_set: ranks of all rows
    key: key of the assignment, the same on all ranks of the rank set
    color: number of the row
    members: ranks of the row in the world
    """

    def __init__(self, rank_set: RankSet, key: Hashable, color: int, members: tuple[int, ...]) -> None:
        self.rank_set = rank_set
        self.key = key
        self.color = color
        self.members = members
        self.used = 0
        self.opened: Communicator | None = None  # the communicator, while the group has one
        self.rendezvous: Rendezvous | None = None
        """Where its ranks on this node copy between their blocks, if they share memory."""
        self.nodes: tuple[int, ...] | None = None
        """A number for each position, equal for those that share memory, the same on all ranks; None if none do."""

    def communicator(self) -> Communicator:
        """Return the communicator of the group. Collective over the rank set when it has to be opened."""
        rank_set = self.rank_set
        rank_set._clock += 1  # not by a method, which would cost as much as all the rest
        self.used = rank_set._clock
        return self.opened or rank_set.open(self)

    def use(self, communicator: Communicator) -> Communicator:
        """Return *communicator*, now the group's, whose ranks share memory if they can. Collective over the group."""
        self.opened = communicator
        if self.rank_set.world.shares_memory and len(self.members) > 1:
            self.rendezvous, self.nodes = open_rendezvous(communicator, self.members)
        return communicator

    def free(self, all_left: bool = False) -> None:
        """Free the communicator, if there is one. Collective over the group.

        *all_left* says that all ranks have left their calls, also after an error: then no block is kept for others.
        """
        if self.opened is not None:
            if self.rendezvous is not None:
                self.rendezvous.close(all_left)
            self.opened.free()
            self.opened = self.rendezvous = self.nodes = None
