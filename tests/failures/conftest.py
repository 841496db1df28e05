"""What several of these tests use."""

import os

import pytest


@pytest.fixture
def pipe():
    ends = os.pipe()
    yield ends
    for end in ends:
        os.close(end)
