"""The examples give right results on any number of ranks, and say so when they do not."""

import re

import pytest

from support.paths import EXAMPLES
from support.plates import digest_at_the_end

pytestmark = pytest.mark.any_mpi

FLOW, TERRAIN = EXAMPLES / "navier_stokes.py", EXAMPLES / "terrain_fft.py"
SHORT = ("--n", "16", "--steps", "3")


def verdicts(job):
    return re.findall("^(right|WRONG): ", job.text, re.MULTILINE)


@pytest.mark.parametrize(
    ("ranks", "options", "count"),
    [
        (1, ("--mask",), 4),
        (3, ("--dimensions", "3", "--mask", "--pencils"), 3),
        (4, ("--pencils",), 4),
        (2, (), 4),
        (4, ("--dimensions", "3", "--pencils"), 3),
        (4, ("--n", "7"), 4),  # each rank has two planes of the spectrum at most; the grid has an odd length, too
    ],
)
def test_flow_is_right(launch, ranks, options, count):
    job = launch(ranks, FLOW, *SHORT, *options)
    assert job.code == 0, job
    assert verdicts(job) == ["right"] * count


@pytest.mark.slow
def test_flow_has_the_energy_that_others_found(launch):
    """Both numbers are in the regression test of spectralDNS, in its demo TG.py."""
    job = launch(
        2, FLOW, "--dimensions", "3", "--mask", "--n", "32", "--nu", "0.000625", "--dt", "0.01", "--steps", "10"
    )
    energy, enstrophy = re.search(r"energy ([\d.]+), enstrophy ([\d.]+)", job.text).groups()
    assert float(energy) == pytest.approx(0.124953117517, abs=1e-11)
    assert float(enstrophy) == pytest.approx(0.375249930801, abs=1e-8)


@pytest.mark.parametrize("suffix", [".nc", ".zarr"])
def test_flow_goes_on_from_a_file_that_others_read(launch, suffix, tmp_path):
    xarray = pytest.importorskip("xarray")
    path = tmp_path / f"flow{suffix}"
    for ranks, steps in ((1, 2), (2, 4)):
        job = launch(ranks, FLOW, "--n", "16", "--steps", steps, "--series", path)
        assert job.code == 0, job
        assert verdicts(job) == ["right"] * 4
        assert f"2 steps on {ranks} rank" in job.text
    engine = {"engine": "zarr", "consolidated": False} if suffix == ".zarr" else {}
    with xarray.open_dataset(path, **engine) as flow:
        assert flow.sizes == {"time": 4, "x": 24, "y": 24}
        assert flow.time.values.round(9).tolist() == [0.02, 0.04, 0.06, 0.08]
        assert flow.attrs["viscosity"] == 0.01
        energy = 0.5 * (flow.u0**2 + flow.u1**2).mean(("x", "y"))
        assert (energy.diff("time") < 0).all()


@pytest.mark.parametrize(("ranks", "moved"), [(3, "0 B in 0 messages"), (4, "64.0 KiB in 1 message")])
@pytest.mark.slow
def test_a_block_of_a_transformer_is_numpys(launch, ranks, moved):
    job = launch(ranks, EXAMPLES / "transformer.py")
    assert job.code == 0, job
    assert f"each device receives at most {moved}, " in job.text
    assert ("result: partial sums over model" in job.text) == (ranks == 4)


def test_a_program_that_is_killed_goes_on_with_fewer_ranks_to_the_same_bits(launch, tmp_path):
    job = launch(3, EXAMPLES / "restart.py", tmp_path, "--kill-at", "130")
    assert job.code != 0, job
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-000000050", "step-000000100"]
    job = launch(2, EXAMPLES / "restart.py", tmp_path)
    assert job.code == 0, job
    assert f"ranks: {digest_at_the_end()}\n" in job.text, job


@pytest.mark.slow
def test_flow_without_small_waves_is_found_wrong(launch):
    job = launch(2, FLOW, "--dimensions", "3", "--n", "6")
    assert job.code == 1, job
    assert verdicts(job) == ["WRONG", "right", "right"]


@pytest.mark.slow
def test_flow_is_drawn(launch, tmp_path):
    pytest.importorskip("matplotlib")
    job = launch(2, FLOW, *SHORT, "--dimensions", "3", "--picture", tmp_path / "vorticity.png")
    assert job.code == 0, job
    assert verdicts(job) == ["right"] * 3
    assert (tmp_path / "vorticity.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_terrain_is_smoothed(launch, tmp_path):
    pytest.importorskip("matplotlib")
    job = launch(3, TERRAIN, tmp_path / "terrain.png")
    assert job.code == 0, job
    assert "on 3 ranks; picture" in job.text
