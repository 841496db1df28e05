"""Codecs that encode the chunks of arrays: shuffle, zlib, gzip, zstd, blosc."""

import zlib
from types import ModuleType

import numpy as np

from meshcomm.core._types import Array, Bytes
from meshcomm.core.memory.blocks import as_bytes
from meshcomm.storage.libraries import library
from meshcomm.storage.options import Codecs


def encoded(chunk: Array, codecs: Codecs) -> Bytes:
    """Return the bytes of a *chunk*, which is contiguous, encoded by each codec in turn.

    >>> len(encoded(np.zeros(1000), (("shuffle", None), ("zlib", 6)))) < 100
    True
    """
    data = as_bytes(chunk)
    for name, level in with_levels(codecs):
        data = np.frombuffer(_encoded(name, data, level, chunk.dtype.itemsize), np.uint8)
    return data


LEVELS = {"shuffle": (0, 0, 0), "gzip": (4, 0, 9), "zlib": (4, 0, 9), "zstd": (3, -7, 22), "blosc": (5, 0, 9)}
"""The default level of each codec, the lowest and the highest one."""


def with_levels(codecs: Codecs) -> tuple[tuple[str, int], ...]:
    """Return *codecs*, each with its level. ``ValueError`` for a wrong level, ``ImportError`` without the library.

    >>> with_levels((("shuffle", None), ("gzip", None), ("zstd", 9)))
    (('shuffle', 0), ('gzip', 4), ('zstd', 9))
    """
    result = []
    for name, level in codecs:
        if name in ("zstd", "blosc"):
            _numcodecs()
        default, lowest, highest = LEVELS[name]
        if level is not None and not lowest <= level <= highest:
            raise ValueError(f"{name} has no level {level}; its levels are {lowest} to {highest}")
        result.append((name, default if level is None else level))
    return tuple(result)


def _numcodecs() -> ModuleType:
    return library("numcodecs", "compression by zstd and blosc needs numcodecs")


def _encoded(name: str, data: Bytes, level: int, itemsize: int) -> bytes:
    """Return *data*, elements of *itemsize* bytes, encoded by one codec."""
    if name == "shuffle":
        return data.reshape(-1, itemsize).T.tobytes()
    if name in ("zlib", "gzip"):
        stream = zlib.compressobj(level, zlib.DEFLATED, 15 if name == "zlib" else 31)
        return stream.compress(data.data) + stream.flush()
    if name == "zstd":
        return bytes(_numcodecs().Zstd(level).encode(data))
    blosc = _numcodecs().Blosc
    return bytes(blosc("lz4", level, blosc.SHUFFLE, typesize=itemsize).encode(data))
