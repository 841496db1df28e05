"""What tests rely on: limits end what hangs and nothing else, samples are the same; and when a benchmark is slower."""

import subprocess
import sys
import time

import pytest

from support import patience, sampling
from support.paths import ROOT
from support.patience import Countdown, Stuck, Watch, communicate, run


def python(program):
    return subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)


@pytest.mark.parametrize(
    ("program", "says"),
    [("while True: pass", "used more than"), ("import time; time.sleep(600)", "no process used CPU time for 1 s")],
)
def test_what_runs_or_waits_for_ever_is_stuck(program, says):
    with python(program) as process:
        with pytest.raises(Stuck, match=says):
            communicate(process, Watch(lambda: [process.pid], cpu=0.2, idle=1.0))
        process.kill()


def test_what_works_or_may_wait_is_not_stuck():
    with python("import time\nwhile time.process_time() < 1.5: pass\nprint('done')") as process:
        assert communicate(process, Watch(lambda: [process.pid], idle=0.5))[0] == "done\n"
    assert run([sys.executable, "-c", "print('done')"]).stdout == "done\n"
    with python("import time; time.sleep(2)") as process:
        communicate(process, Watch(lambda: [process.pid], waits=60.0, idle=0.5))
    assert process.returncode == 0


def test_the_cpu_time_before_a_watch_does_not_count():
    watch = Watch(lambda: [process.pid], cpu=0.5)
    with python("import time\nwhile time.process_time() < 1: pass\nprint(flush=True); input()") as process:
        process.stdout.readline()
        watch.look()
        watch.look()
        process.kill()


def test_a_countdown_counts_cpu_time_of_its_own():
    called, start = [], time.process_time()
    Countdown(0.2, called.append, "cancelled").cancel()
    countdown = Countdown(0.2, called.append, "called")
    while not called and time.process_time() - start < 60 * patience.cpu_factor():
        time.sleep(0.01)  # as in an MPI whose ranks sleep while they wait
    assert time.process_time() - start >= 0.2
    assert called == ["called"]
    countdown.cancel()


@pytest.fixture
def cases(monkeypatch):
    """A function that lets samples have some of their cases, few or all, as the options of pytest do."""

    def chosen(which):
        for name in ("exhaustive", "quick"):
            monkeypatch.setattr(sampling, f"_{name}", name == which)

    return chosen


def test_samples_are_always_the_same(cases):
    cases("some")
    some = sampling.sampled(range(1000), 50)
    assert some == sampling.sampled(range(1000), 50) == sorted(set(some))
    assert (len(some), sampling.sampled("abc", 5), sampling.sampled(range(9))) == (50, ["a", "b", "c"], [*range(9)])
    assert (sampling.examples(10), sampling.examples(1000)) == (10, 200)
    cases("quick")
    assert [len(sampling.sampled(range(1000), count)) for count in (1, 5, 40, None)] == [1, 1, 5, 125]
    assert [sampling.examples(1), sampling.examples(1000), sampling.counted(400)] == [1, 25, 50]
    cases("exhaustive")
    assert sampling.sampled(range(1000), 50) == list(range(1000))
    assert sampling.examples(1000) == 1000


ONES, NOISY = [1.0] * 5, [0.6, 0.8, 1.1, 1.6, 1.8]
DRIFT = [1.0, 2.0, 4.0, 8.0, 16.0]  # of the machine: it counts for all sides
ROWS = {  # seconds of the old code, of the same again, and of the new one; of rows beside it; and whether it is slower
    "a tenth more": (ONES, [1.01] * 5, [1.1] * 5, [], True),
    "less than the noise of these jobs": (ONES, [1.01] * 5, [1.02] * 5, [], False),
    "a tenth more in a drift": (DRIFT, DRIFT, [1.1 * t for t in DRIFT], [], True),
    "the same drift": (DRIFT, DRIFT, DRIFT, [], False),
    "equal jobs that differ": (ONES, [1.2] * 5, [1.25] * 5, [], False),
    "more than equal jobs differ": (ONES, [1.2] * 5, [1.5] * 5, [], True),
    "rounds that differ": (ONES, ONES, NOISY, [], False),
    "noise of rows of its kind": (ONES, ONES, [1.1] * 5, [(ONES, [1.3] * 5, ONES, (4096, 4096))] * 5, False),
    "noise of other rows": (ONES, ONES, [1.1] * 5, [(ONES, [1.3] * 5, ONES, (64, 64))] * 5, True),
}


@pytest.mark.parametrize(("old", "again", "new", "others", "slower"), ROWS.values(), ids=ROWS)
def test_a_row_of_a_benchmark_is_slower_beyond_its_noise_and_that_of_others(
    monkeypatch, old, again, new, others, slower
):
    before = set(sys.modules)
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import compare

    def row(old, again, new, shape):
        seconds = {"old": old, "again": again, "new": new}
        setting, case = compare.Setting(2, True), compare.Case("a case", shape, "x,-", "-,x")
        return compare.Row(setting, case, "meshcomm", seconds, {})

    rows = [row(old, again, new, (4096, 4096)), *(row(*other) for other in others)]
    assert (rows[0].ratio > compare.limits(rows)[0]) is slower
    for name in set(sys.modules) - before:
        if str(ROOT / "benchmarks") in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]
