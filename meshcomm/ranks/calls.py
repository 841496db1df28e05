"""Collective calls: their envelope, and the one path from a call to the program that all ranks agreed on.

A call is known if all ranks of a team have made it before: its program then runs at once. Otherwise each rank builds
its program, the ranks agree that they make the same call and that none has an error, and each remembers its program.
"""

from collections.abc import Callable, Hashable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import NoReturn, TypeVar

from meshcomm.errors import MeshcommError
from meshcomm.failures import abort, host_signals
from meshcomm.failures.watch import kind, watch
from meshcomm.layouts.mesh import Mesh
from meshcomm.ranks import agreement
from meshcomm.ranks._envelope import Envelope
from meshcomm.ranks.agreement import fingerprint, of_operation
from meshcomm.ranks.meshes import common_world, location_between
from meshcomm.ranks.simulate import current_world
from meshcomm.ranks.teams import Location, Program, Team

R = TypeVar("R")

_OUTSIDE: AbstractContextManager[None] = nullcontext()
_WRONG = fingerprint("something is wrong with this call")  # in the digest of a known call in which a rank has an error


def collective(operation: str, mesh: Mesh, target: Mesh | None = None) -> AbstractContextManager[Location | None]:
    """Return the envelope of a collective call on *mesh*, or from *mesh* to the mesh *target*.

    The context gives where this rank is, or None if it is outside of the meshes. Within it the watchdog knows that the
    rank is in *operation*. ``MeshError`` if a mesh is closed, or does not fit into its world.

    >>> import meshcomm as mc
    >>> def example():
    ...     with collective("an example", mc.create_mesh([("x", 2)])) as here:
    ...         return here.device
    >>> with mc.simulate(2) as world:
    ...     print(world.run(example))
    [0, 1]
    """
    here: Location | None
    if target is None or target is mesh:
        # As location_in does, without its call: this is on the way of every relayout.
        here = (mesh.bound_world or current_world() or common_world()).here().location(mesh)
    else:
        here = location_between(mesh, target)
    return _OUTSIDE if here is None else Envelope(operation, here.team, None, here)


@contextmanager
def exchanging(team: Team) -> Iterator[None]:
    """Return a context in which ranks of *team* agree and exchange: others may be in it still when one leaves it.

    `leave_with` says what follows from an exception.
    """
    try:
        yield
    except BaseException as error:
        leave_with(error, team)
        raise


def leave_with(error: BaseException, team: Team) -> None:
    """Let *team* make no further call if this rank leaves one with an *error* that the others do not raise.

    That is any but ours and those agreed on, such as an interrupt, or that there is no memory for a known call.
    Messages on their way would come to a later call, or the others would wait for this rank.
    """
    if len(team.ranks) > 1 and not isinstance(error, MeshcommError) and not host_signals.is_shared(error):
        team.fail(error)


def note_wrong(team: Team) -> None:
    """Let the other ranks of *team* find a difference in this call: this one has an error in it, maybe alone."""
    team.call_digest ^= _WRONG
    if team.world.guarded:
        abort.show_words()  # before the others find a difference, and end the job


def join_and_raise(wrong: Exception, team: Team, exchange: Callable[[], object]) -> NoReturn:
    """Take part in the *exchange* of a known call, so that no rank waits for this one, and raise what is *wrong*.

    `note_wrong` comes before. If the other ranks of *team* found nothing wrong, later calls name *wrong*, too.
    """
    team.wrong = wrong
    try:
        exchange()
    except MeshcommError as error:
        raise wrong from error
    finally:
        team.wrong = None
    raise host_signals.note_shared(wrong, f"{type(wrong).__name__}: {wrong}", seen=True)


def program(
    team: Team,
    key: Hashable,
    describe: Callable[..., str],
    build: Callable[..., Callable[..., R]],
    *subject: object,
    error: Exception | None = None,
) -> Callable[..., R]:
    """Return what runs the call of *key*, on which all ranks of *team* have agreed. Collective over the team.

    Parameters
    ----------
    team: the ranks that make the call
    key: what tells this call from others, for this rank; None for a call that is agreed on each time
    describe: returns what the ranks compare, from *subject*
    build: returns a function that runs the call, from *subject*; what it raises on one rank, all raise
    subject: what the call is about, for *describe* and *build*
    error: what this rank has found wrong, maybe alone. All ranks raise it if the call is new. In a known call this
        rank has to take part, and to raise it then; ranks that found nothing wrong will find a difference.
    """
    if watch.recorder is not None:
        watch.recorder.describe(key, describe, subject)
    if key is not None and not agreement.checks_every_call():
        known = team.recall(key)
        if known is not None:
            if team.turn.depth > 1:  # the same call within different ones
                team.call_digest ^= of_operation(team.turn.operation)
            if team.comparison_due:
                agreement.compare_known(team, error)
            elif error is not None:
                note_wrong(team)
            return known.run
    run: Callable[..., R] | None = None
    try:
        _ = team.machine  # which a plan depends on, agreed on when the team first communicates
        kept = team.kept(key) if key is not None else None
        if error is None:
            run = kept.run if kept is not None else build(*subject)
    except Exception as problem:
        error = error or problem
    call = describe(*subject)
    if team.turn.depth > 1:
        call = f"{call}, within {kind(team.turn.operation or '')}"
    agreement.agree(team, call, error)
    assert run is not None
    if key is not None:
        team.remember(key, Program(run, fingerprint(call)))
    return run
