"""The spans of a rank in a buffer of limited length, and their text in the trace event format of Chrome.

Perfetto (ui.perfetto.dev) and chrome://tracing show such files: a process for each rank, in it a track for each
thread, and on that spans within spans. Source: the Trace Event Format, "complete events" and "metadata events".
"""

import json
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache
from typing import NamedTuple, TypeAlias

from meshcomm.core._arguments import as_integer, quote
from meshcomm.core._types import Json, JsonObject
from meshcomm.core.failures.messages import spans as rank_ranges
from meshcomm.core.failures.recorder import NOBODY, Arrival, NeededArrivals, Traffic, Waits
from meshcomm.core.ranks.recording import Listener, Span
from meshcomm.errors import MeshError
from meshcomm.tools.measuring.totals import Totals, TraceEvent, process_memory

DEFAULT_MAX_EVENTS = 100_000
"""Spans that a rank keeps by default. A warm relayout on one node makes 5: a call, an exchange, two waits, a copy."""

ARRIVES, NEEDS = "arrives", "needs"
"""Names of arguments of a span with the contents of `Waits`; comparing the ranks removes them."""

Interval: TypeAlias = tuple[int, int]
ToCommonClock: TypeAlias = Callable[[int], int]
"""A function from nanoseconds on the clock of this rank to nanoseconds on that of the first rank."""


_rank_ranges = lru_cache(1024)(rank_ranges)


class _Event(NamedTuple):
    kind: str
    name: str
    interval: Interval
    thread: int
    call_text: str = ""
    traffic: Traffic | None = None
    waits: Waits = NOBODY


class Events(Listener):
    """The last *limit* spans of a rank. ``MeshError`` unless that is a positive integer."""

    wants_details = True

    def __init__(self, limit: int) -> None:
        limit = as_integer(limit, "the number of events that a trace keeps")
        if limit < 1:
            raise MeshError(f"a trace keeps at least one event, not {quote(limit)}")
        self._events: deque[_Event] = deque(maxlen=limit)
        self._event_count = 0
        self._threads: dict[int, tuple[int, str]] = {}
        self._initial_numbers: dict[str, int] = {}

    @property
    def dropped(self) -> int:
        """The number of dropped spans, the oldest ones."""
        return self._event_count - len(self._events)

    @property
    def is_empty(self) -> bool:
        """Whether no span was recorded."""
        return not self._event_count

    def on_call_end(self, span: Span) -> None:
        self._add(
            _Event(
                "call", span.operation, (span.began, span.ended), threading.get_ident(), span.call_text, span.traffic
            )
        )

    def on_exchange(self, operation: str, transport: str, interval: Interval, traffic: Traffic) -> None:
        self._add(_Event("exchange", f"exchange: {transport}", interval, threading.get_ident(), "", traffic))

    def on_interval(self, kind: str, activity: str, interval: Interval, waits: Waits) -> None:
        self._add(_Event(kind, activity, interval, threading.get_ident(), waits=waits))

    def on_start(self, sequence_numbers: dict[str, int]) -> None:
        self._initial_numbers = sequence_numbers

    def _add(self, event: _Event) -> None:
        if event.thread not in self._threads:
            self._threads[event.thread] = len(self._threads), threading.current_thread().name
        self._event_count += 1
        self._events.append(event)

    def lines(self, rank: int, host: str, begin: int, to_common_clock: ToCommonClock) -> Iterator[str]:
        """Yield the events of *rank* as JSON, in the order in which they began.

        Parameters
        ----------
        rank, host: number and host of this rank
        begin: the time that is 0 in the trace, in nanoseconds on the common clock
        to_common_clock: function from times of this rank to the common clock
        """
        yield from map(json.dumps, self._metadata(rank, host))
        timed_events = [
            (to_common_clock(event.interval[0]), to_common_clock(event.interval[1]), event)
            for event in list(self._events)
        ]
        for began, ended, event in sorted(timed_events, key=lambda entry: (entry[0], -entry[1])):
            args: JsonObject = {}
            if event.call_text:
                args["call"] = event.call_text
            if event.traffic is not None:
                args |= {f"{name} received": number for name, number in event.traffic._asdict().items()}
            args |= self._wait_arguments(event.waits)
            yield json.dumps(
                {
                    "name": event.name,
                    "cat": event.kind,
                    "ph": "X",
                    "ts": (began - begin) / 1000,
                    "dur": (ended - began) / 1000,
                    "pid": rank,
                    "tid": self._threads[event.thread][0],
                    "args": args,
                }
            )

    def _wait_arguments(self, waits: Waits) -> JsonObject:
        """Return the arguments of a span from which a comparison of the ranks finds for whom this rank waited."""
        args: JsonObject = {}
        if waits.arrivals:
            args[ARRIVES] = [[arrival.stream, self._number(arrival), arrival.position] for arrival in waits.arrivals]
        if waits.needed:
            args[NEEDS] = [[need.stream, self._number(need), _rank_ranges(need.positions)] for need in waits.needed]
        return args

    def _number(self, operation: Arrival | NeededArrivals) -> int:
        return operation.number - self._initial_numbers.get(operation.stream, 0)

    def arrivals(self, begin: int, to_common_clock: ToCommonClock) -> Iterator[tuple[Arrival, int]]:
        """Yield each arrival that others may wait for, with its time in nanoseconds after *begin*."""
        for event in list(self._events):
            for arrival in event.waits.arrivals:
                yield arrival._replace(number=self._number(arrival)), to_common_clock(event.interval[0]) - begin

    def _metadata(self, rank: int, host: str) -> Iterator[TraceEvent]:
        yield _metadata("process_name", rank, 0, {"name": f"rank {rank} on {host}"})
        yield _metadata("process_sort_index", rank, 0, {"sort_index": rank})
        labels: JsonObject = {"labels": f"{self.dropped} older events dropped"}
        yield _metadata("process_labels", rank, 0, {**labels, **process_memory()})
        for number, name in self._threads.values():
            yield _metadata("thread_name", rank, number, {"name": name})


def _metadata(name: str, rank: int, thread: int, args: Mapping[str, Json]) -> TraceEvent:
    return {"name": name, "ph": "M", "pid": rank, "tid": thread, "args": dict(args)}


def document(lines: Iterable[str], metadata: Mapping[str, object], totals: Totals | None = None) -> Iterator[str]:
    """Yield the text of a trace: the *lines* of its events, *metadata*, and the *totals* after the last event."""
    separator = '{"traceEvents": [\n'
    for line in lines:
        yield separator + line
        separator = ",\n"
    other_data = metadata if totals is None else {**metadata, "ranks": totals.by_rank()}
    yield f'\n], "displayTimeUnit": "ns", "otherData": {json.dumps(other_data)}}}\n'
