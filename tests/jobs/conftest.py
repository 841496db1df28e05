"""Hosts for the jobs of this folder, and which tests run in one process: `make test-jobs` runs several at once."""

import pytest

from support.two_hosts import made


@pytest.fixture(scope="module")
def hosts():
    """Two hosts; the test is skipped where they cannot be made."""
    with made() as hosts:
        yield hosts


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config, items):
    """Let one process make the hosts, or the Slurm, of a file: these files take longest, so they come first."""
    if not config.pluginmanager.hasplugin("xdist"):
        return
    for item in items:
        if {"hosts", "slurm"} & set(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.xdist_group(item.path.name))
    items.sort(key=lambda item: item.get_closest_marker("xdist_group") is None)
