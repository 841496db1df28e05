"""Files of safetensors: several arrays, one after the other, behind a header in JSON.

Source: https://huggingface.co/docs/safetensors. Arrays are in little-endian byte order, in a row without holes. An
index file, ``*.safetensors.index.json``, says which of several files has which array; it can be read.
"""

import json
from importlib import import_module
from math import prod
from pathlib import Path

import numpy as np

from meshcomm._arguments import quote
from meshcomm._types import DType, Json
from meshcomm.errors import CheckpointError, DTypeError
from meshcomm.storage import files
from meshcomm.storage.files import File
from meshcomm.storage.formats.base import Contents, FileWriter, checked_shape, parsed_json
from meshcomm.storage.stored import Stored, in_one_file

LONGEST_HEADER = 100_000_000  # bytes, as its library has it

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
OF_ML_DTYPES = {
    "BF16": "bfloat16",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
    "F8_E8M0": "float8_e8m0fnu",
}


class SafetensorsWriter(FileWriter):
    """A new .safetensors file."""

    @classmethod
    def check_names(cls, names: list[str]) -> None:
        if "__metadata__" in names:
            raise CheckpointError("no array of a .safetensors file has the name '__metadata__'")

    def lay_out(self, file: File) -> list[Stored]:
        named = {array.name: (array, *_named(array.dtype)) for array in self.arrays}
        header: dict[str, Json] = {}
        if self.metadata:
            if not all(isinstance(value, str) for value in self.metadata.values()):
                raise TypeError("the metadata of a .safetensors file are texts, with texts as keys")
            header["__metadata__"] = self.metadata
        offset, laid_out = 0, []
        for name, (array, text, dtype) in sorted(named.items(), key=lambda item: (-item[1][2].itemsize, item[0])):
            size = prod(array.shape) * dtype.itemsize
            header[name] = {"dtype": text, "shape": list(array.shape), "data_offsets": [offset, offset + size]}
            laid_out.append((name, array.shape, dtype, offset))
            offset += size
        encoded = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
        encoded += b" " * (-len(encoded) % 8)
        first = 8 + len(encoded)
        if len(encoded) > LONGEST_HEADER:
            raise CheckpointError(f"the header of a .safetensors file has at most {LONGEST_HEADER} bytes")
        file.sized(first + offset)
        file.write(files.as_bytes_of(len(encoded).to_bytes(8, "little") + encoded), 0)
        return [in_one_file(name, shape, dtype, first + offset) for name, shape, dtype, offset in laid_out]


def contents(path: Path) -> Contents:
    """Return what the file holds. ``CheckpointError`` for another file, or one that is damaged."""
    if path.name.endswith(".index.json"):
        return _of_several(path)
    with files.for_reading(path) as file:
        size = file.size()
        length = int.from_bytes(files.section(file, 0, 8), "little") if size >= 8 else size
        if length > min(LONGEST_HEADER, size - 8):
            raise CheckpointError(f"{path}: a header of {length} bytes in a file of {size}; no .safetensors file")
        header = parsed_json(files.section(file, 8, length), path)
    if not isinstance(header, dict):
        raise CheckpointError(f"{path}: the header is {quote(header)}; it must be an object")
    metadata = header.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise CheckpointError(f"{path}: the metadata are {quote(metadata)}; they must be texts")
    found = [_checked(path, name, entry) for name, entry in header.items()]
    end = 0
    for (start, stop), name, _, _ in sorted(found, key=lambda item: item[0]):
        if start != end:
            raise CheckpointError(f"{path}: array {quote(name)} begins at byte {start} of the data; it must be {end}")
        end = stop
    if 8 + length + end != size:
        raise CheckpointError(f"{path} has {size} bytes; by its header it has {8 + length + end}")
    arrays = {name: in_one_file(name, shape, dtype, 8 + length + start) for (start, _), name, shape, dtype in found}
    return Contents(arrays, metadata)


def _checked(path: Path, name: str, entry: Json) -> tuple[tuple[int, int], str, tuple[int, ...], DType]:
    what = f"{path}: array {quote(name)}"
    if not isinstance(entry, dict) or sorted(entry) != ["data_offsets", "dtype", "shape"]:
        raise CheckpointError(f"{what} has the entry {quote(entry)}; it must have dtype, shape and data_offsets")
    dtype = _dtype(entry["dtype"], what)
    shape, offsets = checked_shape(entry["shape"], what, dtype.itemsize), entry["data_offsets"]
    if not isinstance(offsets, list) or len(offsets) != 2 or not all(type(n) is int and n >= 0 for n in offsets):
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
            found: DType = np.dtype(getattr(import_module("ml_dtypes"), OF_ML_DTYPES[text]))
            return found
        except ImportError:
            raise CheckpointError(f"{what} is {text}: pip install ml_dtypes") from None
    raise CheckpointError(f"{what}: dtype {quote(text)} is none that NumPy has")


def _named(dtype: DType) -> tuple[str, DType]:
    """Return the name of *dtype* in a header, and the dtype in the file."""
    for text, name in OF_ML_DTYPES.items():
        if dtype.name == name and dtype.kind == "V":
            return text, dtype
    little = dtype.newbyteorder("<")
    for text, name in OF_NUMPY.items():
        if np.dtype(name) == little:
            return text, little
    raise DTypeError(f"a .safetensors file cannot hold {dtype}: save it to a folder, which holds every dtype")


def _of_several(path: Path) -> Contents:
    index = parsed_json(files.whole(path, LONGEST_HEADER), path)
    names = index.get("weight_map") if isinstance(index, dict) else None
    if not isinstance(names, dict) or not all(isinstance(file, str) for file in names.values()):
        raise CheckpointError(f"{path}: no index of .safetensors files: it needs weight_map, from arrays to files")
    arrays: dict[str, Stored] = {}
    for file in sorted(set(names.values())):
        if Path(file).name != file or Path(file).suffix != ".safetensors" or not file.isprintable():
            raise CheckpointError(f"{path} names the file {quote(file)}; it must be a .safetensors file beside it")
        inside = contents(path.parent / file).arrays
        for name in (name for name, its_file in names.items() if its_file == file):
            if name not in inside:
                raise CheckpointError(f"{path}: {file} has no array {quote(name)}")
            segments = tuple(segment._replace(file=file) for segment in inside[name].segments)
            arrays[name] = inside[name]._replace(segments=segments)
    return Contents(arrays, {})
