"""Flight files: what is removed, and what a message says about where a program is."""

import os
import threading
import time

import pytest

import meshcomm as mc
from meshcomm.ranks import flights, launchers, stacks


@pytest.fixture
def folders(tmp_path):
    """Folders in which a job wrote long ago, or now, and others with names alike."""
    for name in ("meshcomm-1", "meshcomm-2", "meshcomm-mine", "other-1"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "rank-0.json").write_text("{}")
    (tmp_path / "meshcomm-1" / ".rank-1.json.abc").write_text("{")
    (tmp_path / "meshcomm-mine" / "thesis.txt").write_text("do not remove")
    (tmp_path / "meshcomm-file").write_text("")
    (tmp_path / "meshcomm-link").symlink_to(tmp_path / "other-1")
    now = time.time()
    for path in tmp_path.iterdir():
        when = now if path.name == "meshcomm-2" else now - 100
        os.utime(path, (when, when), follow_symlinks=False)
    return tmp_path


def test_only_old_folders_of_flights_are_removed(folders):
    before = {path.name for path in folders.iterdir()}
    flights.remove_old(folders, time.time() - 50)
    assert before - {path.name for path in folders.iterdir()} == {"meshcomm-1"}
    assert (folders / "meshcomm-mine" / "thesis.txt").exists()
    assert (folders / "other-1" / "rank-0.json").exists(), "behind a link"


def test_those_of_others_stay(folders, monkeypatch):
    before = sorted(folders.iterdir())
    monkeypatch.setattr(os, "getuid", lambda: 12345678)
    flights.remove_old(folders, time.time() - 50)
    assert sorted(folders.iterdir()) == before


@pytest.mark.parametrize("given", [False, True])
def test_a_job_that_makes_a_folder_removes_old_ones(folders, monkeypatch, given):
    monkeypatch.setattr(flights.tempfile, "tempdir", str(folders))
    monkeypatch.setattr(flights, "KEPT_FOR", 50.0)
    monkeypatch.setattr(os, "getppid", lambda: 4711)  # the name of the folder has it
    monkeypatch.delenv(flights.FOLDER, raising=False)
    if given:
        monkeypatch.setenv(flights.FOLDER, str(folders / "meshcomm-given"))
    flights._write(flights.folder(), "a reason")
    assert flights.read(flights.folder())[0]["reason"] == "a reason"
    assert (folders / "meshcomm-1").exists() == given, "only beside a folder that the job named itself"


def test_steps_of_one_batch_job_have_folders_of_their_own(monkeypatch):
    monkeypatch.delenv(flights.FOLDER, raising=False)
    found = set()
    for step in "01":
        job = {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": step, "SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "2"}
        monkeypatch.setattr(launchers.os, "environ", job)
        found.add(flights.folder().name)
    assert found == {"meshcomm-7.0", "meshcomm-7.1"}


def test_where_a_program_is():
    reached, go_on = threading.Event(), threading.Event()

    def waits(slices):
        reached.set()
        go_on.wait()
        return 0.0

    def inner():
        return mc.from_callback((), "f8", mc.Layout([], mc.Mesh(range(1), {"x": 1})), waits)

    thread = threading.Thread(target=lambda: inner())
    thread.start()
    try:
        assert reached.wait(60)
        calls = stacks.of_program()
    finally:
        go_on.set()
        thread.join()
    here = inner.__code__
    assert calls.startswith(f"{__file__}:{here.co_firstlineno + 1} in inner, called by {__file__}:")
    assert calls.endswith(" in <lambda>"), "not what runs a thread"
    assert stacks.of_program() == ""
    assert "in test_where_a_program_is" in stacks.whole()
