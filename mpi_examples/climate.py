"""A climate record with xarray on all ranks: mpiexec -n 4 python mpi_examples/climate.py

The program makes forty years of monthly temperatures of the Earth, and saves them as netCDF. Then it does what such
data are for: the mean of each calendar month, anomalies, the mean of the Earth weighted by area, and a map of trends.
`analyse` is a program of xarray, which knows nothing of ranks. Here its fields are cut by latitude; on rank 0 it also
runs on arrays of NumPy, and the results are compared. The results are saved as netCDF, and with matplotlib the trends
are drawn in mpi_examples/output/climate.png. It runs on any number of ranks, and needs xarray; without h5py its files
are zarr stores.
"""

from importlib.util import find_spec
from pathlib import Path

import numpy as np
import xarray as xr

import meshcomm as mc
import meshcomm.xarray

YEARS, FIRST, STEP = 40, 1980, 4  # how many, from when on, and degrees between points
OUTPUT = Path(__file__).parent / "output"
SUFFIX = ".nc" if find_spec("h5py") else ".zarr"


def record(mesh):
    """Return temperatures in Kelvin: seasons, weather, an oscillation in the Pacific, and a warming of known size."""
    time = np.arange(f"{FIRST}-01", f"{FIRST + YEARS}-01", dtype="M8[M]").astype("M8[ns]")
    lat, lon = np.arange(-90 + STEP / 2, 90, STEP), np.arange(0, 360, STEP)
    layout = mc.Layout([mc.UNSHARDED, "lat", mc.UNSHARDED], mesh)
    weather = mc.random.default_rng(1980).standard_normal((len(time), len(lat), len(lon)), dtype="f4", layout=layout)
    months = np.arange(len(time))[:, None, None]
    phi, east = np.deg2rad(lat)[:, None], np.deg2rad(lon)
    mean = 300 - 50 * np.sin(phi) ** 2 + 2 * np.cos(2 * east)
    seasons = -15 * np.sin(phi) * np.cos(2 * np.pi * months / 12)
    pacific = np.exp(-((np.rad2deg(phi) / 10) ** 2) - ((lon - 220) / 40) ** 2) * np.sin(2 * np.pi * months / 45)
    warming = true_trend(lat)[:, None] * months / 120
    field = mc.distribute((mean + seasons + pacific + warming).astype("f4"), layout) + weather
    return xr.DataArray(field, {"time": time, "lat": lat, "lon": lon}, ["time", "lat", "lon"], "t", {"units": "K"})


def true_trend(lat):
    """Return the warming in Kelvin a decade: in the north it is the fastest."""
    return 0.2 + 0.4 * np.clip(np.sin(np.deg2rad(lat)), 0, 1) ** 3


def analyse(t):
    """Return anomalies, means of the Earth by year, and trends in Kelvin a decade, of temperatures."""
    by_month = t.groupby("time.month")
    anomalies = by_month - by_month.mean()
    area = np.cos(np.deg2rad(t.lat))
    earth = anomalies.weighted(area).mean(["lat", "lon"]).groupby("time.year").mean()
    fit = anomalies.assign_coords(time=np.arange(t.sizes["time"]) / 120).polyfit("time", 1)
    trends = fit.polyfit_coefficients.sel(degree=1, drop=True)
    return xr.Dataset({"anomaly": anomalies, "earth": earth, "trend": trends})


def picture(trends):
    """Draw a map, if matplotlib is there."""
    try:
        import matplotlib as mpl
    except ImportError:
        return
    mpl.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(8, 4), layout="constrained")
    trends.plot(ax=axes, cmap="inferno", cbar_kwargs={"label": "K a decade"})
    axes.set_title(f"warming from {FIRST} to {FIRST + YEARS - 1}")
    figure.savefig(OUTPUT / "climate.png", dpi=100)
    pyplot.close(figure)


mesh = mc.create_mesh([("lat", -1)])
OUTPUT.mkdir(exist_ok=True)
mc.xarray.save(OUTPUT / f"climate{SUFFIX}", record(mesh).to_dataset(), overwrite=True)

with mc.xarray.open(OUTPUT / f"climate{SUFFIX}", {"lat": "lat"}, mesh=mesh) as data:
    t = data.t.load()
found = analyse(t)
assert found.anomaly.data.layout.sharding_specs == [mc.UNSHARDED, "lat", mc.UNSHARDED]  # each rank has its latitudes
mc.xarray.save(OUTPUT / f"climate-results{SUFFIX}", found, overwrite=True)

with mc.xarray.open(OUTPUT / f"climate-results{SUFFIX}", mesh=mesh) as saved:  # arrays of NumPy, the same on all ranks
    saved.load()
earth, trends, whole = found.earth.values, found.trend.values, t.values  # of all ranks: all have to ask
if mesh.rank == 0:
    expected = analyse(t.copy(data=whole))
    assert np.allclose(earth, expected.earth, atol=1e-4)
    assert np.allclose(trends, expected.trend, atol=1e-4)
    assert np.allclose(saved.anomaly, expected.anomaly, atol=1e-3)
    picture(saved.trend)
    for year in (FIRST, FIRST + YEARS // 2, FIRST + YEARS - 1):
        print(f"{year}: {earth[year - FIRST]:+.2f} K")
    off = trends.mean(axis=1) - true_trend(found.lat.values)
    print(f"trends by latitude: {trends.mean(axis=1).min():.2f} to {trends.mean(axis=1).max():.2f} K a decade")
    print(f"the largest difference from the truth: {abs(off).max():.2f} K a decade")
