"""Types for the part of h5py that is used here: the library has none."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from types import ModuleType
from typing import Any, Protocol, TypeAlias

from meshcomm.core._types import Array, Shape
from meshcomm.storage.formats.base import Sliced
from meshcomm.storage.libraries import library

LowLevelObject: TypeAlias = Any
"""An object of the low-level interface of h5py, which is that of HDF5 in C."""


def h5py_library() -> ModuleType:
    """Return h5py; ``ImportError`` says how to get it."""
    return library("h5py", "HDF5 files need h5py")


class Attributes(Protocol):
    """The attributes of a file, a group or a dataset."""

    def __getitem__(self, key: str) -> LowLevelObject: ...
    def __setitem__(self, key: str, value: object) -> None: ...
    def __contains__(self, key: object) -> bool: ...
    def __iter__(self) -> Iterator[str]: ...
    def get(self, key: str, default: object = None) -> LowLevelObject: ...
    def get_id(self, key: str) -> LowLevelObject: ...


class Hdf5Object(Protocol):
    """A named object in a file: a group or a dataset."""

    name: str
    attrs: Attributes
    id: LowLevelObject


class Hdf5Axis(Protocol):
    """An axis of a dataset, and the scales that are attached to it."""

    label: str

    def values(self) -> Iterable["Hdf5Dataset"]: ...
    def attach_scale(self, scale: "Hdf5Dataset") -> None: ...
    def detach_scale(self, scale: "Hdf5Dataset") -> None: ...


class Hdf5Dataset(Hdf5Object, Sliced, Protocol):
    """A dataset. Its shape is None if it has no elements."""

    ndim: int
    file: "Hdf5File"
    maxshape: tuple[int | None, ...]
    chunks: Shape | None
    compression: str | None
    external: Sequence[tuple[str, int, int]] | None
    is_virtual: bool
    is_scale: bool
    fillvalue: object
    dims: Sequence[Hdf5Axis]

    def __len__(self) -> int: ...
    def __setitem__(self, index: tuple[slice, ...], block: Array | None) -> None: ...
    def virtual_sources(self) -> Sequence[LowLevelObject]: ...
    def make_scale(self, name: str) -> None: ...
    def resize(self, size: int, axis: int) -> None: ...
    def asstr(self, errors: str) -> dict[object, Array]: ...


class Hdf5Group(Hdf5Object, Protocol):
    """A group."""

    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[str]: ...
    def __contains__(self, name: object) -> bool: ...
    def __getitem__(self, name: object) -> Hdf5Dataset: ...
    def __setitem__(self, name: str, item: object) -> None: ...
    def __delitem__(self, name: str) -> None: ...
    def get(self, name: str, default: object = None, getlink: bool = False) -> Hdf5Dataset | None: ...
    def values(self) -> Iterable[Hdf5Dataset]: ...
    def create_dataset(self, name: str, shape: Shape, dtype: str, **options: object) -> Hdf5Dataset: ...


class Hdf5File(Hdf5Group, AbstractContextManager["Hdf5File"], Protocol):
    """A file, which is also its root group."""

    userblock_size: int

    def flush(self) -> None: ...
    def close(self) -> None: ...
