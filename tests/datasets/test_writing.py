"""to_netcdf and to_zarr of xarray itself, of datasets with tensors: all ranks write, or all raise one error."""

import numpy as np
import pytest

import meshcomm as mc
from meshcomm.storage.convert import convert
from support.tensors import on

xarray = pytest.importorskip("xarray")
pytest.importorskip("h5netcdf")
pytest.importorskip("zarr")
mx = pytest.importorskip("meshcomm.xarray")

pytestmark = pytest.mark.filterwarnings("ignore:.*onsolidated:")
U = mc.UNSHARDED
EXPECTED = xarray.Dataset(
    {"t": (("time", "y"), np.arange(12.0).reshape(3, 4), {"units": "K"}), "n": ("time", [1, 2, 3])},
    {"time": np.array(["2000-01-01", "2000-01-02", "2000-01-03"], "M8[ns]"), "band": ("y", ["a", "bc", "d", "e"])},
    {"title": "text"},
)
WRITERS = {
    "netcdf": (".nc", lambda its, path: its.to_netcdf(path)),
    "netcdf engine": (".nc", lambda its, path: its.to_netcdf(path, engine="netcdf4", format="NETCDF4")),
    "netcdf encoding": (".nc", lambda its, path: its.to_netcdf(path, "w", encoding={"t": {"zlib": True}})),
    "netcdf twice": (".nc", lambda its, path: (its[["t"]].to_netcdf(path), its.to_netcdf(path))),
    "netcdf append": (".nc", lambda its, path: (its[["t"]].to_netcdf(path), its.to_netcdf(path, "a"))),
    "zarr": (".zarr", lambda its, path: its.to_zarr(path)),
    "zarr w": (".zarr", lambda its, path: (its[["t"]].to_zarr(path), its.to_zarr(path, mode="w", consolidated=False))),
    "zarr append_dim": (
        ".zarr",
        lambda its, path: [its.isel(time=[k]).to_zarr(path, append_dim="time") for k in (0, 1, 2)],
    ),
}


def sharded():
    rows = mc.Layout([U, "x"], mc.create_mesh([("x", -1)]))
    return EXPECTED.assign(t=(("time", "y"), mc.distribute(EXPECTED.t.values, rows), EXPECTED.t.attrs))


def read(path):
    """Return what xarray reads itself."""
    options = {"engine": "zarr", "consolidated": False} if path.suffix == ".zarr" else {"engine": "h5netcdf"}
    with xarray.open_dataset(path, **options) as opened:
        return opened.load()


@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("name", WRITERS)
def test_all_ranks_write(name, ranks, tmp_path):
    suffix, write = WRITERS[name]
    on(ranks, lambda: write(sharded(), tmp_path / f"a{suffix}"))
    found = read(tmp_path / f"a{suffix}")
    xarray.testing.assert_identical(found.drop_vars("band"), EXPECTED.drop_vars("band"))
    assert found.band.values.tolist() == EXPECTED.band.values.tolist()


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_what_is_not_read_yet_is_written_by_all_ranks(ranks, tmp_path):
    EXPECTED.to_netcdf(tmp_path / "a.nc", engine="h5netcdf", unlimited_dims="time")

    def program():
        with mx.open(tmp_path / "a.nc", {"y": "x"}) as found:
            found.to_netcdf(tmp_path / "b.nc")
            found.t.to_netcdf(tmp_path / "c.nc", unlimited_dims=[])

    on(ranks, program)
    xarray.testing.assert_equal(read(tmp_path / "b.nc"), read(tmp_path / "a.nc"))
    assert read(tmp_path / "b.nc").encoding["unlimited_dims"] == {"time"}
    assert read(tmp_path / "c.nc").encoding["unlimited_dims"] == set()


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_what_only_one_process_can_write(ranks, tmp_path):
    def program():
        its = sharded()
        for write in (
            lambda: its.to_netcdf(),
            lambda: its.to_netcdf(tmp_path / "a.nc", group="g"),
            lambda: its.to_netcdf(tmp_path / "a.nc", format="NETCDF3_CLASSIC"),
            lambda: its.to_netcdf(tmp_path / "a.nc", compute=False),
            lambda: its.to_netcdf(tmp_path / "a.npz"),
            lambda: its.to_zarr(tmp_path / "a.zarr", zarr_format=2),
            lambda: its.to_zarr({}),
            lambda: its.to_zarr(tmp_path / "a.zarr", consolidated=True),
            lambda: xarray.save_mfdataset([its], [tmp_path / "a.nc"]),
        ):
            with pytest.raises(NotImplementedError, match=r"meshcomm\.xarray\.save\(path, dataset\)"):
                write()
        its.to_zarr(tmp_path / "b.zarr")
        with pytest.raises(FileExistsError):
            its.to_zarr(tmp_path / "b.zarr")

    on(ranks, program)
    assert [path.name for path in tmp_path.iterdir()] == ["b.zarr"]


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_a_pattern_is_a_list_of_files(ranks, tmp_path):
    for k in range(3):
        EXPECTED.isel(time=[k]).to_netcdf(tmp_path / f"tas_{k}.nc", engine="h5netcdf")
    EXPECTED.to_netcdf(tmp_path / "odd[1].nc", engine="h5netcdf")

    def program():
        found = mx.open(str(tmp_path / "tas_*.nc"), {"y": "x"})
        assert isinstance(found.t.data, mc.DTensor)
        np.testing.assert_array_equal(found.t.values, EXPECTED.t.values)
        assert found.time.values.tolist() == EXPECTED.time.values.tolist()
        assert mx.open(str(tmp_path / "odd[1].nc"), {"y": "x"}).sizes["time"] == 3
        assert mx.open(tmp_path / "tas_[01].nc").sizes["time"] == 2
        with pytest.raises(FileNotFoundError, match="No file matches the pattern"):
            mx.open(str(tmp_path / "pr_*.nc"), {"y": "x"})

    on(ranks, program)


LATER = EXPECTED.assign_coords(time=EXPECTED.time + np.timedelta64(3, "D"))
OVERLAPPING = [EXPECTED.assign_coords(y=[1, 2, 3, 4]), LATER.assign_coords(y=[2, 3, 4, 5])]
ALONG_TIME = {"combine": "nested", "concat_dim": "time"}
JOINED = {  # datasets that are files, and how they are joined
    "a variable more": ([EXPECTED, LATER.assign(more=LATER.t * 2)], {"join": "outer", "data_vars": "all"}),
    "a variable less": ([EXPECTED.assign(more=EXPECTED.t * 2), LATER], ALONG_TIME | {"data_vars": "all"}),
    "other latitudes": (OVERLAPPING, ALONG_TIME | {"join": "outer"}),
    "the same latitudes": (OVERLAPPING, ALONG_TIME | {"join": "inner"}),
    "the first latitudes": (OVERLAPPING, ALONG_TIME | {"join": "override"}),
    "other variables": (
        [EXPECTED, EXPECTED.rename(t="u", n="m")],
        {"compat": "no_conflicts", "combine_attrs": "drop"},
    ),
    "in order": ([LATER, EXPECTED], ALONG_TIME),
    "a new dimension": ([EXPECTED, EXPECTED], {"combine": "nested", "concat_dim": "run", "data_vars": "all"}),
    "two dimensions": (
        [[EXPECTED.isel(y=[0, 1]), EXPECTED.isel(y=[2, 3])], [LATER.isel(y=[0, 1]), LATER.isel(y=[2, 3])]],
        {"combine": "nested", "concat_dim": ["time", "y"]},
    ),
}


@pytest.mark.parametrize("case", JOINED)
def test_files_are_joined_as_xarray_joins_them(case, tmp_path):
    datasets, how = JOINED[case]
    ours = {
        "compat": "override",
        "data_vars": "minimal",
        "coords": "minimal",
        "join": "exact",
        "combine_attrs": "override",
    }

    def written(each, name):
        if isinstance(each, list):
            return [written(inside, f"{name}{k}") for k, inside in enumerate(each)]
        each.drop_vars("band").to_netcdf(tmp_path / f"{name}.nc", engine="h5netcdf")
        return tmp_path / f"{name}.nc"

    paths = written(datasets, "a")
    with xarray.open_mfdataset(
        paths, chunks=None, engine="h5netcdf", **{"combine": "by_coords", **ours, **how}
    ) as opened:
        expected = opened.load()

    def program():
        for dim in ("y", "time"):
            found = mx.open(paths, {dim: "x"}, **how)
            assert isinstance(found.t.data, mc.DTensor)
            xarray.testing.assert_identical(found.map(lambda each: each.copy(data=each.values)), expected)

    for ranks in (1, 2, 3):
        on(ranks, program)


def test_files_that_cannot_be_joined(tmp_path):
    for k, each in enumerate(OVERLAPPING):
        each.to_netcdf(tmp_path / f"{k}.nc", engine="h5netcdf")

    def program():
        with pytest.raises(xarray.AlignmentError, match="exact"):
            mx.open(str(tmp_path / "*.nc"), {"y": "x"}, **ALONG_TIME)
        for how in ({"combine": "by_name"}, {"concat_dim": "time"}):
            with pytest.raises(ValueError, match="'by_coords', or 'nested', which has a concat_dim"):
                mx.open(str(tmp_path / "*.nc"), {"y": "x"}, **how)

    on(2, program)


@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("dtype", ["m8[ns]", "m8[s]", "M8[ns]"])
def test_rolling_of_durations(dtype, ranks):
    values = np.array([5, 1, 7, 2, 9, 4]).astype(dtype)
    values[-1] = "NaT"
    plain = xarray.DataArray(values, dims=["t"])
    numbers = plain.copy(data=np.where(np.isnat(values), np.nan, values.view("i8")))

    def program():
        rows = mc.Layout(["x"], mc.create_mesh([("x", -1)]))
        tensor = plain.copy(data=mc.distribute(values, rows))
        for name in ("max", "min", "sum", "mean", "median", "argmax"):
            expected = getattr(numbers.rolling(t=3), name)()
            found = getattr(tensor.rolling(t=3), name)()
            np.testing.assert_allclose(found.values, expected.values)
        np.testing.assert_array_equal(tensor.rolling(t=2).count().values, plain.rolling(t=2).count().values)

    on(ranks, program)


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_numbers_that_do_not_fit_where_they_are_packed(ranks, tmp_path):
    packing = {"t": {"dtype": "i2", "scale_factor": 0.01, "_FillValue": -1}}

    def program(last):
        its = sharded()[["t"]]
        its = its.copy(data={"t": its.t.data * 0 + 1})
        its.t[0, -1] = last
        mx.save(tmp_path / f"{last}.nc", its, encoding=packing)

    with mc.simulate(ranks) as world:
        world.run(lambda: program(327.0))
        assert xarray.open_dataset(tmp_path / "327.0.nc", engine="h5netcdf").t[0, -1] == 327.0
        with pytest.raises(mc.DTypeError, match=r"'t' has elements that .* would change: it holds int16"):
            world.run(lambda: program(104000.0))
    assert not (tmp_path / "104000.0.nc").exists()


@pytest.mark.parametrize("ranks", [1, 3])
def test_texts_are_converted(ranks, tmp_path):
    mx.save(tmp_path / "a.nc", EXPECTED)
    on(ranks, lambda: convert(tmp_path / "a.nc", tmp_path / "b.zarr", mc.create_mesh([("x", -1)])))
    found = read(tmp_path / "b.zarr")
    assert found.band.values.astype(str).tolist() == EXPECTED.band.values.tolist()
    xarray.testing.assert_equal(found.drop_vars("band"), EXPECTED.drop_vars("band"))
