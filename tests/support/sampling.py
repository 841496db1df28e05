"""How much is tested: a sample of all cases, the same one each time, or with ``--exhaustive`` all of them.

`make test-all` runs samples, `make test` with ``--quick`` smaller ones; with ``CASES=--exhaustive`` both run all
cases. All of them test every rule and every recorded result; only `make test-all` runs tests that are marked ``slow``.
Only this module reads the options: tests call `sampled` if they try many cases, `examples` if hypothesis draws them,
and `counted` if they generate cases without end (``--count N``). Each number of ranks has its own smaller samples.
"""

from random import Random

import pytest
from hypothesis import settings

from meshcomm.core.failures.launchers import launched
from support.paths import TESTS

_SAMPLE_STEP = 5  # a sample has one of this many examples, but not fewer than _MIN_EXAMPLES
_MIN_EXAMPLES = 12
_QUICK_STEP = 8  # with --quick, one of this many cases of a sample runs
_exhaustive = _quick = False
_count = None
_ranks = 1
_LEFT_OUT = pytest.StashKey[int]()


def pytest_addoption(parser):
    parser.addoption("--exhaustive", action="store_true", help="test all cases instead of a sample of them")
    parser.addoption("--quick", action="store_true", help="test an eighth of each sample")
    parser.addoption("--sample", type=int, metavar="N", help="run one of N tests of each file, or cases of each job")
    parser.addoption("--count", type=int, metavar="N", help="make up so many inputs, pairs of calls, programs")
    parser.addoption("--seed", type=int, metavar="N", help="begin with the random program of this seed")


def pytest_configure(config):
    global _exhaustive, _quick, _count, _ranks
    _exhaustive, _quick, _count = (config.getoption(name) for name in ("exhaustive", "quick", "count"))
    _, _ranks = launched() or (0, 1)
    # All ranks must draw the same examples, however slow one of them is.
    settings.register_profile(
        "all ranks alike", derandomize=True, database=None, deadline=None, max_examples=examples(100)
    )
    settings.load_profile("all ranks alike")


@pytest.hookimpl(trylast=True)  # of what other options leave
def pytest_collection_modifyitems(config, items):
    """Keep one of *N* tests of each file with ``--sample N``, at least one, and not the first ones only.

    Of each test that launches jobs, keep one of *N* cases, the first one among them.
    """
    step = config.getoption("sample")
    if step is None:
        return
    groups = {}
    for item in items:
        in_jobs = TESTS / "jobs" in item.path.parents
        groups.setdefault(item.nodeid.partition("[")[0] if in_jobs else item.path, []).append(item)
    first_index = {key: 0 if isinstance(key, str) else min(step // 2, len(group) - 1) for key, group in groups.items()}
    kept_ids = {id(item) for key, group in groups.items() for item in group[first_index[key] :: step]}
    config.stash[_LEFT_OUT] = len(items) - len(kept_ids)
    items[:] = [item for item in items if id(item) in kept_ids]


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node, error):
    """Store the number of tests that a process of pytest-xdist has left out: all leave out the same."""
    node.config.stash[_LEFT_OUT] = getattr(node, "workeroutput", {}).get("left", 0)


def pytest_sessionfinish(session):
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["left"] = session.config.stash.get(_LEFT_OUT, 0)


def pytest_terminal_summary(terminalreporter, config):
    left_out = config.stash.get(_LEFT_OUT, 0)
    if left_out:
        terminalreporter.write_line(
            f"a sample: {left_out:,} tests of these files are left out; make test-all runs them"
        )


def sampled(cases, count=None):
    """Return *count* of the *cases* in their order, chosen at random but always the same ones; or all of them.

    Without *count*, only ``--quick`` leaves cases out. Call it in a test or for its parameters.
    """
    cases = list(cases)
    count = _quick_count(len(cases) if count is None else count)
    if _exhaustive or len(cases) <= count:
        return cases
    random = Random(len(cases) + _ranks - 1 if _quick else len(cases))
    return [cases[i] for i in sorted(random.sample(range(len(cases)), count))]


def with_seeds(on_a_mesh, seeds):
    """Return a decorator that turns ``program(random, mesh)`` into a test with each of the *seeds*.

    ``on_a_mesh(seed, program)`` runs the program on the ranks of a mesh. A program may take the seed as well.
    """

    def decorated(program):
        takes_seed = program.__code__.co_argcount == 3

        @pytest.mark.parametrize("seed", seeds)
        def test(seed):
            on_a_mesh(seed, (lambda random, mesh: program(random, mesh, seed)) if takes_seed else program)

        test.__name__, test.__doc__ = program.__name__, program.__doc__
        return test

    return decorated


def spread(cases, settings, offset=0, step=1):
    """Return pairs of a case and a setting: each pair with ``--exhaustive``.

    Otherwise every case once, from number *offset* on in steps of *step*, with the settings spread evenly over them.
    """
    if _exhaustive:
        return [(case, setting) for case in cases for setting in settings]
    return [(case, settings[i // step % len(settings)]) for i, case in enumerate(cases) if i % step == offset]


def examples(count):
    """Return the number of examples that hypothesis draws, if it draws *count* with ``--exhaustive``."""
    return count if _exhaustive else min(count, _quick_count(max(_MIN_EXAMPLES, count // _SAMPLE_STEP)))


def counted(count):
    """Return the number of cases to generate: that of ``--count``, by default *count*."""
    return _quick_count(count) if _count is None else _count


def _quick_count(count):
    return -(-count // _QUICK_STEP) if _quick else count
