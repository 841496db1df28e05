"""Numbers in files that are decoded by attributes, by the conventions of netCDF: fill values, scale and offset.

The dtypes are those that `xarray.decode_cf` chooses.
"""

from collections.abc import Mapping
from typing import NamedTuple, cast

import numpy as np

from meshcomm.core._tuning import DEFAULT_SCRATCH
from meshcomm.core._types import Array, DType
from meshcomm.storage.transfer import convert
from meshcomm.storage.values import attribute

_FILL_NAMES = ("_FillValue", "missing_value")
_SCALE_NAMES = ("scale_factor", "add_offset")
CODING = (*_FILL_NAMES, *_SCALE_NAMES, "_Unsigned")
"""The attributes that say how numbers are decoded."""


class Coding(NamedTuple):
    """How stored numbers are decoded to *dtype*: NaN where they are one of *fills*, else scaled and shifted.

    Integers are first viewed as *integer_dtype*: the dtype of the file, or its signed or unsigned counterpart.
    """

    integer_dtype: DType
    fills: tuple[np.generic, ...]
    scale: float | None
    offset: float | None
    dtype: DType

    def decoded(self, block: Array) -> Array:
        """Return the decoded numbers of a block."""
        native_block = block.astype(block.dtype.newbyteorder("="), copy=False)
        numbers = native_block.view(self.integer_dtype) if native_block.dtype != self.integer_dtype else native_block
        result: Array = np.array(numbers, self.dtype)
        if self.fills:
            is_missing = np.zeros(result.shape, bool)
            for fill in self.fills:
                is_missing |= result == fill
            np.putmask(result, is_missing, np.nan)
        if self.scale is not None:
            result *= self.scale
        if self.offset is not None:
            result += self.offset
        return result


def coding_of(attributes: Mapping[str, object], dtype: DType) -> Coding | None:
    """Return the coding of numbers of *dtype*; None if *attributes* have none.

    >>> coding_of({"scale_factor": np.float32(0.1), "_FillValue": np.int16(-1)}, np.dtype("i2")).dtype
    dtype('float32')
    """
    scaling = {key: cast("float", _scalar(attributes[key])) for key in _SCALE_NAMES if key in attributes}
    native_dtype = dtype.newbyteorder("=")
    integer_dtype = _integers(native_dtype, _scalar(attributes.get("_Unsigned")))
    has_fills = any(key in attributes for key in _FILL_NAMES)
    if dtype.kind not in "iufc" or not (scaling or has_fills or integer_dtype != native_dtype):
        return None
    fills = [
        fill
        for key in _FILL_NAMES
        if key in attributes
        for fill in _fills(key, attributes[key], native_dtype, integer_dtype)
    ]
    if scaling:
        decoded_dtype = _float_dtype(integer_dtype, scaling)
    elif fills and dtype.kind in "iu":
        decoded_dtype = np.dtype("f4" if dtype.itemsize <= 2 else "f8")
    else:
        decoded_dtype = integer_dtype
    if fills and decoded_dtype.kind in "iu":
        decoded_dtype = np.dtype("f8")
    return Coding(integer_dtype, tuple(fills), scaling.get("scale_factor"), scaling.get("add_offset"), decoded_dtype)


def as_netcdf(attributes: Mapping[str, object]) -> dict[str, object]:
    """Return attributes of an HDF5 file as netCDF has them: an array of one element becomes a number or a text.

    >>> as_netcdf({"scale_factor": np.array([0.5]), "range": np.array([0, 9])})
    {'scale_factor': np.float64(0.5), 'range': array([0, 9])}
    """
    return {
        key: attribute(value[0]) if isinstance(value, np.ndarray) and value.shape == (1,) else value
        for key, value in attributes.items()
    }


def _scalar(value: object) -> object:
    array = np.asarray(value)
    return array.ravel()[0] if array.ndim else value


def _integers(dtype: DType, unsigned: object) -> DType:
    """Return *dtype*, signed or unsigned as the attribute ``_Unsigned`` says."""
    kind = {("i", "true"): "u", ("u", "false"): "i"}.get((dtype.kind, str(unsigned).lower()))
    return dtype if kind is None else np.dtype(f"{kind}{dtype.itemsize}")


def _fills(key: str, value: object, dtype: DType, integer_dtype: DType) -> list[np.generic]:
    """Return the values of an attribute that mark missing numbers."""
    fills: list[np.generic] = [
        fill for fill in np.asarray(value).ravel() if isinstance(fill, np.number) and not np.isnan(fill)
    ]
    if key == "_FillValue" and integer_dtype != dtype:  # it is written with the signs of the file
        return list(np.array(fills).astype(dtype).view(integer_dtype))
    return fills


def _float_dtype(dtype: DType, scaling: Mapping[str, object]) -> DType:
    """Return the dtype of decoded numbers, from the dtypes of scale and offset. Source: xarray.coding.variables."""
    kinds = {key: np.dtype(type(value)) for key, value in scaling.items()}
    if len(kinds) == 2:
        first_dtype, second_dtype = kinds.values()
        if first_dtype == second_dtype and first_dtype in (np.float32, np.float64):
            return np.dtype("f8") if dtype.itemsize == 4 and dtype.kind in "iu" else first_dtype
    return np.dtype("f8") if "add_offset" in kinds else kinds["scale_factor"]


def decode(block: Array, target: Array, coding: Coding, limit: int | None) -> None:
    """Overwrite *target* by the numbers of *block*, in steps that need at most *limit* bytes, or one element."""
    if len(block.shape) == 0 or block.size * (2 * coding.dtype.itemsize + 1) <= (limit or DEFAULT_SCRATCH):
        convert(coding.decoded(block), target)
    elif len(block) == 1:
        decode(block[0, ...], target[0, ...], coding, limit)
    else:
        middle = len(block) // 2
        decode(block[:middle], target[:middle], coding, limit)
        decode(block[middle:], target[middle:], coding, limit)
