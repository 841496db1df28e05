"""What all formats have in common: what is described, what a file contains, and how a new file takes its name."""

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from itertools import pairwise
from math import prod
from pathlib import Path
from typing import ClassVar, NamedTuple, Protocol

from meshcomm.core._arguments import has_zero_date_step, quote
from meshcomm.core._files import temporary_path
from meshcomm.core._tuning import PAGE
from meshcomm.core._types import Array, DType, Json, JsonObject, Shape
from meshcomm.core.arrays.trees import Node
from meshcomm.errors import CheckpointError, MeshcommError
from meshcomm.storage import files
from meshcomm.storage.checksums import Piece
from meshcomm.storage.files import File
from meshcomm.storage.options import Codecs
from meshcomm.storage.stored import Stored

TEXTS = "it holds texts of any length"
"""Why an array cannot be loaded."""

MAX_AXES = 32
"""Axes of an array. NumPy has more since version 2, but does not broadcast them."""

MAX_EMPTY = 2**20
"""Elements of no bytes, such as texts without characters, of an array in a file."""

MAX_SMALL_CHUNKS = 2**20
"""Chunks of less than a page in an array: zarr's library takes five minutes for so many that are not there."""

MAX_VALUES = 2**22
"""Values of JSON in a file. An empty object takes 72 bytes of memory, and three in the file."""


class Sliced(Protocol):
    """An array of a library: slices along all its axes read what they take."""

    @property
    def shape(self) -> Shape: ...

    @property
    def dtype(self) -> DType: ...

    def __getitem__(self, index: tuple[slice, ...]) -> Array: ...


class ArrayToSave(NamedTuple):
    """An array to save: *shape* and *dtype*, and its *layout* as a hint for people.

    *dims* are the names of its axes, *chunks* the shape of its chunks, *codecs* their compression, *attributes* its
    own metadata. *grows* is the name of one more axis of the file, the first one: then this describes one snapshot,
    and *steps* snapshots are appended. Axes named in *unlimited* may grow later.
    """

    name: str
    shape: Shape
    dtype: DType
    layout: str
    dims: tuple[str, ...] | None = None
    chunks: Shape | None = None
    codecs: Codecs = ()
    attributes: Mapping[str, object] = {}
    grows: str | None = None
    unlimited: tuple[str, ...] = ()
    steps: int = 1

    @property
    def nbytes(self) -> int:
        """The bytes of the array, or of one snapshot."""
        return prod(self.shape) * self.dtype.itemsize


class FileContents(NamedTuple):
    """What a file or folder holds.

    *node* is the tree of a checkpoint. *checks* has the checksums of the ranges of each file, *sizes* its bytes.
    *hints* are the layouts at the save, for people. *attributes* and *dims*, the names of axes, are there for arrays
    that have some; an axis without a name has "". *left_out* has the reason for each array that cannot be loaded, and
    *texts* the shapes of those with texts of any length. *unlimited* are the names of axes that may grow. *links* are
    the targets of links, which are not followed. *origins* has the header file of each array, and of all under "",
    with the `identity` of that file.
    """

    arrays: dict[str, Stored]
    metadata: Mapping[str, object]
    node: Node | None = None
    checks: dict[str, list[int]] | None = None
    sizes: dict[str, int] | None = None
    hints: Mapping[str, str] = {}
    attributes: Mapping[str, Mapping[str, object]] = {}
    dims: Mapping[str, tuple[str, ...]] = {}
    left_out: Mapping[str, str] = {}
    texts: Mapping[str, Shape] = {}
    unlimited: tuple[str, ...] = ()
    links: Mapping[str, str] = {}
    origins: Mapping[str, tuple[str, int, int, int]] = {}

    @property
    def by_library(self) -> list[str]:
        """The names of the arrays that only a library can read."""
        return [name for name, stored in self.arrays.items() if stored.chunks is not None]

    def why_not(self, name: str) -> str | None:
        """Return why *name* cannot be loaded, if the file has something of that name."""
        return self.left_out.get(name) or self.links.get(name)


class Writer(ABC):
    """New files of one format, which take their name in one step. All its methods run on one rank.

    `begin` makes the files, `commit` gives them their name, `abandon` removes them.
    """

    checks: ClassVar[bool] = False
    """Whether the format has checksums."""

    any_tree: ClassVar[bool] = False
    """Whether the format holds trees, with numbers, texts and None in them."""

    metadata_types: ClassVar[tuple[type, ...]] = ()
    """The types that values of metadata may have; without any, all that JSON can hold."""

    has_metadata: ClassVar[bool] = True
    """Whether the format has metadata."""

    beside: ClassVar[bool] = False
    """Whether there are files beside the path: a symbolic link to it is replaced, and not what it leads to."""

    separator: ClassVar[str] = "."
    """What joins the keys of nested dicts in the name of an array."""

    adds: ClassVar[bool] = False
    """Whether arrays can be added to what is there: mode "a"."""

    has_attributes: ClassVar[bool] = False
    """Whether each array has names of its axes, and metadata of its own."""

    has_chunks: ClassVar[bool] = False
    """Whether arrays can be in chunks, compressed or not."""

    def __init__(
        self, path: Path, arrays: list[ArrayToSave], node: Node, metadata: dict[str, object], *, mode: str = "w"
    ) -> None:
        self.path, self.arrays, self.node, self.metadata, self.mode = path, arrays, node, metadata, mode
        self.aside = temporary_path(path)
        self._locked: list[File] = []

    @abstractmethod
    def begin(self) -> tuple[Path, list[Stored]]:
        """Make the files, and return where ranks find them, and where each array goes."""

    @abstractmethod
    def would_lose(self) -> list[str]:
        """Return, for people, what is at the path, would be lost, and that meshcomm did not write or has other names.

        ``CheckpointError`` if something else is there than a file of this format.
        """

    def place(self, name: str, chunks: list[tuple[Shape, int]]) -> list[tuple[str, int]]:
        """Return where each of these chunks of an array goes: the file, and where it begins there.

        Parameters
        ----------
        name: name of the array
        chunks: index of each chunk along each axis, and its size in bytes
        """
        raise NotImplementedError(f"{type(self).__name__} has no chunks")

    def remove_leftovers(self) -> None:
        """Remove what saves to this path that were cut off have left."""
        for left in files.leftovers(self.path):
            files.remove(left)

    @classmethod
    def holds(cls, value: object) -> bool:
        """Return whether metadata may have *value* as it is, which came from a file."""
        return isinstance(value, cls.metadata_types)

    @classmethod
    def check_names(cls, names: list[str]) -> None:
        """Raise ``CheckpointError`` for names that the format cannot have."""
        if cls.separator != "/":
            return
        for name in names:
            if "\0" in name or any(key in ("", ".", "..") for key in name.split("/")):
                raise CheckpointError(f"{quote(name)} is no path of an array: keys between / are not empty, . or ..")
        all_names = set(names)
        within = ((name, group) for name in names for group in groups_above(name) if group in all_names)
        for name, group in within:
            raise CheckpointError(f"array {quote(name)} would be in {quote(group)}, which is an array, no group")

    def commit(self, pieces: list[Piece]) -> None:
        """Give the files their name. *pieces* are the checksums of what the ranks wrote."""
        self.refuse_another()
        files.replace(self.aside, self.path)
        self.release()

    def refuse_another(self) -> None:
        """Raise ``FileNotFoundError`` if what was made has not its name any more."""
        if not all(file.is_at(file.path) for file in self._locked):
            raise FileNotFoundError(f"what was written for {self.path} is not there any more: somebody has moved it")

    def abandon(self) -> None:
        """Remove what was made, as well as that works; what it has replaced may have the name aside by now."""
        with suppress(OSError):
            if all(file.is_at(self.aside) for file in self._locked):
                files.remove(self.aside)
        with suppress(OSError):
            self.release()

    def hold(self, file: File) -> None:
        """Tell other saves that this one goes on: they leave the file alone that is locked."""
        file.lock()
        self._locked.append(file)

    def new_file(self, path: Path, like: Path) -> File:
        """Return a new file, held until this save is complete or given up. It has the permissions of *like*."""
        file = files.create(path, like)
        self.hold(files.for_writing(path))
        return file

    def release(self) -> None:
        """Unlock the files: other saves may remove them now."""
        locked, self._locked = self._locked, []
        for file in locked:
            file.close()


def groups_above(name: str) -> list[str]:
    """Return the paths of the groups that an array is in.

    >>> groups_above("a/b/c")
    ['a', 'a/b']
    """
    keys = name.split("/")
    return ["/".join(keys[:n]) for n in range(1, len(keys))]


class FileWriter(Writer):
    """A new file of a format that is one file."""

    def begin(self) -> tuple[Path, list[Stored]]:
        if self.path.is_dir():
            raise IsADirectoryError(f"{self.path} is a folder, and cannot become a file")
        self.remove_leftovers()
        with self.new_file(self.aside, self.path) as file:
            stored = self.lay_out(file)
            file.sync()
        return self.aside, stored

    @abstractmethod
    def lay_out(self, file: File) -> list[Stored]:
        """Write the header to a new *file*, give it its size, and return where each array goes."""

    @abstractmethod
    def contents(self) -> FileContents:
        """Return what the file at the path holds."""

    def would_lose(self) -> list[str]:
        empty = self.path.is_file() and not self.path.stat().st_size
        return [] if empty else lost(self.contents(), [array.name for array in self.arrays])


def parsed_json(text: bytes, what: object) -> Json:
    """Return what JSON *text* holds. ``CheckpointError`` for other text, and for a key that an object has twice."""

    def once(pairs: list[tuple[str, Json]]) -> JsonObject:
        result = dict(pairs)
        if len(result) < len(pairs):
            raise ValueError("a key is there twice")
        return result

    if sum(map(text.count, (b",", b"[", b"{"))) > MAX_VALUES:
        raise CheckpointError(f"{what} has more than {MAX_VALUES} values")
    try:
        result: Json = json.loads(text.decode(), object_pairs_hook=once)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{what}: not the JSON that it should be: {quote(str(error))}") from None
    return result


@contextmanager
def reading(what: object) -> Iterator[None]:
    """Raise ``CheckpointError`` for all that a library raises when it reads a damaged file."""
    try:
        with files.at_files():
            yield
    except (MeshcommError, ImportError, BlockingIOError):  # the last one: another program writes the file
        raise
    except Exception as error:
        if isinstance(error, MemoryError) or "memory allocation failed" in str(error):  # as HDF5 says it
            raise MemoryError(f"{what} needs more memory than there is") from error
        raise CheckpointError(f"{what} is damaged, or has another format: {quote(str(error))}") from error


def checked_dtype(dtype: DType, what: str) -> DType:
    """Return *dtype*; ``CheckpointError`` unless a tensor can have it."""
    if dtype.hasobject:
        error = CheckpointError(f"{what}: an array of Python objects; loading it could run any code")
        error.of_objects = True
        raise error
    if dtype.subdtype is not None:
        raise CheckpointError(f"{what}: elements of {dtype} are arrays themselves")
    if has_zero_date_step(dtype):
        raise CheckpointError(f"{what}: {dtype} has dates in steps of 0 units")
    return dtype


def checked_shape(shape: object, what: str, itemsize: int = 1) -> Shape:
    """Return *shape* as a tuple; ``CheckpointError`` unless it is a list of lengths that an array can have.

    Elements without bytes take nothing of a file, but time of whoever goes over them: there may be `MAX_EMPTY`.
    """
    if not isinstance(shape, list | tuple) or len(shape) > MAX_AXES:
        raise CheckpointError(f"{what}: shape {quote(shape)} is no list of at most {MAX_AXES} lengths")
    size = max(itemsize, 1)
    for n in shape:
        if type(n) is not int or n < 0:
            raise CheckpointError(f"{what}: shape {quote(shape)} has a length that is no integer, zero or more")
        size *= max(n, 1)
    if size >= 2**62 or (not itemsize and prod(shape) > MAX_EMPTY):
        raise CheckpointError(f"{what}: shape {quote(shape)} is too large")
    return tuple(shape)


def refuse_many_chunks(what: str, shape: Shape, chunk: Shape, itemsize: int, stored: int = 0) -> None:
    """Raise ``CheckpointError`` for more small chunks than anyone reads.

    *stored* is the size of all chunks in the file, if known: a missing chunk takes no bytes.
    """
    count = prod(-(-n // max(1, length)) for n, length in zip(shape, chunk, strict=True))
    if count > max(MAX_SMALL_CHUNKS, stored) and prod(chunk) * itemsize < PAGE:
        raise CheckpointError(f"{what} has {count} chunks of less than {PAGE} bytes, more than {MAX_SMALL_CHUNKS}")


def refuse_overlaps(arrays: Mapping[str, Stored], what: object) -> None:
    """``CheckpointError`` if two *arrays* of one file have bytes in common."""
    spans = sorted((s.begin, s.begin + s.nbytes, n) for n, s in arrays.items() if s.segments)
    for (_, stop, one), (start, _, other) in pairwise(spans):
        if start < stop:
            raise CheckpointError(f"{what}: arrays {quote(one)} and {quote(other)} overlap")


def lost(contents: FileContents, names: Iterable[str]) -> list[str]:
    """Return, for people, what a file with a header loses if arrays *names* replace it.

    In a file that meshcomm wrote, the first array begins with a page.
    """
    first = min((s.begin for s in contents.arrays.values() if s.segments), default=0)
    ours = first % PAGE == 0 and not contents.by_library and not contents.left_out
    saved = set(names)
    arrays = {name: stored for name, stored in contents.arrays.items() if not (ours and name in saved)}
    metadata = [] if ours else [f"metadata {quote(key)}" for key in contents.metadata]
    others = [quote(name) for name in contents.left_out]
    return (
        [f"array {quote(name)} {stored.shape} {stored.dtype}" for name, stored in arrays.items()] + metadata + others
    )


Reader = Callable[[Path], FileContents]
