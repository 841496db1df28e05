"""Whole arrays in calls with tensors: they take part as tensors that each rank has whole."""

from collections.abc import Callable
from functools import lru_cache
from inspect import signature

import numpy as np

from meshcomm.blocks.align import note
from meshcomm.core._tracing import Value
from meshcomm.core._types import Array
from meshcomm.core.arrays.dtensor import DTensor
from meshcomm.core.arrays.scripted import is_scripted
from meshcomm.numpy.namespace.arrays import WholeArray
from meshcomm.numpy.namespace.small_arrays import small_arrays_on

_OF_SHAPES = frozenset((np.reshape, np.broadcast_to, np.transpose, np.moveaxis, np.roll, np.resize, np.tile, np.pad))
"""Functions whose other arguments than the first are shapes, axes and lengths."""

_OF_MEMORY = frozenset((np.may_share_memory, np.shares_memory))
"""Functions that ask what memory an argument has, and who may write to it."""

_WRITTEN = frozenset(("out", "dst"))
"""Parameters whose arrays are only written to: so they may have any content, another one on each rank."""

_CHANGING = frozenset((np.put, np.place, np.putmask, np.put_along_axis, np.fill_diagonal, np.copyto))
"""Functions that write to their first argument."""


class Promotion:
    """The arrays in the arguments of a call, as tensors on the mesh of its tensors, which share their memory."""

    def __init__(
        self, function: Callable[..., object], method: str | None, args: tuple[object, ...], kwargs: dict[str, object]
    ) -> None:
        first = _first_tensor((args, tuple(kwargs.values())))
        self._small_arrays = None if first is None else small_arrays_on(first.mesh)
        self._pairs: dict[int, tuple[Array, DTensor]] = {}  # by the ids of the arrays
        self._written: list[object] = []  # arrays that the call writes to
        self.args, self.kwargs = args, kwargs
        self._has_shapes = False
        if self._small_arrays is None or not self._small_arrays.everyone or function in _OF_MEMORY:
            return
        if function in _OF_SHAPES:
            shapes = (x.tolist() if isinstance(x, np.ndarray) else x for x in args[1:])
            self._has_shapes = any(isinstance(x, np.ndarray) for x in args[1:])
            self.args = self._promoted_arguments(args[0]), *shapes
            return
        written = _out_positions(function)
        self._written = [x for number, x in enumerate(args) if number in written]
        if function in _CHANGING or method == "at":
            self._written.append(args[0])
        out = kwargs.get("out")
        self._written += out if isinstance(out, tuple) else [out]
        self.args = tuple(self._promoted_arguments(x, number not in written) for number, x in enumerate(args))
        self.kwargs = {key: self._promoted_arguments(x, key not in _WRITTEN) for key, x in kwargs.items()}

    def __bool__(self) -> bool:
        return bool(self._pairs) or self._has_shapes

    def call(self, function: Callable[..., object]) -> object:
        """Return what *function* makes of the tensors; of a tensor that stands for an array, that array."""
        result = function(*self.args, **self.kwargs)
        for array, tensor in self._pairs.values():
            if not array.flags.c_contiguous and any(x is array for x in self._written):
                array[...] = tensor.to_numpy()
        arrays = {id(tensor): array for array, tensor in self._pairs.values()}
        if type(result) is tuple:
            return tuple(arrays.get(id(x), x) for x in result)
        return arrays.get(id(result), result)

    def _promoted_arguments(self, x: Value, is_read: bool = True) -> Value:
        if type(x) in (list, tuple):
            return type(x)(self._promoted_arguments(item, is_read) for item in x)
        if type(x) is not WholeArray and not (is_scripted() and type(x) is np.ndarray):
            return x
        if self._small_arrays is None or x.dtype.hasobject:
            return x
        if id(x) not in self._pairs:
            if is_read:
                note(x, self._small_arrays.mesh)
            tensor = self._small_arrays.make(x)
            if not x.flags.writeable and tensor._has_block:
                tensor._block.flags.writeable = False
            self._pairs[id(x)] = x, tensor
        return self._pairs[id(x)][1]


@lru_cache(maxsize=512)
def _out_positions(function: Callable[..., object]) -> frozenset[int]:
    """Return the positions of arguments that are only written to."""
    if isinstance(function, np.ufunc):
        return frozenset()
    return frozenset(number for number, name in enumerate(signature(function).parameters) if name in _WRITTEN)


def _first_tensor(x: Value) -> DTensor | None:
    if type(x) is DTensor:
        return x
    if type(x) in (list, tuple):
        return next((tensor for item in x if (tensor := _first_tensor(item)) is not None), None)
    return None
