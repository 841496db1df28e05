"""meshcomm.xarray.map_blocks: functions that know no tensors, on the blocks of ranks."""

import numpy as np
import pytest

import meshcomm as mc
from support.tensors import on

cases = pytest.importorskip("support.xarray_cases")
cftime = pytest.importorskip("cftime")
xarray = cases.xarray
mx = pytest.importorskip("meshcomm.xarray")

U = mc.UNSHARDED
LAYOUTS = [
    ([("x", 3)], [U, "x", U]),
    ([("x", 2), ("y", 2)], [U, "x", "y"]),
    ([("x", 8)], [U, "x", U]),  # one rank has nothing
    ([("x", 2)], [mc.Cyclic("x", 2), U, U]),
]
FUNCTIONS = {
    "interp": (lambda a: a.drop_vars("area").interp(lat=[-5.0, 12.0]), "lat"),
    "interpolate_na": (lambda a: a.interpolate_na("time"), ["time"]),
    "vectorize": (
        lambda a: xarray.apply_ufunc(lambda x: x.sum(), a.fillna(0), input_core_dims=[["lat"]], vectorize=True),
        "lat",
    ),
    "area": (lambda a: a * a.area + a.lat, ()),
    "coordinates": (lambda a: a.assign_coords(lat=a.lat * 2, north=("lat", a.lat.values > 0)), "time"),
    "another": (lambda a: a.mean("time").expand_dims(member=[1, 2]).astype("f4"), "time"),
}


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize(("dims", "specs"), LAYOUTS)
def test_map_blocks(dims, specs, name):
    function, whole = FUNCTIONS[name]
    expected = function(cases.weather())

    def program():
        found = mx.map_blocks(function, cases.on_mesh(specs, mc.create_mesh(dims)), whole)
        assert isinstance(found.data, mc.DTensor)
        assert (found.dims, found.dtype) == (expected.dims, expected.dtype)
        np.testing.assert_array_equal(found.values, expected.values)
        assert set(found.coords) == set(expected.coords)
        for each in expected.coords:
            np.testing.assert_array_equal(found[each].values, expected[each].values)

    on(int(np.prod([n for _, n in dims])), program)


SHRINKING = {
    "max": lambda b: b.max("t"),
    "first": lambda b: b.isel(t=slice(0, 2)),
    "last date": lambda b: b.t.max() + 0 * b.max("t").astype(int).astype("m8[ns]"),
}


@pytest.mark.parametrize("name", SHRINKING)
@pytest.mark.parametrize("shape", [(6, 4), (6,), (2, 2)])
def test_what_is_whole_may_go_on_any_number_of_ranks(shape, name):
    function, dims = SHRINKING[name], ("t", "y")[: len(shape)]
    days = np.datetime64("2000-01-01", "ns") + np.arange(shape[0]) * np.timedelta64(1, "D")
    plain = xarray.DataArray(np.arange(np.prod(shape)).reshape(shape), {"t": days}, dims)

    def program():
        mesh = mc.create_mesh([("x", -1)])
        for axis in range(len(shape)):
            layout = mc.Layout(["x" if axis == k else U for k in range(len(shape))], mesh)
            found = mx.map_blocks(function, plain.copy(data=mc.distribute(plain.values, layout)), "t")
            xarray.testing.assert_identical(found.copy(data=found.values), function(plain))

    for ranks in (1, 2, 3):
        on(ranks, program)


@pytest.mark.parametrize("dtype", ["M8[ns]", "m8[s]", "U3", "S3", "f4", "c8", "?", "i2"])
def test_map_blocks_of_any_dtype_with_a_rank_that_has_nothing(dtype):
    values = np.array([1, 0]).astype(f"{dtype[:2]}[s]" if dtype[0] in "mM" else dtype).astype(dtype)

    def program():
        tensor = mc.distribute(values, mc.Layout(["x"], mc.create_mesh([("x", -1)])))
        found = mx.map_blocks(lambda b: b.copy(), xarray.DataArray(tensor, dims=["t"]))
        assert found.dtype == values.dtype
        np.testing.assert_array_equal(found.values, values)

    for ranks in (1, 2, 3):
        on(ranks, program)


CALENDAR = np.array([cftime.Datetime360Day(2000, 1, day) for day in (1, 2, 3)])


@pytest.mark.parametrize("coordinate", [np.array(["a", "bc", "d"]), CALENDAR])
def test_coordinates_that_are_no_numbers(coordinate):
    """They stay, and what a function makes of them is an error: else it would be lost."""

    def program():
        tensor = mc.ones((3,), "f8", mc.Layout(["x"], mc.create_mesh([("x", -1)])))
        array = xarray.DataArray(tensor, {"time": coordinate}, ["time"])
        assert mx.map_blocks(lambda b: b + 1, array).time.values.tolist() == coordinate.tolist()
        for name in ("time", "new"):
            other = CALENDAR[0] if name == "new" else coordinate[2]
            with pytest.raises(TypeError, match=f"other texts or objects '{name}' along a cut dimension"):
                mx.map_blocks(
                    lambda b, **its: b.assign_coords({k: ("time", [v] * len(b)) for k, v in its.items()}),
                    array,
                    kwargs={name: other},
                )

    for ranks in (1, 2, 3):
        on(ranks, program)


def test_arguments_and_what_does_not_fit():
    def program():
        a = cases.on_mesh([U, "x", U], mc.create_mesh([("x", 2)]))
        found = mx.map_blocks(lambda b, n, k=0: b + n + k, a, args=[1], kwargs={"k": 2})
        np.testing.assert_array_equal(found.values, cases.weather().values + 3)
        with pytest.raises(mc.LayoutError, match="takes a DataArray with a tensor, not a ndarray"):
            mx.map_blocks(abs, cases.weather())
        with pytest.raises(mc.LayoutError, match="'x' is no dimension of the array; it has time, lat, lon"):
            mx.map_blocks(abs, a, "x")
        with pytest.raises(mc.ShapeError, match="no dimension 'lat', which is cut: whole='lat' helps"):
            mx.map_blocks(lambda b: b.mean("lat"), a)
        with pytest.raises(mc.ShapeError, match="along 'lat', which is cut; the block has"):
            mx.map_blocks(lambda b: b.isel(lat=slice(0, 1)), a)
        with pytest.raises(TypeError, match="returns a DataArray, not an array"):
            mx.map_blocks(lambda b: b.values, a)
        with pytest.raises(ZeroDivisionError):
            mx.map_blocks(lambda b: b / 0 if len(b.lat) == 3 else 1 / 0, a)
        with pytest.raises(mc.CollectiveMismatch, match="a result of map_blocks"):
            mx.map_blocks(lambda b: b.isel(lon=slice(0, len(b.lat))), a)

    on(2, program)


def test_a_rank_outside_of_the_mesh():
    def program():
        a = cases.on_mesh([U, "x", U], mc.create_mesh([("x", 2)], devices=[0, 1]))
        found = mx.map_blocks(lambda b: b.mean("time"), a, "time")
        assert found.shape == (7, 6)

    on(3, program)
