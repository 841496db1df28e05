"""The second load of a file: what was decided counts, as long as the file does not change in any way."""

import os
import sys
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

import meshcomm as mc
from meshcomm import Layout
from meshcomm.storage import files, kept
from support.saved import SUFFIXES
from support.tensors import on

U = mc.UNSHARDED
SMALL, LARGE = (10, 8), (200, 100)
LIMIT = 165  # calls of Python functions of ours on a simulated rank, of which the simulator has some 40
OURS = str(Path(mc.__file__).parent)


@pytest.fixture
def settled(monkeypatch):
    """Let the clock of files have ticks so short that a file that was written just now is not looked at again."""
    monkeypatch.setattr(kept, "TICK", -(10**18))


def rows():
    return Layout(["x", U], mc.create_mesh([("x", 2)]))


def functions_of(call):
    """Return how many functions of ours run in a *call* on this rank."""
    names = []

    def note(frame, event, argument):
        if event == "call" and frame.f_code.co_filename.startswith(OURS):
            names.append(frame.f_code.co_qualname)

    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(None)
    return len(names)


@pytest.mark.parametrize("shape", [SMALL, LARGE])
def test_it_is_short_and_agrees_once(shape, tmp_path, settled):
    path = tmp_path / "a.npy"
    np.save(path, np.arange(np.prod(shape)).reshape(shape))

    def program():
        layout = rows()
        mc.barrier(layout.mesh)
        with mc.count() as first:
            mc.load(path, layout)
        with mc.count() as again:
            tensor = mc.load(path, layout)
        functions = min(functions_of(lambda: mc.load(path, layout)) for _ in range(3))
        assert tensor.local[0, 0] == np.prod(shape) // 2 * layout.mesh.rank
        return first.agreements, again.agreements, functions

    for first, again, functions in on(2, program):
        assert (first, again) == (3, 1)
        assert functions <= LIMIT


def put(path, array):
    np.save(path, array)


def replaced(path, array):
    np.save(path.with_name("new.npy"), array)
    os.replace(path.with_name("new.npy"), path)


def moved_away(path, array):
    path.rename(path.with_name("old.npy"))
    np.save(path, array)


CHANGES = {
    "rewritten": lambda path, old: put(path, old + 1),
    "rewritten with the same content": lambda path, old: put(path, old),
    "another dtype of the same size": lambda path, old: put(path, old.view("f8")),
    "another order": lambda path, old: put(path, np.asfortranarray(old)),
    "another shape": lambda path, old: put(path, old.reshape(old.shape[::-1])),
    "longer": lambda path, old: put(path, np.concatenate([old, old])),
    "replaced": lambda path, old: replaced(path, old * 2),
    "moved away": lambda path, old: moved_away(path, old * 3),
}


@pytest.mark.parametrize("clock", ["goes", "has gone on", "stands still"])
@pytest.mark.parametrize("shape", [SMALL, LARGE])
@pytest.mark.parametrize("change", CHANGES)
def test_a_file_that_has_changed_is_read_anew(change, shape, clock, tmp_path, request, monkeypatch):
    """Also if the file system does not tell, as its *clock* stands still, and numbers are used again."""
    path, old, now = tmp_path / "a.npy", np.arange(np.prod(shape)).reshape(shape), time.time_ns()
    if clock == "has gone on":
        request.getfixturevalue("settled")
    if clock == "stands still":
        monkeypatch.setattr(files, "identity", lambda path, opens=False: (1, os.stat(path).st_size, now))
    np.save(path, old)

    def program():
        layout = rows()
        for _ in range(2):
            assert np.array_equal(mc.load(path, layout).to_numpy(), old)
        for writer in (0, 1):  # either rank
            if layout.mesh.rank == writer:
                np.save(path, old)
            mc.barrier(layout.mesh)
            mc.load(path, layout)
            if layout.mesh.rank == writer:
                time.sleep(0.03 if clock == "has gone on" else 0)
                CHANGES[change](path, old)
            mc.barrier(layout.mesh)
            with mc.open(path) as file:
                opened = file["array"][...]
            for _ in range(2):
                tensor = mc.load(path, layout)
                new = np.load(path)
                assert (tensor.shape, tensor.dtype, tensor.to_numpy().tobytes()) == (
                    new.shape,
                    new.dtype,
                    new.tobytes(),
                )
                assert np.array_equal(opened, new)
            mc.barrier(layout.mesh)

    on(2, program)


@pytest.mark.parametrize("shape", [SMALL, LARGE])
def test_a_file_that_is_cut_off_or_gone(shape, tmp_path, settled):
    path, old = tmp_path / "a.npy", np.arange(np.prod(shape)).reshape(shape)
    np.save(path, old)

    def program():
        layout = rows()
        mc.load(path, layout)
        mc.barrier(layout.mesh)
        os.truncate(path, 200)
        with pytest.raises(mc.CheckpointError, match="has 200 bytes"):
            mc.load(path, layout)
        mc.barrier(layout.mesh)
        path.unlink(missing_ok=True)
        with pytest.raises(FileNotFoundError):
            mc.load(path, layout)
        with pytest.raises(FileNotFoundError):
            mc.open(path)
        mc.save(path, mc.distribute(old, layout))
        assert np.array_equal(mc.load(path, layout).to_numpy(), old)

    on(2, program)


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_saves_between(suffix, tmp_path):
    """Each load gives what was saved last, and each has arrays that were added."""
    path = tmp_path / f"saved{suffix}"

    def program():
        layout = rows()
        for number in range(6):
            small, large = (mc.full(shape, number + 0.5, float, layout) for shape in (SMALL, LARGE))
            tree = large if suffix == ".npy" else {"s": small, "l": large}
            mc.save(path, tree)
            for _ in range(3):
                loaded = mc.load(path, layout)
                for each in [loaded] if suffix == ".npy" else loaded.values():
                    assert float(each.max()) == float(each.min()) == number + 0.5
        if suffix in (".h5", ".zarr"):
            mc.save(path, {"added": small}, mode="a")
            assert sorted(mc.load(path, layout)) == ["added", "l", "s"]

    on(2, program)


@pytest.mark.parametrize("shape", [SMALL, LARGE])
def test_one_rank_sees_no_file(shape, tmp_path, settled, monkeypatch):
    """Or another one, or cannot read it: all ranks raise that, and then go on."""
    path, old = tmp_path / "a.npy", np.arange(np.prod(shape)).reshape(shape)
    np.save(path, old)
    identity, wrong = files.identity, []

    def seen(file, opens=False):
        if wrong and mc.create_mesh([("x", 2)]).rank == 1:
            raise FileNotFoundError(2, "No such file or directory", str(file))
        return identity(file, opens=opens)

    monkeypatch.setattr(files, "identity", seen)

    def program():
        layout = rows()
        mc.load(path, layout)
        wrong.append(layout.mesh.rank)
        mc.barrier(layout.mesh)
        with pytest.raises(FileNotFoundError):
            mc.load(path, layout)
        mc.barrier(layout.mesh)
        wrong.clear()
        mc.barrier(layout.mesh)
        for _ in range(3):
            assert np.array_equal(mc.load(path, layout).to_numpy(), old)

    on(2, program)


def test_arguments_of_one_rank_are_wrong(tmp_path, settled):
    path = tmp_path / "a.npy"
    np.save(path, np.ones(LARGE))

    def program():
        layout = rows()
        mc.load(path, layout)
        options = {"max_scratch_bytes": 0} if layout.mesh.rank else {}
        with pytest.raises(mc.ShapeError, match="a limit of 0 bytes"):
            mc.load(path, layout, **options)
        with mc.count() as again:
            mc.load(path, layout)
        return again.agreements

    assert on(2, program) == [1, 1]


@pytest.mark.parametrize("shape", [SMALL, LARGE])
@pytest.mark.parametrize("what", ["path", "layout", "dtype", "slices", "a new call"])
def test_ranks_that_load_different_things(what, shape, tmp_path, settled):
    paths = [tmp_path / "a.npy", tmp_path / "b.npy"]
    for path in paths:
        np.save(path, np.ones(shape))

    def program():
        layout = rows()
        other = {
            "path": (paths[1], layout, {}),
            "layout": (paths[0], Layout([U, "x"], layout.mesh), {}),
            "dtype": (paths[0], layout, {"dtype": "f4"}),
            "slices": (paths[0], layout, {"slices": np.s_[2:]}),
            "a new call": (paths[0], layout, {"slices": np.s_[1:]}),
        }[what]
        calls = [(paths[0], layout, {}), other]
        for path, each, options in calls[: 1 if what == "a new call" else 2] * 2:
            mc.load(path, each, **options)
        path, each, options = calls[layout.mesh.rank]
        with pytest.raises(mc.CollectiveMismatch, match="load from"):
            mc.load(path, each, **options)

    with suppress(mc.MeshError):  # no call is possible any more, also not that of another rank
        on(2, program)


def test_calls_that_are_kept_differ_by_their_arguments(tmp_path, settled):
    path, array = tmp_path / "a.npz", np.arange(200.0 * 100).reshape(LARGE)
    np.savez(path, a=array, b=array + 1)

    def program():
        layout, other = rows(), rows()
        for _ in range(2):
            assert list(mc.load(path, layout)) == ["a", "b"]
            assert list(mc.load(path, layout, names=["b"])) == ["b"]
            assert mc.load(path, layout, names=["b"], dtype="f4")["b"].dtype == np.float32
            for index in (np.s_[3:], np.s_[:, ::2], np.s_[np.int64(3) :]):
                assert np.array_equal(mc.load(path, layout, slices=index)["a"].to_numpy(), array[index])
            assert mc.load(path, other)["a"].mesh is other.mesh
            assert mc.load(path, {"a": layout, "b": other})["b"].mesh is other.mesh
            assert mc.load(path)["a"].layout.specs_text == mc.Layout.replicated(layout.mesh, 2).specs_text
        first, second = mc.load(path, layout)["a"], mc.load(path, layout)["a"]
        first.local[...] = 0
        assert np.array_equal(second.to_numpy(), array)

    on(2, program)


def test_an_opened_file_is_remembered(tmp_path, settled, monkeypatch):
    path = tmp_path / "a.h5"
    layout = Layout(["x"], mc.create_mesh([("x", 1)]))
    mc.save(path, {"a": mc.ones(3, int, layout)}, metadata={"a": {"range": np.arange(2)}})
    with mc.open(path) as file:
        file["a"].metadata["range"][:] = 7  # which belongs to who has asked
    monkeypatch.setattr(kept, "contents", None)
    with mc.open(path) as file:
        assert file["a"].metadata["range"].tolist() == [0, 1]
        assert file["a"][:].tolist() == [1, 1, 1]


def test_a_folder_that_is_left(tmp_path, settled, monkeypatch):
    """A relative path is relative to where the first rank is now."""
    for number in range(2):
        (tmp_path / f"{number}").mkdir()
        np.save(tmp_path / f"{number}" / "a.npy", np.full(3, number))

    def program():
        layout = Layout(["x"], mc.create_mesh([("x", 1)]))
        loaded = []
        for number in (0, 1):
            os.chdir(tmp_path / f"{number}")
            loaded += [mc.load("a.npy", layout).to_numpy().tolist() for _ in range(2)]
        return loaded

    monkeypatch.chdir(tmp_path)
    assert on(1, program) == [[[0] * 3] * 2 + [[1] * 3] * 2]


@pytest.mark.parametrize("limit", [None, 5000])
@pytest.mark.parametrize("suffix", ["", ".npz", ".nc", ".zarr"])
def test_any_layout_again(suffix, limit, tmp_path, settled):
    """In rounds, by exchanges, by a library, decoded, of meshes with other ranks each: as the first time."""
    path = tmp_path / f"saved{suffix}"
    large, small = np.arange(20_000.0).reshape(LARGE), np.arange(80.0).reshape(SMALL)
    chunked = suffix in (".nc", ".zarr")
    attributes = {"a": {"scale_factor": 0.5, "add_offset": 1.0}} if chunked else {}
    decoded = {"a": large * 0.5 + 1, "b": small, "c": large.T}

    def program():
        mesh, pair = mc.create_mesh([("x", 3)]), mc.create_mesh([("x", 2)])
        if suffix == ".npz":
            if mesh.rank == 0:
                np.savez(path, a=large, b=small, c=np.asfortranarray(large.T))
        else:
            options = {"compression": {"c": "gzip"}} if chunked else {}
            whole = {
                name: mc.distribute(array, Layout.replicated(mesh, 2)) for name, array in (("a", large), ("b", small))
            }
            whole["c"] = mc.distribute(large.T, Layout.replicated(mesh, 2))
            mc.save(path, whole, metadata=attributes, **options)
        mc.barrier(mesh)
        layouts = [
            Layout(["x", U], mesh),
            Layout([U, "x"], mesh),
            Layout([mc.Cyclic("x", 3), U], mesh),
            Layout.replicated(mesh, 2),
            {"a": Layout([U, "x"], pair), "b": Layout(["x", U], mesh), "c": Layout.replicated(mesh, 2)},
        ]
        for layout in layouts:
            for _ in range(3):
                tensors = mc.load(path, layout, decode=chunked, max_scratch_bytes=limit)
                for name, tensor in tensors.items():
                    expected = decoded if chunked else {"a": large, "b": small, "c": large.T}
                    whole = tensor.to_numpy()
                    assert whole is None or np.array_equal(whole, expected[name]), (name, layout)

    on(3, program)
