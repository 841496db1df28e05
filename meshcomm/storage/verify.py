"""Checksums of checkpoints: compared with what was read, or with all that is there."""

from pathlib import Path

import numpy as np

from meshcomm._arguments import quote
from meshcomm._tuning import CHECKSUM_RANGE
from meshcomm.arrays.create import told_by_root
from meshcomm.errors import CheckpointError
from meshcomm.layouts.mesh import Mesh
from meshcomm.ranks.teams import Location
from meshcomm.storage import files
from meshcomm.storage.checksums import Piece, combined, pieces_of
from meshcomm.storage.files import File
from meshcomm.storage.formats.base import Contents
from meshcomm.storage.transfer import Opened, all_pieces


def compare_checksums(base: Path, found: Contents, opened: Opened, mesh: Mesh, here: Location) -> None:
    """Raise ``CheckpointError`` unless what all ranks have read has the right checksums. Collective over the mesh.

    Of a range of which only a part was read, the first rank reads the rest.
    """
    each = here.team.everyone.communicator().told(opened.pieces)
    pieces = all_pieces([[tuple(piece) for piece in pieces] for pieces in each])
    told_by_root(0, lambda: _compare(base, found, pieces), "the checksums of a load", mesh, here)


def verify(path: Path, found: Contents) -> list[str]:
    """Return what is wrong with the files of a checkpoint: a line for each range with another checksum."""
    assert found.checks is not None
    wrong = []
    for name, checks in found.checks.items():
        with files.for_reading(path / name) as file:
            size = file.size()
            for number, expected in enumerate(checks):
                start = number * CHECKSUM_RANGE
                if _of_range(file, name, start, min(start + CHECKSUM_RANGE, size), []) != expected:
                    wrong.append(_text(path / name, found, name, number))
    return wrong


def _compare(base: Path, found: Contents, pieces: list[Piece]) -> None:
    assert found.checks is not None
    by_range: dict[tuple[str, int], list[Piece]] = {}
    for piece in pieces:
        by_range.setdefault((piece[0], piece[1] // CHECKSUM_RANGE), []).append(piece)
    for (name, number), its in by_range.items():
        with files.for_reading(base / name) as file:
            start = number * CHECKSUM_RANGE
            crc = _of_range(file, name, start, min(start + CHECKSUM_RANGE, file.size()), its)
        if crc != found.checks[name][number]:
            raise CheckpointError(_text(base / name, found, name, number))


def _of_range(file: File, name: str, start: int, stop: int, pieces: list[Piece]) -> int:
    """Return the checksum of a range, from those of its *pieces*, and of what is read between them.

    Ranks may have read the same bytes: of pieces that overlap, the first one counts.
    """
    crc, done = 0, start
    for _, offset, length, piece in [*pieces, (name, stop, 0, 0)]:
        if offset < done:
            continue
        if offset > done:
            data = np.frombuffer(files.section(file, done, offset - done), dtype=np.uint8)
            for _, _, size, between in pieces_of(name, data, done):
                crc = combined(crc, between, size)
        if length:
            crc = combined(crc, piece, length)
        done = max(done, offset + length)
    return crc


def _text(path: Path, found: Contents, name: str, number: int) -> str:
    """Return which bytes are damaged, and which arrays they belong to."""
    start, stop = number * CHECKSUM_RANGE, (number + 1) * CHECKSUM_RANGE
    arrays = [
        quote(stored.name)
        for stored in found.arrays.values()
        for s in stored.segments
        if s.file == name and s.offset < stop and s.offset + s.stop - s.start > start
    ]
    return f"{path} is damaged between bytes {start} and {stop}: array {', '.join(arrays) or 'none'}"
