"""What is counted while operations run."""

import pytest

import meshcomm as mc


@pytest.fixture
def relayouts(monkeypatch):
    """The relayouts of all ranks while a test runs: the bytes that all devices receive."""
    found = []
    relayout = mc.blocks.align.relayout

    def counted(tensor, layout, *args):
        plan = mc.plan_relayout(tensor.shape, tensor.dtype, tensor.layout, layout)
        found.append(sum(plan.for_device(device).bytes_moved for device in range(len(plan.ranks))))
        return relayout(tensor, layout, *args)

    monkeypatch.setattr(mc.blocks.align, "relayout", counted)
    return found


@pytest.fixture
def received(monkeypatch):
    """The bytes that ranks receive from others when they ask them for rows, or are sent rows, while a test runs."""
    found = []
    monkeypatch.setattr(mc.blocks.rows, "note_received", lambda team, ranks, sizes, began: found.append(sum(sizes)))
    return found
