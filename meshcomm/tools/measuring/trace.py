"""Traces: the calls and exchanges of all ranks over time, in one file for Perfetto."""

import atexit
import contextlib
import json
import math
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic_ns
from types import TracebackType
from typing import TYPE_CHECKING

import numpy as np

from meshcomm.core._arguments import as_path
from meshcomm.core._files import check_can_create, replacing
from meshcomm.core.failures import abort
from meshcomm.core.failures.messages import ranks_text
from meshcomm.core.failures.recorder import Arrival
from meshcomm.core.failures.watch import watch
from meshcomm.core.memory.blocks import as_bytes
from meshcomm.core.ranks._call_scope import CallScope
from meshcomm.core.ranks.agreement import agree
from meshcomm.core.ranks.calls import exchanging
from meshcomm.core.ranks.meshes import world_of
from meshcomm.core.ranks.rank_sets import RankSet
from meshcomm.core.ranks.recording import Listener, recorder
from meshcomm.errors import CollectiveMismatch
from meshcomm.tools.measuring.clocks import AlignedClock, Clock, compare_clocks
from meshcomm.tools.measuring.events import DEFAULT_MAX_EVENTS, Events, document
from meshcomm.tools.measuring.totals import Totals
from meshcomm.tools.measuring.waits import Arrivals, is_explained, waiting_spans

if TYPE_CHECKING:
    from mpi4py import MPI


class _JobEndWriter(Listener):
    """Calls *write* when the job ends, also while ranks wait for each other to end a trace."""

    def __init__(self, write: Callable[[], None]) -> None:
        self._write = write

    def on_job_end(self) -> None:
        self._write()


_not_entered: dict[int, Path] = {}
"""The files of traces that no ``with`` statement has begun."""


@atexit.register
def _tell_not_entered() -> None:
    """Print, on the first rank, the paths of traces that were never begun."""
    if abort.comm_world()[0] == 0:
        for path in dict.fromkeys(_not_entered.values()):
            abort.say(f"nothing was traced to {path}: write with mc.trace(...): around what to trace")


class Trace:
    """A trace that records within a ``with`` statement, made by `trace`."""

    def __init__(self, path: str | os.PathLike[str], comm: "MPI.Intracomm | None", limit: int) -> None:
        self.path, self._comm, self._limit = as_path(path, "trace(path)"), comm, limit
        self._job_end_writer = _JobEndWriter(self._write_alone)
        _not_entered[id(self)] = self.path

    def __enter__(self) -> "Trace":
        _not_entered.pop(id(self), None)
        world = world_of(self._comm)
        rank_set = self._rank_set = world.rank_set(range(world.size))
        with CallScope("the begin of a trace", rank_set):
            error = None
            try:
                self._events = Events(self._limit)
                if rank_set.rank == 0:
                    check_can_create(self.path)
            except Exception as problem:
                error = problem
            agree(rank_set, "the begin of a trace", error)
            self._clock_before, self._begin_time = _clock_and_time(rank_set)
        recorder.add(self._events)
        recorder.add(self._job_end_writer)
        return self

    def __exit__(
        self, error_type: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        recorder.remove(self._events)
        try:
            self._end(error)
        finally:
            recorder.remove(self._job_end_writer)

    def _end(self, error: BaseException | None) -> None:
        # This is another object if a mesh on these ranks was closed.
        self._rank_set = self._rank_set.world.rank_set(self._rank_set.ranks)
        if error is None:
            self._merge()
            return
        # Nothing here may hide the error. If other ranks wait for this one in another call, they learn of it.
        with contextlib.suppress(Exception):
            self._write_alone()
        if not isinstance(error, Exception):
            return
        with watch.pending_error(error):
            try:
                self._merge()
                self._rank_path.unlink(missing_ok=True)
            except BaseException as problem:
                note = f"the trace of rank {self._rank_set.rank} is in {self._rank_path}"
                error.add_note(f"{note}: {type(problem).__name__}: {problem}")

    @property
    def _rank_path(self) -> Path:
        """The file for the trace of this rank alone."""
        return self.path.with_name(f"{self.path.name}.rank-{self._rank_set.rank}.json")

    def _write_alone(self) -> None:
        aligned = AlignedClock(self._clock_before, self._clock_before)
        lines = self._events.lines(self._rank_set.world.rank, os.uname().nodename, self._begin_time, aligned.time)
        with replacing(self._rank_path) as file:
            totals = Totals()
            file.writelines(document(_explained_lines("\n".join(lines).encode(), Arrivals(), 0, totals), {}, totals))

    def _merge(self) -> None:
        """Write the traces of all ranks to one file, on rank 0. Collective over the rank set."""
        rank_set = self._rank_set
        with CallScope("the end of a trace", rank_set), exchanging(rank_set):
            communicator = rank_set.everyone.communicator()
            # This is a barrier, not an agreement: ranks that wait for this rank in another call would only see in an
            # agreement that the calls differ. At a barrier the watchdog sees it, and names the error of this rank.
            missing = communicator.barrier(math.inf)
            if missing:  # simulated ranks, of which none can go on
                raise CollectiveMismatch(
                    f"a trace ends, but {ranks_text([rank_set.ranks[position] for position in missing])} did not come"
                )
            agree(rank_set, "the end of a trace")
            aligned = AlignedClock(self._clock_before, _clock_and_time(rank_set)[0])
            arrivals = json.dumps(list(self._events.arrivals(self._begin_time, aligned.time))).encode()
            text = "\n".join(
                self._events.lines(rank_set.world.rank, os.uname().nodename, self._begin_time, aligned.time)
            ).encode()
            uncertainty = max(clock.uncertainty for clock in aligned)
            reports = communicator.allgather_json([len(arrivals), len(text), self._events.dropped, uncertainty])
            error = None
            if rank_set.rank != 0:
                communicator.send(np.frombuffer(arrivals, dtype=np.uint8), 0)
                communicator.send(np.frombuffer(text, dtype=np.uint8), 0)
            else:
                error = self._write(arrivals, text, reports)
            agree(rank_set, "the file of a trace", error)

    def _write(self, own_arrivals: bytes, own_text: bytes, reports: list[list[int]]) -> Exception | None:
        """Write the file from the texts of all ranks, one after the other, and return the error, or None.

        Parameters
        ----------
        own_arrivals, own_text: arrivals and events of rank 0, as JSON
        reports: for each rank, the bytes of its arrivals and its text, its dropped events, its uncertainty in ns
        """
        communicator, remaining_ranks = self._rank_set.everyone.communicator(), iter(range(1, len(reports)))
        arrivals, totals = Arrivals(), Totals()

        def receive(rank: int, size: int) -> bytes:
            buffer = np.empty(size, dtype=np.uint8)
            communicator.receive(as_bytes(buffer), rank)
            return buffer.tobytes()

        def lines() -> Iterator[str]:
            yield from _explained_lines(own_text, arrivals, uncertainty, totals)
            for rank in remaining_ranks:
                yield from _explained_lines(receive(rank, reports[rank][1]), arrivals, uncertainty, totals)

        for rank, report in enumerate(reports):
            arrivals_of_rank = json.loads(receive(rank, report[0]) if rank else own_arrivals)
            arrivals.add(rank, ((Arrival(*arrival), time) for arrival, time in arrivals_of_rank))
        dropped = {str(rank): report[2] for rank, report in enumerate(reports) if report[2]}
        uncertainty = max(report[3] for report in reports)
        error = None
        try:
            metadata = {"dropped events by rank": dropped, "clocks agree to microseconds": uncertainty / 1000}
            with replacing(self.path) as file:
                file.writelines(document(lines(), metadata, totals))
        except Exception as problem:
            error = problem
            for rank in remaining_ranks:  # which still send
                receive(rank, reports[rank][1])
        return error


def _explained_lines(text: bytes, arrivals: Arrivals, uncertainty: int, totals: Totals) -> Iterator[str]:
    """Yield the lines of a rank, with spans of waiting added. Add all of them to *totals*."""
    for line in text.decode().split("\n"):
        event = json.loads(line)
        if is_explained(line):
            for explained_event in waiting_spans(event, arrivals, uncertainty):
                totals.add(explained_event)
                yield json.dumps(explained_event)
        else:
            totals.add(event)
            yield line


def trace(
    path: str | os.PathLike[str], comm: "MPI.Intracomm | None" = None, *, limit: int = DEFAULT_MAX_EVENTS
) -> Trace:
    """Trace all ranks within a ``with`` statement, into one file for Perfetto. Collective over *comm*.

    The file is JSON in the trace event format of Chrome: open it in ui.perfetto.dev. It has a process for each rank.
    In a process there are spans of the collective calls, with their arguments and the bytes that they received. Within
    these are spans of their exchanges, and within these the time in MPI, or, in shared memory, the time in which the
    rank waited and copied. The clocks of the hosts are compared before and after, and all times converted to one
    clock. While the program runs, nothing is written or sent.

    When the statement ends, rank 0 collects and writes the trace. If an exception leaves the statement on some ranks,
    they first write their own trace to ``PATH.rank-N.json``; then all ranks write the trace, and the exception goes
    on. If other ranks are in another call by then, the job ends, names both calls, with the traceback, and all ranks
    that can write such files.

    Parameters
    ----------
    path: the file; the argument of rank 0 counts
    comm: a communicator of mpi4py, by default COMM_WORLD
    limit: the most spans that each rank keeps; older ones are dropped, and the trace has their number

    ``OSError`` on all ranks if rank 0 cannot write the file, before anything runs if the folder is not there.

    >>> import json, tempfile, numpy as np, meshcomm as mc
    >>> path = tempfile.mkdtemp() + "/t.json"
    >>> def program():
    ...     mesh = mc.create_mesh([("x", 2)])
    ...     t = mc.distribute(np.arange(6).reshape(3, 2), mc.Layout(["x", mc.UNSHARDED], mesh))
    ...     with mc.trace(path), mc.span("solve"):
    ...         mc.relayout(t, mc.Layout([mc.UNSHARDED, "x"], mesh), "step 1")
    >>> with mc.simulate(2) as world:
    ...     _ = world.run(program)
    >>> with open(path) as file:
    ...     events = json.load(file)["traceEvents"]
    >>> [event["name"] for event in events if event["ph"] == "X" and event["pid"] == 1]
    ['solve', "relayout named 'step 1'", 'exchange: Packed']
    """
    return Trace(path, comm, limit)


@contextmanager
def span(name: str) -> Iterator[None]:
    """Record the time within the ``with`` statement as a span *name* in active traces. Without one, do nothing.

    >>> import meshcomm as mc
    >>> with mc.span("solve"):
    ...     pass
    """
    began = monotonic_ns()
    try:
        yield
    finally:
        if watch.recorder is not None:
            watch.recorder.record_interval("user", name, began)


def _clock_and_time(rank_set: RankSet) -> tuple[Clock, int]:
    """Return how this rank's clock differs from the first rank's, and the time on the first rank's. Collective."""
    communicator = rank_set.everyone.communicator()
    clock = compare_clocks(communicator)
    return clock, communicator.allgather_json(monotonic_ns())[0]
