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
LONGER_BYTES = 1031 * 517 * 8  # of the longest array in the cases


def assert_expected(done, ranks):
    assert done.returncode == 0, done
    assert done.stdout.count("as expected") == ranks, done


# -- ranks on two hosts -----------------------------------------------------------------------------------------------


def test_ranks_share_memory_on_their_host_alone(hosts):
    assert_expected(hosts.run(CASES, 2, ["shared_on", "host0", "host0", "host1", "host1"]), 4)


def test_hosts_with_different_numbers_of_ranks(hosts):
    assert_expected(hosts.run(CASES, (1, 2), ["shared_on", "host0", "host1", "host1"]), 3)


def test_hosts_take_ranks_in_turns(hosts):
    assert_expected(hosts.run(CASES, 2, ["shared_on", "host0", "host1", "host0", "host1"], in_turns=True), 4)


def test_a_topology_has_a_task_for_each_host(hosts):
    assert_expected(hosts.run(CASES, 2, ["topology"]), 4)


@pytest.mark.slow
def test_calibrate_measures_both(hosts):
    done = hosts.run(CASES, 2, ["calibrate"])
    assert_expected(done, 4)
    measured = re.findall(r"^(.*?) +fits", done.stdout, re.MULTILINE)
    assert measured == ["within a node", "between nodes", "in memory", "in files"], done


def test_info_finds_both_hosts_and_measures_the_network(hosts):
    done = hosts.run(CASES, (1, 2), ["info"])
    assert done.returncode == 0, done
    told = json.loads(done.stdout)
    assert [(host["name"], host["ranks"]) for host in told["hosts"]] == [("host0", 1), ("host1", 2)]
    assert told["machine"]["nodes"] == [0, 1, 1]
    assert len({its["host"] for its in told["ranks"]}) == 2
    (network,) = (check for check in told["checks"] if check["about"] == "network")
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


@pytest.mark.parametrize("in_turns", [False, True], ids=["one after the other", "in turns"])
def test_relayouts(hosts, in_turns):
    assert_expected(hosts.run(CASES, 2, ["relayouts"], in_turns=in_turns), 4)


def test_what_moves_between_hosts_goes_over_the_link(hosts):
    before = hosts.sent()
    assert_expected(hosts.run(CASES, 2, ["relayouts", "rows to columns"]), 4)
    least = LONGER_BYTES // 4  # half of the array is on each host, and half of that moves
    assert all(after - sent > least for after, sent in zip(hosts.sent(), before, strict=True))


def test_relayouts_between_hosts_with_different_numbers_of_ranks(hosts):
    assert_expected(hosts.run(CASES, (1, 2), ["relayouts", "rows to columns", "columns to rows", "gather"]), 3)


@pytest.mark.parametrize(("ranks", "in_turns"), [(2, False), ((1, 2), False), ((3, 1), False), (3, False), (3, True)])
def test_through_aggregators(hosts, ranks, in_turns):
    count = 2 * ranks if isinstance(ranks, int) else sum(ranks)
    assert_expected(hosts.run(CASES, ranks, ["through_aggregators", 40], in_turns=in_turns, cpu=60.0), count)


def test_without_memory_nobody_goes_through_aggregators(hosts):
    assert_expected(hosts.run(CASES, 2, ["no_memory_for_aggregators"]), 4)


def test_aggregators_of_a_host_that_shares_no_memory(hosts):
    assert_expected(hosts.run(CASES, 3, ["through_aggregators", 40, "host1"], cpu=60.0), 6)


def test_a_gather_through_aggregators_crosses_once(hosts):
    crossed = []
    for env in ({}, {"THROUGH": "1"}):
        before = hosts.sent()
        assert_expected(hosts.run(CASES, 3, ["gather_of", 96], env=env), 6)
        crossed.append(sum(hosts.sent()) - sum(before))
    gathered = 10 * 2 * 48 * 128 * 8  # bytes of ten gathers: each host gets the half of the other one
    assert crossed[1] < 1.5 * gathered < crossed[0]


def test_what_all_see_wrong_all_raise(hosts):
    assert_expected(hosts.run(CASES, 2, ["all_raise"]), 4)


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
