"""Many short runs of a file, which ranks of one node copy from the memory of the system."""

import os

import numpy as np
import pytest

import meshcomm as mc
from meshcomm import CheckpointError, Layout, Machine
from meshcomm.storage import transfer
from meshcomm.storage._runs import read_runs
from meshcomm.storage.files import for_reading
from meshcomm.storage.stored import Segment, Stored
from support.saved import mesh_of_4, on, same

U = mc.UNSHARDED
BYTES = np.arange(100, dtype=np.uint8)


def runs(*pairs):
    offsets, lengths = np.array(pairs, dtype=np.intp).reshape(-1, 2).T
    return np.ascontiguousarray(offsets), np.ascontiguousarray(lengths)


@pytest.fixture
def path(tmp_path):
    BYTES.tofile(tmp_path / "file")
    return tmp_path / "file"


def test_runs_follow_one_another_in_memory(path):
    into = np.zeros(13, np.uint8)
    with for_reading(path) as file:
        file.read_runs(into, *runs((90, 10), (3, 0), (5, 3)))
    assert into.tolist() == [*range(90, 100), 5, 6, 7]


def test_the_end_of_the_file_is_an_error(path):
    with for_reading(path) as file, pytest.raises(CheckpointError, match=r"at byte 100, but .* go to byte 105"):
        file.read_runs(np.zeros(12, np.uint8), *runs((5, 2), (95, 10)))


def test_errors_of_the_system_name_the_file(path):
    file = for_reading(path)
    file.close()
    with pytest.raises(OSError, match=f"Bad file descriptor.*{path.name}"):
        file.read_runs(np.zeros(2, np.uint8), *runs((5, 2)))


@pytest.mark.parametrize("pairs", [[(0, 5)], [(0, 3), (5, 2)], [(0, 5), (0, -1)], [(0, -1)], [(0, 2**62), (0, 2**62)]])
def test_runs_must_fill_the_block(pairs, path):
    number = os.open(path, os.O_RDONLY)
    with pytest.raises(ValueError, match=f"{len(pairs)} runs do not fill 4 bytes"):
        read_runs(number, *runs(*pairs), np.zeros(4, np.uint8))
    os.close(number)


def test_runs_are_found_in_segments():
    segments = (Segment("a", 0, 10, 100), Segment("b", 10, 25, 0), Segment("c", 25, 40, 7))
    stored = Stored("t", (40,), np.dtype("u1"), segments)
    for pairs in [(2, 3), (5, 10), (30, 2)], [(0, 40)], [(10, 0), (12, 1)], [(26, 1), (39, 1)], []:
        found = []
        for segment, offsets, lengths in stored.runs(*runs(*pairs)):
            found += [(segment.file, int(o), int(n)) for o, n in zip(offsets, lengths, strict=True)]
        assert found == [(s.file, offset, size) for s, offset, _, size in stored.pieces(*runs(*pairs)) if size]


@pytest.fixture
def window(request, monkeypatch):
    """The bytes of a file that a rank reads while the system reads the next ones ahead."""
    monkeypatch.setattr(transfer, "READ_WINDOW", request.param)
    return request.param


@pytest.mark.parametrize("window", [1, 200_000, 2**24], indirect=True)
@pytest.mark.usefixtures("window")
@pytest.mark.parametrize("specs", [[U, "x"], [U, ("x", "y")], ["y", "x"]], ids=str)
def test_columns_are_read_without_an_exchange_on_one_node(specs, tmp_path):
    whole = np.random.default_rng(1).random((40, 2, 8000))
    np.save(tmp_path / "a.npy", whole)

    def program():
        layout = Layout([specs[0], U, specs[1]], mesh_of_4())
        found = mc.load(tmp_path / "a.npy", layout)
        assert np.array_equal(found.local, whole[layout.block_slices(whole.shape, layout.mesh.rank)])
        plan = mc.plan_load(tmp_path / "a.npy", layout)
        return plan.bytes_moved, plan.bytes_read - whole.nbytes * 4 // layout.num_shards(0) // layout.num_shards(2)

    if specs == [U, ("x", "y")]:
        assert on(4, program)[0] == (0, 0)
    else:
        on(4, program)


def test_short_reads_are_cheap_on_one_node_without_checksums():
    assert transfer.reading_costs(Machine(), checks=False).alpha_disk < Machine().alpha_disk
    assert transfer.reading_costs(Machine(), checks=True) == Machine()
    assert transfer.reading_costs(Machine(nodes=2), checks=False) == Machine(nodes=2)
    assert transfer.reading_costs(Machine(alpha_disk=1e-9), checks=False).alpha_disk == 1e-9


@pytest.mark.parametrize("window", [2**18], indirect=True)
def test_the_system_hears_what_comes_next(window, tmp_path, monkeypatch):
    """Only if it has it not in memory; simulated here, as file systems differ."""
    np.save(tmp_path / "a.npy", np.zeros((64, 4096)))
    expected = []
    monkeypatch.setattr(transfer.File, "is_in_memory", lambda file, offset: offset > 2**20)
    monkeypatch.setattr(transfer.File, "expect", lambda file, offset, size: expected.append((offset, size)))

    on(4, lambda: mc.load(tmp_path / "a.npy", Layout([U, ("x", "y")], mesh_of_4())))
    assert len(expected) == 4 * 3  # of eight windows, those that begin in the first MiB, but for the first
    assert all(size == window for _, size in expected)


@pytest.mark.usefixtures("small_files", "nothing_is_small")
def test_runs_with_whole_files_between_them(tmp_path):
    whole = np.arange(17 * 16.0).reshape(17, 16)  # each row is a file

    def program():
        mesh = mc.create_mesh([("x", 4)])
        mc.save(tmp_path / "a.zarr", mc.distribute(whole, Layout(["x", mc.UNSHARDED], mesh)))
        for spec in (mc.Cyclic("x", 1), mc.Cyclic("x", 3)):
            same(mc.load(tmp_path / "a.zarr", Layout([spec, mc.UNSHARDED], mesh)), whole)

    on(4, program)
    segments = tuple(Segment(f"c/{k}", 128 * k, 128 * k + 128, 0) for k in range(17))
    stored = Stored("array", (17, 16), np.dtype("f8"), segments)
    found = [(s.file, at.tolist(), n.tolist()) for s, at, n in stored.runs(np.array([8, 640]), np.array([120, 128]))]
    assert found == [("c/0", [8], [120]), ("c/5", [0], [128])]
