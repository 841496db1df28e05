"""xarray's datasets in the encoding of files: xarray encodes them by netCDF's conventions (CF)."""

from collections.abc import Container, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import xarray
from xarray.coding import strings
from xarray.conventions import cf_encoder, encode_dataset_coordinates

from meshcomm.core._arguments import quote
from meshcomm.core._types import AnyDict, Array
from meshcomm.storage.decoding import CODING
from meshcomm.storage.options import Chunks, Compression
from meshcomm.xarray.objects import plain_attributes

Encoding: TypeAlias = AnyDict
"""The encoding of a variable in a file, as in xarray: "dtype", "units" and others."""
Encodings: TypeAlias = dict[str, AnyDict]
"""Encodings by the name of a variable; functions may change them."""

_CHUNKS = ("chunksizes", "chunks")
_CODEC_OF_OPTION = {"zlib": "gzip", "gzip": "gzip", "zstd": "zstd", "blosc": "blosc"}
KNOWN = (
    *("dtype", *CODING, "units", "calendar", "char_dim_name", *_CHUNKS, *_CODEC_OF_OPTION),
    *("compression", "complevel", "compression_opts", "shuffle"),
)
"""Keys that an encoding may have."""


class EncodedDataset(NamedTuple):
    """An encoded dataset: arrays, the names of their axes, and attributes.

    *attributes* holds the attributes of the file, and under the name of each array a dict of its attributes.
    """

    arrays: dict[str, Any]
    dims: dict[str, tuple[str, ...]]
    attributes: AnyDict

    def only(self, names: list[str]) -> "EncodedDataset":
        """Return the arrays *names*, without the attributes of the file."""
        return EncodedDataset(*({key: mapping[key] for key in names if key in mapping} for mapping in self))


class StorageOptions(NamedTuple):
    """Options of `meshcomm.save`: chunks and compression, by the name of a variable, and the scratch limit."""

    chunks: Chunks
    compression: Compression
    limit: int | None = None

    def of(self, file_data: EncodedDataset) -> AnyDict:
        """Return the options of `meshcomm.save` for these arrays."""
        chunks, codecs = (_for_names(option, file_data.arrays) for option in (self.chunks, self.compression))
        return {"dims": file_data.dims, "metadata": file_data.attributes, "chunks": chunks, "compression": codecs}


def _for_names(option: object, names: Container[str]) -> object:
    """Return an option for *names* only, if it is a dict by name; others apply to all arrays."""
    return {name: value for name, value in option.items() if name in names} if isinstance(option, Mapping) else option


def storage_options(encodings: Encodings, chunks: Chunks, compression: Compression) -> StorageOptions:
    """Take chunks and compression out of the *encodings* of variables."""
    chunks_by_variable, codecs_by_variable = {}, {}
    for name, encoding in encodings.items():
        lengths = [encoding.pop(key) for key in _CHUNKS if key in encoding]
        codec_names = [_CODEC_OF_OPTION[key] for key in _CODEC_OF_OPTION if encoding.pop(key, False)]
        compressor: str | None = encoding.pop("compression", None)
        codec_names += [_CODEC_OF_OPTION.get(compressor, compressor)] if compressor else []
        level = encoding.pop("complevel", encoding.pop("compression_opts", None))
        shuffle = encoding.pop("shuffle", False)
        if lengths:
            chunks_by_variable[name] = lengths[0]
        if codec_names:
            codec = codec_names[0] if level is None else (codec_names[0], level)
            codecs_by_variable[name] = ["shuffle", codec] if shuffle else [codec]
    if (chunks_by_variable and chunks is not None) or (codecs_by_variable and compression is not None):
        raise ValueError("chunks and compression are given by encoding, or as arguments, not both")
    return StorageOptions(chunks_by_variable or chunks, codecs_by_variable or compression)


def encode_dataset(dataset: xarray.Dataset, encodings: Mapping[str, Encoding], path: Path) -> EncodedDataset:
    """Return the dataset as xarray encodes it. Collective: it may compute with the tensors."""
    variables, attributes = encode_dataset_coordinates(dataset)
    missing = {}
    for name, variable in variables.items():
        variables[name] = variable_copy = variable.copy(deep=False)
        variable_encoding = {
            key: value for key, value in variable.encoding.items() if key != "dtype" or value not in (bool, "bool")
        }
        # As in xarray, a given encoding replaces the variable's entirely.
        variable_copy.encoding = dict(encodings.get(str(name), variable_encoding))
        missing[name] = _take_missing_values(variable_copy)
    variables, attributes = cf_encoder(variables, attributes)
    for name, values in missing.items():
        if values is not None:
            variables[name].attrs["missing_value"] = values.astype(variables[name].dtype)
    file_variables = {str(name): _with_texts(variable, str(name), path) for name, variable in variables.items()}
    common_names = [name for name in file_variables if name in attributes]
    if common_names:
        raise ValueError(f"{quote(common_names[0])} is the name of a variable and of an attribute of the dataset")
    return EncodedDataset(
        {name: variable.data for name, variable in file_variables.items()},
        {name: tuple(map(str, variable.dims)) for name, variable in file_variables.items()},
        plain_attributes(attributes)
        | {
            name: plain_attributes(dict(sorted(variable.attrs.items(), key=lambda item: str(item[0]))))
            for name, variable in file_variables.items()
        },
    )


def _take_missing_values(variable: xarray.Variable) -> Array | None:
    """Remove several missing values from the encoding, and return them. xarray supports one: NaN becomes the first."""
    values = np.ravel(variable.encoding.get("missing_value", ()))
    if len(values) < 2:
        return None
    del variable.encoding["missing_value"]
    if variable.encoding.get("_FillValue") is None:
        variable.encoding["_FillValue"] = values[0]
    return values


def _with_texts(variable: xarray.Variable, name: str, path: Path) -> xarray.Variable:
    """Return a variable with texts as the file holds them: characters in netCDF, otherwise texts of one length.

    Texts are in UTF-8. Bytes are unchanged.
    """
    if variable.dtype.kind not in "SU":
        return variable
    if path.suffix.lower() == ".zarr":  # xarray joins bytes of length 1 along the last axis, as characters of netCDF
        return variable.astype("S2") if variable.dtype == "S1" else variable
    texts, characters = strings.EncodedStringCoder(allows_unicode=False), strings.CharacterArrayCoder()
    fixed_length = strings.ensure_fixed_length_bytes(texts.encode(variable, name))
    return characters.encode(fixed_length, name)
