"""Sizes in environment variables: of the memory that ranks share, and of the smallest arrays that are sharded."""

import math
import os
import re

from meshcomm.core._arguments import quote
from meshcomm.core._tuning import WHOLE_BELOW
from meshcomm.errors import MeshcommError

WHOLE = "MESHCOMM_WHOLE_BELOW"
"""The environment variable with the size from which new arrays of a program are sharded; equal on all ranks."""

_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


def size_in(variable: str, examples: str) -> int | None:
    """Return the bytes that an environment variable gives; None if it is not set; ``MeshcommError`` if it is no size.

    *examples* of sizes are for the text of the error.
    """
    text = os.environ.get(variable, "")
    if not text:
        return None
    match = re.fullmatch(r"(\d+(?:\.\d+)?) *([KMGT]?)(?:i?B)?", text.strip(), re.IGNORECASE)
    nbytes = float(match[1]) * _UNITS[match[2].upper()] if match else math.inf
    if nbytes >= 2**63:
        raise MeshcommError(f"{variable} must be a size such as {examples}, not {quote(text)}")
    return int(nbytes)


def whole_below() -> int:
    """Return the bytes of the smallest array that functions of a program shard, by ``MESHCOMM_WHOLE_BELOW``."""
    nbytes = size_in(WHOLE, "64KiB or 2M")
    return WHOLE_BELOW if nbytes is None else nbytes
