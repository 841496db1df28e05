"""Calls that a rank refuses, maybe alone: it raises an error where other ranks begin a call."""

from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import wraps
from typing import ParamSpec, TypeVar

from meshcomm.core._tracing import untraced
from meshcomm.core.failures.watch import watch
from meshcomm.core.layouts.mesh import Mesh, bound_world
from meshcomm.core.ranks.meshes import common_world
from meshcomm.core.ranks.mpi import open_worlds
from meshcomm.core.ranks.rank_sets import RankSet
from meshcomm.core.ranks.simulate import current_world
from meshcomm.errors import MeshcommError

P = ParamSpec("P")
R = TypeVar("R")

# Before a call has begun there are no errors of data yet, as there are in `rank_sets`, but of memory and of files.
_OF_ARGUMENTS = MeshcommError, ValueError, TypeError, LookupError, AttributeError, RuntimeError, ImportError


def refusable(function: Callable[P, R]) -> Callable[P, R]:
    """Let ranks notice later that only some of them have refused a call: a decorator.

    For functions that are Collective, and look at their arguments before the call begins. A rank that raises an error
    there has made one call less than the others. If its next call was equal, they would exchange data of different
    steps.
    """

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        begun = watch.count
        try:
            return function(*args, **kwargs)
        except Exception as error:
            if watch.count == begun:
                note_refusal(function.__name__.strip("_"), error, (args, kwargs))
            raise

    return call


def note_refusal(operation: str, error: Exception, arguments: object) -> None:
    """Note for the ranks of the first mesh in *arguments* that this one raises *error* in place of *operation*.

    No call has begun. Nothing is noted without a mesh, or while another thread is in a call.
    """
    if isinstance(error, _OF_ARGUMENTS):
        with suppress(MeshcommError, RecursionError):  # a mesh that is closed; a list that contains itself
            mesh = _mesh_of(arguments)
            rank_set = None if mesh is None else _rank_set_of(mesh)
            if rank_set is not None and not rank_set.call_lock.depth:
                rank_set.refuse(operation, error)


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


def _rank_set_of(mesh: Mesh) -> RankSet | None:
    """Return the ranks of *mesh*; None if this rank is outside, or has no world yet in which it could call them."""
    world = bound_world(mesh) or current_world() or (common_world() if open_worlds() else None)
    location = None if world is None else world.here().location(mesh)
    return None if location is None else location.rank_set
