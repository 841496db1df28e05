"""Checks of traces: the format of Chrome's trace events, and nested spans."""

import json

PHASES = {"X": {"name", "cat", "ph", "ts", "dur", "pid", "tid", "args"}, "M": {"name", "ph", "pid", "tid", "args"}}
KINDS = {"call", "exchange", "mpi", "wait", "moving", "copy", "user"}
UNTIL_MERGED = {"arrives", "needs"}
ROUNDING = 1e-3  # microseconds: times are whole nanoseconds


def check_trace(path, ranks):
    """Check the trace at *path*, of *ranks* ranks, and return its events."""
    document = json.loads(path.read_text())
    assert set(document) == {"traceEvents", "displayTimeUnit", "otherData"}
    events = document["traceEvents"]
    for event in events:
        assert set(event) == PHASES[event["ph"]], event
        assert isinstance(event["name"], str)
        assert type(event["pid"]) is type(event["tid"]) is int
    names = [e["args"]["name"] for e in events if e["name"] == "process_name"]
    assert [name.split(" on ")[0] for name in names] == [f"rank {rank}" for rank in range(ranks)]
    assert all(name.split(" on ")[1] for name in names)
    for rank in range(ranks):
        thread_ids = {e["tid"] for e in events if e["name"] == "thread_name" and e["pid"] == rank}
        assert {e["tid"] for e in spans(events, rank)} <= thread_ids
        check_spans(spans(events, rank))
    return events


def spans(events, rank):
    """The spans of one rank, in the order of the file."""
    return [event for event in events if event["ph"] == "X" and event["pid"] == rank]


def check_spans(spans_of_rank):
    """Check that spans are in the order of their begins, and are nested or follow each other on each thread."""
    assert [e["ts"] for e in spans_of_rank] == sorted(e["ts"] for e in spans_of_rank)
    open_spans = {}
    for event in spans_of_rank:
        assert event["ts"] >= 0, event
        assert event["dur"] >= 0, event
        assert event["cat"] in KINDS, event
        assert not UNTIL_MERGED & set(event["args"]), event
        end, stack = event["ts"] + event["dur"], open_spans.setdefault(event["tid"], [])
        while stack and stack[-1] <= event["ts"] + ROUNDING / 2:
            stack.pop()
        assert not stack or end <= stack[-1] + ROUNDING, event
        stack.append(end)


def write_rank(folder, rank, rank_spans, *, size=3, host="a", clock=(0, 10**18), dropped=0, memory=None):
    """Write the trace of a rank with the spans *rank_spans*, as with ``MESHCOMM_TRACE``."""
    other_data = {"rank": rank, "size": size, "host": host, "dropped events": dropped, "clock": clock}
    metadata = {"process_name": {"name": f"rank {rank} on {host}"}, "thread_name": {"name": "MainThread"}}
    if memory:
        metadata["process_labels"] = memory
    meta = [{"name": name, "ph": "M", "pid": rank, "tid": 0, "args": args} for name, args in metadata.items()]
    document = {"traceEvents": [*meta, *rank_spans], "displayTimeUnit": "ns", "otherData": other_data}
    (folder / f"rank-{rank}.json").write_text(json.dumps(document))
