"""Tests of files do not wait for the disk: that what is written gets there is checked by the calls that are made."""

import os

import pytest


@pytest.fixture(autouse=True)
def no_waiting_for_the_disk(monkeypatch):
    """Let ``fsync`` do nothing."""
    monkeypatch.setattr(os, "fsync", lambda number: None)
