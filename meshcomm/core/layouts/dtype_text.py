"""Texts of dtypes, from which another process makes an equal dtype. Nothing is pickled.

A text is JSON:

- a string, ``dtype.str``, for the dtypes of NumPy without fields
- ``{"ml_dtypes": name}`` for those of ml_dtypes, where ``dtype.str`` says raw bytes only
- ``{"base": text, "shape": lengths}`` for a sub-array
- ``{"names", "formats", "offsets", "titles", "itemsize", "aligned", "record"}`` for fields, as NumPy describes them
"""

import json
import re
import sys
from functools import lru_cache
from importlib import import_module
from typing import Any

import numpy as np

from meshcomm.core._arguments import as_dtype, quote
from meshcomm.core._json import read
from meshcomm.core._types import DType, Json
from meshcomm.errors import DTypeError

_MODULE = "ml_dtypes"
_DTYPE_STRING = re.compile(r"[<>|][a-zA-Z][0-9]{0,10}(\[[0-9]{0,10}[a-zA-Z]{1,2}\])?")
_PARSE_ERRORS = (TypeError, ValueError, KeyError, AttributeError, OverflowError, RecursionError, ImportError)


def dtype_text(dtype: DType) -> str:
    """Return a text from which `dtype_of_text` makes an equal dtype, with the same alignment and type of elements.

    It does not contain the metadata of the dtype, which ``==`` ignores, too. ``DTypeError`` if there is no such text.

    >>> dtype_text(np.dtype(">i4")), dtype_text(np.dtype(("f8", (2, 3))))
    ('">i4"', '{"base": "<f8", "shape": [2, 3]}')
    """
    if dtype.names is None and dtype.subdtype is None:
        return _plain_text(dtype)
    return _dtype_text(dtype)


def _dtype_text(dtype: DType) -> str:
    try:
        text = json.dumps(_description(dtype))
        is_equal = dtype_of_text(text) == dtype
    except _PARSE_ERRORS as error:
        raise DTypeError(f"dtype {quote(dtype)} has no text that other ranks could read: {quote(error)}") from None
    if not is_equal:
        raise DTypeError(
            f"dtype {quote(dtype)} has no text that other ranks could read: it is neither of NumPy nor of {_MODULE}"
        )
    return text


_plain_text = lru_cache(maxsize=256)(_dtype_text)  # not for dtypes with fields: equal ones may differ in alignment


def dtype_of_text(text: str) -> DType:
    """Return the dtype of a text of `dtype_text`. ``DTypeError`` if the text is something else.

    >>> dtype_of_text('{"base": ">f8", "shape": [2, 3]}')
    dtype(('>f8', (2, 3)))
    """
    try:
        return as_dtype(_parsed_dtype(json.loads(text)))
    except DTypeError:
        raise
    except _PARSE_ERRORS as error:
        raise DTypeError(f"{quote(text)} does not describe a dtype of this process: {quote(error)}") from None


def _description(dtype: DType) -> object:
    if dtype.subdtype is not None:
        base, shape = dtype.subdtype
        return {"base": _description(base), "shape": shape}
    if dtype.names is not None:
        return _fields_description(dtype, dtype.names)
    if getattr(sys.modules.get(_MODULE), dtype.type.__name__, None) is dtype.type:
        return {_MODULE: dtype.type.__name__}
    return dtype.str


def _fields_description(dtype: DType, names: tuple[str, ...]) -> dict[str, object]:
    if dtype.type not in (np.void, np.record):
        raise DTypeError(f"its elements are {dtype.type.__name__}, with fields")
    assert dtype.fields is not None
    fields = [dtype.fields[name] for name in names]
    return {
        "names": names,
        "formats": [_description(field[0]) for field in fields],
        "offsets": [field[1] for field in fields],
        "titles": [field[2] if len(field) == 3 else None for field in fields],
        "itemsize": dtype.itemsize,
        "aligned": dtype.isalignedstruct,
        "record": dtype.type is np.record,
    }


def _parsed_dtype(text: Json) -> DType:
    if isinstance(text, str):
        dtype: DType | None = np.dtype(text) if _DTYPE_STRING.fullmatch(text) else None
        if dtype is None or dtype.str != text:
            raise ValueError("NumPy names no dtype so")
        return dtype
    if not isinstance(text, dict):
        raise TypeError(f"{quote(text)} is neither a text nor an object of JSON")
    if _MODULE in text:
        element_type = getattr(import_module(_MODULE), read(str, text, _MODULE))
        if not (isinstance(element_type, type) and issubclass(element_type, np.generic)):
            raise TypeError("it is no type of elements")
        return np.dtype(element_type)
    if "base" in text:
        return np.dtype((_parsed_dtype(text["base"]), tuple(read(list, text, "shape"))))
    fields: Any = {key: text[key] for key in ("names", "offsets", "titles", "itemsize")}
    fields["formats"] = [_parsed_dtype(field) for field in read(list, text, "formats")]
    struct_dtype: DType = np.dtype(fields, align=read(bool, text, "aligned"))
    return np.dtype((np.record, struct_dtype)) if text["record"] else struct_dtype
