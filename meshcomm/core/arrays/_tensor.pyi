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
    def __init__(self, run: Callable[[Array], Array], spec: TensorSpec, strides: Shape, first: int = 0) -> None: ...

class OfSlice(OfView):
    def __init__(
        self, run: At, spec: TensorSpec, strides: Shape, first: int, lengths: Shape, steps: Shape
    ) -> None: ...

class Assignment(Recipe):
    def __init__(self, run: At, lengths: Shape) -> None: ...

def set_kind(
    kind: type[TensorBase], long_way: Callable[..., object], check_open: Callable[[Mesh], object]
) -> None: ...
def set_protocol(
    get: Callable[[T, tuple[int, ...]], T | None],
    put: Callable[[T, tuple[int, ...], object], tuple[Array, tuple[Value, ...]] | None],
    slice_of: Callable[[T, object], T | Call],
) -> None: ...

class Call:
    def __init__(self, recipe: Recipe, operands: tuple[object, ...], out: TensorBase | None = None) -> None: ...
    @property
    def recipe(self) -> Recipe: ...
    @property
    def operands(self) -> tuple[object, ...]: ...
    def run(self) -> Value: ...

def completed(made: Value) -> Value: ...

class TensorBase(TypedTensor):
    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: object, **kwargs: object) -> Value: ...
    def __array_function__(
        self, func: Callable[..., object], types: object, args: tuple[object, ...], kwargs: dict[str, object]
    ) -> Value: ...
