"""Checksums are compared after loads that read bytes twice, or read over gaps."""

import json
from itertools import product

import numpy as np
import pytest

import meshcomm as mc
from meshcomm import Layout
from meshcomm.core.ranks.simulated_communicator import SimulatedCommunicator
from meshcomm.storage import checksums, verify
from meshcomm.storage.formats import folder
from support.sampling import sampled
from support.saved import mesh_of_4, on, same

U = mc.UNSHARDED
BIG = np.arange(400 * 300, dtype="f8").reshape(400, 300)
LAYOUTS = ([U, U], ["x", U], [U, "y"], ["x", "y"], [U, ("x", "y")])


@pytest.fixture
def ranges(request, monkeypatch):
    """The bytes of a file that have a checksum of their own."""
    for module in (checksums, verify, folder):
        monkeypatch.setattr(module, "CHECKSUM_RANGE", request.param)


INDICES = [None, np.s_[3:200], np.s_[:, 5:9], np.s_[::3, ::2], np.s_[17:18, 3:290]]


@pytest.mark.parametrize(("index", "alpha"), sampled(product(INDICES, [0.0, 10.0])), ids=str)
@pytest.mark.parametrize("ranges", [2**24, 100_000], indirect=True)
@pytest.mark.usefixtures("ranges")
def test_any_load(index, alpha, tmp_path, monkeypatch):
    constants = tmp_path / "constants.json"
    constants.write_text(json.dumps({"alpha_disk": alpha, "gamma": 1 - alpha / 10}))
    monkeypatch.setenv("MESHCOMM_MACHINE", str(constants))

    def program():
        mesh = mesh_of_4()
        assert mc.machine_of(mesh).alpha_disk == alpha
        mc.save(tmp_path / "c", mc.distribute(BIG, Layout(["x", "y"], mesh)))
        for specs in LAYOUTS:
            found = mc.load(tmp_path / "c", Layout(specs, mesh), slices=index, check=True)
            same(found, BIG if index is None else BIG[index])

    on(4, program)


@pytest.mark.parametrize("ranges", [64], indirect=True)
@pytest.mark.usefixtures("ranges")
def test_only_the_first_rank_is_reported_the_checksums_of_all(tmp_path, monkeypatch):
    received, allgather = [], SimulatedCommunicator.allgather

    def counted(communicator, message):
        found = allgather(communicator, message)
        received.append(sum(map(len, found)))
        return found

    monkeypatch.setattr(SimulatedCommunicator, "allgather", counted)
    whole = np.arange(40_000)

    def program():
        layout = Layout(["x"], mc.create_mesh([("x", 4)]))
        mc.save(tmp_path / "c", mc.distribute(whole, layout))
        most = max(received)
        same(mc.load(tmp_path / "c", layout, check=True), whole)
        return most

    assert max(on(4, program)) < 5000
    checks = json.loads((tmp_path / "c" / "manifest.json").read_text())["checksums"]
    assert len(checks) >= whole.nbytes // 64  # the pieces of these are longer
