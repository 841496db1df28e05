"""Files as other programs write them: what xarray reads of them itself, tensors have on every rank."""

import numpy as np
import pytest

import meshcomm as mc
from support.tensors import on

xarray = pytest.importorskip("xarray")
h5py = pytest.importorskip("h5py")
pytest.importorskip("h5netcdf")
zarr = pytest.importorskip("zarr")
mx = pytest.importorskip("meshcomm.xarray")

pytestmark = pytest.mark.filterwarnings("ignore:.*onsolidated:", "ignore:saving variable v", "ignore:.*Zarr V3 spec")
RANKS = [1, 2, 3]
FIELD = ("x", np.arange(4.0))
TEXTS = {
    "a text": xarray.Dataset({"v": FIELD, "z": "text"}),
    "an object": xarray.Dataset({"v": FIELD, "z": ((), np.array("höhe", object))}),
    "of a coordinate": xarray.Dataset({"v": (("z", "x"), np.ones((2, 4)))}, {"z": ["a", "bc"]}).isel(z=0),
}


def read(path):
    """Return what xarray reads itself."""
    options = {"engine": "zarr", "consolidated": False} if path.suffix == ".zarr" else {"engine": "h5netcdf"}
    with xarray.open_dataset(path, **options) as opened:
        return opened.load()


@pytest.mark.parametrize("suffix", [".nc", ".h5", ".zarr"])
@pytest.mark.parametrize("case", TEXTS)
def test_a_text_alone(case, suffix, tmp_path):
    its, path = TEXTS[case], tmp_path / f"a{suffix}"
    its.to_zarr(path) if suffix == ".zarr" else its.to_netcdf(path, engine="h5netcdf")
    for ranks in RANKS:
        assert on(ranks, lambda: mx.open(path, {"x": "x"}).z.item()) == [its.z.item()] * ranks


def test_a_text_of_any_length_alone_in_zarr(tmp_path):
    group = zarr.open_group(tmp_path / "a.zarr", mode="w")
    group.create_array("z", shape=(), dtype=str)[...] = "höhe"
    assert on(2, lambda: mx.open(tmp_path / "a.zarr").z.item()) == ["höhe"] * 2


@pytest.mark.parametrize("suffix", [".nc", ".h5"])
@pytest.mark.parametrize("dtype", ["u1", "i2", "i4"])
def test_attributes_of_one_element(dtype, suffix, tmp_path):
    path, packed = tmp_path / f"a{suffix}", {"v": {"dtype": dtype, "scale_factor": 0.01}}
    its = xarray.Dataset({"v": ("x", np.arange(4) * 0.01, {"n": [3], "t": ["a"]}), "w": ("y", np.arange(6.0))})
    its.assign_attrs(n=[1], m=[1, 2]).to_netcdf(path, engine="h5netcdf", encoding=packed)
    expected = read(path)
    for ranks in RANKS:

        def program(ranks=ranks):
            for dim in ("x", "y"):  # v is a tensor, and an array of NumPy
                found = mx.open(path, {dim: "x"})
                assert found.v.dtype == "f8"
                assert found.v.values.tolist() == expected.v.values.tolist()
                assert (found.v.attrs, found.attrs["n"]) == ({"n": 3, "t": "a"}, 1)
                mx.save(tmp_path / f"{dim}{ranks}.h5", found)

        on(ranks, program)
        for dim in ("x", "y"):
            xarray.testing.assert_equal(read(tmp_path / f"{dim}{ranks}.h5"), expected)


def test_an_attribute_of_one_text_says_the_signs(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["v"] = np.array([-1, 1], "i1")
        file["v"].attrs["_Unsigned"] = ["true"]

    def program():
        rows = mc.Layout(["x"], mc.create_mesh([("x", -1)]))
        return mc.load(tmp_path / "a.h5", rows, decode=True)["v"].to_numpy().tolist()

    assert on(2, program) == [[255, 1]] * 2
