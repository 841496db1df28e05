"""The model of benchmarks/model.py: many ranks, on paper."""

import importlib.util

import pytest

import meshcomm as mc
from meshcomm.core.layouts.machine import Load
from support.paths import ROOT

SPEC = importlib.util.spec_from_file_location("model", ROOT / "benchmarks" / "model.py")
model = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(model)

MACHINE = mc.Machine()


@pytest.mark.parametrize("ranks", [16, 65536])
def test_the_planner_gives_the_work_of_a_rank(ranks):
    work = model.exchange(ranks, 16, 4 * ranks, MACHINE)
    nodes = ranks // 16
    near, far, message = 15, ranks - 16, 4
    one_node = nodes == 1
    expected = Load(int(one_node), near, near * message, int(not one_node), far, far * message, 4 * ranks)
    assert work == (expected, 16, nodes)


@pytest.mark.parametrize("per_node", [16, 64, 128])
@pytest.mark.parametrize("nodes", [2, 64, 512])
def test_where_node_aware_exchanges_begin_to_pay(per_node, nodes):
    ranks = per_node * nodes
    for below, one, other in (
        (model.forwarders_pay_below(MACHINE, per_node, nodes), model.forwarders, model.direct),
        (model.aggregators_pay_below(MACHINE, per_node, nodes), model.aggregators, model.forwarders),
    ):
        for message in (2 * round(below / 2 * factor) for factor in (0.5, 2.0)):
            work = model.exchange(ranks, per_node, max(2, message) * ranks, MACHINE)
            pays = one(work, MACHINE) < other(work, MACHINE)
            assert pays == (max(2, message) < below), (message, below)


def test_bytes_between_nodes_are_the_same_in_all_ways(monkeypatch):
    work = model.exchange(64, 16, 2**12, MACHINE)
    only_far = mc.Machine(0, 0, 0, 0, 0, 1e-9, 0)
    assert model.direct(work, only_far) == model.forwarders(work, only_far) == model.aggregators(work, only_far) > 0


def test_a_link_is_shared_by_the_ranks_of_a_node():
    assert model.shared_link(MACHINE, 100, 25e9).beta_between == pytest.approx(4e-9)
    assert model.shared_link(MACHINE, 1, 25e9) == MACHINE


def test_published_times_of_small_messages():
    """Open MPI's pull request 12387: 192 ranks on 4 nodes, 1 byte to each: 264 to 272 µs, and 82 to 101 node-aware."""
    work = model.exchange(192, 48, 2 * 192, MACHINE)
    assert model.direct(work, MACHINE) == pytest.approx(268e-6, rel=0.1)
    assert model.forwarders(work, MACHINE) == pytest.approx(82e-6, rel=0.3)


def test_the_table(capsys, monkeypatch):
    monkeypatch.setattr(model, "RANKS", (16, 1024))
    model.predict(MACHINE, model.LINK)
    text = capsys.readouterr().out
    assert "| 1,024 | 64 | 128 KiB | 128 B | 960 |" in text
    assert "inf" not in text


@pytest.mark.parametrize(
    ("seconds", "text"), [(2.5, "2.5 s"), (2.5e-3, "2.5 ms"), (2.5e-6, "2.5 µs"), (1e-9, "0.001 µs")]
)
def test_durations(seconds, text):
    assert model.duration(seconds) == text
