"""Calls that NumPy's own function computes, on arrays that each rank has whole; a large result is cut by the rule.

1. Large results of small tensors, such as a row and a column.
2. In a script, calls that are not defined for tensors: up to 64 MiB of a tensor (`WHOLE_ARRAY`) come to all ranks.
"""

from collections.abc import Callable, Mapping
from contextlib import suppress
from math import prod
from typing import TypeAlias

import numpy as np

from meshcomm.blocks.align import note
from meshcomm.blocks.small import gathered
from meshcomm.core._tracing import Value
from meshcomm.core._tuning import WHOLE_ARRAY, WHOLE_BELOW
from meshcomm.core._types import Array
from meshcomm.core.arrays.dtensor import DTensor
from meshcomm.numpy.namespace.arrays import is_array
from meshcomm.numpy.namespace.making import is_home, of_array

Called: TypeAlias = Callable[..., Value]


class Unfit(Exception):
    """A tensor is not whole, or NumPy's result is a view, which tensors have of their own."""


def grown(ufunc: np.ufunc, operands: tuple[Value, ...]) -> Value:
    """Return the large result of small operands, such as a row and a column, cut as the rule of creation says.

    ``NotImplemented`` for others, and on a mesh on which the program has made nothing by that rule.
    """
    tensors = [x for x in operands if type(x) is DTensor]
    if len(tensors) < 2 or tensors[0].shape == tensors[1].shape or any(x.nbytes >= WHOLE_BELOW for x in tensors):
        return NotImplemented
    with suppress(ValueError, Unfit):  # shapes that do not broadcast: the function says so
        size = prod(np.broadcast_shapes(*(x.shape for x in tensors)))
        if size * tensors[0].dtype.itemsize >= WHOLE_BELOW and is_home(tensors[0].mesh):
            return _Whole(None).call(ufunc, "__call__", operands, {})
    return NotImplemented


def by_gathering(function: Called, method: str | None, args: tuple[Value, ...], kwargs: Mapping[str, Value]) -> Value:
    """Return what NumPy's *function* makes of arrays that come to all ranks. Collective.

    ``Unfit`` if they are too large, or if the result is a view of them.
    """
    return _Whole(f"numpy.{function.__name__}").call(function, method, args, kwargs)


class _Whole:
    """A call with the arrays of its tensors. *name* is what it is called while tensors come; None: none are."""

    def __init__(self, name: str | None) -> None:
        self._name = name
        self._held: list[tuple[DTensor, Array]] = []

    def call(
        self, function: Called, method: str | None, args: tuple[Value, ...], kwargs: Mapping[str, Value]
    ) -> Value:
        called = function if method is None else getattr(function, method)
        given, named = [self._array(x) for x in args], {key: self._array(x) for key, x in kwargs.items()}
        made = called(*given, **named)
        written = named.get("out") or ()
        for tensor, array in self._held:
            is_written = made is None or any(each is array for each in (made, *written))
            if is_written and tensor.local is not array:
                tensor[...] = array  # it was changed in place
        return self._tensors(made)

    def _array(self, x: Value) -> Value:
        """Return the array of a tensor, also in lists; anything else as it is."""
        if type(x) is DTensor:
            array = self._array_of(x)
            self._held.append((x, array))
            return array
        if type(x) in (list, tuple):
            return type(x)([self._array(each) for each in x])
        if isinstance(x, DTensor):
            raise Unfit
        if is_array(x) and self._held:
            note(x, self._held[0][0].mesh)
        return x

    def _array_of(self, x: DTensor) -> Array:
        block, view = x.local, x._view
        is_free = view is None or (view.writeable and not view.origins)
        if block is not None and is_free and x.layout.is_fully_replicated() and x.mesh.size == x.mesh.world.size:
            return block
        if self._name is None or x.nbytes > WHOLE_ARRAY:
            raise Unfit
        return gathered(self._name, x)

    def _tensors(self, made: Value) -> Value:
        if is_array(made):
            for tensor, array in self._held:  # all of them first: an out= may be a view of an operand
                if made is array:
                    return tensor
            if made.base is not None and any(np.may_share_memory(made, array) for _, array in self._held):
                raise Unfit
            return of_array(made)
        if isinstance(made, tuple | list):
            found = map(self._tensors, made)
            return type(made)(*found) if hasattr(made, "_fields") else type(made)(found)
        return made
