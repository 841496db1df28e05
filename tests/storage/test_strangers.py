"""Files that strangers made, in folders that they can write to: nothing of this user's is changed, nothing steers him.

A stranger is another user. Only root can make files of other users, so some tests are skipped for others.
"""

import json
import os
import re
import stat
import warnings
import zlib
from pathlib import Path

import numpy as np
import pytest

import meshcomm as mc
import meshcomm.numpy as mnp
from meshcomm.core import _files
from meshcomm.storage import changes
from meshcomm.storage.changes import journal_of
from meshcomm.tools.cli.main import main
from support.damage import bounded
from support.small_saves import save, save_here
from support.system_calls import calls_of
from support.tensors import on

STRANGER = 47110
as_root = pytest.mark.skipif(os.getuid() != 0, reason="only root can make files of another user")
SUFFIXES = ("", ".npy", ".npz", ".safetensors", ".safetensors.index.json", ".h5", ".zarr")


@pytest.fixture(autouse=True)
def libraries():
    pytest.importorskip("h5py")
    pytest.importorskip("zarr")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of what is left out
        yield


@pytest.fixture
def shared(tmp_path):
    """A folder that everybody can write to, as /tmp is."""
    folder = tmp_path / "scratch"
    folder.mkdir()
    folder.chmod(0o1777)
    return folder


def link_of_stranger(path, target):
    path.symlink_to(target)
    os.lchown(path, STRANGER, STRANGER)
    return path


def read_in_all_ways(path, tmp_path):
    """Return the errors of all commands and calls that read a file, as a text."""
    said = []
    for arguments in (["ls", path], ["verify", path], ["convert", path, tmp_path / "copy.zarr"]):
        main([*map(str, arguments)])

    def loaded():
        for call in (mc.load, mc.open):
            try:
                call(path)
            except (mc.CheckpointError, OSError) as error:
                said.append(str(error))

    on(1, loaded)
    return "\n".join(said)


# -- journals ---------------------------------------------------------------------------------------------------------


def journal(number, listed, data=b"", head=b"meshcomm journal 1\n"):
    body = head + json.dumps([number, listed]).encode() + b"\n" + data
    return body + zlib.crc32(body).to_bytes(4, "little")


@pytest.fixture
def cut_off(tmp_path):
    """A file and its journal, which would change the first bytes of its superblock: as a save leaves them."""
    path = tmp_path / "x.h5"
    save(path, 1)
    head = path.read_bytes()[:64]
    path.write_bytes(head[:16] + bytes(32) + path.read_bytes()[48:])  # half of the change is in the file
    path.chmod(0o644)
    journal_of(path).write_bytes(journal(path.stat().st_ino, [[0, 64]], head))
    journal_of(path).chmod(0o600)
    return path


def test_the_owner_ends_what_was_cut_off(cut_off):
    assert on(1, lambda: sorted(mc.load(cut_off)))[0] == ["a", "more/b"]
    assert not journal_of(cut_off).exists()


def test_a_reader_through_a_link_finds_the_journal_of_the_file(cut_off, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    link = tmp_path / "elsewhere" / "y.h5"
    link.symlink_to(cut_off)
    assert on(1, lambda: sorted(mc.load(link)))[0] == ["a", "more/b"]


@as_root
@pytest.mark.parametrize("whose", ["file", "journal"])
def test_changes_wait_for_their_owner(whose, cut_off, tmp_path):
    os.chown(cut_off if whose == "file" else journal_of(cut_off), STRANGER, STRANGER)
    before = cut_off.read_bytes(), journal_of(cut_off).read_bytes()
    assert f"waits for user {STRANGER}" in read_in_all_ways(cut_off, tmp_path)
    with pytest.raises(mc.CheckpointError, match="waits for"):
        on(1, lambda: mc.save(cut_off, {"c": np.ones(3)}, mode="a"))
    assert (cut_off.read_bytes(), journal_of(cut_off).read_bytes()) == before


@as_root
def test_who_adds_to_a_file_of_his_group_ends_that(cut_off):
    os.chown(cut_off, STRANGER, STRANGER)
    cut_off.chmod(0o664)
    assert on(1, lambda: sorted(mc.load(cut_off)))[0] == ["a", "more/b"]


@pytest.mark.parametrize("kind", ["link", "folder", "pipe"])
def test_what_cannot_be_a_journal_is_none(kind, tmp_path):
    path = tmp_path / "x.h5"
    save(path, 1)
    name = journal_of(path)
    {"link": lambda: name.symlink_to(path), "folder": name.mkdir, "pipe": lambda: os.mkfifo(name)}[kind]()
    assert read_in_all_ways(path, tmp_path) == ""


@pytest.mark.parametrize("whose", ["file", "journal"])
def test_changes_that_others_can_write(whose, cut_off, tmp_path):
    (cut_off if whose == "file" else journal_of(cut_off)).chmod(0o666)
    before = cut_off.read_bytes()
    assert "others can write" in read_in_all_ways(cut_off, tmp_path)
    assert cut_off.read_bytes() == before


@pytest.mark.parametrize("kind", ["link", "journal is a link", "no HDF5"])
def test_a_journal_changes_no_other_file(kind, tmp_path):
    profile, folder = tmp_path / "profile", tmp_path / "of a stranger"
    profile.write_text("export PATH\n")
    folder.mkdir()
    path = folder / "x.h5"
    text = journal(profile.stat().st_ino, [[0, 4]], b"evil")
    if kind == "journal is a link":
        (folder / "text").write_bytes(text)
        path.symlink_to(profile)
        journal_of(path).symlink_to(folder / "text")
        journal_of(profile).symlink_to(folder / "text")
    elif kind == "link":
        path.symlink_to(profile)
        journal_of(path).write_bytes(text)
    else:
        path = profile.rename(tmp_path / "profile.h5")
        journal_of(path).write_bytes(text)
    read_in_all_ways(path, tmp_path)
    assert path.read_text() == "export PATH\n"


JOURNALS = {
    "deep": lambda number: b"meshcomm journal 1\n" + b"[" * 100_000 + b"\n",
    "no list": lambda number: journal(number, 3),
    "texts": lambda number: journal(number, [["a", "b"]]),
    "behind the end": lambda number: journal(number, [[10**9, 4]], b"evil"),
    "before the begin": lambda number: journal(number, [[-4, 4]], b"evil"),
    "more bytes than there are": lambda number: journal(number, [[0, 2000]], b"evil"),
    "another file": lambda number: journal(number + 1, [[0, 4]], b"evil"),
    "wrong sum": lambda number: journal(number, [[0, 4]], b"evil")[:-1] + b"?",
    "nothing": lambda number: b"",
}


@pytest.mark.parametrize("name", JOURNALS)
def test_a_journal_that_no_save_wrote_is_left_alone(name, tmp_path):
    path = tmp_path / "x.h5"
    save(path, 1)
    before = path.read_bytes()
    journal_of(path).write_bytes(JOURNALS[name](path.stat().st_ino))
    with bounded():
        read_in_all_ways(path, tmp_path)
    assert path.read_bytes() == before
    on(1, lambda: mc.save(path, {"c": np.ones(3)}, mode="a"))
    assert not journal_of(path).exists()


def test_a_journal_without_end_takes_no_memory(tmp_path):
    path = tmp_path / "x.h5"
    save(path, 1)
    text = journal(path.stat().st_ino, [[0, 4]], b"evil")
    with journal_of(path).open("wb") as file:
        file.write(text)
        file.truncate(2**40)
    with bounded():
        changes.recover(path)


# -- links ------------------------------------------------------------------------------------------------------------


@as_root
@pytest.mark.parametrize("there", [True, False])
@pytest.mark.parametrize("suffix", SUFFIXES)
def test_nothing_is_saved_through_a_link_of_a_stranger(suffix, there, shared, tmp_path):
    notes = tmp_path / f"notes{suffix}"
    if there:
        save(notes, 1)
    before = sorted(tmp_path.iterdir()), notes.exists() and notes.is_file() and notes.read_bytes()
    link = link_of_stranger(shared / f"run{suffix}", notes)
    if suffix == ".safetensors.index.json":  # it has files beside it, and replaces the link
        save_over(link)
        assert not link.is_symlink()
    else:
        with pytest.raises(PermissionError, match=f"a link that belongs to user {STRANGER}"):
            save_over(link)
        assert link.is_symlink()
    assert (sorted(tmp_path.iterdir()), notes.exists() and notes.is_file() and notes.read_bytes()) == before
    with pytest.raises(PermissionError, match="a link that belongs"):
        save_over(link_of_stranger(shared / "folder", tmp_path) / f"notes{suffix}")


def save_over(path):
    on(2, save_here, path, 2, lambda path, tree: mc.save(path, tree, overwrite=True))


@as_root
@pytest.mark.parametrize("suffix", [".h5", ".nc", ".zarr"])
def test_no_region_is_written_through_a_link_of_a_stranger(suffix, shared, tmp_path):
    xarray, mx = pytest.importorskip("xarray"), pytest.importorskip("meshcomm.xarray")
    notes = tmp_path / f"notes{suffix}"
    on(1, lambda: mx.save(notes, xarray.Dataset({"v": ("x", np.arange(4.0))})))
    link = link_of_stranger(shared / f"run{suffix}", notes)

    def program():
        part = xarray.Dataset({"v": ("x", np.zeros(2))})
        for how in ({"region": {"x": slice(0, 2)}}, {"append_dim": "x"}):
            with pytest.raises(PermissionError, match="a link that belongs"):
                mx.save(link, part, **how)
        return mx.open(notes)["v"].values.tolist()

    assert on(1, program) == [[0, 1, 2, 3]]


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_links_of_ones_own_are_followed(suffix, shared, tmp_path):
    notes, link = tmp_path / f"notes{suffix}", shared / f"run{suffix}"
    link.symlink_to(notes)
    save(link, 2)
    assert link.is_symlink() != (suffix == ".safetensors.index.json")
    assert notes.exists() == link.is_symlink()


@as_root
def test_links_of_others_that_only_they_can_write_are_refused_and_those_of_root_are_not(tmp_path):
    theirs, own = tmp_path / "theirs", tmp_path / "own"
    for folder in (theirs, own):
        folder.mkdir()
    os.chown(theirs, STRANGER, STRANGER)
    link_of_stranger(theirs / "x.npy", tmp_path / "x.npy")
    link_of_stranger(own / "x.npy", tmp_path / "x.npy")  # root alone can have put it there
    with pytest.raises(PermissionError):
        _files.resolved(theirs / "x.npy")
    assert _files.resolved(own / "x.npy") == tmp_path / "x.npy"


def test_paths_are_resolved_as_the_system_resolves_them(tmp_path):
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "to-b").symlink_to("a/b")
    (tmp_path / "a" / "up").symlink_to("../to-b/../..")
    (tmp_path / "round").symlink_to("round")
    for path in ("a/b", "to-b", "to-b/new", "a/up/a/b", "to-b/../x", "nothing/x", "a//b/."):
        assert _files.resolved(tmp_path / path) == Path(os.path.realpath(os.path.abspath(tmp_path / path)))
    with pytest.raises(OSError, match="links"):
        _files.resolved(tmp_path / "round")


@as_root
def test_checkpoints_remove_nothing_behind_links(shared, tmp_path):
    elsewhere = tmp_path / "run"

    def steps(folder, numbers, keep=None):
        run = mc.Checkpoints(folder, keep=keep)
        for number in numbers:
            run.save(number, {"a": mc.ones(3, float, mc.Layout([mc.UNSHARDED], mc.create_mesh()))})

    on(1, steps, elsewhere, (1, 2))
    with pytest.raises(PermissionError):
        on(1, steps, link_of_stranger(shared / "run", elsewhere), (3,), 1)
    (shared / "mine").mkdir()
    (shared / "mine" / "step-000000001").symlink_to(elsewhere / "step-000000001")
    on(1, steps, shared / "mine", (2, 3), 1)
    assert sorted(path.name for path in elsewhere.iterdir()) == ["step-000000001", "step-000000002"]
    assert (elsewhere / "step-000000001" / "manifest.json").exists()


@as_root
def test_pictures_traces_and_numpys_files_are_not_written_behind_links_of_a_stranger(shared, tmp_path):
    own, folder = tmp_path / "own", link_of_stranger(shared / "folder", tmp_path)
    own.write_text("mine")
    link = link_of_stranger(shared / "a.npy", own)
    picture = ["x", "--mesh", "x=2", "--shape", "4"]
    assert main(["show", *picture, "--svg", str(folder / "a.svg")]) == 1
    with pytest.raises(PermissionError), _files.replacing(folder / "a.json"):
        pytest.fail("it began")

    def program():
        a = mnp.arange(10)
        calls = {
            "save": lambda: mnp.save(link, a),
            "save of a name": lambda: mnp.save(link.with_suffix(""), a),
            "savetxt": lambda: mnp.savetxt(link, a),
            "tofile": lambda: a.tofile(link),
        }
        for call in calls.values():
            with pytest.raises(PermissionError, match="a link that belongs"):
                call()

    on(1, program)
    assert own.read_text() == "mine"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["own", "scratch"]


@pytest.mark.parametrize("suffix", ["", ".npy", ".h5", ".zarr"])
def test_a_save_that_somebody_moved_away_ends_with_an_error(suffix, tmp_path):
    path, elsewhere = tmp_path / "run" / f"x{suffix}", tmp_path / "elsewhere"
    path.parent.mkdir()
    elsewhere.mkdir()
    elsewhere.chmod(0o750)
    save(path, 1)
    (path if path.is_dir() else path.parent).chmod(0o777)

    def program():
        request = mc.start_save(path, mc.ones(30, float, mc.Layout([mc.UNSHARDED], mc.create_mesh())), overwrite=True)
        moved = path if suffix == "" else next(each for each in path.parent.iterdir() if each.name != path.name)
        moved.rename(tmp_path / "moved")
        moved.symlink_to(elsewhere)
        with pytest.raises(OSError):
            request.wait()

    on(1, program)
    assert stat.S_IMODE(elsewhere.stat().st_mode) == 0o750
    assert not list(elsewhere.iterdir())


# -- permissions ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_nobody_may_read_a_new_file_who_could_not_read_the_old_one(suffix, tmp_path):
    path = tmp_path / f"x{suffix}"
    save(path, 1)
    for each in (path, *path.rglob("*")):
        each.chmod(0o700 if each.is_dir() else 0o600)
    opened = [call.args for call in calls_of(lambda: save_over(path)) if call.name == "open"]
    created = [args for args in opened if args[1] & os.O_CREAT and str(args[0]).startswith(str(tmp_path))]
    assert {mode for _, _, mode in created} == {0o600}


@as_root
@pytest.mark.parametrize("suffix", SUFFIXES)
def test_the_group_of_an_own_file_stays(suffix, tmp_path):
    path = tmp_path / f"x{suffix}"
    save(path, 1)
    for each in (path, *path.rglob("*")):
        os.chown(each, -1, STRANGER)
        each.chmod(0o2770 if each.is_dir() else 0o660)
    save_over(path)
    for each in (path, *path.rglob("*")):
        if suffix != "" or each.name == "manifest.json":
            assert (each.stat().st_gid, stat.S_IMODE(each.stat().st_mode)) == (
                STRANGER,
                0o2770 if each.is_dir() else 0o660,
            )


def modes(path):
    files = [path] if path.is_file() else [each for each in path.rglob("*") if each.is_file()]
    return {stat.S_IMODE(each.stat().st_mode) for each in files}


@pytest.mark.parametrize("owner", ["own", pytest.param("stranger", marks=as_root)])
@pytest.mark.parametrize("suffix", SUFFIXES)
def test_permissions_are_those_of_an_own_file_without_setuid(suffix, owner, tmp_path):
    path = tmp_path / f"x{suffix}"
    save(path, 1)
    for each in (path, *path.rglob("*")):
        each.chmod(0o6751)
        if owner == "stranger":
            os.chown(each, STRANGER, STRANGER)
            each.chmod(0o6777)
    umask = os.umask(0o027)
    try:
        save_over(path)
    finally:
        os.umask(umask)
    assert modes(path) == {0o751 if owner == "own" else 0o640}


# -- what files say ---------------------------------------------------------------------------------------------------

EVIL = "\x1b]0;title\x07\x9b2J\r\nforged\u202e"


def test_names_and_texts_of_files_do_not_steer_the_terminal(tmp_path, capfd):
    h5py, zarr = pytest.importorskip("h5py"), pytest.importorskip("zarr")
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file[EVIL] = np.arange(3)
        file["b"] = np.arange(4)
        file["b"].attrs["units"] = EVIL
        file.attrs[EVIL] = EVIL
        file["c"] = h5py.SoftLink(EVIL)
        file["d"] = h5py.ExternalLink(EVIL, EVIL)
        file["e"] = np.dtype("i4")
    np.savez(tmp_path / "x.npz", **{EVIL: np.arange(3)})
    store = zarr.open_group(str(tmp_path / "x.zarr"), mode="w", attributes={EVIL: EVIL})
    store.create_array("a", data=np.arange(3), attributes={"units": EVIL})
    on(1, lambda: mc.save(tmp_path / "checkpoint", {EVIL: np.arange(3)}, metadata={EVIL: EVIL}))
    link = tmp_path / "links.zarr"
    zarr.create_array(str(link), data=np.arange(3))
    (link / "c" / EVIL).symlink_to(tmp_path / "x.npz")
    errors = [read_in_all_ways(path, tmp_path) for path in sorted(tmp_path.iterdir())]
    for path in sorted(tmp_path.iterdir()):
        for arguments in (["ls"], ["verify"], ["convert"]):
            main([*arguments, str(path), *([str(tmp_path / "new.npz")] if arguments == ["convert"] else [])])
    out, err = capfd.readouterr()
    assert "title" in out
    assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e]", out + err + "".join(errors))
    assert "\nforged" not in out + err + "".join(errors)


# -- sizes ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("descr", ["|V0", "|S0", "<U0"])
def test_elements_of_no_bytes_are_counted(descr, tmp_path):
    for count, fits in ((10**18, False), (2**21, False), (3, True)):
        path = tmp_path / f"{count}.npy"
        header = f"{{'descr': '{descr}', 'fortran_order': False, 'shape': ({count},)}}".ljust(117) + "\n"
        path.write_bytes(b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header.encode())
        with bounded():
            assert ("too large" in read_in_all_ways(path, tmp_path)) != fits


def test_a_zip_archive_that_declares_more_than_deflate_can_hold(tmp_path):
    path = tmp_path / "x.npz"
    np.savez_compressed(path, a=np.zeros(1000))
    data = bytearray(path.read_bytes())
    at = data.index(b"PK\1\2") + 24
    data[at : at + 4] = (2**32 - 2).to_bytes(4, "little")
    path.write_bytes(data)
    assert "more than the file can hold" in read_in_all_ways(path, tmp_path)


def test_a_header_of_many_small_values(tmp_path):
    path = tmp_path / "x.safetensors"
    header = b"[" + b"{}," * (2**22 + 1) + b"{}]"
    path.write_bytes(len(header).to_bytes(8, "little") + header)
    with bounded():
        assert "values" in read_in_all_ways(path, tmp_path)


def test_names_that_multiply(tmp_path):
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "x.h5", "w") as file:
        group = file
        for _ in range(30):
            below = group.create_group("a")
            group["b"] = below
            group = below
        group["d"] = np.arange(3)
    assert "names for what has one" in read_in_all_ways(tmp_path / "x.h5", tmp_path)

    with (tmp_path / "x.h5").open("r+b") as file:
        file.truncate(2**40)
    with bounded():
        assert "names for what has one" in read_in_all_ways(tmp_path / "x.h5", tmp_path)


def test_pipes_and_endless_files_in_a_store(tmp_path):
    zarr = pytest.importorskip("zarr")
    for number, name in enumerate((".zattrs", ".zarray", "0")):
        for kind in ("pipe", "endless"):
            path = tmp_path / f"{number}-{kind}.zarr"
            zarr.create_array(str(path), data=np.arange(3), chunks=(3,), zarr_format=2)
            (path / name).unlink()
            if kind == "pipe":
                os.mkfifo(path / name)
            else:
                with (path / name).open("wb") as file:
                    file.truncate(2**40)
            with bounded():
                assert re.search("is no regular file|more than the|is damaged|is no", read_in_all_ways(path, tmp_path))


def test_a_header_that_is_nested_too_deep(tmp_path):
    header = f"{{'descr': '<f8', 'fortran_order': False, 'shape': ({'-' * 9000}1,)}}\n".encode()
    (tmp_path / "x.npy").write_bytes(b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header)
    assert "x.npy" in read_in_all_ways(tmp_path / "x.npy", tmp_path)


def test_chunks_that_are_not_there(tmp_path):
    zarr, h5py = pytest.importorskip("zarr"), pytest.importorskip("h5py")
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("a", (10**9,), "u1", chunks=(1,))
    assert "chunks of less than" in read_in_all_ways(tmp_path / "a.h5", tmp_path)
    for name, options in (("a", {}), ("b", {"compressors": None})):
        path = tmp_path / f"{name}.zarr"
        zarr.create_array(str(path), shape=(10**9,), chunks=(1,), dtype="u1", **options)
        assert "chunks of less than" in read_in_all_ways(path, tmp_path)


def test_a_chunk_is_decompressed_once(tmp_path, monkeypatch):
    zarr, h5py = pytest.importorskip("zarr"), pytest.importorskip("h5py")
    array = np.arange(2.0**18).reshape(512, 512)
    zarr.create_array(str(tmp_path / "a.zarr"), data=array, chunks=array.shape)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("array", data=array, chunks=array.shape, compression="gzip")
    reads = []
    get = zarr.storage.LocalStore.get

    def counted(store, key, **options):
        reads.append(key)
        return get(store, key, **options)

    monkeypatch.setattr(zarr.storage.LocalStore, "get", counted)

    def program(path):
        found = mc.load(path, max_scratch_bytes=2**16)
        tensor = found["array"] if isinstance(found, dict) else found
        return np.array_equal(tensor.to_numpy(), array)

    assert on(1, program, tmp_path / "a.zarr") == [True]
    assert [key for key in reads if key.startswith("c/")] == ["c/0/0"]
    before = read_by_this_process()
    assert on(1, program, tmp_path / "a.h5") == [True]
    assert read_by_this_process() - before < 2 * (tmp_path / "a.h5").stat().st_size


def read_by_this_process():
    return int(re.search(r"rchar: (\d+)", Path("/proc/self/io").read_text())[1])


# -- other files ------------------------------------------------------------------------------------------------------


def virtual(file, name, source):
    h5py = pytest.importorskip("h5py")
    layout = h5py.VirtualLayout((3,), "f8")
    layout[:] = h5py.VirtualSource(".", source, (3,))
    file.create_virtual_dataset(name, layout)


def test_virtual_datasets_stay_in_their_file_and_have_an_end(tmp_path):
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "secret.h5", "w") as file:
        file["d"] = np.ones(3)
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["own"], file["g/d"] = np.arange(3.0), np.arange(3.0)
        file["out"] = h5py.ExternalLink("secret.h5", "/")
        file["soft"] = h5py.SoftLink("/out/d")
        sources = {"out": "/out/d", "soft": "soft", "itself": "v-itself", "one": "v-two", "two": "v-one"}
        space = h5py.h5s.create_simple((3,), (h5py.h5s.UNLIMITED,))
        space.select_hyperslab((0,), (h5py.h5s.UNLIMITED,), (3,), (3,))
        how = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        how.set_virtual(space, b".", b"d%b", h5py.h5s.create_simple((3,)))
        h5py.h5d.create(file.id, b"v-all", h5py.h5t.NATIVE_DOUBLE, space, how)
        for name, source in (sources | {"right": "g/d", "missing": "nothing"}).items():
            virtual(file, f"v-{name}", source)

    def program():
        for name in (*sources, "all"):
            with pytest.raises(mc.CheckpointError, match="it has its data in"):
                mc.load(tmp_path / "x.h5", names=[f"v-{name}"])
        found = mc.load(tmp_path / "x.h5", names=["v-right", "v-missing"])
        return [tensor.to_numpy().tolist() for tensor in found.values()]

    assert on(2, program)[0] == [[0, 1, 2], [0, 0, 0]]
    main(["convert", str(tmp_path / "x.h5"), str(tmp_path / "y.npz")])
    assert sorted(np.load(tmp_path / "y.npz").files) == ["g/d", "own", "v-missing", "v-right"]


@pytest.mark.parametrize(("file", "source"), [("secret.h5", "t"), (".", "/out/t"), (".", "v")])
def test_virtual_datasets_of_texts_stay_in_their_file_too(file, source, tmp_path):
    h5py = pytest.importorskip("h5py")
    mx = pytest.importorskip("meshcomm.xarray")
    text = h5py.string_dtype()
    with h5py.File(tmp_path / "secret.h5", "w") as other:
        other.create_dataset("t", data=["secret"] * 3, dtype=text)
    with h5py.File(tmp_path / "x.h5", "w") as own:
        own["out"] = h5py.ExternalLink("secret.h5", "/")
        own["w"] = np.arange(3)
        layout = h5py.VirtualLayout((3,), text)
        layout[:] = h5py.VirtualSource(file, source, (3,), text)
        own.create_virtual_dataset("v", layout)
    found = on(1, lambda: list(mx.open(tmp_path / "x.h5", {}, mesh=mc.create_mesh()).variables))
    assert found == [["w"]]


@pytest.mark.parametrize("cache", ["no", "yes", "link"])
def test_shards_of_an_index_that_are_links(cache, tmp_path):
    blobs, folder = tmp_path / ("elsewhere" if cache == "no" else "blobs"), tmp_path / "snapshots" / "main"
    if cache == "link":
        (tmp_path / "private").mkdir()
        blobs.symlink_to(tmp_path / "private")
    else:
        blobs.mkdir()
    folder.mkdir(parents=True)
    save(folder / "x.safetensors.index.json", 1)
    (shard,) = folder.glob("*.safetensors")
    shard.rename(blobs / ("0f" * 20))
    shard.symlink_to(blobs / ("0f" * 20))
    said = read_in_all_ways(folder / "x.safetensors.index.json", tmp_path)
    assert ("is a link to" in said) == (cache != "yes")


@pytest.mark.parametrize(("suffix", "name"), [("", "manifest.json"), (".zarr", "zarr.json"), (".zarr", "a/zarr.json")])
def test_metadata_that_are_links(suffix, name, tmp_path):
    path = tmp_path / f"x{suffix}"
    save(path, 1)
    (path / name).rename(tmp_path / "elsewhere")
    (path / name).symlink_to(tmp_path / "elsewhere")
    assert "is a link" in read_in_all_ways(path, tmp_path)


def test_names_of_arrays_become_no_paths(tmp_path):
    path = tmp_path / "checkpoint"
    on(1, lambda: mc.save(path, {"../../x": np.ones(3)}))
    for suffix in (".zarr", ".h5", ".npz"):
        assert main(["convert", str(path), str(tmp_path / f"y{suffix}")]) == 1
    assert {each.name for each in tmp_path.iterdir()} == {"checkpoint"}


def test_lack_of_memory_is_called_so(tmp_path):
    path = tmp_path / "x.npy"
    with path.open("wb") as file:
        np.lib.format.write_array_header_1_0(file, {"descr": "|u1", "fortran_order": False, "shape": (2**42,)})
        file.truncate(2**42 + 200)
    with bounded(), pytest.raises(MemoryError):
        on(1, mc.load, path)
