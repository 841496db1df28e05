"""Tensors saved from any layout and loaded into any other one, in all formats; other libraries read the files."""

import json
import os
import re
import sys
import time
import tracemalloc
from dataclasses import dataclass
from itertools import product
from typing import NamedTuple

import ml_dtypes
import numpy as np
import pytest

import meshcomm as mc
from meshcomm import Layout
from meshcomm.core.failures.watch import watch
from meshcomm.core.memory.copies import opaque
from meshcomm.storage import save as saving
from meshcomm.storage.formats import hdf5, safetensors
from support.reference import on_ranks, random_bits
from support.sampling import sampled
from support.saved import INDICES, RANKS, SUFFIXES, cases, here, mesh_of_4, on, same

U = mc.UNSHARDED
DTYPES = ("f8", "f4", "i2", "u1", "?", "c8")


class Pair(NamedTuple):
    """A tuple that a program names."""

    first: object
    second: object


@dataclass
class State:
    """What is no tree."""

    step: int


def test_of_trees_only_containers_of_json_and_tuples_are_saved(tmp_path):
    def program():
        mesh = mc.create_mesh([("x", 2)])
        t = mc.distribute(np.arange(3.0), Layout(["x"], mesh))
        mc.save(tmp_path / "run", {"pair": Pair(t, 2), "z": np.complex128(1 + 2j)})
        found = mc.load(tmp_path / "run")
        assert type(found["pair"]) is tuple
        assert (found["pair"][0].to_numpy().tolist(), found["pair"][1], complex(found["z"])) == ([0, 1, 2], 2, 1 + 2j)
        assert type(mc.relayout(Pair(t, [t]), Layout([U], mesh))) is tuple
        for tree, says in (
            ({"s": State(3)}, "State at 's' cannot be saved"),
            ({"s": {3.5: t}}, "a key of a saved tree is a str or an int, not 3.5 at 's'"),
            ({"s": [1j]}, "complex at 's.0' cannot be saved"),
        ):
            with pytest.raises(TypeError, match=says):
                mc.save(tmp_path / "wrong", tree)

    on(2, program)


@pytest.mark.parametrize(("suffix", "seed"), sampled(product(SUFFIXES, range(12))))
def test_any_layout_to_any_layout(suffix, seed, tmp_path):
    with mc.simulate(RANKS) as world:
        for number, case, random in cases(seed, 12):
            whole = random_bits(case.shape, np.dtype(random.choice(DTYPES)), number)
            limit = random.choice([None, None, 2**12])

            def program(case=case, whole=whole, limit=limit, number=number):
                source, target = here(case.source), here(case.target)
                tensor = mc.distribute(whole, source)
                path = tmp_path / f"t{number}{suffix}"
                mc.save(path, tensor, max_scratch_bytes=limit)
                mc.barrier(mc.create_mesh())
                same(mc.load(path, target, max_scratch_bytes=limit), whole)

            world.run(program)


A = np.arange(7 * 5, dtype="f8").reshape(7, 5)
B = np.arange(12, dtype=">i4").reshape(3, 4)


def tree():
    mesh = mesh_of_4()
    return {
        "w": mc.distribute(A, Layout(["x", "y"], mesh)),
        "layers": [{"b": mc.distribute(B, Layout([U, ("x", "y")], mesh))}, (3, "text", None)],
        "step": 17,
        "rate": 0.1,
        "plain": np.arange(3),
    }


@on_ranks(4)
def test_a_checkpoint_gives_the_tree(tmp_path):
    mc.save(tmp_path / "step-1", tree(), metadata={"commit": "abc"})
    mesh = mesh_of_4()
    found = mc.load(tmp_path / "step-1", {"w": Layout(["y", U], mesh)})
    assert list(found) == ["w", "layers", "step", "rate", "plain"]
    assert found["layers"][1] == (3, "text", None)
    assert (found["step"], found["rate"]) == (17, 0.1)
    assert found["w"].layout == Layout(["y", U], mesh)
    same(found["w"], A)
    same(found["layers"][0]["b"], B)
    same(found["plain"], np.arange(3))
    assert list(mc.load(tmp_path / "step-1", names=["layers.0.b"])) == ["layers.0.b"]


@pytest.mark.parametrize("kind", ["bfloat16", "float8_e4m3fn", "f8,i4", "M8[us]", "g", "S3", ">c16"])
@on_ranks(4)
def test_every_dtype_in_a_checkpoint(kind, tmp_path):
    dtype = np.dtype(getattr(ml_dtypes, kind) if hasattr(ml_dtypes, kind) else kind)
    whole = random_bits((9, 5), dtype, 1)
    mc.save(tmp_path / "c", mc.distribute(whole, Layout([U, "x"], mesh_of_4())))
    found = mc.load(tmp_path / "c", Layout(["y", U], mesh_of_4()))
    assert opaque(found.to_numpy()).tobytes() == whole.tobytes()


@pytest.mark.parametrize("kind", ["f8", ">i8", ">c16", "f8,>i4"])
def test_arrays_without_axes_keep_their_bytes_and_need_no_library(kind, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "zarr", None)
    whole = random_bits((), np.dtype(kind), 1)

    def program():
        tensor = mc.distribute(whole, Layout([], mesh_of_4()))
        for path in tmp_path / "c", tmp_path / "a.npy", *([] if "," in kind else [tmp_path / "z.zarr"]):
            mc.save(path, tensor)
            assert opaque(mc.load(path, tensor.layout).local).tobytes() == whole.tobytes()

    on(4, program)
    assert np.load(tmp_path / "a.npy").tobytes() == whole.tobytes()


@pytest.mark.parametrize(("suffix", "index"), sampled(product(SUFFIXES, INDICES)), ids=str)
@on_ranks(4)
def test_slices(suffix, index, tmp_path):
    big = np.arange(300 * 120, dtype="f8").reshape(300, 120)  # more than one rank reads for all
    mesh = mesh_of_4()
    path = tmp_path / f"t{suffix}"
    mc.save(path, mc.distribute(big, Layout(["x", "y"], mesh)))
    expected = big[index]
    specs = [("x", "y"), *[U] * (expected.ndim - 1)]
    same(mc.load(path, Layout(specs, mesh), slices=index), expected)
    same(mc.load(path, slices=index), expected)


def test_others_read_it(tmp_path):
    h5py, zarr = pytest.importorskip("h5py"), pytest.importorskip("zarr")
    library = pytest.importorskip("safetensors.numpy")

    def program():
        mesh = mesh_of_4()
        t, u = mc.distribute(A, Layout([U, "y"], mesh)), mc.distribute(A.astype("f4"), Layout(["x", U], mesh))
        mc.save(tmp_path / "a.npy", t)
        mc.save(tmp_path / "a.safetensors", {"w": t, "b": u}, metadata={"by": "me"})
        mc.save(tmp_path / "a.h5", {"/fields/p": t, "b": u}, metadata={"by": "me"})
        mc.save(tmp_path / "a.zarr", {"fields": {"p": t}, "b": u})
        mc.save(tmp_path / "b.zarr", t)

    on(4, program)
    np.testing.assert_array_equal(np.load(tmp_path / "a.npy", mmap_mode="r"), A)
    found = library.load_file(tmp_path / "a.safetensors")
    np.testing.assert_array_equal(found["w"], A)
    np.testing.assert_array_equal(found["b"], A.astype("f4"))
    with h5py.File(tmp_path / "a.h5") as file:
        np.testing.assert_array_equal(file["fields/p"][...], A)
        assert file.attrs["by"] == "me"
    np.testing.assert_array_equal(zarr.open(tmp_path / "a.zarr")["fields/p"][...], A)
    np.testing.assert_array_equal(zarr.open(tmp_path / "b.zarr")[...], A)
    xarray = pytest.importorskip("xarray")
    with xarray.open_zarr(tmp_path / "a.zarr", consolidated=False) as found:
        np.testing.assert_array_equal(found["b"].values, A.astype("f4"))


@pytest.mark.parametrize("kind", [*safetensors.NUMPY_DTYPES.values(), *safetensors.ML_DTYPES.values()])
def test_every_dtype_of_safetensors(kind, tmp_path):
    library, path = pytest.importorskip("safetensors"), tmp_path / "a.safetensors"
    dtype = np.dtype(getattr(ml_dtypes, kind) if hasattr(ml_dtypes, kind) else kind)
    whole = random_bits((9, 5), dtype, 1)

    def program():
        mc.save(path, {"a": mc.distribute(whole, Layout([U, "x"], mesh_of_4()))})
        found = mc.load(path, Layout(["y", U], mesh_of_4()))["a"].to_numpy()
        assert (found.dtype, opaque(found).tobytes()) == (dtype, whole.tobytes())

    on(4, program)
    ((name, found),) = library.deserialize(path.read_bytes())
    texts = {name: text for text, name in (safetensors.NUMPY_DTYPES | safetensors.ML_DTYPES).items()}
    assert (name, found["shape"], found["dtype"]) == ("a", [9, 5], texts[kind])
    assert bytes(found["data"]) == whole.tobytes()


def test_several_safetensors_files(tmp_path, monkeypatch):
    library = pytest.importorskip("safetensors.numpy")
    monkeypatch.setattr(safetensors, "MAX_SAFETENSORS_BYTES", 3 * A.nbytes)
    path, arrays = tmp_path / "model.safetensors.index.json", {f"layer.{n}": A + n for n in range(7)}

    def program():
        layout = Layout(["x", U], mesh_of_4())
        for number in range(2):
            tree = {name: mc.distribute(array + number, layout) for name, array in arrays.items()}
            mc.save(path, tree | {"empty": mc.zeros((0, 3), "i4", layout)}, metadata={"by": "me"})
        for name, found in mc.load(path, layout, names=list(arrays)).items():
            same(found, arrays[name] + 1)

    on(4, program)
    index, files = json.loads(path.read_text()), sorted(tmp_path.glob("model-*-of-00003.safetensors"))
    assert index["metadata"] == {"total_size": 7 * A.nbytes, "by": "me"}
    assert {path.name, *(file.name for file in files)} == {found.name for found in tmp_path.iterdir()}
    for file in files:
        for name, found in library.load_file(file).items():
            assert index["weight_map"][name] == file.name
            np.testing.assert_array_equal(found, arrays.get(name, found) + (name in arrays))
    assert mc.open(path).metadata == {"by": "me"}


def test_an_index_that_is_renamed_and_one_that_is_a_link(tmp_path):
    path, old, link = (tmp_path / f"{name}.safetensors.index.json" for name in ("model", "old", "link"))

    def save(n, to):
        mc.save(to, {"a": mc.distribute(A + n, Layout(["x", U], mesh_of_4()))})

    on(4, lambda: save(0, path))
    path.rename(old)
    on(4, lambda: save(1, path))
    link.symlink_to(old)
    on(4, lambda: save(2, link))
    for n, each in enumerate((old, path, link)):
        np.testing.assert_array_equal(mc.open(each)["a"], A + n)


@pytest.mark.parametrize("suffix", [".npy", ".safetensors"])
def test_arrays_begin_with_a_page(suffix, tmp_path):
    on(4, lambda: mc.save(tmp_path / f"a{suffix}", mc.distribute(A, Layout(["x", U], mesh_of_4()))))
    assert (tmp_path / f"a{suffix}").stat().st_size == 4096 + A.nbytes


def test_we_read_others(tmp_path):
    h5py, zarr = pytest.importorskip("h5py"), pytest.importorskip("zarr")
    library = pytest.importorskip("safetensors.numpy")
    big = np.random.default_rng(1).normal(size=(200, 130))
    files = {"c": big, "f": np.asfortranarray(big), "big": big.astype(">f8"), "zero": np.array(3.5), "empty": big[:0]}
    for name, array in files.items():
        np.save(tmp_path / f"{name}.npy", array)
    library.save_file({"w": big}, tmp_path / "w.safetensors")
    with h5py.File(tmp_path / "w.h5", "w") as file:
        file["plain"] = big
        file.create_dataset("small", data=big, chunks=(17, 30), compression="gzip")
    group = zarr.open_group(tmp_path / "w.zarr", mode="w")
    group.create_array("usual", data=big, chunks=(17, 30))
    group.create_array("shards", data=big, chunks=(10, 13), shards=(50, 26))
    zarr.save(tmp_path / "two.zarr", big, zarr_format=2)

    def program():
        mesh = mesh_of_4()
        layout = Layout(["x", "y"], mesh)
        for name, array in files.items():
            same(mc.load(tmp_path / f"{name}.npy", layout if array.ndim else None), array)
        same(mc.load(tmp_path / "f.npy", Layout([U, "y"], mesh), slices=np.s_[3:9, 2:]), big[3:9, 2:])
        same(mc.load(tmp_path / "w.safetensors", layout)["w"], big)
        for path in ("w.h5", "w.zarr"):
            for found in mc.load(tmp_path / path, layout).values():
                same(found, big)
            for found in mc.load(tmp_path / path, layout, slices=np.s_[33:90, 7:]).values():
                same(found, big[33:90, 7:])
        same(mc.load(tmp_path / "two.zarr", layout), big)

    on(4, program)


def test_hdf5_types_that_its_library_converts(tmp_path):
    h5py, path, numbers = pytest.importorskip("h5py"), tmp_path / "a.h5", np.arange(40_000.0, dtype="f4") % 256
    short = h5py.h5t.IEEE_F32LE.copy()
    short.set_fields(15, 7, 8, 0, 7)
    short.set_size(2)
    short.set_ebias(127)
    padded = h5py.h5t.create(h5py.h5t.COMPOUND, 24)
    padded.insert(b"r", 0, h5py.h5t.IEEE_F64LE)
    padded.insert(b"i", 16, h5py.h5t.IEEE_F64LE)
    expected = {"bfloat16": numbers, "complex": np.dtype("c16").type(1j) * numbers + 1, "same": numbers.astype(">f8")}
    with h5py.File(path, "w") as file:
        for name, kind in (("bfloat16", short), ("complex", padded)):
            h5py.h5d.create(file.id, name.encode(), kind, h5py.h5s.create_simple(numbers.shape))
            file[name][...] = expected[name]
        file["same"] = expected["same"]

    def program():
        for name, found in mc.load(path, Layout([("x", "y")], mesh_of_4())).items():
            assert found.dtype == expected[name].dtype
            same(found, expected[name])

    on(4, program)
    assert list(hdf5.contents(path).by_library) == ["bfloat16", "complex"]


@pytest.mark.parametrize("suffix", [".h5", ".zarr"])
def test_the_watchdog_knows_that_a_library_reads(suffix, tmp_path, monkeypatch):
    h5py, zarr = pytest.importorskip("h5py"), pytest.importorskip("zarr")
    path, seen, large = tmp_path / f"a{suffix}", [], np.arange(20_000.0)
    if suffix == ".h5":
        with h5py.File(path, "w") as file:
            file.create_dataset("a", data=large, chunks=(300,), compression="gzip")
    else:
        zarr.create_group(path).create_array("a", data=large, chunks=(300,))
    calls = [(h5py.File, "__init__"), (h5py.Group, "__iter__"), (h5py.Dataset, "__getitem__")]
    calls = calls if suffix == ".h5" else [(zarr, "open"), (zarr.Array, "__getitem__")]

    def telling(name, real):
        def call(*args, **named):
            seen.append((name, watch.in_file))
            return real(*args, **named)

        return call

    for owner, name in calls:
        monkeypatch.setattr(owner, name, telling(name, getattr(owner, name)))
    on(1, lambda: same(mc.load(path, max_scratch_bytes=2**16)["a"], large))
    assert set(seen) == {(name, True) for _, name in calls}
    assert seen.count(("__getitem__", True)) > 1


@pytest.mark.parametrize("name", ["höhe", "高さ", "\ud800", "x" * 70_000])
def test_names_of_fields_in_npy_headers(name, tmp_path):
    whole = np.ones(5, [(name, "f8"), ("n", ">i4")])

    def program():
        mc.save(tmp_path / "a.npy", mc.distribute(whole, Layout(["x"], mesh_of_4())))
        same(mc.load(tmp_path / "a.npy"), whole)

    if len(name) > 60_000:
        with pytest.raises(mc.DTypeError, match=r"which numpy\.load refuses"):
            on(4, program)
        return
    on(4, program)
    found = np.load(tmp_path / "a.npy")
    assert (found.dtype, found.tobytes()) == (whole.dtype, whole.tobytes())
    assert (tmp_path / "a.npy").read_bytes()[6] == (3 if name == "高さ" else 1)


@pytest.mark.parametrize("suffix", ["", *(each for each in SUFFIXES if each and "index" not in each)])
def test_saving_to_a_link(suffix, tmp_path):
    (tmp_path / "there").mkdir()
    path, link = tmp_path / "there" / f"a{suffix}", tmp_path / f"link{suffix}"
    link.symlink_to(path)

    def program(n, to):
        tensor = mc.distribute(A + n, Layout(["x", U], mesh_of_4()))
        mc.save(to, tensor if suffix in ("", ".npy") else {"array": tensor})

    for n in range(3):  # at first it leads to nothing
        on(4, lambda n=n: program(n, link))
        assert link.readlink() == path
        for each in path, link:
            with mc.open(each) as file:
                np.testing.assert_array_equal(file[file.names[0]][...], A + n)
        assert [each.name for each in (tmp_path / "there").iterdir()] == [path.name]


def test_saving_a_module(tmp_path):
    class Net(mc.Module):
        def __init__(self, layout):
            super().__init__()
            self.w = mc.Variable(mc.distribute(A, layout), name="w")
            self.inner = Inner(layout)

    class Inner(mc.Module):
        def __init__(self, layout):
            super().__init__()
            self.b = mc.Variable(mc.distribute(B.astype("f8"), layout), name="b")

    def program():
        net = Net(Layout(["x", U], mesh_of_4()))
        mc.save(tmp_path / "c", {"net": net, "step": 3})
        other = Net(net.w.value.layout)
        for each in other.w, other.inner.b:
            each.assign(each.value * 0)
        mc.load(tmp_path / "c", out={"net": other})
        same(other.w.value, A)
        same(other.inner.b.value, B.astype("f8"))
        return mc.load(tmp_path / "c")["step"], sorted(mc.open(tmp_path / "c").names)

    assert on(4, program) == [(3, ["net.inner.b", "net.w"])] * 4


@on_ranks(4)
def test_start_save_copies_what_it_writes(tmp_path):
    mesh = mesh_of_4()
    t = mc.distribute(A, Layout(["x", "y"], mesh))
    request = mc.start_save(tmp_path / "c", {"a": t}, max_staged_bytes=16)
    t += 1
    assert not (tmp_path / "c" / "manifest.json").exists()
    request.wait()
    request.wait()
    assert request.test()
    same(mc.load(tmp_path / "c", check=True)["a"], A)


def most_held(program):
    """Return the most bytes that *program* holds at once beyond those that it begins with."""
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        tracemalloc.reset_peak()
        program()
        return tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()


PYTHON_NEEDS = 2**18  # bytes, of a save


@pytest.mark.parametrize("specs", [["x", U], [U, "x"]], ids=str)
def test_a_save_in_the_background_holds_no_more_copies_than_it_may(specs, tmp_path, monkeypatch):
    whole, real, limit = np.arange(7.0 * 2**15).reshape(-1, 7), os.pwrite, 2**19
    monkeypatch.setattr(os, "pwrite", lambda *args: (time.sleep(0.002), real(*args))[1])

    def program():
        t = mc.distribute(whole, Layout(specs, mc.create_mesh([("x", 1)])))
        save = lambda: mc.start_save(tmp_path / "c", t, max_staged_bytes=limit).wait()  # noqa: E731
        save()
        assert most_held(save) < limit + PYTHON_NEEDS < whole.nbytes / 2
        same(mc.load(tmp_path / "c", check=True), whole)

    on(1, program)


@pytest.mark.parametrize("shape", [(400, 9, 80), (3, 1000, 97), (2, 3, 50_000)])
@pytest.mark.parametrize(("suffix", "change"), [("", "slice"), (".npy", "slice"), (".safetensors", "big endian")])
@on_ranks(1)
def test_a_save_that_copies_blocks_keeps_to_its_limit(suffix, change, shape, tmp_path):
    whole, path, limit = np.arange(float(np.prod(shape))).reshape(shape), tmp_path / f"a{suffix}", 2**17
    t = mc.distribute(whole, Layout(["x", U, U], mc.create_mesh([("x", 1)])))
    t = t[:, :, 1:] if change == "slice" else t.astype(">f8")
    tree = t if suffix == ".npy" else {"a": t}
    mc.save(path, tree, max_scratch_bytes=limit)
    assert most_held(lambda: mc.save(path, tree, max_scratch_bytes=limit)) < limit + PYTHON_NEEDS < t.size * 4
    with mc.open(path) as file:
        np.testing.assert_array_equal(file[file.names[0]][...], t.to_numpy())


def test_ranks_tell_checksums_of_whole_ranges(tmp_path, monkeypatch):
    counts, tell = [], saving.gathered_pieces

    def counted(own, *where):
        counts.append(len(own))
        return tell(own, *where)

    monkeypatch.setattr(saving, "gathered_pieces", counted)

    def program():
        t = mc.distribute(np.arange(2**15), Layout(["x"], mc.create_mesh([("x", 4)])))
        mc.start_save(tmp_path / "c", {"a": t}, max_staged_bytes=256).wait()
        same(mc.load(tmp_path / "c", check=True)["a"], np.arange(2**15))

    on(4, program)
    assert counts == [1] * 4


@pytest.mark.parametrize("number", [float("nan"), float("inf"), -float("inf"), -0.0])
def test_numbers_that_json_has_no_word_for(number, tmp_path):
    def program():
        mc.save(tmp_path / "c", {"a": mc.distribute(A, Layout(["x", U], mesh_of_4())), "loss": [number]})
        return mc.load(tmp_path / "c")["loss"]

    assert repr(on(4, program)) == repr([[number]] * 4)
    json.loads((tmp_path / "c" / "manifest.json").read_text(), parse_constant=pytest.fail)


@pytest.mark.parametrize("suffix", [".safetensors", ""])
@on_ranks(4)
def test_one_of_several_arrays_into_a_tensor(suffix, tmp_path):
    layout = Layout(["x", "y"], mesh_of_4())
    mc.save(tmp_path / f"c{suffix}", {"w": mc.distribute(A, layout), "b": mc.distribute(-A, layout)})
    for given in (layout, None, {"w": layout}, {"b": Layout([U, U], layout.mesh)}):
        out = mc.zeros((3, 5), "f8", layout)
        found = mc.load(tmp_path / f"c{suffix}", given, slices=np.s_[2:5], out=out, names=["w"])
        assert found is out
        same(out, A[2:5])


@on_ranks(2)
def test_names_by_pattern(tmp_path):
    mc.save(tmp_path / "c", {"layers": [{"w": A, "b": B}] * 2, "w": A})
    pattern = re.compile(r"layers\.\d\.w")
    assert list(mc.load(tmp_path / "c", names=pattern)) == ["layers.0.w", "layers.1.w"]
    planned = mc.plan_load(tmp_path / "c", names=pattern).arrays
    assert [each.request.name for each in planned] == ["layers.0.w", "layers.1.w"]


def modes(path):
    """Return the permissions of the folders at *path* and below it, and those of the files."""
    found = [(each.is_dir(), each.stat().st_mode & 0o777) for each in (path, *path.rglob("*"))]
    return tuple({mode for is_folder, mode in found if is_folder is kind} for kind in (True, False))


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_permissions(suffix, tmp_path):
    """What is new has those that the umask leaves, as files of `open`; what replaces something old keeps those."""
    folder = tmp_path / "folder"

    def program():
        tensor = mc.distribute(A, Layout(["x", U], mesh_of_4()))
        mc.save(folder / f"a{suffix}", tensor if suffix == ".npy" else {"g": {"a": tensor}})

    old = os.umask(0o027)
    try:
        folder.mkdir()
        on(4, program)
        assert modes(folder) == ({0o750}, {0o640})
        for each in (folder, *folder.rglob("*")):
            each.chmod(0o710 if each.is_dir() else 0o604)
        on(4, program)
        assert modes(folder) == ({0o710}, {0o604})
    finally:
        os.umask(old)


@on_ranks(4)
def test_out_and_strict(tmp_path):
    mesh = mesh_of_4()
    mc.save(tmp_path / "c", {"a": mc.distribute(A, Layout(["x", "y"], mesh))})
    out = {"a": mc.zeros(A.shape, "f8", Layout([U, "x"], mesh)), "new": mc.ones(2, "f8", Layout(["x"], mesh))}
    with pytest.raises(mc.CheckpointError, match="has no array 'new'"):
        mc.load(tmp_path / "c", out=out)
    assert mc.load(tmp_path / "c", out=out, strict=False) is out
    same(out["a"], A)
    same(out["new"], np.ones(2))
    f4 = mc.load(tmp_path / "c", Layout(["y", U], mesh), dtype="f4")["a"]
    same(f4, A.astype("f4"))


@pytest.mark.parametrize("dtype", [str, "S", "V", "S3", "M8[s]"])
@on_ranks(4)
def test_dtypes_without_a_length_get_that_of_numpy(dtype, tmp_path):
    layout = Layout(["x", "y"], mesh_of_4())
    mc.save(tmp_path / "a.npy", mc.distribute(A, layout))
    same(mc.load(tmp_path / "a.npy", layout, dtype=dtype), A.astype(dtype))


def test_zarr_arrays_have_the_name_of_the_folder_of_chunks(tmp_path):
    zarr, tree = pytest.importorskip("zarr"), {"c": A, "g": {"c": A + 1}}

    def program():
        mc.save(tmp_path / "t.zarr", tree)
        for name, tensor in mc.load(tmp_path / "t.zarr").items():
            same(tensor, {"c": A, "g/c": A + 1}[name])

    on(4, program)
    group = zarr.open_group(tmp_path / "t.zarr", mode="r")
    np.testing.assert_array_equal(group["c"][...], A)
    np.testing.assert_array_equal(group["g/c"][...], A + 1)


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_integers_as_keys(ranks, tmp_path):
    """As an optimizer of PyTorch has them; `True` is none, and texts of digits are others."""

    def program():
        t = mc.ones(3, float, mc.Layout(["x"], mc.create_mesh([("x", -1)])))
        tree = {"state": {0: {"step": 1.5, "m": t}, 7: {"step": None, "m": 2 * t}, "0": 4}, "groups": [{-1: (0, "a")}]}
        mc.save(tmp_path / "a", tree)
        found = mc.load(tmp_path / "a")
        assert list(found["state"]) == [0, 7, "0"]
        assert found["state"][7]["m"].to_numpy().tolist() == [2, 2, 2]
        assert (found["state"][0]["step"], found["state"]["0"], found["groups"]) == (1.5, 4, [{-1: (0, "a")}])
        out = {"state": {7: {"m": mc.zeros(3, float, t.layout)}}}
        assert mc.load(tmp_path / "a", out=out)["state"][7]["m"].to_numpy().tolist() == [2, 2, 2]
        with pytest.raises(TypeError, match="a str or an int, not True"):
            mc.save(tmp_path / "b", {True: t})
        with pytest.raises(mc.CheckpointError, match="two tensors of the tree have the name '0'"):
            mc.save(tmp_path / "b", {0: t, "0": t})

    with mc.simulate(ranks) as world:
        world.run(program)
