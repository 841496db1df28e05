"""What is counted while operations run."""

import pytest

import meshcomm as mc


@pytest.fixture
def received(monkeypatch):
    """The bytes that ranks receive from others when they ask them for rows, or are sent rows, while a test runs."""
    found = []
    monkeypatch.setattr(mc.blocks.rows, "note_received", lambda team, ranks, sizes, began: found.append(sum(sizes)))
    return found
