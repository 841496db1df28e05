"""Files of real ranks, which share memory or do not: every layout to every other one, and errors of one rank."""

import errno
from random import Random

import numpy as np
import pytest
from mpi4py import MPI

import meshcomm as mc
from meshcomm import Layout
from meshcomm.storage import files
from support.random_cases import any_case
from support.reference import random_bits
from support.sampling import sampled

SIZE = MPI.COMM_WORLD.size
U = mc.UNSHARDED


@pytest.mark.parametrize("seed", sampled(range(6), 2))
@pytest.mark.parametrize("suffix", ["", ".npy", ".zarr"])
def test_any_layout_to_any_layout(world, there, folder, suffix, seed):
    sizes = tuple(n for n in (1, 2, 3, 4, 6, 8) if n <= SIZE)
    for number in range(seed * 4, seed * 4 + 4):
        case, random = any_case(number, SIZE, sizes), Random(number)
        if int(np.prod(case.shape)) > 20_000:
            continue
        whole = random_bits(case.shape, np.dtype(random.choice(["f8", "i2", "c8"])), number)
        limit = random.choice([None, 2**12])
        source, target = there(case.source), there(case.target)
        mc.save(folder / f"{number}{suffix}", mc.distribute(whole, source), max_scratch_bytes=limit)
        world.Barrier()  # the mesh that loads may have other ranks
        found = mc.load(folder / f"{number}{suffix}", target, max_scratch_bytes=limit)
        assert (found.shape, found.dtype) == (whole.shape, whole.dtype)
        whole_again = found.to_numpy()
        assert whole_again is None or whole_again.tobytes() == whole.tobytes()


def test_chunks_of_zarr(world, folder):
    mesh = mc.create_mesh([("x", SIZE)], comm=world)
    whole = np.arange(50 * 33.0).reshape(50, 33)
    for specs in (["x", U], [U, "x"], [mc.Cyclic("x", 1), U]):
        t = mc.distribute(whole, Layout(specs, mesh))
        files.counts.clear()
        mc.save(folder / "a.zarr", {"a": t}, chunks=(10, 4), overwrite=True)
        padded = 50 * 36 * 8
        data = world.allgather(files.counts["written"])
        assert 0 <= sum(data) - padded < 4096  # and the metadata
        assert max(data) - min(data) <= 10 * 36 * 8 * -(-5 // SIZE) + 4096  # the ranks share them
        mc.save(folder / "a.zarr", {"b": t}, mode="a", compression="gzip")
        found = mc.load(folder / "a.zarr", t.layout)
        assert all((found[name].local == t.local).all() for name in ("a", "b"))


def test_a_series_in_chunks_of_all_ranks(world, folder):
    pytest.importorskip("h5py")
    mesh = mc.create_mesh([("x", SIZE)], comm=world)
    rows, columns = Layout(["x", U], mesh), Layout([U, "x"], mesh)
    whole = np.arange(50 * 33.0).reshape(50, 33)
    for name, options in (("a.h5", {}), ("b.nc", {"compression": "gzip", "chunks": (7, 33)}), ("c.zarr", {})):
        with mc.Series(folder / name, {"u": rows}, shape=whole.shape, dtype=float, **options) as series:
            for step in range(3):
                files.counts.clear()
                series.append(u=mc.distribute(whole + step, columns), time=0.5 * step)
                written = world.allgather(files.counts["written"])
                assert min(written) > (0 if options else whole.nbytes // SIZE - 2 * 4096)
                assert max(written[1:], default=0) <= whole.nbytes // SIZE + 2 * 4096
            for step in range(3):
                found = series[step]
                assert found["time"] == 0.5 * step
                assert (found["u"].relayout(columns).local == (whole + step)[:, found_slice(columns, whole)]).all()


def found_slice(layout, whole):
    return layout.block_slices(whole.shape, layout.mesh.rank)[1]


def test_bytes_that_cross_the_disk(world, folder):
    mesh = mc.create_mesh([("x", SIZE)], comm=world)
    whole = np.arange(512 * 256.0).reshape(512, 256)
    for specs in (["x", U], [U, "x"], [U, U], [mc.Cyclic("x", 1), U]):
        files.counts.clear()
        mc.save(folder / "a.npy", mc.distribute(whole, Layout(specs, mesh)))
        written = world.allreduce(files.counts["written"])
        assert written - whole.nbytes == 4096  # and the header
        share = -(-whole.nbytes // SIZE // 4096) * 4096  # borders are those of pages
        assert max(world.allgather(files.counts["written"])) <= share + 2 * 4096, specs
        files.counts.clear()
        mc.load(folder / "a.npy", Layout(specs, mesh))
        read = world.allreduce(files.counts["read"])
        assert 0 < read - whole.nbytes <= 20_000  # and what may be the header
        assert world.allreduce(files.counts["reads"]) < 20 * SIZE
    mesh.close()


def test_an_error_of_one_rank_is_raised_by_all(world, folder, monkeypatch):
    mesh = mc.create_mesh([("x", SIZE)], comm=world)
    t = mc.ones((512, 256), float, Layout([U, "x"], mesh))
    mc.save(folder / "c", {"a": t})

    def full(self, data, offset):
        raise OSError(errno.ENOSPC, "No space left on device", str(self.path))

    if world.rank == SIZE - 1:
        monkeypatch.setattr(files.File, "write", full)
    with pytest.raises(OSError, match="No space left"):
        mc.save(folder / "c", {"a": t * 2})

    def save_in_the_background():
        mc.start_save(folder / "c", {"a": t * 2}).wait()

    with pytest.raises(OSError, match="No space left"):
        save_in_the_background()
    monkeypatch.undo()
    assert float(mc.load(folder / "c", t.layout)["a"].sum()) == t.size
    mc.save(folder / "c", {"a": t * 3})
    assert float(mc.load(folder / "c", t.layout)["a"].sum()) == 3 * t.size
    assert world.bcast(len(list(folder.rglob("*")))) == 3  # the folder, a manifest, and one file of data
    mesh.close()


def test_nothing_there(world, folder):
    mesh = mc.create_mesh([("x", SIZE)], comm=world)
    with pytest.raises(FileNotFoundError):
        mc.load(folder / "none.npy", Layout(["x"], mesh))
    mesh.close()
