from collections.abc import Callable
from typing import TypeVar

import numpy as np

from meshcomm.core._tracing import Value
from meshcomm.core._types import Array, Shape
from meshcomm.core.arrays._indices import At
from meshcomm.core.arrays.spec import TensorSpec
from meshcomm.core.arrays.typed import TypedTensor
from meshcomm.core.layouts.mesh import Mesh

T = TypeVar("T")

script: Callable[..., object] | None

class Recipe:
    def __init__(self, run: Callable[..., object]) -> None: ...

class OnBlocks(Recipe):
    def __init__(
        self, run: Callable[..., object], spec: TensorSpec, takes_out: bool = False, guarded: bool = False
    ) -> None: ...

class OfView(Recipe):
    def __init__(self, run: Callable[[Array], Array], spec: TensorSpec, strides: Shape) -> None: ...

class OfSlice(OfView):
    def __init__(self, run: At, spec: TensorSpec, strides: Shape, lengths: Shape) -> None: ...

class Assignment(Recipe):
    def __init__(self, run: At, lengths: Shape) -> None: ...

def set_kind(
    kind: type[TensorBase], long_way: Callable[..., object], check_open: Callable[[Mesh], object]
) -> None: ...
def set_protocol(
    guarded: Callable[..., object],
    get: Callable[[T, tuple[int, ...]], T | None],
    put: Callable[[T, tuple[int, ...], object], tuple[Array, tuple[Value, ...]] | None],
    note: Callable[..., None],
) -> None: ...
def count_write(tensor: TensorBase) -> bool: ...
def offer(recipe: Recipe, operands: tuple[object, ...], result: object) -> None: ...
def has_short_way(*functions: Callable[..., object]) -> None: ...

class TensorBase(TypedTensor):
    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: object, **kwargs: object) -> Value: ...
    def __array_function__(
        self, func: Callable[..., object], types: object, args: tuple[object, ...], kwargs: dict[str, object]
    ) -> Value: ...
