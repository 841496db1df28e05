"""Worlds, teams and groups: which ranks exchange with each other."""

from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Hashable
from typing import Any, NamedTuple

import numpy as np

from meshcomm._tuning import GROUPS_PER_TEAM, GROUPS_PER_WORLD, PROGRAMS_PER_TEAM, TEAMS_PER_WORLD
from meshcomm.errors import MeshError
from meshcomm.layouts.machine import Machine
from meshcomm.layouts.mesh import Mesh
from meshcomm.layouts.refinement import ranks_between, same_devices
from meshcomm.ranks.communicator import Communicator
from meshcomm.ranks.hosts import agreed_machine
from meshcomm.ranks.rendezvous import meet


class Place(NamedTuple):
    """Where this process is in a mesh: the team of its ranks, and the device."""

    team: "Team"
    device: int


class World(ABC):
    """Where a program runs, seen by one of its ranks."""

    large_counts = True
    """Whether counts and displacements may exceed 2**31 - 1 bytes."""

    shares_memory = False
    """Whether its ranks are processes, of which those on one node may share memory."""

    def __init__(self, size: int, rank: int) -> None:
        self.size = size
        self.rank = rank
        self._teams: dict[range | tuple[int, ...], Team] = {}
        self._places: OrderedDict[Mesh | tuple[Mesh, Mesh], Place | None] = OrderedDict()
        self.started: dict[int, Any] = {}
        """What was started and not yet waited for."""

    @abstractmethod
    def connect(self, ranks: range | tuple[int, ...]) -> Communicator:
        """Return a communicator of our own over *ranks*, ascending. Collective over *ranks*."""

    def how_to_grow(self, size: int) -> str:
        """Return advice on how to get a world of *size* ranks. Local."""
        return f"launch the program with mpiexec -n {size}"

    def here(self) -> "World":
        """Return the world as the calling rank sees it. Local."""
        return self

    def place(self, mesh: Mesh) -> Place | None:
        """Return where this process is in *mesh*, or None if it is outside. Local.

        ``MeshError`` if the mesh needs ranks that the world does not have, or is closed.
        """
        if self.rank in mesh._closed:
            raise MeshError(f"the {mesh} is closed")
        try:
            return self._places[mesh]
        except KeyError:
            self._keep(mesh, self._find(mesh))
            return self._places[mesh]

    def place_between(self, source: Mesh, target: Mesh) -> Place | None:
        """Return where this process is among the devices of a plan from mesh to mesh, None if outside of both. Local.

        ``MeshError`` as for `place`.
        """
        here = self.place(target)
        if same_devices(source, target):
            return here
        self.place(source)  # whose ranks must be there, too
        pair = source, target
        if pair not in self._places:
            ranks = ranks_between(source, target)
            inside = self.rank in ranks
            self._keep(pair, Place(self.team(ranks), ranks.index(self.rank)) if inside else None)
        return self._places[pair]

    def _keep(self, key: Mesh | tuple[Mesh, Mesh], place: "Place | None") -> None:
        self._places[key] = place
        if len(self._places) > PROGRAMS_PER_TEAM:
            self._places.popitem(last=False)

    def _find(self, mesh: Mesh) -> Place | None:
        beyond = mesh.ranks[-1] if isinstance(mesh.ranks, range) else max(mesh.ranks)
        if beyond >= self.size:
            raise MeshError(
                f"the mesh needs {mesh.size} ranks up to rank {beyond}, but the world has {self.size}: "
                f"{self.how_to_grow(beyond + 1)}, or make a smaller mesh"
            )
        if self.rank not in mesh.ranks:
            return None
        ascending = mesh.ranks if isinstance(mesh.ranks, range) else tuple(sorted(mesh.ranks))
        return Place(self.team(ascending), mesh.ranks.index(self.rank))

    def team(self, ranks: range | tuple[int, ...]) -> "Team":
        """Return the team of *ranks*, ascending, this rank among them. Local."""
        if len(ranks) == ranks[-1] - ranks[0] + 1:
            ranks = range(ranks[0], ranks[-1] + 1)  # one form for each set of ranks
        if ranks not in self._teams:
            self._teams[ranks] = Team(self, ranks)
        return self._teams[ranks]

    def leave(self, team: "Team") -> None:
        """Forget *team* and free its communicators. Collective over the team."""
        self._teams.pop(team.ranks, None)
        for mesh in [mesh for mesh, place in self._places.items() if place and place.team is team]:
            del self._places[mesh]
        team.free()

    @property
    def communicators(self) -> int:
        """How many communicators of ours are open. Local."""
        return sum(team.communicators for team in self._teams.values())

    def close(self) -> None:
        """Free every communicator that this world opened. Collective over the world."""
        for team in list(self._teams.values()):
            self.leave(team)


class Team:
    """Ranks of a world that make collective calls together. Made without communication; see `everyone`."""

    def __init__(self, world: World, ranks: range | tuple[int, ...]) -> None:
        self.world = world
        self.ranks = ranks
        self.programs: dict[Hashable, _Kept] = {}
        self.chain = 0
        self.known_calls = 0
        self.clock = 0
        self._machine: Machine | None = None
        self.crowded = True
        """Whether ranks may have to wait for a processor, the same on all of them; known with the `machine`."""
        self._limit = GROUPS_PER_WORLD if len(ranks) == world.size else GROUPS_PER_TEAM
        self._groups: dict[Hashable, Group] = {}
        self.everyone = Group(self, None, 0, tuple(ranks))

    @property
    def rank(self) -> int:
        """The place of this process in the team. Local."""
        return self.ranks.index(self.world.rank)

    @property
    def large_counts(self) -> bool:
        """Whether counts and displacements may exceed 2**31 - 1 bytes. Local."""
        return self.world.large_counts

    @property
    def shares_memory(self) -> bool:
        """Whether all its ranks can copy between their blocks, the same on all of them. Local."""
        meeting = self.everyone.meeting
        return meeting is not None and meeting.size == len(self.ranks)

    @property
    def machine(self) -> Machine:
        """What all its ranks plan by: agreed when the team first communicates. Local, the first time Collective."""
        if self._machine is None:
            self._machine, self.crowded = agreed_machine(self.everyone.communicator(), self.ranks)
        return self._machine

    @property
    def communicators(self) -> int:
        """How many communicators of the team are open. Local."""
        return sum(group.is_open for group in (self.everyone, *self._groups.values()))

    def group(self, key: Hashable, color: int, members: tuple[int, ...]) -> "Group":
        """Return this rank's group in the assignment named *key*. Local; its first use is Collective over the team.

        *members* are the world ranks of this rank's row in order; *color* is the number of the row.
        """
        if members == self.everyone.members:
            return self.everyone
        group = self._groups.get(key)
        if group is None:
            group = Group(self, key, color, members)
        return group

    def open(self, group: "Group") -> Communicator:
        """Open *group*, closing the least recently used one at the bound. Collective over the team."""
        if group is self.everyone:
            group.opened = self._connect()
            self._meet(group)
            return group.opened
        twin = self._groups.pop(group.key, None)
        if twin is not None:  # an equal group that somebody asked for while this one was closed
            group.opened, twin.opened = twin.opened, None
            group.meeting, twin.meeting = twin.meeting, None
            group.nodes, twin.nodes = twin.nodes, None
            self._groups[group.key] = group
            return group.communicator()
        if len(self._groups) >= self._limit:
            oldest = min(self._groups.values(), key=lambda held: held.used)
            del self._groups[oldest.key]
            oldest.free()
        base = self.everyone.communicator()
        group.opened = base.split(group.color, group.members.index(self.world.rank))
        self._groups[group.key] = group
        self._meet(group)
        return group.opened

    def _meet(self, group: "Group") -> None:
        """Let the ranks of a group that share memory know each other. Collective over the group."""
        if self.world.shares_memory and len(group.members) > 1:
            assert group.opened is not None
            group.meeting, group.nodes = meet(group.opened, group.members)

    def _connect(self) -> Communicator:
        communicator = self.world.connect(self.ranks)
        others = sum(team.everyone.is_open for team in self.world._teams.values())
        crowded = np.array([others >= TEAMS_PER_WORLD], dtype=np.int64)
        if communicator.allreduce_max(crowded)[0]:
            communicator.free()
            raise MeshError(
                f"a rank takes part in meshes over more than {TEAMS_PER_WORLD} different sets of ranks; "
                "close() those that are not needed any more"
            )
        return communicator

    def known(self, key: Hashable) -> Any:
        """Return the program that is kept for *key*, or None. Local, but every rank of the team must ask."""
        kept = self.programs.get(key)
        if kept is None:
            return None
        self.clock += 1
        kept.used = self.clock
        return kept.program

    def agrees(self) -> None:
        """Tell ranks that share memory that this one agrees with all of the team on a call. Local."""
        for group in (self.everyone, *self._groups.values()):
            if group.meeting is not None:
                group.meeting.agree()

    def remember(self, key: Hashable, program: Any) -> None:
        """Keep *program* for *key*; beyond a bound the one used longest ago is dropped. Local, on every rank."""
        self.clock += 1
        self.programs[key] = _Kept(program, self.clock)
        if len(self.programs) > PROGRAMS_PER_TEAM:
            del self.programs[min(self.programs, key=lambda each: self.programs[each].used)]

    def free(self) -> None:
        """Free every communicator of the team. Collective over the team."""
        self.programs.clear()
        for group in (*self._groups.values(), self.everyone):
            group.free()
        self._groups.clear()


class _Kept:
    """A program, and when it was used last."""

    __slots__ = ("program", "used")

    def __init__(self, program: Any, used: int) -> None:
        self.program = program
        self.used = used


class Group:
    """One row of a group assignment: ranks that exchange with each other, in the order of the row."""

    def __init__(self, team: Team, key: Hashable, color: int, members: tuple[int, ...]) -> None:
        self.team = team
        self.key = key
        self.color = color
        self.members = members
        self.used = 0
        self.opened: Communicator | None = None
        self.meeting: Any = None
        """Where its ranks on this node copy between their blocks, if they share memory; see `meshcomm.ranks.rendezvous`."""
        self.nodes: tuple[int, ...] | None = None
        """A number for each place, equal for those that share memory, the same on all ranks; None if none do."""

    @property
    def is_open(self) -> bool:
        """Whether the group has a communicator at the moment. Local."""
        return self.opened is not None

    def communicator(self) -> Communicator:
        """Return the communicator of the group. Local; Collective over the team when it has to be opened."""
        team = self.team
        team.clock += 1
        self.used = team.clock
        return self.opened or team.open(self)

    def free(self) -> None:
        """Free the communicator, if there is one. Collective over the group."""
        if self.opened is not None:
            if self.meeting is not None:
                self.meeting.close()
            self.opened.free()
            self.opened = self.meeting = self.nodes = None
