"""Options of a save: metadata, whether a file may be replaced, and how arrays are stored."""

import json
from collections.abc import Mapping, Sequence
from functools import partial
from typing import NamedTuple, TypeAlias

import numpy as np

from meshcomm.core._arguments import quote, refuse_masked
from meshcomm.core._types import Shape
from meshcomm.errors import DTypeError, ShapeError

Dims: TypeAlias = Mapping[str, Sequence[str]] | Sequence[str] | None
Chunks: TypeAlias = Mapping[str, Sequence[int]] | Sequence[int] | None
Compression: TypeAlias = str | Sequence[str | tuple[str, int]] | Mapping[str, object] | None
Codecs: TypeAlias = tuple[tuple[str, int | None], ...]
"""Names of codecs, in the order in which they are applied, with their levels."""

CODECS = ("shuffle", "gzip", "zstd", "blosc")
MODES = ("w", "a")


class SaveOptions(NamedTuple):
    """The options of `save`, which are explained there."""

    metadata: Mapping[str, object] | None = None
    overwrite: bool | None = None
    mode: str = "w"
    dims: Dims = None
    chunks: Chunks = None
    compression: Compression = None
    unlimited: tuple[str, ...] = ()

    def checked(self, *, numpy: bool) -> "SaveOptions":
        """Return these options, with a copy of the metadata. ``ValueError`` and ``TypeError`` for wrong ones.

        *numpy* says whether metadata may be arrays and scalars of NumPy.
        """
        if self.mode not in MODES:
            raise ValueError(f"mode is 'w' or 'a', not {quote(self.mode)}")
        if self.mode == "a" and self.overwrite is not None:
            raise ValueError("overwrite is for mode 'w'; with mode 'a' what is there stays")
        if self.overwrite is not None and not isinstance(self.overwrite, bool | np.bool_):
            raise TypeError(f"overwrite is True, False or None, not {quote(self.overwrite)}")
        return self._replace(metadata=checked_metadata(self.metadata or {}, numpy=numpy))

    def refuse_unknown(self, names: Sequence[str]) -> None:
        """Raise ``ValueError`` if a dict of options has a name that no array has."""
        for option_name, option in (("dims", self.dims), ("chunks", self.chunks), ("compression", self.compression)):
            unknown = [name for name in option if name not in names] if isinstance(option, Mapping) else []
            if unknown:
                raise ValueError(f"{option_name} names {quote(unknown[0])}; the arrays are {', '.join(names)[:200]}")

    def dims_of(self, name: str, shape: Shape) -> tuple[str, ...] | None:
        """Return the names of the axes of an array, if they are given."""
        option = self.dims.get(name) if isinstance(self.dims, Mapping) else self.dims
        if option is None:
            return None
        dims = (option,) if isinstance(option, str) else tuple(option)
        if not all(isinstance(dim, str) and dim and "/" not in dim for dim in dims):
            raise TypeError(f"the dims of {quote(name)} are names of axes, not {quote(option)}")
        if len(dims) != len(shape):
            raise ShapeError(f"{quote(name)} has the shape {shape}, but {len(dims)} dims: {', '.join(dims)}")
        if len(set(dims)) < len(dims):
            raise ValueError(f"the dims of {quote(name)} have a name twice: {', '.join(dims)}")
        return dims

    def chunks_of(self, name: str, shape: Shape) -> Shape | None:
        """Return the lengths of the chunks of an array, if they are given. None and -1 mean the whole axis."""
        option = self.chunks.get(name) if isinstance(self.chunks, Mapping) else self.chunks
        if option is None:
            return None
        lengths = tuple(option) if isinstance(option, Sequence) and not isinstance(option, str) else (option,)
        if len(lengths) != len(shape):
            raise ShapeError(f"{quote(name)} has the shape {shape}, but its chunks are {quote(option)}")
        chunk = []
        for length, n in zip(lengths, shape, strict=True):
            if length in (None, -1):
                length = n
            if not isinstance(length, int | np.integer) or isinstance(length, bool) or length < 0 + (n > 0):
                raise ValueError(f"the chunks of {quote(name)} are lengths of 1 or more, not {quote(option)}")
            chunk.append(max(1, min(int(length), n)))
        return tuple(chunk)

    def codecs_of(self, name: str) -> Codecs:
        """Return the codecs that compress the chunks of an array."""
        option = self.compression.get(name) if isinstance(self.compression, Mapping) else self.compression
        if option is None:
            return ()
        if not isinstance(option, str | Sequence):
            raise TypeError(f"the compression of {quote(name)} is a name or a list of names, not {quote(option)}")
        return tuple(map(_codec, (option,) if isinstance(option, str) else option))


def _codec(codec: object) -> tuple[str, int | None]:
    name, level = (codec, None) if isinstance(codec, str) else codec if isinstance(codec, tuple | list) else (0, 0)
    if name not in CODECS or not isinstance(level, int | None) or isinstance(level, bool):
        raise ValueError(
            f"compression is one of {', '.join(CODECS)}, or a list of them; a pair such as ('gzip', 6) has a level. "
            f"It is {quote(codec)}"
        )
    return str(name), level


def checked_metadata(metadata: Mapping[str, object], *, numpy: bool = False) -> dict[str, object]:
    """Return a copy of *metadata*. ``TypeError`` for values that JSON cannot hold or would change.

    *numpy* also allows arrays. ``DTypeError`` for a masked array.
    """
    try:
        json_default = partial(_json_default, numpy=numpy)
        json.dumps(dict(metadata), allow_nan=numpy, ensure_ascii=False, default=json_default).encode()
    except DTypeError:
        raise
    except (TypeError, ValueError, RecursionError) as error:
        raise TypeError(f"metadata are what JSON can hold: {error}") from None
    _check_keys(metadata)
    return dict(metadata)


def _json_default(value: object, numpy: bool) -> object:
    refuse_masked(value)
    if numpy and isinstance(value, np.ndarray | np.generic):
        is_compound = value.dtype.names is not None and not value.dtype.hasobject
        if is_compound or value.dtype.kind in "biufcSU":
            return str(value.dtype)
    raise TypeError(f"{type(value).__name__} {quote(value)} is none of these")


def _check_keys(value: object) -> None:
    if isinstance(value, Mapping):
        for key, item in value.items():
            if not isinstance(key, str):
                raise TypeError(f"a key of the metadata is a str, not {quote(key)}")
            _check_keys(item)
    elif isinstance(value, list | tuple):
        for item in value:
            _check_keys(item)
