"""Files of real ranks: relative paths, a disk slower than the watchdog waits, ranks that are killed or get signals."""

import math

import numpy as np
import pytest

import meshcomm as mc
from support.paths import PROGRAMS
from support.patience import slowness
from support.small_saves import listed

pytestmark = pytest.mark.any_mpi


def test_ranks_with_folders_of_their_own(launch, tmp_path):
    job = launch(3, PROGRAMS / "files.py", tmp_path, MESHCOMM_TIMEOUT=f"{math.ceil(3 * slowness())}")
    assert job.code == 0, job
    assert job.text.splitlines() == ["meshcomm: the save to a.npy is not complete: nobody waited for it"]
    found = [sorted(path.name for path in (tmp_path / str(rank)).iterdir()) for rank in range(3)]
    assert found == [["a.npy", "a.safetensors", "a.zarr", "c"], [], []]
    np.testing.assert_array_equal(np.load(tmp_path / "0" / "a.npy"), np.arange(30_000.0))


@pytest.mark.parametrize(("suffix", "rank", "last"), [("", 1, 1), ("", 0, 4), (".safetensors", 0, 1), (".zarr", 2, 3)])
def test_one_rank_is_killed_as_it_writes(suffix, rank, last, launch, tmp_path):
    path, new = (tmp_path / name / f"saved{suffix}" for name in ("there", "new"))
    path.parent.mkdir()
    new.parent.mkdir()
    job = launch(3, PROGRAMS / "killed_save.py", path, rank, last)
    assert job.code != 0, job
    assert "Traceback" not in job.text, job

    def found(at):
        return {number for each in mc.load(at, check=not suffix or None).values() for number in set(each.to_numpy())}

    def save(at):
        layout = mc.Layout(["x"], mc.create_mesh([("x", 3)]))
        mc.save(at, {name: mc.distribute(np.full(30_000, 3), layout) for name in "uvw"})

    with mc.simulate(3) as world:
        assert world.run(found, path) == [{1}] * 3, job
        world.run(save, new)
        assert len(listed(path.parent)) > len(listed(new.parent)), "the job that was killed has left something"
        world.run(save, path)
        assert world.run(found, path) == [{3}] * 3
    assert listed(path.parent) == listed(new.parent)


def test_all_ranks_save_at_the_step_at_which_any_of_them_was_asked_by_a_signal(launch, tmp_path):
    job = launch(4, PROGRAMS / "asked.py", tmp_path, "2", "0,1,2,3", "0,3")
    assert job.code == 0, job
    assert sorted(job.text.splitlines()) == [f"rank {rank} saved [3, 6, 9]" for rank in range(4)]
