"""Traces of jobs: whole programs by ``MESHCOMM_TRACE``, merged by the command, and of ranks that fail."""

import json
import re

import pytest

from meshcomm.tools.measuring.totals import PEAK, SHARE, process_memory
from support.paths import PROGRAMS
from support.traces import UNTIL_MERGED, check_trace, spans

pytestmark = pytest.mark.any_mpi

PROGRAM = PROGRAMS / "traced.py"


@pytest.mark.parametrize("shared_memory", ["1G", "0"])
def test_a_whole_program_without_a_change(launch, tmp_path, shared_memory):
    folder, out = tmp_path / "traces", tmp_path / "out.json"
    done = launch(3, PROGRAM, "relayouts", MESHCOMM_TRACE=str(folder), MESHCOMM_SHARED_MEMORY=shared_memory)
    assert done.code == 0, done
    assert sorted(path.name for path in folder.iterdir()) == ["rank-0.json", "rank-1.json", "rank-2.json"]
    for rank, path in enumerate(sorted(folder.iterdir())):
        assert json.loads(path.read_text())["otherData"]["rank"] == rank
    merged = launch(None, "-m", "meshcomm", "trace", folder, out, MESHCOMM_TRACE=str(folder))  # still in the shell
    assert merged.code == 0, merged
    assert merged.text.startswith(f"{out} has the traces of 3 of 3 ranks on 1 host\n\nseconds  "), merged
    events = check_trace(out, 3)
    assert min(event["ts"] for event in events if event["ph"] == "X") == 0
    kind = "moving" if shared_memory == "0" else "copy"
    assert all(sum(e["cat"] == kind for e in spans(events, rank)) >= 3 for rank in range(3))
    assert any(e["name"].startswith("waiting for rank") for e in events)
    steps = [[e for e in spans(events, rank) if e["name"] == "step"] for rank in range(3)]
    assert [len(found) for found in steps] == [3, 3, 3]
    for number in range(3):
        begun, ended = zip(*((e[number]["ts"], e[number]["ts"] + e[number]["dur"]) for e in steps), strict=True)
        assert max(begun) < min(ended), "all ranks are in an exchange at some time"
    calls = [e for e in spans(events, 1) if e["name"].startswith("relayout named")]
    assert all("(64, 64) float64" in e["args"]["call"] for e in calls)
    assert [e["args"]["messages received"] for e in calls] == [2, 2, 2]
    assert {e["args"]["bytes received"] for e in calls} == {21 * 43 * 8}, "21 of 64 columns, without its own 21 rows"


def test_a_folder_that_cannot_be_written_to_is_reported_once_and_at_once(launch, tmp_path):
    file = tmp_path / "file"
    file.write_text("")
    done = launch(3, PROGRAM, "relayouts", MESHCOMM_TRACE=str(file))
    assert done.code == 0, done
    report = f"meshcomm: MESHCOMM_TRACE={file}: no trace can be written there: it is a file, or in one\n"
    assert done.text.count(report) == done.text.count("meshcomm:") == 1, done


def test_a_rank_that_raises_while_others_wait_ends_the_job(launch, tmp_path):
    """It does not hang, says why, and leaves what that rank did."""
    done = launch(3, PROGRAM, "fails", tmp_path / "t.json")
    assert done.code != 0, done
    assert 'raise KeyError("the reason")' in done.text, "the line of the program"
    assert done.text.count("Traceback (most recent call last)") == 1, done
    assert done.text.count("rank 1 of 3 has to raise KeyError: 'the reason'") == 1, done
    assert [path.name for path in sorted(tmp_path.iterdir())] == [f"t.json.rank-{rank}.json" for rank in range(3)]
    for path in tmp_path.iterdir():
        found = json.loads(path.read_text())["traceEvents"]
        assert sum(event["name"] == "step" for event in found) == 3
        assert all(not UNTIL_MERGED & set(event["args"]) for event in found)


def test_a_whole_program_that_fails_leaves_what_the_rank_did_that_ended_it(launch, tmp_path):
    done = launch(3, PROGRAM, "uncaught", MESHCOMM_TRACE=str(tmp_path))
    assert done.code == 1, done
    assert "the reason" in done.text, done
    document = json.loads((tmp_path / "rank-1.json").read_text())
    assert sum(event["name"] == "step" for event in document["traceEvents"]) == 3


@pytest.mark.skipif(SHARE not in process_memory(), reason="this kernel does not tell shares of memory")
def test_memory_that_ranks_share_counts_once(launch, tmp_path):
    """Two ranks gather a tensor of 64 MiB: its blocks are there once, and each rank has a copy."""
    done = launch(2, PROGRAM, "gathers", tmp_path / "t.json", MESHCOMM_SHARED_MEMORY="1G")
    assert done.code == 0, done
    growth = int(re.search(r"grown by (\d+)", done.text)[1])
    assert 3 * 2**26 < 1.05 * growth < 1.2 * 3 * 2**26, "each rank maps the block of the other, so RSS has 256 MiB"
    report = json.loads((tmp_path / "t.json").read_text())["otherData"]["ranks"]
    assert 3 * 2**26 < sum(its[SHARE] for its in report.values()) < sum(its[PEAK] for its in report.values())
    assert sum(its[PEAK] for its in report.values()) > 4 * 2**26
