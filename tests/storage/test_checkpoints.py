"""Checkpoints of a run: which steps are kept, and which one is restored when some are damaged or not complete."""

import warnings

import numpy as np
import pytest

import meshcomm as mc
from meshcomm import Layout
from meshcomm.storage import checkpoints, files
from support.reference import on_ranks
from support.saved import damage, mesh_of_4, on, same

A = np.arange(7 * 5, dtype="f8").reshape(7, 5)


def tree(step):
    mesh = mesh_of_4()
    return {"w": mc.distribute(A + step, Layout(["x", "y"], mesh)), "step": step}


def save_here(folder, steps, **options):
    run = mc.Checkpoints(folder, **options)
    for step in steps:
        run.save(step, tree(step), metadata={"step": step})
    return run.steps()


def save_steps(folder, steps, **options):
    return on(4, lambda: save_here(folder, steps, **options))[0]


def restored(folder, **options):
    """Return the step that four ranks restore, all the same, and what they warn of."""

    def program():
        step, found = mc.Checkpoints(folder).restore({"w": Layout(["y", mc.UNSHARDED], mesh_of_4())}, **options)
        same(found["w"], A + step)
        assert found["step"] == step
        return step

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        steps = on(4, program)
    assert len(set(steps)) == 1
    return steps[0], [str(each.message) for each in caught]


@pytest.mark.parametrize(
    ("options", "left"),
    [
        ({}, [3, 4, 5]),
        ({"keep": 1}, [5]),
        ({"keep": None}, [0, 1, 2, 3, 4, 5]),
        ({"keep": 1, "keep_every": 2}, [0, 2, 4, 5]),
    ],
)
def test_which_steps_are_kept(options, left, tmp_path):
    assert save_steps(tmp_path / "run", range(6), **options) == left
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == [f"step-{step:09d}" for step in left]


def test_the_newest_is_restored(tmp_path):
    save_steps(tmp_path, [10, 30, 20])
    assert restored(tmp_path) == (30, [])
    assert restored(tmp_path, step=10) == (10, [])
    with mc.open(tmp_path / "step-000000020") as file:
        assert file.metadata == {"step": 20}
        assert file["w"].layout == "[x, y] on x=2, y=2"


def test_damaged_steps_are_passed_over(tmp_path):
    save_steps(tmp_path, range(5), keep=None)
    damage(tmp_path / "step-000000004")
    (tmp_path / "step-000000003" / "manifest.json").write_text("{}")
    (tmp_path / "step-000000002" / "manifest.json").unlink()
    run = mc.Checkpoints(tmp_path)
    assert run.steps() == [0, 1, 3, 4]
    assert run.latest() == 4  # it can be read; its data are wrong
    step, warned = restored(tmp_path)
    assert step == 1
    assert len(warned) == 2, "one rank warns of each"
    assert "step-000000004 is passed over" in warned[0]
    assert "is damaged between bytes 0 and" in warned[0]
    assert "step-000000003 is passed over" in warned[1]
    with pytest.raises(mc.CheckpointError, match="is damaged"):
        restored(tmp_path, step=4)


def test_a_lost_data_file_is_passed_over(tmp_path):
    save_steps(tmp_path, range(2))
    next((tmp_path / "step-000000001").glob("data-*")).unlink()
    step, warned = restored(tmp_path)
    assert (step, len(warned)) == (0, 1)
    assert mc.Checkpoints(tmp_path).latest() == 0


def test_damaged_steps_do_not_count_as_kept(tmp_path):
    save_steps(tmp_path, [0, 1])
    (tmp_path / "step-000000001" / "manifest.json").write_text("{}")
    assert save_steps(tmp_path, [2], keep=2) == [0, 1, 2]
    assert save_steps(tmp_path, [3], keep=2) == [2, 3]


def test_a_step_before_the_newest_is_not_removed_at_once(tmp_path):
    save_steps(tmp_path, [10, 20])
    assert save_steps(tmp_path, [5], keep=1) == [5, 20]
    assert save_steps(tmp_path, [6], keep=1) == [6, 20]


def test_what_was_cut_off_is_removed_by_the_next_save(tmp_path):
    save_steps(tmp_path, [1])
    cut_off = tmp_path / "step-000000002"
    cut_off.mkdir()
    (cut_off / "data-0123456789abcdef").write_bytes(b"some")
    with_others = tmp_path / "step-000000003"
    with_others.mkdir()
    (with_others / "notes.txt").write_text("mine")
    held = tmp_path / "step-000000004"
    held.mkdir()
    (held / "data-0123456789abcdef").write_bytes(b"some")
    with files.for_writing(held / "data-0123456789abcdef") as file:
        file.lock()
        assert save_steps(tmp_path, [5]) == [1, 5]
        assert not cut_off.exists()
        assert with_others.exists(), "it holds what no save has made"
        assert held.exists(), "its save goes on"
    assert save_steps(tmp_path, [6]) == [1, 5, 6]
    assert not held.exists()


@pytest.mark.parametrize("left", [True, False])
def test_another_job_saves_and_removes_steps_meanwhile(left, tmp_path, monkeypatch):
    save_steps(tmp_path, [1, 2])
    real, new = checkpoints.load, tmp_path / "step-000000003"

    def load(path, *args, **options):
        if mesh_of_4().rank == 0 and not new.exists():  # step 2 is chosen
            path.rename(new)
            if left:
                path.mkdir()
        mc.barrier(mesh_of_4())
        return real(path, *args, **options)

    monkeypatch.setattr(checkpoints, "load", load)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert on(4, lambda: mc.Checkpoints(tmp_path).restore()[0]) == [3] * 4
    assert not caught, "a step that is gone is not damaged"


def test_there_is_none(tmp_path):
    run = mc.Checkpoints(tmp_path / "run")
    assert (run.steps(), run.latest()) == ([], None)
    with pytest.raises(FileNotFoundError, match="run has no checkpoint"):
        restored(tmp_path / "run")
    save_steps(tmp_path / "run", [1])
    with pytest.raises(FileNotFoundError, match=r"run has no step 2; it has \[1\]"):
        restored(tmp_path / "run", step=2)


def test_save_in_the_background(tmp_path):
    def program():
        run = mc.Checkpoints(tmp_path, keep=1)
        run.save(1, tree(1))
        content = tree(2)
        request = run.start_save(2, content)
        content["w"] += 100
        assert run.latest() == 1
        request.wait()
        request.wait()
        assert request.test()
        mc.barrier(content["w"].mesh)
        assert run.steps() == [2]

    on(4, program)
    assert restored(tmp_path)[0] == 2


@on_ranks(4)
def test_two_saves_in_the_background(tmp_path):
    run = mc.Checkpoints(tmp_path, keep=2)
    requests = [run.start_save(step, tree(step)) for step in range(3)]
    for request in requests:
        request.wait()
    mc.barrier(mesh_of_4())
    assert run.steps() == [1, 2]


@on_ranks(4)
def test_restore_into_tensors(tmp_path):
    save_here(tmp_path, [1, 2])
    run = mc.Checkpoints(tmp_path)
    layout = Layout([mc.UNSHARDED, "x"], mesh_of_4())
    out = {"w": mc.zeros(A.shape, "f8", layout)}
    step, found = run.restore(out=out)
    assert found is out
    same(out["w"], A + step)
    with pytest.raises(mc.CheckpointError, match="has no array 'new', which out has"):
        run.restore(out={"new": out["w"]})
    with pytest.raises(mc.ShapeError):
        run.restore(out={"w": mc.zeros((2, 2), "f8", layout)})


@on_ranks(4)
def test_a_mesh_of_some_ranks(tmp_path):
    mesh = mc.create_mesh([("x", 2)], devices=[3, 1])
    run = mc.Checkpoints(tmp_path, mesh=mesh)
    run.save(1, {"w": mc.distribute(A, Layout(["x", mc.UNSHARDED], mesh))})
    mc.barrier(mesh_of_4())
    step, found = run.restore()
    assert step == 1
    assert found["w"].mesh is mesh
    same(found["w"], A)


def test_ranks_that_save_other_steps(tmp_path):
    with pytest.raises(mc.CollectiveMismatch):
        on(4, lambda: mc.Checkpoints(tmp_path).save(mesh_of_4().rank, tree(1)))


@pytest.mark.parametrize(("keep", "every"), [(0, None), (3, 0), (True, None), (1.5, None)])
def test_wrong_numbers(keep, every, tmp_path):
    with pytest.raises(ValueError, match="keep"):
        mc.Checkpoints(tmp_path, keep, every)
    with pytest.raises(ValueError, match="step"):
        mc.Checkpoints(tmp_path).path_of(-1)


@pytest.mark.parametrize(
    "call",
    [
        lambda run: run.save(1, tree(1)),
        lambda run: run.start_save(1, tree(1)),
        lambda run: run.restore({"w": Layout(["x", "y"], mesh_of_4())}),
        lambda run: run.restore({"w": Layout(["x", "y"], mesh_of_4())}, step=1),
        lambda run: run.steps(),
        lambda run: run.latest(),
    ],
)
def test_a_file_is_no_run(call, tmp_path):
    path = tmp_path / "u.npy"
    np.save(path, A)

    def program():
        with pytest.raises(mc.CheckpointError, match=r"u\.npy is a file, no folder"):
            call(mc.Checkpoints(path))

    on(4, program)
    assert [each.name for each in tmp_path.iterdir()] == ["u.npy"]


def test_requests_say_how_they_are(tmp_path):
    def program():
        here, _ = (mc.create_mesh([("x", 1)], devices=[rank]) for rank in range(2))
        run, t = mc.Checkpoints(tmp_path / "run", mesh=here), mc.ones(3, int, Layout(["x"], here))
        request, of_run = mc.start_save(tmp_path / "a.npy", t), run.start_save(1, {"w": t})
        begun = [repr(request), repr(of_run)]
        request.wait()
        of_run.wait()
        return [*begun, repr(request), repr(of_run)]

    inside, outside = on(2, program)
    path, step = str(tmp_path / "a.npy"), str(tmp_path / "run" / "step-000000001")
    assert inside == [
        f"SaveRequest({path!r}; in flight)",
        f"CheckpointRequest(SaveRequest({step!r}; in flight))",
        f"SaveRequest({path!r}; complete)",
        f"CheckpointRequest(SaveRequest({step!r}; complete))",
    ]
    nothing = "SaveRequest(outside of its mesh; complete)"
    assert outside == [nothing, f"CheckpointRequest({nothing})"] * 2


def test_values_of_each_rank(tmp_path):
    path, states = tmp_path / "run", {}

    def own(rank):
        arrays = [np.arange(rank), np.float32(rank), np.array(["a"], "U3")]
        return {"rank": rank, "none": None, "texts": ("ä", [1.5, np.inf, 2j]), "arrays": arrays, "big": 2**100 + rank}

    def state(rank):
        kinds = (np.random.PCG64, np.random.MT19937, np.random.Philox)
        return [kind(rank).state for kind in kinds] + [mc.random.default_rng(rank).state]

    def program():
        mesh = mc.create_mesh([("x", 3)])
        t = mc.ones(5, int, Layout(["x"], mesh))
        tree = {"t": t, "of": [mc.per_rank(own(mesh.rank)), mc.per_rank(state(mesh.rank))], "n": 10 + mesh.rank}
        mc.save(path, tree)
        mc.start_save(tmp_path / "later", tree).wait()
        for where in (path, tmp_path / "later"):
            found = mc.load(where)
            np.testing.assert_equal(found["of"], [own(mesh.rank), state(mesh.rank)])
            assert found["n"] == 10
            assert found["of"][0]["arrays"][1].dtype == np.float32
        states[mesh.rank] = np.random.PCG64()
        states[mesh.rank].state = found["of"][1][0]

    on(3, program)
    assert states[2].random_raw() == np.random.PCG64(2).random_raw()
    found = on(2, lambda: mc.load(path)["of"])[1]
    np.testing.assert_equal(found, [[own(rank) for rank in range(3)], [state(rank) for rank in range(3)]])
    with pytest.raises(TypeError, match="holds arrays only"):
        on(1, lambda: mc.save(tmp_path / "a.npz", {"a": mc.per_rank(1)}))
    for value in (b"bytes", {1: 2}, object(), np.array([{}])):
        with pytest.raises(TypeError, match="per_rank at 'a': "):
            on(2, lambda value=value: mc.save(tmp_path / "c", {"a": mc.per_rank(value)}))
    with pytest.raises(mc.CollectiveMismatch):
        on(2, lambda: mc.save(tmp_path / "c", {"a": mc.per_rank(1) if mc.create_mesh([("x", 2)]).rank else 1}))
