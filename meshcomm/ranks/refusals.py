"""Calls that a rank refuses, maybe alone: it raises an error where other ranks begin a call."""

from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import wraps
from typing import ParamSpec, TypeVar

from meshcomm._tracing import untraced
from meshcomm.layouts.mesh import Mesh
from meshcomm.ranks._envelope import Envelope
from meshcomm.ranks.meshes import common_world
from meshcomm.ranks.mpi import open_worlds
from meshcomm.ranks.simulate import current_world
from meshcomm.ranks.teams import Team, has_left_call

P = ParamSpec("P")
R = TypeVar("R")


def refusable(function: Callable[P, R]) -> Callable[P, R]:
    """Let ranks notice later that only some of them have refused a call: a decorator.

    For functions that are Collective, and look at their arguments before the call begins. A rank that raises an error
    there has made one call less than the others. If its next call was equal, they would exchange data of different
    steps.
    """

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return function(*args, **kwargs)
        except Exception as error:
            note_refusal(function.__name__.strip("_"), error, (args, kwargs))
            raise

    return call


def note_refusal(operation: str, error: Exception, arguments: object) -> None:
    """Note for the ranks of the first mesh in *arguments* that this one raises *error* instead of *operation*.

    Nothing is noted if there is none, or if the error has left a call: then the envelope of the call has noted it.
    """
    if has_left_call(error):
        return
    with suppress(Exception):  # from a mesh that is closed, or an odd argument: only *error* is to be told
        mesh = _mesh_of(arguments)
        team = None if mesh is None else _team_of(mesh)
        if team is not None:
            with Envelope(operation, team):
                team.note_error(operation, error, joined=False)


def _mesh_of(argument: object) -> Mesh | None:
    """Return the mesh that an *argument* is, has, or contains."""
    if isinstance(argument, Mesh):
        return argument
    if isinstance(argument, Mapping):
        argument = list(argument.values())
    if isinstance(argument, list | tuple):
        return next(filter(None, map(_mesh_of, argument)), None)
    owner = untraced(argument)
    mesh = getattr(getattr(owner, "source", owner), "mesh", None)  # a plan has a layout as its source
    return mesh if isinstance(mesh, Mesh) else None


def _team_of(mesh: Mesh) -> Team | None:
    """Return the ranks of *mesh*; None if this rank is outside, or has no world yet in which it could call them."""
    world = mesh.bound_world or current_world() or (common_world() if open_worlds() else None)
    here = None if world is None else world.here().location(mesh)
    return None if here is None else here.team
