"""Stripes of Lustre and blocks of other file systems: what the system tells, and that no two ranks write one."""

import os
import struct

import numpy as np
import pytest

import meshcomm as mc
from meshcomm import Layout, Machine, Mesh
from meshcomm.storage import files
from meshcomm.storage.routes import choose_route, runs
from meshcomm.storage.stripes import XATTR, unit_of
from support.saved import mesh_of_4, on

U = mc.UNSHARDED
V1, V3, COMPOSITE = 0x0BD10BD0, 0x0BD30BD0, 0x0BD60BD0
KIB, MIB = 2**10, 2**20


def plain(stripe, magic=V1, count=4):
    """What Lustre tells of a file with one layout: its objects follow, and in version 3 before them the pool."""
    head = struct.pack("=II16sIHH", magic, 1, bytes(16), stripe, count, 0)
    return head + (b"pool".ljust(16, b"\0") if magic == V3 else b"") + bytes(24 * count)


def composite(*components):
    """What Lustre tells of a file with several layouts, one for each interval of it."""
    entries, at = b"", 32 + 48 * len(components)
    for number, each in enumerate(components):
        entries += struct.pack("=IIQQIIIQI", number + 1, 0, number << 30, number + 1 << 30, at, len(each), 0, 0, 0)
        at += len(each)
    head = struct.pack("=IIIHHH6xQ", COMPOSITE, at, 1, 0, len(components), 0, 0)
    return head + entries + b"".join(components)


@pytest.mark.parametrize(
    ("block", "striping", "unit"),
    [
        (4096, b"", 4096),
        (2**22, b"", 2**22),  # the block of GPFS
        (4 * MIB, plain(MIB), MIB),
        (4 * MIB, plain(MIB, V3), MIB),
        (4 * MIB, composite(plain(MIB, V3), plain(4 * MIB, V3), plain(2 * MIB)), 4 * MIB),
        (4096, composite(), 4096),
        # What makes no sense does not count.
        *((block, b"", 4096) for block in (-1, 0, 1, 512, 5000, 3 * MIB, 2**25, 2**62)),
        *((MIB, plain(stripe), MIB) for stripe in (0, 1, 2048, 3 * 2**16, 2**25, 2**32 - 1)),
        *((4096, plain(MIB)[:size], 4096) for size in (0, 3, 4, 27)),
        (4096, composite(plain(MIB))[:100], 4096),
        (4096, composite(composite(plain(MIB))), 4096),
        (4096, struct.pack("=IIIHHH6xQ", COMPOSITE, 0, 0, 0, 2**16 - 1, 0, 0) + bytes(48 * 2), 4096),
        (4096, bytes(range(256)) * 20, 4096),
    ],
)
def test_what_the_system_tells(block, striping, unit):
    assert unit_of(block, striping) == unit


@pytest.fixture
def stripes(monkeypatch):
    """Let the system tell these bytes of all files."""
    striping = bytearray(plain(64 * KIB))
    real = os.getxattr

    def getxattr(path, name, **named):
        return bytes(striping) if name == XATTR else real(path, name, **named)

    monkeypatch.setattr(os, "getxattr", getxattr)
    return striping


@pytest.fixture
def written(monkeypatch):
    """Collect (offset, rank) of what ranks write to files, in bytes of 4 KiB."""
    found, write = set(), files.File.write

    def recorded(file, data, offset):
        mesh = mc.create_mesh([("x", 4)])
        if file.path.name.startswith("data-"):
            found.update((at, mesh.rank) for at in range(offset // 4096, -(-(offset + len(data)) // 4096)))
        write(file, data, offset)

    monkeypatch.setattr(files.File, "write", recorded)
    return found


def save_columns(path, whole, **options):
    """Save the array twice, behind a short one, by ranks that hold columns."""

    def program():
        columns = mc.distribute(whole, Layout([U, ("x", "y")], mesh_of_4()))
        mc.save(path, {"short": np.arange(3), "u": columns, "v": columns}, **options)

    on(4, program)


@pytest.mark.usefixtures("stripes")
def test_no_two_ranks_write_one_stripe(tmp_path, written):
    save_columns(tmp_path / "c", np.arange(1200 * 1024, dtype="f8").reshape(1200, 1024))
    of = {}
    for at, rank in written:
        of.setdefault(at * 4 * KIB // (64 * KIB), set()).add(rank)
    assert {rank for ranks in of.values() for rank in ranks} == {0, 1, 2, 3}
    shared = {stripe: ranks for stripe, ranks in of.items() if len(ranks) > 1}
    assert not shared.keys() - {0}  # there is the short array


def test_what_is_saved_is_there_whatever_the_stripes(tmp_path, stripes):
    whole = np.arange(700 * 1030, dtype="f4").reshape(700, 1030)
    for number, stripe in enumerate((0, 2**16, 2**18, 2**24, 2**31)):
        path = tmp_path / f"{number}"
        stripes[:] = plain(stripe)
        save_columns(path, whole, max_scratch_bytes=2 * MIB)
        loaded = on(4, lambda path=path: mc.load(path, check=True)["v"].to_numpy())
        np.testing.assert_array_equal(loaded[0], whole)


@pytest.mark.parametrize("limit", [2**14, 2**17, 2**20, 2**24])
@pytest.mark.parametrize("length", [1000, 1024, 1])
def test_the_unit_fits_what_a_round_takes(limit, length):
    shape = (8_000_000 // length, length)
    mesh, made = Mesh(range(32), {"x": 4, "y": 8}), []
    for unit in (2**12, 2**16, 2**20, 2**22):
        route = choose_route(Layout([U, ("x", "y")], mesh), shape, 8, limit, Machine(), unit=unit)
        turns = list(route.rounds())
        made.append(len(turns))
        for turn in turns[:3]:
            for device in range(mesh.size):
                assert runs(turn.file_intervals(device), shape)[1].sum() * 8 <= limit
    assert max(made) <= 1.5 * made[0]
