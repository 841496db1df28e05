"""What several of these tests use."""

import os

import pytest

from meshcomm.core.failures.watch import watch


@pytest.fixture
def pipe():
    ends = os.pipe()
    yield ends
    for end in ends:
        os.close(end)


@pytest.fixture
def fresh_watch():
    """What this rank does, as at the start of a program; after the test it is as before."""
    before = {name: getattr(watch, name) for name in watch.__slots__}
    type(watch).__init__(watch)
    yield watch
    for name, value in before.items():
        setattr(watch, name, value)
