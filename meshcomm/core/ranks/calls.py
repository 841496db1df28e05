"""Collective calls: how all collective functions run, from a call to the function that all ranks agreed to run.

A call is known if all ranks of a rank set have made it before: its prepared call then runs at once. A new call may run
by the prepared call of another one of the same form: see `Collective`. Otherwise each rank prepares the call, the
ranks agree that they make the same call and that none has an error, and each remembers it.

An error that one rank finds is handled by the time at which it finds it:

- before the call: the rank does not make it. `RankSet.refuse` notes that, for the next comparison to find.
- in a new call, or in one that is agreed on each time: `agree` and `agree_on` let all ranks raise the error.
- in a known call: the rank takes part, so that no other one waits, and then raises the error: `join_and_raise`.
"""

from collections.abc import Callable, Hashable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Generic, NoReturn, TypeAlias, TypeVar

from meshcomm.core.failures import abort, host_signals
from meshcomm.core.failures.watch import kind, watch
from meshcomm.core.layouts.mesh import Mesh, bound_world
from meshcomm.core.ranks import agreement
from meshcomm.core.ranks._call_scope import CallScope
from meshcomm.core.ranks.agreement import fingerprint, operation_number
from meshcomm.core.ranks.call_log import PreparedCall
from meshcomm.core.ranks.meshes import common_world, location_between, location_in
from meshcomm.core.ranks.rank_sets import Location, RankSet
from meshcomm.core.ranks.simulate import current_world
from meshcomm.errors import MeshcommError

R = TypeVar("R")
Subject: TypeAlias = tuple[object, ...]
"""The arguments of the functions of a `Collective` that describe and build a call."""

_OUTSIDE: AbstractContextManager[None] = nullcontext()
# XORed into the digest if a rank has an error in a known call.
_CALL_WITH_ERROR = fingerprint("something is wrong with this call")


def collective(operation: str, mesh: Mesh, target: Mesh | None = None) -> AbstractContextManager[Location | None]:
    """Return the call scope of a collective call on *mesh*, or from *mesh* to the mesh *target*.

    The context gives the location of this rank; None if it is outside of the meshes. Within it the watchdog knows that
    the rank is in *operation*. ``MeshError`` if a mesh is closed, or does not fit into its world.

    >>> import meshcomm as mc
    >>> def example():
    ...     with collective("an example", mc.create_mesh([("x", 2)])) as location:
    ...         return location.device
    >>> with mc.simulate(2) as world:
    ...     print(world.run(example))
    [0, 1]
    """
    location = location_in(mesh) if target is None else location_between(mesh, target)
    return _OUTSIDE if location is None else CallScope(operation, location.rank_set, None, location)


@contextmanager
def exchanging(rank_set: RankSet) -> Iterator[None]:
    """Return a context in which ranks of *rank_set* agree and exchange: others may still be in it when one leaves it.

    An exception has the consequences of `leave_with`.
    """
    try:
        yield
    except BaseException as error:
        leave_with(error, rank_set)
        raise


def leave_with(error: BaseException, rank_set: RankSet) -> None:
    """Let *rank_set* make no further call if this rank leaves one with an *error* that the others do not raise.

    The others raise errors of meshcomm, and those agreed on, but not an interrupt, or a MemoryError in a known call.
    Then a later call could get messages of this one, or the others would wait for this rank.
    """
    if len(rank_set.ranks) > 1 and not isinstance(error, MeshcommError) and not host_signals.is_shared(error):
        rank_set.fail(error)


def join_and_raise(local_error: Exception, rank_set: RankSet, exchange: Callable[[], object]) -> NoReturn:
    """Take part in the *exchange* of a known call, so that no rank waits for this one, and raise *local_error*.

    The other ranks of *rank_set* find a difference in the call, unless they have an error in it, too. If they find
    none, later calls name *local_error*.
    """
    rank_set.call_digest ^= _CALL_WITH_ERROR
    if rank_set.world.ends_job_on_failure:
        abort.show_pending_error()  # before the others find a difference, and end the job
    rank_set.local_error = local_error
    try:
        exchange()
    except MeshcommError as error:
        raise local_error from error
    finally:
        rank_set.local_error = None
    raise host_signals.note_shared(local_error, f"{type(local_error).__name__}: {local_error}", seen=True)


def agree_on(rank_set: RankSet, call: str | Callable[[R], str], make: Callable[[], R]) -> R:
    """Return the result of *make*. If it raises an exception on one rank, all ranks raise it. Collective.

    *call* is the text that the ranks of *rank_set* compare; it may be a function of the result.
    """
    try:
        result = make()
        text = call if isinstance(call, str) else call(result)
    except Exception as error:
        agreement.agree(rank_set, call if isinstance(call, str) else None, error)
        raise
    agreement.agree(rank_set, text)
    return result


class Collective(Generic[R]):
    """A collective function: `__call__` runs all of them, except those that agree on each call.

    The subject of a call is a tuple of arguments. *describe* takes them and returns the text that ranks compare.
    *build* takes them and the location of this rank, and returns a function that runs the call; if it raises an error
    on one rank, all ranks raise it. *outside* does the checks of *build* on a rank outside of the meshes.

    *form* takes the subject, too, and returns a value that says what moves, the same on all ranks, or None. Calls with
    equal values run by one function, which was built for the first of them. A new call of a known form needs no
    agreement: the text that ranks would compare is in the digest that goes with its data.
    """

    def __init__(
        self,
        describe: Callable[..., str],
        build: Callable[..., Callable[..., R]],
        outside: Callable[..., object] | None = None,
        *,
        form: Callable[..., Hashable] | None = None,
    ) -> None:
        self._describe, self._build, self._outside, self._form = describe, build, outside, form

    def __call__(
        self,
        operation: str,
        meshes: tuple[Mesh, Mesh],
        key: Hashable,
        subject: Subject,
        arguments: tuple[object, ...],
        *,
        error: Exception | None = None,
    ) -> R | None:
        """Run a call, and return what it returns; None on a rank outside. Collective over both *meshes*.

        Parameters
        ----------
        operation: name of the call for the watchdog and for messages
        meshes: source and target mesh; the same twice, if there is one
        key: key of the call among those of this rank; None for a call that is agreed on each time
        subject: arguments of *describe*, *build* and *outside*
        arguments: arguments of the function that runs the call
        error: error that this rank, maybe alone, has found; in a known call it takes part before it raises the error
        """
        mesh, target = meshes
        location: Location | None
        if target is mesh:  # as in location_in, inlined: every relayout comes through here
            location = (bound_world(mesh) or current_world() or common_world()).here().location(mesh)
        else:
            location = location_between(mesh, target)
        if location is None:
            if error is not None:
                raise error
            if self._outside is not None:
                self._outside(*subject)
            return None
        with CallScope(operation, location.rank_set):
            run = self.prepared(location.rank_set, key, subject, location, error=error)
            if error is not None:
                join_and_raise(error, location.rank_set, lambda: run(*arguments))
            return run(*arguments)

    def prepared(
        self, rank_set: RankSet, key: Hashable, subject: Subject, location: object, *, error: Exception | None = None
    ) -> Callable[..., R]:
        """Return the function that runs a call on which all ranks of *rank_set* have agreed. Collective.

        Arguments are those of `__call__`, and *location* is for *build*. If the ranks agree on the call now, all raise
        the *error* of one of them.
        """
        if watch.recorder is not None:
            watch.recorder.describe(key, self._describe, subject)
        form: Hashable = None
        if key is not None and not agreement.checks_every_call():
            prepared_call = rank_set.recall(key)
            if prepared_call is not None:
                if rank_set.call_lock.depth > 1:  # ranks may make this call within different ones
                    rank_set.call_digest ^= operation_number(rank_set.call_lock.operation)
                if rank_set.comparison_due:
                    agreement.compare_known(rank_set, error)
                return prepared_call.run
            form = None if self._form is None else self._form(*subject)
            prepared_call = None if form is None else rank_set.recall(form)
            if prepared_call is not None:
                return self._of_known_form(rank_set, key, subject, prepared_call, error)
        run: Callable[..., R] | None = None
        try:
            _ = rank_set.machine  # plans depend on it; ranks agree on it when the rank set first communicates
            prepared_call = rank_set.prepared_call(key) if key is not None else None
            if error is None:
                run = prepared_call.run if prepared_call is not None else self._build(*subject, location)
        except Exception as build_error:
            error = error or build_error
        call = self._text(rank_set, subject)
        agreement.agree(rank_set, call, error)
        assert run is not None
        for new_key in (key, form):
            if new_key is not None:
                rank_set.remember(new_key, PreparedCall(run, fingerprint(call)))
        return run

    def _of_known_form(
        self, rank_set: RankSet, key: Hashable, subject: Subject, prepared_call: PreparedCall, error: Exception | None
    ) -> Callable[..., R]:
        """Return the function that has run other calls of the form of this new call, and note the new call."""
        call = self._text(rank_set, subject)
        number = fingerprint(call)
        rank_set.note(number)
        if rank_set.comparison_due:
            agreement.agree(rank_set, call, error)
        rank_set.remember(key, PreparedCall(prepared_call.run, number))
        return prepared_call.run

    def _text(self, rank_set: RankSet, subject: Subject) -> str:
        text = self._describe(*subject)
        return text if rank_set.call_lock.depth <= 1 else f"{text}, within {kind(rank_set.call_lock.operation or '')}"
