"""Calls of scipy.ndimage's functions with tensors: arguments, texts that ranks compare, and outputs."""

import importlib
from collections.abc import Mapping
from types import ModuleType

import numpy as np
from numpy.typing import DTypeLike

from meshcomm.blocks.make import map_into, map_to_new
from meshcomm.blocks.views import check_writable
from meshcomm.core._types import Array, DType
from meshcomm.core.arrays.dtensor import DTensor, unwrapped
from meshcomm.core.arrays.relayout import relayout
from meshcomm.errors import LayoutError, MeshcommError, ShapeError
from meshcomm.ndimage.arguments import Output


def scipy_ndimage() -> ModuleType:
    """Return scipy.ndimage; ``MeshcommError`` if SciPy is not installed."""
    try:
        return importlib.import_module("scipy.ndimage")
    except ImportError:
        raise MeshcommError("mc.ndimage runs SciPy on each block: pip install scipy") from None


def input_tensor(name: str, operand: object) -> DTensor:
    """Return *operand* as a tensor; ``LayoutError`` if it is none."""
    tensor = unwrapped(operand)
    if not isinstance(tensor, DTensor):
        raise LayoutError(f"ndimage.{name} takes a DTensor, not {type(tensor).__name__}: call distribute first")
    return tensor


def refuse_cyclic(tensor: DTensor) -> None:
    """Raise ``LayoutError`` if an axis is `Cyclic`: its blocks are not boxes."""
    for axis, n in enumerate(tensor.shape):
        if not tensor.layout.cut(axis, n).is_consecutive:
            names = " + ".join(tensor.layout.axes[axis])
            raise LayoutError(f"axis {axis} is Cyclic: relayout the tensor first, for example to '{names}' there")


class ScipyCall:
    """A function of SciPy with its *arguments*, except block and dtype; ranks compare its text.

    The text has all arguments, also those that do not change the exchange.
    """

    def __init__(self, name: str, **arguments: object) -> None:
        self._name, self._arguments, self._function = name, arguments, getattr(scipy_ndimage(), name)

    def __call__(self, block: Array, dtype: object) -> Array:
        """Return the filtered block."""
        options = {key: value for key, value in self._arguments.items() if not (key == "axes" and value is None)}
        return self._function(block, output=dtype, **options)

    def __str__(self) -> str:
        return call_text(self._name, self._arguments)


def call_text(name: str, arguments: Mapping[str, object]) -> str:
    """Return the text of a call for ranks to compare: arrays as their bytes, other objects as their classes.

    >>> call_text("convolve", {"weights": [1, -1], "mode": "nearest"})
    'convolve(weights=(1, -1), mode=nearest)'
    """
    return f"{name}({', '.join(f'{key}={_argument_text(value)}' for key, value in arguments.items())})"


def _argument_text(value: object) -> str:
    if callable(value):
        return "a function"
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, str | int | float | complex | None):
        return str(value)
    if isinstance(value, list | tuple):
        return f"({', '.join(map(_argument_text, value))})"
    if isinstance(value, np.ndarray) and not value.dtype.hasobject:
        return f"{value.shape} {value.dtype} {value.tobytes().hex()}"
    return type(value).__name__


def requested_dtype(output: Output) -> DTypeLike | None:
    """Return the dtype of SciPy's argument *output*; None if it is not given."""
    return output.dtype if isinstance(output, DTensor) else output


def output_dtype(tensor: DTensor, scipy_call: ScipyCall, output: Output) -> DType:
    """Return the dtype of a result, from SciPy's for one element; raise SciPy's errors."""
    unit_shape = (1,) * tensor.ndim
    target = np.zeros(unit_shape, output.dtype) if isinstance(output, DTensor) else output
    return scipy_call(np.zeros(unit_shape, tensor.dtype), target).dtype


def as_dtype_of(tensor: DTensor, dtype: DType) -> DTensor:
    """Return a copy of *tensor* with this dtype."""
    with np.errstate(all="ignore"):
        return map_to_new(lambda out, block: np.copyto(out, block, casting="unsafe"), tensor, dtype=dtype)


def write_output(result: DTensor, output: Output) -> DTensor:
    """Return *result*; if *output* is a tensor, write the result there and return it. Collective if elements move."""
    if not isinstance(output, DTensor):
        return result
    check_writable("output", output)
    if output.shape != result.shape:
        raise ShapeError(f"output has shape {output.shape}, but the result has {result.shape}")
    aligned = result if result.layout == output.layout else relayout(result, output.layout)
    return map_into(lambda block, source: np.copyto(block, source, casting="unsafe"), output, aligned)
