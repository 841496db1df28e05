from collections.abc import Callable
from typing import Any

import numpy as np

from meshcomm.core._tracing import Value
from meshcomm.core._types import Array, DType, Shape
from meshcomm.core.arrays._storage import Storage
from meshcomm.core.arrays.dtensor import DTensor
from meshcomm.core.arrays.spec import TensorSpec
from meshcomm.core.layouts.layout import Layout
from meshcomm.core.layouts.mesh import Mesh

def register_functions(
    owners_of: Callable[[TensorSpec], ElementOwners | None],
    fetched: Callable[[DTensor, tuple[int, ...]], DTensor | None],
    as_tensor: Callable[[Value, TensorSpec], DTensor],
    line: int,
) -> None: ...
def all_pages() -> dict[int, Value]: ...

class PagedElements:
    storage: Storage
    shape: Shape
    lines: dict[int, Array]
    values: Array
    whole: Array | None
    asker: object
    scalar: type[np.generic]
    first: int
    step: int
    count: int
    version: int
    hits: int
    def find(self, index: tuple[int, ...]) -> tuple[Value] | None: ...

class ElementOwners:
    mesh: Mesh
    dtype: DType
    result_layout: Layout
    device_of: dict[tuple[int, ...], int]
    numbers: list[tuple[int, ...]]
    starts: tuple[tuple[int, ...], ...]
    is_whole: bool
    def __init__(
        self,
        mesh: Mesh,
        shape: Shape,
        dtype: DType,
        starts: tuple[tuple[int, ...], ...],
        device_of: dict[tuple[int, ...], int],
        numbers: list[tuple[int, ...]],
        is_whole: bool,
        result_layout: Layout,
    ) -> None: ...
    def find(self, index: tuple[int, ...]) -> tuple[int, tuple[int, ...]] | None: ...
    def is_here(self, device: int) -> bool: ...

def element_of(tensor: DTensor, index: tuple[int, ...]) -> Value: ...
def to_set(tensor: DTensor, index: tuple[int, ...], value: object) -> tuple[Array, tuple[Any, ...]] | None: ...
