"""Files that are looked at without loading them: what they hold, and any box of an array, read by one process."""

import numpy as np
import pytest

import meshcomm as mc
from meshcomm import Layout
from meshcomm.storage import files
from support.saved import INDICES, SUFFIXES, mesh_of_4, on, same

BIG = np.arange(300 * 120, dtype="f8").reshape(300, 120)


def saved(path, tree, **options):
    """Save *tree* of arrays, cut over four ranks."""

    def program():
        mesh = mesh_of_4()
        cut = {name: mc.distribute(array, Layout(["x", "y"], mesh)) for name, array in tree.items()}
        mc.save(path, cut if list(cut) != ["array"] else cut["array"], **options)

    on(4, program)
    return path


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_what_it_holds(suffix, tmp_path):
    metadata = {"by": "me"} if suffix != ".npy" else {}
    path = saved(tmp_path / f"t{suffix}", {"array": BIG}, **({"metadata": metadata} if metadata else {}))
    with mc.open(path) as file:
        assert file.names == list(file) == ["array"]
        assert (len(file), "array" in file, "other" in file) == (1, True, False)
        assert file.metadata == metadata
        found = file["array"]
        assert (found.name, found.shape, found.ndim, found.size) == ("array", BIG.shape, 2, BIG.size)
        assert (found.dtype, found.nbytes, len(found)) == (BIG.dtype, BIG.nbytes, 300)
        assert "(300, 120) float64, 281.2 KiB" in repr(file)
        assert repr(found).startswith("StoredArray('array', (300, 120), float64, 281.2 KiB")
        assert (found.layout is None) == (suffix != "")
        with pytest.raises(KeyError, match="has no array 'b'; it has array"):
            file["b"]


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_any_index(suffix, tmp_path):
    with mc.open(saved(tmp_path / f"t{suffix}", {"array": BIG})) as file:
        for index in [*INDICES, np.s_[3, 1]]:
            expected = BIG[index]
            found = file["array"][index]
            assert type(found) is type(expected)
            assert found.dtype == expected.dtype
            np.testing.assert_array_equal(found, expected)
        np.testing.assert_array_equal(np.asarray(file["array"]), BIG)
        assert np.asarray(file["array"], dtype="f4").dtype == np.dtype("f4")


def test_arrays_in_other_orders(tmp_path):
    h5py = pytest.importorskip("h5py")
    np.save(tmp_path / "f.npy", np.asfortranarray(BIG))
    np.save(tmp_path / "zero.npy", np.array(3.5))
    np.save(tmp_path / "empty.npy", BIG[:0])
    with h5py.File(tmp_path / "c.h5", "w") as file:
        file.create_dataset("small", data=BIG, chunks=(17, 30), compression="gzip")
    for name in ("f.npy", "c.h5"):
        with mc.open(tmp_path / name) as file:
            for index in INDICES:
                np.testing.assert_array_equal(file[file.names[0]][index], BIG[index])
    with mc.open(tmp_path / "zero.npy") as file:
        assert file["array"][()] == 3.5
        with pytest.raises(TypeError, match="no length"):
            len(file["array"])
    assert mc.open(tmp_path / "empty.npy")["array"][...].shape == (0, 120)


def test_only_what_is_needed_is_read(tmp_path):
    with mc.open(saved(tmp_path / "t.npy", {"array": BIG})) as file:
        before = dict(files.counts)
        assert file["array"][3:5].tolist() == BIG[3:5].tolist()
        assert files.counts["read"] - before["read"] == BIG[3:5].nbytes
        assert files.counts["reads"] - before["reads"] == 1


def test_one_array_is_loaded(tmp_path):
    path = saved(tmp_path / "c", {"a.b": BIG, "c": BIG[:7, :3]})

    def program():
        mesh = mesh_of_4()
        with mc.open(path) as file:
            same(file["a.b"].load(Layout([mc.UNSHARDED, "y"], mesh)), BIG)
            same(file["c"].load(slices=np.s_[2:5]), BIG[2:5, :3].copy())
            out = mc.zeros(BIG.shape, "f8", Layout(["x", "y"], mesh))
            assert file["a.b"].load(out=out) is out
            same(out, BIG)

    on(4, program)


def test_a_closed_file(tmp_path):
    file = mc.open(saved(tmp_path / "t.npy", {"array": BIG}))
    file.close()
    file.close()
    assert file.names == ["array"]
    with pytest.raises(ValueError, match="is closed"):
        file["array"][0]
    with pytest.raises(FileNotFoundError):
        mc.open(tmp_path / "none.npy")


@pytest.mark.parametrize("suffix", ["", ".npy", ".h5", ".zarr"])
@pytest.mark.parametrize("index", [(), ..., (...,), (0,), (0, ...), (..., 1), np.s_[1:1]], ids=str)
def test_scalars_are_those_of_numpy(index, suffix, tmp_path):
    for whole in (np.array(2.5), np.arange(3.0)):
        try:
            expected = whole[index]
        except IndexError:
            continue
        path = tmp_path / f"{whole.ndim}{suffix}"
        on(1, lambda path=path, whole=whole: mc.save(path, whole))
        with mc.open(path) as file:
            found = file["array"][index]
        assert (type(found), found.shape, found.tolist()) == (type(expected), expected.shape, expected.tolist())


@pytest.mark.parametrize("how", ["replaced", "overwritten"])
@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("suffix", [*SUFFIXES, ".npz", ".nc"])
def test_a_file_that_is_another_one_now(suffix, ranks, how, tmp_path):
    """What the header says is true of the file that it was read from: then come the old numbers, or an error."""
    kinds = ("f4", "f8") if suffix == ".npy" else (None, "f4")  # None is compressed, where it can be

    def save(path, number, dtype):
        rows = Layout(["x", mc.UNSHARDED], mc.create_mesh([("x", -1)]))
        options = {"compression": "gzip"} if dtype is None and suffix in (".h5", ".nc", ".zarr") else {}
        tensor = mc.distribute((BIG[: 150 * number] + number).astype(dtype or "f8"), rows)
        mc.save(path, tensor if suffix in (".npy", ".zarr") else {"array": tensor}, **options)

    def program(dtype):
        path, other = tmp_path / f"{dtype}{suffix}", tmp_path / f"other-{dtype}{suffix}"
        rows = Layout(["x", mc.UNSHARDED], mc.create_mesh([("x", -1)]))
        save(path, 1, dtype)
        file, read_before = mc.open(path), mc.open(path)
        assert read_before["array"][0, 0] == 1
        save(other, 2, kinds[1 - kinds.index(dtype)])
        if mc.is_root() and how == "replaced":
            path.rename(tmp_path / f"old-{dtype}{suffix}")
            other.rename(path)
        elif mc.is_root():
            with open(data_of(path), "r+b") as target:
                target.write(data_of(other).read_bytes())
                target.truncate()
        mc.barrier(rows.mesh)
        for read in (lambda: file["array"][...], lambda: read_before["array"][...]):
            assert_old(read, dtype)
        assert_old(lambda: file["array"].load(rows).to_numpy(), dtype)

    def data_of(path):
        names = {".zarr": "zarr.json", "": "manifest.json", ".safetensors.index.json": None}
        if suffix == ".safetensors.index.json":
            return next(each for each in path.parent.glob(f"{path.name.split('.')[0]}*.safetensors"))
        return path / names[suffix] if suffix in names else path

    def assert_old(read, dtype):
        try:
            found = read()
        except (mc.CheckpointError, OSError):
            return
        assert found.tobytes() == (BIG[:150] + 1).astype(dtype or "f8").tobytes()

    for dtype in kinds:
        on(ranks, program, dtype)
