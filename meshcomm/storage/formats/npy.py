"""NumPy's files, .npy: one array. Source: numpy.lib.format."""

import ast
import io
from pathlib import Path
from typing import ClassVar

import numpy as np
from numpy.lib import format as npy

from meshcomm._tuning import PAGE
from meshcomm.errors import CheckpointError, DTypeError
from meshcomm.storage import files
from meshcomm.storage.files import File
from meshcomm.storage.formats.base import Contents, FileWriter, checked_dtype, checked_shape, only_array, reading
from meshcomm.storage.stored import Stored, in_one_file

LONGEST_HEADER = 10_000  # as numpy.load has it, which also refuses longer ones


class NpyWriter(FileWriter):
    """A new .npy file."""

    has_metadata: ClassVar[bool] = False

    def lay_out(self, file: File) -> list[Stored]:
        array = only_array(self.arrays, ".npy")
        descr = npy.dtype_to_descr(array.dtype)
        if npy.descr_to_dtype(descr) != array.dtype:
            raise DTypeError(f"a .npy file cannot hold {array.dtype}: save it to a .safetensors file or to a folder")
        header = {"shape": array.shape, "fortran_order": False, "descr": descr}
        text = io.BytesIO()
        try:
            npy.write_array_header_1_0(text, header)
        except ValueError:
            npy.write_array_header_2_0(text, header)
        begins = _padded(text.getvalue())
        stored = in_one_file(array.name, array.shape, array.dtype, len(begins))
        file.sized(len(begins) + stored.nbytes)
        file.write(files.as_bytes_of(begins), 0)
        return [stored]


def _padded(header: bytes) -> bytes:
    """Return *header* with spaces before its last character, so that the array begins with a page of the file."""
    longer = -len(header) % PAGE
    size = 2 if header[6] == 1 else 4
    length = int.from_bytes(header[8 : 8 + size], "little") + longer
    if length > LONGEST_HEADER:
        if length - longer > LONGEST_HEADER:
            raise DTypeError(f"a .npy header of {length - longer} bytes, which numpy.load refuses: save to a folder")
        return header
    return header[:8] + length.to_bytes(size, "little") + header[8 + size : -1] + b" " * longer + header[-1:]


def contents(path: Path) -> Contents:
    """Return what the .npy file holds. ``CheckpointError`` if it is none, or shorter than its array."""
    with files.for_reading(path) as file:
        size = file.size()
        text = io.BytesIO(files.section(file, 0, min(size, LONGEST_HEADER + 100)))
    with reading(path):
        shape, fortran, dtype = _header(text)
    shape = checked_shape(shape, str(path), checked_dtype(dtype, str(path)).itemsize)
    stored = in_one_file("array", shape[::-1] if fortran else shape, dtype, text.tell())
    if size < text.tell() + stored.nbytes:
        raise CheckpointError(f"{path} has {size} bytes; its array ends at byte {text.tell() + stored.nbytes}")
    return Contents({"array": stored._replace(fortran=fortran and len(shape) > 1)}, {})


def _header(text: io.BytesIO) -> tuple[object, bool, np.dtype]:
    version = npy.read_magic(text)
    if version == (1, 0):
        return npy.read_array_header_1_0(text, max_header_size=LONGEST_HEADER)
    if version == (2, 0):
        return npy.read_array_header_2_0(text, max_header_size=LONGEST_HEADER)
    if version != (3, 0):
        raise ValueError(f"version {version}")
    length = int.from_bytes(text.read(4), "little")
    if length > LONGEST_HEADER:
        raise ValueError(f"a header of {length} bytes")
    found = ast.literal_eval(text.read(length).decode())
    if not isinstance(found, dict) or sorted(found) != ["descr", "fortran_order", "shape"]:
        raise ValueError("the header has other keys")
    if not isinstance(found["fortran_order"], bool) or not isinstance(found["shape"], tuple):
        raise ValueError("the header has values of other types")
    return found["shape"], found["fortran_order"], npy.descr_to_dtype(found["descr"])
