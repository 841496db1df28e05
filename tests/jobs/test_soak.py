"""Random programs against NumPy, on simulated ranks and on real ones, with shared memory and without.

`make test-all` runs some in each setting. `make soak MINUTES=30` runs other ones for so long, in jobs of a minute.
``make soak SEED=4711`` repeats one of them in all settings, and ``PROGRAMS=20`` those of the next seeds as well. So
``--count`` is a number of minutes, or with ``--seed`` of programs.
"""

import re
import time
from collections import Counter

import pytest

from support.paths import PROGRAMS, ROOT, TESTS
from support.patience import CPU, slowness

SETTINGS = [(ranks, memory) for memory in ("shared", "unshared", "simulated") for ranks in (2, 3, 4)]
REAL = 6  # of these have real ranks
FEW = 5  # programs of each setting, in a run of all tests
MINUTE = 60  # seconds that a job of a soak goes on
TIMEOUT = 60  # seconds that a rank may wait for others, of an idle machine
THREADS = 2  # jobs with two threads on one mesh for each setting


def pytest_generate_tests(metafunc):
    if "setting" in metafunc.fixturenames:
        asked = minutes(metafunc.config) or metafunc.config.getoption("seed") is not None
        every = SETTINGS if asked else SETTINGS[:REAL]  # tests/arrays has simulated ranks
        settings = [(*every[i % len(every)], i) for i in range(minutes(metafunc.config) or len(every))]
        metafunc.parametrize("setting", settings, ids=lambda each: "-".join(map(str, each)))


def minutes(config):
    """Return how long a soak is to take; None for other runs."""
    return config.getoption("count") if config.getoption("seed") is None else None


@pytest.fixture(scope="module")
def ran(pytestconfig):
    """How many programs and steps ran; shown after a soak."""
    found = Counter()
    yield found
    if minutes(pytestconfig):
        with pytestconfig.pluginmanager.getplugin("capturemanager").global_and_fixture_disabled():
            print(f"\nsoaked: {found['programs']} programs, {found['steps']} steps, {found['jobs']} jobs")


@pytest.fixture
def seed(pytestconfig, setting):
    """The first seed: a new one for each job of a soak."""
    given = pytestconfig.getoption("seed")
    if given is not None:
        return given
    first = time.time_ns() // 10**9 % 10**6 * 1000 if minutes(pytestconfig) else 0
    return first + 10**6 * setting[2]


def run_job(launch, program, ranks, memory, arguments, seconds):
    """Launch a program of this folder on real or simulated ranks and return the job."""
    environment = {"PYTHONPATH": str(TESTS), "MESHCOMM_TIMEOUT": f"{TIMEOUT * slowness():.0f}"}
    if memory == "unshared":
        environment["MESHCOMM_SHARED_MEMORY"] = "0"
    simulated = memory == "simulated"
    arguments = [*arguments, ranks] if simulated else arguments
    return launch(None if simulated else ranks, PROGRAMS / program, *arguments, cpu=CPU + 2 * seconds, **environment)


def test_random_programs_do_what_numpy_does(launch, pytestconfig, ran, setting, seed):
    ranks, memory, _ = setting
    soaks, given = minutes(pytestconfig), pytestconfig.getoption("seed")
    most = 10**6 if soaks else FEW if given is None else pytestconfig.getoption("count") or 1
    seconds = MINUTE if soaks else 10**6
    job = run_job(launch, "soak.py", ranks, memory, [seed, seconds, most], MINUTE)
    text = f"from seed {seed} on, {ranks} ranks, {memory}: {job}"
    if soaks and job.code:
        log = ROOT / "build" / f"soak-{seed}.log"  # a failure may be rare
        log.parent.mkdir(exist_ok=True)
        log.write_text(text)
    assert job.code == 0, text
    assert job.left == [], text
    found = re.search(r"soaked: (\d+) programs, (\d+) steps", job.text)
    assert found, text
    ran.update(programs=int(found[1]), steps=int(found[2]), jobs=1)


@pytest.mark.parametrize("number", range(THREADS))
@pytest.mark.parametrize(("ranks", "memory"), [setting for setting in SETTINGS if setting[1] != "simulated"])
def test_two_threads_on_one_mesh_get_right_data_or_an_error(launch, number, ranks, memory):
    job = run_job(launch, "threads.py", ranks, memory, [number], MINUTE)
    assert "WRONG" not in job.text, job
    assert job.left == [], job
    if job.code == 0:
        assert job.text.count("all right") == ranks, job
    else:
        assert re.search(r"two threads|CollectiveMismatch|different c", job.text), job
