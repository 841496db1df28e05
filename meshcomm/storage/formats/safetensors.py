"""Files of safetensors: several arrays, one after the other, behind a header in JSON.

Source: https://huggingface.co/docs/safetensors. Arrays are in little-endian byte order, one after the other without
gaps. An index, ``*.safetensors.index.json``, maps each array to one of several files.
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
"""The most bytes of arrays in each of several .safetensors files with an index, as users of the library expect."""

INDEX = ".safetensors.index.json"
_NUMBERS = r"[0-9a-f]{16}-\d{5}-of-\d{5}\.safetensors"
_OUR_NAME = re.compile(rf".*-{_NUMBERS}")
MAX_HEADER_LENGTH = 100_000_000  # bytes, as its library has it

NUMPY_DTYPES = {
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
ML_DTYPES = {"BF16": "bfloat16", "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2", "F8_E8M0": "float8_e8m0fnu"}


class SafetensorsWriter(FileWriter):
    """Writes a new .safetensors file."""

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
        return _lay_out_file(file, _sorted_by_itemsize(self.arrays), self.metadata, "")


class SafetensorsIndexWriter(IndexedWriter):
    """Writes new .safetensors files of at most `MAX_SAFETENSORS_BYTES`, unless an array has more, and their index."""

    beside: ClassVar[bool] = True
    adds: ClassVar[bool] = True
    check_names = SafetensorsWriter.check_names
    _size = 0
    _old_index: Mapping[str, object] = {}
    _old_metadata: Mapping[str, object] = {}

    @property
    def index(self) -> Path:
        return self.path

    @property
    def _stem(self) -> str:
        return self.path.name.removesuffix(INDEX)

    @property
    def data_name_pattern(self) -> re.Pattern[str]:
        return re.compile(rf"{re.escape(self._stem)}-{_NUMBERS}")

    def names_in_index(self) -> set[str]:
        return {name for path in self._indices() for name in _weight_map(path)[1].values()}

    def has_index(self) -> bool:
        return bool(self._indices())

    def _indices(self) -> list[Path]:
        # All indices count: one may have been renamed or copied, and its data files keep the old name of the index.
        return [path for path in files.entries(self.path.parent) if path.name.endswith(INDEX)]

    def would_lose(self) -> list[str]:
        if not self.path.is_file():
            return []
        _, file_of, metadata = _weight_map(self.path)
        saved_names = {array.name for array in self.arrays}
        is_ours = all(_OUR_NAME.fullmatch(file) for file in file_of.values())  # an index may have been renamed
        other_arrays = [
            f"array {quote(name)} in {file}" for name, file in file_of.items() if not (is_ours and name in saved_names)
        ]
        return other_arrays + ([] if is_ours else [f"metadata {quote(key)}" for key in metadata])

    def begin(self) -> tuple[Path, list[Stored]]:
        if self.path.exists() and not self.path.is_file():
            raise FileExistsError(f"{self.path} is there and is no file")
        if "total_size" in self.metadata:
            raise TypeError("an index of .safetensors files has its own total_size: give the metadata another key")
        self.remove_leftovers()
        file_of_unchanged, to_copy = self._kept_and_copied() if self.mode == "a" and self.path.exists() else ({}, {})
        targets = self._lay_out([*self.arrays, *(ArrayToSave(n, s.shape, s.dtype, "") for n, s in to_copy.items())])
        for name, stored in to_copy.items():
            _copy(self.path.parent, stored, targets[name])
        self._file_of |= file_of_unchanged
        return self.path.parent, [targets[array.name] for array in self.arrays]

    def _kept_and_copied(self) -> tuple[dict[str, str], dict[str, Stored]]:
        """Return the old file of each array that stays there, and the arrays to copy to new files.

        Other libraries load whole files, so no file of the index may contain a replaced array. If one does, its other
        arrays are copied.
        """
        old_arrays, (index, files_of, metadata) = _indexed_contents(self.path).arrays, _weight_map(self.path)
        saved_names = {array.name for array in self.arrays}
        replaced_files = {file: name for name, file in files_of.items() if name in saved_names}
        for file, name in replaced_files.items():
            if not _OUR_NAME.fullmatch(file):
                raise CheckpointError(
                    f"{self.path.parent / file}, which another program wrote, has the array {quote(name)}, which "
                    "would be replaced: save all arrays to a new index, or this one with another name"
                )
        self._old_index, self._old_metadata = index, metadata
        other_files = {name: file for name, file in files_of.items() if name not in saved_names}
        self._size = sum(old_arrays[name].nbytes for name, file in other_files.items() if file not in replaced_files)
        copied_arrays = {name: old_arrays[name] for name, file in other_files.items() if file in replaced_files}
        return {name: file for name, file in other_files.items() if file not in replaced_files}, copied_arrays

    def _lay_out(self, arrays: list[ArrayToSave]) -> dict[str, Stored]:
        """Make new data files for *arrays*, and return the location of each array."""
        groups: list[list[_TypedArray]] = [[]]
        size = 0
        for array in _sorted_by_itemsize(arrays):
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
                stored += _lay_out_file(file, group, {}, name)
                file.sync()
            self._file_of |= {named.array.name: name for named in group}
        self._size += sum(target.nbytes for target in stored)
        return {target.name: target for target in stored}

    def commit(self, pieces: object) -> None:
        metadata = {"total_size": self._size, **self._old_metadata, **self.metadata}
        index = {**self._old_index, "metadata": metadata, "weight_map": dict(sorted(self._file_of.items()))}
        self.swap(json.dumps(index, indent=2, ensure_ascii=False).encode())


def _copy(folder: Path, source: Stored, target: Stored) -> None:
    """Copy an array from one data file to another, in steps."""
    for source_segment, target_segment in zip(source.segments, target.segments, strict=True):
        with (
            files.for_reading(folder / source_segment.file) as source_file,
            files.for_writing(folder / target_segment.file) as target_file,
        ):
            for offset in range(0, source.nbytes, READ_TOGETHER):
                data = np.empty(min(READ_TOGETHER, source.nbytes - offset), dtype=np.uint8)
                source_file.read(data, source_segment.offset + offset)
                target_file.write(data, target_segment.offset + offset)
            target_file.sync()


class _TypedArray(NamedTuple):
    """An array, and the name and the value of its dtype in the file."""

    array: ArrayToSave
    dtype_name: str
    dtype: DType

    @property
    def nbytes(self) -> int:
        return prod(self.array.shape) * self.dtype.itemsize


def _sorted_by_itemsize(arrays: list[ArrayToSave]) -> list[_TypedArray]:
    """Return the arrays in the order of the file: the largest elements first, so that all are aligned."""
    named = [_TypedArray(array, *_dtype_name(array)) for array in arrays]
    return sorted(named, key=lambda item: (-item.dtype.itemsize, item.array.name))


def _lay_out_file(file: File, arrays: list[_TypedArray], metadata: dict[str, object], file_name: str) -> list[Stored]:
    """Write the header to a new *file*, called *file_name*, and return the location of each array."""
    header: dict[str, object] = {"__metadata__": metadata} if metadata else {}
    offset, starts = 0, []
    for array, dtype_name, dtype in arrays:
        size = prod(array.shape) * dtype.itemsize
        header[array.name] = {"dtype": dtype_name, "shape": list(array.shape), "data_offsets": [offset, offset + size]}
        starts.append(offset)
        offset += size
    header_bytes = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    header_bytes += b" " * (-(8 + len(header_bytes)) % PAGE)
    if len(header_bytes) > MAX_HEADER_LENGTH:
        raise CheckpointError(f"the header of a .safetensors file has at most {MAX_HEADER_LENGTH} bytes")
    data_offset = 8 + len(header_bytes)
    file.sized(data_offset + offset)
    file.write(len(header_bytes).to_bytes(8, "little") + header_bytes, 0)
    return [
        in_one_file(array.name, array.shape, dtype, data_offset + start, file_name)
        for (array, _, dtype), start in zip(arrays, starts, strict=True)
    ]


def contents(path: Path) -> FileContents:
    """Return the contents of the file. ``CheckpointError`` for another file, or a damaged one."""
    if path.name.endswith(".index.json"):
        return _indexed_contents(path)
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
    subject = f"{path}: array {quote(name)}"
    if not isinstance(entry, dict) or sorted(entry) != ["data_offsets", "dtype", "shape"]:
        raise CheckpointError(f"{subject} has the entry {quote(entry)}; it must have dtype, shape and data_offsets")
    dtype = _dtype(entry["dtype"], subject)
    shape, offsets = checked_shape(entry["shape"], subject, dtype.itemsize), entry["data_offsets"]
    if not are_counts(offsets) or len(offsets) != 2:
        raise CheckpointError(f"{subject}: data_offsets {quote(offsets)} are no two offsets")
    start, stop = offsets
    if stop - start != prod(shape) * dtype.itemsize:
        raise CheckpointError(
            f"{subject} of {shape} {dtype} needs {prod(shape) * dtype.itemsize} bytes, not {stop - start}"
        )
    return (start, stop), name, shape, dtype


def _dtype(text: object, subject: str) -> DType:
    if isinstance(text, str) and text in NUMPY_DTYPES:
        return np.dtype(NUMPY_DTYPES[text])
    if isinstance(text, str) and text in ML_DTYPES:
        try:
            return np.dtype(getattr(import_module("ml_dtypes"), ML_DTYPES[text]))
        except ImportError:
            raise CheckpointError(f"{subject} is {text}: pip install ml_dtypes") from None
    raise CheckpointError(f"{subject}: dtype {quote(text)} is none that NumPy has")


def _dtype_name(array: ArrayToSave) -> tuple[str, DType]:
    """Return the name of the dtype of *array* in a header, and the dtype in the file."""
    dtype = array.dtype
    for text, name in ML_DTYPES.items():
        if dtype.name == name and dtype.isbuiltin == 2:  # of another package
            return text, dtype
    little_endian = dtype.newbyteorder("<")
    for text, name in NUMPY_DTYPES.items():
        if np.dtype(name) == little_endian:
            return text, little_endian
    raise DTypeError(
        f"a .safetensors file cannot hold {dtype}, of array {quote(array.name)}: save it to a folder, which holds "
        "every dtype"
    )


def _weight_map(path: Path) -> tuple[JsonObject, dict[str, str], JsonObject]:
    """Return the index at *path*, the file of each array, and the metadata."""
    index = parsed_json(files.whole(path, MAX_HEADER_LENGTH), path)
    index = index if isinstance(index, dict) else {}
    weight_map, metadata = index.get("weight_map"), index.get("metadata")
    files_of = (
        {name: file for name, file in weight_map.items() if isinstance(file, str)}
        if isinstance(weight_map, dict)
        else {}
    )
    if weight_map != files_of:
        raise CheckpointError(f"{path}: no index of .safetensors files: it needs weight_map, from arrays to files")
    metadata = dict(metadata) if isinstance(metadata, dict) else {}
    metadata.pop("total_size", None)  # no metadata of the user
    return index, files_of, metadata


def _refuse_link(file: Path) -> None:
    """Raise ``CheckpointError`` for a link to another folder, except in the cache of Hugging Face's hub.

    There the files of a model are links from ``snapshots/NAME/`` to ``blobs/``.
    """
    target, blobs_folder = Path(os.path.realpath(file)), file.parent.resolve().parents[:2][-1] / "blobs"
    allowed_folders = {file.parent.resolve(), *([] if blobs_folder.is_symlink() else [blobs_folder])}
    if file.is_symlink() and target.parent not in allowed_folders:
        raise CheckpointError(f"{file} is a link to {quote(str(target))}, another folder; copy it with cp -L")


def _indexed_contents(path: Path) -> FileContents:
    origins = {"": (path.name, *files.identity(path))}
    _, files_of, metadata = _weight_map(path)
    arrays: dict[str, Stored] = {}
    for file in sorted(set(files_of.values())):
        if Path(file).name != file or Path(file).suffix != ".safetensors" or not file.isprintable():
            raise CheckpointError(f"{path} names the file {quote(file)}; it must be a .safetensors file beside it")
        _refuse_link(path.parent / file)
        try:
            origin = (file, *files.identity(path.parent / file))
            file_arrays = contents(path.parent / file).arrays
        except FileNotFoundError:
            raise CheckpointError(f"{path} names the file {quote(file)}, which is not there") from None
        for name in (name for name, data_file in files_of.items() if data_file == file):
            if name not in file_arrays:
                raise CheckpointError(f"{path}: {file} has no array {quote(name)}")
            segments = tuple(segment._replace(file=file) for segment in file_arrays[name].segments)
            arrays[name], origins[name] = file_arrays[name]._replace(segments=segments), origin
    return FileContents(arrays, metadata, origins=origins)
