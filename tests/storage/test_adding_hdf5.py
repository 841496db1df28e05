"""mode="a" in HDF5 and netCDF, and Series: what is there stays, and what is added is whole or not there."""

import shutil
import subprocess
import threading
import zlib
from collections import Counter
from random import Random

import h5py
import numpy as np
import pytest
import zarr

import meshcomm as mc
from meshcomm import Layout
from meshcomm.storage import chunked
from meshcomm.storage.changes import journal_of
from support.random_cases import of_kinds, random_layout
from support.sampling import sampled
from support.saved import mesh_of_4
from support.system_calls import WHEN, calls_of, failing, killed
from support.tensors import on

U = mc.UNSHARDED
A = np.arange(7 * 10.0).reshape(7, 10)


def tree_of(number, mesh=None):
    """Return arrays with this number in them, cut over two ranks."""
    mesh = mesh or mc.create_mesh([("x", 2)])
    return {
        "a": mc.distribute(A + number, Layout(["x", U], mesh)),
        "more": {"b": mc.distribute(np.full(3, number, "i4"), Layout(["x"], mesh))},
    }


def add(path, number, **options):
    on(2, lambda: mc.save(path, tree_of(number), mode="a", **options))


def of_others(path):
    """Make a file as another program does."""
    with h5py.File(path, "w", libver=("earliest", "latest")[zlib.crc32(path.name.encode()) % 2]) as file:
        file["grid"] = np.arange(12.0).reshape(3, 4)
        file["a"] = np.zeros((7, 10))
        file["names"] = ["one", "two"]
        file["more/kept"] = np.arange(5)
        file.attrs["title"] = "of another program"
        file["grid"].attrs["units"] = "m"
        file["link"] = h5py.SoftLink("/grid")


def is_kept(path):
    with h5py.File(path) as file:
        assert (file["grid"][()] == np.arange(12.0).reshape(3, 4)).all()
        assert file["names"].asstr()[1] == "two"
        assert (file["more/kept"][()] == np.arange(5)).all()
        assert file.attrs["title"] == "of another program"
        assert file["grid"].attrs["units"] == "m"
        assert (file["link"][()] == file["grid"][()]).all()


def numbers_in(path):
    """Return the numbers of a and more/b, None for what is not there; fail if one is not whole."""
    found = []
    with h5py.File(path) as file:
        for name, of in (("a", A), ("more/b", np.zeros(3, "i4"))):
            whole = file[name][()] if name in file else None
            found.append(None if whole is None else whole.flat[0])
            assert whole is None or (whole - whole.flat[0] == of).all() or (name == "a" and not whole.any())
    return found


@pytest.mark.parametrize("name", ["a.h5", "b.h5", "c.nc"])
def test_what_others_wrote_stays(name, tmp_path):
    path = tmp_path / name
    of_others(path)
    for number in (1, 2):
        add(path, number, metadata={"run": number, "a": {"long_name": "field"}})
        is_kept(path)
        assert numbers_in(path) == [number, number]
        with h5py.File(path) as file:
            assert (file.attrs["run"], dict(file["a"].attrs)["long_name"]) == (number, "field")
    assert not journal_of(path).exists()


@pytest.mark.parametrize(
    "options",
    [
        {"compression": "gzip"},
        {"compression": ["shuffle", ("gzip", 9)], "chunks": {"a": (3, 4)}},
        {"chunks": {"a": (1, 10)}},
        {"compression": {"a": "shuffle"}},
        {"compression": "gzip", "chunks": {"a": (100, -1)}},
    ],
)
@pytest.mark.parametrize("seed", sampled(range(6), 2))
def test_chunks_in_any_layout(options, seed, tmp_path):
    path = tmp_path / "a.h5"

    def program():
        mesh = mesh_of_4()
        layout = of_kinds(Random(seed), random_layout(Random(seed), mesh, 2), A.shape)
        tree = {"a": mc.distribute(A, Layout(layout.axes, mesh)), "more": {"b": np.arange(3)}}
        mc.save(path, tree, max_scratch_bytes=[200, None][seed % 2], **options)
        return mc.load(path, {"a": Layout(["y", "x"], mesh)})["a"].to_numpy()

    found = on(4, program)
    assert (found[0] == A).all()
    with h5py.File(path) as file:
        assert (file["a"][()] == A).all()
        assert file["a"].chunks
        assert (file["more/b"][()] == np.arange(3)).all()


@pytest.mark.parametrize("codec", ["zstd", ["shuffle", ("zstd", 9)]])
def test_filters_of_a_plugin(codec, tmp_path):
    pytest.importorskip("hdf5plugin")  # blosc asks for the HDF5 of h5py, which netCDF4 hides once it is imported
    on(2, lambda: mc.save(tmp_path / "a.h5", tree_of(1), compression=codec, chunks={"a": (2, 10)}))
    with h5py.File(tmp_path / "a.h5") as file:
        assert (file["a"][()] == A + 1).all()
    assert (on(2, lambda: mc.load(tmp_path / "a.h5")["a"].to_numpy())[0] == A + 1).all()


@pytest.mark.parametrize("tool", ["ncdump", "h5ls", "h5diff"])
def test_tools_of_the_formats_read_what_is_written(tool, tmp_path):
    if shutil.which(tool) is None:
        pytest.skip(f"there is no {tool}")
    path, other = tmp_path / "a.nc", tmp_path / "other.h5"
    on(2, lambda: mc.save(path, tree_of(1), dims={"a": ["y", "x"]}, compression="gzip", metadata={"title": "a run"}))
    add(path, 2)
    with h5py.File(other, "w") as file:
        file["a"] = A + 2
    on(2, lambda: mc.save(tmp_path / "plain.h5", tree_of(2), compression="gzip"))
    commands = {
        "ncdump": [["ncdump", path]],
        "h5ls": [["h5ls", "-r", path]],
        "h5diff": [["h5diff", tmp_path / "plain.h5", other, "/a"]],
    }
    for command in commands[tool]:
        found = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        assert tool == "h5diff" or "a(y, x)" in found or "/a " in found
        assert tool != "ncdump" or 'title = "a run"' in found


def test_a_chunk_that_is_too_large(tmp_path):
    mesh = mc.create_mesh([("x", 1)])
    large = mc.DTensor(np.broadcast_to(np.zeros(1, "u1"), (2**32,)), Layout(["x"], mesh), (2**32,), np.dtype("u1"))
    with pytest.raises(mc.ShapeError, match="in HDF5 at most 4294967295"):
        mc.save(tmp_path / "a.h5", {"a": large}, chunks=(2**32,))
    assert not list(tmp_path.iterdir())


def test_each_rank_writes_what_it_has_compressed(tmp_path, monkeypatch):
    threads, encoded = [], chunked.encoded

    def counted(*its):
        threads.append(threading.current_thread())
        return encoded(*its)

    def program():
        t = mc.zeros((64, 64), float, Layout(["x", U], mesh_of_4()))
        mc.save(tmp_path / "a.h5", t, compression="gzip", chunks=(4, 64))

    monkeypatch.setattr(chunked, "encoded", counted)
    on(4, program)
    assert sorted(Counter(threads).values()) == [4, 4, 4, 4]  # each chunk once, in the thread of a simulated rank


# -- nothing is lost --------------------------------------------------------------------------------------------------


def refused(path, tree, says, **options):
    """Check that all ranks refuse a save with one error, and that the file is as before."""
    before = path.read_bytes()

    def program():
        mesh = mc.create_mesh([("x", 2)])
        with pytest.raises((OSError, mc.MeshcommError, ValueError, TypeError), match=says):
            mc.save(path, tree(mesh), **options)
        mc.barrier(mesh)

    on(2, program)
    assert path.read_bytes() == before
    assert not journal_of(path).exists()


def test_a_save_does_not_replace_what_others_wrote(tmp_path):
    path = tmp_path / "a.h5"
    of_others(path)
    refused(path, lambda mesh: tree_of(1, mesh), r"would lose: attribute 'title', dataset 'a' .*mode=\"a\" keeps it")
    on(2, lambda: mc.save(path, tree_of(1), overwrite=True))
    assert sorted(h5py.File(path)) == ["a", "more"]
    on(2, lambda: mc.save(path, tree_of(2)))  # it is ours now
    refused(path, lambda mesh: {"a": tree_of(1, mesh)["a"]}, "dataset 'more/b'")
    with h5py.File(path, "r+") as file:
        file["more"].attrs["author"] = "me"
    refused(path, lambda mesh: tree_of(1, mesh), "attribute 'author' of more")


@pytest.mark.parametrize(
    ("tree", "says"),
    [
        (lambda mesh: {"more": tree_of(1, mesh)["a"]}, "'more' is a group"),
        (lambda mesh: {"grid": {"x": tree_of(1, mesh)["a"]}}, "'grid' is an array"),
        (lambda mesh: {"link": tree_of(1, mesh)["a"]}, "'link' is a link"),
        (lambda mesh: {"x": mc.zeros(3, "M8[s]", Layout(["x"], mesh))}, "cannot hold"),
    ],
)
def test_what_cannot_be_added(tree, says, tmp_path):
    path = tmp_path / "a.h5"
    of_others(path)
    refused(path, tree, says, mode="a")


def test_a_file_that_is_open_elsewhere(tmp_path):
    path = tmp_path / "a.h5"
    of_others(path)
    with h5py.File(path, "r+"):
        refused(path, lambda mesh: tree_of(1, mesh), "open for writing", mode="a")
    with h5py.File(path, "r"):
        add(path, 1)  # readers do not hinder
    is_kept(path)


def test_no_hdf5_file(tmp_path):
    path = tmp_path / "a.h5"
    path.write_bytes(b"something else")
    refused(path, lambda mesh: tree_of(1, mesh), "damaged, or has another format", mode="a")
    refused(path, lambda mesh: tree_of(1, mesh), "would replace it; overwrite=True")


@pytest.mark.parametrize("suffix", [".nc", ".h5", ".zarr"])
def test_coordinates_are_added_to_axes_that_have_none(suffix, tmp_path):
    path = tmp_path / f"a{suffix}"

    def program():
        mesh = mc.create_mesh([("x", 2)])
        mc.save(path, {"a": mc.distribute(A, Layout(["x", U], mesh))}, dims=["lat", "lon"])
        lat = {"lat": np.arange(7.0), "lon": np.arange(10.0)}
        mc.save(path, lat, mode="a", dims={"lat": ["lat"], "lon": ["lon"]})
        return sorted(mc.load(path))

    assert on(2, program)[0] == ["a", "lat", "lon"]
    xarray = pytest.importorskip("xarray")
    how = {"engine": "zarr", "consolidated": False} if suffix == ".zarr" else {"engine": "h5netcdf"}
    with xarray.open_dataset(path, **how) as found:
        assert found.a.lat.values.tolist() == list(range(7))


def test_an_axis_of_another_length(tmp_path):
    for name in ("a.nc", "b.zarr"):
        on(2, lambda name=name: mc.save(tmp_path / name, {"a": A}, dims=["y", "x"]))

        def program(name=name):
            with pytest.raises(mc.ShapeError, match=r"the axis 'x' of 'b' has"):
                mc.save(tmp_path / name, {"b": np.zeros(3)}, mode="a", dims=["x"])

        on(2, program)


def test_an_array_of_another_shape_keeps_names_of_axes_that_fit(tmp_path):
    def program():
        mc.save(tmp_path / "a.nc", {"a": A}, dims=["y", "x"])
        mc.save(tmp_path / "a.nc", {"a": A[:5]}, mode="a")

    on(2, program)
    with mc.open(tmp_path / "a.nc") as file:
        assert file["a"].dims == ("axis_0_of_5", "x")


@pytest.mark.parametrize("key", ["DIMENSION_LIST", "_Netcdf4Coordinates", "CLASS"])
def test_attributes_that_libraries_keep_for_themselves(key, tmp_path):
    with pytest.raises(TypeError, match="keep the attribute"):
        mc.save(tmp_path / "a.nc", {"a": A}, metadata={"a": {key: "x"}})
    with h5py.File(tmp_path / "b.h5", "w") as file:
        file["a"] = A
        file["a"].attrs[key] = "x"
    assert (mc.load(tmp_path / "b.h5")["a"].to_numpy() == A).all()
    mc.save(tmp_path / "b.h5", {"a": A + 1}, mode="a", dims=["y", "x"])
    assert (mc.load(tmp_path / "b.h5")["a"].to_numpy() == A + 1).all()


@pytest.mark.parametrize(
    ("name", "options", "says"),
    [
        ("a.nc", {"metadata": {"a": {"m": np.eye(2)}}}, "one axis at most"),
        ("a.nc", {"metadata": {"uu": {"units": "m"}}}, "the metadata 'uu' are a dict.*the arrays are a"),
        ("a.h5", {"mode": "a", "overwrite": True}, "overwrite is for mode 'w'"),
        ("a.h5", {"mode": "b"}, "mode is 'w' or 'a'"),
        ("a.h5", {"compression": "rar"}, "compression is one of"),
        ("a.h5", {"chunks": (3,)}, "its chunks are"),
        ("a.h5", {"dims": ["x"]}, "but 1 dims"),
        ("a.npy", {"dims": ["y", "x"]}, "no names of axes"),
        ("a.npy", {"mode": "a"}, "nothing can be added"),
        ("a", {"compression": "gzip"}, "no compression"),
    ],
)
def test_options_that_do_not_fit(name, options, says, tmp_path):
    with pytest.raises((TypeError, ValueError), match=says):
        mc.save(tmp_path / name, {"a": A}, **options)
    assert not list(tmp_path.iterdir())


def test_classic_netcdf_is_not_changed(tmp_path):
    netcdf = pytest.importorskip("scipy.io").netcdf_file
    with netcdf(tmp_path / "a.nc", "w") as file:
        file.createDimension("x", 3)
        file.createVariable("v", "f8", ("x",))[:] = 1
    refused(tmp_path / "a.nc", lambda mesh: tree_of(1, mesh), "classic netCDF file", mode="a")


# -- series -----------------------------------------------------------------------------------------------------------

KINDS = {"shape": {"u": (7, 10), "w": (3,)}, "dtype": {"u": float, "w": "i4"}}


def appended(path, count, ranks=2, **options):
    """Append so many snapshots, which are numbered, to those that are there; return how many there are."""

    def program():
        mesh = mc.create_mesh([("x", ranks)])
        rows, columns = Layout(["x", U], mesh), Layout([U, "x"], mesh)
        with mc.Series(path, {"u": rows, "w": Layout(["x"], mesh)}, **KINDS, **options) as series:
            for number in range(len(series), len(series) + count):
                u = mc.distribute(A + number, columns)
                series.append(u=u, w=mc.full(3, number, "i4", Layout([U], mesh)), time=number / 2)
            for number in range(len(series)):
                found = series[number]
                assert (found["u"].to_numpy() == A + number).all()
                assert (found["w"].to_numpy() == number).all()
                assert found["time"] == number / 2
            return len(series)

    return on(ranks, program)[0]


OPTIONS = [{}, {"compression": "gzip"}, {"chunks": {"u": (3, 4)}}, {"dims": {"u": ("y", "x"), "w": ("z",)}}]


@pytest.mark.parametrize("suffix", [".h5", ".nc", ".zarr"])
@pytest.mark.parametrize("options", OPTIONS)
def test_a_series_goes_on_with_another_number_of_ranks(suffix, options, tmp_path):
    path = tmp_path / f"run{suffix}"
    assert appended(path, 3, 2, **options) == 3
    assert appended(path, 2, 3, **options) == 5
    assert appended(path, 1, 1, **options) == 6
    file = zarr.open(path, mode="r") if suffix == ".zarr" else h5py.File(path)
    assert file["u"].shape == (6, 7, 10)
    assert (file["u"][4] == A + 4).all()
    assert file["time"][:].tolist() == [0, 0.5, 1, 1.5, 2, 2.5]


@pytest.mark.parametrize("suffix", [".h5", ".zarr"])
def test_a_series_beside_what_is_there(suffix, tmp_path):
    path = tmp_path / f"run{suffix}"
    on(2, lambda: mc.save(path, tree_of(1)))
    assert appended(path, 2) == 2
    assert appended(path, 1) == 3
    with mc.open(path) as file:
        assert (file["a"][:] == A + 1).all()


def test_many_small_snapshots_share_chunks(tmp_path):
    def program():
        mesh = mc.create_mesh([("x", 2)])
        with mc.Series(tmp_path / "a.h5", {"w": Layout(["x"], mesh)}, shape=(3,), dtype="i4") as series:
            for number in range(400):
                series.append(w=mc.full(3, number, "i4", Layout(["x"], mesh)))
        return (mc.load(tmp_path / "a.h5", Layout(["x", U], mesh), names=["w"])["w"].to_numpy()).tolist()

    assert on(2, program)[0] == [[n] * 3 for n in range(400)]
    assert (tmp_path / "a.h5").stat().st_size < 60_000


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"shape": {"u": (7, 11), "w": (3,)}}, "snapshots are"),
        ({"dtype": {"u": "f4", "w": "i4"}}, "float64, not float32"),
        ({"shape": {"u": (7, 10)}}, "shape has nothing for 'w'"),
        ({"axis": "u"}, "cannot be that of a tensor"),
        ({"axis": "t"}, "snapshots are along 'time', not 't'"),
    ],
)
def test_another_series(change, says, tmp_path):
    appended(tmp_path / "a.h5", 2)
    before = (tmp_path / "a.h5").read_bytes()

    def program():
        mesh = mc.create_mesh([("x", 2)])
        with pytest.raises((ValueError, mc.MeshcommError), match=says):
            mc.Series(
                tmp_path / "a.h5", {"u": Layout(["x", U], mesh), "w": Layout(["x"], mesh)}, **{**KINDS, **change}
            )

    on(2, program)
    assert (tmp_path / "a.h5").read_bytes() == before


@pytest.mark.parametrize("suffix", [".h5", ".nc", ".zarr"])
@pytest.mark.parametrize(
    ("held", "wanted", "count", "says"),
    [
        ("uw", "w", 2, "has 'u' along 'time', too: the series needs it"),
        ("u", "uw", 2, "has no 'w', but other arrays of this series"),
        ("u", "uw", 1, None),  # as if the job was killed as it added the first snapshot
    ],
)
def test_a_series_has_the_names_that_it_had(held, wanted, count, says, suffix, tmp_path):
    path = tmp_path / f"run{suffix}"

    def series_of(names):
        mesh = mc.create_mesh([("x", 2)])
        layouts = {"u": Layout(["x", U], mesh), "w": Layout(["x"], mesh)}
        tensors = {"u": mc.zeros((7, 10), float, layouts["u"]), "w": mc.zeros(3, "i4", layouts["w"])}
        pick = lambda given: {name: given[name] for name in names}  # noqa: E731
        return mc.Series(path, pick(layouts), **{key: pick(given) for key, given in KINDS.items()}), pick(tensors)

    def program():
        series, tensors = series_of(held)
        for number in range(count):
            series.append(**tensors, time=number / 2)
        if says is None:
            return len(series_of(wanted)[0])
        with pytest.raises(mc.CheckpointError, match=says):
            series_of(wanted)
        return len(series)

    assert on(2, program) == [0 if says is None else count] * 2


@pytest.mark.parametrize("late", ["u", "time"])
def test_a_snapshot_counts_when_all_of_it_is_there(late, tmp_path):
    """A job that is killed may have added some arrays of a snapshot to a zarr, but not all."""
    path = tmp_path / "run.zarr"
    assert appended(path, 2) == 2
    for name in {"u", "w", "time"} - {late}:
        array = zarr.open(path)[name]
        array.resize((3, *array.shape[1:]))
    assert appended(path, 0) == 2
    assert appended(path, 2) == 4


@pytest.mark.parametrize("suffix", [".h5", ".nc", ".zarr"])
def test_snapshots_without_elements_and_times_that_begin_with_0(suffix, tmp_path):
    def program():
        line = Layout(["x"], mc.create_mesh([("x", 2)]))
        with mc.Series(tmp_path / f"a{suffix}", {"e": line}, shape=(0,), dtype=float) as series:
            for time in (0, 0.5):
                series.append(e=mc.zeros(0, float, line), time=time, step=3)
            return len(series), series[-1]["time"], series[-1]["step"], series[0]["e"].shape

    assert on(2, program)[0] == (2, 0.5, 3, (0,))


@pytest.mark.parametrize(
    ("values", "says"),
    [
        (lambda u, w: {"u": u}, "needs 'w'"),
        (lambda u, w: {"u": u, "w": w}, "needs 'time', too"),
        (lambda u, w: {"u": u, "w": w, "time": 1, "more": 2}, "has no 'more'"),
        (lambda u, w: {"u": w, "w": w, "time": 1}, "has the shape"),
        (lambda u, w: {"u": u, "w": w.astype("f4"), "time": 1}, "snapshots are int32"),
        (lambda u, w: {"u": u, "w": w, "time": [1, 2]}, "numbers, not"),
        (lambda u, w: {"u": 5, "w": w, "time": 1}, "is a tensor, not 5"),
    ],
)
def test_another_snapshot(values, says, tmp_path):
    appended(tmp_path / "a.h5", 2)
    before = (tmp_path / "a.h5").read_bytes()

    def program():
        mesh = mc.create_mesh([("x", 2)])
        rows, line = Layout(["x", U], mesh), Layout(["x"], mesh)
        series = mc.Series(tmp_path / "a.h5", {"u": rows, "w": line}, **KINDS)
        with pytest.raises((TypeError, ValueError, mc.MeshcommError), match=says):
            series.append(**values(mc.zeros((7, 10), float, rows), mc.zeros(3, "i4", line)))
        series.close()
        with pytest.raises(ValueError, match="is closed"):
            series[0]

    on(2, program)
    assert (tmp_path / "a.h5").read_bytes() == before


# -- processes that die -----------------------------------------------------------------------------------------------


def kills(program, count):
    calls = calls_of(program)
    every = [(at, when) for at, call in enumerate(calls) for when in WHEN if when != "half" or call.name == "pwrite"]
    return sampled(every, count)


@pytest.mark.parametrize("name", ["a.h5", "b.h5"])  # one in the oldest format of HDF5, one in the newest
def test_a_process_dies_as_it_adds(name, tmp_path):
    path = tmp_path / name
    of_others(path)
    add(path, 1)
    copy = tmp_path / f"copy-{name}"
    shutil.copy(path, copy)
    for at, when in kills(lambda: add(copy, 2), 40):
        shutil.copy(path, copy)
        killed(lambda: add(copy, 2), at, when)
        numbers_in(copy)  # h5py reads the file also before meshcomm has opened it
        is_kept(copy)
        mc.open(copy).close()
        is_kept(copy)
        assert numbers_in(copy) in ([1, 1], [2, 2])
        add(copy, 3)
        assert not journal_of(copy).exists()
        is_kept(copy)
        assert numbers_in(copy) == [3, 3]


@pytest.mark.parametrize(
    ("suffix", "options"), [(".nc", {}), (".nc", {"compression": "gzip"}), (".zarr", {}), (".zarr", OPTIONS[1])]
)
def test_a_process_dies_as_it_appends(suffix, options, tmp_path):
    path, copy = tmp_path / f"a{suffix}", tmp_path / f"b{suffix}"

    def restore():
        if copy.is_dir():
            shutil.rmtree(copy)
        (shutil.copytree if path.is_dir() else shutil.copy)(path, copy)

    appended(path, 2, **options)
    restore()
    for at, when in kills(lambda: appended(copy, 1, **options), 30):
        restore()
        killed(lambda: appended(copy, 1, **options), at, when)
        assert appended(copy, 0, **options) in (2, 3)
        assert appended(copy, 1, **options) in (3, 4)


@pytest.mark.parametrize("number", sampled(range(24), 6))
def test_an_error_of_the_disk_leaves_the_file(number, tmp_path):
    path = tmp_path / "a.h5"
    of_others(path)
    add(path, 1)
    copy = tmp_path / "copy.h5"
    shutil.copy(path, copy)
    calls = calls_of(lambda: add(copy, 2))
    at = [n for n, call in enumerate(calls) if call.name in ("pwrite", "fsync", "ftruncate", "_allocate")]
    shutil.copy(path, copy)

    def program():
        try:
            mc.save(copy, tree_of(2), mode="a")
        except OSError:
            return "failed"
        return "done"

    with failing(at[number % len(at)], 28):
        found = on(2, program)
    assert found[0] == found[1]
    mc.open(copy).close()
    is_kept(copy)
    assert numbers_in(copy) in ([1, 1], [2, 2])
    add(copy, 3)
    assert numbers_in(copy) == [3, 3]
