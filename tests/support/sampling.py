"""How much is tested: a sample of what could be, the same one each time, or with ``--exhaustive`` all of it.

`make test-all` runs samples, `make test` with ``--quick`` smaller ones; with ``CASES=--exhaustive`` both run all. All
run every rule and every recorded answer; only `make test-all` has the tests that are marked ``slow``. Only this module
knows the options: tests say `sampled` where they try many cases, `examples` where hypothesis draws them, and `inputs`
where parsers get them (``--inputs N``, which ``make fuzz`` gives). Each number of ranks has its own smaller samples.
"""

from random import Random

import pytest
from hypothesis import settings

from meshcomm.core.failures.launchers import launched

_EVERY = 5  # one of so many examples is drawn in a sample, but not fewer than _FEWEST
_FEWEST = 12
_QUICK = 8  # with --quick a sample has one of so many cases of it
_exhaustive = _quick = False
_inputs = None
_ranks = 1
_repeats = 0
_LEFT = pytest.StashKey[int]()


def pytest_addoption(parser):
    parser.addoption("--exhaustive", action="store_true", help="test all cases instead of a sample of them")
    parser.addoption("--quick", action="store_true", help="test an eighth of each sample")
    parser.addoption("--sample", type=int, metavar="N", help="run one of N tests of each file, and count the others")
    parser.addoption("--each", type=int, metavar="N", help="run N cases of each test that launches jobs, or a sixth")
    parser.addoption("--mismatches", help="how many pairs of calls to mix up, on each number of ranks, or all of them")
    parser.addoption("--mismatch-ranks", type=_numbers, help="the numbers of ranks for these, by default '2 3 4'")
    parser.addoption("--inputs", type=int, metavar="N", help="try N generated inputs for each parser")
    parser.addoption("--repeats", type=int, default=0, metavar="N", help="run each scenario of jobs that hang N times")
    parser.addoption("--soak", type=int, metavar="MINUTES", help="run random programs for so long, and many calls")
    parser.addoption("--seed", type=int, metavar="N", help="begin with the random program of this seed")
    parser.addoption("--programs", type=int, metavar="N", help="run N random programs in each setting")


def _numbers(text):
    return [int(word) for word in text.split()]


def pytest_configure(config):
    global _exhaustive, _quick, _inputs, _ranks, _repeats
    _exhaustive, _quick = config.getoption("exhaustive"), config.getoption("quick")
    _inputs, _repeats = config.getoption("inputs"), config.getoption("repeats")
    _, _ranks = launched() or (0, 1)
    # All ranks must draw the same examples, however slow one of them is.
    settings.register_profile(
        "all ranks alike", derandomize=True, database=None, deadline=None, max_examples=examples(100)
    )
    settings.load_profile("all ranks alike")


@pytest.hookimpl(trylast=True)  # of what other options leave
def pytest_collection_modifyitems(config, items):
    """Keep one of *N* tests of each file with ``--sample N``, at least one, and not the first ones only."""
    step = config.getoption("sample")
    if step is None:
        return
    files = {}
    for item in items:
        files.setdefault(item.path, []).append(item)
    kept = {id(item) for found in files.values() for item in found[min(step // 2, len(found) - 1) :: step]}
    config.stash[_LEFT] = len(items) - len(kept)
    items[:] = [item for item in items if id(item) in kept]


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node, error):
    """Take what a process of pytest-xdist has left out: they all leave out the same."""
    node.config.stash[_LEFT] = getattr(node, "workeroutput", {}).get("left", 0)


def pytest_sessionfinish(session):
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["left"] = session.config.stash.get(_LEFT, 0)


def pytest_terminal_summary(terminalreporter, config):
    left = config.stash.get(_LEFT, 0)
    if left:
        terminalreporter.write_line(f"a sample: {left:,} tests of these files are left out; make test-all runs them")


def sampled(cases, count=None):
    """Return *count* of the *cases* in their order, chosen at random but always the same ones; or all of them.

    Without *count*, only ``--quick`` leaves cases out. Call it in a test or for its parameters.
    """
    cases = list(cases)
    count = _fewer(len(cases) if count is None else count)
    if _exhaustive or len(cases) <= count:
        return cases
    drawn = Random(len(cases) + _ranks - 1 if _quick else len(cases))
    return [cases[i] for i in sorted(drawn.sample(range(len(cases)), count))]


def with_seeds(on_a_mesh, seeds):
    """Return a decorator for a program of random numbers and a mesh: it becomes a test for each of the *seeds*.

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


def repeats():
    """Return how many times each scenario of jobs that hang is to run; 0 is a sample, or all settings."""
    return _repeats


def examples(count):
    """Return how many examples hypothesis is to draw where *count* are drawn of all."""
    return count if _exhaustive else min(count, _fewer(max(_FEWEST, count // _EVERY)))


def inputs(count):
    """Return how many inputs a parser gets where *count* are enough for every day."""
    return _fewer(count) if _inputs is None else _inputs


def _fewer(count):
    return -(-count // _QUICK) if _quick else count
