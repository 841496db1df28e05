"""Where HDF5 keeps the shape of a dataset: in its header, whose pieces may be anywhere in the file.

Source: "HDF5 File Format Specification", version 3, IV.A.1, of The HDF Group.
"""

from collections.abc import Iterator

from meshcomm.storage.changes import Changes
from meshcomm.storage.formats.hdf5_library import Hdf5Dataset, h5py_library

_CONTINUATION = 16
"""The kind of a message that says where the header goes on."""


def pieces_of_header(dataset: Hdf5Dataset, file: Changes) -> list[tuple[int, int]]:
    """Return where the pieces of the header of a dataset begin and end in the *file*."""
    start = int(h5py_library().h5o.get_info(dataset.id).addr)
    head = _read(file, start, 32)
    if head[:4] != b"OHDR":
        first, size, before = start + 16, _number(head[8:12]), 8
    else:
        flags = head[5]
        first = start + 6 + 16 * bool(flags & 32) + 4 * bool(flags & 16)  # there may be times, and limits
        width = 1 << (flags & 3)
        size, before = _number(head[first - start : first - start + width]), 4 + 2 * bool(flags & 4)
        first += width
    pieces, left = [(start, first + size)], [(first, size)]
    while left:
        for at, nbytes in _continuations(_read(file, *left.pop()), before):
            if (at, at + nbytes) not in pieces:
                pieces.append((at, at + nbytes))
                left.append((at, nbytes) if before == 8 else (at + 4, nbytes - 8))  # a signature, and a checksum
    return pieces


def _continuations(messages: bytes, before: int) -> Iterator[tuple[int, int]]:
    """Yield where a header goes on, and for how many bytes; *before* each message are its kind and its size."""
    at = 0
    while at + before <= len(messages):
        kind, size = messages[at : at + 2] if before == 8 else messages[at : at + 1], at + (2 if before == 8 else 1)
        if _number(kind) == _CONTINUATION:
            body = messages[at + before : at + before + 16]
            yield _number(body[:8]), _number(body[8:])
        at += before + _number(messages[size : size + 2])


def _read(file: Changes, offset: int, size: int) -> bytes:
    file.seek(offset)
    return file.read(size)


def _number(data: bytes) -> int:
    return int.from_bytes(data, "little")
