"""What attributes say of numbers in files, by the conventions of netCDF: fill values, scale and offset.

The dtypes are those that `xarray.decode_cf` chooses.
"""

from collections.abc import Mapping
from typing import NamedTuple, cast

import numpy as np

from meshcomm.core._tuning import DEFAULT_SCRATCH
from meshcomm.core._types import Array, DType
from meshcomm.storage.transfer import convert
from meshcomm.storage.values import attribute

_FILLS = ("_FillValue", "missing_value")
_PACKS = ("scale_factor", "add_offset")
CODING = (*_FILLS, *_PACKS, "_Unsigned")
"""The attributes that say how numbers are decoded."""


class Coding(NamedTuple):
    """How stored numbers become others, of *dtype*: NaN where they are one of *fills*, else scaled and shifted.

    Integers are taken as of dtype *integers* first, which is that of the file or has the other signs.
    """

    integers: DType
    fills: tuple[np.generic, ...]
    scale: float | None
    offset: float | None
    dtype: DType

    def decoded(self, block: Array) -> Array:
        """Return the numbers of a block."""
        native = block.astype(block.dtype.newbyteorder("="), copy=False)
        numbers = native.view(self.integers) if native.dtype != self.integers else native
        result: Array = np.array(numbers, self.dtype)
        if self.fills:
            missing = np.zeros(result.shape, bool)
            for fill in self.fills:
                missing |= result == fill
            np.putmask(result, missing, np.nan)
        if self.scale is not None:
            result *= self.scale
        if self.offset is not None:
            result += self.offset
        return result


def coding_of(attributes: Mapping[str, object], dtype: DType) -> Coding | None:
    """Return how numbers of *dtype* are decoded; None if *attributes* say nothing of it.

    >>> coding_of({"scale_factor": np.float32(0.1), "_FillValue": np.int16(-1)}, np.dtype("i2")).dtype
    dtype('float32')
    """
    packs = {key: cast("float", _alone(attributes[key])) for key in _PACKS if key in attributes}
    native = dtype.newbyteorder("=")
    integers = _integers(native, _alone(attributes.get("_Unsigned")))
    has_fills = any(key in attributes for key in _FILLS)
    if dtype.kind not in "iufc" or not (packs or has_fills or integers != native):
        return None
    fills = [fill for key in _FILLS if key in attributes for fill in _fills(key, attributes[key], native, integers)]
    if packs:
        decoded_dtype = _float_dtype(integers, packs)
    elif fills and dtype.kind in "iu":
        decoded_dtype = np.dtype("f4" if dtype.itemsize <= 2 else "f8")
    else:
        decoded_dtype = integers
    if fills and decoded_dtype.kind in "iu":
        decoded_dtype = np.dtype("f8")
    return Coding(integers, tuple(fills), packs.get("scale_factor"), packs.get("add_offset"), decoded_dtype)


def as_netcdf(attributes: Mapping[str, object]) -> dict[str, object]:
    """Return attributes as netCDF has them, in HDF5 files of any name: an array of one is a number or a text.

    >>> as_netcdf({"scale_factor": np.array([0.5]), "range": np.array([0, 9])})
    {'scale_factor': np.float64(0.5), 'range': array([0, 9])}
    """
    return {
        key: attribute(value[0]) if isinstance(value, np.ndarray) and value.shape == (1,) else value
        for key, value in attributes.items()
    }


def _alone(value: object) -> object:
    array = np.asarray(value)
    return array.ravel()[0] if array.ndim else value


def _integers(dtype: DType, unsigned: object) -> DType:
    """Return *dtype* with the signs that the attribute ``_Unsigned`` says."""
    swapped = {("i", "true"): "u", ("u", "false"): "i"}.get((dtype.kind, str(unsigned).lower()))
    return dtype if swapped is None else np.dtype(f"{swapped}{dtype.itemsize}")


def _fills(key: str, value: object, dtype: DType, integers: DType) -> list[np.generic]:
    """Return the values of an attribute that stand for none."""
    fills: list[np.generic] = [
        fill for fill in np.asarray(value).ravel() if isinstance(fill, np.number) and not np.isnan(fill)
    ]
    if key == "_FillValue" and integers != dtype:  # it is written with the signs of the file
        return list(np.array(fills).astype(dtype).view(integers))
    return fills


def _float_dtype(dtype: DType, packs: Mapping[str, object]) -> DType:
    """Return the dtype of unpacked numbers, by those of scale and offset. Source: xarray.coding.variables."""
    kinds = {key: np.dtype(type(value)) for key, value in packs.items()}
    if len(kinds) == 2:
        first, second = kinds.values()
        if first == second and first in (np.float32, np.float64):
            return np.dtype("f8") if dtype.itemsize == 4 and dtype.kind in "iu" else first
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
