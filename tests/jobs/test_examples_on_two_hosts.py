"""Examples on two hosts with TCP between them, and hosts that are lost while a job runs."""

import contextlib
import os
import re
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from support.paths import EXAMPLES, PROGRAMS
from support.patience import until
from support.plates import digest_at_the_end
from support.two_hosts import ADDRESSES

TCP = {"UCX_TLS": "tcp,self"}  # else UCX copies from memory to memory, as both hosts are on one machine
SOON = 20.0  # seconds until a job has begun its work, on an idle machine
LIMIT = 8  # MESHCOMM_TIMEOUT, in seconds


def crossed(hosts, *arguments, **options):
    """Run an example on both hosts, and return its output and how many bytes crossed the link."""
    before = sum(hosts.sent())
    done = hosts.run(*arguments, env=TCP, **options)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout, sum(hosts.sent()) - before


def test_quickstart(hosts):
    output, _ = crossed(hosts, EXAMPLES / "quickstart.py", 2)
    assert output.endswith("medians: [2.5 2.5 2.5 3.5 3.5 3.5 3.  2.5 2.5 2.5]\n")


@pytest.mark.slow
def test_terrain_fft(hosts):
    pytest.importorskip("matplotlib")
    pytest.importorskip("scipy")
    output, nbytes = crossed(hosts, EXAMPLES / "terrain_fft.py", 2)
    assert nbytes > 1 << 20
    assert "of 4 ranks" in output or "4 ranks" in output, output


@pytest.mark.slow
def test_restart_goes_on_with_other_numbers_of_ranks_on_each_host(hosts, tmp_path):
    killed = hosts.run(EXAMPLES / "restart.py", (2, 1), [tmp_path, "--kill-at", "130"], env=TCP)
    assert killed.returncode != 0
    output, _ = crossed(hosts, EXAMPLES / "restart.py", (1, 1), args=[tmp_path])
    assert "goes on from step 100\n" in output
    assert f"after 400 steps on 2 ranks: {digest_at_the_end()}\n" in output


def lost(hosts, file, lose):
    """Run a job that never ends, *lose* a host meanwhile, and return how it ended, and after how many seconds."""
    with ThreadPoolExecutor() as threads:
        job = threads.submit(hosts.run, PROGRAMS / "endless.py", 2, [file], TCP | {"MESHCOMM_TIMEOUT": str(LIMIT)})
        assert until(file.exists, SOON)
        begin = time.time()
        lose()
        done = job.result()
    return done, (done.ended - begin) / done.slowness


def test_ranks_that_die_end_the_job_at_once_and_their_host_is_named(hosts, tmp_path):
    def ranks():
        return [pid for pid in hosts.processes([1]) if b"endless.py" in Path(f"/proc/{pid}/cmdline").read_bytes()]

    def lose():
        assert len(ranks()) == 2
        for pid in ranks():
            with contextlib.suppress(ProcessLookupError):  # the launcher ends it when it has noticed the first
                os.kill(pid, signal.SIGKILL)

    done, took = lost(hosts, tmp_path / "began", lose)
    assert done.returncode != 0
    assert f"RUNNING AT {ADDRESSES[1]}" in done.stdout + done.stderr
    assert took < LIMIT


def test_a_host_that_dies_ends_the_job_at_once(hosts, tmp_path):
    done, took = lost(hosts, tmp_path / "began", lambda: hosts.kill([1]))
    assert done.returncode != 0  # Hydra sees that its process there is gone, and gives no name
    assert took < LIMIT


def test_a_host_that_is_cut_off_ends_the_job_in_time_and_its_ranks_are_named(hosts, tmp_path):
    try:
        done, took = lost(hosts, tmp_path / "began", hosts.cut)
    finally:
        hosts.connect()
    assert done.returncode != 0
    assert re.search(rf"it has waited {LIMIT} s in relayout .*\n +ranks 2, 3 do not answer: .*host1\)", done.stderr), (
        done
    )
    assert took < LIMIT + SOON
