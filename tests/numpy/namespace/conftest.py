"""What tests of `meshcomm.numpy` share."""

import pytest

from meshcomm.core.arrays.scripted import set_scripted


@pytest.fixture
def scripted():
    """Let the test be a script of NumPy."""
    set_scripted(True)
    yield
    set_scripted(False)
