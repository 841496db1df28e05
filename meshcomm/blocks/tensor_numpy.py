"""NumPy with types for tensors: NumPy's own stubs say that its functions return ndarray, even for a DTensor."""

from typing import Any, Protocol, TypeAlias, cast

import numpy as np

from meshcomm.core._types import Array
from meshcomm.core.arrays.dtensor import DTensor

TensorOrArray: TypeAlias = DTensor | Array


class _TensorFunction(Protocol):
    """A function of NumPy that returns one array: a DTensor if an argument is one, by NumPy's protocols."""

    @property
    def outer(self) -> "_TensorFunction": ...
    def __call__(self, *args: object, **kwargs: object) -> DTensor: ...


class _TensorNumpy(Protocol):
    """NumPy, or one of its modules."""

    @property
    def linalg(self) -> "_TensorNumpy": ...
    def __getattr__(self, name: str) -> _TensorFunction: ...


tensor_np = cast("_TensorNumpy", np)
"""The module numpy itself, to call with a DTensor."""

untyped_np: Any = np
"""The module numpy itself, for calls with arguments that its stubs do not know."""
