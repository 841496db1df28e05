from collections.abc import Callable
from types import ModuleType
from typing import TypeVar

import numpy as np

from meshcomm.core._tracing import Value
from meshcomm.core._types import Array
from meshcomm.core.arrays._recipes import Call
from meshcomm.core.arrays.typed import TypedTensor
from meshcomm.core.layouts.mesh import Mesh

T = TypeVar("T")

script: Callable[..., object] | None

def set_kind(
    kind: type[TensorBase], slow_path: Callable[..., object], check_open: Callable[[Mesh], object]
) -> None: ...
def set_protocol(
    get: Callable[[T, tuple[int, ...]], T | None],
    put: Callable[[T, tuple[int, ...], object], tuple[Array, tuple[Value, ...]] | None],
    slice_of: Callable[[T, object], T | Call],
    write: Callable[[T, object, Array], bool],
) -> None: ...
def set_rows(rows: ModuleType) -> None: ...
def let_rows(on: bool) -> None: ...

class TensorBase(TypedTensor):
    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: object, **kwargs: object) -> Value: ...
    def __array_function__(
        self, func: Callable[..., object], types: object, args: tuple[object, ...], kwargs: dict[str, object]
    ) -> Value: ...
