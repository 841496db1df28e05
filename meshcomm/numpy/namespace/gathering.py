"""Functions of NumPy that are not defined for tensors, called in a script: each rank gathers and calls NumPy's own."""

from collections.abc import Callable, Mapping
from typing import TypeAlias

import numpy as np

from meshcomm.blocks.small import allgather_array
from meshcomm.core._tracing import Value
from meshcomm.core._tuning import WHOLE_ARRAY
from meshcomm.core._types import Array
from meshcomm.core.arrays.dtensor import DTensor
from meshcomm.numpy.namespace.making import from_equal

_Pairs: TypeAlias = list[tuple[DTensor, Array]]


class CannotGather(Exception):
    """The call cannot be made by gathering: a tensor is too large, or NumPy's result is a view of an argument."""


def by_gathering(
    function: Callable[..., object], method: str | None, args: tuple[object, ...], kwargs: Mapping[str, object]
) -> Value:
    """Return the result of NumPy's *function* for tensors gathered to all ranks, up to 64 MiB each. Collective.

    Elements that it writes to an argument are written to the tensor. ``CannotGather`` if a tensor is larger, or if the
    result is a view.
    """
    pairs: _Pairs = []
    name = f"numpy.{function.__name__}"
    numpy_function = function if method is None else getattr(function, method)
    arrays = {key: _gathered_array(name, x, pairs) for key, x in kwargs.items()}
    result = numpy_function(*(_gathered_array(name, x, pairs) for x in args), **arrays)
    out = arrays.get("out")
    written_arrays = out if isinstance(out, tuple) else (out,)
    for tensor, array in pairs:
        if result is None or any(x is array for x in (result, *written_arrays)):
            tensor[...] = array
    return _program_value(result, pairs)


def _gathered_array(name: str, x: Value, pairs: _Pairs) -> object:
    """Return a tensor as an array on all ranks, also in lists and tuples; anything else unchanged."""
    if type(x) in (list, tuple):
        return type(x)(_gathered_array(name, item, pairs) for item in x)
    if not isinstance(x, DTensor):
        return x
    if type(x) is not DTensor or x.nbytes > WHOLE_ARRAY:
        raise CannotGather
    pairs.append((x, allgather_array(name, x)))
    return pairs[-1][1]


def _program_value(result: Value, pairs: _Pairs) -> Value:
    """Return a result of NumPy as the program gets it; the tensor itself for an argument that was returned."""
    if type(result) is np.ndarray:
        for tensor, array in pairs:  # all of them first: an out= may be a view of an operand
            if result is array:
                return tensor
        if result.base is not None and any(np.may_share_memory(result, array) for _, array in pairs):
            raise CannotGather
        return from_equal(result)
    if isinstance(result, tuple | list):
        results = (_program_value(item, pairs) for item in result)
        return type(result)(*results) if hasattr(result, "_fields") else type(result)(results)
    return result
