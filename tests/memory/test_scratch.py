"""Scratch memory that is kept from call to call."""

import threading

import numpy as np
import pytest

from meshcomm.core._tuning import DEFAULT_SCRATCH
from meshcomm.core.memory.scratch import forget_scratch, scratch


@pytest.fixture(autouse=True)
def nothing_kept():
    forget_scratch()
    yield
    forget_scratch()


def address(buffer):
    return buffer.__array_interface__["data"][0]


@pytest.mark.parametrize("sizes", [[8], [8, 8], [8, 5, 8], [8, 9, 8], [0, 3, 0], [3, 0, 3]])
def test_each_buffer_has_the_size_that_is_asked_for(sizes):
    for size in sizes:
        buffer = scratch("test", size)
        assert buffer.shape == (size,)
        assert buffer.dtype == np.uint8
        buffer[:] = 1


def test_memory_is_kept_for_a_use_and_a_thread():
    first, other = scratch("test", 100), scratch("other", 100)
    assert address(scratch("test", 100)) == address(scratch("test", 60)) == address(first) != address(other)
    found = []
    thread = threading.Thread(target=lambda: found.append(address(scratch("test", 100))))
    thread.start()
    thread.join()
    assert len(found) == 1
    assert found != [address(first)]


def test_memory_beyond_the_limit_is_not_kept():
    kept = address(scratch("test", 100))
    large = scratch("test", DEFAULT_SCRATCH + 1)
    assert len(large) == DEFAULT_SCRATCH + 1
    assert address(scratch("test", 100)) == kept
