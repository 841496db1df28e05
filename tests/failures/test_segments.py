"""What MPI leaves in /dev/shm: files of this user that nobody has open are removed, and no others."""

import mmap
import os

import pytest

from meshcomm.core.failures import segments
from meshcomm.tools.cli.main import main


@pytest.fixture
def shm(tmp_path, monkeypatch):
    """A folder as /dev/shm is, in which each name has a file of 4096 bytes."""
    monkeypatch.setattr(segments, "FOLDER", tmp_path)
    for name in ("mpich_shm_3f036e3_0", "mpich_shm_8e2d2266_1", "sm_segment.host.0.1.0", "mine", "mpich_shm_notes"):
        (tmp_path / name).write_bytes(bytes(4096))
    return tmp_path


def names(folder):
    return {path.name for path in folder.iterdir()}


def test_files_that_nobody_has_open_are_removed(shm, capsys):
    before = names(shm)
    assert main(["clean", "--dry-run"]) == 0
    assert (names(shm), "found" in capsys.readouterr().out) == (before, True)
    assert main(["clean"]) == 0
    assert names(shm) == {"mine", "mpich_shm_notes"}
    assert "3 files, 12.0 KiB" in capsys.readouterr().out
    assert main(["clean"]) == 0
    assert "nothing of yours" in capsys.readouterr().out


def test_files_that_a_process_has_open_or_mapped_stay(shm):
    with (shm / "mpich_shm_3f036e3_0").open("r+b") as file:
        assert [path.name for path in segments.left_behind()] == ["mpich_shm_8e2d2266_1", "sm_segment.host.0.1.0"]
        mapped = mmap.mmap(file.fileno(), 4096)
    assert "mpich_shm_3f036e3_0" not in [path.name for path in segments.left_behind()]
    mapped.close()
    assert len(segments.left_behind()) == 3


@pytest.mark.skipif(os.getuid() != 0, reason="only root can make files of another user")
def test_files_of_others_and_what_is_behind_links_stay(shm):
    os.chown(shm / "mpich_shm_3f036e3_0", 47110, 47110)
    (shm / "mpich_shm_8e2d2266_1").unlink()
    (shm / "mpich_shm_8e2d2266_1").symlink_to(shm / "mine")
    assert [path.name for path in segments.left_behind()] == ["sm_segment.host.0.1.0"]


def test_a_rank_that_ends_its_job_removes_what_it_has_mapped(shm):
    with (shm / "mpich_shm_3f036e3_0").open("r+b") as file, (shm / "mine").open("r+b") as other:
        mapped = [mmap.mmap(each.fileno(), 4096) for each in (file, other)]
    segments.remove_mapped()
    assert names(shm) == {"mpich_shm_8e2d2266_1", "sm_segment.host.0.1.0", "mine", "mpich_shm_notes"}
    assert len(mapped) == 2
