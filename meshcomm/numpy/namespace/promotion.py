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

_SHAPE_FUNCTIONS = frozenset(
    (np.reshape, np.broadcast_to, np.transpose, np.moveaxis, np.roll, np.resize, np.tile, np.pad)
)
"""Functions whose arguments after the first are shapes, axes and lengths."""

_MEMORY_FUNCTIONS = frozenset((np.may_share_memory, np.shares_memory))
"""Functions that ask for the memory of their arguments; they get the arrays themselves."""

_OUT_PARAMETERS = frozenset(("out", "dst"))
"""Parameters whose arrays are only written to, so that their content may differ between ranks."""

_WRITING_FUNCTIONS = frozenset((np.put, np.place, np.putmask, np.put_along_axis, np.fill_diagonal, np.copyto))
"""Functions that write to their first argument."""


class Promotion:
    """The arguments of a call, with arrays promoted to tensors that share their memory, on the mesh of its tensors."""

    def __init__(
        self, function: Callable[..., object], method: str | None, args: tuple[object, ...], kwargs: dict[str, object]
    ) -> None:
        first_tensor = _first_tensor((args, tuple(kwargs.values())))
        self._small_arrays = None if first_tensor is None else small_arrays_on(first_tensor.mesh)
        self._pairs: dict[int, tuple[Array, DTensor]] = {}  # by the ids of the arrays
        self._written_arrays: list[object] = []  # arrays that the call writes to
        self.args, self.kwargs = args, kwargs
        self._has_shapes = False
        if self._small_arrays is None or not self._small_arrays.everyone or function in _MEMORY_FUNCTIONS:
            return
        if function in _SHAPE_FUNCTIONS:
            shapes = (x.tolist() if isinstance(x, np.ndarray) else x for x in args[1:])
            self._has_shapes = any(isinstance(x, np.ndarray) for x in args[1:])
            self.args = self._promoted_arguments(args[0]), *shapes
            return
        out_positions = _out_positions(function)
        self._written_arrays = [x for i, x in enumerate(args) if i in out_positions]
        if function in _WRITING_FUNCTIONS or method == "at":
            self._written_arrays.append(args[0])
        out = kwargs.get("out")
        self._written_arrays += out if isinstance(out, tuple) else [out]
        self.args = tuple(self._promoted_arguments(x, i not in out_positions) for i, x in enumerate(args))
        self.kwargs = {key: self._promoted_arguments(x, key not in _OUT_PARAMETERS) for key, x in kwargs.items()}

    def __bool__(self) -> bool:
        return bool(self._pairs) or self._has_shapes

    def call(self, function: Callable[..., object]) -> object:
        """Return the result of *function*; if it is the tensor of a promoted array, return the array."""
        result = function(*self.args, **self.kwargs)
        for array, tensor in self._pairs.values():
            if not array.flags.c_contiguous and any(x is array for x in self._written_arrays):
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
    """Return the positions of parameters whose arrays are only written to."""
    if isinstance(function, np.ufunc):
        return frozenset()
    return frozenset(i for i, name in enumerate(signature(function).parameters) if name in _OUT_PARAMETERS)


def _first_tensor(x: Value) -> DTensor | None:
    if type(x) is DTensor:
        return x
    if type(x) in (list, tuple):
        return next((tensor for item in x if (tensor := _first_tensor(item)) is not None), None)
    return None
