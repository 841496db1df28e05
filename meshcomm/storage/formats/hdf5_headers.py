"""Headers of HDF5 datasets, which contain their shapes. The pieces of a header may be anywhere in the file.

Source: "HDF5 File Format Specification", version 3, IV.A.1, of The HDF Group.
"""

from collections.abc import Iterator

from meshcomm.storage.changes import Changes
from meshcomm.storage.formats.hdf5_library import Hdf5Dataset, h5py_library

_CONTINUATION = 16
"""The kind of a message with the location of the next piece of the header."""


def pieces_of_header(dataset: Hdf5Dataset, file: Changes) -> list[tuple[int, int]]:
    """Return the start and stop offsets in the *file* of the pieces of the header of a dataset."""
    start = int(h5py_library().h5o.get_info(dataset.id).addr)
    head = _read(file, start, 32)
    if head[:4] != b"OHDR":
        message_at, size, prefix_size = start + 16, _number(head[8:12]), 8
    else:
        flags = head[5]
        message_at = start + 6 + 16 * bool(flags & 32) + 4 * bool(flags & 16)  # there may be times, and limits
        width = 1 << (flags & 3)
        size, prefix_size = _number(head[message_at - start : message_at - start + width]), 4 + 2 * bool(flags & 4)
        message_at += width
    pieces, unread_blocks = [(start, message_at + size)], [(message_at, size)]
    while unread_blocks:
        for offset, nbytes in _continuations(_read(file, *unread_blocks.pop()), prefix_size):
            if (offset, offset + nbytes) not in pieces:
                pieces.append((offset, offset + nbytes))
                # A signature, and a checksum.
                unread_blocks.append((offset, nbytes) if prefix_size == 8 else (offset + 4, nbytes - 8))
    return pieces


def _continuations(messages: bytes, prefix_size: int) -> Iterator[tuple[int, int]]:
    """Yield the offset and the length of each next piece of a header.

    Before each message, its kind and its size take *prefix_size* bytes.
    """
    offset = 0
    while offset + prefix_size <= len(messages):
        kind, size_offset = (
            messages[offset : offset + 2] if prefix_size == 8 else messages[offset : offset + 1],
            offset + (2 if prefix_size == 8 else 1),
        )
        if _number(kind) == _CONTINUATION:
            body = messages[offset + prefix_size : offset + prefix_size + 16]
            yield _number(body[:8]), _number(body[8:])
        offset += prefix_size + _number(messages[size_offset : size_offset + 2])


def _read(file: Changes, offset: int, size: int) -> bytes:
    file.seek(offset)
    return file.read(size)


def _number(data: bytes) -> int:
    return int.from_bytes(data, "little")
