"""xarray's datasets as they are in files: xarray encodes them by netCDF's conventions (CF)."""

from collections.abc import Container, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import xarray
from xarray.coding import strings
from xarray.conventions import cf_encoder, encode_dataset_coordinates

from meshcomm.core._arguments import quote
from meshcomm.core._types import Json
from meshcomm.errors import DTypeError
from meshcomm.storage.decoding import CODING
from meshcomm.storage.options import Chunks, Compression

_CHUNKS = ("chunksizes", "chunks")
_DEFLATE = {"zlib": "gzip", "gzip": "gzip", "zstd": "zstd", "blosc": "blosc"}
KNOWN = (
    *("dtype", *CODING, "units", "calendar", "char_dim_name", *_CHUNKS, *_DEFLATE),
    *("compression", "complevel", "compression_opts", "shuffle"),
)
"""What an encoding may have."""


class Encoded(NamedTuple):
    """A dataset as it is in a file: arrays, the names of their axes, and attributes.

    Attributes are those of the file, and dicts of those of the arrays by their names.
    """

    arrays: dict[str, Any]
    dims: dict[str, tuple[str, ...]]
    attributes: dict[str, Json]

    def only(self, names: list[str], *, of_file: bool = False) -> "Encoded":
        """Return the arrays *names*; *of_file* says whether the attributes of the file are kept."""
        kept = {
            key: value for key, value in self.attributes.items() if key in names or (of_file and key not in self.dims)
        }
        return Encoded({name: self.arrays[name] for name in names}, {name: self.dims[name] for name in names}, kept)


class OwnOptions(NamedTuple):
    """What is not xarray's: chunks and compression by the name of a variable, and the scratch limit."""

    chunks: Chunks
    compression: Compression
    limit: int | None = None

    def of(self, found: Encoded) -> dict[str, Any]:
        """Return the options of `meshcomm.save` for these arrays."""
        chunks, codecs = (_only(given, found.arrays) for given in (self.chunks, self.compression))
        return {"dims": found.dims, "metadata": found.attributes, "chunks": chunks, "compression": codecs}


def _only(given: Json, names: Container[str]) -> Json:
    """Return what options by name say of *names*; others are for all arrays."""
    return {name: each for name, each in given.items() if name in names} if isinstance(given, Mapping) else given


def own_options(asked: dict[str, dict[str, Any]], chunks: Chunks, compression: Compression) -> OwnOptions:
    """Take chunks and compression out of the encodings that are *asked* for."""
    by_chunks, by_codecs = {}, {}
    for name, own in asked.items():
        lengths = [own.pop(key) for key in _CHUNKS if key in own]
        names = [_DEFLATE[key] for key in _DEFLATE if own.pop(key, False)]
        given = own.pop("compression", None)
        names += [_DEFLATE.get(given, given)] if given else []
        level, shuffle = own.pop("complevel", own.pop("compression_opts", None)), own.pop("shuffle", False)
        if lengths:
            by_chunks[name] = lengths[0]
        if names:
            codec = names[0] if level is None else (names[0], level)
            by_codecs[name] = ["shuffle", codec] if shuffle else [codec]
    if (by_chunks and chunks is not None) or (by_codecs and compression is not None):
        raise ValueError("chunks and compression are given by encoding, or as arguments, not both")
    return OwnOptions(by_chunks or chunks, by_codecs or compression)


def encoded(dataset: xarray.Dataset, asked: Mapping[str, Mapping[str, Any]], path: Path) -> Encoded:
    """Return the dataset as xarray encodes it. Collective: it may compute with the tensors."""
    variables, attributes = encode_dataset_coordinates(dataset)
    for name, variable in variables.items():
        variables[name] = copied = variable.copy(deep=False)
        kept = {
            key: value for key, value in variable.encoding.items() if key != "dtype" or value not in (bool, "bool")
        }
        copied.encoding = dict(asked.get(str(name), kept))  # as in xarray, what is asked for is all of it
    variables, attributes = cf_encoder(variables, attributes)
    found = {str(name): _with_texts(each, str(name), path) for name, each in variables.items()}
    both = [name for name in found if name in attributes]
    if both:
        raise ValueError(f"{quote(both[0])} is the name of a variable and of an attribute of the dataset")
    return Encoded(
        {name: each.data for name, each in found.items()},
        {name: tuple(map(str, each.dims)) for name, each in found.items()},
        dict(attributes)
        | {name: dict(sorted(each.attrs.items(), key=lambda item: str(item[0]))) for name, each in found.items()},
    )


def _with_texts(variable: xarray.Variable, name: str, path: Path) -> xarray.Variable:
    """Return a variable whose texts are as the file holds them: characters in netCDF, else texts of one length.

    Texts are in UTF-8. Bytes stay what they are in netCDF; zarr has none.
    """
    if variable.dtype.kind not in "OSTU":
        return variable
    if variable.dtype.kind == "O":
        variable = variable.fillna("")  # type: ignore[no-untyped-call]  # as xarray does: astype makes "nan" and "None" of what is missing
    if path.suffix.lower() == ".zarr":
        return _decoded(variable, name) if variable.dtype.kind == "S" else variable.astype("U")
    texts, characters = strings.EncodedStringCoder(allows_unicode=False), strings.CharacterArrayCoder()  # type: ignore[no-untyped-call]
    plain = variable if variable.dtype.kind == "S" else variable.astype("U")
    encoded = strings.ensure_fixed_length_bytes(texts.encode(plain, name))
    found: xarray.Variable = characters.encode(encoded, name)  # type: ignore[no-untyped-call]
    return found


def _decoded(variable: xarray.Variable, name: str) -> xarray.Variable:
    """Return bytes as texts. ``DTypeError`` unless they are in UTF-8."""
    try:
        return variable.copy(data=np.char.decode(np.asarray(variable.data), "utf-8"))
    except UnicodeDecodeError as error:
        raise DTypeError(f"a zarr store holds texts, and no bytes as {quote(name)} has: {error}") from None
