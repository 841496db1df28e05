"""What encodes the chunks of arrays: shuffle, zlib, gzip, zstd, blosc."""

import zlib
from collections.abc import Callable
from functools import partial
from importlib import import_module
from types import ModuleType

import numpy as np

from meshcomm._types import Array, Bytes
from meshcomm.memory.blocks import as_bytes


def encoded(chunk: Array, codecs: tuple[tuple[str, int | None], ...]) -> Bytes:
    """Return the bytes of a *chunk*, which is contiguous, encoded by each codec in turn.

    >>> len(encoded(np.zeros(1000), (("shuffle", None), ("zlib", 6)))) < 100
    True
    """
    data = as_bytes(chunk)
    for name, level in codecs:
        data = np.frombuffer(_ENCODERS[name](data, level, chunk.dtype.itemsize), np.uint8)
    return data


def _numcodecs() -> ModuleType:
    try:
        return import_module("numcodecs")
    except ImportError:
        raise ImportError("compression by zstd and blosc needs numcodecs: pip install numcodecs") from None


def _shuffled(data: Bytes, level: int | None, itemsize: int) -> bytes:
    return data.reshape(-1, itemsize).T.tobytes()


def _deflated(data: Bytes, level: int | None, itemsize: int, *, bits: int) -> bytes:
    made = zlib.compressobj(4 if level is None else level, zlib.DEFLATED, bits)
    return made.compress(data.data) + made.flush()


def _zstd(data: Bytes, level: int | None, itemsize: int) -> bytes:
    return bytes(_numcodecs().Zstd(3 if level is None else level).encode(data))


def _blosc(data: Bytes, level: int | None, itemsize: int) -> bytes:
    made = _numcodecs().Blosc("lz4", 5 if level is None else level, _numcodecs().Blosc.SHUFFLE, typesize=itemsize)
    return bytes(made.encode(data))


_ENCODERS: dict[str, Callable[[Bytes, int | None, int], bytes]] = {
    "shuffle": _shuffled,
    "zlib": partial(_deflated, bits=15),
    "gzip": partial(_deflated, bits=31),
    "zstd": _zstd,
    "blosc": _blosc,
}
