"""The two hosts that tests make: they end with their process, and know nothing of others."""

import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from support.paths import PROGRAMS, TESTS
from support.patience import Stuck, until
from support.two_hosts import made

CASES = PROGRAMS / "hosts.py"
SOON = 5.0  # seconds for the kernel to end something, on an idle machine


def test_a_job_that_hangs_is_killed(hosts):
    with pytest.raises(Stuck, match="used more than"):
        hosts.run(CASES, 1, ["spin"], cpu=0.5)
    assert until(lambda: not hosts.processes(), SOON)


@pytest.mark.slow
def test_hosts_made_at_the_same_time_are_apart(hosts):
    with made() as others, ThreadPoolExecutor() as threads:
        jobs = [threads.submit(each.run, CASES, 2, ["relayouts", "swap"]) for each in (hosts, others)]
        for job in jobs:
            assert job.result().stdout.count("as expected") == 4, job.result()


def test_nothing_is_left_after_an_exception():
    links = Path("/proc/net/dev").read_text().count(":")
    with pytest.raises(KeyError), made() as hosts:  # noqa: PT012
        sleeping = subprocess.Popen(hosts.on(1, "sleep", "600"))
        while sleeping.pid not in hosts.processes() and sleeping.poll() is None:
            time.sleep(0.01)
        raise KeyError
    assert until(lambda: sleeping.poll() is not None, SOON)
    assert sleeping.returncode == -signal.SIGKILL
    assert not any(Path(f"/proc/{pid}").exists() for pid in hosts.pids)
    assert Path("/proc/net/dev").read_text().count(":") == links


ENTERED = """
import time
from support.two_hosts import made
with made() as hosts:
    print(*hosts.pids, flush=True)
    time.sleep(600)
"""


@pytest.mark.usefixtures("hosts")
def test_hosts_vanish_when_the_process_that_made_them_is_killed():
    with subprocess.Popen([sys.executable, "-c", ENTERED], stdout=subprocess.PIPE, text=True, cwd=TESTS) as process:
        keepers = [Path(f"/proc/{pid}/ns/net") for pid in process.stdout.readline().split()]
        assert len(keepers) == 2
        process.send_signal(signal.SIGKILL)
    assert until(lambda: not any(keeper.exists() for keeper in keepers), SOON)
