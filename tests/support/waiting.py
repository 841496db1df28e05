"""Operations that wait, in tests: with ``--waiting`` the smallest ones do, too."""

import pytest

from meshcomm.core.arrays import conditions
from meshcomm.core.arrays._recipes import let_wait_from


def pytest_addoption(parser):
    parser.addoption("--waiting", action="store_true", help="let elementwise operations of all sizes wait")


@pytest.fixture(autouse=True)
def operations_wait(request):
    """Let operations wait, as in a program: pytest records the warnings of each test, and they count as shown."""
    conditions.begin()
    if request.config.getoption("--waiting"):
        before = let_wait_from(1)
        yield
        let_wait_from(before)
    else:
        yield
