"""Groups and windows of xarray are reduced in one pass over the blocks, with xarray's own values."""

import numpy as np
import pandas
import pytest

import meshcomm as mc
from support.numpy_law import alternatives
from support.sampling import sampled
from support.tensors import on

xarray = pytest.importorskip("xarray")
testing = pytest.importorskip("xarray.testing")

U = mc.UNSHARDED
LAYOUTS = {
    "latitudes": ([("x", 3)], [U, "x", U]),
    "days": ([("x", 2)], ["x", U, U]),
    "both": ([("x", 2), ("y", 2)], ["x", "y", U]),
    "rounds of days": ([("x", 3)], [mc.Cyclic("x", 50), U, U]),
    "chosen days": ([("x", 3)], [mc.Cuts("x", [0, 0, 500, 800]), U, U]),
}
DAYS = 800

pytestmark = [
    pytest.mark.filterwarnings("ignore:Mean of empty slice:RuntimeWarning", "ignore:All-NaN slice:RuntimeWarning"),
    pytest.mark.filterwarnings("ignore:Degrees of freedom:RuntimeWarning"),
    pytest.mark.filterwarnings("ignore::xarray.core.extensions.AccessorRegistrationWarning"),
]


def weather(dtype="f8"):
    """Return 800 days of values; some are NaN, and all of a month and a place where others have values."""
    field = np.random.default_rng(1).normal(10, 3, (DAYS, 5, 4))
    if np.dtype(dtype).kind == "f":
        field[np.random.default_rng(2).random(field.shape) < 0.05] = np.nan
        field[31:59, 2] = field[397:425, 2] = np.nan  # both Februaries
    days = pandas.date_range("2001-01-01", periods=DAYS)
    coordinates = {"time": days, "lat": np.linspace(-60, 60, 5), "lon": np.arange(4) * 90.0}
    others = {
        "zone": ("lat", list("aabbc")),
        "area": (("lat", "lon"), np.ones((5, 4))),
        "km": ("time", np.arange(DAYS)),
    }
    return xarray.DataArray(field.astype(dtype), coordinates | others, ["time", "lat", "lon"], "t", {"units": "K"})


def dataset(array):
    """Return a dataset of the array, of others that lack some dimensions, and of what is no number."""
    few, line = array.isel(lat=0, drop=True), array.isel(lat=0, lon=0, drop=True)
    found = xarray.Dataset({"t": array, "u": few.transpose("lon", "time"), "w": array.isel(time=0, drop=True)})
    plain = {"v": line.copy(data=np.arange(DAYS)), "name": ("lat", list("vwxyz")), "one": 3.0}
    return found.assign(plain).assign_attrs(about="weather")


def cut(array, specs, mesh):
    return array.copy(data=mc.distribute(array.values, mc.Layout(specs, mesh)))


def same(found, expected, exactly=False):
    """Check arrays or datasets of xarray, whatever holds their elements. Collective."""
    found = found.map(whole) if isinstance(found, xarray.Dataset) else whole(found)
    assert found.attrs == expected.attrs
    if exactly:
        testing.assert_identical(found, expected)
        return
    testing.assert_allclose(found, expected, rtol=1e-9)
    for name in [*expected.coords]:
        testing.assert_identical(found[name].drop_vars(name), expected[name].drop_vars(name))
    variables = (
        (expected.variables, found.variables) if isinstance(found, xarray.Dataset) else ({0: expected}, {0: found})
    )
    for name, right in variables[0].items():  # no tensor holds objects
        assert variables[1][name].dtype == right.dtype or right.dtype == object


def whole(array):
    return array.copy(data=np.asarray(array.data))


def every(*texts):
    return [call for text in texts for call in alternatives(text)]


GROUPS = every(
    "groupby({'time.month'|'time.dayofyear'|'time.season'|'zone'|a.area * a.lat})",
    "groupby(month=xarray.groupers.UniqueGrouper(), year=xarray.groupers.UniqueGrouper())",
    "groupby_bins('km', [-1, 5, 100, 2000, 3000])",
    "resample(time={'MS'|'YS'|'12h'})",
)
REDUCTIONS = every(
    "mean({|...|['time', 'lon']|skipna=False|keep_attrs=False})",
    "sum({|['time', 'lat']|min_count=3})",
    "{prod|count|median|first|any|all}()",
    "min({|skipna=False})", "max({|...})",
    "std({|..., ddof=1})", "var({ddof=1|skipna=False})", "last(skipna=False)",
)  # fmt: skip


def called(call, a):
    return eval(call, {"np": np, "xarray": xarray, "a": a})


def expect(call, array):
    try:
        return called(call, array)
    except (TypeError, ValueError, NotImplementedError) as error:
        return error


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("groups", GROUPS)
def test_groups(groups, layout):
    dims, specs = LAYOUTS[layout]
    array = weather().assign_coords(
        month=("time", weather().time.dt.month.data), year=("time", weather().time.dt.year.data)
    )
    array = array if "year" in groups else array.drop_vars(["month", "year"])
    calls = [f"a.{groups}.{each}" for each in sampled(REDUCTIONS, 8)]
    expected = {call: expect(call, array) for call in calls}

    def program():
        mesh = mc.create_mesh(dims)
        its = cut(array, specs, mesh)
        for call, right in expected.items():
            if isinstance(right, Exception):
                with pytest.raises(type(right)):
                    called(call, its)
                continue
            found = called(call, its)
            assert isinstance(found.data, mc.DTensor)
            same(found, right)

    on(int(np.prod([n for _, n in dims])), program)


@pytest.mark.filterwarnings("ignore:overflow:RuntimeWarning")
@pytest.mark.parametrize("dtype", ["i2", "u8", "?", "f4", "f2", "c16", "M8[ns]", "m8[s]"])
def test_dtypes(dtype):
    array = weather(dtype)
    names = ["mean", "sum", "prod", "min", "max", "count", "std", "first", "any"]
    calls = [f"a.groupby('time.season').{name}()" for name in names]
    expected = {call: expect(call, array) for call in calls}

    def program(specs):
        its = cut(array, specs, mc.create_mesh([("x", 2)]))
        for call, right in expected.items():
            if isinstance(right, Exception):
                with pytest.raises(type(right)):
                    called(call, its)
            elif dtype in ("f4", "f2"):  # devices add up in another order
                found, rtol = whole(called(call, its)), {"f4": 1e-4, "f2": 5e-2}[dtype]
                assert found.dtype == right.dtype
                testing.assert_allclose(found, right, rtol=rtol)
            elif array.dtype.kind in "mM" and "mean" in call:  # whole units, of rounded floats
                found, unit = called(call, its).values, np.timedelta64(1, dtype[3:-1])
                assert abs(found - right.values).max() <= 8 * unit
            else:
                same(called(call, its), right)

    for specs in ([U, "x", U], ["x", U, U]):
        on(2, program, specs)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("groups", every("groupby({'time.month'|'time.season'})", "resample(time={'MS'|'12h'})"))
def test_datasets(groups, layout):
    dims, specs = LAYOUTS[layout]
    everything = dataset(weather())
    reductions = every("mean({|...|['time', 'lon']|keep_attrs=False})", "{sum|max|count|std|first}()")
    calls = [f"a.{groups}.{each}" for each in sampled(reductions, 4)]
    expected = {call: expect(call, everything) for call in calls}

    def program():
        mesh = mc.create_mesh(dims)
        its = everything.assign(t=cut(everything.t, specs, mesh), u=cut(everything.u, [specs[2], specs[0]], mesh))
        its = its.assign(w=cut(everything.w, specs[1:], mesh))
        for call, right in expected.items():
            if isinstance(right, Exception):
                with pytest.raises(type(right)):
                    called(call, its)
            else:
                found = called(call, its)
                assert isinstance(found.t.data, mc.DTensor)
                same(found, right)
                assert [each.dims for each in found.data_vars.values()] == [
                    right[each].dims for each in found.data_vars
                ]

    on(int(np.prod([n for _, n in dims])), program)


def test_nothing_moves_and_no_rank_waits_where_days_are_whole():
    array = weather()

    def program():
        its = cut(array, [U, "x", U], mc.create_mesh([("x", 3)]))
        with mc.count() as found:
            for name in ("mean", "std", "max", "first", "median"):
                getattr(its.groupby("time.dayofyear"), name)()
            its.resample(time="MS").mean()
            its.rolling(time=31).mean()
        return found.calls, found.agreements, its.groupby("time.month").mean().data.layout.sharding_specs

    assert on(3, program) == [(0, 0, [U, "x", U])] * 3


def test_devices_merge_small_shares_where_days_are_cut():
    array = weather()

    def program():
        its = cut(array, ["x", U, U], mc.create_mesh([("x", 4)]))
        means = its.groupby("time.month").mean()
        assert means.data.layout.sharding_specs == [U, U, U]  # each device has the sums of all
        with mc.count() as found:
            means = its.groupby("time.month").mean()
        assert (found.calls, found.agreements) == (2, 1)  # are all shares made? Then they are merged
        assert 0 < found.bytes < its.nbytes / 4
        same(means, array.groupby("time.month").mean())
        days = its.groupby("time.dayofyear").mean()
        assert days.data.layout.sharding_specs == [U, "x", U]  # of two years the shares would be the data
        same(days, array.groupby("time.dayofyear").mean(), exactly=True)  # by the same function, of the same elements

    on(4, program)


@pytest.mark.parametrize("groups", ["groupby('time.month')", "resample(time='MS')", "groupby('zone')"])
@pytest.mark.parametrize("flox", [False, True, None])
def test_dims_of_cumulative_sums(flox, groups, monkeypatch):
    """They are in xarray's order: the last one is that of the sums if flox makes them. None: what is installed."""
    if flox is not None:
        monkeypatch.setattr("meshcomm.adapters.xarray_reductions._uses_flox", lambda: flox)
    array, along = weather().isel(time=slice(0, 90)), "lat" if "zone" in groups else "time"
    call = f"a.{groups}.cumsum('{along}')"
    with xarray.set_options(use_flox=flox is None):
        expected = called(call, array)
    expected = expected.transpose(..., along) if flox else expected

    def program():
        for specs in (["x", U, U], [U, "x", U]):
            its = cut(array, specs, mc.create_mesh([("x", -1)]))
            for found in (called(call, its), called(call, its.to_dataset(name="t")).t):
                assert found.dims == expected.dims
                same(found, expected)

    for ranks in (1, 2, 3):
        on(ranks, program)


def test_an_error_of_one_rank_is_raised_by_all():
    array = weather()
    array[700] = 1e308

    def program():
        its = cut(array, ["x", U, U], mc.create_mesh([("x", 3)]))
        its = xarray.concat([its, its], "lat", join="override")
        with np.errstate(over="raise"), pytest.raises(FloatingPointError):
            its.groupby("time.year").sum(..., skipna=False)
        return float(its.groupby("time.year").max(...)[0])

    assert len(set(on(3, program))) == 1


def test_a_rank_outside_of_the_mesh_makes_the_same_calls():
    array = weather()

    def program():
        mesh = mc.create_mesh([("x", 2)])
        for specs in ([U, "x", U], ["x", U, U]):
            its = cut(array, specs, mesh)
            found = [its.groupby("time.month").std(), its.groupby("time.dayofyear").mean(), its.rolling(time=5).sum()]
            expected = [
                array.groupby("time.month").std(),
                array.groupby("time.dayofyear").mean(),
                array.rolling(time=5).sum(),
            ]
            for its, right in zip(found, expected, strict=True):
                assert (its.shape, its.dtype) == (right.shape, right.dtype)
                if mesh.rank is not None:
                    same(its, right)

    on(3, program)


# -- windows ----------------------------------------------------------------------------------------------------------

WINDOWS = every(
    "a.rolling(time=31{|, center=True}).mean()",
    "a.rolling(time={30, center=True, min_periods=1|801}).mean()",
    "a.rolling(time=400).sum()",
    "a.rolling(lat=2, center=True, min_periods=1).sum()",
    "a.rolling({time=9, min_periods=4).max|time=8, center=True).min|time=5, min_periods=2).median}()",
    "a.fillna(0).rolling({time=4).argmax|lat=4, center=True).argmin}()",
    "a.rolling(time=7{).std(keep_attrs=False|).std(|, min_periods=3).var(})",
    "a.rolling(time=3).{prod|count}()",
    "a.rolling({lat=5|time=3, lat=2}).mean()",
    "a.fillna(0).{astype('i4').rolling(time=10, center=True).mean|round().astype('f4').rolling(time=10).max}()",
    "a.to_dataset(name='t').assign(z=a.zone).rolling(time=10).mean().t",
)


@pytest.mark.parametrize("bottleneck", [False, True])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_windows(layout, bottleneck):
    if bottleneck:
        pytest.importorskip("bottleneck")
    dims, specs = LAYOUTS[layout]
    array = weather().drop_vars("zone").assign_coords(zone=("lat", np.arange(5)))
    calls = sampled(WINDOWS, 16)

    def program():
        its = cut(array, specs, mc.create_mesh(dims))
        for call, right in expected.items():
            if isinstance(right, Exception):
                with pytest.raises(type(right)):
                    called(call, its)
                continue
            found = called(call, its)
            assert isinstance(found.data, mc.DTensor), call
            same(found, right)

    with xarray.set_options(use_bottleneck=bottleneck):
        expected = {call: expect(call, array) for call in calls}
        on(int(np.prod([n for _, n in dims])), program)
