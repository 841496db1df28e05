"""Hosts for the jobs of this folder."""

import pytest

from support.two_hosts import made


@pytest.fixture(scope="module")
def hosts():
    """Two hosts; the test is skipped where they cannot be made."""
    with made() as hosts:
        yield hosts
