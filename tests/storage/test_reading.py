"""Files that other libraries write: all their arrays, attributes and names of axes come back, or are named."""

import warnings
import zipfile

import numpy as np
import pytest

import meshcomm as mc
from meshcomm import Cyclic, Layout
from meshcomm.tools.cli.main import main
from support.reference import same_bits
from support.saved import same
from support.tensors import on

U = mc.UNSHARDED
A = np.arange(5 * 6 * 7, dtype="f4").reshape(5, 6, 7)


def same_array(found, expected):
    assert same_bits(np.asarray(found), np.asarray(expected)), (found, expected)


def loaded(path, ranks=3, **options):
    """Return the arrays that some ranks load in other layouts, as NumPy's."""

    def program():
        mesh = mc.create_mesh([("x", ranks)])
        layouts = {
            name: Layout(["x", *[U] * (array.ndim - 1)] if array.ndim else [], mesh) for name, array in its.items()
        }
        found = mc.load(path, layouts, **options)
        found = found if isinstance(found, dict) else {"array": found}
        return {name: tensor.to_numpy() for name, tensor in found.items()}

    with mc.open(path) as file:
        its = {name: file[name] for name in file.names}
        for each in its.values():
            assert each[...].dtype == each.dtype
    return on(ranks, program)[0]


@pytest.mark.parametrize("suffix", [".h5", ".HDF5", ".he5", ".hdf", ".H5", ".nc4"])
def test_the_suffixes_of_hdf5(suffix, tmp_path):
    h5py, path = pytest.importorskip("h5py"), tmp_path / f"a{suffix}"
    with h5py.File(path, "w") as file:
        file.create_dataset("a", data=A, chunks=(2, 3, 7))
        file["b"] = A
    found = loaded(path)
    same_array(found["a"], A)
    same_array(found["b"], A)


@pytest.mark.parametrize("name", ["a.NPY", "a.ZARR", "a.NPZ", "a.Safetensors"])
def test_capitals(name, tmp_path):
    pytest.importorskip("zarr")
    on(2, lambda: mc.save(tmp_path / name, {"array": A}))
    same_array(loaded(tmp_path / name)["array"], A)


def test_hdf4(tmp_path):
    (tmp_path / "a.hdf").write_bytes(b"\x0e\x03\x13\x01" + bytes(100))
    with pytest.raises(mc.CheckpointError, match="is an HDF4 file"):
        mc.open(tmp_path / "a.hdf")


# -- HDF5 -------------------------------------------------------------------------------------------------------------


def test_links_of_hdf5(tmp_path):
    h5py, path = pytest.importorskip("h5py"), tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        file["g/a"] = A
        file["hard"], file["soft"] = file["g/a"], h5py.SoftLink("/g/a")
        file["external"] = h5py.ExternalLink("b.h5", "/a")
        file["h"], file["g/above"], file["g/own"] = file["g"], file["/"], file["g"]
    found = loaded(path)
    assert sorted(found) == ["g/a", "h/a", "hard"]
    for each in found.values():
        same_array(each, A)
    for name, where in (("soft", "'/g/a'"), ("external", "'/a' of 'b.h5'")):
        for ranks in (1, 2, 3):
            with mc.simulate(ranks) as world, pytest.raises(mc.CheckpointError, match=f"it is a link, to {where}"):
                world.run(lambda name=name: mc.load(path, names=[name]))
        with pytest.raises(KeyError, match="it is a link"):
            mc.open(path)[name]


def test_what_cannot_be_loaded_is_named(tmp_path):
    h5py, path = pytest.importorskip("h5py"), tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        file["a"], file["text"], file["type"] = A, "a text", np.dtype("f8")
        file["texts"], file["none"] = ["a", "bcd"], h5py.Empty("f4")
        file["refs"] = np.array([file["a"].ref], h5py.ref_dtype)
        file.create_dataset("ragged", (2,), h5py.vlen_dtype("i4"))
        file.create_dataset("external", (1,), "f8", external=[("b", 0, 8)])
        file["fixed"] = np.array([b"a", b"bc"])
    left_out = {"text", "type", "texts", "none", "refs", "ragged", "external"}
    with mc.open(path) as file:
        assert set(file.left_out) == left_out
        assert sorted(file.names) == ["a", "fixed"]
        with pytest.raises(KeyError, match="has 'refs', but it holds references"):
            file["refs"]
    with pytest.warns(UserWarning, match="left out") as caught:
        assert sorted(loaded(path)) == ["a", "fixed"]
    (text,) = [str(each.message) for each in caught]
    assert all(f"'{name}' (it" in text for name in left_out)
    with pytest.raises(mc.CheckpointError, match="'ragged' cannot be loaded: its elements have different sizes"):
        on(2, lambda: mc.load(path, names=["ragged"]))
    assert set(on(2, lambda: mc.load(path, names=["a"]))[1]) == {"a"}  # without a warning


ATTRIBUTES = {
    "text": "höhe",
    "number": 3,
    "real": 0.5,
    "nan": np.nan,
    "flag": True,
    "list": np.arange(3.0),
    "complex": 1 + 2j,
    "integers": np.array([[1, 2], [3, 4]], "i2"),
}


def same_values(found, expected):
    assert sorted(found) == sorted(expected)
    for key, value in expected.items():
        assert type(found[key]) is type(value), key
        np.testing.assert_array_equal(found[key], value)
        assert np.asarray(found[key]).dtype == np.asarray(value).dtype


def test_attributes_of_hdf5(tmp_path):
    h5py, path = pytest.importorskip("h5py"), tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        file["g/u"], file["plain"] = A, A
        for each in (file, file["g/u"]):
            each.attrs.update(ATTRIBUTES)
            each.attrs["bytes"], each.attrs["texts"] = np.bytes_(b"abc"), ["a", "bc"]
            each.attrs["empty"], each.attrs["one"] = h5py.Empty("S1"), np.array([5])
        for axis, name in enumerate("zyx"):
            file["plain"].dims[axis].label = name
    expected = {**ATTRIBUTES, "bytes": "abc", "texts": np.array(["a", "bc"]), "empty": "", "one": np.array([5])}
    with mc.open(path) as file:
        same_values(file.metadata, expected)
        same_values(file["g/u"].metadata, expected)
        assert file["g/u"].dims is None
        assert (file["plain"].metadata, file["plain"].dims) == ({}, ("z", "y", "x"))


def write_netcdf4(path):
    with pytest.importorskip("netCDF4").Dataset(path, "w") as file:
        file.title = "waves"
        for name, n in zip("tyx", (None, 6, 7), strict=True):
            file.createDimension(name, n)
        u = file.createVariable("u", "f4", ("t", "y", "x"), chunksizes=(1, 3, 7), compression="zlib", fill_value=-9.0)
        u.units, u.valid_range, u.scale_factor = "m/s", np.array([0.0, 9.0], "f4"), 1.0
        u.set_auto_maskandscale(False)
        u[:] = A
        y = file.createVariable("y", "f8", ("y",))
        y[:] = np.arange(6.0)
        file.createVariable("names", str, ("y",))
        file.createGroup("g").createVariable("v", "i4", ("y", "x"))[:] = A[0].astype("i4")


def write_h5netcdf(path):
    with pytest.importorskip("h5netcdf").File(path, "w") as file:
        file.attrs["title"] = "waves"
        file.dimensions = {"t": 5, "y": 6, "x": 7}
        u = file.create_variable("u", ("t", "y", "x"), data=A, chunks=(1, 3, 7), compression="gzip", fillvalue=-9.0)
        u.attrs.update({"units": "m/s", "valid_range": np.array([0.0, 9.0], "f4"), "scale_factor": 1.0})
        file.create_variable("y", ("y",), data=np.arange(6.0))
        file.create_variable("names", ("y",), dtype=pytest.importorskip("h5py").string_dtype())
        file.create_variable("/g/v", ("y", "x"), data=A[0].astype("i4"))


@pytest.mark.parametrize("write", [write_netcdf4, write_h5netcdf])
def test_netcdf4(write, tmp_path):
    path = tmp_path / "a.nc"
    write(path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of names
        found = loaded(path)
    assert sorted(found) == ["g/v", "u", "y"]
    for name, expected in (("u", A), ("y", np.arange(6.0)), ("g/v", A[0].astype("i4"))):
        same_array(found[name], expected)
    with mc.open(path) as file:
        assert list(file.left_out) == ["names"]
        assert file.metadata == {"title": "waves"}
        assert file["u"].dims == ("t", "y", "x")
        assert file["g/v"].dims == ("y", "x")
        assert file["y"].dims == ("y",)
        expected = {"units": "m/s", "valid_range": np.array([0.0, 9.0], "f4"), "scale_factor": 1.0, "_FillValue": -9.0}
        same_values(file["u"].metadata, expected)


def test_a_chunk_is_read_by_one_rank_once(tmp_path, selections):
    h5py, path, n = pytest.importorskip("h5py"), tmp_path / "a.h5", 4
    with h5py.File(path, "w") as file:
        file.create_dataset("array", data=A[:, :, :6], chunks=(1, 2, 2), compression="gzip")

    def program(index, specs, limit):
        same(mc.load(path, Layout(specs, mc.create_mesh([("x", n)])), slices=index, max_scratch_bytes=limit), expected)

    for index in (np.s_[3], np.s_[3, ::-1], np.s_[3, 1:5, None], np.s_[4:0:-2, :, 3:]):
        for limit in (None, 16):
            expected = A[:, :, :6][index]
            selections.clear()
            on(n, program, index, [U, "x", *[U] * (expected.ndim - 2)], limit)
            touched = [box for chosen, _ in selections for box in chunks_of(chosen, (1, 2, 2))]
            assert len(touched) == len(set(touched))
            assert limit is not None or len(selections) == 3


def chunks_of(chosen, lengths):
    its = [axis for axis in range(len(chosen.box)) if axis not in chosen.new]
    ranges = [
        sorted({(chosen.start[axis] + k * chosen.step[axis]) // n for k in range(chosen.box[axis])})
        for axis, n in zip(its, lengths, strict=True)
    ]
    return [tuple(each) for each in np.stack(np.meshgrid(*ranges), -1).reshape(-1, 3).tolist()]


# -- classic netCDF ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("records", [(), ("a",), ("a", "b", "c")], ids=len)
def test_classic_netcdf(version, records, tmp_path):
    scipy, path = pytest.importorskip("scipy.io"), tmp_path / "a.nc"
    arrays = {"a": A.astype("i2"), "b": A[:, :3, 0].astype("f8"), "c": A[:, 0, :5].astype("i1"), "whole": A}
    with scipy.netcdf_file(path, "w", version=version) as file:
        file.title, file.numbers = "waves", np.arange(3, dtype="f8")
        file.createDimension("t", None)
        for name, array in arrays.items():
            dims = [f"{name}{axis}" for axis in range(array.ndim)]
            for axis, n in enumerate(array.shape):
                file.createDimension(dims[axis], n)
            dims = ["t", *dims[1:]] if name in records else dims
            made = file.createVariable(name, array.dtype, dims)
            made[:] = array
            made.units, made.level = "m/s", np.float32(0.5)
        if not records:  # SciPy gives it the place of a record
            file.createVariable("scalar", "i4", ())[...] = 7
    found = loaded(path)
    assert int(found.pop("scalar", 7)) == 7
    assert sorted(found) == sorted(arrays)
    for name, array in arrays.items():
        same_array(found[name], array.astype(array.dtype.newbyteorder(">")))
    with mc.open(path) as file:
        same_values(file.metadata, {"title": "waves", "numbers": np.arange(3.0)})
        same_values(file["a"].metadata, {"units": "m/s", "level": 0.5})
        assert file["a"].dims == ("t" if "a" in records else "a0", "a1", "a2")
        same_array(file["a"][::-2, 1, 2:4], arrays["a"][::-2, 1, 2:4].astype(">i2"))


def test_netcdf_with_counts_of_64_bits(tmp_path):
    path = tmp_path / "a.nc"
    with pytest.importorskip("netCDF4").Dataset(path, "w", format="NETCDF3_64BIT_DATA") as file:
        file.createDimension("t", None)
        file.createDimension("x", 7)
        for name in "uv":
            file.createVariable(name, "u8", ("t", "x"))[:] = A[:, 0].astype("u8")
        file.big = np.uint64(2**63)
    assert path.read_bytes()[:4] == b"CDF\x05"
    for each in loaded(path).values():
        same_array(each, A[:, 0].astype(">u8"))
    assert mc.open(path).metadata == {"big": 2**63}


def test_a_damaged_classic_file(tmp_path):
    scipy, path = pytest.importorskip("scipy.io"), tmp_path / "a.nc"
    with scipy.netcdf_file(path, "w") as file:
        file.createDimension("x", 7)
        file.createVariable("a", "f4", ("x",))[:] = A[0, 0]
    data = path.read_bytes()
    for size in range(3, len(data)):
        path.write_bytes(data[:size])
        with pytest.raises(mc.CheckpointError):
            mc.open(path)
    for at in range(4, len(data) - 28):
        path.write_bytes(data[:at] + bytes([data[at] ^ 0x81]) + data[at + 1 :])
        try:
            with mc.open(path) as file:
                [file[name][...] for name in file.names]
        except mc.CheckpointError:
            pass


# -- zarr -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [2, 3])
def test_attributes_of_zarr(version, tmp_path):
    xarray, path = pytest.importorskip("xarray"), tmp_path / "a.zarr"
    pytest.importorskip("zarr")
    data = xarray.Dataset({"u": (("t", "y", "x"), A, {"units": "m/s", "numbers": [1, 2]})}, attrs={"title": "waves"})
    data.to_zarr(path, zarr_format=version, consolidated=False)
    same_array(loaded(path)["u"], A)
    with mc.open(path) as file:
        assert file.metadata == {"title": "waves"}
        found = file["u"].metadata
        assert (found["units"], found["numbers"], file["u"].dims) == ("m/s", [1, 2], ("t", "y", "x"))
        assert "_ARRAY_DIMENSIONS" not in found


# -- npz --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_npz(save, tmp_path):
    path, arrays = (
        tmp_path / "a.npz",
        {"a": A, "f": np.asfortranarray(A), "x/y": A[0, 0] > 3, "s": np.array(7), "e": A[:0]},
    )
    save(path, **arrays)
    found = loaded(path)
    assert sorted(found) == sorted(arrays)
    for name, array in arrays.items():
        same_array(found[name], array)
    with mc.open(path) as file:
        for name in "af":
            for index in (np.s_[::2, 1], np.s_[4:0:-3, :, ::-2], np.s_[..., 5:1:-1]):
                same_array(file[name][index], A[index])

    def program():
        layout = Layout(["x", U, Cyclic("y", 2)], mc.create_mesh([("x", 2), ("y", 2)]))
        for name in "af":
            t = mc.load(path, names=[name], layout=layout, slices=np.s_[1:, ::-2], max_scratch_bytes=128)[name]
            same(t, A[1:, ::-2])

    on(4, program)


def test_npz_with_objects_and_other_members(tmp_path):
    path = tmp_path / "a.npz"
    np.savez(path, a=A, o=np.array([{}]))
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("notes.txt", "text")
    with pytest.warns(UserWarning, match=r"'o' .*Python objects.*'notes.txt' .*left out"):
        assert list(loaded(path)) == ["a"]
    with pytest.raises(mc.CheckpointError, match="could run any code"):
        on(1, lambda: mc.load(path, names=["o"]))


def test_a_damaged_npz(tmp_path):
    path = tmp_path / "a.npz"
    np.savez_compressed(path, a=np.arange(3000))
    data = path.read_bytes()
    for at in range(0, len(data), 11):
        path.write_bytes(data[:at] + bytes([data[at] ^ 0x81]) + data[at + 1 :])
        try:
            with mc.open(path) as file:
                found = [file[name][...] for name in file.names]
            assert all((each == np.arange(3000)).all() for each in found)
        except mc.CheckpointError:
            pass


def test_npz_is_written(tmp_path):
    path = tmp_path / "a.npz"
    tree = {"höhe": A, "b": {"c": np.arange(2**15), "d": np.float32(2)}, "empty": A[:0], "big": A.astype(">f8")}

    def program():
        layout = Layout([U, ("x", "y"), U], mc.create_mesh([("x", 2), ("y", 2)]))
        mc.save(
            path,
            {
                **tree,
                "shared": mc.distribute(A, layout),
                "cyclic": mc.distribute(A, Layout([U, U, Cyclic("x", 1)], layout.mesh)),
            },
        )

    on(4, program)
    expected = {"höhe": A, "b.c": np.arange(2**15), "b.d": np.float32(2), "empty": A[:0], "shared": A, "cyclic": A}
    expected["big"] = A.astype(">f8")
    with zipfile.ZipFile(path) as archive:
        assert archive.testzip() is None
    with np.load(path) as found:
        assert sorted(found) == sorted(expected)
        for name, array in expected.items():
            same_array(found[name], array)
    for name, array in loaded(path).items():
        same_array(array, expected[name])
    on(4, program)  # ours: it is replaced
    with pytest.raises(TypeError, match="no metadata"):
        on(1, lambda: mc.save(tmp_path / "b.npz", A, metadata={"a": 1}))
    with pytest.raises(TypeError, match="holds arrays only"):
        on(1, lambda: mc.save(tmp_path / "b.npz", {"a": 1}))
    np.savez(path, a=A)
    with pytest.raises(FileExistsError, match="what this save would lose"):
        on(1, lambda: mc.save(path, {"a": A}))


# -- decode -----------------------------------------------------------------------------------------------------------

F4, F8, I2 = np.float32, np.float64, np.int16
CODINGS = [
    ("i2", {"_FillValue": I2(-1)}),
    ("i2", {"_FillValue": I2(-1), "scale_factor": F4(0.1)}),
    ("i2", {"scale_factor": F8(0.1)}),
    ("i2", {"scale_factor": F4(0.1), "add_offset": F4(3)}),
    ("i2", {"scale_factor": F4(0.1), "add_offset": F8(3)}),
    ("i2", {"add_offset": F4(3)}),
    ("i4", {"scale_factor": F4(0.1), "add_offset": F4(3)}),
    ("i4", {"_FillValue": np.int32(7)}),
    ("i8", {"missing_value": np.int64(7)}),
    ("i1", {"_FillValue": np.int8(-1), "_Unsigned": "true"}),
    ("i1", {"_FillValue": np.int8(-1), "_Unsigned": "true", "scale_factor": F4(0.5)}),
    ("i2", {"_Unsigned": "true"}),
    ("u2", {"_Unsigned": "false"}),
    ("f4", {"_FillValue": F4(7)}),
    ("f4", {"_FillValue": F4(np.nan)}),
    ("f4", {"missing_value": F4(7), "_FillValue": F4(7), "scale_factor": F8(2)}),
    ("f8", {"missing_value": F8(7)}),
    ("i2", {"units": "m", "valid_range": np.array([0, 3], "i2")}),
]


@pytest.mark.parametrize(("dtype", "attributes"), CODINGS, ids=str)
def test_decode_as_xarray_does(dtype, attributes, tmp_path):
    xarray, h5py = pytest.importorskip("xarray"), pytest.importorskip("h5py")
    whole = (np.arange(-20, 22 * 6).reshape(19, 8) % 120).astype(dtype)
    whole[3:5] = np.array(-1).astype(dtype)
    long = np.tile(whole, (60, 1))
    raw = xarray.Dataset({"u": (("y", "x"), whole, attributes), "long": (("y2", "x"), long, attributes)})
    expected = xarray.decode_cf(raw)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["u"], file["long"] = whole, long
        file.create_dataset("chunks", data=whole, chunks=(4, 4))
        for name in file:
            file[name].attrs.update(attributes)

    def program():
        mesh = mc.create_mesh([("x", 3)])
        out = None
        for layout in (Layout(["x", U], mesh), Layout([U, "x"], mesh)):
            found = mc.load(tmp_path / "a.h5", layout, decode=True, slices=np.s_[::-1], max_scratch_bytes=2**11)
            assert found["u"].dtype == found["chunks"].dtype == expected["u"].dtype
            same(found["u"], expected["u"].values[::-1])
            same(found["chunks"], expected["u"].values[::-1])
            same(found["long"], expected["long"].values[::-1])
            out = mc.load(tmp_path / "a.h5", out={"chunks": found["chunks"]}, decode=True)["chunks"]
            same(out, expected["u"].values)
            same(mc.load(tmp_path / "a.h5", layout, names=["u"])["u"], whole)
            as_f8 = mc.load(tmp_path / "a.h5", layout, names=["u"], decode=True, dtype="f8")["u"]
            same(as_f8, expected["u"].values.astype("f8"))

    on(3, program)


@pytest.mark.parametrize("version", [2, 3])
def test_decode_zarr(version, tmp_path):
    xarray, path = pytest.importorskip("xarray"), tmp_path / "a.zarr"
    pytest.importorskip("zarr")
    values = np.where(A > 200, np.nan, A).astype("f4")
    how = {"u": {"dtype": "i2", "scale_factor": 0.5, "_FillValue": -1}, "v": {"_FillValue": 9.0}}
    data = xarray.Dataset({"u": (("t", "y", "x"), values), "v": (("t", "y", "x"), values)})
    data.to_zarr(path, zarr_format=version, consolidated=False, encoding=how)
    found, expected = loaded(path, decode=True), xarray.open_zarr(path, consolidated=False)
    for name in "uv":
        same_array(found[name], expected[name].values)
    assert mc.open(path)["v"].metadata["_FillValue"] == 9.0


def test_decode_classic_netcdf(tmp_path):
    xarray, path = pytest.importorskip("xarray"), tmp_path / "a.nc"
    pytest.importorskip("scipy")
    encoding = {"u": {"dtype": "i2", "scale_factor": F4(0.5), "_FillValue": I2(-1)}}
    values = np.where(A > 200, np.nan, A)
    xarray.Dataset({"u": (("t", "y", "x"), values)}).to_netcdf(path, engine="scipy", encoding=encoding)
    same_array(loaded(path, decode=True)["u"], xarray.open_dataset(path)["u"].values)


# -- convert and ls ---------------------------------------------------------------------------------------------------


def test_convert_says_what_is_left_out(tmp_path, capsys):
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["a"], file["text"] = A, "a text"
        file.attrs["range"], file["a"].attrs["units"] = np.array([0.0, np.inf]), "m"
    assert main(["ls", str(tmp_path / "a.h5")]) == 0
    assert "left out text: it holds texts of any length" in capsys.readouterr().out
    for suffix, metadata in (("", {"range": [0.0, "inf"]}), (".safetensors", {"range": '[0.0, "inf"]'}), (".npz", {})):
        assert main(["convert", str(tmp_path / "a.h5"), str(tmp_path / f"b{suffix}")]) == 0
        message = capsys.readouterr().err
        assert "does not hold 'text' and " in message
        assert "the attributes of arrays" in message
        with mc.open(tmp_path / f"b{suffix}") as file:
            assert file.metadata == metadata
            same_array(file["a"][...], A)
    assert main(["convert", str(tmp_path / "b"), str(tmp_path / "c.npz")]) == 0
    same_array(np.load(tmp_path / "c.npz")["a"], A)
