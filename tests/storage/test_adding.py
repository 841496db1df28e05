"""Arrays that are added to a zarr store, or to an index of safetensors files: the rest stays as it was."""

import errno
import json
import shutil
from pathlib import Path

import numpy as np
import pytest

import meshcomm as mc
from meshcomm import Layout
from support.sampling import sampled
from support.saved import mesh_of_4, on, same
from support.small_saves import listed
from support.system_calls import WHEN, calls_of, failing, killed

U = mc.UNSHARDED
SUFFIXES = (".zarr", ".safetensors.index.json")
OLD, NEW = np.arange(24.0).reshape(6, 4), np.arange(35.0).reshape(7, 5) + 100


pytestmark = pytest.mark.usefixtures("small_files")


def save(path, trees, ranks=2, **options):
    """Save trees of arrays, one after the other, from simulated ranks."""

    def program():
        mesh = mc.create_mesh([("x", ranks)])
        for tree in trees:
            tensors = {k: mc.distribute(a, Layout(["x", *[U] * (a.ndim - 1)], mesh)) for k, a in tree.items()}
            mc.save(path, tensors, **options)

    on(ranks, program)


def loaded(path):
    """Return the arrays by name. All ranks compare them."""

    def program():
        return {name: tensor.to_numpy() for name, tensor in mc.load(path).items()}

    return on(1, program)[0]


def check(path, expected):
    found = loaded(path)
    assert sorted(found) == sorted(expected)
    for name, array in expected.items():
        assert found[name].tobytes() == array.tobytes(), name


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("ranks", [1, 3, 4])
def test_arrays_are_added_and_replaced(suffix, ranks, tmp_path):
    path, more = tmp_path / f"a{suffix}", {"chunks": (2, 2), "compression": "gzip"} if suffix == ".zarr" else {}
    first = {"a": OLD, "b": OLD + 1, "g/c": OLD + 2}
    save(path, [first], ranks, mode="a", metadata={"one": "1", "two": "2"})  # there is nothing yet
    save(path, [{"a": NEW, "d": OLD + 3, "g/e": OLD}, {"h/i/j": OLD}], ranks, mode="a", metadata={"two": "3"}, **more)
    expected = first | {"a": NEW, "d": OLD + 3, "g/e": OLD, "h/i/j": OLD}
    check(path, expected)
    with mc.open(path) as file:
        assert file.metadata == {"one": "1", "two": "3"}
    save(path, [expected], ranks)  # all is ours
    check(path, expected)


FIRST = {"a": OLD, "b": OLD + 1, "g/c": OLD + 2}
THEN = {"a": NEW, "g/c": NEW + 1, "h/i": NEW, "h/j": OLD}


def add(path):
    save(path, [THEN], mode="a", metadata={"k": "v"})


def prepared(tmp_path, suffix):
    """Return a folder with a save, one to which was added, and the calls of the system that this took."""
    old = tmp_path / "old"
    old.mkdir()
    save(old / f"saved{suffix}", [FIRST])
    counted = Path(shutil.copytree(old, tmp_path / "counted"))
    return old, counted, calls_of(lambda: add(counted / f"saved{suffix}"))


def check_each(path, why):
    """Check that each array is old or new, as a whole, and that none of the old ones is gone."""
    found = loaded(path)
    for name, array in found.items():
        assert array.tobytes() in {tree[name].tobytes() for tree in (FIRST, THEN) if name in tree}, why
    assert FIRST.keys() <= found.keys(), why


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_process_dies_while_arrays_are_added(suffix, tmp_path):
    old, counted, calls = prepared(tmp_path, suffix)
    kills = [(at, when) for at, call in enumerate(calls) for when in WHEN if when != "half" or call.name == "pwrite"]
    died, tried = 0, sampled(kills, 60)
    for at, when in tried:
        path = Path(shutil.copytree(old, tmp_path / f"{at}-{when}")) / f"saved{suffix}"
        died += killed(lambda path=path: add(path), at, when)
        check_each(path, (at, when))
        add(path)
        check(path, FIRST | THEN)
        assert listed(path.parent) == listed(counted), (at, when)
        shutil.rmtree(path.parent)
    assert died > len(tried) / 2


def fails(path):
    """Return whether the arrays could not be added."""
    try:
        add(path)
    except OSError as error:
        return str(path) in str(error) or "safetensors" in str(error)
    return False


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_any_call_may_fail_while_arrays_are_added(suffix, tmp_path):
    old, counted, calls = prepared(tmp_path, suffix)
    failures, tried = 0, sampled(range(len(calls)), 25)
    for at in tried:
        path = Path(shutil.copytree(old, tmp_path / f"{at}")) / f"saved{suffix}"
        with failing(at, errno.ENOSPC):
            failures += fails(path)
        check_each(path, (at, calls[at]))
        add(path)
        check(path, FIRST | THEN)
        assert listed(path.parent) == listed(counted), (at, calls[at])
    assert failures > len(tried) // 3


# -- zarr -------------------------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:Consolidated metadata")
@pytest.mark.parametrize("consolidated", [True, False])
def test_a_store_of_xarray(consolidated, tmp_path):
    xarray, path = pytest.importorskip("xarray"), tmp_path / "a.zarr"
    data = xarray.Dataset({"u": (("y", "x"), OLD, {"units": "m"})}, {"x": np.arange(4.0)}, {"title": "theirs"})
    data.to_zarr(path, zarr_format=3, consolidated=consolidated)

    def program():
        t = mc.distribute(OLD + 1, Layout(["x", "y"], mesh_of_4()))
        mc.save(path, {"v": t}, mode="a", dims=["y", "x"], compression="zstd", metadata={"more": 1})

    on(4, program)
    found = xarray.open_zarr(path, consolidated=consolidated)
    np.testing.assert_array_equal(found["v"], OLD + 1)
    np.testing.assert_array_equal(found["u"], OLD)
    assert (found.attrs, found["u"].attrs) == ({"title": "theirs", "more": 1}, {"units": "m"})
    assert found["v"].dims == found["u"].dims
    with pytest.raises(FileExistsError, match="would lose: array 'u'"):
        save(path, [{"v": OLD}])


def names_in(path):
    """Return what zarr sees; it warns of what it does not know."""
    library = pytest.importorskip("zarr")
    return sorted(name for name, _ in library.open_group(path, mode="r").members(max_depth=None))


def test_zarr_sees_arrays_only(tmp_path):
    path = tmp_path / "a.zarr"
    save(path, [{"a": OLD}])
    save(path, [{"g/b": OLD}], mode="a")
    assert names_in(path) == ["a", "g", "g/b"]


def refused(path, tree, kind, text):
    """Check that all ranks raise the same error, and that nothing changes."""

    def program():
        mesh = mesh_of_4()
        with pytest.raises(kind, match=text):
            mc.save(path, tree, mode="a")
        mc.barrier(mesh)

    def content():
        return {each: each.is_file() and each.read_bytes() for each in path.parent.rglob("*")}

    before = content()
    on(4, program)
    assert content() == before


def test_what_cannot_be_added_to_a_store(tmp_path):
    library, path = pytest.importorskip("zarr"), tmp_path / "a.zarr"
    save(path, [{"g/b": OLD, "a": OLD}])
    (path / "other").mkdir()
    (path / "link").symlink_to(path / "a")
    refused(path, {"g": OLD}, mc.CheckpointError, "would replace the group")
    refused(path, {"a": {"x": OLD}}, mc.CheckpointError, "which is an array, no group")
    refused(path, {"other": OLD}, mc.CheckpointError, "no group and no array of zarr")
    refused(path, {"other": {"x": OLD}}, mc.CheckpointError, "no group and no array of zarr")
    refused(path, {"link": OLD}, mc.CheckpointError, "is a link")
    refused(path, OLD, mc.CheckpointError, "needs a name")
    refused(path, {"c": np.zeros(2, "V3")}, mc.DTypeError, "cannot hold")
    save(tmp_path / "one.zarr", [{"a": OLD}])
    shutil.copytree(tmp_path / "one.zarr/a", tmp_path / "root.zarr")
    refused(tmp_path / "root.zarr", {"b": OLD}, mc.CheckpointError, "is one zarr array, no group")
    library.open_group(tmp_path / "two.zarr", mode="w", zarr_format=2)
    refused(tmp_path / "two.zarr", {"b": OLD}, mc.CheckpointError, "version 2")
    (tmp_path / "no.zarr").mkdir()
    (tmp_path / "no.zarr/x").write_text("x")
    refused(tmp_path / "no.zarr", {"b": OLD}, FileExistsError, "no zarr store")


# -- safetensors ------------------------------------------------------------------------------------------------------


def test_files_hold_what_the_index_names(tmp_path):
    """Other libraries load all arrays of the files that an index names."""
    library, path = pytest.importorskip("safetensors.numpy"), tmp_path / "m.safetensors.index.json"
    save(path, [{"a": OLD, "b": OLD + 1, "c": OLD[:1]}, {"d": OLD}], mode="a")
    for step in range(3):
        save(path, [{"a": NEW + step}, {"c": OLD[1:2]}], mode="a")
        index, found = json.loads(path.read_text()), {}
        for file in set(index["weight_map"].values()):
            inside = library.load_file(tmp_path / file)
            assert not found.keys() & inside.keys()
            found |= inside
        assert found.keys() == index["weight_map"].keys() == {"a", "b", "c", "d"}
        assert index["metadata"]["total_size"] == sum(array.nbytes for array in found.values())
        np.testing.assert_array_equal(found["a"], NEW + step)
        np.testing.assert_array_equal(found["b"], OLD + 1)
        assert {each.name for each in tmp_path.glob("*.safetensors")} == set(index["weight_map"].values())


def test_files_of_others_stay(tmp_path):
    library, path = pytest.importorskip("safetensors.numpy"), tmp_path / "m.safetensors.index.json"
    library.save_file({"a": OLD, "b": OLD + 1}, tmp_path / "model-1.safetensors")
    names = {"a": "model-1.safetensors", "b": "model-1.safetensors"}
    path.write_text(json.dumps({"metadata": {"total_size": 1, "by": "x"}, "weight_map": names, "other": 1}))
    refused(
        path, {"b": NEW}, mc.CheckpointError, "model-1.safetensors, which another program wrote, has the array 'b'"
    )
    save(path, [{"c": NEW}], mode="a")
    check(path, {"a": OLD, "b": OLD + 1, "c": NEW})
    index = json.loads(path.read_text())
    assert (index["other"], index["metadata"]) == (1, {"by": "x", "total_size": 2 * OLD.nbytes + NEW.nbytes})
    with pytest.raises(FileExistsError, match="would lose"):
        save(path, [{"c": OLD}])


def test_a_damaged_index_stays(tmp_path):
    path = tmp_path / "m.safetensors.index.json"
    save(path, [{"a": OLD}])
    (data,) = tmp_path.glob("*.safetensors")
    data.unlink()
    refused(path, {"b": OLD}, mc.CheckpointError, "which is not there")


def test_loads_after_adding_in_any_layout(tmp_path):
    path = tmp_path / "a.zarr"
    save(path, [{"a": OLD}, {"b": NEW}], mode="a", compression="gzip", chunks=(2, 2))

    def program():
        for specs in (["x", "y"], [U, ("x", "y")], [("y", "x"), U]):
            found = mc.load(path, Layout(specs, mesh_of_4()))
            same(found["a"], OLD)
            same(found["b"], NEW)

    on(4, program)
