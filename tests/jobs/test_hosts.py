"""Ranks on two hosts with a network between them; skipped, with the reason, where they cannot be made.

The programs are in hosts/cases.py, what makes the hosts is in hosts.py.
"""

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from conftest import mpiexec
from hosts import Unavailable, two_hosts

CASES = Path(__file__).parent / "hosts" / "cases.py"
LONGER_BYTES = 1031 * 517 * 8  # of the longest array in the cases
SOON = 5.0  # seconds from the failure of a rank to the end of the job


@contextlib.contextmanager
def made():
    """Make two hosts, or skip the test. A context."""
    with contextlib.ExitStack() as stack:
        try:
            hosts = stack.enter_context(two_hosts(mpiexec()))
        except Unavailable as reason:
            pytest.skip(str(reason))
        yield hosts


@pytest.fixture(scope="module")
def hosts():
    with made() as hosts:
        yield hosts


def assert_expected(done, ranks):
    assert done.returncode == 0, done
    assert done.stdout.count("as expected") == ranks, done


# -- ranks on two hosts -----------------------------------------------------------------------------------------------


def test_ranks_share_memory_on_their_host_alone(hosts):
    assert_expected(hosts.run(CASES, 2, ["places", "host0", "host0", "host1", "host1"]), 4)


def test_hosts_with_different_numbers_of_ranks(hosts):
    assert_expected(hosts.run(CASES, (1, 2), ["places", "host0", "host1", "host1"]), 3)


def test_hosts_take_ranks_in_turns(hosts):
    assert_expected(hosts.run(CASES, 2, ["places", "host0", "host1", "host0", "host1"], in_turns=True), 4)


def test_a_topology_has_a_task_for_each_host(hosts):
    assert_expected(hosts.run(CASES, 2, ["topology"]), 4)


def test_calibrate_measures_both(hosts):
    done = hosts.run(CASES, 2, ["calibrate"])
    assert_expected(done, 4)
    assert re.findall(r"^(.*?) +fits", done.stdout, re.MULTILINE) == ["within a node", "between nodes", "in memory"], (
        done
    )


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
def test_through_partners(hosts, ranks, in_turns):
    count = 2 * ranks if isinstance(ranks, int) else sum(ranks)
    assert_expected(hosts.run(CASES, ranks, ["through_partners", 40], in_turns=in_turns, timeout=60.0), count)


def test_without_room_nobody_goes_through_partners(hosts):
    assert_expected(hosts.run(CASES, 2, ["no_room_for_partners"]), 4)


def test_partners_of_a_host_that_shares_no_memory(hosts):
    assert_expected(hosts.run(CASES, 3, ["through_partners", 40, "host1"], timeout=60.0), 6)


def test_a_gather_through_partners_crosses_once(hosts):
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
    seconds = time.time() - float(re.search(r"stamp (\S+)", ended.stdout)[1])
    assert ended.returncode != 0, ended
    assert seconds < SOON, ended
    assert all(text in ended.stderr for text in texts), ended
    assert left(hosts) == []


def left(hosts):
    """Return the processes that are still on the hosts after a moment."""
    until = time.monotonic() + SOON
    while hosts.processes() and time.monotonic() < until:
        time.sleep(0.01)
    return hosts.processes()


# -- the hosts themselves ---------------------------------------------------------------------------------------------


def test_a_job_that_takes_too_long_is_killed(hosts):
    with pytest.raises(subprocess.TimeoutExpired):
        hosts.run(CASES, 1, ["sleep"], timeout=2.0)
    assert left(hosts) == []


def test_hosts_made_at_the_same_time_do_not_meet(hosts):
    with made() as others, ThreadPoolExecutor() as threads:
        jobs = [threads.submit(each.run, CASES, 2, ["relayouts", "swap"]) for each in (hosts, others)]
        for job in jobs:
            assert_expected(job.result(), 4)


def test_nothing_is_left_after_an_exception():
    links = Path("/proc/net/dev").read_text().count(":")
    with pytest.raises(KeyError), made() as hosts:  # noqa: PT012
        sleeping = subprocess.Popen(hosts.on(1, "sleep", "60"))
        while sleeping.pid not in hosts.processes() and sleeping.poll() is None:
            time.sleep(0.01)
        raise KeyError
    assert sleeping.wait(SOON) == -signal.SIGKILL
    assert not any(Path(f"/proc/{pid}").exists() for pid in hosts.pids)
    assert Path("/proc/net/dev").read_text().count(":") == links


ENTERED = """
import sys, time
from hosts import two_hosts
with two_hosts(sys.argv[1]) as hosts:
    print(*hosts.pids, flush=True)
    time.sleep(60)
"""


def test_hosts_vanish_when_the_process_that_made_them_is_killed(hosts):
    command = [sys.executable, "-c", ENTERED, hosts.mpiexec]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parent) as process:
        keepers = [Path(f"/proc/{pid}/ns/net") for pid in process.stdout.readline().split()]
        assert len(keepers) == 2
        process.send_signal(signal.SIGKILL)
    until = time.monotonic() + SOON
    while any(keeper.exists() for keeper in keepers) and time.monotonic() < until:
        time.sleep(0.01)
    assert not any(keeper.exists() for keeper in keepers)


# -- reasons why there are none ---------------------------------------------------------------------------------------


def reason(mpiexec):
    with pytest.raises(Unavailable) as raised, two_hosts(mpiexec):
        pass
    return str(raised.value)


def test_it_needs_root(monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert reason("mpiexec") == "two hosts need network namespaces, and those need root"


def test_it_needs_ip(monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr("shutil.which", lambda tool: None)
    assert reason("mpiexec") == "two hosts need the command ip, which is not installed"


def test_it_needs_an_mpich(monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr("shutil.which", lambda tool: tool)
    assert reason(None) == "two hosts need the mpiexec of an MPICH, and there is no mpiexec"
    assert reason(sys.executable) == f"two hosts need the mpiexec of an MPICH, which {sys.executable} is not"


def test_it_needs_the_right_to_make_namespaces(monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr("shutil.which", lambda tool: tool)
    monkeypatch.setattr("hosts._check_means", lambda mpiexec: None)
    monkeypatch.setattr("hosts.NAMESPACES", ("--forbidden",))
    assert reason("mpiexec").startswith("two hosts need namespaces, which are forbidden here: unshare: ")
