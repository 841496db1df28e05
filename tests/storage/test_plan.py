"""Plans of loads: what they predict is what loads do, in bytes, calls, exchanges and rounds."""

import json
import threading
from collections import Counter
from itertools import product

import numpy as np
import pytest

import meshcomm as mc
from meshcomm import Layout
from meshcomm.storage import files, transfer
from support.reference import random_bits
from support.sampling import sampled
from support.saved import RANKS, cases, here, mesh_of_4, on

U = mc.UNSHARDED


class CountsByThread(Counter):
    """Counts of each simulated rank, which is a thread."""

    def __getitem__(self, key):
        return super().__getitem__((threading.current_thread().name, key))

    def __setitem__(self, key, value):
        super().__setitem__((threading.current_thread().name, key), value)


@pytest.fixture
def counts(monkeypatch):
    found = CountsByThread()
    monkeypatch.setattr(files, "counts", found)
    return found


def counted(counts):
    return counts["read"], counts["reads"]


def calls_of(operation, trace, rank):
    """Return how often a rank made a call within the calls of a trace."""
    events = json.loads(trace.read_text())["traceEvents"]
    return sum((event["name"], event["pid"], event["ph"]) == (operation, rank, "X") for event in events)


def random_index(shape, random):
    index = []
    for n in shape:
        start, stop = sorted((random.randint(0, n), random.randint(0, n)))
        index.append(slice(start, stop, random.choice([1, 1, 1, 2])))
    return tuple(index)


@pytest.mark.parametrize(("suffix", "seed"), sampled(product(["", ".npy", ".safetensors", ".zarr"], range(4))))
@pytest.mark.usefixtures("nothing_is_small", "narrow_gaps")
def test_random_loads(suffix, seed, tmp_path, counts, monkeypatch):
    monkeypatch.setattr(transfer, "READ_TOGETHER", 1000)
    kinds = set()
    with mc.simulate(RANKS) as world:
        for number, case, random in cases(seed, 25):
            whole = random_bits(case.shape, np.dtype("f8"), number)
            limit, index = random.choice([None, 2**12]), random.choice([None, random_index(case.shape, random)])
            check = random.choice([None, False])  # None compares checksums, as these are small checkpoints
            if any(isinstance(spec, mc.Cuts) for spec in case.target.axes):
                index = None  # chosen boundaries are for the whole axis

            def program(case=case, whole=whole, limit=limit, index=index, check=check, number=number):
                path = tmp_path / f"t{number}{suffix}"
                mc.save(path, mc.distribute(whole, here(case.source)))
                layout = here(case.target)
                everyone = mc.create_mesh()
                mc.barrier(everyone)
                before = counted(counts)
                plan = mc.plan_load(path, layout, slices=index, check=check, max_scratch_bytes=limit)
                header = counted(counts)
                mc.barrier(everyone)
                with mc.trace(tmp_path / f"{number}.json"), mc.count() as c:
                    mc.load(path, layout, slices=index, max_scratch_bytes=limit, check=check)
                mc.barrier(everyone)
                if layout.mesh.rank is None:
                    return None
                device = layout.mesh.rank
                read, calls = (now - then for now, then in zip(counted(counts), header, strict=True))
                if device == 0:  # it reads the header, too
                    read, calls = read - header[0] + before[0], calls - header[1] + before[1]
                its = plan.for_device(device)
                assert (read, calls) == (its.bytes_read, its.calls)
                assert len(its.extents) == its.calls
                assert sum(extent.nbytes for extent in its.extents) == its.bytes_read
                (array,) = plan.arrays
                if array.in_runs and index is None:
                    assert its.bytes_moved == c.bytes
                    assert plan.rounds == calls_of("relayout", tmp_path / f"{number}.json", everyone.rank)
                str(plan), repr(its)
                return (array.small, plan.rounds > 1, its.bytes_moved > 0, array.request.staged)

            kinds |= {each for each in world.run(program) if each is not None}
    assert len(kinds) > 2


def test_several_arrays_of_a_checkpoint(tmp_path, counts):
    big = np.arange(400 * 300, dtype="f8").reshape(400, 300)

    def program():
        mesh = mesh_of_4()
        rows = Layout(["x", U], mesh)
        mc.save(tmp_path / "c", {"a": mc.distribute(big, rows), "b": mc.distribute(big[:3], rows), "step": 3})
        layouts = {"a": Layout([U, ("x", "y")], mesh), "b": rows}
        plan = mc.plan_load(tmp_path / "c", layouts, dtype="f4", check=False)
        compared = mc.plan_load(tmp_path / "c", layouts, dtype="f4")  # by default, as the checkpoint is small
        assert compared.bytes_compared == compared.bytes_read - plan.bytes_read == 2560 + 992  # up to whole pages
        assert "3.5 KiB are read to compare checksums only" in str(compared)
        before = counted(counts)
        mc.load(tmp_path / "c", layouts, check=False, dtype="f4")
        read, calls = (now - then for now, then in zip(counted(counts), before, strict=True))
        its = plan.for_device(mesh.rank)
        if mesh.rank:
            assert (read, calls) == (its.bytes_read, its.calls)
        assert plan.bytes_read == big.nbytes + big[:3].nbytes
        return str(plan)

    (text, *others) = on(4, program)
    assert set(others) == {text}
    assert text.splitlines()[1:] == [
        "  a  (400, 300) float64 -> [unsharded, x+y]: read as [x+y, unsharded], exchanged in 1 round",
        "  b  (3, 300) float64 -> [x, unsharded]: one device reads 7.0 KiB and tells the others",
        "  all devices read 944.5 KiB in 5 calls, and receive 724.2 KiB in 2 rounds",
        "  device 0 reads most, 241.4 KiB; a device uses at most 644.5 KiB of scratch over MPI",
    ]


def test_other_ways(tmp_path):
    h5py = pytest.importorskip("h5py")
    big = np.arange(400 * 300, dtype="f8").reshape(400, 300)
    np.save(tmp_path / "f.npy", np.asfortranarray(big))
    with h5py.File(tmp_path / "c.h5", "w") as file:
        file.create_dataset("small", data=big, chunks=(16, 300), compression="gzip")
    mesh = mc.Mesh(range(4), {"x": 4})
    rows = Layout(["x", U], mesh)
    plan = mc.plan_load(tmp_path / "f.npy", Layout(["x"], mesh), slices=np.s_[::2, 3])
    assert plan.bytes_read < big.nbytes
    assert plan.for_device(1).extents
    plan = mc.plan_load(tmp_path / "c.h5", rows)
    assert (plan.bytes_read, plan.calls, plan.bytes_by_library) == (0, 0, big.nbytes)
    assert "through a library, in chunks of (16, 300)" in str(plan)
    with pytest.raises(mc.MeshError, match="device 4 is not in the mesh"):
        plan.for_device(4)
    with pytest.raises(FileNotFoundError):
        mc.plan_load(tmp_path / "none.npy", rows)


def test_a_plan_for_a_machine_that_is_not_here(tmp_path):
    np.lib.format.open_memmap(tmp_path / "big.npy", mode="w+", dtype="f4", shape=(2**16, 2**14))
    mesh = mc.Mesh(range(1024), {"x": 32, "y": 32})
    plan = mc.plan_load(tmp_path / "big.npy", Layout([U, ("x", "y")], mesh), machine=mc.Machine(nodes=16))
    assert plan.bytes_read == 2**32
    assert plan.calls == 1024
    few = mc.plan_load(tmp_path / "big.npy", Layout([U, ("x", "y")], mesh), machine=mc.Machine(nodes=128))
    assert few.bytes_read == 2**32
    assert sum(few.for_device(device).calls > 0 for device in range(128)) == 16
    assert plan.peak_scratch_bytes < 2**26
