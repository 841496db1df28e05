"""Flight files: what is written, compared and removed, and what a message says about where a program is."""

import os
import stat
import tempfile
import threading
import time
from types import SimpleNamespace

import numpy as np
import pytest

import meshcomm as mc
from meshcomm.core import _tuning
from meshcomm.core.failures import abort, flights, stacks
from meshcomm.core.failures.watch import watch
from meshcomm.core.ranks.meshes import location_in
from meshcomm.core.ranks.rank_sets import RankSet
from meshcomm.tools.cli.flight_files import read as read_flights

OLD, NEW, OTHER = (f"meshcomm-flights-{number:032x}" for number in range(3))


@pytest.fixture(autouse=True)
def nothing_written():
    """Let each test write the flight file of this rank anew."""
    flights._message_cache.cache_clear()
    yield
    flights._message_cache.cache_clear()


@pytest.fixture
def temporary(tmp_path, monkeypatch):
    """The folder of temporary files, in which no flight file is asked for by name."""
    monkeypatch.delenv(flights.FOLDER, raising=False)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


@pytest.fixture
def as_another_user(monkeypatch):
    """A function that lets this process count as that of another user, to whom no file belongs."""
    return lambda: monkeypatch.setattr(os, "getuid", lambda: 12345678)


@pytest.fixture
def folders(tmp_path):
    """Folders in which a job wrote long ago, or now, and others with names alike."""
    for name in (OLD, NEW, OTHER, "meshcomm-traces", "meshcomm-4711", "other-1"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "rank-0.json").write_text("{}")
    (tmp_path / OLD / ".rank-1.json.0123456789abcdef.unfinished").write_text("{")
    (tmp_path / OTHER / "thesis.txt").write_text("do not remove")
    (tmp_path / f"meshcomm-flights-{3:032x}").write_text("")
    (tmp_path / f"meshcomm-flights-{4:032x}").symlink_to(tmp_path / "other-1")
    now = time.time()
    for path in tmp_path.iterdir():
        when = now if path.name == NEW else now - flights.KEPT_FOR - 100
        os.utime(path, (when, when), follow_symlinks=False)
    return tmp_path


def test_only_old_folders_of_flights_are_removed(folders):
    before = {path.name for path in folders.iterdir()}
    flights.remove_old(folders, time.time() - flights.KEPT_FOR)
    assert before - {path.name for path in folders.iterdir()} == {OLD}
    assert (folders / OTHER / "thesis.txt").exists()
    assert (folders / "meshcomm-traces" / "rank-0.json").exists(), "of a trace"
    assert (folders / "other-1" / "rank-0.json").exists(), "behind a link"


def test_those_of_others_stay(folders, as_another_user):
    before = sorted(folders.iterdir())
    as_another_user()
    flights.remove_old(folders, time.time() - flights.KEPT_FOR)
    assert sorted(folders.iterdir()) == before


@pytest.mark.parametrize("given", [False, True])
def test_a_job_that_makes_a_folder_removes_old_ones(folders, temporary, monkeypatch, given):
    if given:
        monkeypatch.setenv(flights.FOLDER, str(folders / "meshcomm-given"))
    flights._write(flights.folder(), "a reason")
    assert read_flights(flights.folder())[0]["reason"] == "a reason"
    assert (folders / OLD).exists() == given, "only beside a folder that the job named itself"


def test_steps_of_one_batch_job_have_folders_of_their_own(environment):
    found = set()
    for step in "01":
        job = {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": step, "SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "2"}
        environment(job)
        found.add(flights.folder().name)
    assert len(found) == 2
    assert all(flights._NAME.fullmatch(name) for name in found)


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


# -- what a rank set knows of its last calls --------------------------------------------------------------------------

ALL = range(10_000)


def notes_after(program):
    """Return what each of two ranks has noted after *program*, which gets two layouts of a mesh."""

    def run():
        mesh = mc.create_mesh([("x", 2)])
        program(mc.Layout(["x", mc.UNSHARDED], mesh), mc.Layout([mc.UNSHARDED, "x"], mesh))
        rank_set = location_in(mesh).rank_set
        return rank_set.calls, rank_set.history(ALL)

    with mc.simulate(2) as world:
        return world.run(run)


def test_ranks_note_alike_and_know_the_arguments_of_calls_with_programs():
    def program(rows, columns):
        tensor = mc.ones((4, 6), "f8", rows)
        for _ in range(2):
            mc.relayout(tensor, columns)
            mc.barrier(rows.mesh)

    (calls, first), (_, second) = notes_after(program)
    assert first == second
    assert len({digest for its in first.values() for digest in its.digests}) == 4, "each digest is of all calls so far"
    last = [first[number] for number in range(calls - 3, calls + 1)]
    layouts = "[x, unsharded] on mesh x=2 over ranks 0 to 1, [unsharded, x] on mesh x=2 over ranks 0 to 1"
    about = f"relayout, (4, 6), float64, {layouts}"
    assert [its.about for its in last] == [about, "", about, ""], "a barrier is agreed on each time"


def test_the_oldest_call_is_left_out_as_it_may_have_noted_more():
    def program(rows, columns):
        for _ in range(2 * _tuning.REMEMBERED_DIGESTS):
            mc.barrier(rows.mesh)

    calls, its = notes_after(program)[0]
    assert sorted(its) == [*range(calls - _tuning.REMEMBERED_DIGESTS + 2, calls + 1)]


def test_only_the_calls_that_are_asked_for_are_reported():
    def program(rows, columns):
        rank_set = location_in(rows.mesh).rank_set
        for _ in range(3):
            mc.barrier(rows.mesh)
        assert [*rank_set.history({rank_set.calls})] == [rank_set.calls]

    notes_after(program)


def test_different_calls_make_different_digests_from_then_on():
    def program():
        mesh = mc.create_mesh([("x", 2)])
        rows, columns = mc.Layout(["x", mc.UNSHARDED], mesh), mc.Layout([mc.UNSHARDED, "x"], mesh)
        small, large = mc.ones((4, 6), "f8", rows), mc.ones((4, 8), "f8", rows)
        for tensor in (small, large):
            mc.relayout(tensor, columns)
        rank_set = location_in(mesh).rank_set
        same = rank_set.calls
        for tensor in (small, large) if mesh.rank else (large, small):  # what relayout would find, and raise
            rank_set.calls += 1
            rank_set.recall(("relayout", tensor.shape, tensor.dtype, rows, columns, None, None))
        return same, rank_set.history(ALL)

    with mc.simulate(2) as world:
        (same, first), (_, second) = world.run(program)
    assert {its for its in first if first[its] != second[its]} == {same + 1, same + 2}
    assert "(4, 8)" in first[same + 1].about
    assert "(4, 6)" in second[same + 1].about


def test_what_was_noted_before_one_rank_had_an_error_is_forgotten():
    def program():
        mesh = mc.create_mesh([("x", 2)])
        mc.barrier(mesh)
        with pytest.raises(mc.MeshcommError):
            mc.from_local(np.zeros((2,) * (1 + mesh.rank)), mc.Layout(["x"], mesh))  # wrong on one of them
        mc.barrier(mesh)
        rank_set = location_in(mesh).rank_set
        return rank_set.calls, rank_set.history(ALL)

    with mc.simulate(2) as world:
        first, second = world.run(program)
    assert first == second
    assert [*first[1]] == [first[0]]


def test_what_no_text_is_made_of_is_left_out():
    rank_set = RankSet(SimpleNamespace(size=2, rank=0), range(2))
    key = ("sum", object(), None, (object(), ("x", np.dtype("i4"), (1, 2))), 10**5000, "y" * 500)
    rank_set.remember(key, SimpleNamespace(run=print, number=5, used=0))
    rank_set.calls = 1
    rank_set.recall(key)
    about = rank_set.history(ALL)[1].about
    assert about.startswith("sum, ((x, int32, (1, 2))), <int>, yyy")
    assert (len(about), about[-4:]) == (400, "y...")


@pytest.fixture
def rank_sets(fresh_watch):
    """A function that makes a set of ranks 0-1 which makes a call."""

    def make(name):
        rank_set = RankSet(SimpleNamespace(size=2, rank=0, ranks_in_comm_world=tuple), range(2))
        rank_set.name = name
        watch.recent.append(("barrier", rank_set, 1, 0.0))

    return make


def test_calls_are_distinguished_by_the_meshes_that_they_are_on(rank_sets):
    """A mesh that was closed and made again has the same ranks, and so have meshes on duplicates of a communicator."""
    for name in ("0-1 #1", "0-1 #2", "", "0-1 #1"):
        rank_sets(name)
    watch.recent.append(("create_mesh", None, 0, 0.0))
    assert [call["rank_set"] for call in flights._calls(0.0)] == ["0-1 #1", "0-1 #2", "", "0-1 #1", ""]
    assert [call["ranks"] for call in flights._calls(0.0)] == [*4 * ["0-1"], ""]


def test_digests_are_written_and_read(rank_sets, tmp_path):
    rank_sets("0-1 #1")
    (_, rank_set, _, _) = watch.recent[-1]
    rank_set.calls = 1
    rank_set.note(3)
    flights._write(tmp_path, "a reason")
    (read,) = read_flights(tmp_path)
    assert read["calls"][0]["digests"] == [f"{rank_set.call_digest % 2**64:x}"]


def test_flights_are_written_once_and_read(tmp_path, monkeypatch):
    monkeypatch.setenv("MESHCOMM_FLIGHTS", str(tmp_path / "new"))
    watch.recent.append(("to_numpy", None, 7, time.monotonic()))
    assert flights.write("because").endswith(f"python -m meshcomm flights {tmp_path / 'new'}")
    (flight,) = read_flights(tmp_path / "new")
    assert (flight["reason"], flight["calls"][-1]["operation"]) == ("because", "to_numpy")
    assert "test_flights_are_written_once" in flight["stack"]


def test_without_flight_files_stacks_are_reported(monkeypatch):
    monkeypatch.setenv("MESHCOMM_FLIGHTS", "0")
    assert "in test_without_flight_files_stacks_are_reported" in flights.write("because")


def test_the_recorder_keeps_64_calls():
    for number in range(100):
        watch.recent.append(("relayout", None, number, 0.0))
    assert len(watch.recent) == 64


def test_flights_are_for_their_user_only(temporary):
    assert "python -m meshcomm flights" in flights.write("because")
    (folder,) = temporary.iterdir()
    (file,) = folder.iterdir()
    assert (stat.S_IMODE(folder.stat().st_mode), stat.S_IMODE(file.stat().st_mode)) == (0o700, 0o600)


def test_a_file_is_replaced_and_nothing_behind_a_link_is_changed(tmp_path, monkeypatch):
    monkeypatch.setenv("MESHCOMM_FLIGHTS", str(tmp_path))
    mine = tmp_path / "mine"
    mine.write_text("mine")
    rank = abort.comm_world()[0]
    (tmp_path / f"rank-{rank}.json").symlink_to(mine)
    for _ in range(2):
        flights._message_cache.cache_clear()
        flights.write("because")
    assert mine.read_text() == "mine"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mine", f"rank-{rank}.json"]


@pytest.mark.parametrize("kind", ["link", "other user"])
def test_a_folder_that_somebody_else_made_first_is_not_used(temporary, as_another_user, kind):
    (temporary / "elsewhere").mkdir()
    if kind == "link":
        flights.folder().symlink_to(temporary / "elsewhere")
    else:
        flights.folder().mkdir()
        as_another_user()
    assert "belongs to somebody else" in flights.write("because")
    assert list(flights.folder().iterdir()) == []
