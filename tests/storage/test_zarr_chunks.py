"""Zarr stores in chunks, compressed, with names of axes and attributes: read by zarr and xarray, and loaded again."""

import json
from itertools import product

import ml_dtypes
import numpy as np
import pytest

import meshcomm as mc
from meshcomm import Layout
from support.sampling import sampled
from support.saved import INDICES, mesh_of_4, on, same

zarr = pytest.importorskip("zarr")
xarray = pytest.importorskip("xarray")

U = mc.UNSHARDED
A = np.random.default_rng(0).integers(-9, 9, (37, 23)).astype("f8")
LAYOUTS = (["x", U], [U, "x"], [mc.Cyclic("x", 2), U], [U, U])
COMPRESSIONS = ("gzip", ("zstd", 7), "blosc", ["gzip", "zstd"], None)
CHUNKS = ((5, 7), (37, 4), (10, -1), (1, 1), None)


def saved(path, ranks, array, specs=("x", U), how=mc.save, **options):
    """Save an array from simulated ranks, and check that a load in another layout returns it."""

    def program():
        mesh = mc.create_mesh([("x", ranks)])
        request = how(path, {"g": {"a": mc.distribute(array, Layout(list(specs), mesh))}}, **options)
        if request is not None:
            request.wait()
        found = mc.load(path, {"g/a": Layout([U, "x"], mesh)})["g/a"]
        same(found, array.astype(found.dtype))  # zarr says nothing of the order of bytes in its dtypes
        assert found.dtype.newbyteorder("=") == array.dtype.newbyteorder("=")

    on(ranks, program)
    return zarr.open(path, mode="r")["g/a"]


@pytest.mark.parametrize(
    ("ranks", "specs", "compression", "chunks"), sampled(product((1, 3, 4), LAYOUTS, COMPRESSIONS, CHUNKS), 60)
)
def test_any_chunks(ranks, specs, compression, chunks, tmp_path):
    pair = [compression] if isinstance(compression, tuple) else compression
    found = saved(tmp_path / "a.zarr", ranks, A, specs, chunks=chunks, compression=pair, max_scratch_bytes=2**12)
    np.testing.assert_array_equal(found[...], A)
    if chunks is not None:
        assert found.chunks == tuple(n if c == -1 else c for n, c in zip(A.shape, chunks, strict=True))
    given = str(pair or "").lower()
    names = [type(each).__name__.removesuffix("Codec").lower() for each in found.compressors]
    assert names == [name for name in ("gzip", "zstd", "blosc") if name in given]


@pytest.mark.filterwarnings("ignore:The data type .FixedLengthUTF32")
@pytest.mark.parametrize("dtype", [">f4", "?", "u1", "c16", ">i2", "M8[s]", "m8[3ms]", ">M8[ns]", "U3", ">U2"])
@pytest.mark.parametrize("compression", [None, "blosc"])
def test_dtypes(dtype, compression, tmp_path):
    whole = A.astype("i8").astype(dtype)
    found = saved(tmp_path / "a.zarr", 3, whole, compression=compression, chunks=(7, 7))
    np.testing.assert_array_equal(found[...], whole)


@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, [("a", "f4")], "V3", "M8"])
def test_dtypes_that_zarr_has_not(dtype, tmp_path):
    def program():
        with pytest.raises(mc.DTypeError, match="a zarr array cannot hold"):
            mc.save(tmp_path / "a.zarr", {"a": mc.zeros((4, 4), dtype, Layout(["x", U], mesh_of_4()))})

    on(4, program)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (1, 1), (5, 1)])
def test_few_elements(shape, tmp_path):
    found = saved(tmp_path / "a.zarr", 4, np.ones(shape), compression="zstd")
    np.testing.assert_array_equal(found[...], np.ones(shape))


def test_scalars_are_not_compressed(tmp_path):
    on(1, lambda: mc.save(tmp_path / "a.zarr", {"s": np.array(3.0)}, compression="gzip"))
    found = zarr.open(tmp_path / "a.zarr", mode="r")["s"]
    assert (found[...], found.compressors) == (3.0, ())


def test_a_save_in_the_background(tmp_path):
    saved(tmp_path / "a.zarr", 4, A, how=mc.start_save, chunks=(5, 7))

    def program():
        t = mc.distribute(A, Layout([U, "x"], mesh_of_4()))
        request = mc.start_save(tmp_path / "b.zarr", {"a": t}, chunks=(-1, 1))
        t[...] = 0  # what is written was copied
        request.wait()

    on(4, program)
    np.testing.assert_array_equal(zarr.open(tmp_path / "b.zarr", mode="r")["a"][...], A)


def test_default_chunks_are_whole_rows(tmp_path):
    whole = np.arange(6000 * 23).astype("f8").reshape(6000, 23)
    assert saved(tmp_path / "a.zarr", 3, whole, compression="zstd").chunks == (2**20 // (23 * 8), 23)


def test_slices_of_chunks(tmp_path):
    saved(tmp_path / "a.zarr", 3, A, chunks=(5, 7), compression="gzip")

    def program():
        for index in INDICES:
            layout = Layout(["x", *[U] * (A[index].ndim - 1)], mc.create_mesh([("x", 3)]))
            same(mc.load(tmp_path / "a.zarr", layout, slices=index, names=["g/a"])["g/a"], A[index])

    on(3, program)


def test_one_rank_reads_each_chunk(tmp_path, selections):
    saved(tmp_path / "a.zarr", 4, A, chunks=(5, 23), compression="gzip")
    selections.clear()
    on(4, lambda: mc.load(tmp_path / "a.zarr", {"g/a": Layout([U, "x"], mc.create_mesh([("x", 4)]))}))
    read = [(chosen.start[0], chosen.start[0] + chosen.box[0]) for chosen, _ in selections]
    rows = [row for start, stop in read for row in range(start // 5, -(-stop // 5))]
    assert sorted(rows) == list(range(8))


def test_xarray_reads_dims_and_attributes(tmp_path):
    attributes = {"title": "é", "n": np.float32(0.5), "v": np.arange(3), "w": [1, None], "gap": float("nan")}

    def program():
        t = mc.distribute(A, Layout(["x", "y"], mesh_of_4()))
        tree = {"a": t, "t": np.arange(37).astype("M8[s]")}
        dims = {"a": ["t", "lon"], "t": "t"}
        mc.save(tmp_path / "a.zarr", tree, dims=dims, metadata={**attributes, "a": {"units": "m"}}, compression="zstd")

    on(4, program)
    found = xarray.open_zarr(tmp_path / "a.zarr", consolidated=False)
    assert (found["a"].dims, found["a"].attrs) == (("t", "lon"), {"units": "m"})
    assert found["t"].values[1] == np.datetime64(1, "s")
    np.testing.assert_array_equal(found["a"].values, A)
    assert np.isnan(found.attrs.pop("gap"))
    assert found.attrs == {"title": "é", "n": 0.5, "v": [0, 1, 2], "w": [1, None]}


WRONG = [
    ({"compression": "shuffle"}, TypeError, "compression='blosc' shuffles"),
    ({"compression": ["shuffle", "gzip"]}, TypeError, "compression='blosc' shuffles"),
    ({"compression": [("gzip", 10)]}, ValueError, "its levels are 0 to 9"),
    ({"compression": "lz4"}, ValueError, "compression is one of"),
    ({"chunks": (2,)}, mc.ShapeError, "chunks are"),
    ({"chunks": (0, 2)}, ValueError, "lengths of 1 or more"),
    ({"dims": ["x"]}, mc.ShapeError, "but 1 dims"),
    ({"dims": {"b": ["x", "y"]}}, ValueError, "dims names 'b'"),
    ({"metadata": {"c": np.ones(2, complex)}}, TypeError, "complex"),
]


@pytest.mark.parametrize(("options", "kind", "text"), WRONG, ids=str)
def test_wrong_options(options, kind, text, tmp_path):
    def program():
        with pytest.raises(kind, match=text):
            mc.save(tmp_path / "a.zarr", {"a": mc.ones((4, 4), "f8", Layout(["x", U], mesh_of_4()))}, **options)

    on(4, program)
    assert not list(tmp_path.iterdir())


# -- what would be lost -----------------------------------------------------------------------------------------------


def save_again(path, **options):
    tree = {"a": np.ones((2, 3)), "g": {"b": np.arange(4)}}
    on(1, lambda: mc.save(path, tree, metadata={"title": "ours"}, **options))


def change(path, how):
    """Change a store as another program does."""
    opened = zarr.open(path, mode="a")
    if how == "array":
        opened.create_array("grid", data=np.zeros((10, 20)))
    elif how == "attribute":
        opened.attrs["by"] = "other"
    elif how == "attribute of an array":
        opened["a"].attrs["units"] = "m"
    elif how == "group":
        opened["g"].attrs["k"] = 1
    elif how == "consolidated":
        zarr.consolidate_metadata(path)
    elif how == "file":
        (path / "g/notes.txt").write_text("hi")
    elif how == "replaced":
        opened.create_array("a", data=np.zeros(3), overwrite=True)


LOST = {
    "array": r"array 'grid' \(10, 20\) float64",
    "attribute": "attribute 'by'",
    "attribute of an array": r"array 'a' \(2, 3\) float64",
    "group": "attributes of the group 'g'",
    "file": "file 'g/notes.txt'",
    "replaced": r"array 'a' \(3,\) float64",
}


@pytest.mark.filterwarnings("ignore:Consolidated metadata", "ignore:Object at")
@pytest.mark.parametrize("how", LOST)
def test_what_another_program_wrote_is_not_lost(how, tmp_path):
    path = tmp_path / "a.zarr"
    save_again(path)
    change(path, how)
    before = sorted(map(str, path.rglob("*")))
    with pytest.raises(FileExistsError, match=f'would lose: {LOST[how]}. overwrite=True replaces it; mode="a"'):
        save_again(path)
    assert sorted(map(str, path.rglob("*"))) == before
    save_again(path, overwrite=True)
    save_again(path)


@pytest.mark.filterwarnings("ignore:Consolidated metadata")
def test_what_is_ours_is_replaced(tmp_path):
    path = tmp_path / "a.zarr"
    path.mkdir()  # an empty folder
    save_again(path)
    change(path, "consolidated")
    save_again(path)
    on(1, lambda: mc.save(path, {"c": np.ones(2)}, mode="a", metadata={"more": 1}))
    with pytest.raises(FileExistsError, match=r"would lose: array 'c' \(2,\) float64\. "):
        save_again(path)
    on(1, lambda: mc.save(path, {"a": np.ones(1), "g/b": np.ones(1), "c": np.ones(2)}))
    on(1, lambda: mc.save(tmp_path / "one.zarr", np.ones(2), metadata={"title": "ours"}))
    on(1, lambda: mc.save(tmp_path / "one.zarr", np.ones(3)))
    assert zarr.open(tmp_path / "one.zarr", mode="r").shape == (3,)
    with pytest.raises(FileExistsError, match="array 'array'"):
        save_again(tmp_path / "one.zarr")


def test_stores_of_others_are_not_replaced(tmp_path):
    path = tmp_path / "a.zarr"
    group = zarr.open_group(path, mode="w", zarr_format=2)
    group.create_array("a", data=np.ones((2, 3)))
    group.attrs["title"] = "x"
    group.attrs["by"] = "x"
    with pytest.raises(FileExistsError, match=r"would lose: array 'a' \(2, 3\) <f8, attribute 'by'. overwrite"):
        save_again(path)
    save_again(path, overwrite=True)
    save_again(path)
    (tmp_path / "b.zarr").mkdir()
    (tmp_path / "b.zarr/notes.txt").write_text("hi")
    for overwrite in (None, True):
        with pytest.raises(FileExistsError, match="is there and is no zarr store"):
            save_again(tmp_path / "b.zarr", overwrite=overwrite)


def test_damaged_stores_are_replaced_if_asked_for(tmp_path):
    path = tmp_path / "a.zarr"
    save_again(path)
    for text in ("[]", "{", json.dumps({"array": 3, "root": [1]})):
        (path / "a/.meshcomm.json").write_text(text)
        with pytest.raises(FileExistsError):
            save_again(path)
    for text in ("[]", "{", '{"zarr_format": 3, "node_type": "group", "attributes": [1]}'):
        (path / "zarr.json").write_text(text)
        with pytest.raises(FileExistsError):
            save_again(path)
        save_again(path, overwrite=True)
        (path / "a/.meshcomm.json").write_text("[]")
