"""An array of xarray, and typical calls on it: tests/data/xarray_calls.txt has the calls."""

import io

import numpy as np
import pandas
import xarray

import meshcomm as mc
from support.numpy_law import evaluated, table


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
    """Return the array of `weather` with tensors, sharded by *specs*."""
    array = weather()
    tensors = array.copy(data=mc.distribute(array.values, mc.Layout(specs, mesh)))
    return tensors.assign_coords(area=(("lat", "lon"), mc.distribute(array.area.values, mc.Layout(specs[1:], mesh))))


OPERATIONS, NUMPYS, OTHERS = table("xarray_calls.txt").values()
"""Calls that return tensors, calls that return NumPy's arrays, and other calls."""


def called(call, a):
    """Return the result of a call of the table on *a*."""
    names = {"np": np, "pandas": pandas, "xarray": xarray, "io": io, "a": a, "area": np.cos(np.deg2rad(a.lat))}
    return evaluated(call, names)
