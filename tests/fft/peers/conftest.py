"""SciPy's tests have marks of their own, and are more than `make test` can run."""

from itertools import groupby

import pytest

from support.sampling import sampled

MARKS = ["skip_xp_backends", "xfail_xp_backends", "parallel_threads_limit", "thread_unsafe", "iterations", "fail_slow"]
SAMPLE = 8  # of the cases of one test with parameters, so many are not slow
QUICK = [
    ["one rank", "three ranks, chosen boundaries"],
    ["two ranks, last axis", "four ranks, pencils"],
]  # the worlds of every other test with one case
LONG = ["test_identity_extensive", "TestFFTThreadSafe"]  # thousands of calls; large arrays


def pytest_configure(config):
    for mark in MARKS:
        config.addinivalue_line("markers", f"{mark}: of SciPy's tests")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config, items):
    """Leave out all but a sample of SciPy's tests, unless all cases are wanted; then the others are slow."""
    left_out = []
    scipys = [item for item in items if item.path.name == "test_scipy.py" and item.path.parent.name == "peers"]
    for test, (_, group) in enumerate(groupby(scipys, key=lambda item: item.nodeid.partition("[")[0])):
        cases = list(group)
        in_all_worlds = set(cases[0].callspec.params) == {"world"}
        for number, item in enumerate(cases):
            if in_all_worlds:
                quick = item.callspec.params["world"] in QUICK[test % 2]
            else:
                quick = number * SAMPLE % len(cases) < SAMPLE
            if not quick or any(name in item.nodeid for name in LONG):
                item.add_marker(pytest.mark.slow)
                left_out.append(item)
    if left_out and not config.getoption("exhaustive"):
        slow = set(left_out)
        kept = sampled(item for item in scipys if item not in slow)
        left_out = set(scipys).difference(kept)
        items[:] = [item for item in items if item not in left_out]
        config.hook.pytest_deselected(items=[*left_out])
