"""What other tests rely on: limits end what hangs and nothing else, and samples are always the same."""

import subprocess
import sys
import time

import pytest

from support import patience, sampling
from support.patience import Countdown, Stuck, Watch, communicate, run


def python(program):
    return subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)


def test_what_runs_for_ever_is_stuck():
    with python("while True: pass") as process:
        with pytest.raises(Stuck, match="used more than"):
            communicate(process, Watch(lambda: [process.pid], cpu=0.2))
        process.kill()


def test_what_waits_for_ever_is_stuck(monkeypatch):
    monkeypatch.setattr(patience, "IDLE", 1.0)
    with python("import time; time.sleep(600)") as process:
        with pytest.raises(Stuck, match="no process used CPU time for 1 s"):
            communicate(process)
        process.kill()


def test_what_works_for_longer_than_the_idle_limit_is_not_stuck(monkeypatch):
    monkeypatch.setattr(patience, "IDLE", 0.5)
    program = "import time\nwhile time.process_time() < 1.5: pass\nprint('done')"
    assert run([sys.executable, "-c", program]).stdout == "done\n"


def test_what_may_wait_is_not_stuck_meanwhile(monkeypatch):
    monkeypatch.setattr(patience, "IDLE", 0.5)
    with python("import time; time.sleep(2)") as process:
        communicate(process, Watch(lambda: [process.pid], waits=60.0))
    assert process.returncode == 0


def test_the_cpu_time_before_a_watch_does_not_count():
    watch = Watch(lambda: [process.pid], cpu=0.5)
    with python("import time\nwhile time.process_time() < 1: pass\nprint(flush=True); input()") as process:
        process.stdout.readline()
        watch.look()
        watch.look()
        process.kill()


def test_a_countdown_counts_cpu_time_of_its_own():
    called = []
    start = time.process_time()
    countdown = Countdown(0.2, called.append, "called")
    while not called and time.process_time() - start < 60 * patience.cpu_factor():
        time.sleep(0.01)  # as in an MPI whose ranks sleep while they wait
    assert time.process_time() - start >= 0.2
    assert called == ["called"]
    countdown.cancel()


def test_a_countdown_that_is_cancelled_ends():
    called = []
    Countdown(0.2, called.append, "called").cancel()
    assert called == []


def test_a_machine_is_at_least_as_slow_as_an_idle_one():
    assert patience.cpu_factor() >= 1
    assert patience.slowness() >= 1


def test_samples_are_always_the_same(monkeypatch):
    monkeypatch.setattr(sampling, "_exhaustive", False)
    monkeypatch.setattr(sampling, "_quick", False)
    some = sampling.sampled(range(1000), 50)
    assert some == sampling.sampled(range(1000), 50) == sorted(set(some))
    assert (len(some), sampling.sampled("abc", 5), sampling.examples(1000)) == (50, ["a", "b", "c"], 200)
    assert sampling.sampled(range(1000)) == list(range(1000))
    assert sampling.examples(10) == 10, "never more than all"


def test_quick_samples_are_smaller_but_never_empty(monkeypatch):
    monkeypatch.setattr(sampling, "_exhaustive", False)
    monkeypatch.setattr(sampling, "_quick", True)
    assert [len(sampling.sampled(range(1000), count)) for count in (1, 5, 40, None)] == [1, 1, 5, 125]
    assert [sampling.examples(count) for count in (1, 10, 1000)] == [1, 2, 25]
    assert sampling.counted(400) == 50


def test_exhaustive_is_all(monkeypatch):
    monkeypatch.setattr(sampling, "_exhaustive", True)
    assert sampling.sampled(range(1000), 50) == list(range(1000))
    assert sampling.examples(1000) == 1000
