"""Code for all formats: descriptions of arrays, contents of files, checks, and how a new file gets its name."""

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
"""A reason why an array cannot be loaded."""

MAX_AXES = 32
"""The most axes of an array. NumPy has more since version 2, but does not broadcast them."""

MAX_EMPTY_ELEMENTS = 2**20
"""The most elements of an array in a file, if elements have no bytes, such as texts without characters."""

MAX_SMALL_CHUNKS = 2**20
"""The most chunks of less than a page in an array: zarr's library takes five minutes for this many missing ones."""

MAX_VALUES = 2**22
"""The most values of JSON in a file. An empty object takes 72 bytes of memory, and three in the file."""


class Sliced(Protocol):
    """An array of a library: indexing by slices along all its axes reads these elements."""

    @property
    def shape(self) -> Shape: ...

    @property
    def dtype(self) -> DType: ...

    def __getitem__(self, index: tuple[slice, ...]) -> Array: ...


class ArrayToSave(NamedTuple):
    """An array to save: *shape* and *dtype*, and its *layout* as a hint for people.

    *dims* are the names of its axes, *chunks* the shape of its chunks, *codecs* their compression, *attributes* its
    own metadata. *grows* is the name of an additional first axis in the file: then this describes one snapshot, and
    *steps* snapshots are appended. Axes named in *unlimited* may grow later.
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
    """The contents of a file or folder.

    *node* is the tree of a checkpoint. *checks* has the checksums of the ranges of each file, *sizes* its length in
    bytes. *hints* are the layouts at the save, for people. *attributes* and *dims*, the names of axes, have entries
    for arrays that have some; an axis without a name has "". *left_out* has the reason for each array that cannot be
    loaded, and *texts* the shapes of arrays of texts of any length. *unlimited* are the names of axes that may grow.
    *links* has a text with the target of each link, which is not followed. *origins* has the header file of each
    array, and of the whole under "", with the `identity` of that file.
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
    """Writes new files of one format, which get their name in one step. All methods run on one rank.

    `begin` makes the files, `commit` gives them their name, `abandon` removes them.
    """

    checks: ClassVar[bool] = False
    """Whether the format has checksums."""

    any_tree: ClassVar[bool] = False
    """Whether the format holds trees that contain numbers, texts and None."""

    metadata_types: ClassVar[tuple[type, ...]] = ()
    """The types of values of metadata; if empty, all values of JSON are allowed."""

    has_metadata: ClassVar[bool] = True
    """Whether the format has metadata."""

    beside: ClassVar[bool] = False
    """Whether there are more files beside the path: then a symbolic link at the path is replaced, not its target."""

    separator: ClassVar[str] = "."
    """The separator between keys of nested dicts in the name of an array."""

    adds: ClassVar[bool] = False
    """Whether arrays can be added to an existing file: mode "a"."""

    has_attributes: ClassVar[bool] = False
    """Whether each array has names of its axes, and metadata of its own."""

    has_chunks: ClassVar[bool] = False
    """Whether arrays can be in chunks, compressed or not."""

    def __init__(
        self, path: Path, arrays: list[ArrayToSave], node: Node, metadata: dict[str, object], *, mode: str = "w"
    ) -> None:
        self.path, self.arrays, self.node, self.metadata, self.mode = path, arrays, node, metadata, mode
        self.temporary_path = temporary_path(path)
        self._locked: list[File] = []

    @abstractmethod
    def begin(self) -> tuple[Path, list[Stored]]:
        """Make the files; return the path where ranks find them, and the location of each array."""

    @abstractmethod
    def would_lose(self) -> list[str]:
        """Return texts for people that list everything that this save would lose.

        These are data of the old file that meshcomm did not write, and arrays with other names. ``CheckpointError`` if
        the path is not a file of this format.
        """

    def place(self, name: str, chunks: list[tuple[Shape, int]]) -> list[tuple[str, int]]:
        """Return the location of each chunk of an array: its file, and its offset there.

        Parameters
        ----------
        name: name of the array
        chunks: index of each chunk along each axis, and its size in bytes
        """
        raise NotImplementedError(f"{type(self).__name__} has no chunks")

    def remove_leftovers(self) -> None:
        """Remove the files that unfinished saves to this path have left."""
        for leftover in files.leftovers(self.path):
            files.remove(leftover)

    @classmethod
    def holds(cls, value: object) -> bool:
        """Return whether metadata may have *value*, which came from a file, without conversion."""
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
        nested_names = ((name, group) for name in names for group in groups_above(name) if group in all_names)
        for name, group in nested_names:
            raise CheckpointError(f"array {quote(name)} would be in {quote(group)}, which is an array, no group")

    def commit(self, pieces: list[Piece]) -> None:
        """Give the files their name. *pieces* are the checksums of the data that the ranks wrote."""
        self.refuse_another()
        files.replace(self.temporary_path, self.path)
        self.release()

    def refuse_another(self) -> None:
        """Raise ``FileNotFoundError`` if a new file has lost its name."""
        if not all(file.is_at(file.path) for file in self._locked):
            raise FileNotFoundError(f"what was written for {self.path} is not there any more: somebody has moved it")

    def abandon(self) -> None:
        """Remove the new files, if possible, but not a replaced file that has the name *temporary_path* by now."""
        with suppress(OSError):
            if all(file.is_at(self.temporary_path) for file in self._locked):
                files.remove(self.temporary_path)
        with suppress(OSError):
            self.release()

    def hold(self, file: File) -> None:
        """Lock the file, so that other saves do not remove it while this one is running."""
        file.lock()
        self._locked.append(file)

    def new_file(self, path: Path, like: Path) -> File:
        """Return a new file, locked until this save is complete or abandoned. It has the permissions of *like*."""
        file = files.create(path, like)
        self.hold(files.for_writing(path))
        return file

    def release(self) -> None:
        """Unlock the files: other saves may remove them now."""
        locked_files, self._locked = self._locked, []
        for file in locked_files:
            file.close()


def groups_above(name: str) -> list[str]:
    """Return the paths of the groups that an array is in.

    >>> groups_above("a/b/c")
    ['a', 'a/b']
    """
    keys = name.split("/")
    return ["/".join(keys[:n]) for n in range(1, len(keys))]


class FileWriter(Writer):
    """Writes a new file of a format that is a single file."""

    def begin(self) -> tuple[Path, list[Stored]]:
        if self.path.is_dir():
            raise IsADirectoryError(f"{self.path} is a folder, and cannot become a file")
        self.remove_leftovers()
        with self.new_file(self.temporary_path, self.path) as file:
            stored = self.lay_out(file)
            file.sync()
        return self.temporary_path, stored

    @abstractmethod
    def lay_out(self, file: File) -> list[Stored]:
        """Write the header to a new *file*, set its size, and return the location of each array."""

    @abstractmethod
    def contents(self) -> FileContents:
        """Return the contents of the file at the path."""

    def would_lose(self) -> list[str]:
        is_empty = self.path.is_file() and not self.path.stat().st_size
        return [] if is_empty else lost(self.contents(), [array.name for array in self.arrays])


def parsed_json(text: bytes, subject: object) -> Json:
    """Return the value of the JSON *text*. ``CheckpointError`` for other text, and for duplicate keys of an object."""

    def checked_object(pairs: list[tuple[str, Json]]) -> JsonObject:
        result = dict(pairs)
        if len(result) < len(pairs):
            raise ValueError("a key is there twice")
        return result

    if sum(map(text.count, (b",", b"[", b"{"))) > MAX_VALUES:
        raise CheckpointError(f"{subject} has more than {MAX_VALUES} values")
    try:
        result: Json = json.loads(text.decode(), object_pairs_hook=checked_object)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{subject}: not the JSON that it should be: {quote(str(error))}") from None
    return result


@contextmanager
def reading(subject: object) -> Iterator[None]:
    """Raise ``CheckpointError`` in place of the errors of a library that reads a damaged file."""
    try:
        with files.at_files():
            yield
    except (MeshcommError, ImportError, BlockingIOError):  # BlockingIOError: another program writes the file
        raise
    except Exception as error:
        if isinstance(error, MemoryError) or "memory allocation failed" in str(error):  # as HDF5 says it
            raise MemoryError(f"{subject} needs more memory than there is") from error
        raise CheckpointError(f"{subject} is damaged, or has another format: {quote(str(error))}") from error


def checked_dtype(dtype: DType, subject: str) -> DType:
    """Return *dtype*; ``CheckpointError`` unless a tensor can have it."""
    if dtype.hasobject:
        error = CheckpointError(f"{subject}: an array of Python objects; loading it could run any code")
        error.of_objects = True
        raise error
    if dtype.subdtype is not None:
        raise CheckpointError(f"{subject}: elements of {dtype} are arrays themselves")
    if has_zero_date_step(dtype):
        raise CheckpointError(f"{subject}: {dtype} has dates in steps of 0 units")
    return dtype


def checked_shape(shape: object, subject: str, itemsize: int = 1) -> Shape:
    """Return *shape* as a tuple; ``CheckpointError`` unless it is a list of lengths that an array can have.

    Elements without bytes take no space in a file, but time in loops over them: at most `MAX_EMPTY_ELEMENTS`.
    """
    if not isinstance(shape, list | tuple) or len(shape) > MAX_AXES:
        raise CheckpointError(f"{subject}: shape {quote(shape)} is no list of at most {MAX_AXES} lengths")
    size = max(itemsize, 1)
    for n in shape:
        if type(n) is not int or n < 0:
            raise CheckpointError(f"{subject}: shape {quote(shape)} has a length that is no integer, zero or more")
        size *= max(n, 1)
    if size >= 2**62 or (not itemsize and prod(shape) > MAX_EMPTY_ELEMENTS):
        raise CheckpointError(f"{subject}: shape {quote(shape)} is too large")
    return tuple(shape)


def refuse_many_chunks(subject: str, shape: Shape, chunk: Shape, itemsize: int, stored_bytes: int = 0) -> None:
    """Raise ``CheckpointError`` for too many small chunks.

    *stored_bytes* is the size of all chunks in the file, if known: a missing chunk takes no bytes.
    """
    count = prod(-(-n // max(1, length)) for n, length in zip(shape, chunk, strict=True))
    if count > max(MAX_SMALL_CHUNKS, stored_bytes) and prod(chunk) * itemsize < PAGE:
        raise CheckpointError(f"{subject} has {count} chunks of less than {PAGE} bytes, more than {MAX_SMALL_CHUNKS}")


def refuse_overlaps(arrays: Mapping[str, Stored], subject: object) -> None:
    """Raise ``CheckpointError`` if two *arrays* of one file have bytes in common."""
    spans = sorted((s.begin, s.begin + s.nbytes, name) for name, s in arrays.items() if s.segments)
    for (_, stop, name), (start, _, next_name) in pairwise(spans):
        if start < stop:
            raise CheckpointError(f"{subject}: arrays {quote(name)} and {quote(next_name)} overlap")


def lost(contents: FileContents, names: Iterable[str]) -> list[str]:
    """Return texts for people that list what a file with a header loses if arrays *names* replace it.

    In a file that meshcomm wrote, the first array begins with a page.
    """
    first_offset = min((s.begin for s in contents.arrays.values() if s.segments), default=0)
    is_ours = first_offset % PAGE == 0 and not contents.by_library and not contents.left_out
    saved_names = set(names)
    arrays = {name: stored for name, stored in contents.arrays.items() if not (is_ours and name in saved_names)}
    metadata = [] if is_ours else [f"metadata {quote(key)}" for key in contents.metadata]
    left_out = [quote(name) for name in contents.left_out]
    return (
        [f"array {quote(name)} {stored.shape} {stored.dtype}" for name, stored in arrays.items()] + metadata + left_out
    )


Reader = Callable[[Path], FileContents]
