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
    """Let operations wait, as in a program: pytest records the warnings of each test, and they count as shown."""
    conditions.begin()
    if request.config.getoption("--waiting"):
        with all_waiting():
            yield
    else:
        yield


@contextmanager
def all_waiting(piece=100):
    """Let elementwise operations of all sizes wait, and be computed in pieces of so many bytes.

    Nothing waits where warnings are errors, as they are in these tests.
    """
    size, piece = let_wait_from(1), let_cut(piece)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("always", RuntimeWarning)
            yield
    finally:
        let_wait_from(size)
        let_cut(piece)
