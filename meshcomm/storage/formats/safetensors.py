"""Files of safetensors: several arrays, one after the other, behind a header in JSON.

Source: https://huggingface.co/docs/safetensors. Arrays are in little-endian byte order, in a row without holes. An
index, ``*.safetensors.index.json``, says which of several files has which array.
"""

import json
import os
import re
from collections.abc import Mapping
from importlib import import_module
from math import prod
from pathlib import Path
from typing import ClassVar, NamedTuple

import numpy as np

from meshcomm.core._arguments import quote
from meshcomm.core._json import are_counts
from meshcomm.core._tuning import PAGE
from meshcomm.core._types import DType, JsonObject
from meshcomm.errors import CheckpointError, DTypeError
from meshcomm.storage import files
from meshcomm.storage.files import File
from meshcomm.storage.formats.base import ArrayToSave, FileContents, FileWriter, checked_shape, parsed_json
from meshcomm.storage.formats.indexed import IndexedWriter
from meshcomm.storage.selection import READ_TOGETHER
from meshcomm.storage.stored import Stored, in_one_file

MAX_SAFETENSORS_BYTES = 5 * 10**9
"""Bytes of arrays in each of several .safetensors files with an index: what its library's users expect."""

INDEX = ".safetensors.index.json"
_NUMBERS = r"[0-9a-f]{16}-\d{5}-of-\d{5}\.safetensors"
_OURS = re.compile(rf".*-{_NUMBERS}")
MAX_HEADER_LENGTH = 100_000_000  # bytes, as its library has it

OF_NUMPY = {
    "BOOL": "?",
    "U8": "u1",
    "I8": "i1",
    "U16": "<u2",
    "I16": "<i2",
    "F16": "<f2",
    "U32": "<u4",
    "I32": "<i4",
    "F32": "<f4",
    "U64": "<u8",
    "I64": "<i8",
    "F64": "<f8",
    "C64": "<c8",
}
OF_ML_DTYPES = {"BF16": "bfloat16", "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2", "F8_E8M0": "float8_e8m0fnu"}


class SafetensorsWriter(FileWriter):
    """A new .safetensors file."""

    metadata_types: ClassVar[tuple[type, ...]] = (str,)

    @classmethod
    def check_names(cls, names: list[str]) -> None:
        if "__metadata__" in names:
            raise CheckpointError("no array of a .safetensors file has the name '__metadata__'")

    def contents(self) -> FileContents:
        return contents(self.path)

    def lay_out(self, file: File) -> list[Stored]:
        if not all(isinstance(value, str) for value in self.metadata.values()):
            raise TypeError("the metadata of a .safetensors file are texts, with texts as keys")
        return _laid_out(file, _in_order(self.arrays), self.metadata, "")


class SafetensorsIndexWriter(IndexedWriter):
    """New .safetensors files of at most `MAX_SAFETENSORS_BYTES` bytes, unless an array has more, and their index."""

    beside: ClassVar[bool] = True
    adds: ClassVar[bool] = True
    check_names = SafetensorsWriter.check_names
    _size = 0
    _old: Mapping[str, object] = {}
    _old_metadata: Mapping[str, object] = {}

    @property
    def index(self) -> Path:
        return self.path

    @property
    def _stem(self) -> str:
        return self.path.name.removesuffix(INDEX)

    @property
    def data_names(self) -> re.Pattern[str]:
        return re.compile(rf"{re.escape(self._stem)}-{_NUMBERS}")

    def named(self) -> set[str]:
        return {name for path in self._indices() for name in _weight_map(path)[1].values()}

    def has_index(self) -> bool:
        return bool(self._indices())

    def _indices(self) -> list[Path]:
        # Others too: an index may have been renamed, or copied, and its data files have the names that it had.
        return [path for path in files.entries(self.path.parent) if path.name.endswith(INDEX)]

    def would_lose(self) -> list[str]:
        if not self.path.is_file():
            return []
        _, names, metadata = _weight_map(self.path)
        saved = {array.name for array in self.arrays}
        ours = all(_OURS.fullmatch(file) for file in names.values())  # an index may have been renamed
        others = [f"array {quote(name)} in {file}" for name, file in names.items() if not (ours and name in saved)]
        return others + ([] if ours else [f"metadata {quote(key)}" for key in metadata])

    def begin(self) -> tuple[Path, list[Stored]]:
        if self.path.exists() and not self.path.is_file():
            raise FileExistsError(f"{self.path} is there and is no file")
        if "total_size" in self.metadata:
            raise TypeError("an index of .safetensors files has its own total_size: give the metadata another key")
        self.remove_leftovers()
        unchanged, copied = self._kept() if self.mode == "a" and self.path.exists() else ({}, {})
        targets = self._lay_out([*self.arrays, *(ArrayToSave(n, s.shape, s.dtype, "") for n, s in copied.items())])
        for name, stored in copied.items():
            _copy(self.path.parent, stored, targets[name])
        self._file_of |= unchanged
        return self.path.parent, [targets[array.name] for array in self.arrays]

    def _kept(self) -> tuple[dict[str, str], dict[str, Stored]]:
        """Return which old files keep which arrays, and which arrays are copied: others in their file are replaced.

        Other libraries load whole files: in none that the index names may an array stand that was replaced.
        """
        old_arrays, (index, files_of, metadata) = _of_several(self.path).arrays, _weight_map(self.path)
        saved = {array.name for array in self.arrays}
        replaced = {file: name for name, file in files_of.items() if name in saved}
        for file, name in replaced.items():
            if not _OURS.fullmatch(file):
                raise CheckpointError(
                    f"{self.path.parent / file}, which another program wrote, has the array {quote(name)}, which "
                    "would be replaced: save all arrays to a new index, or this one with another name"
                )
        self._old, self._old_metadata = index, metadata
        left = {name: file for name, file in files_of.items() if name not in saved}
        self._size = sum(old_arrays[name].nbytes for name, file in left.items() if file not in replaced)
        copied = {name: old_arrays[name] for name, file in left.items() if file in replaced}
        return {name: file for name, file in left.items() if file not in replaced}, copied

    def _lay_out(self, arrays: list[ArrayToSave]) -> dict[str, Stored]:
        """Make new data files for *arrays*, and return where each goes."""
        groups: list[list[_Named]] = [[]]
        size = 0
        for array in _in_order(arrays):
            if groups[-1] and size + array.nbytes > MAX_SAFETENSORS_BYTES:
                groups.append([])
                size = 0
            groups[-1].append(array)
            size += array.nbytes
        stored: list[Stored] = []
        self._file_of: dict[str, str] = {}
        for number, group in enumerate(groups, 1):
            name = f"{self._stem}-{self.tag}-{number:05}-of-{len(groups):05}.safetensors"
            with self.new_data(name) as file:
                stored += _laid_out(file, group, {}, name)
                file.sync()
            self._file_of |= {named.array.name: name for named in group}
        self._size += sum(target.nbytes for target in stored)
        return {target.name: target for target in stored}

    def commit(self, pieces: object) -> None:
        metadata = {"total_size": self._size, **self._old_metadata, **self.metadata}
        index = {**self._old, "metadata": metadata, "weight_map": dict(sorted(self._file_of.items()))}
        self.swap(json.dumps(index, indent=2, ensure_ascii=False).encode())


def _copy(folder: Path, source: Stored, target: Stored) -> None:
    """Copy an array from one data file to another, in steps."""
    for one, other in zip(source.segments, target.segments, strict=True):
        with files.for_reading(folder / one.file) as old, files.for_writing(folder / other.file) as new:
            for at in range(0, source.nbytes, READ_TOGETHER):
                data = np.empty(min(READ_TOGETHER, source.nbytes - at), dtype=np.uint8)
                old.read(data, one.offset + at)
                new.write(data, other.offset + at)
            new.sync()


class _Named(NamedTuple):
    """An array, and its dtype in the file: the name of it, and itself."""

    array: ArrayToSave
    text: str
    dtype: DType

    @property
    def nbytes(self) -> int:
        return prod(self.array.shape) * self.dtype.itemsize


def _in_order(arrays: list[ArrayToSave]) -> list[_Named]:
    """Return the arrays as files have them: the largest elements first, so that all are aligned."""
    named = [_Named(array, *_dtype_name(array)) for array in arrays]
    return sorted(named, key=lambda item: (-item.dtype.itemsize, item.array.name))


def _laid_out(file: File, arrays: list[_Named], metadata: dict[str, object], called: str) -> list[Stored]:
    """Write the header to a new *file*, which the other ranks know as *called*, and return where each array goes."""
    header: dict[str, object] = {"__metadata__": metadata} if metadata else {}
    offset, starts = 0, []
    for array, text, dtype in arrays:
        size = prod(array.shape) * dtype.itemsize
        header[array.name] = {"dtype": text, "shape": list(array.shape), "data_offsets": [offset, offset + size]}
        starts.append(offset)
        offset += size
    encoded = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    encoded += b" " * (-(8 + len(encoded)) % PAGE)
    if len(encoded) > MAX_HEADER_LENGTH:
        raise CheckpointError(f"the header of a .safetensors file has at most {MAX_HEADER_LENGTH} bytes")
    first = 8 + len(encoded)
    file.sized(first + offset)
    file.write(len(encoded).to_bytes(8, "little") + encoded, 0)
    return [
        in_one_file(array.name, array.shape, dtype, first + start, called)
        for (array, _, dtype), start in zip(arrays, starts, strict=True)
    ]


def contents(path: Path) -> FileContents:
    """Return what the file holds. ``CheckpointError`` for another file, or one that is damaged."""
    if path.name.endswith(".index.json"):
        return _of_several(path)
    with files.for_reading(path) as file:
        size = file.size()
        length = int.from_bytes(files.section(file, 0, 8), "little") if size >= 8 else size
        if length > min(MAX_HEADER_LENGTH, size - 8):
            raise CheckpointError(f"{path}: a header of {length} bytes in a file of {size}; no .safetensors file")
        header = parsed_json(files.section(file, 8, length), path)
    if not isinstance(header, dict):
        raise CheckpointError(f"{path}: the header is {quote(header)}; it must be an object")
    metadata = header.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise CheckpointError(f"{path}: the metadata are {quote(metadata)}; they must be texts")
    entries = [_entry_fields(path, name, entry) for name, entry in header.items()]
    end = 0
    for (start, stop), name, _, _ in sorted(entries, key=lambda item: item[0]):
        if start != end:
            raise CheckpointError(f"{path}: array {quote(name)} begins at byte {start} of the data; it must be {end}")
        end = stop
    if 8 + length + end != size:
        raise CheckpointError(f"{path} has {size} bytes; by its header it has {8 + length + end}")
    arrays = {name: in_one_file(name, shape, dtype, 8 + length + start) for (start, _), name, shape, dtype in entries}
    return FileContents(arrays, metadata)


def _entry_fields(path: Path, name: str, entry: object) -> tuple[tuple[int, int], str, tuple[int, ...], DType]:
    what = f"{path}: array {quote(name)}"
    if not isinstance(entry, dict) or sorted(entry) != ["data_offsets", "dtype", "shape"]:
        raise CheckpointError(f"{what} has the entry {quote(entry)}; it must have dtype, shape and data_offsets")
    dtype = _dtype(entry["dtype"], what)
    shape, offsets = checked_shape(entry["shape"], what, dtype.itemsize), entry["data_offsets"]
    if not are_counts(offsets) or len(offsets) != 2:
        raise CheckpointError(f"{what}: data_offsets {quote(offsets)} are no two offsets")
    start, stop = offsets
    if stop - start != prod(shape) * dtype.itemsize:
        raise CheckpointError(
            f"{what} of {shape} {dtype} needs {prod(shape) * dtype.itemsize} bytes, not {stop - start}"
        )
    return (start, stop), name, shape, dtype


def _dtype(text: object, what: str) -> DType:
    if isinstance(text, str) and text in OF_NUMPY:
        return np.dtype(OF_NUMPY[text])
    if isinstance(text, str) and text in OF_ML_DTYPES:
        try:
            return np.dtype(getattr(import_module("ml_dtypes"), OF_ML_DTYPES[text]))
        except ImportError:
            raise CheckpointError(f"{what} is {text}: pip install ml_dtypes") from None
    raise CheckpointError(f"{what}: dtype {quote(text)} is none that NumPy has")


def _dtype_name(array: ArrayToSave) -> tuple[str, DType]:
    """Return the name of the dtype of *array* in a header, and the dtype in the file."""
    dtype = array.dtype
    for text, name in OF_ML_DTYPES.items():
        if dtype.name == name and dtype.isbuiltin == 2:  # of another package
            return text, dtype
    little = dtype.newbyteorder("<")
    for text, name in OF_NUMPY.items():
        if np.dtype(name) == little:
            return text, little
    raise DTypeError(
        f"a .safetensors file cannot hold {dtype}, of array {quote(array.name)}: save it to a folder, which holds "
        "every dtype"
    )


def _weight_map(path: Path) -> tuple[JsonObject, dict[str, str], JsonObject]:
    """Return the index at *path*, which file has which array, and the metadata."""
    index = parsed_json(files.whole(path, MAX_HEADER_LENGTH), path)
    index = index if isinstance(index, dict) else {}
    names, metadata = index.get("weight_map"), index.get("metadata")
    files_of = {name: file for name, file in names.items() if isinstance(file, str)} if isinstance(names, dict) else {}
    if names != files_of:
        raise CheckpointError(f"{path}: no index of .safetensors files: it needs weight_map, from arrays to files")
    metadata = dict(metadata) if isinstance(metadata, dict) else {}
    metadata.pop("total_size", None)  # no metadata of the user
    return index, files_of, metadata


def _refuse_link(file: Path) -> None:
    """Raise ``CheckpointError`` for a link to a file elsewhere, but for those of the cache of Hugging Face's hub.

    There the files of a model are links from ``snapshots/NAME/`` to ``blobs/``.
    """
    target, blobs = Path(os.path.realpath(file)), file.parent.resolve().parents[:2][-1] / "blobs"
    beside = {file.parent.resolve(), *([] if blobs.is_symlink() else [blobs])}
    if file.is_symlink() and target.parent not in beside:
        raise CheckpointError(f"{file} is a link to {quote(str(target))}, another folder; copy it with cp -L")


def _of_several(path: Path) -> FileContents:
    origins = {"": (path.name, *files.identity(path))}
    _, names, metadata = _weight_map(path)
    arrays: dict[str, Stored] = {}
    for file in sorted(set(names.values())):
        if Path(file).name != file or Path(file).suffix != ".safetensors" or not file.isprintable():
            raise CheckpointError(f"{path} names the file {quote(file)}; it must be a .safetensors file beside it")
        _refuse_link(path.parent / file)
        try:
            origin = (file, *files.identity(path.parent / file))
            inside = contents(path.parent / file).arrays
        except FileNotFoundError:
            raise CheckpointError(f"{path} names the file {quote(file)}, which is not there") from None
        for name in (name for name, data_file in names.items() if data_file == file):
            if name not in inside:
                raise CheckpointError(f"{path}: {file} has no array {quote(name)}")
            segments = tuple(segment._replace(file=file) for segment in inside[name].segments)
            arrays[name], origins[name] = inside[name]._replace(segments=segments), origin
    return FileContents(arrays, metadata, origins=origins)
