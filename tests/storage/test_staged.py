"""Loads that convert or transpose go on in rounds: they use no more memory than they may."""

from itertools import product
from math import prod

import numpy as np
import pytest

import meshcomm as mc
from meshcomm import Cyclic, Layout
from meshcomm.storage import transfer
from meshcomm.storage.formats import hdf5
from support.reference import random_bits
from support.sampling import sampled
from support.saved import RANKS, cases, here, mesh_of_4, on, same

U = mc.UNSHARDED


@pytest.fixture
def sizes(monkeypatch):
    """Collect the bytes of what ranks read to before it goes to the tensor."""
    found, make = [], transfer.new_block

    def new_block(shape, dtype):
        found.append(prod(shape) * np.dtype(dtype).itemsize)
        return make(shape, dtype)

    monkeypatch.setattr(transfer, "new_block", new_block)
    return found


@pytest.mark.parametrize(("order", "seed"), sampled(product("CF", range(4))))
@pytest.mark.usefixtures("nothing_is_small")
def test_any_layout(order, seed, tmp_path):
    with mc.simulate(RANKS) as world:
        for number, case, random in cases(seed, 12):
            whole = np.array(random_bits(case.shape, np.dtype("i4"), number), order=order)
            dtype, limit = random.choice(["f8", "i2", "i4", ">i4"]), random.choice([None, 2**10, 2**12])
            path = tmp_path / f"t{number}.npy"
            np.save(path, whole)

            def program(case=case, whole=whole, path=path, dtype=dtype, limit=limit):
                loaded = mc.load(path, here(case.target), dtype=dtype, max_scratch_bytes=limit)
                same(loaded, whole.astype(dtype))

            world.run(program)


@pytest.mark.parametrize("specs", [["x", "y"], [U, "x"], [("x", "y"), U], [U, U]], ids=str)
@pytest.mark.parametrize(("order", "dtype"), [("C", "f4"), ("F", "f8"), ("F", "f4")])
def test_rounds_keep_to_the_limit(specs, order, dtype, tmp_path, sizes):
    limit = 2**15
    path, whole = tmp_path / "a.npy", np.arange(400 * 300, dtype="f8").reshape(400, 300)
    np.save(path, np.array(whole, order=order))

    def program():
        layout = Layout(specs, mesh_of_4())
        plan = mc.plan_load(path, layout, dtype=dtype, max_scratch_bytes=limit)
        same(mc.load(path, layout, dtype=dtype, max_scratch_bytes=limit), whole.astype(dtype))
        return plan.peak_scratch_bytes

    planned = max(on(4, program))
    assert 0 < max(sizes) <= limit // 4
    assert max(sizes) <= planned <= limit


def test_a_slice_of_a_tensor_is_filled_in_rounds(tmp_path, sizes):
    limit = 2**15
    path, whole = tmp_path / "a.npy", np.arange(400 * 150, dtype="f8").reshape(400, 150)
    np.save(path, whole)

    def program():
        tensor = mc.zeros((400, 300), "f8", Layout(["x", U], mesh_of_4()))
        mc.load(path, out=tensor[:, 100:250], max_scratch_bytes=limit)
        same(tensor, np.pad(whole, ((0, 0), (100, 50))))

    on(4, program)
    assert 0 < max(sizes) <= limit // 4


STEPS = [
    *(np.s_[::2], np.s_[:, ::3], np.s_[::-1], np.s_[5::7, ::-2], np.s_[390:2:-3, None, 7:], np.s_[::150, 3::80]),
    *(np.s_[7], np.s_[:, -3], np.s_[..., None, 4], np.s_[3:3, ::2]),
]


@pytest.mark.parametrize(("index", "order"), sampled(product(STEPS, "CF")), ids=str)
@pytest.mark.usefixtures("nothing_is_small")
def test_steps_keep_to_the_limit(index, order, tmp_path, sizes):
    limit = 2**17
    path, whole = tmp_path / "a.npy", np.arange(400 * 300, dtype="f8").reshape(400, 300)
    np.save(path, np.array(whole, order=order))
    expected = whole[index]

    def program(specs, dtype):
        layout = Layout(specs[: expected.ndim], mesh_of_4())
        plan = mc.plan_load(path, layout, slices=index, dtype=dtype, max_scratch_bytes=limit)
        found = mc.load(path, layout, slices=index, dtype=dtype, max_scratch_bytes=limit)
        same(found, expected.astype(dtype))
        return plan.peak_scratch_bytes

    for specs in ["x", "y", U], [U, ("x", "y"), U], [Cyclic("x", 2), U, U], [U] * 3:
        assert max(max(on(4, program, specs, dtype)) for dtype in ("f8", "f4")) <= limit
    assert max(sizes, default=0) <= limit // 4
    assert sizes or not expected.size or expected.ndim == 1


@pytest.mark.parametrize("step", [3, -3])
def test_steps_over_long_rows_read_only_these(step, tmp_path):
    path, whole = tmp_path / "a.npy", np.arange(60 * 10_000, dtype="f8").reshape(60, 10_000)
    np.save(path, whole)
    layout = Layout(["x", U], mc.Mesh(range(4), {"x": 4}))
    assert mc.plan_load(path, layout, slices=np.s_[::step]).bytes_read == whole[::step].nbytes
    np.testing.assert_array_equal(mc.open(path)["array"][::step], whole[::step])


@pytest.mark.parametrize(("index", "suffix"), sampled(product([np.s_[:], *STEPS], [".h5", ".zarr"])), ids=str)
def test_by_library_a_rank_holds_its_share_once(index, suffix, tmp_path, selections):
    pytest.importorskip("h5py")
    zarr, limit = pytest.importorskip("zarr"), 2**14
    path, whole = tmp_path / f"a{suffix}", np.arange(400 * 300, dtype="f8").reshape(400, 300)
    if suffix == ".h5":
        with hdf5.h5py_library().File(path, "w") as file:
            file.create_dataset("array", data=whole, chunks=(6, 100), compression="gzip")
    else:
        zarr.create_array(path, data=whole, chunks=(6, 100))
    expected = whole[index]

    def program(specs, dtype):
        layout = Layout(specs[: expected.ndim], mesh_of_4())
        found = mc.load(path, layout, slices=index, dtype=dtype, max_scratch_bytes=limit)
        same(found, expected.astype(dtype))

    for specs, dtype in [(["x", "y", U], "f8"), ([U, ("x", "y"), U], "f4"), ([Cyclic("x", 3), U, U], "f8")]:
        selections.clear()
        on(4, program, specs, dtype)
        assert all(elements.nbytes <= limit for _, elements in selections)
        assert sum(elements.size for _, elements in selections) == expected.size * (1 if expected.ndim else 4)
