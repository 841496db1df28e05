"""The unit of a file system: bytes that it stores and locks together. Ranks that write one unit wait for each other.

On Lustre it is the stripe, from the xattr ``lustre.lov``; elsewhere it is the block size of ``fstat``: the block of
GPFS and BeeGFS, and one write of NFS. This module interprets the answers of the system; `files` asks the system.
"""

import struct
from contextlib import suppress

from meshcomm.core._tuning import PAGE

MAX_UNIT_BYTES = 2**24
"""Bytes. Larger stripes or blocks of a file system are ignored. A compromise: most file systems have smaller ones."""

XATTR = "lustre.lov"
_COMPOSITE = 0x0BD60BD0  # lov_comp_md_v1: a file has components with stripes of their own
_PLAIN = (0x0BD10BD0, 0x0BD30BD0, 0x0BD50BD0)  # lov_user_md_v1, lov_user_md_v3, and v3 with chosen objects
_COUNT_AT, _ENTRIES_AT, _ENTRY_SIZE, _OFFSET_AT, _STRIPE_AT = 14, 32, 48, 24, 24


def unit_of(block: int, striping: bytes) -> int:
    """Return the unit of a file in bytes, a power of two, from its block size and its xattr; PAGE if neither is valid.

    >>> unit_of(2**22, b""), unit_of(512, b""), unit_of(3 * 2**20, b"")
    (4194304, 4096, 4096)
    """
    for unit in (max(_stripes(striping), default=0), block):
        if PAGE <= unit <= MAX_UNIT_BYTES and unit.bit_count() == 1:
            return unit
    return PAGE


def _stripes(striping: bytes, offset: int = 0) -> list[int]:
    """Return the stripe sizes in the xattr: one, or one for each component; none if it is another xattr."""
    sizes: list[int] = []
    with suppress(struct.error):  # it ends too early
        (magic,) = struct.unpack_from("=I", striping, offset)
        if magic in _PLAIN:
            sizes += struct.unpack_from("=I", striping, offset + _STRIPE_AT)
        elif magic == _COMPOSITE and offset == 0:
            (count,) = struct.unpack_from("=H", striping, _COUNT_AT)
            for number in range(count):  # the offset of each component, which has a header of its own
                (header_offset,) = struct.unpack_from("=I", striping, _ENTRIES_AT + number * _ENTRY_SIZE + _OFFSET_AT)
                sizes += _stripes(striping, header_offset) if header_offset else []
    return sizes
