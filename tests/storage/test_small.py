"""Many small arrays: few reads and few messages, whatever they are."""

import cProfile
import pstats
from itertools import product

import numpy as np
import pytest

import meshcomm as mc
from meshcomm import Layout
from meshcomm.storage import small
from support.sampling import sampled
from support.saved import mesh_of_4, on

U = mc.UNSHARDED
DTYPES = ("f8", ">i2", "S3", "V0", "?", [("x", "i1"), ("y", "c16")])


def arrays(count):
    """Return arrays of lengths 0 to 12, of all kinds."""
    found = {}
    for number in range(count):
        dtype = np.dtype(DTYPES[number % len(DTYPES)])
        bits = np.random.default_rng(number).integers(0, 2, (number % 13 * dtype.itemsize,), dtype=np.uint8)
        found[f"a{number}"] = np.zeros(number % 13, dtype) if not dtype.itemsize else bits.view(dtype)
    return found


@pytest.fixture
def reported(monkeypatch):
    """The bytes of each batch that rank 0 reads."""
    sizes = []
    real = small.ReadBatch.read
    monkeypatch.setattr(
        small.ReadBatch, "read", lambda batch, opened: sizes.append(batch.nbytes) or real(batch, opened)
    )
    return sizes


@pytest.mark.parametrize(("limit", "check"), sampled(product([None, 1000, 1], [True, False])))  # limit: bytes
def test_many_arrays_of_a_checkpoint(limit, check, tmp_path, reported, monkeypatch):
    expected = arrays(150)
    big, number = np.arange(20_000.0), np.array(7, ">i8")

    def program():
        mesh = mesh_of_4()
        layout = Layout(["x"], mesh)
        tree = {name: mc.distribute(array, layout) for name, array in expected.items()}
        mc.save(tmp_path / "c", {**tree, "big": big, "number": number})
        layouts = {**dict.fromkeys(expected, layout), "big": Layout([("x", "y")], mesh)}  # no exchange
        layouts["number"] = Layout([], mesh)
        plan = mc.plan_load(tmp_path / "c", layouts, check=check, max_scratch_bytes=limit)
        mc.barrier(mesh)
        found = mc.load(tmp_path / "c", layouts, check=check, max_scratch_bytes=limit)
        for name, array in expected.items():
            block = array[layout.block_slices(array.shape, mesh.rank)]
            assert found[name].local.dtype == array.dtype
            assert found[name].local.tobytes() == block.tobytes()
        assert np.array_equal(found["big"].to_numpy(), big)
        assert found["number"].local.tobytes() == number.tobytes()
        return plan.calls

    calls = on(4, program)[0]
    total = sum(each.nbytes for each in expected.values()) + number.nbytes
    assert sum(reported) == total
    assert max(reported) <= max(limit or total, 12 * 17)
    if limit is None:
        assert len(reported) == 1
        # Small ones before and behind the large one, its shares; with checksums, what is behind each.
        assert calls <= 2 + 4 + check * 3
    if limit == 1:
        assert sum(size > 0 for size in reported) == sum(each.nbytes > 0 for each in expected.values()) + 1


@pytest.mark.usefixtures("narrow_gaps")
def test_reads_of_files_with_others_between(tmp_path, reported):
    expected = arrays(40)
    with_big = {**expected, "b": np.arange(70_000, dtype="u1")}
    names = [name for name, array in expected.items() if array.dtype in (np.dtype("f8"), np.dtype("?"))]

    def program():
        mesh = mesh_of_4()
        mc.save(tmp_path / "c", {name: with_big[name] for name in [*names, "b"]})
        found = mc.load(tmp_path / "c", names=names[::-1], slices={names[1]: np.s_[1:]}, check=False)
        assert list(found) == names[::-1]
        mc.barrier(mesh)
        return [found[name].to_numpy() for name in names]

    for found in on(4, program):
        for name, array in zip(names, found, strict=True):
            assert np.array_equal(array, expected[name][1:] if name == names[1] else expected[name])
    assert len(reported) == 1


def test_an_error_in_a_batch(tmp_path, monkeypatch):
    def fails(batch, opened):
        with opened.trying():
            raise OSError(5, "disk")
        return np.zeros(batch.nbytes, np.uint8)

    def program():
        mc.save(tmp_path / "c", {"a": np.arange(4), "b": np.arange(5)})
        with pytest.raises(OSError, match="disk"):
            mc.load(tmp_path / "c", check=False)
        mc.barrier(mesh_of_4())

    monkeypatch.setattr(small.ReadBatch, "read", fails)
    on(4, program)


@pytest.mark.parametrize(("suffix", "most"), [(".h5", 640), (".nc", 720), (".zarr", 1150)])
@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_what_one_more_array_costs(suffix, most, ranks, tmp_path):
    """Calls of Python on the rank that makes the file: nothing is done again for each array that is there."""

    def cost(count):
        def program():
            rows = Layout(["x"], mc.create_mesh([("x", -1)]))
            tree = {f"g{k // 30}/d{k}": mc.distribute(np.arange(6.0) + k, rows) for k in range(count)}
            profile = cProfile.Profile() if mc.is_root() else None
            run = profile.runcall if profile else lambda function, *args: function(*args)
            run(mc.save, tmp_path / f"{count}{suffix}", tree)
            return profile and pstats.Stats(profile).total_calls

        return on(ranks, program)[0]

    cost(10)  # what is loaded and looked up once
    few, many = cost(50), cost(150)
    assert many - few <= 100 * most
