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
    """An array from the offset *begin* on; if it *has_records*, its rows are in records, and begin there."""

    name: str
    dims: tuple[str, ...]
    shape: Shape
    dtype: DType
    attributes: dict[str, object]
    begin: int
    has_records: bool


class _HeaderReader:
    """Reads a header, from its beginning on."""

    def __init__(self, data: bytes, path: Path) -> None:
        self._data, self._offset, self._path = data, 0, path
        self.version = data[3] if data[:3] == MAGIC and len(data) > 3 else 0
        if self.version not in VERSIONS:
            raise CheckpointError(f"{path} is no netCDF file of a known version")
        self._offset = 4
        self.count_size = 8 if self.version == 5 else 4

    def number(self, size: int | None = None) -> int:
        """Return the next integer, of *size* bytes; by default the size of counts."""
        return int.from_bytes(self._take(size or self.count_size), "big")

    def text(self) -> str:
        """Return the next name."""
        return decoded_text(self._padded(self.number()))

    def entries(self, tag: int) -> range:
        """Return a range with the length of the list that follows; its kind is *tag*."""
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
            data = self._padded(count * dtype.itemsize)
            value = data if kind == _CHAR else np.frombuffer(data, dtype)
            result[name] = attribute(value[0] if kind != _CHAR and count == 1 else value)
        return result

    def _padded(self, size: int) -> bytes:
        return self._take(size + -size % 4)[:size]

    def _take(self, size: int) -> bytes:
        data = self._data[self._offset : self._offset + size]
        if len(data) < size:
            raise CheckpointError(f"{self._path} is damaged: its header ends early")
        self._offset += size
        return data


class ClassicHeader(NamedTuple):
    """The header of a classic netCDF file of *size* bytes; records begin *record_bytes* from each other."""

    attributes: dict[str, object]
    variables: dict[str, ClassicVariable]
    record_bytes: int
    size: int


def header(path: Path) -> ClassicHeader:
    """Return the header of a file. ``CheckpointError`` if it is damaged."""
    with files.for_reading(path) as file:
        size = file.size()
        reader = _HeaderReader(files.section(file, 0, min(size, MAX_HEADER_LENGTH)), path)
    records = reader.number()
    dims = [(reader.text(), reader.number()) for _ in reader.entries(_DIMENSIONS)]
    attributes = reader.attributes()
    header_variables = [_variable(reader, dims, path) for _ in reader.entries(_VARIABLES)]
    record_variables = [variable for variable in header_variables if variable.has_records]
    row_sizes = [prod(variable.shape[1:]) * variable.dtype.itemsize for variable in record_variables]
    record_bytes = row_sizes[0] if len(row_sizes) == 1 else sum(row_size + -row_size % 4 for row_size in row_sizes)
    records_begin = min((variable.begin for variable in record_variables), default=0)
    if records == 256**reader.count_size - 1:  # a program wrote records without counting them
        records = (size - records_begin) // record_bytes if record_bytes else 0
    variables = {}
    for variable in header_variables:
        shape = (records, *variable.shape[1:]) if variable.has_records else variable.shape
        subject = f"{path}: array {quote(variable.name)}"
        if variable.name in variables:
            raise CheckpointError(f"{subject} is there twice")
        variables[variable.name] = variable._replace(shape=checked_shape(shape, subject, variable.dtype.itemsize))
    return ClassicHeader(attributes, variables, record_bytes, size)


def _variable(reader: _HeaderReader, dims: list[tuple[str, int]], path: Path) -> ClassicVariable:
    name, dim_numbers = reader.text(), [reader.number() for _ in range(reader.number())]
    attributes, (_, dtype), _ = reader.attributes(), reader.dtype(), reader.number()
    begin = reader.number(4 if reader.version == 1 else 8)
    if any(number >= len(dims) for number in dim_numbers) or any(dims[number][1] == 0 for number in dim_numbers[1:]):
        raise CheckpointError(f"{path}: array {quote(name)} has dimensions that are not there")
    shape = tuple(dims[number][1] for number in dim_numbers)
    names = tuple(dims[number][0] for number in dim_numbers)
    return ClassicVariable(name, names, shape, dtype, attributes, begin, bool(shape) and shape[0] == 0)


def contents(path: Path) -> FileContents:
    """Return the contents of the file. ``CheckpointError`` if it is damaged, or shorter than its arrays."""
    classic = header(path)
    arrays: dict[str, Stored] = {}
    for name, variable in classic.variables.items():
        row_bytes = prod(variable.shape[1:]) * variable.dtype.itemsize
        stride = classic.record_bytes if variable.has_records else row_bytes
        nbytes = prod(variable.shape) * variable.dtype.itemsize
        end = variable.begin + (
            nbytes if stride == row_bytes or not nbytes else (variable.shape[0] - 1) * stride + row_bytes
        )
        if nbytes and end > classic.size:
            raise CheckpointError(f"{path}: array {quote(name)} ends at byte {end}; the file has {classic.size}")
        arrays[name] = in_one_file(name, variable.shape, variable.dtype, variable.begin)
        if stride != row_bytes and nbytes:
            arrays[name] = arrays[name].by_library((1, *variable.shape[1:]))
    refuse_overlaps(arrays, path)
    attributes = {name: variable.attributes for name, variable in classic.variables.items() if variable.attributes}
    dims = {name: variable.dims for name, variable in classic.variables.items() if variable.dims}
    unlimited = {variable.dims[0]: None for variable in classic.variables.values() if variable.has_records}
    return FileContents(arrays, classic.attributes, attributes=attributes, dims=dims, unlimited=tuple(unlimited))


class Records:
    """An array with rows in records, as a `Sliced`: indexing reads the rows that it needs."""

    def __init__(self, path: Path, name: str) -> None:
        classic = header(path)
        variable = classic.variables[name]
        self.shape, self.dtype = variable.shape, variable.dtype
        self._file, self._begin, self._record_bytes = files.for_reading(path), variable.begin, classic.record_bytes

    def __getitem__(self, index: tuple[slice, ...]) -> Array:
        rows = range(*index[0].indices(self.shape[0]))
        row = np.empty(self.shape[1:], self.dtype)
        result = np.empty((len(rows), *row[index[1:]].shape), self.dtype)
        for number, record in enumerate(rows):
            self._file.read(as_bytes(row), self._begin + record * self._record_bytes)
            result[number] = row[index[1:]]
        return result

    def close(self) -> None:
        """Close the file."""
        self._file.close()
