"""Traces of simulated ranks: the format, the clocks, and what is kept."""

import errno
import json
import os
import re
import time
from pathlib import Path

import pytest

import meshcomm as mc
from meshcomm import CollectiveMismatch, Layout, MeshcommError, MeshError
from meshcomm.core._files import check_can_create, replacing
from meshcomm.core.failures.watch import watch
from meshcomm.core.ranks import hosts, simulate
from meshcomm.core.ranks.recording import Span
from meshcomm.tools.measuring import clocks, program, trace
from meshcomm.tools.measuring.clocks import AlignedClock, Clock, compare_clocks
from meshcomm.tools.measuring.program import merge
from meshcomm.tools.measuring.totals import PEAK
from support.reference import numbered, on_ranks, simulated
from support.traces import check_trace, spans, write_rank

U = "unsharded"


def relayouts(size):
    mesh = mc.create_mesh([("x", size)])
    t = mc.distribute(numbered((12, 12), "f8"), Layout(["x", U], mesh))
    return lambda name=None: mc.relayout(t, Layout([U, "x"], mesh), name)


# -- the file ---------------------------------------------------------------------------------------------------------


def test_spans_of_all_ranks(tmp_path):
    def program(rank):
        move = relayouts(3)
        with mc.trace(tmp_path / "t.json"):
            with mc.span("first"):
                move("one")
                time.sleep(0.002 * rank)
            move()

    simulated(3, program)
    events = check_trace(tmp_path / "t.json", 3)
    for rank in range(3):
        found = spans(events, rank)
        names = [e["name"] for e in found if e["cat"] in ("call", "user")]
        assert names == ["first", "relayout named 'one'", "relayout"]
        assert found[0]["dur"] > 2000 * rank
        calls = [e for e in found if e["cat"] == "call"]
        for call in calls:
            assert call["args"]["bytes received"] == 4 * 8 * 8
            assert call["args"]["messages received"] == 2
            assert call["args"]["call"].startswith("relayout of (12, 12) float64 from ")


def test_quotes_and_other_letters_in_names(tmp_path):
    name = 'a "quoted"\nname, é'

    def program(rank):
        with mc.trace(tmp_path / "t.json"), mc.span(name):
            pass

    simulated(1, program)
    (event,) = spans(check_trace(tmp_path / "t.json", 1), 0)
    assert event["name"] == name


def test_nothing_is_written_until_the_end_nor_left_behind(tmp_path):
    def program(rank):
        move = relayouts(2)
        with mc.trace(tmp_path / "t.json"):
            move()
            assert list(tmp_path.iterdir()) == []

    simulated(2, program)
    assert [path.name for path in tmp_path.iterdir()] == ["t.json"]
    assert watch.recorder is None, "nobody listens any more"


def test_traces_and_counts_in_each_other(tmp_path):
    def program(rank):
        move = relayouts(2)
        with mc.trace(tmp_path / "outer.json"), mc.count() as c:
            move()
            with mc.trace(tmp_path / "inner.json"):
                move()
        return c.operations["relayout"].calls

    assert simulated(2, program) == [2, 2]
    for name, relaid in (("outer", 2), ("inner", 1)):
        events = check_trace(tmp_path / f"{name}.json", 2)
        assert [e["name"] for e in spans(events, 1)].count("relayout") == relaid


# -- what goes wrong --------------------------------------------------------------------------------------------------


def test_an_error_of_all_ranks_goes_on_after_the_trace(tmp_path):
    def program(rank):
        move = relayouts(2)
        with mc.trace(tmp_path / "t.json"):
            move()
            raise KeyError("ours")

    with pytest.raises(KeyError, match="ours"):
        simulated(2, program)
    check_trace(tmp_path / "t.json", 2)
    assert [path.name for path in tmp_path.iterdir()] == ["t.json"]


def test_an_error_of_one_rank_that_others_wait_for(tmp_path):
    """Its error is the one that is raised, and what it did is kept."""

    def program(rank):
        move = relayouts(2)
        with mc.trace(tmp_path / "t.json"):
            move()
            if rank == 1:
                raise KeyError("ours")
            move()

    with pytest.raises(KeyError, match="ours") as caught:
        simulated(2, program)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["t.json.rank-0.json", "t.json.rank-1.json"]
    assert str(tmp_path / "t.json.rank-1.json") in "".join(caught.value.__notes__)
    assert watch.error is None


def test_a_mesh_that_is_made_again_after_a_mismatch(tmp_path):
    def program(rank):
        with mc.trace(tmp_path / "trace.json"):
            mesh = mc.create_mesh([("x", 2)])
            with pytest.raises(mc.CollectiveMismatch):
                mc.barrier(mesh, f"of rank {rank}")
            mesh.close()
            mc.barrier(mc.create_mesh([("x", 2)]), "again")

    simulated(2, program)
    assert "barrier 'again'" in (tmp_path / "trace.json").read_text()


def test_an_exit_of_one_rank_is_not_held_up(tmp_path):
    def program(rank):
        with mc.trace(tmp_path / "t.json"):
            if rank == 1:
                raise SystemExit(3)

    with pytest.raises((SystemExit, CollectiveMismatch)):
        simulated(2, program)
    assert (tmp_path / "t.json.rank-1.json").exists()


def test_a_trace_without_a_with_statement_is_reported_at_the_end(tmp_path, capsys):
    trace._not_entered.clear()

    def program(rank):
        mc.trace(tmp_path / "none.json")
        with mc.trace(tmp_path / "t.json"):
            pass

    simulated(2, program)
    trace._tell_not_entered()
    trace._not_entered.clear()
    (line,) = capsys.readouterr().err.splitlines()
    assert (
        line == f"meshcomm: nothing was traced to {tmp_path}/none.json: write with mc.trace(...): around what to trace"
    )


def test_errors_name_the_file_that_the_user_gave(tmp_path):
    path = tmp_path / "t.json"
    with pytest.raises(FileNotFoundError) as caught:
        check_can_create(tmp_path / "nowhere" / "t.json")
    assert str(caught.value).endswith(f"'{tmp_path}/nowhere/t.json'")
    with pytest.raises(OSError, match="No space left") as caught, replacing(path):
        raise OSError(errno.ENOSPC, "No space left on device")  # as a write does, which knows no name
    assert str(caught.value).endswith(f": '{path}'")
    path.mkdir()
    with pytest.raises(IsADirectoryError) as caught, replacing(path) as file:
        file.write("{}")
    assert str(caught.value).endswith(f": '{path}'")


def test_files_are_made_anew_for_this_user_only(tmp_path):
    path, notes = tmp_path / "t.json", tmp_path / "notes"
    notes.write_text("mine")
    path.symlink_to(notes)
    with replacing(path) as file:
        (unfinished,) = (each for each in tmp_path.iterdir() if each not in (path, notes))
        assert re.fullmatch(r"\.t\.json\.[0-9a-f]{16}\.unfinished", unfinished.name)
        file.write("{}")
    assert (notes.read_text(), path.read_text(), path.is_symlink()) == ("mine", "{}", False)
    assert path.stat().st_mode & 0o7777 == 0o600
    path.chmod(0o4664)
    with replacing(path) as file:
        file.write("[]")
    assert (path.read_text(), path.stat().st_mode & 0o7777) == ("[]", 0o664)
    with pytest.raises(OSError, match="device"), replacing(Path("/dev/null")):
        pytest.fail("it began")


@pytest.mark.skipif(os.getuid() != 0, reason="only root can make files of another user")
def test_no_trace_is_written_through_a_folder_that_a_stranger_has_linked(tmp_path, monkeypatch, capfd):
    own, shared = tmp_path / "own", tmp_path / "shared"
    for folder in (own, shared):
        folder.mkdir()
    (own / "rank-0.json").write_text("mine")
    shared.chmod(0o1777)
    (shared / "traces").symlink_to(own)
    os.lchown(shared / "traces", 47110, 47110)
    monkeypatch.setenv("MESHCOMM_TRACE", str(shared / "traces"))
    traced = program._ProgramTrace(shared / "traces")
    traced.on_call_end(Span("barrier", [], ()))
    traced.write()
    assert "a link that belongs to user 47110" in capfd.readouterr().err
    assert [(path.name, path.read_text()) for path in own.iterdir()] == [("rank-0.json", "mine")]


@on_ranks(2)
def test_files_that_cannot_be_and_limits_that_are_none(tmp_path):
    with pytest.raises(OSError, match="nowhere"), mc.trace(tmp_path / "nowhere" / "t.json"):
        pytest.fail("it began")
    for limit in (0, -1, 1.5, "many", True):
        with pytest.raises(MeshError), mc.trace(tmp_path / "t.json", limit=limit):
            pytest.fail("it began")


def test_the_newest_events_are_kept(tmp_path):
    def program(rank):
        with mc.trace(tmp_path / "t.json", limit=5):
            for number in range(20 + rank):
                with mc.span(str(number)):
                    pass

    simulated(2, program)
    events = check_trace(tmp_path / "t.json", 2)
    for rank in range(2):
        assert [e["name"] for e in spans(events, rank)] == [str(15 + rank + i) for i in range(5)]
    document = json.loads((tmp_path / "t.json").read_text())
    assert document["otherData"]["dropped events by rank"] == {"0": 15, "1": 16}
    labels = [e["args"]["labels"] for e in events if e["name"] == "process_labels"]
    assert labels == ["15 older events dropped", "16 older events dropped"]


# -- clocks -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def shifts(request, monkeypatch):
    """Nanoseconds by which the clock of each rank differs from ours. Ranks with one clock are on one host."""

    def shift():
        return request.param[simulate.current_rank().rank]

    for module in (clocks, hosts):
        monkeypatch.setattr(module, "this_host", lambda: f"host {shift()}")
    for module in (clocks, trace):
        monkeypatch.setattr(module, "monotonic_ns", lambda: time.monotonic_ns() + shift())
    return request.param


@pytest.mark.parametrize("shifts", [[0, 0, 5_000_000_000, -7_000_000_000, 5_000_000_000]], indirect=True)
def test_clocks_of_hosts_are_found(shifts):
    """Three hosts, of which two have other clocks; the answers take so long as the clocks may be wrong."""

    def program(rank):
        world = simulate.current_rank()
        return compare_clocks(world.rank_set(range(5)).everyone.communicator())

    found = simulated(5, program)
    for shift, clock in zip(shifts, found, strict=True):
        assert abs(clock.offset - shift) <= clock.uncertainty
    assert found[0] == found[1] == Clock(), "ranks on one host have one clock, to the nanosecond"
    assert found[2] == found[4], "and are asked once"


def test_a_clock_that_goes_faster():
    """Its times are moved back by what it gained since the first comparison."""
    aligned = AlignedClock(Clock(1_000_000, 500), Clock(2_001_000, 1500))
    times = [aligned.time(its) for its in (1_000_000, 1_500_500, 2_001_000)]
    assert times == [999_500, 1_499_500, 1_999_500]
    assert AlignedClock(Clock(), Clock()).time(12345) == 12345


@pytest.mark.parametrize("shifts", [[0, 3600 * 10**9]], indirect=True)
def test_a_trace_over_hosts_puts_one_exchange_at_one_time(tmp_path, shifts):
    hour = shifts[1]

    def program(rank):
        move = relayouts(2)
        with mc.trace(tmp_path / "t.json"), mc.span("all"):
            move()

    simulated(2, program)
    document = json.loads((tmp_path / "t.json").read_text())
    first, second = (next(e for e in spans(document["traceEvents"], r) if e["name"] == "all") for r in (0, 1))
    assert document["otherData"]["clocks agree to microseconds"] > 0
    assert abs(first["ts"] - second["ts"]) < hour / 1000 / 100, "not an hour apart"


# -- traces of whole programs -----------------------------------------------------------------------------------------


def of_rank(folder, rank, host, clock, begins):
    """Write the trace of a rank that has one span."""
    span = {"name": "s", "cat": "user", "ph": "X", "ts": begins, "dur": 1.0, "pid": rank, "tid": 0, "args": {}}
    write_rank(folder, rank, [span], host=host, clock=clock, dropped=rank)


def test_hosts_are_compared_by_the_time_of_day(tmp_path):
    day = 1_700_000_000 * 10**9
    of_rank(tmp_path, 0, "a", [1_000_000, day], 500.0)
    of_rank(tmp_path, 1, "a", [1_000_000, day + 10**9], 600.0)  # one clock for a host: that of its first rank
    of_rank(tmp_path, 2, "b", [9_000_000_000, day], 8_999_700.0)
    text, *_ = merge(tmp_path, tmp_path / "out").splitlines()
    assert text == f"{tmp_path / 'out'} has the traces of 3 of 3 ranks on 2 hosts; 3 older events were dropped"
    events = check_trace(tmp_path / "out", 3)
    assert [spans(events, rank)[0]["ts"] for rank in range(3)] == [0, 100, 200]


def test_files_that_are_no_traces(tmp_path):
    with pytest.raises(MeshcommError, match="no traces in"):
        merge(tmp_path, tmp_path / "out")
    wrong = [
        *("", "[]", "{}", "[" * 100_000, '{"otherData": 3}', '{"otherData": {"rank": "x"}}'),
        '{"traceEvents": [3], "otherData": {"rank": 0, "size": 1, "host": "a", "dropped events": 0, "clock": [1, 2]}}',
        '{"otherData": {"rank": 0, "size": 1, "host": "a", "dropped events": 0, "clock": [1, 2]}}',
    ]
    of_rank(tmp_path, 0, "a", [1, 2], 500.0)
    good = json.loads((tmp_path / "rank-0.json").read_text())
    arrives = [3, [["s", "first", 0]], [["s", 1, 0], ["s", 10**12, 0]]]
    needs = [[["s", 1]], [["s", 1, "all"]], [[[], 1, "0"]]]
    for args in [3, *({"arrives": each} for each in arrives), *({"needs": each} for each in needs)]:
        good["traceEvents"][2]["args"] = args
        wrong.append(json.dumps(good))
    good["traceEvents"][2]["args"] = {}
    for number, name, value in [(2, "dur", 10**400), (2, "pid", "x"), (0, "args", {PEAK: 10**400})]:
        text = json.loads(json.dumps(good))
        text["traceEvents"][number][name] = value
        wrong.append(json.dumps(text))
    for text in wrong:
        (tmp_path / "rank-0.json").write_text(text)
        with pytest.raises(MeshcommError, match="is no trace of a rank"):
            merge(tmp_path, tmp_path / "out")
        assert not (tmp_path / "out").exists()


# -- spans ------------------------------------------------------------------------------------------------------------


def test_a_span_without_a_trace_does_nothing():
    with mc.span("nothing"), mc.count() as c:
        pass
    assert c.operations == {}


def test_a_span_that_an_error_leaves(tmp_path):
    def program(rank):
        with mc.trace(tmp_path / "t.json"):
            with pytest.raises(ZeroDivisionError), mc.span("fails"):
                _ = 1 / 0
            with mc.span("goes on"):
                pass

    simulated(1, program)
    assert [e["name"] for e in spans(check_trace(tmp_path / "t.json", 1), 0)] == ["fails", "goes on"]
