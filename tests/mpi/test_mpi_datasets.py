"""meshcomm.xarray on real ranks, each with its own order of sets and dicts."""

import numpy as np
import pytest
from mpi4py import MPI

import meshcomm as mc

SIZE = MPI.COMM_WORLD.size
xarray = pytest.importorskip("xarray")
pytest.importorskip("h5netcdf")
mx = pytest.importorskip("meshcomm.xarray")


@pytest.mark.parametrize("suffix", [".nc", ".zarr"])
def test_a_dataset_goes_to_a_file_and_back(world, folder, suffix):
    pytest.importorskip("zarr")
    mesh = mc.create_mesh([("x", SIZE)], comm=world)
    rows = mc.Layout([mc.UNSHARDED, "x", mc.UNSHARDED], mesh)
    field = np.arange(6 * 7 * 5.0).reshape(6, 7, 5)
    field[2, 3] = np.nan
    coordinates = {"time": np.datetime64("2001-01-01", "ns") + np.arange(6) * np.timedelta64(6, "h")}
    others = {"area": (("lat", "lon"), field[0]), "name": ("lat", [f"n{k}" for k in range(7)])}
    whole = xarray.Dataset({"t": (("time", "lat", "lon"), field, {"units": "K"})}, coordinates | others)
    its = whole.assign(t=(whole.t.dims, mc.distribute(field, rows), whole.t.attrs))
    mx.save(folder / f"a{suffix}", its.isel(time=slice(0, 4)), append_dim="time", encoding={"t": {"dtype": "f4"}})
    mx.save(folder / f"a{suffix}", its.isel(time=slice(4, None)), append_dim="time")
    mx.save(folder / f"b{suffix}", its, encoding={"t": {"dtype": "i2", "_FillValue": -1, "scale_factor": 0.5}})
    for name in "ab":
        found = mx.open(folder / f"{name}{suffix}", {"lon": "x"}, mesh=mesh).load()
        assert found.t.data.layout.sharding_specs == [mc.UNSHARDED, mc.UNSHARDED, "x"]
        np.testing.assert_array_equal(np.asarray(found.t.data), field)
        assert found.drop_vars(["t", "area"]).identical(whole.drop_vars(["t", "area"]))
        anomaly = found.t.groupby("time.hour") - found.t.groupby("time.hour").mean()
        right = whole.t.groupby("time.hour") - whole.t.groupby("time.hour").mean()
        np.testing.assert_allclose(np.asarray(anomaly.data), right.values)


@pytest.mark.parametrize("compression", [None, "gzip"])
@pytest.mark.parametrize("suffix", [".nc", ".zarr"])
def test_a_region_of_a_file(world, folder, suffix, compression):
    pytest.importorskip("zarr")
    mesh = mc.create_mesh([("x", SIZE)], comm=world)
    field, path, region = np.arange(9 * 7 * 5.0).reshape(9, 7, 5), folder / f"a{suffix}", {"time": slice(2, 8)}
    whole = xarray.Dataset({"t": (("time", "lat", "lon"), field), "n": ("time", np.arange(9.0))})

    def sharded(its, *specs):
        return its.assign(t=(its.t.dims, mc.distribute(its.t.values, mc.Layout(list(specs), mesh))))

    mx.save(path, sharded(whole, mc.UNSHARDED, "x", mc.UNSHARDED), compression=compression, chunks={"t": (4, 3, 5)})
    opened = mx.open(path, {"lat": "x"}, mesh=mesh)
    mx.save(path, sharded(whole.isel(region) + 1000, "x", mc.UNSHARDED, mc.UNSHARDED), region=region)
    if suffix == ".nc":  # it has changed
        with pytest.raises(mc.CheckpointError, match="has changed since it was opened: open it again"):
            opened.t.load()
    whole.t[region], whole.n[region] = whole.t[region] + 1000, whole.n[region] + 1000
    found = mx.open(path, {"lon": "x"}, mesh=mesh).load()
    np.testing.assert_array_equal(np.asarray(found.t.data), whole.t)
    np.testing.assert_array_equal(found.n, whole.n)


@pytest.mark.parametrize("specs", [[mc.UNSHARDED, "x"], ["x", mc.UNSHARDED]])
def test_groups_and_windows(world, specs):
    mesh = mc.create_mesh([("x", SIZE)], comm=world)
    field = np.random.default_rng(1).normal(280, 9, (400 * SIZE, 3))
    field[np.random.default_rng(2).random(field.shape) < 0.1] = np.nan
    days = np.datetime64("2001-01-01", "ns") + np.arange(len(field)) * np.timedelta64(1, "D")
    whole = xarray.DataArray(field, {"time": days}, ["time", "lat"])
    its = whole.copy(data=mc.distribute(field, mc.Layout(specs, mesh)))
    for reduce in (
        lambda a: a.groupby("time.month").mean(),
        lambda a: a.groupby("time.season").std(),
        lambda a: a.groupby("time.dayofyear").max(),
        lambda a: a.groupby("time.month").count(...),
        lambda a: a.resample(time="MS").median(),
        lambda a: a.to_dataset(name="t").resample(time="YS").min().t,
        lambda a: a.groupby("time.month") - a.groupby("time.month").first(),
        lambda a: a.rolling(time=31, center=True, min_periods=5).mean(),
    ):
        for bottleneck in (False, True):
            with xarray.set_options(use_bottleneck=bottleneck):
                found, right = reduce(its), reduce(whole)
                np.testing.assert_allclose(np.asarray(found.data), right.values, rtol=1e-9)
                assert found.dims == right.dims
                assert list(found.coords) == list(right.coords)
