"""HDF5 files are read here, through the library h5py.

A dataset that is contiguous has its bytes in one run of the file, and the library says where. Others, in chunks or
compressed, are read through the library.
"""

from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from meshcomm._arguments import quote
from meshcomm._types import DType
from meshcomm.errors import CheckpointError
from meshcomm.storage import files
from meshcomm.storage.changes import recover
from meshcomm.storage.formats.base import Contents, checked_dtype, checked_shape, reading, refuse_overlaps
from meshcomm.storage.stored import Stored, in_one_file

MARK = "_NCProperties"
"""The attribute that says which program wrote a file; netCDF's libraries do not show it."""


def library() -> Any:
    """Return h5py; ``ImportError`` says how to get it."""
    try:
        return import_module("h5py")
    except ImportError:
        raise ImportError("HDF5 files need h5py: pip install h5py") from None


def contents(path: Path) -> Contents:
    """Return what the HDF5 file holds. ``CheckpointError`` for another file."""
    h5py = library()
    recover(path)
    arrays: dict[str, Stored] = {}
    others: dict[str, int] = {}
    with files.for_reading(path) as file:
        size = file.size()

    def visit(name: str, found: Any) -> None:
        if isinstance(found, h5py.Dataset) and found.shape is not None and not found.dtype.hasobject:
            what = f"{path}: dataset {quote(name)}"
            kind, inner = found.dtype.subdtype or (found.dtype, ())
            dtype = checked_dtype(kind, what)
            shape, offset = checked_shape((*found.shape, *inner), what, dtype.itemsize), found.id.get_offset()
            sources = [file.file_name for file in found.virtual_sources()] if found.is_virtual else []
            others_files = [*(file for file, *_ in found.external or ()), *(file for file in sources if file != ".")]
            if others_files:
                raise CheckpointError(f"{what} has its data in other files: {quote(others_files[0])}")
            stored = in_one_file(name, shape, dtype, offset or 0)
            plain = found.chunks is None and found.compression is None and _has_type_of(found, found.dtype)
            if plain and offset is not None and offset + stored.nbytes > size:
                raise CheckpointError(f"{what} ends at byte {offset + stored.nbytes}; the file has {size}")
            if not plain or (offset is None and stored.nbytes):
                others[name] = found.chunks[0] if found.chunks else 1
                stored = stored._replace(segments=())
            arrays[_text(name, path)] = stored

    with reading(path), h5py.File(path, "r") as opened:
        opened.visititems(visit)
        attributes = list(opened.attrs.items())  # h5py holds its lock until this has come to its end
    refuse_overlaps(arrays, path)
    metadata = {_text(key, path): _plain(value) for key, value in attributes if key != MARK}
    return Contents(arrays, metadata, by_library=others)


def _has_type_of(found: Any, dtype: DType) -> bool:
    """Return whether elements of the dataset have the bytes of *dtype*. h5py converts others, such as bfloat16."""
    try:
        return bool(found.id.get_type() == library().h5t.py_create(dtype, logical=True))
    except TypeError:
        return False


def open_dataset(path: Path, name: str) -> Any:
    """Return the dataset *name*, and its file, which has to be closed."""
    h5py = library()
    with reading(path):
        opened = h5py.File(path, "r")
        return opened[name], opened


def _text(name: object, path: Path) -> str:
    """Return *name*; ``CheckpointError`` if it is bytes, which h5py could not decode."""
    if isinstance(name, str):
        return name
    raise CheckpointError(f"{path}: the name {quote(name)} is no text in UTF-8")


def _plain(value: Any) -> Any:
    if isinstance(value, np.generic):
        value = value.item()
    return value if isinstance(value, str | int | float | bool) else str(value)
