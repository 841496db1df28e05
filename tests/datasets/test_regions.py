"""Regions of files are written: those elements change, and nothing else, whatever fails."""

import errno
import shutil
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

import meshcomm as mc
from support.sampling import sampled
from support.system_calls import calls_of, failing, killed
from support.tensors import on

xarray = pytest.importorskip("xarray")
pytest.importorskip("h5netcdf")
pytest.importorskip("zarr")
mx = pytest.importorskip("meshcomm.xarray")

pytestmark = pytest.mark.filterwarnings("ignore:.*onsolidated:", "ignore:.*netcdf_engine_order:")
U = mc.UNSHARDED
FIELD = np.random.default_rng(1).normal(size=(13, 7, 9))
WHOLE = xarray.Dataset(
    {
        "t": (("time", "y", "x"), FIELD, {"units": "K"}),
        "i": (("time", "x"), np.arange(13 * 9, dtype="i4").reshape(13, 9)),
        "n": ("time", np.arange(13.0)),
    },
    {
        "time": np.datetime64("2000-01-01", "ns") + np.arange(13) * np.timedelta64(1, "D"),
        "y": np.arange(7.0),
        "x": np.arange(9.0),
    },
)
CHUNKS = {"t": {"chunks": (4, 3, 9)}, "i": {"chunks": (5, 4)}}
CHUNKSIZES = {"t": {"zlib": True, "chunksizes": (4, 3, 9)}, "i": {"chunksizes": (5, 4)}, "n": {"chunksizes": (6,)}}


def ours(path, **options):
    def program():
        columns = mc.Layout([U, "x", U], mc.create_mesh([("x", 2)]))
        mx.save(path, WHOLE.assign(t=(WHOLE.t.dims, mc.distribute(FIELD, columns), WHOLE.t.attrs)), **options)

    on(2, program)


FILES = {
    "xarray.nc": lambda path: WHOLE.to_netcdf(path, engine="h5netcdf"),
    "chunks of xarray.nc": lambda path: WHOLE.to_netcdf(path, engine="h5netcdf", encoding=CHUNKSIZES),
    "records.nc": lambda path: WHOLE.to_netcdf(path, engine="h5netcdf", unlimited_dims=["time"]),
    "ours.nc": ours,
    "compressed.h5": lambda path: ours(path, compression="gzip", chunks={"t": (4, 3, 9)}),
    "series.nc": lambda path: ours(path, append_dim="time"),
    "packed.nc": lambda path: ours(path, encoding={"n": {"dtype": "i2", "scale_factor": 0.5, "_FillValue": -1}}),
    "xarray.zarr": lambda path: WHOLE.to_zarr(path, consolidated=True, encoding=CHUNKS),
    "shards.zarr": lambda path: WHOLE.to_zarr(path, encoding={"t": {"chunks": (2, 3, 9), "shards": (6, 6, 9)}}),
    "version 2.zarr": lambda path: WHOLE.to_zarr(path, zarr_format=2, encoding=CHUNKS),
    "ours.zarr": ours,
    "compressed.zarr": lambda path: ours(path, compression="gzip", chunks={"t": (4, 3, 9)}),
}
REGIONS = [
    {"time": slice(5, 11)},
    {"time": slice(3, 4)},
    {"time": slice(2, 12), "y": slice(2, 6), "x": slice(1, 8)},
    {"time": slice(-3, None)},
]


def read(path):
    options = {"engine": "zarr", "consolidated": False} if path.suffix == ".zarr" else {"engine": "h5netcdf"}
    with xarray.open_dataset(path, **options) as opened:
        return opened.load()


def part_of(region):
    """Return what replaces a region: other numbers."""
    part = WHOLE.isel(region).copy(deep=True)
    part["t"], part["i"], part["n"] = part.t.round() + 100, part.i + 1000, part.n + 50
    part["t"].attrs = {}
    return part.drop_vars([name for name, each in part.variables.items() if region.keys().isdisjoint(each.dims)])


def expected_with(region, part):
    expected = WHOLE.copy(deep=True)
    for name in part.data_vars:
        expected[name][{dim: its for dim, its in region.items() if dim in expected[name].dims}] = part[name].values
    return expected


def write(path, region, ranks, specs=(U, "x", U)):
    part = part_of(region)

    def program():
        layout = mc.Layout(list(specs), mc.create_mesh([("x", -1)]))
        mx.save(path, part.assign(t=(part.t.dims, mc.distribute(part.t.values, layout))), region=region)

    on(ranks, program)
    return part


@pytest.mark.parametrize("name", FILES)
def test_a_region_of_any_file(name, tmp_path):
    FILES[name](tmp_path / name)
    cuts = [("x", U, U), (U, "x", U), (U, U, "x")]
    cases = [(region, ranks, specs) for region in REGIONS for ranks in (1, 2, 3) for specs in cuts]
    for region, ranks, specs in sampled(cases, 16):
        path = tmp_path / f"copy{Path(name).suffix}"
        (shutil.copytree if path.suffix == ".zarr" else shutil.copy)(tmp_path / name, path)
        part = write(path, region, ranks, specs)
        xarray.testing.assert_identical(read(path), expected_with(region, part))
        (shutil.rmtree if path.suffix == ".zarr" else Path.unlink)(path)


@pytest.mark.parametrize("name", ["xarray.nc", "chunks of xarray.nc", "ours.zarr", "xarray.zarr", "compressed.zarr"])
def test_other_elements_stay_whatever_fails(name, tmp_path):
    old, region = tmp_path / "old", REGIONS[2]
    old.mkdir()
    FILES[name](old / name)
    counted = Path(shutil.copytree(old, tmp_path / "counted")) / name
    calls = calls_of(lambda: write(counted, region, 2))
    changes = [at for at, call in enumerate(calls) if call.name in ("pwrite", "replace", "fsync", "ftruncate")]
    new = expected_with(region, part_of(region))
    cases = [(at, how) for at in changes for how in ("before", "half", "error")]
    for at, how in sampled(cases, 16):
        path = Path(shutil.copytree(old, tmp_path / f"{at}-{how}")) / name
        if how == "error":
            with failing(at, errno.ENOSPC), suppress(OSError, mc.CheckpointError):
                write(path, region, 2)
        else:
            killed(lambda path=path: write(path, region, 2), at, how)
        with mc.open(path):
            found = read(path)  # a journal is complete now
        for each in ("t", "i", "n"):
            changes_there = new[each] != WHOLE[each]
            assert ((found[each] == WHOLE[each]) | changes_there).all(), (at, how, each)
            assert how == "half" or ((found[each] == WHOLE[each]) | (found[each] == new[each])).all(), (at, how, each)
        write(path, region, 3)
        xarray.testing.assert_identical(read(path), new)
        shutil.rmtree(path.parent)


WRONG = {
    "no file": ({"time": slice(0, 3)}, lambda part: part, FileNotFoundError, "There is no file"),
    "no region": ({}, lambda part: part, TypeError, "region is a dict such as"),
    "no dimension": ({"day": slice(0, 3)}, lambda part: part, ValueError, "region names 'day'; the dimensions are"),
    "no slice": ({"time": 3}, lambda part: part, TypeError, "the region along 'time' is a slice, not 3"),
    "steps": ({"time": slice(0, 6, 2)}, lambda part: part, ValueError, "has the step 2; it may be 1 only"),
    "beyond": ({"time": slice(11, 14)}, lambda part: part, ValueError, "names 14; the file has 13 elements there"),
    "length": ({"time": slice(0, 4)}, lambda part: part, ValueError, "'t' has 3 elements along 'time', which is the "),
    "without it": (
        {"time": slice(0, 3)},
        lambda part: part.assign(o=("x", np.zeros(9))),
        ValueError,
        "'o' has no dimension of the region, time: such variables are not written",
    ),
    "a new one": ({"time": slice(0, 3)}, lambda part: part.assign(o=part.t * 2), ValueError, "has no variable 'o'"),
    "other dims": (
        {"time": slice(0, 3)},
        lambda part: part.transpose("y", "time", "x"),
        ValueError,
        "'t' has the dimensions .'time', 'y', 'x'. in ",
    ),
    "other dtype": (
        {"time": slice(0, 3)},
        lambda part: part.assign(i=part.i + 0.5),
        mc.DTypeError,
        "'i' is <i4 in .*, and float64 here: convert it",
    ),
    "too large": (
        {"time": slice(0, 3)},
        lambda part: part.assign(i=part.i.astype("i8") + 2**40),
        mc.DTypeError,
        "'i' has elements that .* would change: it holds int32",
    ),
}


@pytest.mark.parametrize("suffix", [".nc", ".zarr"])
@pytest.mark.parametrize("case", WRONG)
def test_what_is_refused(case, suffix, tmp_path):
    region, change, error, text = WRONG[case]
    path = tmp_path / f"a{suffix}"
    if case != "no file":
        ours(path)
    part = change(part_of({"time": slice(0, 3)}))

    def program():
        layout = mc.Layout(["x", U, U], mc.create_mesh([("x", -1)]))
        tensors = part.assign(t=(part.t.dims, mc.distribute(part.t.values, layout)))
        with pytest.raises(error, match=text):
            mx.save(path, tensors, region=region)
        with pytest.raises(ValueError, match="region is for what is in the file, append_dim for what comes behind it"):
            mx.save(path, tensors, region=region, append_dim="time")

    for ranks in (1, 2, 3):
        on(ranks, program)
    assert case == "no file" or read(path).equals(WHOLE)


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_to_zarr(ranks, tmp_path):
    region, path = REGIONS[0], tmp_path / "a.zarr"
    ours(path)
    part = part_of(region)

    def program():
        layout = mc.Layout([U, "x", U], mc.create_mesh([("x", -1)]))
        tensors = part.assign(t=(part.t.dims, mc.distribute(part.t.values, layout)))
        tensors.to_zarr(path, region=region)
        tensors.to_zarr(path, region=region, mode="r+")
        for wrong in ({"mode": "w", "region": region}, {"mode": "r+"}):
            with pytest.raises(ValueError, match="a region is written with mode 'r\\+' or 'a'"):
                tensors.to_zarr(path, **wrong)

    on(ranks, program)
    xarray.testing.assert_identical(read(path), expected_with(region, part))
