"""Python objects in datasets: before decisions by dtype, they are converted to the dtypes that xarray writes."""

from collections.abc import Hashable, Mapping
from typing import TypeVar

import numpy as np
import xarray
from xarray.coding import strings
from xarray.coding.times import infer_calendar_name

from meshcomm.core._types import Array
from meshcomm.storage.values import attribute

try:
    from xarray.backends.common import ensure_dtype_not_object
except ImportError:  # before 2024.10
    from xarray.conventions import ensure_dtype_not_object  # type: ignore[no-redef,attr-defined]

K = TypeVar("K", bound=Hashable)


def calendar_of(variable: xarray.Variable) -> str | None:
    """Return the calendar of a variable of dates; None for other variables."""
    if variable.dtype.kind not in "MO":
        return None
    try:
        return str(infer_calendar_name(variable))
    except ValueError:
        return None


def without_objects(dataset: xarray.Dataset) -> xarray.Dataset:
    """Return a dataset with texts, bytes and numbers instead of objects; with missing values, numbers become floats.

    Dates stay objects. ``ValueError`` for objects of several classes, and for other objects.
    """
    converted_variables = {
        name: _without_object_dtype(variable, str(name))
        for name, variable in dataset.variables.items()
        if isinstance(variable.dtype, np.dtype) and variable.dtype.kind in "OT" and calendar_of(variable) is None
        if not isinstance(dataset.xindexes.get(name), xarray.indexes.PandasMultiIndex)  # it raises its own error
    }
    coords = {name: variable for name, variable in converted_variables.items() if name in dataset.coords}
    result = dataset.assign_coords(coords) if coords else dataset
    data_variables = {name: variable for name, variable in converted_variables.items() if name not in coords}
    return result.assign(data_variables) if data_variables else result


def _without_object_dtype(variable: xarray.Variable, name: str) -> xarray.Variable:
    """Return a variable of texts, bytes or numbers. ``ValueError`` for other objects."""
    if variable.dtype.kind == "T" or (not variable.size and variable.encoding.get("dtype") is str):
        values = np.asarray(variable.data, object)
        return variable.copy(data=_texts(np.where(xarray.Variable(variable.dims, values).isnull(), "", values), str))
    result: xarray.Variable = ensure_dtype_not_object(variable.to_base_variable(), name)
    text_type = strings.check_vlen_dtype(result.dtype)
    return result if text_type is None else result.copy(data=_texts(result.data, text_type))


def _texts(values: Array, text_type: type) -> Array:
    """Return texts as a fixed-length array of *text_type*, str or bytes in UTF-8."""

    def text(value: str | bytes) -> str | bytes:
        if isinstance(value, text_type):
            return value
        return value.encode() if isinstance(value, str) else value.decode()

    return np.array([text(value) for value in values.ravel().tolist()], np.dtype(text_type)).reshape(values.shape)


def plain_attributes(attributes: Mapping[K, object]) -> dict[K, object]:
    """Return attributes with plain texts, as xarray writes them, in place of bytes, StringDType and objects."""

    def plain_value(value: object) -> object:
        is_array = isinstance(value, np.ndarray) and value.dtype.kind in "OT"
        elements = np.asarray(value).ravel().tolist() if is_array else [value]
        is_text = all(isinstance(element, str | bytes) for element in elements) and (
            is_array or isinstance(value, bytes)
        )
        return attribute(value) if is_text else value

    return {key: plain_value(value) for key, value in attributes.items()}
