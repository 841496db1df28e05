"""Datasets that are appended to a file: nothing is lost, and what would be lost is refused by all ranks."""

import errno
import fcntl
import shutil
from pathlib import Path

import numpy as np
import pytest

import meshcomm as mc
from meshcomm.storage import changes
from support.sampling import sampled
from support.system_calls import WHEN, calls_of, failing, killed, watched
from support.tensors import on

h5py = pytest.importorskip("h5py")
xarray = pytest.importorskip("xarray")
pytest.importorskip("h5netcdf")
pytest.importorskip("zarr")
pytest.importorskip("cftime")
mx = pytest.importorskip("meshcomm.xarray")

pytestmark = pytest.mark.filterwarnings("ignore")  # of xarray, of casts and durations


def read(path):
    """Return what xarray reads itself."""
    if path.suffix == ".zarr":
        return xarray.open_zarr(path, consolidated=False, decode_timedelta=True).load()
    return xarray.open_dataset(path, engine="h5netcdf", decode_timedelta=True).load()


def days(start, calendar="360_day", **more):
    return xarray.date_range(start, periods=3, calendar=calendar, use_cftime=True, **{"freq": "D", **more})


def steps(values, name="v", **coordinates):
    """Return a dataset along "time", with these values."""
    return xarray.Dataset({name: ("time", values)}, coordinates)


DATES, MORE = (steps([1, 2, 3], time=days(start)) for start in ("2000-02-29", "2000-03-02"))
APPENDED = {  # the first dataset, the next one, and what the file then has
    "cftime": (DATES, MORE),
    "noleap": (
        steps([1, 2, 3], time=days("1999-01-01", "noleap")),
        steps([4, 5, 6], time=days("1850-01-01", "noleap")),
    ),
    "durations": (
        steps(np.array([1, "NaT"], "m8[D]").astype("m8[ns]")),
        steps(np.array(["NaT", 3], "m8[D]").astype("m8[ns]")),
    ),
    "dates": (steps(np.array(["2000", "NaT"], "M8[ns]")), steps(np.array(["1960", "NaT"], "M8[ns]"))),
    "texts": (steps(["abcd", "b"]), steps(["xyz", "é"])),
    "texts and numbers": (steps(["abc", "b"], n=("time", [1, 2])), steps(["x", "yz"], n=("time", [3, 4]))),
    "narrower": (steps(np.array([1, 2], "i2")), steps([300, -4])),
    "unsigned": (steps(np.array([1, 2], "u1")), steps([255, 0])),
    "floats": (steps(np.array([0.5, 2], "f4")), steps([np.nan, 0.25])),
    "bools": (steps([True, False]), steps([False, True])),
}
PACKS = {"v": {"dtype": "i2", "scale_factor": 0.01, "add_offset": 280.0, "_FillValue": -32768}}
REFUSED = {  # the first dataset, its encoding, the next one, its encoding, and why not
    "calendar": (DATES, {}, steps([4, 5, 6], time=days("2000-03-02", "noleap")), {}, "the calendar 360_day"),
    "asked calendar": (DATES, {}, MORE, {"time": {"calendar": "noleap"}}, "the calendar"),
    "asked units": (DATES, {}, MORE, {"time": {"units": "hours since 1900-01-01"}}, "the units days since"),
    "finer": (
        DATES,
        {},
        steps([4, 5, 6], time=days("2000-03-02", freq="6h")),
        {},
        "does not fit the units of the file",
    ),
    "numbers and dates": (DATES, {}, steps([4, 5, 6], time=["a", "b", "c"]), {}, "convert it"),
    "longer": (steps(["a", "b"]), {}, steps(["longer", "x"]), {}, "have at most 1 character"),
    "longer in UTF-8": (steps(["a", "b"]), {}, steps(["ab", "é"]), {}, "have at most 1 character"),
    "complex": (steps([1.0, 2.0]), {}, steps([1 + 1j, 2]), {}, "complex128 here: convert it"),
    "floats to integers": (steps([1, 2]), {}, steps([1.5, 2]), {}, "float64 here: convert it"),
    "too large": (steps(np.array([1, 2], "i2")), {}, steps([70000, 2]), {}, "holds int16"),
    "negative": (steps(np.array([1, 2], "u8")), {}, steps([-1, 2]), {}, "holds uint64"),
    "digits": (steps(np.array([1, 2], "f4")), {}, steps([0.1, 2]), {}, "holds float32"),
    "packed": (steps([281.0, np.nan]), PACKS, steps([10000.0, 281]), {}, "holds int16"),
    "packed without a fill": (
        steps([281.0, 282]),
        {"v": {**PACKS["v"], "_FillValue": None}},
        steps([np.nan, 281]),
        {},
        "holds int16",
    ),
    "more than bools": (steps([True, False]), {}, steps([2, 1]), {}, "holds int8"),
    "units": (
        steps([1.0, 2]).assign(v=("time", [1.0, 2], {"units": "K"})),
        {},
        steps([1.0, 2]).assign(v=("time", [1.0, 2], {"units": "degC"})),
        {},
        "the units of the file, K",
    ),
}


def appended(path, first, later, encodings=(None, None)):
    mx.save(path, first, append_dim="time", encoding=encodings[0])
    mx.save(path, later, append_dim="time", encoding=encodings[1])


@pytest.mark.parametrize("suffix", [".nc", ".zarr"])
@pytest.mark.parametrize("case", APPENDED)
def test_nothing_is_lost_that_is_appended(case, suffix, tmp_path):
    first, later = APPENDED[case]
    for ranks in (1, 2, 3):
        path = tmp_path / f"{ranks}{suffix}"
        on(ranks, lambda path=path: appended(path, first, later))
        found = read(path)
        for name, each in found.variables.items():
            expected = np.concatenate([first[name].values, later[name].values])
            if expected.dtype.kind in "OU":
                assert each.values.tolist() == expected.tolist()
            else:
                np.testing.assert_array_equal(each.values.astype(expected.dtype), expected)


@pytest.mark.parametrize("suffix", [".nc", ".zarr"])
@pytest.mark.parametrize("case", REFUSED)
def test_what_would_be_lost_is_refused(case, suffix, tmp_path):
    first, packs, later, asked, why = REFUSED[case]
    for ranks in (1, 2, 3):
        path = tmp_path / f"{ranks}{suffix}"

        def program(path=path):
            mx.save(path, first, append_dim="time", encoding=packs)
            with pytest.raises(ValueError, match=why):
                mx.save(path, later, append_dim="time", encoding=asked)

        on(ranks, program)
        assert read(path).sizes["time"] == first.sizes["time"]


@pytest.mark.parametrize("suffix", [".nc", ".zarr"])
def test_a_tensor_that_does_not_fit_is_refused_by_all_ranks(suffix, tmp_path):
    """Only one rank sees the element that is out of range."""

    def program():
        rows = mc.Layout([mc.UNSHARDED, "x"], mc.create_mesh([("x", -1)]))
        for number, last in enumerate((7, 70000)):
            field = mc.distribute(np.array([[1, 2, 3, 4, 5, last]], "i2" if last == 7 else "i8"), rows)
            its = xarray.Dataset({"v": (("time", "x"), field)}, {"time": [number]})
            if last == 7:
                mx.save(path, its, append_dim="time")
            else:
                with pytest.raises(mc.DTypeError, match="would change: it holds int16"):
                    mx.save(path, its, append_dim="time")

    for ranks in (1, 2, 3):
        path = tmp_path / f"{ranks}{suffix}"
        on(ranks, program)


def test_a_cast_that_the_encoding_asks_for_is_no_loss(tmp_path):
    asked = {"v": {"dtype": "f4"}}
    on(2, lambda: appended(tmp_path / "a.nc", steps([0.5, 2]), steps([0.1, 2]), (asked, asked)))
    assert read(tmp_path / "a.nc").v.values.tolist() == np.array([0.5, 2, 0.1, 2], "f4").tolist()


@pytest.mark.parametrize("suffix", [".nc", ".zarr"])
def test_coordinates_of_texts_that_differ(suffix, tmp_path):
    def program():
        for time, names in enumerate((["a", "b", "c"], ["a", "b", "c"], ["c", "b", "a"])):
            its = xarray.Dataset({"v": (("time", "s"), [[10, 20, 30]])}, {"time": [time], "name": ("s", names)})
            if time < 2:
                mx.save(path, its, append_dim="time")
                continue
            with pytest.raises(ValueError, match="the coordinates 'name' are others"):
                mx.save(path, its, append_dim="time")

    for ranks in (1, 2, 3):
        path = tmp_path / f"{ranks}{suffix}"
        on(ranks, program)


# -- several steps of one call ----------------------------------------------------------------------------------------


def append_steps(path, first, count, ranks=2):
    """Append steps, which are numbered from *first* on. Collective over so many simulated ranks."""
    numbers = np.arange(first, first + count)

    def program():
        columns = mc.Layout([mc.UNSHARDED, "x"], mc.create_mesh([("x", -1)]))
        field = mc.distribute(numbers[:, None] + np.zeros((1, 600)), columns)
        data = {"v": (("time", "x"), field), "n": ("time", numbers), "w": (("x", "y"), np.ones((600, 2)))}
        mx.save(path, xarray.Dataset(data, {"time": numbers / 2, "x": np.arange(600)}), append_dim="time")

    on(ranks, program)


def steps_in(data):
    """Return how many steps a dataset has. Fail if one of them is not whole."""
    numbers = np.arange(data.sizes["time"])
    assert (data.time.values == numbers / 2).all()
    assert (data.n.values == numbers).all()
    assert (data.v.values == numbers[:, None]).all()
    return len(numbers)


def our_steps_in(path):
    return on(2, lambda: steps_in(mx.open(path, {"x": "x"}, mesh=mc.create_mesh([("x", 2)]))))[0]


@pytest.mark.parametrize("suffix", [".nc", ".h5", ".zarr"])
def test_steps_of_one_call_come_together(suffix, tmp_path):
    old, counted = tmp_path / "old", tmp_path / "counted"
    old.mkdir()
    append_steps(old / f"a{suffix}", 0, 2)
    shutil.copytree(old, counted)
    calls = calls_of(lambda: append_steps(counted / f"a{suffix}", 2, 3))
    cases = [(at, when) for at, call in enumerate(calls) for when in (*WHEN, "error") if when != "half"]
    cases += [(at, "half") for at, call in enumerate(calls) if call.name == "pwrite"] * 4
    for at, when in sampled(cases, 48):
        path = Path(shutil.copytree(old, tmp_path / f"{at}-{when}")) / f"a{suffix}"
        if when == "error":
            with failing(at, errno.ENOSPC):
                failed = fails(lambda path=path: append_steps(path, 2, 3))
        else:
            failed = killed(lambda path=path: append_steps(path, 2, 3), at, when)
        count = our_steps_in(path)
        assert count in (2, 5), (at, when)
        assert count == 2 or when != "error" or not failed, (at, calls[at])
        if count == 2:
            append_steps(path, 2, 3)
        assert our_steps_in(path) == steps_in(read(path)) == 5, (at, when)
        shutil.rmtree(path.parent)


def fails(program):
    """Return whether an error ends a program."""
    try:
        program()
    except (OSError, mc.CheckpointError):
        return True
    return False


@pytest.mark.parametrize("suffix", [".nc", ".h5", ".zarr"])
@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_steps_on_any_number_of_ranks(suffix, ranks, tmp_path):
    path = tmp_path / f"a{suffix}"
    for first, count in ((0, 2), (2, 3), (5, 1), (6, 20)):
        append_steps(path, first, count, ranks)
    assert steps_in(read(path)) == our_steps_in(path) == 26


@pytest.mark.parametrize("held", [False, True])
@pytest.mark.parametrize("suffix", [".nc", ".h5"])
def test_whoever_reads_between_two_writes_sees_whole_steps(suffix, held, tmp_path, monkeypatch):
    """Nobody can open the file while its lengths change; if somebody *held* it before, the lengths change last."""
    path, seen = tmp_path / f"a{suffix}", []
    monkeypatch.setattr(changes, "WAIT_FOR_READERS", 0.01)
    append_numbers(path, 1)

    def look(number, call):
        result = call.run()
        if call.name == "pwrite" or call.name == "ftruncate":
            seen.append(as_others_read(path))
        return result

    with open(path) as file, watched(look):
        if held:
            fcntl.flock(file, fcntl.LOCK_SH)
        append_numbers(path, 2)
        append_numbers(path, 3)
    assert set(seen) <= ({1, 2, 3, "error"} if held else {1, 2, 3, "locked"})
    assert held or {1, 2, "locked"} <= set(seen)


def append_numbers(path, number):
    def program():
        rows = mc.Layout(["x"], mc.create_mesh([("x", -1)]))
        with mc.Series(path, {"v": rows}, shape=(600,), dtype=float, compression="gzip") as series:
            series.append(v=mc.full(600, number, float, rows))

    on(2, program)


def as_others_read(path):
    """Return how many whole steps the library reads."""
    try:
        with h5py.File(path, "r") as file:
            found, length = file["v"][()], len(file.get("time", ()))
    except BlockingIOError:
        return "locked"
    except (OSError, RuntimeError):
        return "error"
    assert (found == np.arange(1, len(found) + 1)[:, None]).all()
    assert length <= len(found)  # netCDF would fill what is missing
    return len(found)
