"""What several of these tests use."""

import tracemalloc

import pytest


@pytest.fixture
def no_list():
    """Check that a test needs less memory than a list of a million ranks, or of their device strings."""
    tracemalloc.start()
    try:
        yield
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert most < 2**20, most
