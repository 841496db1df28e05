"""NumPy's files, .npy: one array. Source: numpy.lib.format."""

import ast
import io
import re
from contextlib import suppress
from pathlib import Path
from typing import ClassVar

import numpy as np
from numpy.lib import format as npy

from meshcomm.core._tuning import PAGE
from meshcomm.errors import CheckpointError, DTypeError
from meshcomm.storage import files
from meshcomm.storage.files import File
from meshcomm.storage.formats.base import ArrayToSave, FileContents, FileWriter, checked_dtype, checked_shape, reading
from meshcomm.storage.stored import Stored, in_one_file

MAX_HEADER_LENGTH = 10_000  # as numpy.load has it, which also refuses longer ones
HEADER_WITHIN = MAX_HEADER_LENGTH + 100


class NpyWriter(FileWriter):
    """A new .npy file."""

    has_metadata: ClassVar[bool] = False

    def contents(self) -> FileContents:
        file_contents = contents(self.path)  # whose array has no name
        return file_contents._replace(
            arrays=dict.fromkeys([array.name for array in self.arrays], file_contents.arrays["array"])
        )

    def lay_out(self, file: File) -> list[Stored]:
        if len(self.arrays) != 1:
            others = "save them to a .safetensors file or to a folder"
            raise CheckpointError(f"a .npy file holds one array, not {len(self.arrays)}: {others}")
        (array,) = self.arrays
        begins = header(array, 0)
        stored = in_one_file(array.name, array.shape, array.dtype, len(begins))
        file.sized(len(begins) + stored.nbytes)
        file.write(begins, 0)
        return [stored]


def header(array: ArrayToSave, begin: int) -> bytes:
    """Return what comes before the bytes of *array* in a .npy file that begins at *begin* of another file.

    The array begins with a page of that. ``DTypeError`` if NumPy would read another dtype.
    """
    descr = npy.dtype_to_descr(array.dtype)
    if npy.descr_to_dtype(descr) != array.dtype:
        raise DTypeError(f"a .npy file cannot hold {array.dtype}: save it to a .safetensors file or to a folder")
    return _padded(_header_text({"descr": descr, "fortran_order": False, "shape": array.shape}), begin)


def _header_text(header: dict[str, object]) -> bytes:
    """Return *header* in the lowest version that can hold it, as NumPy does."""
    for write in npy.write_array_header_1_0, npy.write_array_header_2_0:
        text = io.BytesIO()
        with suppress(ValueError):  # it is too long, or has a name that is not in Latin-1
            write(text, header)
            return text.getvalue()
    encoded = f"{header}\n".encode()
    return npy.magic(3, 0) + len(encoded).to_bytes(4, "little") + encoded


def _padded(header: bytes, begin: int) -> bytes:
    """Return *header* with spaces before its last character, so that the array begins with a page of the file.

    The header is at *begin*.
    """
    longer = -(begin + len(header)) % PAGE
    size = 2 if header[6] == 1 else 4
    length = int.from_bytes(header[8 : 8 + size], "little") + longer
    if length > MAX_HEADER_LENGTH:
        if length - longer > MAX_HEADER_LENGTH:
            raise DTypeError(f"a .npy header of {length - longer} bytes, which numpy.load refuses: save to a folder")
        return header
    return header[:8] + length.to_bytes(size, "little") + header[8 + size : -1] + b" " * longer + header[-1:]


def contents(path: Path) -> FileContents:
    """Return what the .npy file holds. ``CheckpointError`` if it is none, or shorter than its array."""
    with files.for_reading(path) as file:
        size = file.size()
        text = files.section(file, 0, min(size, HEADER_WITHIN))
    stored = stored_array(text, "array", str(path), 0, size)
    return FileContents({"array": stored}, {})


def stored_array(text: bytes, name: str, what: str, begin: int, size: int) -> Stored:
    """Return the array of a .npy file that begins with *text*, has *size* bytes, and is at *begin* of another file.

    ``CheckpointError`` if it is none, or shorter than its array.
    """
    read = io.BytesIO(text)
    try:
        with reading(what):
            shape, fortran, dtype = _header(read)
    except MemoryError:  # Python's parser has a stack of its own
        raise CheckpointError(f"{what}: the header is nested too deep") from None
    shape = checked_shape(shape, what, checked_dtype(dtype, what).itemsize)
    stored = in_one_file(name, shape[::-1] if fortran else shape, dtype, begin + read.tell())
    if size < read.tell() + stored.nbytes:
        raise CheckpointError(f"{what} has {size} bytes; its array ends at byte {read.tell() + stored.nbytes}")
    return stored._replace(fortran=fortran and len(shape) > 1)


def _header(text: io.BytesIO) -> tuple[object, bool, np.dtype]:
    version = npy.read_magic(text)
    if version in ((1, 0), (2, 0)):
        begins = text.tell() + (2 if version == (1, 0) else 4)
        read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
        fields = read(text, max_header_size=MAX_HEADER_LENGTH)
        _refuse_keys_twice(text.getvalue()[begins : text.tell()].decode("latin1"))
        return fields
    if version != (3, 0):
        raise ValueError(f"version {version}")
    length = int.from_bytes(text.read(4), "little")
    if length > MAX_HEADER_LENGTH:
        raise ValueError(f"a header of {length} bytes")
    header = text.read(length).decode()
    fields = ast.literal_eval(header)
    if not isinstance(fields, dict) or sorted(fields) != ["descr", "fortran_order", "shape"]:
        raise ValueError("the header has other keys")
    if not isinstance(fields["fortran_order"], bool) or not isinstance(fields["shape"], tuple):
        raise ValueError("the header has values of other types")
    _refuse_keys_twice(header)
    return fields["shape"], fields["fortran_order"], npy.descr_to_dtype(fields["descr"])


def _refuse_keys_twice(header: str) -> None:
    """Raise ``ValueError`` if a *header* with the right keys has one of them twice."""
    without_long = re.sub(r"(?<=\d)L\b", "", header.strip())  # integers as Python 2 wrote them
    tree = ast.parse(without_long, mode="eval").body
    if isinstance(tree, ast.Dict) and len(tree.keys) > 3:
        raise ValueError("a key of the header is there twice")
