"""Checksums of checkpoints, compared with those of the data that were read, or of whole files."""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import numpy as np

from meshcomm.blocks.session import Session
from meshcomm.core._arguments import quote
from meshcomm.errors import CheckpointError
from meshcomm.storage import files
from meshcomm.storage.checksums import CHECKSUM_RANGE, Piece, combine_checksums, pieces_of
from meshcomm.storage.files import File
from meshcomm.storage.formats.base import FileContents
from meshcomm.storage.transfer import OpenFiles, gathered_pieces


def compare_checksums(base: Path, contents: FileContents, open_files: OpenFiles, session: Session) -> None:
    """Raise ``CheckpointError`` unless the data read by all ranks have the right checksums. Collective over the mesh.

    Device 0 of the mesh reads the rest of ranges that were not read as a whole.
    """
    pieces = gathered_pieces(open_files.pieces, session)
    session.agree_on_result("the checksums of a load", lambda: _compare(base, contents, pieces))


def verify(path: Path, contents: FileContents) -> list[str]:
    """Return the problems of the files of a checkpoint: a line for each range with a wrong checksum."""
    assert contents.checks is not None
    problems = []
    for name, checks in contents.checks.items():
        with files.for_reading(path / name) as file:
            for number, expected_crc in enumerate(checks):
                if _range_checksum(file, name, number, []) != expected_crc:
                    problems.append(_damage_text(path / name, contents, name, number))
    return problems


def rest_of_ranges(pieces: Iterable[Piece], sizes: Mapping[str, int]) -> Iterator[tuple[str, int, int]]:
    """Yield the other bytes of the ranges of *pieces*, which are read to compare checksums: file, offset and length.

    *sizes* are the lengths of the files in bytes, by name.
    """
    for (name, number), range_pieces in _by_range(pieces).items():
        for offset, length, crc in _range_spans(number, sizes[name], range_pieces):
            if crc is None:
                yield name, offset, length


def _by_range(pieces: Iterable[Piece]) -> dict[tuple[str, int], list[Piece]]:
    result: dict[tuple[str, int], list[Piece]] = {}
    for piece in pieces:
        result.setdefault((piece[0], piece[1] // CHECKSUM_RANGE), []).append(piece)
    return result


def _compare(base: Path, contents: FileContents, pieces: list[Piece]) -> None:
    assert contents.checks is not None
    for (name, number), range_pieces in _by_range(pieces).items():
        with files.for_reading(base / name) as file:
            crc = _range_checksum(file, name, number, range_pieces)
        if crc != contents.checks[name][number]:
            raise CheckpointError(_damage_text(base / name, contents, name, number))


def _range_spans(number: int, size: int, pieces: list[Piece]) -> Iterator[tuple[int, int, int | None]]:
    """Yield the offset, the length and the checksum of each of the *pieces* of a range, and of the gaps between them.

    It is range *number* of a file of *size* bytes. The checksum of a gap is None. Ranks may have read the same bytes:
    of pieces that overlap, the first one counts.
    """
    span_start, stop = number * CHECKSUM_RANGE, min((number + 1) * CHECKSUM_RANGE, size)
    for _, offset, length, crc in pieces:
        if offset < span_start or not length:
            continue
        if offset > span_start:
            yield span_start, offset - span_start, None
        yield offset, length, crc
        span_start = offset + length
    if span_start < stop:
        yield span_start, stop - span_start, None


def _range_checksum(file: File, name: str, number: int, pieces: list[Piece]) -> int:
    """Return the checksum of a range, from those of its *pieces* and of the gaps, which are read."""
    checksum = 0
    for offset, length, crc in _range_spans(number, file.size(), pieces):
        if crc is None:
            data = np.frombuffer(files.section(file, offset, length), dtype=np.uint8)
            ((_, _, _, crc),) = pieces_of(name, data, offset)  # no piece goes beyond its range
        checksum = combine_checksums(checksum, crc, length)
    return checksum


def _damage_text(path: Path, contents: FileContents, name: str, number: int) -> str:
    """Return a text with the damaged bytes, and the arrays that they belong to."""
    assert contents.sizes is not None
    start = number * CHECKSUM_RANGE
    stop = min(start + CHECKSUM_RANGE, contents.sizes[name])
    arrays = [
        quote(stored.name)
        for stored in contents.arrays.values()
        for s in stored.segments
        if s.file == name and s.offset < stop and s.offset + s.stop - s.start > start
    ]
    return f"{path} is damaged between bytes {start} and {stop}: array {', '.join(arrays) or 'none'}"
