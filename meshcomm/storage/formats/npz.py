"""NumPy's files of several arrays, .npz: a zip archive whose members are .npy files.

We write them stored, without compression: the bytes of a member are those of the array, and begin with a page. Of
others, stored members are read where they are, and deflated ones by one rank. Source:
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

_LOCAL = struct.Struct("<4s5H3I2H")
_CENTRAL = struct.Struct("<4s6H3I5H2I")
_END = struct.Struct("<4s4H2IH")
_END64 = struct.Struct("<4sQ2H2I4Q")
_LOCATOR = struct.Struct("<4sIQI")
_MOST = 2**32 - 1  # and this itself says that the number is elsewhere
_DATE = 0x21  # the first day that a zip archive can name: two saves of the same give the same bytes
_UTF8 = 0x800
_STEP = 2**22  # bytes that a member is decompressed by
_DEFLATED = 1032
"""At most so many bytes become one by deflate. Source: zlib's technical details."""


class _NewMember(NamedTuple):
    """A member: where it begins in the file, its name, the header of the .npy file, and where its array goes."""

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
        """Where the member ends: before its .npy file are a header of the archive, and its name."""
        return self.begin + _LOCAL.size + len(self.name) + 20 + self.size


class NpzWriter(FileWriter):
    """A new .npz file."""

    has_metadata: ClassVar[bool] = False
    checks: ClassVar[bool] = True

    def contents(self) -> FileContents:
        return contents(self.path)

    @classmethod
    def check_names(cls, names: list[str]) -> None:
        for name in names:
            # Those who unpack the archive make files of these names.
            outside = name.startswith("/") or ".." in name.split("/")
            if outside or "\0" in name or not 0 < len(name.encode()) <= 2**15:
                raise CheckpointError(f"{quote(name)} is no name of a member of a .npz file")

    def lay_out(self, file: File) -> list[Stored]:
        self._members: list[_NewMember] = []
        at = 0
        for array in self.arrays:
            name = f"{array.name}.npy".encode()
            begin = at + _LOCAL.size + len(name) + 20
            header = npy.header(array, begin)
            stored = in_one_file(array.name, array.shape, array.dtype, begin + len(header))
            self._members.append(_NewMember(at, name, header, stored))
            at = self._members[-1].end
        self._end = at
        file.sized(at + len(self._directory([0] * len(self.arrays))))
        return [member.stored for member in self._members]

    def commit(self, pieces: list[Piece]) -> None:
        sums = [_sum(member, pieces) for member in self._members]
        with files.for_writing(self.aside) as file:
            for member, crc in zip(self._members, sums, strict=True):
                file.write(_local(member, crc) + member.header, member.begin)
            file.write(self._directory(sums), self._end)
            file.sync()
        super().commit(pieces)

    def _directory(self, sums: list[int]) -> bytes:
        """Return the end of the file: an entry for each member, and where the entries begin."""
        entries = b"".join(_entry(member, crc) for member, crc in zip(self._members, sums, strict=True))
        count, end = len(self._members), self._end
        stop = end + len(entries)
        more = _END64.pack(b"PK\6\6", 44, 45, 45, 0, 0, count, count, len(entries), end)
        more += _LOCATOR.pack(b"PK\6\7", 0, stop, 1)
        few = min(count, 2**16 - 1)
        return entries + more + _END.pack(b"PK\5\6", 0, 0, few, few, min(len(entries), _MOST), min(end, _MOST), 0)


def _local(member: _NewMember, crc: int) -> bytes:
    """Return what comes before a member. Its sizes are 64 bits wide, as NumPy writes them."""
    flags = 0 if member.name.isascii() else _UTF8
    fields = (45, flags, ZIP_STORED, 0, _DATE, crc, _MOST, _MOST, len(member.name), 20)
    return _LOCAL.pack(b"PK\3\4", *fields) + member.name + struct.pack("<2H2Q", 1, 16, member.size, member.size)


def _entry(member: _NewMember, crc: int) -> bytes:
    """Return the entry of a member in the directory."""
    flags = 0 if member.name.isascii() else _UTF8
    fields = (45, 45, flags, ZIP_STORED, 0, _DATE, crc, _MOST, _MOST, len(member.name), 28, 0, 0, 0, 0, _MOST)
    more = struct.pack("<2H3Q", 1, 24, member.size, member.size, member.begin)
    return _CENTRAL.pack(b"PK\1\2", *fields) + member.name + more


def _sum(member: _NewMember, pieces: list[Piece]) -> int:
    """Return the checksum of a member: of its header, and of the *pieces* that the ranks wrote of its array."""
    checksum = crc32(member.header)
    at = member.stored.begin
    stop = at + member.stored.nbytes
    for _, offset, length, crc in pieces:
        if at == offset and length and offset < stop:
            checksum, at = combine_checksums(checksum, crc, length), at + length
    if at != stop:
        raise CheckpointError(f"array {quote(member.stored.name)} is not whole: byte {at} was not written")
    return checksum


# -- reading ----------------------------------------------------------------------------------------------------------


def contents(path: Path) -> FileContents:
    """Return what the .npz file holds. ``CheckpointError`` for another file, and for members beyond its end."""
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


def _member(archive: ZipFile, file: File, info: ZipInfo, what: str) -> Stored:
    """Return the array of a member."""
    if info.compress_type == ZIP_DEFLATED:
        if info.compress_size > file.size() or info.file_size > _DEFLATED * info.compress_size:
            raise CheckpointError(f"{what} is said to have {info.file_size} bytes, more than the file can hold")
        with archive.open(info) as member:
            return npy.stored_array(member.read(npy.HEADER_WITHIN), "", what, 0, info.file_size)
    start = files.section(file, info.header_offset, _LOCAL.size)
    signature, *_, name_length, extra_length = _LOCAL.unpack(start)
    begin = info.header_offset + _LOCAL.size + name_length + extra_length
    if signature != b"PK\3\4" or info.compress_size != info.file_size or begin + info.file_size > file.size():
        raise CheckpointError(f"{what} is not in the file")
    text = files.section(file, begin, min(info.file_size, npy.HEADER_WITHIN))
    return npy.stored_array(text, "", what, begin, info.file_size)


class Member:
    """A deflated member, as libraries have arrays: an index of slices decompresses what comes before it, once.

    If the array is in Fortran order, this is its transpose.
    """

    def __init__(self, path: Path, name: str) -> None:
        with reading(path):
            self._archive = ZipFile(path)
            info = self._archive.getinfo(f"{name}.npy")
            self._member = self._archive.open(info)
            stored = npy.stored_array(self._member.read(npy.HEADER_WITHIN), name, str(path), 0, info.file_size)
        self.shape, self.dtype = stored.shape, stored.dtype
        self._begin = stored.begin

    def __getitem__(self, index: tuple[slice, ...]) -> Array:
        shape = self.shape or (1,)
        rows, inside = range(*(index or (slice(0, 1),))[0].indices(shape[0])), index[1:]
        row = prod(shape[1:]) * self.dtype.itemsize
        lengths = [len(range(*item.indices(n))) for item, n in zip(inside, shape[1:], strict=True)]
        blocks = [np.empty((0, *lengths), self.dtype)]
        max_rows = max(1, _STEP // max(1, row))
        for first in range(rows.start, rows.stop if rows else rows.start, max_rows):
            last = min(first + max_rows, rows.stop)
            taken_rows = range(first + -(first - rows.start) % rows.step, last, rows.step)
            if taken_rows:
                self._member.seek(self._begin + first * row)
                block = np.frombuffer(self._read((last - first) * row), self.dtype).reshape(last - first, *shape[1:])
                blocks.append(block[(slice(taken_rows.start - first, None, rows.step), *inside)].copy())
        whole = np.concatenate(blocks)
        return whole if self.shape else whole.reshape(())

    def _read(self, size: int) -> bytes:
        data = self._member.read(size)
        if len(data) < size:
            raise CheckpointError(f"{self._archive.filename} is damaged: {quote(self._member.name)} ends early")
        return data

    def close(self) -> None:
        """Close the file."""
        self._member.close()
        self._archive.close()
