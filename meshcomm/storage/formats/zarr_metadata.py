"""Metadata of arrays and groups of zarr, version 3, as JSON: dtypes, codecs, attributes.

Source: https://zarr-specs.readthedocs.io/en/latest/v3/core/index.html.
"""

import json
import struct
from base64 import b64encode
from collections.abc import Mapping

import numpy as np

from meshcomm.core._arguments import quote
from meshcomm.core._json import read
from meshcomm.core._types import Array, DType, Json, JsonObject, Shape
from meshcomm.errors import CheckpointError, DTypeError
from meshcomm.storage.codecs import with_levels
from meshcomm.storage.formats.base import ArrayToSave
from meshcomm.storage.options import Codecs

METADATA = "zarr.json"
KINDS = (
    "bool",
    *(f"{sign}int{n}" for n in (8, 16, 32, 64) for sign in ("", "u")),
    *(f"float{n}" for n in (16, 32, 64)),
    "complex64",
    "complex128",
)
TEXTS = {"U": ("fixed_length_utf32", 4), "S": ("null_terminated_bytes", 1)}
"""The names of text and bytes dtypes, which only the library defines, no specification; and bytes of a character."""
TIMES = {"M": "numpy.datetime64", "m": "numpy.timedelta64"}


def group_metadata(attributes: JsonObject) -> JsonObject:
    """Return the metadata of a group."""
    return {"zarr_format": 3, "node_type": "group", "attributes": attributes}


def array_metadata(array: ArrayToSave, chunk: Shape, codecs: Codecs, attributes: JsonObject) -> JsonObject:
    """Return the metadata of an array in chunks of this shape. ``DTypeError`` if zarr has no such dtype."""
    dtype, shape = array.dtype, array.shape
    codec: JsonObject = {"name": "bytes"}
    if dtype.itemsize > 1 and dtype.kind != "S":
        codec["configuration"] = {"endian": "little" if dtype.newbyteorder("<") == dtype else "big"}
    not_a_time = -(2**63)  # NaT
    fills: JsonObject = {"b": False, "U": "", "S": "", "c": [0.0, 0.0], "f": 0.0, "M": not_a_time, "m": not_a_time}
    return {
        "zarr_format": 3,
        "node_type": "array",
        "shape": list(shape),
        "data_type": data_type(dtype),
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": list(chunk)}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
        "fill_value": fills.get(dtype.kind, 0),
        "codecs": [codec, *codec_metadata(codecs, dtype.itemsize)],
        "attributes": _with_fill(attributes, dtype),
        "dimension_names": list(array.dims or (f"axis_{axis}_of_{n}" for axis, n in enumerate(shape))),
    }


def _with_fill(attributes: JsonObject, dtype: DType) -> JsonObject:
    """Return *attributes* with a ``_FillValue`` as xarray reads it: a float in base64."""
    fill = attributes.get("_FillValue")
    if dtype.kind != "f" or not isinstance(fill, int | float):
        return attributes
    return attributes | {"_FillValue": b64encode(struct.pack("<d", fill)).decode()}


def data_type(dtype: DType) -> Json:
    """Return the data type of zarr for a dtype. ``DTypeError`` if there is none.

    >>> data_type(np.dtype(">f4")), data_type(np.dtype("M8[10us]"))
    ('float32', {'name': 'numpy.datetime64', 'configuration': {'unit': 'us', 'scale_factor': 10}})
    """
    unit, factor = np.datetime_data(dtype) if dtype.kind in TIMES else ("generic", 1)
    if unit != "generic":  # as in the library
        return {"name": TIMES[dtype.kind], "configuration": {"unit": unit, "scale_factor": factor}}
    if dtype.kind in TEXTS and dtype.itemsize:
        return {"name": TEXTS[dtype.kind][0], "configuration": {"length_bytes": dtype.itemsize}}
    if dtype.name not in KINDS:
        raise DTypeError(f"a zarr array cannot hold {dtype}: save it to a folder, which holds every dtype")
    return dtype.name


def dtype_of(kind: Json) -> DType | None:
    """Return the dtype for the data type *kind* of zarr; None if it is unknown. ``TypeError`` or other if damaged."""
    if not isinstance(kind, dict):
        return np.dtype(kind) if isinstance(kind, str) and kind in KINDS else None
    for letter, (name, size) in TEXTS.items():
        if kind["name"] == name:
            return np.dtype(f"{letter}{read(int, kind, 'configuration', 'length_bytes') // size}")
    time_letter = next((letter for letter, name in TIMES.items() if name == kind["name"]), None)
    if time_letter is None:
        return None
    unit, factor = read(object, kind, "configuration", "unit"), read(int, kind, "configuration", "scale_factor")
    return np.dtype(f"{time_letter}8[{factor}{unit}]") if unit != "generic" else None


def codec_metadata(codecs: Codecs, itemsize: int) -> list[Json]:
    """Return the metadata of zarr for codecs with their levels. ``TypeError`` for a codec that zarr has not.

    >>> codec_metadata((("zstd", 3),), 8)
    [{'name': 'zstd', 'configuration': {'level': 3, 'checksum': False}}]
    """
    result: list[Json] = []
    for name, level in with_levels(codecs):
        if name == "shuffle":
            raise TypeError("zarr has no codec 'shuffle' of its own: compression='blosc' shuffles, too")
        configuration: JsonObject = {"level": level}
        if name == "zstd":
            configuration["checksum"] = False
        elif name == "blosc":
            configuration = {"cname": "lz4", "clevel": level, "shuffle": "shuffle", "typesize": itemsize}
            configuration["blocksize"] = 0
        result.append({"name": name, "configuration": configuration})
    return result


def codecs_of(metadata: Json, subject: object) -> Codecs:
    """Return the codecs that `codec_metadata` has written. ``CheckpointError`` for others."""
    codecs: list[tuple[str, int | None]] = []
    for codec in read(list, metadata):
        name, settings = codec.get("name"), codec.get("configuration") or {}
        if name == "bytes":
            continue
        parsed_codec = ((name, settings.get("clevel" if name == "blosc" else "level")),)
        if name not in ("gzip", "zstd", "blosc") or codec_metadata(parsed_codec, settings.get("typesize", 1)) != [
            codec
        ]:
            raise CheckpointError(f"{subject}: chunks with the codec {quote(codec)} cannot be added here")
        codecs += parsed_codec
    return tuple(codecs)


def as_attributes(metadata: Mapping[str, object]) -> JsonObject:
    """Return *metadata* as JSON holds them: arrays and scalars of NumPy become lists, numbers and texts.

    >>> as_attributes({"a": np.float32(0.5), "b": np.arange(3), "c": (1, None)})
    {'a': 0.5, 'b': [0, 1, 2], 'c': [1, None]}
    """
    return json.loads(json.dumps(dict(metadata), default=_json_default))


def _json_default(value: Array) -> object:
    if value.dtype.kind == "c":
        raise TypeError(f"an attribute of zarr is no complex number, as {quote(value)} is")
    if value.dtype.kind == "f":
        value = value.astype("f8")  # a long double has no value of Python
    return (np.strings.decode(value, "utf-8") if value.dtype.kind == "S" else value).tolist()
