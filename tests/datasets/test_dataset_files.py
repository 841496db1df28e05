"""meshcomm.xarray: datasets of xarray read and written in parallel, as xarray itself reads and writes them."""

import datetime
import shutil
import subprocess
import tomllib
import warnings
from decimal import Decimal

import numpy as np
import pytest

import meshcomm as mc
from support.paths import ROOT
from support.tensors import on

xarray = pytest.importorskip("xarray")
pytest.importorskip("h5netcdf")
pytest.importorskip("zarr")
mx = pytest.importorskip("meshcomm.xarray")

pytestmark = pytest.mark.filterwarnings(
    "ignore:.*Zarr:Warning", "ignore:.*zarr:Warning", "ignore:.*does not have a Zarr:"
)
PACKED = {"packed": {"dtype": "i2", "scale_factor": 0.01, "add_offset": 280.0, "_FillValue": -32768}}
FORMATS = ["a.nc", "a.h5", "classic.nc", "two.zarr", "three.zarr"]


def weather(times=24):
    random = np.random.default_rng(0)
    field = random.normal(280, 10, (times, 7, 12))
    return xarray.Dataset(
        {
            "t": (("time", "lat", "lon"), field.astype("f4"), {"units": "K"}),
            "packed": (("time", "lat", "lon"), np.where(random.random(field.shape) < 0.1, np.nan, field.round(2))),
            "land": (("lat", "lon"), random.random((7, 12)) > 0.5),
            "grid": ((), 3, {"crs": "a text", "numbers": [1.5, 2]}),
        },
        {
            "time": np.datetime64("2000-01-01", "ns") + np.arange(times) * np.timedelta64(30, "D"),
            "lat": np.linspace(-90, 90, 7),
            "lon": np.arange(12) * 30.0,
            "name": ("lat", np.array([f"höhe {k}" for k in range(7)])),
            "area": (("lat", "lon"), random.random((7, 12))),
        },
        {"title": "weather"},
    )


def written(folder, name, its=None):
    """Write a dataset with xarray, and return its path."""
    its, path = weather() if its is None else its, folder / name
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if name.endswith(".zarr"):
            its.to_zarr(path, zarr_format=2 if name == "two.zarr" else 3, encoding=PACKED)
        elif name == "classic.nc":
            pytest.importorskip("netCDF4")
            its.to_netcdf(path, engine="netcdf4", format="NETCDF3_CLASSIC", encoding=PACKED)
        else:
            its.to_netcdf(path, engine="h5netcdf", encoding=PACKED)
    return path


def read(path):
    """Return what xarray reads itself."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if path.suffix == ".zarr":
            return xarray.open_zarr(path, consolidated=False).load()
        engine = "netcdf4" if path.name == "classic.nc" else "h5netcdf"
        return xarray.open_dataset(path, engine=engine).load()


def same(found, expected):
    """Check that datasets are equal to the bit, whatever holds the elements. Collective."""
    assert list(found.variables.keys() - expected.variables.keys()) == []
    assert list(expected.variables.keys() - found.variables.keys()) == []
    assert set(found.coords) == set(expected.coords)
    assert found.attrs == expected.attrs
    for name, right in expected.variables.items():
        its = found[name].variable
        assert (its.dims, its.dtype) == (right.dims, right.dtype), name
        texts = [{key: str(np.asarray(value).tolist()) for key, value in each.attrs.items()} for each in (its, right)]
        assert texts[0] == texts[1], name
        np.testing.assert_array_equal(np.asarray(its.data), right.values, err_msg=name)


@pytest.mark.parametrize("ranks", [1, 3])
@pytest.mark.parametrize("name", FORMATS)
def test_xarray_reads_the_same(name, ranks, tmp_path):
    path = written(tmp_path, name)
    expected = read(path)

    def program():
        found = mx.open(path, {"lat": "x"})
        tensors = {name for name, each in found.variables.items() if isinstance(each.data, mc.DTensor)}
        assert tensors == {"t", "packed", "land", "area"}
        assert found.t.data.layout.sharding_specs == [mc.UNSHARDED, "x", mc.UNSHARDED]
        same(found, expected)

    on(ranks, program)


def test_only_what_is_used_is_read(tmp_path):
    path = written(tmp_path, "a.nc")
    expected = read(path)
    chosen = {"time": slice(3, 20, 4), "lat": slice(None, None, -2), "lon": 5}

    def program():
        mesh = mc.create_mesh([("x", 2), ("y", 2)])
        found = mx.open(path, {"lat": "x", "lon": "y"}, mesh=mesh)
        some = found[["t", "packed"]].isel(chosen).load()
        assert some.t.data.layout.sharding_specs == [mc.UNSHARDED, "x"]
        same(some, expected[["t", "packed"]].isel(chosen))
        many = found.t.isel(time=[4, 1, 4], lon=[11, 0])
        np.testing.assert_array_equal(np.asarray(many.data), expected.t.isel(time=[4, 1, 4], lon=[11, 0]))
        np.testing.assert_array_equal(
            np.asarray(found.t.sel(lat=30.0, time="2000")), expected.t.sel(lat=30.0, time="2000")
        )

    on(4, program)


def test_decoders_of_xarray(tmp_path):
    path = written(tmp_path, "a.nc")
    raw = xarray.open_dataset(path, engine="h5netcdf", decode_cf=False).load()
    half = xarray.open_dataset(path, engine="h5netcdf", mask_and_scale={"packed": False, "t": True}).load()

    def program():
        same(mx.open(path, {"lon": "x"}, decode_cf=False).drop_vars("name"), raw.drop_vars("name"))
        same(mx.open(path, {"lon": "x"}, mask_and_scale={"packed": False, "t": True}), half)
        found = mx.open(path, {"lon": "x"}, drop_variables=["t"])
        assert "t" not in found
        assert found.packed.encoding["scale_factor"] == 0.01
        assert found.packed.encoding["dtype"] == np.dtype("i2")

    on(2, program)


def test_groups_and_axes_without_names(tmp_path):
    h5py = pytest.importorskip("h5py")
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        file["a"], file["b"] = np.arange(12.0).reshape(3, 4), np.arange(16).reshape(4, 4)
        file["inner/c"] = np.arange(3)
        file["words"] = ["one", "two", "three"]

    def program():
        found = mx.open(path, {"phony_dim_1": "x"})
        assert {name: each.dims for name, each in found.variables.items()} == {
            "a": ("phony_dim_0", "phony_dim_1"),
            "b": ("phony_dim_1", "phony_dim_2"),
            "words": ("phony_dim_0",),
        }
        assert found.words.values.tolist() == ["one", "two", "three"]
        assert mx.open(path, group="inner").c.values.tolist() == [0, 1, 2]
        with pytest.raises(mc.LayoutError, match="no dimension 'lat'; it has phony_dim_0, phony_dim_1"):
            mx.open(path, {"lat": "x"})
        with pytest.raises(mc.MeshError, match="needs mesh="):
            mx.open(path, {"phony_dim_0": "x", "phony_dim_1": "y"})
        with pytest.raises(FileNotFoundError):
            mx.open(tmp_path / "none.nc")
        with pytest.raises(mc.CheckpointError, match="has no arrays in the group 'outer'"):
            mx.open(path, group="outer")
        with pytest.raises(mc.LayoutError, match="is a dict such as"):
            mx.open(path, "lat")
        with pytest.raises(mc.MeshError, match="mesh is a Mesh, not 'x'"):
            mx.open(path, {"phony_dim_0": "x"}, mesh="x")
        with pytest.raises(ValueError, match="needs a path"):
            mx.open([])

    on(2, program)


@pytest.mark.parametrize("suffix", [".nc", ".h5", ".zarr"])
def test_xarray_reads_what_is_saved(suffix, tmp_path):
    source, path = written(tmp_path, "a.nc"), tmp_path / f"saved{suffix}"

    def program():
        found = mx.open(source, {"lat": "x"})
        mx.save(
            path,
            found,
            encoding={"t": {"zlib": suffix != ".zarr", "gzip": suffix == ".zarr", "chunksizes": (5, 7, 6)}},
        )
        mx.save(path, (found.t + 1).rename("warmer"), mode="a")
        return mx.open(path, {"lon": "x"}).t.data.layout.sharding_specs

    assert on(3, program)[0] == [mc.UNSHARDED, mc.UNSHARDED, "x"]
    expected, found = read(source), read(path)
    np.testing.assert_array_equal(found.warmer, expected.t + 1)
    xarray.testing.assert_identical(found.drop_vars("warmer"), expected)
    assert found.packed.encoding["scale_factor"] == 0.01
    assert found.packed.encoding["dtype"] == np.dtype("i2")
    if suffix == ".nc" and shutil.which("ncdump"):
        command = ["ncdump", "-h", path]
        header = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        assert 't:units = "K"' in header
        assert "short packed(time, lat, lon)" in header
        assert "char name(lat, string7)" in header


@pytest.mark.filterwarnings("ignore:Times can't be serialized faithfully")
@pytest.mark.parametrize("suffix", [".nc", ".h5", ".zarr"])
def test_append_dim(suffix, tmp_path):
    path, its = tmp_path / f"run{suffix}", weather()
    later = its.isel(time=slice(0, 2)).assign_coords(time=its.time[:2] + np.timedelta64(90, "m"))

    def program():
        rows = mc.Layout([mc.UNSHARDED, "x", mc.UNSHARDED], mc.create_mesh([("x", 2)]))
        sharded = its.assign(t=(its.t.dims, mc.distribute(its.t.values, rows), its.t.attrs))
        mx.save(path, sharded.isel(time=slice(0, 5)), append_dim="time", encoding=PACKED)
        mx.save(path, sharded.isel(time=slice(5, 6)), append_dim="time")
        mx.save(path, sharded.isel(time=slice(6, None)), append_dim="time", encoding={"packed": {"dtype": "f8"}})
        with pytest.raises(ValueError, match="'time' does not fit the units of the file, days since 2000-01-01"):
            mx.save(path, later, append_dim="time")
        with pytest.raises(ValueError, match="append_dim names 'day'; the dimensions are time, lat, lon"):
            mx.save(path, sharded, append_dim="day")
        with pytest.raises(ValueError, match="'lat' is not the first dimension of 't': transpose it"):
            mx.save(path, sharded[["t"]], append_dim="lat")

    on(2, program)
    found = read(path)
    xarray.testing.assert_identical(found.drop_vars("packed"), its.drop_vars("packed"))
    np.testing.assert_allclose(found.packed, its.packed)
    assert found.packed.encoding["dtype"] == np.dtype("i2")


@pytest.mark.parametrize("suffix", [".nc", ".zarr"])
def test_what_does_not_go_on_with_a_file(suffix, tmp_path):
    path, its = tmp_path / f"run{suffix}", weather(4)
    its["steps"] = ("time", np.arange(4))

    def program():
        mx.save(path, its, append_dim="time")
        for wrong, text in [
            (its.drop_vars("packed"), "has 'packed' along 'time': a dataset that is appended needs it, too"),
            (its.assign_coords(lat=its.lat + 1), "the coordinates 'lat' are others than those in"),
            (its.assign(steps=its.steps + 0.5), "'steps' is <i8 in .*, and float64 here: convert it"),
        ]:
            with pytest.raises(ValueError, match=text):
                mx.save(path, wrong, append_dim="time")

    on(2, program)
    xarray.testing.assert_identical(read(path).load(), its)


def test_an_encoding_that_is_asked_for_is_all_of_it(tmp_path):
    its = xarray.Dataset({"a": ("x", [1.0, np.nan, 3.5])})
    its.a.encoding = {"dtype": "i2", "scale_factor": 0.5, "_FillValue": -9}
    on(2, lambda: mx.save(tmp_path / "a.nc", its, encoding={"a": {"_FillValue": None}}))
    xarray.testing.assert_identical(read(tmp_path / "a.nc"), its)


def test_series_of_numbers(tmp_path):
    path = tmp_path / "a.nc"
    its = xarray.Dataset({"co2": ("year", [300.0, 310.5])}, {"year": [1900, 1950]})

    def program():
        mx.save(path, its, append_dim="year")
        mx.save(path, its.assign_coords(year=[2000, 2050]), append_dim="year")

    on(2, program)
    assert read(path).co2.values.tolist() == [300.0, 310.5, 300.0, 310.5]
    assert read(path).year.values.tolist() == [1900, 1950, 2000, 2050]


def test_what_cannot_be_saved(tmp_path):
    its = weather(2)

    def program():
        with pytest.raises(TypeError, match="takes a Dataset or a DataArray"):
            mx.save(tmp_path / "a.nc", its.t.values)
        with pytest.raises(ValueError, match="encoding names 'u'; the variables are"):
            mx.save(tmp_path / "a.nc", its, encoding={"u": {"dtype": "f4"}})
        with pytest.raises(ValueError, match="by encoding, or as arguments, not both"):
            mx.save(tmp_path / "a.nc", its, encoding={"t": {"zlib": True}}, compression="gzip")
        with pytest.raises(ValueError, match="'t' is the name of a variable and of an attribute"):
            mx.save(tmp_path / "a.nc", its.assign_attrs(t=1))
        with pytest.raises(ValueError, match="encoding of 't' has 'dtypee'; it may have dtype"):
            mx.save(tmp_path / "a.nc", its, encoding={"t": {"dtypee": "f4"}})
        with pytest.raises(ValueError, match="no name of a variable: 'g/b'"):
            mx.save(tmp_path / "a.nc", its.rename(t="g/b"))
        longs = xarray.Dataset({"a": ("x", np.arange(3, dtype=np.longdouble))})
        if np.dtype(np.longdouble).itemsize > 8:
            with pytest.raises(mc.DTypeError, match="a zarr array cannot hold"):
                mx.save(tmp_path / "a.zarr", longs)
        with pytest.raises(TypeError, match=r"is saved to an \.nc, \.zarr or \.h5 file, not to .*a\.npz"):
            mx.save(tmp_path / "a.npz", its)

    on(2, program)
    assert list(tmp_path.iterdir()) == []


ELEMENTS = {
    "dates": np.array(["2000-01-01", "NaT", "1999-05-05T12"], "M8[ns]"),
    "durations": np.array([1, "NaT", 3], "m8[s]"),
    "texts": np.array(["a", "", "éé"]),
    "bytes": np.array([b"a", b"", b"xyz"]),
    "bytes of length 1": np.array([b"a", b"", b"x"]),
    "bytes that are no texts": np.array([b"a", b"", b"\xe9"]),
    "missing texts": np.array(["a", None, "b"], object),
    "NaN for a text": np.array(["a", np.nan, "b"], object),
    "texts of any length": np.array(["a", "", "éé"], np.dtypes.StringDType()),
    "bools": np.array([True, False, True]),
    "numbers as objects": np.array([1, 2, 3], object),
    "a number is missing": np.array([1, None, 3], object),
    "a bool is missing": np.array([True, None, False], object),
    "all are missing": np.array([None, None, None], object),
    "NumPy's numbers as objects": np.array([*np.arange(3, dtype="f4")], object),
    "bytes as objects": np.array([b"a", b"bc", b"\xe9"], object),
    "bytes and texts": np.array(["a", b"bc", "d"], object),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("suffix", [".nc", ".zarr"])
@pytest.mark.parametrize("name", ELEMENTS)
def test_elements_of_any_dtype(name, suffix, ranks, tmp_path):
    values, path = ELEMENTS[name], tmp_path / f"a{suffix}"
    xarray.Dataset({"v": ("x", values)}).to_netcdf(tmp_path / "own.nc", engine="h5netcdf")
    with xarray.open_dataset(tmp_path / "own.nc", engine="h5netcdf", decode_timedelta=True) as own:
        expected = own.v.values.tolist()

    def program():
        layout = mc.Layout(["x"], mc.create_mesh([("x", -1)]))
        for data in (values, mc.distribute(values, layout)) if values.dtype.kind not in "OT" else (values,):
            for its in (
                xarray.Dataset({"v": ("x", data)}),
                xarray.Dataset({"w": ("x", np.arange(3))}, {"v": ("x", data)}),
                xarray.Dataset({"w": ("v", np.arange(3))}, {"v": values}),
            ):
                mx.save(path, its, overwrite=True)
                found = mx.open(path, {its.w.dims[0] if "w" in its else "x": "x"}, decode_timedelta=True).v
                np.testing.assert_equal(np.asarray(found.values).tolist(), expected)

    on(ranks, program)


OBJECTS = {
    "two classes": [1, "a"],
    "integers and floats": [1, 2.5],
    "bools and integers": [True, 2],
    "dicts": [{"a": 1}] * 2,
    "Decimal": [Decimal(1)] * 2,
    "dates of Python": [datetime.date(2000, 1, 1)] * 2,
    "large integers": [2**70] * 2,
}


@pytest.mark.parametrize("suffix", [".nc", ".h5", ".zarr"])
@pytest.mark.parametrize("name", OBJECTS)
def test_objects_that_no_file_holds(name, suffix, tmp_path):
    def program():
        field, values = mc.ones((2,), "f8", mc.Layout(["x"], mc.create_mesh([("x", -1)]))), np.empty(2, object)
        values[:] = OBJECTS[name]
        for its in (
            xarray.Dataset({"w": ("x", field), "v": ("x", values)}),
            xarray.Dataset({"w": ("x", field)}, {"v": ("x", values)}),
            xarray.Dataset({"w": ("v", field)}, {"v": values}),
        ):
            for along in (None, its.w.dims[0]):
                with pytest.raises(ValueError, match="unable to infer dtype on variable 'v'"):
                    mx.save(tmp_path / f"a{suffix}", its, append_dim=along)

    for ranks in (1, 2, 3):
        on(ranks, program)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("suffix", [".nc", ".zarr"])
def test_numbers_as_objects_are_appended_as_numbers(suffix, tmp_path):
    path = tmp_path / f"a{suffix}"

    def program():
        for values in ([1, 2], [3, 4]):
            its = xarray.Dataset({"v": ("time", np.array(values, object)), "s": ("time", np.array([b"a", b"\xe9"]))})
            mx.save(path, its, append_dim="time")
        with pytest.raises(ValueError, match=r"at most . characters"):
            mx.save(path, its.assign(s=("time", np.array([b"abc", b"d"]))), append_dim="time")

    on(2, program)
    assert (read(path).v.dtype, read(path).v.values.tolist()) == ("i8", [1, 2, 3, 4])
    assert read(path).s.values.tolist() == [b"a", b"\xe9"] * 2


def test_several_files_and_the_engine_of_xarray(tmp_path):
    paths = [tmp_path / "0.nc", tmp_path / "1.nc"]
    whole = weather()
    for k, path in enumerate(paths):
        whole.isel(time=slice(12 * k, 12 * k + 12)).to_netcdf(path, engine="h5netcdf")

    def program():
        found = mx.open(paths, {"lat": "x"}, preprocess=lambda each: each.drop_vars("packed"))
        same(found, whole.drop_vars("packed"))
        one = xarray.open_dataset(paths[1], engine=mx.Backend, layout={"lat": "x"})
        assert one.t.data.layout.sharding_specs == [mc.UNSHARDED, "x", mc.UNSHARDED]
        assert found.t.data.layout.sharding_specs == [mc.UNSHARDED, "x", mc.UNSHARDED]
        np.testing.assert_array_equal(np.asarray(found.t.data), whole.t)

    on(2, program)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert project["entry-points"]["xarray.backends"] == {"meshcomm": "meshcomm.xarray:Backend"}


def test_ranks_outside_of_the_mesh(tmp_path):
    path, target = written(tmp_path, "a.nc"), tmp_path / "b.nc"
    expected = read(path)

    def program():
        mesh = mc.create_mesh([("x", 2)], devices=[0, 1])
        found = mx.open(path, {"lat": "x"}, mesh=mesh)
        assert found.time.equals(expected.time)
        assert found.name.values.tolist() == expected.name.values.tolist()
        assert found.t.data.shape == (24, 7, 12)
        mx.save(target, found)

    on(3, program)
    xarray.testing.assert_identical(read(target), expected)


def test_a_series_of_some_arrays_is_refused(tmp_path):
    path = tmp_path / "a.nc"

    def program():
        rows = mc.Layout(["x"], mc.create_mesh([("x", 2)]))
        with mc.Series(path, {"u": rows, "v": rows}, shape=(3,), dtype=float) as series:
            series.append(u=mc.ones(3, float, rows), v=mc.ones(3, float, rows), time=0.5)
        with pytest.raises(mc.CheckpointError, match="has 'v' along 'time', too: the series needs it"):
            mc.Series(path, {"u": rows}, shape=(3,), dtype=float)

    on(2, program)
