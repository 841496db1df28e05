"""The commands for files: ls, verify and convert."""

import sys
from itertools import product
from subprocess import run

import numpy as np
import pytest

import meshcomm as mc
from meshcomm import Layout
from meshcomm.storage import convert
from meshcomm.tools.cli.main import main
from support.sampling import sampled
from support.saved import SUFFIXES, damage, mesh_of_4, on, same

BIG = np.arange(300 * 120, dtype="f8").reshape(300, 120)
SMALL = np.arange(12, dtype="<i4").reshape(3, 4)


def save(path, tree=None, **options):
    def program():
        rows = Layout(["x", "y"], mesh_of_4())
        usual = {"w": mc.distribute(BIG, rows), "b": mc.distribute(SMALL, rows)}
        mc.save(path, usual if tree is None else tree, **options)

    on(4, program)
    return path


@pytest.fixture
def said(capsys):
    """Return a function that runs a command, which ends with *code*, and returns the lines and the errors of it."""

    def run_command(code, *arguments):
        assert main([*map(str, arguments)]) == code
        found = capsys.readouterr()
        return found.out.splitlines(), found.err.splitlines()

    return run_command


def test_ls(tmp_path, said):
    path = save(tmp_path / "c", metadata={"by": "me"})
    assert said(0, "ls", path)[0] == [
        "name  shape       dtype    bytes      layout",
        "w     (300, 120)  float64  281.2 KiB  [x, y] on x=2, y=2",
        "b     (3, 4)      int32    48 B       [x, y] on x=2, y=2",
        "2 arrays, 281.3 KiB",
        "metadata by: me",
    ]
    assert said(0, "ls", save(tmp_path / "t.safetensors"))[0][1] == "w     (300, 120)  float64  281.2 KiB"


def test_ls_of_steps(tmp_path, said):
    for step in (1, 2, 3):
        save(tmp_path / f"step-{step:09d}")
    (tmp_path / "step-000000002" / "manifest.json").unlink()
    (tmp_path / "step-000000003" / "manifest.json").write_text("{}")
    out = said(0, "ls", tmp_path)[0]
    assert out[1] == "1     2       281.3 KiB"
    assert out[2].endswith("not complete")
    assert out[3].endswith("manifest.json is damaged: its checksum is wrong")


@pytest.mark.parametrize("command", ["ls", "verify"])
def test_what_cannot_be_read(command, tmp_path, said):
    (tmp_path / "a.npy").write_text("no array")
    for name, why in (("none", "No such file or checkpoint"), ("a.npy", "a.npy"), (".", "is no checkpoint")):
        out, (error,) = said(1, command, tmp_path / name)
        assert out == []
        assert error.startswith("meshcomm: ")
        assert why in error


def test_several_paths(tmp_path, said):
    first, second = save(tmp_path / "first"), save(tmp_path / "second")
    assert said(0, "verify", first, second)[0] == [
        f"{first}:",
        "ok: 2 arrays, 281.3 KiB",
        f"{second}:",
        "ok: 2 arrays, 281.3 KiB",
    ]
    damage(first)
    out, (error,) = said(1, "verify", first, tmp_path / "none", second)
    assert "is damaged" in out[1]
    assert out[-1] == "ok: 2 arrays, 281.3 KiB"
    assert "No such file or checkpoint" in error


def test_verify(tmp_path, said):
    path = save(tmp_path / "c")
    assert said(0, "verify", path)[0] == ["ok: 2 arrays, 281.3 KiB"]
    damage(path)
    (out,) = said(1, "verify", path)[0]
    assert "is damaged between bytes 0 and 294912: array 'w', 'b'" in out
    assert said(0, "verify", save(tmp_path / "t.npy", SMALL))[0] == [
        "ok: 1 array, 48 B; the format has no checksums, so only its structure was looked at"
    ]


def test_verify_steps(tmp_path, said):
    for step in (1, 2, 3):
        save(tmp_path / f"step-{step:09d}")
    (tmp_path / "step-000000002" / "manifest.json").unlink()
    out = said(0, "verify", tmp_path)[0]
    assert out[0] == "step-000000001: ok: 2 arrays, 281.3 KiB"
    assert out[1] == "step-000000002: not complete, its save was cut off; the next save removes it"
    damage(tmp_path / "step-000000001")
    (tmp_path / "step-000000003" / "manifest.json").write_text("{}")
    out = said(1, "verify", tmp_path)[0]
    assert "is damaged between bytes" in out[0]
    assert "its checksum is wrong" in out[2]


@pytest.mark.parametrize(("of", "to"), sampled(product(SUFFIXES, SUFFIXES)))
def test_convert_one_array(of, to, tmp_path, said):
    source, target = save(tmp_path / f"a{of}", {"array": BIG} if of == ".h5" else BIG), tmp_path / f"b{to}"
    assert said(0, "convert", source, target) == ([f"wrote {target}: 1 array, 281.2 KiB"], [])
    with mc.open(target) as file:
        assert file.names == ["array"]
        np.testing.assert_array_equal(file["array"], BIG)


def test_convert_a_checkpoint(tmp_path, said):
    tree = {"w": BIG, "layers": [{"b": SMALL}], "step": 3}
    source = save(tmp_path / "c", tree, metadata={"by": "me", "sizes": [1, 2]})
    for name in ("d", "t.safetensors", "t.h5", "t.zarr", "e"):
        dropped = f"meshcomm: {tmp_path / name} does not hold the numbers and texts of the tree of {source}"
        assert said(0, "convert", source, tmp_path / name)[1] == ([] if "." not in name else [dropped])
        with mc.open(tmp_path / name) as file:
            assert set(file.names) == {"w", "layers.0.b"}
            np.testing.assert_array_equal(file["layers.0.b"], SMALL)
            assert file.metadata["by"] == "me"
    assert said(1, "convert", source, tmp_path / "t.npy")[1] == [
        "meshcomm: a .npy file holds one array, not 2: save them to a .safetensors file or to a folder"
    ]
    assert not (tmp_path / "t.npy").exists()

    def program():
        found = mc.load(tmp_path / "d")
        assert found["step"] == 3
        same(found["layers"][0]["b"], SMALL)

    on(2, program)


def by_netcdf(path):
    """Write a file with what the library of netCDF writes: arrays as attributes, fills, records that are not there."""
    netcdf = pytest.importorskip("netCDF4")
    with netcdf.Dataset(path, "w") as file:
        file.createDimension("time", None)
        file.createDimension("x", 2)
        file.setncatts({"title": "text", "levels": np.array([1.5, 2.5], "f4")})
        flags = file.createVariable("flags", "i1", ("time", "x"))
        flags.setncatts({"flag_values": np.array([0, 1], "i1"), "missing_value": np.array([3, 4], "i1"), "units": "1"})
        flags[:3] = [[0, 1], [1, 0], [3, 1]]
        packed = file.createVariable("packed", "i2", ("x",))
        packed.setncatts({"scale_factor": np.float32(0.1), "valid_range": np.array([-1, 5], "i2")})
        packed.set_auto_maskandscale(False)
        packed[:] = [1, 2]
        file.createVariable("w", "f4", ("time",), fill_value=np.nan)[:3] = [1, np.nan, 3]
        file.createVariable("short", "f8", ("time", "x"))[:2] = [[1, 2], [3, 4]]
    return path


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("to", [".nc", ".h5", ".zarr"])
def test_convert_keeps_attributes(to, tmp_path, said):
    xarray = pytest.importorskip("xarray")
    pytest.importorskip("h5netcdf")
    source, target = by_netcdf(tmp_path / "a.nc"), tmp_path / f"b{to}"
    said(0, "convert", source, target)
    said(0, "convert", target, tmp_path / "c.nc")
    expected = xarray.open_dataset(source, engine="netcdf4").load()
    for path in (target, tmp_path / "c.nc"):
        options = {"engine": "zarr", "consolidated": False} if path.suffix == ".zarr" else {"engine": "h5netcdf"}
        found = xarray.open_dataset(path, **options).load()
        assert set(found.variables) == set(expected.variables)
        for name, right in expected.variables.items():
            its = found[name].variable
            assert its.dims == right.dims
            np.testing.assert_allclose(its.values, right.values, rtol=1e-6)  # in JSON the scale is a double
            texts = [{k: np.asarray(v).tolist() for k, v in each.attrs.items()} for each in (its, right)]
            assert texts[0] == texts[1], name
        assert np.asarray(found.attrs["levels"]).tolist() == [1.5, 2.5]
    if to != ".zarr":
        xarray.testing.assert_identical(found, expected)
        assert found.encoding["unlimited_dims"] == {"time"}


@pytest.mark.parametrize("limit", [8, 64, 10**5])
@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_convert_keeps_what_may_grow(ranks, limit, tmp_path):
    netcdf = pytest.importorskip("netCDF4")
    whole = np.random.default_rng(1).normal(size=(2100, 3, 5))
    with netcdf.Dataset(tmp_path / "a.nc", "w") as file:
        for name, n in (("time", None), ("x", 3), ("y", None)):
            file.createDimension(name, n)
        file.createVariable("v", "f8", ("time", "x", "y"))[:] = whole[: 2100 if limit > 64 else 20]
        file.createVariable("time", "i4", ("time",))[:] = np.arange(2100 if limit > 64 else 20)
        file.createVariable("none", "f4", ("x",))[:] = 1.5
    with mc.simulate(ranks) as world:
        world.run(lambda: convert.convert(tmp_path / "a.nc", tmp_path / "b.nc", mc.create_mesh(), limit=limit))
    with netcdf.Dataset(tmp_path / "a.nc") as source, netcdf.Dataset(tmp_path / "b.nc") as target:
        for name in source.variables:
            np.testing.assert_array_equal(target[name][:], source[name][:])
        assert {name for name, dim in target.dimensions.items() if dim.isunlimited()} == {"time", "y"}


def test_ls_shows_dims_and_units(tmp_path, said):
    assert said(0, "ls", by_netcdf(tmp_path / "a.nc"))[0][:2] == [
        "name    shape   dims     dtype    units  bytes  layout",
        "flags   (3, 2)  time, x  int8     1      6 B",
    ]


def test_convert_refuses_to_overwrite(tmp_path, said):
    source, target = save(tmp_path / "a.npy", SMALL), save(tmp_path / "b.safetensors")
    (error,) = said(1, "convert", source, target)[1]
    assert error.startswith("meshcomm: ")
    assert "b.safetensors is there" in error
    said(0, "convert", source, target, "--overwrite")
    assert mc.open(target).names == ["array"]
    said(1, "convert", tmp_path / "none.npy", target)


def test_convert_refuses_damage(tmp_path, said):
    source = save(tmp_path / "c")
    damage(source)
    assert "is damaged between bytes" in said(1, "convert", source, tmp_path / "t.safetensors")[1][0]
    assert [path.name for path in tmp_path.iterdir()] == ["c"]


@pytest.mark.parametrize(("limit", "suffix"), sampled(product([64, 1000, 10**5], [".npy", ".h5", "", ".zarr"])))
def test_convert_in_boxes_by_several_ranks(limit, suffix, tmp_path):
    array = np.random.default_rng(1).normal(size=(31, 7, 13))
    np.save(tmp_path / "a.npy", array)
    np.save(tmp_path / "f.npy", np.asfortranarray(array))
    names = ["a.npy", "f.npy"]
    if suffix == ".npy":
        h5py = pytest.importorskip("h5py")
        with h5py.File(tmp_path / "c.h5", "w") as file:
            file.create_dataset("array", data=array, chunks=(5, 7, 4), compression="gzip")
        names.append("c.h5")

    def program(name):
        assert convert.convert(tmp_path / name, tmp_path / f"{name}-{suffix}", mesh_of_4(), limit=limit) == ""

    for name in names:
        on(4, lambda name=name: program(name))
        with mc.open(tmp_path / f"{name}-{suffix}") as file:
            np.testing.assert_array_equal(file["array"], array)


def test_the_command_itself(tmp_path):
    path = save(tmp_path / "c")
    found = run([sys.executable, "-m", "meshcomm", "ls", path], capture_output=True, text=True, timeout=100)
    assert (found.returncode, found.stdout.splitlines()[-1]) == (0, "2 arrays, 281.3 KiB")
    found = run([sys.executable, "-m", "meshcomm", "ls", tmp_path / "d"], capture_output=True, text=True, timeout=100)
    assert (found.returncode, len(found.stderr.splitlines())) == (1, 1)
