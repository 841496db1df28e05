"""Hosts for the jobs of this folder, and which tests run in one process: `make test-jobs` runs several at once."""

import pytest

from support.two_hosts import made

SHARE = 6  # of so many cases of one test, one is kept at least


@pytest.fixture(scope="module")
def hosts():
    """Two hosts; the test is skipped where they cannot be made."""
    with made() as hosts:
        yield hosts


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config, items):
    """Keep ``--each N`` cases of each test, or a sixth; let one process make the hosts, or the Slurm, of a file."""
    most = config.getoption("each")
    if most is not None:
        tests = {}
        for item in items:
            name = item.nodeid.partition("[")[0] if "jobs" in item.path.parts else item.nodeid
            tests.setdefault(name, []).append(item)
        every = {name: -(-len(cases) // max(most, len(cases) // SHARE)) for name, cases in tests.items()}
        kept = {id(item) for name, cases in tests.items() for item in cases[:: every[name]]}
        config.hook.pytest_deselected(items=[item for item in items if id(item) not in kept])
        items[:] = [item for item in items if id(item) in kept]
    if not config.pluginmanager.hasplugin("xdist"):
        return
    for item in items:
        if {"hosts", "slurm"} & set(item.fixturenames):
            item.add_marker(pytest.mark.xdist_group(item.path.name))
