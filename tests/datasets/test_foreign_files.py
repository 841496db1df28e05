"""Files as other programs write them: what xarray reads of them itself, tensors have on every rank."""

import numpy as np
import pytest

import meshcomm as mc
from support.tensors import on

xarray = pytest.importorskip("xarray")
h5py = pytest.importorskip("h5py")
pytest.importorskip("h5netcdf")
zarr = pytest.importorskip("zarr")
mx = pytest.importorskip("meshcomm.xarray")

pytestmark = pytest.mark.filterwarnings("ignore:.*onsolidated:", "ignore:saving variable v", "ignore:.*Zarr V3 spec")
RANKS = [1, 2, 3]
FIELD = ("x", np.arange(4.0))
TEXTS = {
    "a text": xarray.Dataset({"v": FIELD, "z": "text"}),
    "an object": xarray.Dataset({"v": FIELD, "z": ((), np.array("höhe", object))}),
    "of a coordinate": xarray.Dataset({"v": (("z", "x"), np.ones((2, 4)))}, {"z": ["a", "bc"]}).isel(z=0),
}


def read(path):
    """Return what xarray reads itself."""
    options = {"engine": "zarr", "consolidated": False} if path.suffix == ".zarr" else {"engine": "h5netcdf"}
    with xarray.open_dataset(path, **options) as opened:
        return opened.load()


@pytest.mark.parametrize("suffix", [".nc", ".h5", ".zarr"])
@pytest.mark.parametrize("case", TEXTS)
def test_a_text_alone(case, suffix, tmp_path):
    its, path = TEXTS[case], tmp_path / f"a{suffix}"
    its.to_zarr(path) if suffix == ".zarr" else its.to_netcdf(path, engine="h5netcdf")
    for ranks in RANKS:
        assert on(ranks, lambda: mx.open(path, {"x": "x"}).z.item()) == [its.z.item()] * ranks


def test_a_text_of_any_length_alone_in_zarr(tmp_path):
    group = zarr.open_group(tmp_path / "a.zarr", mode="w")
    group.create_array("z", shape=(), dtype=str)[...] = "höhe"
    assert on(2, lambda: mx.open(tmp_path / "a.zarr").z.item()) == ["höhe"] * 2


@pytest.mark.parametrize("suffix", [".nc", ".h5"])
@pytest.mark.parametrize("dtype", ["u1", "i2", "i4"])
def test_attributes_of_one_element(dtype, suffix, tmp_path):
    path, packed = tmp_path / f"a{suffix}", {"v": {"dtype": dtype, "scale_factor": 0.01}}
    its = xarray.Dataset({"v": ("x", np.arange(4) * 0.01, {"n": [3], "t": ["a"]}), "w": ("y", np.arange(6.0))})
    its.assign_attrs(n=[1], m=[1, 2]).to_netcdf(path, engine="h5netcdf", encoding=packed)
    expected = read(path)
    for ranks in RANKS:

        def program(ranks=ranks):
            for dim in ("x", "y"):  # v is a tensor, and an array of NumPy
                found = mx.open(path, {dim: "x"})
                assert found.v.dtype == "f8"
                assert found.v.values.tolist() == expected.v.values.tolist()
                assert (found.v.attrs, found.attrs["n"]) == ({"n": 3, "t": "a"}, 1)
                mx.save(tmp_path / f"{dim}{ranks}.h5", found)

        on(ranks, program)
        for dim in ("x", "y"):
            xarray.testing.assert_equal(read(tmp_path / f"{dim}{ranks}.h5"), expected)


def test_an_attribute_of_one_text_says_the_signs(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["v"] = np.array([-1, 1], "i1")
        file["v"].attrs["_Unsigned"] = ["true"]

    def program():
        rows = mc.Layout(["x"], mc.create_mesh([("x", -1)]))
        return mc.load(tmp_path / "a.h5", rows, decode=True)["v"].to_numpy().tolist()

    assert on(2, program) == [[255, 1]] * 2


def with_scales_that_are_gone(path):
    """Write arrays with scales: one never had a name, so it is gone with the file; one was deleted."""
    with h5py.File(path, "w") as file:
        file["v"], file["u"], file["x"], file["y"] = np.ones((2, 3, 4)), np.ones(3), np.arange(2.0), np.arange(4.0)
        for name, axis in (("x", 0), ("y", 2)):
            file[name].make_scale(name)
            file["v"].dims[axis].attach_scale(file[name])
        nameless = file.create_dataset(None, data=np.arange(3.0))
        nameless.make_scale("t")
        for axis in (file["v"].dims[1], file["u"].dims[0]):
            axis.attach_scale(nameless)
        del file["y"]


@pytest.mark.parametrize("suffix", [".h5", ".nc"])
def test_a_dimension_scale_that_is_gone(suffix, tmp_path):
    path = tmp_path / f"a{suffix}"
    with_scales_that_are_gone(path)
    with mc.open(path) as file:
        assert {name: file[name].dims for name in file} == {"u": None, "v": ("x", "", ""), "x": ("x",)}
    for ranks in RANKS:

        def program():
            found = mx.open(path, {"x": "x"})
            assert {name: each.shape for name, each in mc.load(path).items()} == {"u": (3,), "v": (2, 3, 4), "x": (2,)}
            return found.v.dims, found.u.dims, found.v.values.sum(), found.x.values.tolist()

        expected = ("x", "phony_dim_0", "phony_dim_1"), ("phony_dim_0",), 24, [0, 1]
        assert on(ranks, program) == [expected] * ranks


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("suffix", [".h5", ".nc"])
@pytest.mark.parametrize("name", ["v", "u", "x", "new"])
def test_adding_where_a_dimension_scale_is_gone(name, suffix, ranks, tmp_path):
    path = tmp_path / f"a{suffix}"
    with_scales_that_are_gone(path)
    shape = {"v": (2, 3, 4), "x": (2,)}.get(name, (3,))

    def program():
        layout = mc.Layout([mc.UNSHARDED] * (len(shape) - 1) + ["x"], mc.create_mesh([("x", -1)]))
        mc.save(path, {name: mc.full(shape, 7.0, layout=layout)}, mode="a")
        return {key: each.to_numpy().sum() for key, each in mc.load(path).items()}

    expected = {"v": 24, "u": 3, "x": 1} | {name: 7 * np.prod(shape)}
    assert on(ranks, program) == [expected] * ranks
    with mc.open(path) as file:
        assert file["v"].dims[0] == "x"


def test_nothing_is_added_to_a_file_that_cannot_be_loaded(tmp_path):
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        file["v"] = np.arange(3.0)
        file[b"\xff"] = np.arange(3.0)
    before = path.read_bytes()

    def program():
        with pytest.raises(mc.CheckpointError, match="no text in UTF-8"):
            mc.save(path, {"new": np.ones(3)}, mode="a")

    for ranks in RANKS:
        on(ranks, program)
    assert path.read_bytes() == before
    assert [each.name for each in tmp_path.iterdir()] == ["a.h5"]


COMPOUND = np.array([(1, 2.5)], [("a", "i4"), ("b", "f8")])


@pytest.mark.parametrize("ranks", RANKS)
def test_attributes_that_are_compound_or_of_any_length(ranks, tmp_path):
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        file["v"], its = np.ones(3), {"compound": COMPOUND, "one": COMPOUND[0]}
        for key, value in its.items():
            file["v"].attrs[key] = value
        rows = np.array([np.arange(2), np.arange(3)], object)
        file["v"].attrs.create("lengths", rows, dtype=h5py.vlen_dtype("i8"))
        named = np.array([(b"a", 1)], [("t", h5py.string_dtype()), ("n", "i4")])
        file["v"].attrs.create("named", named, dtype=named.dtype)
        file["v"].attrs["refers"] = file["v"].ref

    def program():
        found = mx.open(path)
        attributes = dict(found.v.attrs)
        assert [each.tolist() for each in attributes.pop("lengths")] == [[0, 1], [0, 1, 2]]
        assert attributes == {"compound": COMPOUND[0], "one": COMPOUND[0], "named": [("a", 1)]}
        for suffix in (".h5", ".nc"):
            with pytest.raises(TypeError, match="no lists of several lengths"):
                mx.save(tmp_path / f"wrong{suffix}", found.v.drop_attrs().assign_attrs(a=found.v.attrs["lengths"]))
        with pytest.raises(TypeError, match="attributes are numbers, texts and lists of these"):
            mx.save(tmp_path / "wrong.nc", found.v.drop_attrs().assign_attrs(c=COMPOUND))
        mx.save(tmp_path / f"{ranks}.zarr", found)
        kept = found.v.drop_attrs().assign_attrs(compound=COMPOUND, one=COMPOUND[0]).to_dataset(name="v")
        mx.save(tmp_path / f"{ranks}.h5", kept)

    on(ranks, program)
    assert read(tmp_path / f"{ranks}.h5").v.attrs == its
    stored = {"compound": [1, 2.5], "one": [1, 2.5], "lengths": [[0, 1], [0, 1, 2]], "named": [["a", 1]]}
    assert read(tmp_path / f"{ranks}.zarr").v.attrs == stored
    assert [each.name for each in tmp_path.iterdir() if "wrong" in each.name] == []


@pytest.mark.parametrize("suffix", [".nc", ".h5", ".zarr"])
def test_texts_in_attributes(suffix, tmp_path):
    texts = np.array(["a", "bc"])
    kinds = {"objects": texts.astype(object), "any_length": texts.astype(np.dtypes.StringDType()), "plain": texts}
    its = xarray.Dataset({"v": FIELD}, attrs={"raw": b"abc"}).assign(v=("x", np.ones(4), kinds))
    on(2, lambda: mx.save(tmp_path / f"a{suffix}", its))
    found = read(tmp_path / f"a{suffix}")
    assert (found.v.attrs, found.attrs) == ({key: ["a", "bc"] for key in kinds}, {"raw": "abc"})


@pytest.mark.parametrize("suffix", [".nc", ".h5", ".zarr"])
@pytest.mark.parametrize("dtype", ["f8", "i2"])
@pytest.mark.filterwarnings("ignore:variable 'v' has multiple fill values")
def test_several_missing_values(dtype, suffix, tmp_path):
    its = xarray.Dataset({"v": ("x", np.array([1, -1, -2, 4], dtype), {"missing_value": [-1, -2]})})
    path = tmp_path / f"a{suffix}"
    its.to_zarr(path) if suffix == ".zarr" else its.to_netcdf(path, engine="h5netcdf")
    for ranks in RANKS:

        def program(ranks=ranks):
            for cuts in ({}, {"x": "x"}):
                found = mx.open(path, cuts)
                np.testing.assert_array_equal(found.v.values, [1, np.nan, np.nan, 4])
                mx.save(tmp_path / f"{ranks}{suffix}", found, overwrite=True)

        on(ranks, program)
        again = read(tmp_path / f"{ranks}{suffix}").v
        np.testing.assert_array_equal(again, [1, np.nan, np.nan, 4])
        assert np.asarray(again.encoding["missing_value"]).tolist() == [-1, -2]
