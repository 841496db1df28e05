"""Ranks on two hosts with a network between them; skipped, with the reason, where they cannot be made.

The programs are in programs/hosts.py, what makes the hosts is in support/two_hosts.py.
"""

import json
import re

import pytest

from support.paths import PROGRAMS
from support.patience import until
from support.traces import check_trace, spans

CASES = PROGRAMS / "hosts.py"
SOON = 5.0  # seconds from the failure of a rank to the end of the job, on an idle machine


def assert_expected(done, ranks):
    assert done.returncode == 0, done
    assert done.stdout.count("as expected") == ranks, done


# -- ranks on two hosts -----------------------------------------------------------------------------------------------


SOME = ("relayouts", "rows to columns", "columns to rows", "gather")


@pytest.mark.parametrize(
    ("ranks", "case", "in_turns"),
    [
        (2, ("shared_on", "host0", "host0", "host1", "host1"), False),  # memory is shared on a host alone
        ((1, 2), ("shared_on", "host0", "host1", "host1"), False),
        (2, ("shared_on", "host0", "host1", "host0", "host1"), True),
        (2, ("topology",), False),  # it has a task for each host
        (2, ("relayouts",), False),
        (2, ("relayouts",), True),
        ((1, 2), SOME, False),
        *((ranks, ("through_aggregators", 40), False) for ranks in (2, (1, 2), (3, 1), 3)),
        (3, ("through_aggregators", 40), True),
        (3, ("through_aggregators", 40, "host1"), False),  # which shares no memory
        (2, ("no_memory_for_aggregators",), False),
        (2, ("all_raise",), False),
    ],
)
def test_ranks_do_as_expected(hosts, ranks, case, in_turns):
    count = 2 * ranks if isinstance(ranks, int) else sum(ranks)
    assert_expected(hosts.run(CASES, ranks, case, in_turns=in_turns, cpu=60.0), count)


@pytest.mark.parametrize(("ranks", "shared"), [(2, True), (1, False), ((1, 2), False)])
def test_rounds_are_in_flight_together(hosts, ranks, shared, tmp_path):
    count = 2 * ranks if isinstance(ranks, int) else sum(ranks)
    env = {} if shared else {"MESHCOMM_SHARED_MEMORY": "0"}
    assert_expected(hosts.run(CASES, ranks, ["rounds", tmp_path], env, cpu=60.0), count)


def test_mpi_ends_while_messages_are_in_flight(hosts):
    done = hosts.run(CASES, 1, ["finalize_in_flight"], cpu=60.0)
    assert done.returncode == 1, done
    assert "start_relayout" in done.stderr, done
    assert "never waited for" in done.stderr, done


@pytest.mark.slow
def test_calibrate_measures_both(hosts):
    done = hosts.run(CASES, 2, ["calibrate"])
    assert_expected(done, 4)
    measured = re.findall(r"^(.*?) +fits", done.stdout, re.MULTILINE)
    assert measured == ["within a node", "between nodes", "in memory", "in files"], done


def test_info_finds_both_hosts_and_measures_the_network(hosts):
    done = hosts.run(CASES, (1, 2), ["info"])
    assert done.returncode == 0, done
    report = json.loads(done.stdout)
    assert [(host["name"], host["ranks"]) for host in report["hosts"]] == [("host0", 1), ("host1", 2)]
    assert report["machine"]["nodes"] == [0, 1, 1]
    assert len({its["host"] for its in report["ranks"]}) == 2
    (network,) = (check for check in report["checks"] if check["about"] == "network")
    measured = re.match(
        r"between hosts (\S+) µs and (\S+) GB/s, within a host (\S+) µs and (\S+) GB/s", network["text"]
    )
    assert measured, network
    assert all(float(number) > 0 for number in measured.groups())
    assert network["ranks"] == [0, 1], "the first rank of each host"


def test_clocks_of_hosts_in_a_trace(hosts, tmp_path):
    env = {"CLOCK_AHEAD": "host1", "MESHCOMM_SHARED_MEMORY": "0"}  # which reads the clock by itself
    assert_expected(hosts.run(CASES, 2, ["trace", tmp_path / "t.json"], env=env), 4)
    events = check_trace(tmp_path / "t.json", 4)
    about = json.loads((tmp_path / "t.json").read_text())["otherData"]
    assert about["clocks agree to microseconds"] > 0, "the clock of the second host was asked for"
    assert set(about["ranks"]) == {"0", "1", "2", "3"}
    for number in range(3):
        steps = [[e for e in spans(events, rank) if e["name"] == "step"][number] for rank in range(4)]
        assert max(e["ts"] for e in steps) < min(e["ts"] + e["dur"] for e in steps), "all ranks are in an exchange"


def test_a_gather_through_aggregators_crosses_once(hosts):
    crossed = []
    for env in ({}, {"THROUGH": "1"}):
        before = hosts.sent()
        assert_expected(hosts.run(CASES, 2, ["gather_of", 96], env=env), 4)
        crossed.append(sum(hosts.sent()) - sum(before))
    gathered = 10 * 2 * 48 * 128 * 8  # bytes of ten gathers: each host gets the half of the other one
    assert crossed[1] < 1.5 * gathered < crossed[0]


@pytest.mark.parametrize(
    ("case", "texts"),
    [
        ("last_raises", ["KeyError: 'culprit'", "meshcomm: rank 3 of 4 ends the job"]),
        ("last_aborts", []),
        ("last_is_killed", []),
    ],
)
def test_a_rank_on_the_other_host_ends_the_job(hosts, case, texts):
    ended = hosts.run(CASES, 2, [case])
    seconds = ended.ended - float(re.search(r"stamp (\S+)", ended.stdout)[1])
    assert ended.returncode != 0, ended
    assert seconds < SOON * ended.slowness, ended
    assert all(text in ended.stderr for text in texts), ended
    assert until(lambda: not hosts.processes(), SOON)
