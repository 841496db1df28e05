"""Worlds, rank sets and groups: which ranks exchange with each other, and over which communicator.

A `World` has all ranks of a program: those of an MPI communicator, or simulated ranks. A `RankSet` is a set of them
that make collective calls together, such as the ranks of a mesh. A `Group` is one row of a group assignment within a
rank set. Communicators are made when a group is first used, kept up to a limit, and freed explicitly: by
`RankSet.free`, at the limit, or at exit.
"""
# Why all ranks evict alike
# =========================
#
# To open a group is Collective over its rank set, and so is to close one. So when a limit is reached, all ranks must
# drop the same group, or the same prepared call, at the same call. They do, without communication:
#
# (A) The ranks of a rank set make the same calls in the same order. They agree on each new call, and compare the
#     digest of all known ones (`RankSet.recall`, `RankSet.compare`); a program in which they differ ends.
# (B) A rank set has a clock. A call stamps with it the prepared call (`recall`, `prepared_call`, `remember`), and then
#     the group of each exchange, in the order of its steps (`Group.communicator`). Every rank of the rank set does so:
#     all rows of an assignment are equally long, so either all ranks are alone in their rows, or none is.
# (C) So the keys of prepared calls and groups, in the order of their last stamps, are the same list on all ranks. A
#     group has a row of its own on each rank, but one key. The stamps themselves may differ: within an exchange the
#     clock may grow by more on some ranks than on others, as when the rows of an assignment use different transports.
#     But these ranks stamp only the group of this exchange, which comes last in the list anyway.
# (D) Stamps on one rank are distinct, as the clock grows between them. So all ranks drop the first entry of the list.
#     Nothing depends on time, on memory, or on the order of a hash table.
#
# A closed group can be used again, as prepared calls keep it: the next call opens it. As long as one keeps it, no
# other group has its key.

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
    """The location of this process in a mesh: the rank set of the mesh, and the device of this process."""

    rank_set: "RankSet"
    device: int


class Resource(Protocol):
    """An object of another library for the ranks of a rank set, such as a grid of processes."""

    def free(self) -> None:
        """Free it. Collective over the rank set."""


class World(ABC):
    """All ranks of a program, as one of them sees them."""

    large_counts = True  # whether counts and displacements may exceed 2**31 - 1 bytes
    ends_job_on_failure = False  # whether the job ends if a rank fails or is missing
    takes_turns = False  # whether only one rank runs at a time, as simulated ranks do
    shares_memory: bool = False  # whether its ranks are processes, which may share memory if they are on one node

    def __init__(self, size: int, rank: int) -> None:
        self.size = size
        self.rank = rank
        self._rank_sets: dict[Ranks, RankSet] = {}
        self._locations: OrderedDict[Mesh | tuple[Mesh, Mesh], Location | None] = OrderedDict()
        self._closed_meshes: dict[int, ref[Mesh]] = {}  # by identity: an equal mesh that is made later is open
        self.unfinished: dict[int, Unfinished] = {}
        """Nonblocking calls of this rank that are not complete, by their id."""

    @abstractmethod
    def connect(self, ranks: Ranks) -> Communicator:
        """Return a new communicator over *ranks*, ascending. Collective over *ranks*."""

    def open_liveness(
        self, rank_set: "RankSet", communicator: Communicator, hosts: Sequence[str]
    ) -> LivenessCheck | None:
        """Return the liveness check of *rank_set*; None if the world has none. Collective over the rank set."""
        return None

    def ranks_in_comm_world(self, ranks: Ranks) -> tuple[int, ...]:
        """Return the ranks in COMM_WORLD of these *ranks* of this world."""
        return tuple(ranks)

    def here(self) -> "World":
        """Return this world, as the calling rank sees it."""
        return self

    def location(self, mesh: Mesh) -> Location | None:
        """Return the location of this process in *mesh*; None if it is outside.

        ``MeshError`` if the mesh needs ranks that the world does not have, or is closed.
        """
        if id(mesh) in self._closed_meshes:
            raise MeshError(f"the {mesh} is closed")
        try:
            return self._locations[mesh]
        except KeyError:
            pass  # errors below are not raised from this one
        refuse_larger(mesh, self.size, self.takes_turns)
        return self._locate(mesh, mesh.ranks)

    def newest_mesh_without_me(self) -> Mesh | None:
        """Return the newest mesh of this world that this process is not in; None if there is none."""
        meshes = (k for k, location in reversed(self._locations.items()) if location is None and isinstance(k, Mesh))
        # Rather one of several devices: `to_numpy(root)` makes meshes of one device.
        return max(meshes, key=lambda mesh: mesh.size > 1, default=None)

    def location_between(self, source: Mesh, target: Mesh) -> Location | None:
        """Return the location of this process in a plan from *source* to *target*; None if it is outside of both.

        ``MeshError`` as for `location`.
        """
        target_location = self.location(target)
        if same_devices(source, target):
            return target_location
        self.location(source)  # raises the error if its ranks are not in this world
        pair = source, target
        return self._locations[pair] if pair in self._locations else self._locate(pair, ranks_between(source, target))

    def _locate(self, key: Mesh | tuple[Mesh, Mesh], ranks: Ranks) -> Location | None:
        """Return the location of this process among *ranks*, and keep it for *key*."""
        ascending = ranks if isinstance(ranks, range) else tuple(sorted(ranks))
        location = Location(self.rank_set(ascending), ranks.index(self.rank)) if self.rank in ranks else None
        self._locations[key] = location
        if len(self._locations) > PREPARED_PER_RANK_SET:
            self._locations.popitem(last=False)
        return location

    def rank_set(self, ranks: Ranks) -> "RankSet":
        """Return the rank set of *ranks*, ascending, this rank among them."""
        if len(ranks) == ranks[-1] - ranks[0] + 1:
            ranks = range(ranks[0], ranks[-1] + 1)  # equal sets of ranks have one form
        if ranks not in self._rank_sets:
            new_rank_set = RankSet(self, ranks)
            for other in self._rank_sets.values():
                new_rank_set.end_with(other)
            self._rank_sets[ranks] = new_rank_set
        return self._rank_sets[ranks]

    def close_on(self, mesh: Mesh) -> bool:
        """Close *mesh* on this rank, and return whether it was open. Collective over the mesh."""
        if id(mesh) in self._closed_meshes:
            return False
        location = self.location(mesh)
        mesh_id, closed_meshes = id(mesh), self._closed_meshes
        closed_meshes[mesh_id] = ref(mesh, lambda _: closed_meshes.pop(mesh_id, None))
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
        """Return whether *rank_set* is that of a mesh, and not only of ranks that made a call together."""
        return any(
            location is not None and location.rank_set is rank_set
            for key, location in self._locations.items()
            if isinstance(key, Mesh)
        )

    @property
    def communicators(self) -> int:
        """The number of open communicators of this world."""
        return sum(rank_set.communicators for rank_set in self._rank_sets.values())

    @property
    def open_rank_sets(self) -> int:
        """The number of rank sets that have a communicator."""
        return sum(rank_set.everyone.opened is not None for rank_set in self._rank_sets.values())

    def all_rank_sets(self) -> "list[RankSet]":
        """Return all rank sets of this rank, also those that have not communicated yet."""
        return list(self._rank_sets.values())

    @property
    def failures(self) -> list[str]:
        """The reasons why some rank sets can make no more calls."""
        return [
            rank_set.call_lock.end_reason
            for rank_set in self._rank_sets.values()
            if rank_set.call_lock.end_reason is not None
        ]

    # -- nonblocking calls --------------------------------------------------------------------------------------------

    def finish_all(self) -> None:
        """Complete nonblocking calls that nobody waited for, and raise ``MeshcommError`` if there are any."""
        requests = list(self.unfinished.values())
        for request in requests:
            request.wait()
        if requests:
            raise MeshcommError(never_waited_for(requests))

    def close(self) -> None:
        """Free every communicator that this world opened. Collective over the world."""
        # In one order on all ranks, which may have made their rank sets in different orders: else they would deadlock.
        for rank_set in sorted(self._rank_sets.values(), key=lambda rank_set: tuple(rank_set.ranks)):
            self.leave(rank_set)


def refuse_larger(mesh: Mesh, size: int, simulated: bool) -> None:
    """Raise ``MeshError`` if *mesh* needs ranks beyond the *size* of the world, which may be *simulated*."""
    last_rank = mesh.ranks[-1] if isinstance(mesh.ranks, range) else max(mesh.ranks)
    if last_rank >= size:
        cure = f"use simulate({last_rank + 1})" if simulated else f"launch the program with mpiexec -n {last_rank + 1}"
        raise MeshError(
            f"the mesh needs {mesh.size} ranks up to rank {last_rank}, but the world has {size}: {cure}, "
            "or make a smaller mesh"
        )


class RankSet(CallLog):
    """Ranks of a world that make collective calls together. To make one takes no communication.

    `everyone` is the group of all its ranks. `RankSet` and `Group` are one unit: a group advances the clock of its
    rank set.
    """

    def __init__(self, world: World, ranks: Ranks) -> None:
        super().__init__()
        self.world = world
        self.ranks = ranks
        self.name = ""
        """The same on all its ranks, and different for each rank set of theirs; "" until they communicate."""
        self.liveness: LivenessCheck | None = None
        self.local_error: Exception | None = None  # error of this rank in the call that it takes part in
        self._mismatch_reason = ""  # why smaller rank sets make no more calls, once calls of this one differed
        self._ended_by: RankSet | None = None  # a larger rank set, if its calls differed
        self.oversubscribed = True
        """Whether ranks may wait for a processor, the same on all ranks; valid once the `machine` is known."""
        self._machine: Machine | str = ""  # an error text if there is none; "" before the ranks communicate
        self._group_limit = GROUPS_PER_WORLD if len(ranks) == world.size else GROUPS_PER_RANK_SET
        self._open_groups: dict[Hashable, Group] = {}
        self._groups_by_key: WeakValueDictionary[Hashable, Group] = WeakValueDictionary()
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
        """The machine that all its ranks plan by. Collective if the rank set has not communicated yet.

        ``MeshError`` on all ranks if the first one could not read its file.
        """
        if not self._machine:
            self.everyone.communicator()
        if isinstance(self._machine, str):
            raise MeshError(self._machine)
        return self._machine

    @property
    def communicators(self) -> int:
        """The number of open communicators of the rank set."""
        return sum(group.opened is not None for group in (self.everyone, *self._open_groups.values()))

    # -- groups -------------------------------------------------------------------------------------------------------

    def group(self, key: Hashable, color: int, members: tuple[int, ...]) -> "Group":
        """Return this rank's group in the assignment named *key*; its first use is Collective over the rank set.

        *members* are the world ranks of this rank's row in order; *color* is the number of the row.
        """
        if members == self.everyone.members:
            return self.everyone
        group = self._groups_by_key.get(key)
        if group is None:
            group = self._groups_by_key[key] = Group(self, key, color, members)
        return group

    def open(self, group: "Group") -> Communicator:
        """Open *group*; at the limit the group used longest ago is closed. Collective over the rank set."""
        if group is self.everyone:
            communicator = group.use(self._connect())
            # Part of opening the group: right after it, ranks compare their calls, whichever call is their first. So
            # ranks with different first calls find that out.
            try:
                self._machine, oversubscribed = agreed_machine(communicator, self.ranks)
            except MeshError as error:  # on all ranks; raised by the call that needs the machine
                self._machine = str(error)
            else:
                self.oversubscribed = oversubscribed or self.world.takes_turns
            return communicator
        if len(self._open_groups) >= self._group_limit:
            oldest = min(self._open_groups.values(), key=lambda group: group.used)
            del self._open_groups[oldest.key]
            oldest.free()
        parent = self.everyone.communicator()
        self._open_groups[group.key] = group
        return group.use(parent.split(group.color, group.members.index(self.world.rank)))

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
        """If *error* is of MPI and means that calls differ, raise ``CollectiveMismatch``, and let no call follow."""
        mismatch = long_messages.mismatch(error, self.world.rank)
        if mismatch is not None:
            self._end(self.local_error or mismatch)
            raise mismatch from error

    def fail(self, error: BaseException) -> None:
        """Let no further call be made: one ended with *error* on this rank, and others may be in it, or elsewhere.

        Raises ``CollectiveMismatch`` as `explain` does.
        """
        self.explain(error)
        self._end(self.local_error or error)

    def _end(self, error: BaseException) -> None:
        reason, smaller_reason = why_over(error, self.refused, self.ranks, self.world.has_mesh_on(self))
        self.call_lock.end(reason)
        if isinstance(error, CollectiveMismatch):
            self._mismatch_reason = smaller_reason
            for other in self.world.all_rank_sets():
                other.end_with(self)

    def end_with(self, other: "RankSet") -> None:
        """Let no call be made if calls of *other*, a larger rank set with all ranks of this one, have differed.

        Its ranks are at different steps of the program, until they have closed *other*.
        """
        if (
            self.call_lock.end_reason is None
            and other._mismatch_reason
            and len(self.ranks) > 1
            and set(self.ranks) < set(other.ranks)
        ):
            self._ended_by = other
            self.call_lock.end(other._mismatch_reason)

    def go_on_without(self, other: "RankSet") -> None:
        """Allow calls again if only *other*, which its ranks have closed, had ended them."""
        if self._ended_by is other:
            self._ended_by, self.call_lock = None, CallLock()
            for rank_set in self.world.all_rank_sets():
                self.end_with(rank_set)

    def resource(self, key: Hashable, make: Callable[[], R]) -> R:
        """Return the resource that is kept for *key*, else a new one, by *make*. Collective over the rank set.

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
        calls_differ = self._made_different_calls()
        for group in (*self._open_groups.values(), self.everyone):
            group.free(all_left)
        self._open_groups.clear()
        if calls_differ:
            raise CollectiveMismatch(
                "ranks made different collective calls before, and noticed it only at the end. Run again with "
                "MESHCOMM_CHECK=1 to stop at the first difference"
            )

    def abandon(self) -> None:
        """Forget all calls and communicators. No rank may be in a call; some left one before its end.

        The next call connects the ranks again. The communicators are not freed: messages may still come to them.
        """
        self.forget_prepared()
        self.start_over()
        self._resources.clear()
        for group in (self.everyone, *self._open_groups.values()):
            if group.rendezvous is not None:
                group.rendezvous.close(all_left=True)
            group.opened = group.rendezvous = group.nodes = None
        self._open_groups.clear()
        self.call_lock, self.calls, self._clock, self._machine, self.name = CallLock(), 0, 0, "", ""
        self._mismatch_reason, self._ended_by = "", None

    def _made_different_calls(self) -> bool:
        """Compare the calls since the last comparison. Collective over the rank set, if it has communicated."""
        communicator = self.everyone.opened
        if communicator is None or self.call_lock.end_reason is not None:
            return False
        with CallScope("the end of its communicators", self):
            return not communicator.start_comparison(self.call_digest).equal()

    def compare(self, number: int) -> int:
        """Note the call *number*, which all ranks now compare, and return the digest of the calls so far."""
        # Local peers that go on to an exchange can see that this rank first agrees on a call with the whole rank set.
        for group in (self.everyone, *self._open_groups.values()):
            if group.rendezvous is not None:
                group.rendezvous.agree()
        return super().compare(number)


class Group:
    """One row of a group assignment: ranks that exchange with each other, in this order.

    Parameters
    ----------
    rank_set: ranks of all rows
    key: key of the assignment, the same on all ranks of the rank set
    color: number of the row
    members: ranks of the row, as ranks of the world
    """

    def __init__(self, rank_set: RankSet, key: Hashable, color: int, members: tuple[int, ...]) -> None:
        self.rank_set = rank_set
        self.key = key
        self.color = color
        self.members = members
        self.used = 0
        self.opened: Communicator | None = None  # the communicator, while the group has one
        self.rendezvous: Rendezvous | None = None
        """By which its ranks on this node copy between their blocks; None if they share no memory."""
        self.nodes: tuple[int, ...] | None = None
        """A number for each position, equal for those that share memory, the same on all ranks; None if none do."""

    def communicator(self) -> Communicator:
        """Return the communicator of the group. Collective over the rank set when it has to be opened."""
        rank_set = self.rank_set
        rank_set._clock += 1  # inlined: a method would take as long as the rest of this function
        self.used = rank_set._clock
        return self.opened or rank_set.open(self)

    def use(self, communicator: Communicator) -> Communicator:
        """Make *communicator* that of the group, and return it; ranks share memory if they can. Collective."""
        self.opened = communicator
        if self.rank_set.world.shares_memory and len(self.members) > 1:
            self.rendezvous, self.nodes = open_rendezvous(communicator, self.members)
        return communicator

    def free(self, all_left: bool = False) -> None:
        """Free the communicator, if there is one. Collective over the group.

        *all_left* says that all ranks have left their calls, also after an error: then no rank keeps blocks for
        others.
        """
        if self.opened is not None:
            if self.rendezvous is not None:
                self.rendezvous.close(all_left)
            self.opened.free()
            self.opened = self.rendezvous = self.nodes = None
