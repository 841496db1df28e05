"""What netCDF says of dimensions: lengths that grow, records that nobody has written, coordinates of texts."""

import numpy as np
import pytest

import meshcomm as mc
from support.tensors import on

xarray = pytest.importorskip("xarray")
netcdf = pytest.importorskip("netCDF4")
pytest.importorskip("h5netcdf")
mx = pytest.importorskip("meshcomm.xarray")

KINDS = ("i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f4", "f8")
U = mc.UNSHARDED


def read(path):
    """Return what xarray reads with both libraries, which agree."""
    found = []
    for engine in ("netcdf4", "h5netcdf"):
        with xarray.open_dataset(path, engine=engine) as opened:
            found.append(opened.load())
    xarray.testing.assert_identical(*found)
    return found[0]


def with_few_records(path):
    """Write variables of which some have 2 of 5 records."""
    with netcdf.Dataset(path, "w") as file:
        file.createDimension("time", None)
        file.createDimension("x", 3)
        file.createVariable("all", "f8", ("time", "x"))[:5] = np.arange(15).reshape(5, 3)
        file.createVariable("time", "i4", ("time",))[:2] = [1, 2]
        file.createVariable("own", "f4", ("time", "x"), fill_value=-9)[:2] = [[1, 2, 3], [4, 5, 6]]
        file.createVariable("nothing", "i2", ("time",))
        file.createVariable("words", str, ("time",))[:2] = np.array(["a", "bc"], object)
        for kind in KINDS:
            file.createVariable(kind, kind, ("time", "x"))[:2] = [[1, 2, 3], [4, 5, 6]]
    return path


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_records_that_nobody_has_written(ranks, tmp_path):
    path = with_few_records(tmp_path / "a.nc")
    with netcdf.Dataset(path) as file:
        file.set_auto_maskandscale(False)
        expected = {name: each[:] for name, each in file.variables.items()}
    decoded = xarray.open_dataset(path, engine="netcdf4").load()

    def program():
        mesh = mc.create_mesh([("x", -1)])
        for axes in ([U, "x"], ["x", U]):
            layouts = {name: mc.Layout(axes[: each.ndim], mesh) for name, each in expected.items() if name != "words"}
            for name, each in mc.load(path, layouts, names=list(layouts)).items():
                np.testing.assert_array_equal(each.to_numpy(), expected[name], err_msg=name)
                assert each.dtype == expected[name].dtype
        some = mc.load(path, names=["own"], slices={"own": np.s_[::-2, 1]})["own"]
        np.testing.assert_array_equal(some.to_numpy(), expected["own"][::-2, 1])
        found = mx.open(path, {"x": "x"}, mesh=mesh)
        assert dict(found.sizes) == {"time": 5, "x": 3}
        for name, each in decoded.variables.items():
            np.testing.assert_array_equal(np.asarray(found[name].data), each.values, err_msg=name)
        assert found.isel(time=slice(1, None)).u1.values.tolist() == decoded.u1[1:].values.tolist()
        with mc.open(path) as file:
            np.testing.assert_array_equal(file["i8"][2:4], expected["i8"][2:4])

    on(ranks, program)


@pytest.mark.parametrize("suffix", [".nc", ".h5"])
@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_dimensions_that_may_grow(ranks, suffix, tmp_path):
    its = xarray.Dataset({"v": (("time", "x"), np.arange(6.0).reshape(2, 3)), "n": ("time", [1, 2])}, {"x": [1, 2, 3]})
    its.to_netcdf(tmp_path / "a.nc", unlimited_dims=["time"], engine="h5netcdf")

    def program():
        found = mx.open(tmp_path / "a.nc", {"x": "x"})
        assert found.encoding["unlimited_dims"] == {"time"}
        mx.save(tmp_path / f"kept{suffix}", found)
        mx.save(tmp_path / f"more{suffix}", found, append_dim="time")
        mx.save(tmp_path / f"kept{suffix}", found, append_dim="time")
        mx.save(tmp_path / f"asked{suffix}", found, unlimited_dims=["x", "time"], compression="gzip")
        mx.save(tmp_path / f"none{suffix}", found, unlimited_dims=[])
        mx.save(tmp_path / f"empty{suffix}", found.isel(time=slice(0)))
        with pytest.raises(ValueError, match="unlimited_dims names 'y'; the dimensions are"):
            mx.save(tmp_path / f"wrong{suffix}", found, unlimited_dims="y")

    on(ranks, program)
    for name, free, times in (
        ("kept", {"time"}, 2),
        ("more", {"time"}, 1),
        ("asked", {"x", "time"}, 1),
        ("none", set(), 1),
        ("empty", {"time"}, 0),
    ):
        found = read(tmp_path / f"{name}{suffix}")
        assert found.encoding["unlimited_dims"] == free
        xarray.testing.assert_equal(
            found, xarray.concat([its] * times, "time", data_vars="minimal") if times else its[{"time": slice(0)}]
        )
        with netcdf.Dataset(tmp_path / f"{name}{suffix}", "a" if suffix == ".nc" else "r") as file:
            for dim in free:
                assert file.dimensions[dim].isunlimited()
            if free == {"time"} and suffix == ".nc":
                file["v"][2 * times] = [7, 8, 9]
                assert file["v"][:].shape == (2 * times + 1, 3)


@pytest.mark.parametrize("suffix", [".nc", ".h5"])
@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_a_coordinate_of_texts_of_its_own_dimension(ranks, suffix, tmp_path):
    path, series = tmp_path / f"a{suffix}", tmp_path / f"b{suffix}"
    values = np.arange(8.0).reshape(2, 4)
    expected = xarray.Dataset({"v": (("band", "y"), values)}, {"band": ["red", "nir2"], "y": [1, 2, 3, 4]})

    def program():
        rows = mc.Layout([U, "x"], mc.create_mesh([("x", -1)]))
        its = expected.assign(v=(("band", "y"), mc.distribute(values, rows)))
        mx.save(path, its)
        mx.save(path, its.v.rename("w"), mode="a")
        for _ in range(2):
            mx.save(series, its.expand_dims(time=1), append_dim="time")
        with pytest.raises(ValueError, match="the coordinates 'band' are others"):
            mx.save(series, its.expand_dims(time=1).assign_coords(band=["nir2", "red"]), append_dim="time")
        found = mx.open(path, {"y": "x"})
        assert found.band.values.tolist() == ["red", "nir2"]
        assert found.v.sel(band="nir2").values.tolist() == values[1].tolist()

    on(ranks, program)
    xarray.testing.assert_equal(read(path), expected.assign(w=expected.v))
    assert read(series).v.shape == (2, 2, 4)
    assert read(series).band.values.tolist() == ["red", "nir2"]
