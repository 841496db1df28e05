"""Types that several folders use."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import Field
from types import EllipsisType
from typing import Any, ClassVar, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

Array: TypeAlias = NDArray[Any]
Indices: TypeAlias = NDArray[np.intp]
Bytes: TypeAlias = NDArray[np.uint8]
Counts: TypeAlias = list[int] | NDArray[np.int64]  # bytes for each rank of a communicator, or where they begin
Names: TypeAlias = tuple[str, ...]  # of mesh dimensions
Ranks: TypeAlias = range | tuple[int, ...]
Shape: TypeAlias = tuple[int, ...]
Slices: TypeAlias = tuple[EllipsisType | slice, ...]  # index of a view; with an ellipsis, a 0-d view is an array, too
ShapeLike: TypeAlias = int | Sequence[int]
Axis: TypeAlias = int | tuple[int, ...] | None
DType: TypeAlias = np.dtype[Any]
Groups: TypeAlias = Sequence[Sequence[int]] | NDArray[np.integer]  # a row of ranks, in order, for each group
Pairs: TypeAlias = Iterable[tuple[int, int]]  # of a source and a target rank

AnyFunction: TypeAlias = Callable[..., Any]
"""A function that is looked up by name: its callers know its parameters and its result."""

AnyDict: TypeAlias = dict[str, Any]
"""Values of any kind by name: arguments of a function that is looked up, attributes, a state of another library."""

Casting: TypeAlias = Literal["no", "equiv", "safe", "same_kind", "unsafe"]
"""NumPy's rules for conversions."""

Json: TypeAlias = bool | int | float | str | list["Json"] | dict[str, "Json"] | None
"""A value that JSON can hold."""

JsonObject: TypeAlias = dict[str, Json]
"""An object of JSON."""


class FieldsOnly:
    """A base of frozen dataclasses: a pickle has their fields, and no cached values such as a hash."""

    __slots__ = ()
    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]

    def __getstate__(self) -> dict[str, object]:
        return {name: getattr(self, name) for name in self.__dataclass_fields__}
