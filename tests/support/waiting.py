"""Operations that wait, in tests: with ``--waiting`` the smallest ones do, too."""

import warnings
from contextlib import contextmanager

import pytest

from meshcomm.core.arrays import conditions
from meshcomm.core.arrays._evaluation import let_cut
from meshcomm.core.arrays._recipes import let_wait_from


def pytest_addoption(parser):
    parser.addoption("--waiting", action="store_true", help="let elementwise operations of all sizes wait")


@pytest.fixture(autouse=True)
def operations_wait(request):
    """Let operations wait, as in a program. The warnings that pytest records in each test count as shown."""
    conditions.begin()
    if request.config.getoption("--waiting"):
        with all_waiting():
            yield
    else:
        yield


@contextmanager
def all_waiting(piece=100):
    """Return a context in which elementwise operations of all sizes wait, and run in pieces of *piece* bytes.

    Warnings are not errors in it, as they are in these tests: else nothing would wait.
    """
    size, piece = let_wait_from(1), let_cut(piece)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("always", RuntimeWarning)
            yield
    finally:
        let_wait_from(size)
        let_cut(piece)
