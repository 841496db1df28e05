"""Calls that a rank refuses, maybe alone: it raises an error before the call, which other ranks may begin."""

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

# Before a call has begun no error is one of data, as in `call_log`; but some are of memory or of files.
_ARGUMENT_ERRORS = MeshcommError, ValueError, TypeError, LookupError, AttributeError, RuntimeError, ImportError


def refusable(function: Callable[P, R]) -> Callable[P, R]:
    """Decorate a function so that ranks notice later if only some of them have refused a call.

    For Collective functions that check their arguments before the call begins. A rank that raises an error there makes
    one call less than the others. If its next call was equal, they would exchange data of different steps.
    """

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        calls_before = watch.count
        try:
            return function(*args, **kwargs)
        except Exception as error:
            if watch.count == calls_before:
                note_refusal(function.__name__.strip("_"), error, (args, kwargs))
            raise

    return call


def note_refusal(operation: str, error: Exception, arguments: object) -> None:
    """Note, for the ranks of the first mesh in *arguments*, that this rank raises *error* instead of *operation*.

    No call has begun. Without a mesh, or while another thread is in a call, do nothing.
    """
    if isinstance(error, _ARGUMENT_ERRORS):
        with suppress(MeshcommError, RecursionError):  # a mesh that is closed; a list that contains itself
            mesh = _mesh_of(arguments)
            rank_set = None if mesh is None else _rank_set_of(mesh)
            if rank_set is not None and not rank_set.call_lock.depth:
                rank_set.refuse(operation, error)


def _mesh_of(argument: object) -> Mesh | None:
    """Return the mesh that *argument* is, has, or contains; None without one."""
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
    """Return the rank set of *mesh*; None if this rank is outside, or has no world yet."""
    world = bound_world(mesh) or current_world() or (common_world() if open_worlds() else None)
    location = None if world is None else world.here().location(mesh)
    return None if location is None else location.rank_set
