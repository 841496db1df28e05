"""What people do with an array of xarray, by name: each gives the same on tensors as on NumPy."""

import io

import numpy as np
import pandas
import xarray

import meshcomm as mc


def weather():
    """Return two years of monthly values with some NaN, and coordinates of all kinds."""
    random = np.random.default_rng(1)
    field = random.normal(10, 3, (24, 7, 6))
    field[random.random(field.shape) < 0.05] = np.nan
    coordinates = {
        "time": pandas.date_range("2000-01-15", periods=24, freq="MS"),
        "lat": np.linspace(-60, 60, 7),
        "lon": np.arange(6) * 60.0,
        "zone": ("lat", list("aabbbcc")),
        "area": (("lat", "lon"), random.random((7, 6))),
    }
    return xarray.DataArray(field, coordinates, ["time", "lat", "lon"], "t", {"units": "K"})


def on_mesh(specs, mesh):
    """Return the same with tensors, cut as *specs* say."""
    whole = weather()
    cut = whole.copy(data=mc.distribute(whole.values, mc.Layout(specs, mesh)))
    return cut.assign_coords(area=(("lat", "lon"), mc.distribute(whole.area.values, mc.Layout(specs[1:], mesh))))


def area(a):
    return np.cos(np.deg2rad(a.lat))


def changed(a, where, value):
    """Return a copy in which some elements have another value."""
    found = a.copy(deep=True)
    found[where] = value
    return found


def changed_at(a, where, value):
    """Return a copy in which the elements with some coordinates have another value."""
    found = a.copy(deep=True)
    found.loc[where] = value
    return found


OPERATIONS = {
    "isel int": lambda a: a.isel(time=3),
    "isel slice": lambda a: a.isel(time=slice(2, 9, 3), lat=slice(None, None, -1)),
    "isel list": lambda a: a.isel(lat=[4, 0, 0]),
    "isel lists": lambda a: a.isel(lat=[4, 0], time=[1, 5, 2]),
    "isel bool": lambda a: a.isel(lat=np.array([1, 0, 1, 1, 0, 0, 1], bool)),
    "vectorised": lambda a: a.isel(
        lat=xarray.DataArray([1, 2, 6], dims="p"), lon=xarray.DataArray([0, 5, 2], dims="p")
    ),
    "vectorised 2": lambda a: a.isel(time=xarray.DataArray([[1, 2], [3, 4]], dims=("p", "q"))),
    "sel": lambda a: a.sel(lat=20.0, time="2000-05"),
    "sel slice": lambda a: a.sel(lat=slice(-30, 30)),
    "nearest": lambda a: a.sel(lat=[13.0, 55.0], method="nearest"),
    "sel nearest vec": lambda a: a.sel(
        lat=xarray.DataArray([13.0, 55.0], dims="s"), lon=xarray.DataArray([61.0, 10.0], dims="s"), method="nearest"
    ),
    "getitem": lambda a: a[3:5, ::2],
    "getitem arr": lambda a: a[:, [1, 2]],
    "loc": lambda a: a.loc["2000-03":"2000-06"],
    "head": lambda a: a.head(time=2),
    "tail": lambda a: a.tail(lat=2),
    "thin": lambda a: a.thin(time=5),
    "month": lambda a: a.groupby("time.month").mean(),
    "anomaly": lambda a: a.groupby("time.month") - a.groupby("time.month").mean(),
    "season std": lambda a: a.groupby("time.season").std(),
    "zone": lambda a: a.groupby("zone").sum(),
    "groupby max": lambda a: a.groupby("time.season").max(),
    "groupby first": lambda a: a.groupby("time.month").first(),
    "groupby last": lambda a: a.groupby("time.month").last(),
    "groupby median": lambda a: a.groupby("time.season").median(),
    "groupby quantile": lambda a: a.groupby("time.season").quantile(0.3),
    "groupby map": lambda a: a.groupby("time.season").map(lambda g: g - g.mean("time")),
    "bins": lambda a: a.groupby_bins("lat", [-90, -20, 20, 90]).mean(),
    "groupby count": lambda a: a.groupby("time.year").count(),
    "groupby all dims": lambda a: a.groupby("time.month").mean(...),
    "groupby any": lambda a: (a > 10).groupby("time.month").any(),
    "resample": lambda a: a.resample(time="QS").mean(),
    "resample max": lambda a: a.resample(time="2MS").max(),
    "resample ffill": lambda a: a.resample(time="15D").ffill(),
    "resample interp": lambda a: a.resample(time="15D").interpolate("linear"),
    "resample nearest": lambda a: a.resample(time="20D").nearest(),
    "rolling": lambda a: a.rolling(time=3).mean(),
    "rolling center": lambda a: a.rolling(lat=3, center=True).sum(),
    "rolling min_periods": lambda a: a.rolling(time=5, min_periods=1).max(),
    "rolling 2d": lambda a: a.rolling(lat=3, lon=2).mean(),
    "rolling construct": lambda a: a.rolling(time=4).construct("w"),
    "rolling reduce": lambda a: a.rolling(time=3).reduce(np.nanmedian),
    "rolling std": lambda a: a.rolling(time=3).std(),
    "cumulative": lambda a: a.cumulative("time").sum(),
    "coarsen": lambda a: a.coarsen(time=3).mean(),
    "coarsen trim": lambda a: a.drop_vars("zone").coarsen(lat=2, lon=3, boundary="trim").max(),
    "coarsen pad": lambda a: a.drop_vars("zone").coarsen(lat=2, boundary="pad").sum(),
    "coarsen construct": lambda a: a.coarsen(time=12).construct(time=("year", "month")),
    "weighted mean": lambda a: a.weighted(area(a)).mean(),
    "weighted lat": lambda a: a.weighted(area(a)).mean("lat"),
    "weighted sum": lambda a: a.weighted(area(a)).sum(["lat", "lon"]),
    "weighted std": lambda a: a.weighted(area(a)).std("lat"),
    "weighted area": lambda a: a.weighted(a.area).mean(["lat", "lon"]),
    "weighted quantile": lambda a: a.weighted(area(a)).quantile(0.4, dim="lat"),
    "sum_of_weights": lambda a: a.weighted(area(a)).sum_of_weights("lat"),
    "interp": lambda a: a.interp(lat=[-5.0, 12.0]),
    "interp 2": lambda a: a.interp(lat=[-5.0, 12.0], lon=[30.0, 100.0]),
    "interp nearest": lambda a: a.interp(lon=[31.0, 100.0], method="nearest"),
    "interp cubic": lambda a: a.fillna(0).interp(lat=[-5.0, 12.0], method="cubic"),
    "interp time": lambda a: a.interp(time=pandas.to_datetime(["2000-03-03", "2001-05-05"])),
    "interp points": lambda a: a.interp(
        lat=xarray.DataArray([1.0, 2.0], dims="p"), lon=xarray.DataArray([3.0, 200.0], dims="p")
    ),
    "interp_like": lambda a: a.interp_like(xarray.DataArray(np.zeros(2), {"lat": [0.0, 5.0]}, ["lat"])),
    "interpolate_na": lambda a: a.interpolate_na("time"),
    "ffill": lambda a: a.ffill("time"),
    "bfill": lambda a: a.bfill("lat"),
    "fillna": lambda a: a.fillna(0),
    "fillna arr": lambda a: a.fillna(a.mean("time")),
    "dropna": lambda a: a.dropna("time"),
    "dropna how": lambda a: a.dropna("lat", how="all"),
    "sortby": lambda a: a.sortby("lat", ascending=False),
    "sortby da": lambda a: a.sortby(xarray.DataArray([3, 1, 2, 7, 5, 6, 0], dims="lat")),
    "reindex": lambda a: a.reindex(lat=[-60.0, 0.0, 10.0]),
    "reindex pad": lambda a: a.reindex(lat=[-60.0, 0.0, 10.0], method="nearest"),
    "reindex_like": lambda a: a.reindex_like(a.isel(time=slice(3, 5))),
    "align": lambda a: xarray.align(a, a.isel(lat=slice(0, 3)), join="outer")[1],
    "stack": lambda a: a.stack(p=("lat", "lon")),
    "stack T": lambda a: a.stack(p=("time", "lon")),
    "unstack": lambda a: a.stack(p=("lat", "lon")).unstack("p"),
    "transpose": lambda a: a.transpose("lon", ...),
    "T": lambda a: a.T,
    "swap": lambda a: a.assign_coords(k=("lat", range(7))).swap_dims(lat="k"),
    "expand": lambda a: a.expand_dims("m"),
    "expand n": lambda a: a.expand_dims(m=3),
    "squeeze": lambda a: a.isel(lat=[2]).squeeze(),
    "rename": lambda a: a.rename(lat="y"),
    "to_dataset dim": lambda a: a.to_dataset("lon")[60.0],
    "set_index": lambda a: a.set_index(lat="zone"),
    "drop_sel": lambda a: a.drop_sel(lat=0.0),
    "drop_isel": lambda a: a.drop_isel(lat=[0, 3]),
    "pad": lambda a: a.pad(lat=(1, 2)),
    "pad edge": lambda a: a.pad(time=2, mode="edge"),
    "pad wrap": lambda a: a.pad(lon=(2, 1), mode="wrap"),
    "pad reflect": lambda a: a.pad(lat=1, mode="reflect"),
    "shift": lambda a: a.shift(time=2),
    "shift lat": lambda a: a.shift(lat=-1, fill_value=0),
    "roll": lambda a: a.roll(lon=2, roll_coords=True),
    "diff": lambda a: a.diff("time"),
    "diff lat": lambda a: a.diff("lat", n=2),
    "differentiate": lambda a: a.differentiate("lat"),
    "differentiate time": lambda a: a.differentiate("time", datetime_unit="D"),
    "integrate": lambda a: a.integrate("lat"),
    "cumulative_integrate": lambda a: a.cumulative_integrate("lat"),
    "polyfit": lambda a: a.fillna(0).polyfit("time", 2).polyfit_coefficients * 1e10,
    "polyfit nan": lambda a: a.polyfit("lat", 1, skipna=True).polyfit_coefficients,
    "polyval": lambda a: xarray.polyval(a.lat, a.fillna(0).polyfit("lat", 1).polyfit_coefficients),
    "curvefit": lambda a: a.isel(lon=0).fillna(0).curvefit("lat", lambda x, m, b: m * x + b).curvefit_coefficients,
    "quantile": lambda a: a.quantile(0.3, "time"),
    "quantiles": lambda a: a.quantile([0.1, 0.9], ["lat", "lon"]),
    "quantile all": lambda a: a.quantile(0.5),
    "median": lambda a: a.median("lat"),
    "rank": lambda a: a.rank("time"),
    "mean": lambda a: a.mean(),
    "sum": lambda a: a.sum("lat"),
    "std": lambda a: a.std(["time", "lat"]),
    "var ddof": lambda a: a.var("lon", ddof=1),
    "min": lambda a: a.min(),
    "max": lambda a: a.max("time"),
    "argmax": lambda a: a.argmax("lat"),
    "argmax dict": lambda a: a.fillna(0).argmax(["lat", "lon"])["lat"],
    "idxmax": lambda a: a.idxmax("lat"),
    "idxmin": lambda a: a.idxmin("time"),
    "prod": lambda a: a.prod("lon"),
    "count": lambda a: a.count("time"),
    "cumsum": lambda a: a.cumsum("time"),
    "cumprod": lambda a: a.cumprod("lat"),
    "all": lambda a: (a > 0).all("lat"),
    "any": lambda a: (a > 15).any(),
    "skipna": lambda a: a.mean("lat", skipna=False),
    "min_count": lambda a: a.sum("lat", min_count=7),
    "reduce": lambda a: a.reduce(np.nanmean, "lat"),
    "mean keep": lambda a: a.mean("lat", keep_attrs=True),
    "where": lambda a: a.where(a > 10),
    "where drop": lambda a: a.where(a.lat > 0, drop=True),
    "where other": lambda a: a.where(a > 10, -1),
    "xarray.where": lambda a: xarray.where(a > 10, a, 0),
    "isel argmax": lambda a: a.isel(time=a.fillna(0).mean(["lat", "lon"]).argmax("time")),
    "where of a dataset": lambda a: a.to_dataset().where(a > 18, drop=True)["t"],
    "where data drop": lambda a: a.where(a > 18, drop=True),
    "clip": lambda a: a.clip(5, 12),
    "clip da": lambda a: a.clip(max=a.mean("time")),
    "isnull": lambda a: a.isnull(),
    "notnull": lambda a: a.notnull(),
    "isin": lambda a: a.round().isin([9, 10]),
    "round": lambda a: a.round(1),
    "concat": lambda a: xarray.concat([a.isel(time=slice(0, 5)), a.isel(time=slice(5, None))], "time"),
    "concat new": lambda a: xarray.concat([a, a + 1], "m"),
    "concat lat": lambda a: xarray.concat([a.isel(lat=[0]), a.isel(lat=[3, 2])], "lat"),
    "merge": lambda a: xarray.merge([a.rename("u"), (a + 1).rename("v")])["v"],
    "combine_first": lambda a: a.combine_first(a.mean("time").expand_dims(time=a.time)),
    "combine_by": lambda a: xarray.combine_by_coords([a.isel(lat=slice(0, 3)), a.isel(lat=slice(3, None))]),
    "combine_nested": lambda a: xarray.combine_nested(
        [a.isel(lat=slice(0, 3)).to_dataset(), a.isel(lat=slice(3, None)).to_dataset()], "lat"
    )["t"],
    "broadcast": lambda a: xarray.broadcast(a.mean("lat"), a.lat)[0],
    "outer merge": lambda a: xarray.merge(
        [a.isel(lat=slice(0, 3)).rename("u"), a.isel(lat=slice(2, 5)).rename("v")], join="outer"
    )["u"],
    "apply_ufunc": lambda a: xarray.apply_ufunc(np.tanh, a),
    "apply core": lambda a: xarray.apply_ufunc(lambda x: x.mean(-1), a, input_core_dims=[["lat"]]),
    "apply out": lambda a: xarray.apply_ufunc(
        lambda x: np.stack([x.min(-1), x.max(-1)], -1),
        a.fillna(0),
        input_core_dims=[["time"]],
        output_core_dims=[["mm"]],
    ),
    "vectorize": lambda a: xarray.apply_ufunc(
        lambda x: x.sum(), a.fillna(0), input_core_dims=[["lat"]], vectorize=True
    ),
    "map": lambda a: a.to_dataset().map(np.abs)["t"],
    "pipe": lambda a: a.pipe(lambda x: x + 1),
    "arith": lambda a: 2 * a - a.mean("time") + a.lat,
    "pow": lambda a: a**2,
    "inplace": lambda a: a.copy().__iadd__(1),
    "cmp": lambda a: a > a.mean(),
    "neg": lambda a: -abs(a),
    "np": lambda a: np.sqrt(abs(a)),
    "matmul": lambda a: a.fillna(0).dot(a.mean("time").fillna(0), dim=["lat", "lon"]),
    "xarray.dot": lambda a: xarray.dot(a.fillna(0), xarray.DataArray(np.arange(7.0), dims="lat"), dim="lat"),
    "corr": lambda a: xarray.corr(a, a.shift(time=1), dim="time"),
    "cov": lambda a: xarray.cov(a, a + 1, dim="lat"),
    "cross": lambda a: xarray.cross(
        a.isel(lat=slice(0, 3)).fillna(0), a.isel(lat=slice(3, 6)).fillna(0).assign_coords(lat=a.lat[:3]), dim="lat"
    ),
    "astype": lambda a: a.astype("f4"),
    "dt": lambda a: a.where(a.time.dt.month < 3),
    "real": lambda a: (a * 1j).real,
    "conj": lambda a: (a + 1j).conj(),
    "setitem": lambda a: changed(a, {"lat": 2}, 0.0),
    "setitem loc": lambda a: changed_at(a, {"lat": [0.0, 20.0], "lon": [0.0, 60.0]}, -1.0),
    "setitem vec": lambda a: changed(
        a, {"lat": xarray.DataArray([0, 1], dims="p"), "lon": xarray.DataArray([2, 3], dims="p")}, 9.0
    ),
    "setitem da": lambda a: changed(a, {"time": 0}, a.isel(time=1)),
    "convert_cal": lambda a: a.convert_calendar("standard", use_cftime=False),
    "dataset mean": lambda a: a.to_dataset().mean("lat")["t"],
    "dataset to_array": lambda a: xarray.Dataset({"u": a, "v": a + 1}).to_array().drop_vars("variable"),
    "assign": lambda a: a.to_dataset().assign(v=lambda d: d.t * 2)["v"],
    "unify": lambda a: a.unify_chunks(),
    "str accessor": lambda a: a.where(a.zone.isin(["a"])),
    "query": lambda a: a.query(lat="lat>0"),
    "drop_dup": lambda a: a.drop_duplicates("lat"),
    "fancy mean": lambda a: a.isel(lat=[1, 3]).mean("lat"),
    "stack mean": lambda a: a.stack(p=("lat", "lon")).mean("p"),
    "groupby stack": lambda a: a.groupby("lat").mean(),
    "multi groupby": lambda a: a.groupby("zone").mean("lat"),
    "groupers": lambda a: a.groupby(time=xarray.groupers.SeasonGrouper(["DJF", "MAM", "JJA", "SON"])).mean(),
    "season resample": lambda a: a.resample(time=xarray.groupers.SeasonResampler(["DJFM", "AMJ", "JAS", "ON"])).mean(),
    "binary op cf": lambda a: xarray.ufuncs.hypot(a, a),
    "trapz": lambda a: a.fillna(0).integrate(["lat", "lon"]),
    "sel by max": lambda a: a.isel(lat=a.fillna(0).argmax("lat")),
}
OTHERS = {
    "equals": lambda a: a.equals(a.copy()),
    "identical": lambda a: a.identical(a.copy()),
    "not equal": lambda a: a.equals(a + 1),
    "repr": lambda a: len(repr(a)) > 10,
    "html": lambda a: len(a._repr_html_()) > 10,
    "float": lambda a: float(a.sum()),
    "values": lambda a: a.values.sum(where=~np.isnan(a.values)),
    "item": lambda a: a.isel(time=0, lat=1, lon=1).item(),
    "to_pandas": lambda a: a.isel(lon=0, lat=0).to_pandas().sum(),
    "to_dataframe": lambda a: a.to_dataframe().t.sum(),
    "to_series": lambda a: a.to_series().count(),
    "testing": lambda a: xarray.testing.assert_allclose(a, a + 1e-12),
    "broadcast_equals": lambda a: a.broadcast_equals(a),
    "nbytes": lambda a: a.nbytes,
    "len": lambda a: len(a),
    "bool": lambda a: bool((a > 0).any()),
    "iter": lambda a: sum(float(x.sum()) for x in a.fillna(0)),
    "copy deep": lambda a: float(a.copy(deep=True).sum()),
    "to_dict": lambda a: len(a.to_dict()["data"]),
    "info": lambda a: a.to_dataset().info(io.StringIO()),
    "load": lambda a: float(a.load().sum()),
    "compute": lambda a: float(a.compute().sum()),
    "chunks": lambda a: a.chunks,
    "plot": lambda a: str(type(a.isel(time=0).plot())),
    "plot line": lambda a: str(type(a.isel(lat=0, lon=0).plot())),
    "plot hist": lambda a: str(type(a.plot.hist())),
    "contourf": lambda a: str(type(a.isel(time=1).plot.contourf())),
}
