"""The unit of a file system: the bytes that it stores, and locks, as one. Two ranks that write one unit wait in turn.

It is the stripe on Lustre, whose xattr ``lustre.lov`` has it, and elsewhere the block that ``fstat`` tells, which is
that of GPFS and BeeGFS, and one write of NFS. This reads what the system says; `files` asks the system.
"""

import struct
from contextlib import suppress

from meshcomm.core._tuning import PAGE

MAX_UNIT_BYTES = 2**24
"""Bytes. A larger stripe or block of a file system does not count. A compromise: that of most is below."""

XATTR = "lustre.lov"
_COMPOSITE = 0x0BD60BD0  # lov_comp_md_v1: a file has components with stripes of their own
_PLAIN = (0x0BD10BD0, 0x0BD30BD0, 0x0BD50BD0)  # lov_user_md_v1, lov_user_md_v3, and v3 with objects that were chosen
_COUNT_AT, _ENTRIES_AT, _ENTRY, _OFFSET_AT, _STRIPE_AT = 14, 32, 48, 24, 24


def unit_of(block: int, striping: bytes) -> int:
    """Return the unit of a file, a power of two, from its block and its xattr; PAGE if neither makes sense.

    >>> unit_of(2**22, b""), unit_of(512, b""), unit_of(3 * 2**20, b"")
    (4194304, 4096, 4096)
    """
    for unit in (max(_stripes(striping), default=0), block):
        if PAGE <= unit <= MAX_UNIT_BYTES and unit.bit_count() == 1:
            return unit
    return PAGE


def _stripes(striping: bytes, at: int = 0) -> list[int]:
    """Return the stripe sizes in the xattr: one, or one for each component; none if it is another xattr."""
    sizes: list[int] = []
    with suppress(struct.error):  # it ends too early
        (magic,) = struct.unpack_from("=I", striping, at)
        if magic in _PLAIN:
            sizes += struct.unpack_from("=I", striping, at + _STRIPE_AT)
        elif magic == _COMPOSITE and at == 0:
            (count,) = struct.unpack_from("=H", striping, _COUNT_AT)
            for number in range(count):  # where each component begins, with a header of its own
                (offset,) = struct.unpack_from("=I", striping, _ENTRIES_AT + number * _ENTRY + _OFFSET_AT)
                sizes += _stripes(striping, offset) if offset else []
    return sizes
