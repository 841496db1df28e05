"""The constants of a machine, from times that a machine with known ones would take, and from a simulated world."""

import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import meshcomm as mc
from meshcomm.core.layouts.machine import CONSTANTS
from meshcomm.core.ranks import hosts
from meshcomm.core.ranks.meshes import location_in
from meshcomm.core.ranks.simulate import current_world
from meshcomm.tools.cli import fit

MACHINE = mc.Machine(3e-6, 1e-6, 2e-10, 8e-6, 5e-6, 7e-10, 1e-10)
LATENCY = {"wait_within", "alpha_within", "wait_between", "alpha_between"}


NOWHERE = Path("there/is/no/such/folder")  # so that no disk is measured


def calibrated(nodes, monkeypatch, times=None, folder=NOWHERE):
    """Return the calibration of ranks on these *nodes*, and the probes; *times* says how long probes take."""
    seen = []

    def measured(communicator, probes):
        for probe in probes:
            if probe.run is not None:
                probe.run()
        if communicator.rank == 0:
            seen.extend(probes)
        communicator.barrier(10.0)
        return (times or exactly)([probe.load for probe in probes])

    monkeypatch.setattr(fit, "_times", measured)
    monkeypatch.setattr(fit, "MESSAGES", (8, 64, 512, 4096))
    monkeypatch.setattr(hosts, "this_host", lambda: f"host {nodes[current_world().rank]}")
    with mc.simulate(len(nodes)) as world:
        found = world.run(lambda: fit.calibrate(location_in(mc.create_mesh()).rank_set, folder))
    assert all(each == found[0] for each in found), "all ranks find the same"
    return found[0], seen


def exactly(loads):
    return [MACHINE.seconds(load) for load in loads]


def test_constants_are_found_again(monkeypatch):
    nodes = [5, 5, 5, 2, 2, 2]
    found, _ = calibrated(nodes, monkeypatch)
    assert found.constants.keys() == set(CONSTANTS)
    for name, value in found.constants.items():
        assert value == pytest.approx(getattr(MACHINE, name), rel=1e-6), name
    assert found.within.worst == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("nodes", "measured"),
    [
        ([0, 0], {"within"}),
        ([0, 0, 0], {"within"}),
        ([0, 1], {"between"}),
        ([0, 1, 2], {"between"}),
        ([0, 0, 1], {"within", "between"}),
        ([0, 1, 0, 1], {"within", "between"}),
        ([0, 0, 0, 1, 1, 2], {"within", "between"}),
    ],
)
def test_what_can_be_measured_depends_on_the_nodes(nodes, measured, monkeypatch):
    found, probes = calibrated(nodes, monkeypatch)
    assert {kind for kind in ("within", "between") if getattr(found, kind) is not None} == measured
    assert found.memory.constants == {"gamma": pytest.approx(MACHINE.gamma)}
    # What a wait and what a message cost need not be distinguished, but together they are right.
    machine = replace(mc.Machine(), **found.constants)
    for probe in probes:
        assert machine.seconds(probe.load) == pytest.approx(MACHINE.seconds(probe.load), rel=1e-6), probe.load


def test_files_are_measured_where_all_ranks_can_make_one(monkeypatch, tmp_path):
    found, _ = calibrated([0, 0], monkeypatch)
    assert found.disk is None
    found, _ = calibrated([0, 0], monkeypatch, folder=tmp_path)
    assert found.disk.constants.keys() == {"alpha_disk", "beta_disk"}
    assert all(0 <= value < 1e-3 for value in found.disk.constants.values())
    assert list(tmp_path.iterdir()) == []


def test_one_rank_is_too_few():
    with mc.simulate(1) as world, pytest.raises(mc.MeshError, match="calibrate needs 2 ranks or more"):
        world.run(lambda: fit.calibrate(location_in(mc.create_mesh()).rank_set, NOWHERE))


def test_times_are_those_of_the_slowest_rank_and_the_fastest_run():
    with mc.simulate(2) as world:
        (took,), (again,) = world.run(lambda: fit.fastest(everyone(), [sleeper()]))
    assert 2e-3 <= took == again < 5e-3


def everyone():
    return location_in(mc.create_mesh()).rank_set.everyone.communicator()


def sleeper():
    """Return what naps on rank 1 alone, for less time when it has done so some times."""
    naps = iter([5e-3] * 20 + [2e-3] * 1000)
    return (lambda: time.sleep(next(naps))) if mc.create_mesh().rank == 1 else None


# -- fits -------------------------------------------------------------------------------------------------------------

COUNTS = np.array(
    [[1, messages, messages * size] for messages in (1, 3) for size in (8, 512, 8192, 2**18, 2**22)], float
)
COSTS = np.array([4e-6, 1e-6, 2e-10])


def test_bad_measurements_do_not_matter():
    times = COUNTS @ COSTS
    times[[0, 7]] *= [40, 9]
    assert fit.fit(COUNTS, times) == pytest.approx(COSTS)


def test_noise_moves_a_fit_by_no_more_than_itself():
    random = np.random.default_rng(7)
    times = COUNTS @ COSTS * random.uniform(0.9, 1.1, len(COUNTS))
    fitted = fit.fit(COUNTS, times)
    assert np.all(fit._factors(COUNTS @ fitted, COUNTS @ COSTS) < 1.2)


def test_no_cost_is_negative():
    times = np.array([10.0, 9.0, 8.0, 7.0]) * 1e-6  # less for more bytes
    fitted = fit.fit(np.array([[1.0, 8.0], [1, 64], [1, 512], [1, 4096]]), times)
    assert np.all(fitted >= 0)
    assert fitted[0] == pytest.approx(8.5e-6, rel=0.1)


def test_what_is_known_is_taken_off():
    known = np.linspace(1e-6, 5e-6, len(COUNTS))
    assert fit.fit(COUNTS, COUNTS @ COSTS + known, known) == pytest.approx(COSTS)
