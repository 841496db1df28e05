"""Sums over the spans of each rank, in the file of a trace and as a table; and the memory of each rank."""

import json
import resource
from collections import Counter

import pytest

import meshcomm as mc
from meshcomm.tools.measuring import program
from meshcomm.tools.measuring.totals import MAX_ROWS, PEAK, SHARE, Totals, process_memory
from support.reference import simulated
from support.traces import write_rank


def span(kind, began, ended, rank=0, thread=0):
    """A span, in milliseconds."""
    times = {"ts": began * 1000.0, "dur": (ended - began) * 1000.0}
    return {"name": kind, "cat": kind, "ph": "X", "pid": rank, "tid": thread, "args": {}, **times}


def milliseconds(*events):
    """The sums of rank 0: in calls, waiting, copying, moving."""
    totals = Totals()
    for event in events:
        totals.add(event)
    return tuple(round(1000 * seconds) for seconds in totals.by_rank()["0"].values())


def test_calls_and_waits_in_each_other_count_once():
    call, inner, after = span("call", 0, 10), span("call", 2, 8), span("call", 10, 11)
    wait, late, copy = span("wait", 3, 6), span("wait", 3, 5), span("copy", 6, 7)
    assert milliseconds(call, inner, wait, late, copy, after) == (11, 3, 1, 0)


def test_what_is_no_waiting_in_mpi_moves():
    events = [span("call", 0, 20), span("mpi", 1, 9), span("wait", 1, 4), span("moving", 4, 9), span("mpi", 10, 12)]
    assert milliseconds(*events) == (20, 3, 0, 7)


def test_threads_count_by_themselves_and_other_kinds_not():
    assert milliseconds(span("call", 0, 5), span("call", 1, 6, thread=1), span("user", 0, 9)) == (10, 0, 0, 0)


def test_a_merged_trace_has_the_sums(tmp_path):
    for rank in range(3):
        calls = [span("call", 0, 10 + rank, rank), span("wait", 1, 2 + rank, rank)]
        write_rank(tmp_path, rank, calls, memory={PEAK: 2**20 * (rank + 2), SHARE: 2**19 * (rank + 1)})
    _, _, *table = program.merge(tmp_path, tmp_path / "out.json").splitlines()
    totals = json.loads((tmp_path / "out.json").read_text())["otherData"]["ranks"]
    assert [totals[str(rank)]["seconds in calls"] for rank in range(3)] == [0.010, 0.011, 0.012]
    assert [totals[str(rank)]["seconds waiting"] for rank in range(3)] == [0.001, 0.002, 0.003]
    assert totals["2"][PEAK] == 4 * 2**20
    assert table == [
        "seconds    in calls   waiting   copying  moving over MPI  peak MiB  share MiB",
        "rank 0     0.010000  0.001000  0.000000         0.000000       2.0        0.5",
        "rank 1     0.011000  0.002000  0.000000         0.000000       3.0        1.0",
        "rank 2     0.012000  0.003000  0.000000         0.000000       4.0        1.5",
        "all ranks                                                                 3.0",
    ]


def test_a_table_of_many_ranks_has_those_that_others_wait_for():
    totals = Totals()
    for rank in range(MAX_ROWS + 3):
        totals.add(span("wait", 0, 1000 - rank, rank))
    _, *rows, left = totals.table().splitlines()
    assert [row.split()[1] for row in rows] == [str(rank) for rank in range(3, MAX_ROWS + 3)]
    assert left == "3 more ranks, which waited longer, are in the file"


def test_a_trace_has_the_sums_and_the_memory(tmp_path):
    def on_rank(rank):
        mesh = mc.create_mesh([("x", 2)])
        t = mc.ones((6, 4), "f8", mc.Layout(["x", mc.UNSHARDED], mesh))
        with mc.trace(tmp_path / "t.json"):
            mc.relayout(t, mc.Layout([mc.UNSHARDED, "x"], mesh))

    simulated(2, on_rank)
    document = json.loads((tmp_path / "t.json").read_text())
    totals = document["otherData"]["ranks"]
    assert set(totals) == {"0", "1"}
    for rank, its in totals.items():
        calls = [e for e in document["traceEvents"] if e.get("cat") == "call" and e["pid"] == int(rank)]
        assert its["seconds in calls"] == pytest.approx(sum(e["dur"] for e in calls) / 1e6)
        assert process_memory().keys() <= its.keys()


def test_memory_of_this_process():
    found = process_memory()
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    assert 0.9 * most < found[PEAK] < 1.1 * most
    assert 0 < found.get(SHARE, 1) <= found[PEAK]


def test_ten_thousand_ranks(tmp_path, monkeypatch):
    """One span each: files are read one by one, and each twice."""
    ranks, reads, load = 10_000, Counter(), program._load
    monkeypatch.setattr(program, "_load", lambda path: reads.update([path]) or load(path))
    for rank in range(ranks):
        write_rank(tmp_path, rank, [span("call", rank, rank + 1, rank)], size=ranks)
    out = tmp_path / "out.json"
    text = program.merge(tmp_path, out)
    assert text.startswith(f"{out} has the traces of 10000 of 10000 ranks on 1 host\n")
    document = json.loads(out.read_text())
    assert len(reads) == ranks
    assert set(reads.values()) == {2}
    begins = [event["ts"] for event in document["traceEvents"] if event["ph"] == "X"]
    assert begins == [1000.0 * rank for rank in range(ranks)]
    assert len(document["otherData"]["ranks"]) == ranks
