"""Checksums of fixed ranges of files, from the checksums of the pieces that ranks wrote or read.

A range is CHECKSUM_RANGE bytes of a file, whoever wrote them: so a checkpoint is the same for any number of ranks. The
checksum is CRC-32, as in zlib and gzip. It is linear: the checksum of two consecutive pieces follows from their
checksums and the length of the second one. Appending n zero bytes multiplies it by x**(8 n) modulo the polynomial;
repeated squaring computes this power.
"""

import zlib
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import TypeAlias

from meshcomm.core._types import Bytes

CHECKSUM_RANGE = 2**24
"""Bytes of a file that have one checksum. It is part of the format of checkpoints: never change it."""

Piece: TypeAlias = tuple[str, int, int, int]
"""A file, an offset, a number of bytes, and their checksum."""

_POLYNOMIAL = 0xEDB88320  # of CRC-32; the lowest bit is the highest power


def combine_checksums(first_crc: int, second_crc: int, length: int) -> int:
    """Return the checksum of two consecutive pieces from their checksums; the second one has *length* bytes.

    >>> combine_checksums(zlib.crc32(b"mesh"), zlib.crc32(b"comm"), 4) == zlib.crc32(b"meshcomm")
    True
    """
    return _product(first_crc, _power(length)) ^ second_crc


def cut_at_ranges(file: str, offset: int, nbytes: int) -> Iterator[tuple[str, int, int]]:
    """Yield bytes of a file, cut where ranges end: the file, an offset, and a number of bytes."""
    stop = offset + nbytes
    while offset < stop:
        size = min(stop - offset, CHECKSUM_RANGE - offset % CHECKSUM_RANGE)
        yield file, offset, size
        offset += size


def pieces_of(file: str, data: Bytes, offset: int) -> Iterator[Piece]:
    """Yield the checksums of *data*, which is in *file* at *offset*, cut where ranges end."""
    for _, piece_offset, size in cut_at_ranges(file, offset, len(data)):
        yield file, piece_offset, size, zlib.crc32(data[piece_offset - offset : piece_offset - offset + size].data)


def joined(pieces: Iterable[Piece]) -> list[Piece]:
    """Return the pieces, without duplicates, and with those joined that follow each other within a range."""
    result: list[Piece] = []
    for file, offset, size, crc in sorted(set(pieces)):
        if result and size:
            last_file, start, length, last_crc = result[-1]
            if last_file == file and start + length == offset and offset % CHECKSUM_RANGE:
                result[-1] = (file, start, length + size, combine_checksums(last_crc, crc, size))
                continue
        result.append((file, offset, size, crc))
    return result


@lru_cache(maxsize=1024)
def _power(length: int) -> int:
    """Return x**(8 * length) modulo the polynomial."""
    result, square = 1 << 31, 1 << 23  # 1, and x**8
    while length:
        if length & 1:
            result = _product(result, square)
        square = _product(square, square)
        length >>= 1
    return result


def _product(a: int, b: int) -> int:
    """Return the product of two polynomials modulo that of CRC-32."""
    result = 0
    for bit in range(31, -1, -1):
        if a >> bit & 1:
            result ^= b
        b = b >> 1 ^ _POLYNOMIAL if b & 1 else b >> 1
    return result
