"""Errors of the system in a save or load, on one rank: all ranks raise the same class, and the old content stays."""

import ctypes
import errno
import os
import re
import resource
import shutil
from contextlib import suppress
from pathlib import Path

import pytest

import meshcomm as mc
from meshcomm import Layout
from meshcomm.core.ranks.meshes import location_in
from meshcomm.storage import files
from support.sampling import sampled
from support.small_saves import SUFFIXES, found_at, listed, prepared, save, save_here
from support.system_calls import calls_of, failing, short
from support.tensors import on

CODES = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS, errno.EACCES)
U = mc.UNSHARDED


pytestmark = pytest.mark.usefixtures("small_files")


def raised(program):
    """Return what each of two ranks raises, and None for one that does not."""

    def caught():
        try:
            program()
        except (OSError, mc.MeshcommError) as error:
            return error
        return None

    return on(2, caught)


def alike(errors, path):
    """Return whether the ranks have raised; check that all have the same class and text, with the user's path."""
    if not any(errors):
        return False
    assert len({type(error) for error in errors}) == 1, errors
    assert len({re.sub(r" \(seen by rank \d+\)$", "", str(error)) for error in errors}) == 1, errors
    for error in errors:
        assert str(path.parent) in str(error), errors
        assert files.UNFINISHED_SUFFIX not in str(error), errors
    return True


def fails(path, kind=OSError, says=""):
    """Check that a save fails on both ranks with the same error, of this kind and with this text."""
    errors = raised(lambda: save_here(path, 2))
    assert alike(errors, path)
    assert isinstance(errors[0], kind)
    assert says in str(errors[1])


@pytest.mark.parametrize("over", [False, True])
@pytest.mark.parametrize("suffix", SUFFIXES)
def test_any_call_of_a_save_may_fail(suffix, over, tmp_path):
    path = prepared(tmp_path / "f", suffix, over)
    calls, failures = calls_of(lambda: save(path, 1)), 0
    if not over:
        calls = calls_of(lambda: save(prepared(tmp_path / "counted", suffix, False), 1))
    expected, number = listed(path.parent) if over else listed(tmp_path / "counted"), 1
    tried = sampled(enumerate(calls), 25)
    for at, call in tried:
        if not over:
            path = prepared(tmp_path / f"{at}", suffix, False)
        number += 1
        with failing(at, CODES[at % len(CODES)]):
            errors = raised(lambda path=path, number=number: save_here(path, number))
        failures += alike(errors, path)
        found = found_at(path)
        assert found == number or (any(errors) and found == (number - 1 if over else None)), (at, call, found)
        number += 1
        save(path, number)
        left = [name for name in listed(path.parent) if name not in expected]
        assert not left, (at, call, left)
    assert failures > len(tried) // 3 or len(tried) < 10  # few may be calls that a save can do without


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_an_early_error_leaves_the_old_content(suffix, tmp_path):
    path = prepared(tmp_path / "f", suffix, True)
    calls = calls_of(lambda: save(path, 1))
    for at in [at for at, call in enumerate(calls) if call.name in ("pwrite", "_allocate", "fsync")][:6]:
        with failing(at, errno.ENOSPC):
            fails(path, says="No space left on device")
        assert found_at(path) == 1


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_any_call_of_a_load_may_fail(suffix, tmp_path):
    path, failures = prepared(tmp_path / "f", suffix, True), 0
    for at, _ in enumerate(calls_of(lambda: found_at(path))):
        with failing(at, errno.EIO):
            failures += alike(raised(lambda: mc.load(path)), path)
    assert failures > 3


@pytest.mark.parametrize("most", [1, 7, 4096])
@pytest.mark.parametrize("suffix", SUFFIXES)
def test_short_reads_and_writes(suffix, most, tmp_path):
    path = tmp_path / f"saved{suffix}"
    with short(most):
        save(path, 5)
        assert found_at(path) == 5
    assert found_at(path) == 5


class Allocations:
    """A system whose ``fallocate`` ends with these errors, and then does nothing, well."""

    def __init__(self, codes):
        self.codes = list(codes)

    def __call__(self, number, mode, offset, size):
        code = self.codes.pop(0) if self.codes else 0
        ctypes.set_errno(code)
        return -bool(code)


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("codes", [[errno.EOPNOTSUPP] * 99, [errno.EINTR] * 2, None], ids=["never", "later", "none"])
def test_a_file_system_that_cannot_allocate(suffix, codes, tmp_path, monkeypatch):
    monkeypatch.setattr(files, "_fallocate", codes and Allocations(codes))
    monkeypatch.setattr(os, "posix_fallocate", pytest.fail)  # it writes to each block there
    path = prepared(tmp_path / "f", suffix, True)
    assert found_at(path) == 1


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_all_files_are_allocated(suffix, tmp_path):
    path = prepared(tmp_path / "f", suffix, False)
    calls = [call for call in calls_of(lambda: save(path, 1)) if call.name == "_allocate"]
    every = [path] if path.is_file() else [each for each in path.rglob("*") if each.is_file()]
    if suffix.endswith("index.json"):
        every = [*path.parent.glob("*.safetensors")]
    found = sorted(call.args[1] for call in calls)
    sizes = sorted(each.stat().st_size for each in every if each.suffix != ".json")
    if suffix == ".h5":  # what describes the arrays may be behind their data
        assert len(found) == len(sizes) == 1
        assert 0 <= sizes[0] - found[0] < 2**14
    else:
        assert found == sizes


def test_a_disk_that_fails_as_two_stores_have_changed_names(tmp_path):
    path = prepared(tmp_path / "f", ".zarr", True)
    calls = [call.name for call in calls_of(lambda: save(path, 1))]
    with failing(calls.index("fsync", calls.index("_exchange")), errno.EIO):
        fails(path)
    (old,) = path.parent.glob(f".*{files.UNFINISHED_SUFFIX}")
    assert (found_at(path), found_at(old.rename(tmp_path / "old.zarr"))) == (2, 1)
    Path(shutil.copytree(tmp_path / "old.zarr", old))
    save(path, 3)
    assert found_at(path) == 3
    assert not [*path.parent.glob(f".*{files.UNFINISHED_SUFFIX}")]


def test_a_write_that_writes_nothing(tmp_path):
    path = prepared(tmp_path / "f", ".npy", True)
    with short(0):
        fails(path, (OSError, mc.MeshcommError))
    assert found_at(path) == 1


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_no_folder_to_save_to(suffix, tmp_path):
    (tmp_path / "file").touch()
    for path, kind in (
        (tmp_path / "none" / f"saved{suffix}", FileNotFoundError),
        (tmp_path / "file" / f"saved{suffix}", NotADirectoryError),
    ):
        errors = raised(lambda path=path: save_here(path, 1))
        assert [type(error) for error in errors] == [kind] * 2
        assert all(str(path.parent) in str(error) for error in errors)
    assert listed(tmp_path) == ["file"]


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_something_else_has_the_name(suffix, tmp_path):
    path = tmp_path / f"saved{suffix}"
    if suffix in ("", ".zarr"):
        path.write_text("mine")
    else:
        path.mkdir()
    fails(path, FileExistsError | IsADirectoryError)
    assert listed(tmp_path) == [path.name]


@pytest.mark.parametrize("text", ['{"kind": "meshcomm checkpoint", "version": 9}', '{"kind": "meshcomm checkpoint", '])
def test_a_save_that_fails_removes_no_data_of_a_manifest_that_it_cannot_read(text, tmp_path):
    path = prepared(tmp_path / "f", "", True)
    (path / "manifest.json").write_text(text)
    (old,) = path.glob("data-*")
    shutil.copytree(path, tmp_path / "copy")
    calls = calls_of(lambda: save(tmp_path / "copy", 2))
    with failing([call.name for call in calls].index("_allocate"), errno.ENOSPC):
        fails(path)
    assert old.exists()
    save(path, 3)
    assert found_at(path) == 3
    assert listed(path) == ["data", "manifest.json"]


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_files_that_may_not_grow(suffix, tmp_path):
    path = prepared(tmp_path / "f", suffix, True)
    old = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, old[1]))
    try:
        fails(path, says="File too large")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, old)
    assert found_at(path) == 1


def test_a_manifest_of_something_else_stays(tmp_path):
    path = tmp_path / "page"
    path.mkdir()
    (path / "manifest.json").write_text('{"name": "a web page"}')
    fails(path, FileExistsError)
    assert (path / "manifest.json").read_text() == '{"name": "a web page"}'


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_may_not_be_written(tmp_path):
    path = prepared(tmp_path / "f", "", True)
    path.chmod(0o500)
    fails(path, PermissionError)
    path.chmod(0o700)
    assert found_at(path) == 1


def test_two_saves_to_one_folder(tmp_path):
    path = tmp_path / "saved"

    def program():
        mesh = mc.create_mesh([("x", 2)])
        first, second = (mc.full((4, 2), float(n), "f8", Layout(["x", U], mesh)) for n in (1, 2))
        requests = [mc.start_save(path, {"a": each}) for each in (first, second)]
        requests[0].wait()
        assert mc.load(path)["a"].to_numpy()[0, 0] == 1
        requests[1].wait()
        assert mc.load(path)["a"].to_numpy()[0, 0] == 2

    on(2, program)
    assert len(listed(path)) == 2


def test_a_save_whose_ranks_make_no_more_calls(tmp_path):
    def program():
        mesh = mc.create_mesh([("x", 2)])
        request = mc.start_save(tmp_path / "a.npy", mc.ones(4, "f8", Layout(["x"], mesh)))
        location_in(mesh).rank_set.fail(KeyError("wrong"))
        with pytest.raises(mc.MeshError, match="KeyError"):
            request.test()
        request.wait()

    assert [type(error) for error in raised(program)] == [mc.MeshError] * 2
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("how", [mc.save, mc.start_save])
def test_a_save_that_is_cut_off_as_it_writes_leaves_nothing(how, suffix, tmp_path, monkeypatch):
    path, expected = prepared(tmp_path / "f", suffix, True), listed(tmp_path / "f")

    def program():
        layout = Layout(["x", U], mc.create_mesh([("x", 2)]))
        with pytest.raises(KeyboardInterrupt):
            how(path, {"a": mc.ones((4, 2), "f8", layout)}, overwrite=True)

    def interrupted(*_):
        raise KeyboardInterrupt

    with mc.simulate(2) as world:
        monkeypatch.setattr("meshcomm.storage.save.write_tensor", interrupted)
        world.run(program)
    assert found_at(path) == 1
    assert listed(path.parent) == expected


def test_data_that_another_save_has_removed(tmp_path):
    path = prepared(tmp_path / "f", "", True)

    def program():
        mesh = mc.create_mesh([("x", 2)])
        request = mc.start_save(path, {"a": mc.ones((4, 2), "f8", Layout(["x", U], mesh))})
        if mesh.rank == 0:
            named = (path / "manifest.json").read_text()
            (new,) = (each for each in path.glob("data-*") if each.name not in named)
            new.unlink()
        with suppress(OSError):
            request.wait()
        request.wait()  # raises it again

    errors = raised(program)
    assert alike(errors, path)
    assert isinstance(errors[0], OSError)
    assert found_at(path) == 1
