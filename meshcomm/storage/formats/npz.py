"""NumPy's files of several arrays, .npz: a zip archive with .npy files as members.

We write stored members, without compression: the bytes of the array begin with a page. In archives of other programs,
stored members are read directly from the file, and deflated ones by one rank. Source:
https://pkware.cachefly.net/webdocs/casestudies/APPNOTE.TXT.
"""

import struct
from math import prod
from pathlib import Path
from typing import ClassVar, NamedTuple
from zipfile import ZIP_DEFLATED, ZIP_STORED, ZipFile, ZipInfo
from zlib import crc32

import numpy as np

from meshcomm.core._arguments import quote
from meshcomm.core._types import Array
from meshcomm.errors import CheckpointError
from meshcomm.storage import files
from meshcomm.storage.checksums import Piece, combine_checksums
from meshcomm.storage.files import File
from meshcomm.storage.formats import npy
from meshcomm.storage.formats.base import FileContents, FileWriter, reading, refuse_overlaps
from meshcomm.storage.stored import Stored, in_one_file

_LOCAL_HEADER = struct.Struct("<4s5H3I2H")
_DIRECTORY_ENTRY = struct.Struct("<4s6H3I5H2I")
_END_RECORD = struct.Struct("<4s4H2IH")
_END_RECORD_64 = struct.Struct("<4sQ2H2I4Q")
_END_LOCATOR = struct.Struct("<4sIQI")
_MAX_32_BITS = 2**32 - 1  # this value means that the number is in a 64-bit field
_FIRST_DATE = 0x21  # the first day that a zip archive can have: equal saves give equal bytes
_UTF8 = 0x800
_STEP_BYTES = 2**22  # bytes of a member that are decompressed at a time
_MAX_DEFLATE_RATIO = 1032
"""The most bytes that deflate compresses to one. Source: zlib's technical details."""


class _NewMember(NamedTuple):
    """A member: its offset in the file, its name, the header of the .npy file, and the location of its array."""

    begin: int
    name: bytes
    header: bytes
    stored: Stored

    @property
    def size(self) -> int:
        """The bytes of the .npy file."""
        return len(self.header) + self.stored.nbytes

    @property
    def end(self) -> int:
        """The offset of its end: before the .npy file are a header of the archive, and the name."""
        return self.begin + _LOCAL_HEADER.size + len(self.name) + 20 + self.size


class NpzWriter(FileWriter):
    """Writes a new .npz file."""

    has_metadata: ClassVar[bool] = False
    checks: ClassVar[bool] = True

    def contents(self) -> FileContents:
        return contents(self.path)

    @classmethod
    def check_names(cls, names: list[str]) -> None:
        for name in names:
            # Unpacking the archive makes files with these names.
            is_outside = name.startswith("/") or ".." in name.split("/")
            if is_outside or "\0" in name or not 0 < len(name.encode()) <= 2**15:
                raise CheckpointError(f"{quote(name)} is no name of a member of a .npz file")

    def lay_out(self, file: File) -> list[Stored]:
        self._members: list[_NewMember] = []
        offset = 0
        for array in self.arrays:
            name = f"{array.name}.npy".encode()
            begin = offset + _LOCAL_HEADER.size + len(name) + 20
            header = npy.header(array, begin)
            stored = in_one_file(array.name, array.shape, array.dtype, begin + len(header))
            self._members.append(_NewMember(offset, name, header, stored))
            offset = self._members[-1].end
        self._directory_offset = offset
        file.sized(offset + len(self._directory([0] * len(self.arrays))))
        return [member.stored for member in self._members]

    def commit(self, pieces: list[Piece]) -> None:
        checksums = [_member_checksum(member, pieces) for member in self._members]
        with files.for_writing(self.temporary_path) as file:
            for member, crc in zip(self._members, checksums, strict=True):
                file.write(_local_header(member, crc) + member.header, member.begin)
            file.write(self._directory(checksums), self._directory_offset)
            file.sync()
        super().commit(pieces)

    def _directory(self, checksums: list[int]) -> bytes:
        """Return the directory at the end of the file: an entry for each member, and the offset of the entries."""
        entries = b"".join(_directory_entry(member, crc) for member, crc in zip(self._members, checksums, strict=True))
        count, end = len(self._members), self._directory_offset
        stop = end + len(entries)
        end_records = _END_RECORD_64.pack(b"PK\6\6", 44, 45, 45, 0, 0, count, count, len(entries), end)
        end_records += _END_LOCATOR.pack(b"PK\6\7", 0, stop, 1)
        short_count = min(count, 2**16 - 1)
        return (
            entries
            + end_records
            + _END_RECORD.pack(
                b"PK\5\6", 0, 0, short_count, short_count, min(len(entries), _MAX_32_BITS), min(end, _MAX_32_BITS), 0
            )
        )


def _local_header(member: _NewMember, crc: int) -> bytes:
    """Return the header before a member. Its sizes have 64 bits, as NumPy writes them."""
    flags = 0 if member.name.isascii() else _UTF8
    fields = (45, flags, ZIP_STORED, 0, _FIRST_DATE, crc, _MAX_32_BITS, _MAX_32_BITS, len(member.name), 20)
    return _LOCAL_HEADER.pack(b"PK\3\4", *fields) + member.name + struct.pack("<2H2Q", 1, 16, member.size, member.size)


def _directory_entry(member: _NewMember, crc: int) -> bytes:
    """Return the entry of a member in the directory."""
    flags = 0 if member.name.isascii() else _UTF8
    fields = (
        45,
        45,
        flags,
        ZIP_STORED,
        0,
        _FIRST_DATE,
        crc,
        _MAX_32_BITS,
        _MAX_32_BITS,
        len(member.name),
        28,
        0,
        0,
        0,
        0,
        _MAX_32_BITS,
    )
    extra_field = struct.pack("<2H3Q", 1, 24, member.size, member.size, member.begin)
    return _DIRECTORY_ENTRY.pack(b"PK\1\2", *fields) + member.name + extra_field


def _member_checksum(member: _NewMember, pieces: list[Piece]) -> int:
    """Return the checksum of a member, from its header and the *pieces* of its array that the ranks wrote."""
    checksum = crc32(member.header)
    next_offset = member.stored.begin
    stop = next_offset + member.stored.nbytes
    for _, offset, length, crc in pieces:
        if next_offset == offset and length and offset < stop:
            checksum, next_offset = combine_checksums(checksum, crc, length), next_offset + length
    if next_offset != stop:
        raise CheckpointError(f"array {quote(member.stored.name)} is not whole: byte {next_offset} was not written")
    return checksum


# -- reading ----------------------------------------------------------------------------------------------------------


def contents(path: Path) -> FileContents:
    """Return the contents of the .npz file. ``CheckpointError`` for another file, and for members beyond its end."""
    arrays: dict[str, Stored] = {}
    left_out: dict[str, str] = {}
    with files.for_reading(path) as file, reading(path), ZipFile(path) as archive:
        for info in archive.infolist():
            name = info.filename.removesuffix(".npy")
            if name in arrays or name in left_out:
                raise CheckpointError(f"{path}: array {quote(name)} is there twice")
            if name == info.filename or info.flag_bits & 1 or info.compress_type not in (ZIP_STORED, ZIP_DEFLATED):
                left_out[name] = "it is no .npy file, stored or deflated"
                continue
            try:
                stored = _member(archive, file, info, f"{path}: {quote(info.filename)}")
            except CheckpointError as error:
                if not error.of_objects:
                    raise
                left_out[name] = str(error)
                continue
            arrays[name] = stored._replace(name=name)
            if info.compress_type == ZIP_DEFLATED and stored.nbytes:
                arrays[name] = arrays[name].by_library(stored.shape)
    refuse_overlaps(arrays, path)
    return FileContents(arrays, {}, left_out=left_out)


def _member(archive: ZipFile, file: File, info: ZipInfo, subject: str) -> Stored:
    """Return the array of a member."""
    if info.compress_type == ZIP_DEFLATED:
        if info.compress_size > file.size() or info.file_size > _MAX_DEFLATE_RATIO * info.compress_size:
            raise CheckpointError(f"{subject} is said to have {info.file_size} bytes, more than the file can hold")
        with archive.open(info) as member:
            return npy.stored_array(member.read(npy.MAX_HEADER_BYTES), "", subject, 0, info.file_size)
    local_header = files.section(file, info.header_offset, _LOCAL_HEADER.size)
    signature, *_, name_length, extra_length = _LOCAL_HEADER.unpack(local_header)
    begin = info.header_offset + _LOCAL_HEADER.size + name_length + extra_length
    if signature != b"PK\3\4" or info.compress_size != info.file_size or begin + info.file_size > file.size():
        raise CheckpointError(f"{subject} is not in the file")
    text = files.section(file, begin, min(info.file_size, npy.MAX_HEADER_BYTES))
    return npy.stored_array(text, "", subject, begin, info.file_size)


class Member:
    """A deflated member, as a `Sliced`: indexing decompresses all bytes up to the last row that it needs, once.

    If the array is in Fortran order, this is its transpose.
    """

    def __init__(self, path: Path, name: str) -> None:
        with reading(path):
            self._archive = ZipFile(path)
            info = self._archive.getinfo(f"{name}.npy")
            self._member = self._archive.open(info)
            stored = npy.stored_array(self._member.read(npy.MAX_HEADER_BYTES), name, str(path), 0, info.file_size)
        self.shape, self.dtype = stored.shape, stored.dtype
        self._begin = stored.begin

    def __getitem__(self, index: tuple[slice, ...]) -> Array:
        shape = self.shape or (1,)
        rows, inner_index = range(*(index or (slice(0, 1),))[0].indices(shape[0])), index[1:]
        row_bytes = prod(shape[1:]) * self.dtype.itemsize
        lengths = [len(range(*item.indices(n))) for item, n in zip(inner_index, shape[1:], strict=True)]
        blocks = [np.empty((0, *lengths), self.dtype)]
        max_rows = max(1, _STEP_BYTES // max(1, row_bytes))
        for row in range(rows.start, rows.stop if rows else rows.start, max_rows):
            end = min(row + max_rows, rows.stop)
            taken_rows = range(row + -(row - rows.start) % rows.step, end, rows.step)
            if taken_rows:
                self._member.seek(self._begin + row * row_bytes)
                block = np.frombuffer(self._read((end - row) * row_bytes), self.dtype).reshape(end - row, *shape[1:])
                blocks.append(block[(slice(taken_rows.start - row, None, rows.step), *inner_index)].copy())
        result = np.concatenate(blocks)
        return result if self.shape else result.reshape(())

    def _read(self, size: int) -> bytes:
        data = self._member.read(size)
        if len(data) < size:
            raise CheckpointError(f"{self._archive.filename} is damaged: {quote(self._member.name)} ends early")
        return data

    def close(self) -> None:
        """Close the file."""
        self._member.close()
        self._archive.close()
