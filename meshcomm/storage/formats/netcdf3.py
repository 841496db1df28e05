"""Classic netCDF files, read only: a header, then arrays in big-endian byte order.

Arrays along the record dimension have their rows one record apart; they are read record by record. Source:
https://docs.unidata.ucar.edu/netcdf-c/current/file_format_specifications.html.
"""

from math import prod
from pathlib import Path
from typing import NamedTuple

import numpy as np

from meshcomm.core._arguments import quote
from meshcomm.core._types import Array, DType, Shape
from meshcomm.core.memory.blocks import as_bytes
from meshcomm.errors import CheckpointError
from meshcomm.storage import files
from meshcomm.storage.formats.base import FileContents, checked_shape, refuse_overlaps
from meshcomm.storage.stored import Stored, in_one_file
from meshcomm.storage.values import attribute, decoded_text

MAGIC = b"CDF"
VERSIONS = (1, 2, 5)
MAX_HEADER_LENGTH = 2**26
_DIMENSIONS, _VARIABLES, _ATTRIBUTES = 10, 11, 12
_CHAR = 2
DTYPES = dict(enumerate(("i1", "S1", ">i2", ">i4", ">f4", ">f8", "u1", ">u2", ">u4", ">i8", ">u8"), 1))


class ClassicVariable(NamedTuple):
    """An array: its rows begin *apart* bytes from each other, from *begin* on, if it *has_records*."""

    name: str
    dims: tuple[str, ...]
    shape: Shape
    dtype: DType
    attributes: dict[str, object]
    begin: int
    has_records: bool


class _HeaderReader:
    """What is read of a header, from its beginning on."""

    def __init__(self, data: bytes, path: Path) -> None:
        self._data, self._at, self._path = data, 0, path
        self.version = data[3] if data[:3] == MAGIC and len(data) > 3 else 0
        if self.version not in VERSIONS:
            raise CheckpointError(f"{path} is no netCDF file of a known version")
        self._at = 4
        self.wide = 8 if self.version == 5 else 4

    def number(self, size: int | None = None) -> int:
        """Return the next integer, of *size* bytes; by default that of counts."""
        return int.from_bytes(self._take(size or self.wide), "big")

    def text(self) -> str:
        """Return the next name."""
        return decoded_text(self._padded(self.number()))

    def entries(self, tag: int) -> range:
        """Return the numbers of the entries of the list that follows; its kind is *tag*."""
        kind, count = self.number(4), self.number()
        if kind not in (0, tag) or (kind == 0 and count):
            raise CheckpointError(f"{self._path} is damaged: a list of kind {kind}; it must be {tag}")
        if count > len(self._data):
            raise CheckpointError(f"{self._path} is damaged: a list of {count} entries")
        return range(count)

    def dtype(self) -> tuple[int, DType]:
        """Return the next kind of elements, and its dtype."""
        kind = self.number(4)
        if kind not in DTYPES:
            raise CheckpointError(f"{self._path} is damaged: elements of kind {kind}")
        return kind, np.dtype(DTYPES[kind])

    def attributes(self) -> dict[str, object]:
        """Return the attributes that follow: texts, numbers, and arrays of more than one number."""
        result: dict[str, object] = {}
        for _ in self.entries(_ATTRIBUTES):
            name, (kind, dtype), count = self.text(), self.dtype(), self.number()
            raw = self._padded(count * dtype.itemsize)
            value = raw if kind == _CHAR else np.frombuffer(raw, dtype)
            result[name] = attribute(value[0] if kind != _CHAR and count == 1 else value)
        return result

    def _padded(self, size: int) -> bytes:
        return self._take(size + -size % 4)[:size]

    def _take(self, size: int) -> bytes:
        data = self._data[self._at : self._at + size]
        if len(data) < size:
            raise CheckpointError(f"{self._path} is damaged: its header ends early")
        self._at += size
        return data


class Classic(NamedTuple):
    """What a classic netCDF file says of itself; records are *apart* bytes from each other."""

    attributes: dict[str, object]
    variables: dict[str, ClassicVariable]
    apart: int
    size: int


def header(path: Path) -> Classic:
    """Return what the header says. ``CheckpointError`` if it is damaged."""
    with files.for_reading(path) as file:
        size = file.size()
        read = _HeaderReader(files.section(file, 0, min(size, MAX_HEADER_LENGTH)), path)
    records = read.number()
    dims = [(read.text(), read.number()) for _ in read.entries(_DIMENSIONS)]
    attributes = read.attributes()
    listed = [_variable(read, dims, path) for _ in read.entries(_VARIABLES)]
    in_records = [variable for variable in listed if variable.has_records]
    rows = [prod(variable.shape[1:]) * variable.dtype.itemsize for variable in in_records]
    apart = rows[0] if len(rows) == 1 else sum(row + -row % 4 for row in rows)
    begin = min((variable.begin for variable in in_records), default=0)
    if records == 256**read.wide - 1:  # a program that never knew how many it wrote
        records = (size - begin) // apart if apart else 0
    variables = {}
    for variable in listed:
        shape = (records, *variable.shape[1:]) if variable.has_records else variable.shape
        what = f"{path}: array {quote(variable.name)}"
        if variable.name in variables:
            raise CheckpointError(f"{what} is there twice")
        variables[variable.name] = variable._replace(shape=checked_shape(shape, what, variable.dtype.itemsize))
    return Classic(attributes, variables, apart, size)


def _variable(read: _HeaderReader, dims: list[tuple[str, int]], path: Path) -> ClassicVariable:
    name, numbers = read.text(), [read.number() for _ in range(read.number())]
    attributes, (_, dtype), _ = read.attributes(), read.dtype(), read.number()
    begin = read.number(4 if read.version == 1 else 8)
    if any(number >= len(dims) for number in numbers) or any(dims[number][1] == 0 for number in numbers[1:]):
        raise CheckpointError(f"{path}: array {quote(name)} has dimensions that are not there")
    shape = tuple(dims[number][1] for number in numbers)
    names = tuple(dims[number][0] for number in numbers)
    return ClassicVariable(name, names, shape, dtype, attributes, begin, bool(shape) and shape[0] == 0)


def contents(path: Path) -> FileContents:
    """Return what the file holds. ``CheckpointError`` if it is damaged, or shorter than its arrays."""
    classic = header(path)
    arrays: dict[str, Stored] = {}
    for name, variable in classic.variables.items():
        row = prod(variable.shape[1:]) * variable.dtype.itemsize
        apart = classic.apart if variable.has_records else row
        nbytes = prod(variable.shape) * variable.dtype.itemsize
        end = variable.begin + (nbytes if apart == row or not nbytes else (variable.shape[0] - 1) * apart + row)
        if nbytes and end > classic.size:
            raise CheckpointError(f"{path}: array {quote(name)} ends at byte {end}; the file has {classic.size}")
        arrays[name] = in_one_file(name, variable.shape, variable.dtype, variable.begin)
        if apart != row and nbytes:
            arrays[name] = arrays[name].by_library((1, *variable.shape[1:]))
    refuse_overlaps(arrays, path)
    attributes = {name: variable.attributes for name, variable in classic.variables.items() if variable.attributes}
    dims = {name: variable.dims for name, variable in classic.variables.items() if variable.dims}
    unlimited = {variable.dims[0]: None for variable in classic.variables.values() if variable.has_records}
    return FileContents(arrays, classic.attributes, attributes=attributes, dims=dims, unlimited=tuple(unlimited))


class Records:
    """An array whose rows are in records, as libraries have arrays: slices read the rows that they need."""

    def __init__(self, path: Path, name: str) -> None:
        classic = header(path)
        variable = classic.variables[name]
        self.shape, self.dtype = variable.shape, variable.dtype
        self._file, self._begin, self._apart = files.for_reading(path), variable.begin, classic.apart

    def __getitem__(self, index: tuple[slice, ...]) -> Array:
        rows = range(*index[0].indices(self.shape[0]))
        row = np.empty(self.shape[1:], self.dtype)
        result = np.empty((len(rows), *row[index[1:]].shape), self.dtype)
        for number, record in enumerate(rows):
            self._file.read(as_bytes(row), self._begin + record * self._apart)
            result[number] = row[index[1:]]
        return result

    def close(self) -> None:
        """Close the file."""
        self._file.close()
