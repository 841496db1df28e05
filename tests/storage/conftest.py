"""Tests of files do not wait for the disk: that what is written gets there is checked by the calls that are made."""

import os

import pytest

from meshcomm.storage import by_library, small, transfer
from meshcomm.storage.formats import safetensors, zarr


@pytest.fixture(autouse=True)
def no_waiting_for_the_disk(monkeypatch):
    """Let ``fsync`` do nothing."""
    monkeypatch.setattr(os, "fsync", lambda number: None)


@pytest.fixture
def small_files(monkeypatch):
    """Let arrays of a hundred bytes fill a file, where a format cuts arrays or trees into files."""
    monkeypatch.setattr(zarr, "ZARR_CHUNK", 100)
    monkeypatch.setattr(safetensors, "MAX_SAFETENSORS_BYTES", 100)


@pytest.fixture
def nothing_is_small(monkeypatch):
    """Let no array be so small that one rank reads it for all."""
    monkeypatch.setattr(small, "SMALL_ARRAY", 64)


@pytest.fixture
def narrow_gaps(monkeypatch):
    """Let no gap of more than a hundred bytes between two runs of a file be read, too."""
    monkeypatch.setattr(transfer, "READ_OVER", 100)


@pytest.fixture
def selections(monkeypatch):
    """What is read by a library: for each time, what is chosen of an array, and the elements."""
    reads, read = [], by_library._read_selection

    def noted(array, chosen):
        reads.append((chosen, read(array, chosen)))
        return reads[-1][1]

    monkeypatch.setattr(by_library, "_read_selection", noted)
    return reads
