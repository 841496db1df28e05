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
MAX_HEADER_BYTES = MAX_HEADER_LENGTH + 100


class NpyWriter(FileWriter):
    """Writes a new .npy file."""

    has_metadata: ClassVar[bool] = False

    def contents(self) -> FileContents:
        file_contents = contents(self.path)  # its array has no name
        return file_contents._replace(
            arrays=dict.fromkeys([array.name for array in self.arrays], file_contents.arrays["array"])
        )

    def lay_out(self, file: File) -> list[Stored]:
        if len(self.arrays) != 1:
            advice = "save them to a .safetensors file or to a folder"
            raise CheckpointError(f"a .npy file holds one array, not {len(self.arrays)}: {advice}")
        (array,) = self.arrays
        header_bytes = header(array, 0)
        stored = in_one_file(array.name, array.shape, array.dtype, len(header_bytes))
        file.sized(len(header_bytes) + stored.nbytes)
        file.write(header_bytes, 0)
        return [stored]


def header(array: ArrayToSave, begin: int) -> bytes:
    """Return the header of *array*, for a .npy file at the offset *begin* of another file.

    The bytes of the array follow it, and begin with a page of that file. ``DTypeError`` if NumPy would read another
    dtype.
    """
    descr = npy.dtype_to_descr(array.dtype)
    if npy.descr_to_dtype(descr) != array.dtype:
        raise DTypeError(f"a .npy file cannot hold {array.dtype}: save it to a .safetensors file or to a folder")
    return _padded(_header_text({"descr": descr, "fortran_order": False, "shape": array.shape}), begin)


def _header_text(fields: dict[str, object]) -> bytes:
    """Return the header with these *fields* in the lowest version that can hold it, as NumPy does."""
    for write_header in npy.write_array_header_1_0, npy.write_array_header_2_0:
        text = io.BytesIO()
        with suppress(ValueError):  # it is too long, or has a name that is not in Latin-1
            write_header(text, fields)
            return text.getvalue()
    encoded_header = f"{fields}\n".encode()
    return npy.magic(3, 0) + len(encoded_header).to_bytes(4, "little") + encoded_header


def _padded(header_bytes: bytes, begin: int) -> bytes:
    """Return *header_bytes* with spaces before the last character, so that the array begins with a page of the file.

    The header is at the offset *begin*.
    """
    padding = -(begin + len(header_bytes)) % PAGE
    size = 2 if header_bytes[6] == 1 else 4
    length = int.from_bytes(header_bytes[8 : 8 + size], "little") + padding
    if length > MAX_HEADER_LENGTH:
        if length - padding > MAX_HEADER_LENGTH:
            raise DTypeError(f"a .npy header of {length - padding} bytes, which numpy.load refuses: save to a folder")
        return header_bytes
    return (
        header_bytes[:8]
        + length.to_bytes(size, "little")
        + header_bytes[8 + size : -1]
        + b" " * padding
        + header_bytes[-1:]
    )


def contents(path: Path) -> FileContents:
    """Return the contents of the .npy file. ``CheckpointError`` if it is damaged, or shorter than its array."""
    with files.for_reading(path) as file:
        size = file.size()
        text = files.section(file, 0, min(size, MAX_HEADER_BYTES))
    stored = stored_array(text, "array", str(path), 0, size)
    return FileContents({"array": stored}, {})


def stored_array(text: bytes, name: str, subject: str, begin: int, size: int) -> Stored:
    """Return the array of a .npy file of *size* bytes that begins with *text*, at the offset *begin* of another file.

    ``CheckpointError`` if it has another format, or is shorter than its array.
    """
    stream = io.BytesIO(text)
    try:
        with reading(subject):
            shape, fortran, dtype = _header(stream)
    except MemoryError:  # Python's parser has a stack of its own
        raise CheckpointError(f"{subject}: the header is nested too deep") from None
    shape = checked_shape(shape, subject, checked_dtype(dtype, subject).itemsize)
    stored = in_one_file(name, shape[::-1] if fortran else shape, dtype, begin + stream.tell())
    if size < stream.tell() + stored.nbytes:
        raise CheckpointError(f"{subject} has {size} bytes; its array ends at byte {stream.tell() + stored.nbytes}")
    return stored._replace(fortran=fortran and len(shape) > 1)


def _header(text: io.BytesIO) -> tuple[object, bool, np.dtype]:
    version = npy.read_magic(text)
    if version in ((1, 0), (2, 0)):
        fields_begin = text.tell() + (2 if version == (1, 0) else 4)
        read_header = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
        fields = read_header(text, max_header_size=MAX_HEADER_LENGTH)
        _refuse_keys_twice(text.getvalue()[fields_begin : text.tell()].decode("latin1"))
        return fields
    if version != (3, 0):
        raise ValueError(f"version {version}")
    length = int.from_bytes(text.read(4), "little")
    if length > MAX_HEADER_LENGTH:
        raise ValueError(f"a header of {length} bytes")
    header_text = text.read(length).decode()
    fields = ast.literal_eval(header_text)
    if not isinstance(fields, dict) or sorted(fields) != ["descr", "fortran_order", "shape"]:
        raise ValueError("the header has other keys")
    if not isinstance(fields["fortran_order"], bool) or not isinstance(fields["shape"], tuple):
        raise ValueError("the header has values of other types")
    _refuse_keys_twice(header_text)
    return fields["shape"], fields["fortran_order"], npy.descr_to_dtype(fields["descr"])


def _refuse_keys_twice(header_text: str) -> None:
    """Raise ``ValueError`` if a header with the right keys has one of them twice."""
    python3_text = re.sub(r"(?<=\d)L\b", "", header_text.strip())  # integers as Python 2 wrote them
    tree = ast.parse(python3_text, mode="eval").body
    if isinstance(tree, ast.Dict) and len(tree.keys) > 3:
        raise ValueError("a key of the header is there twice")
