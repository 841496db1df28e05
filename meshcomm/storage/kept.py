"""Caches of the contents of files and of the decisions for loads, which are valid until the files change.

How changes of a file are detected. Its inode, size and time of change (`files.identity`) say so, but for two cases:

- The clock of a file system has ticks, of milliseconds on local disks and up to two seconds elsewhere. A file that is
  written twice in one tick may look the same. So an identity counts only if the file was looked at `TICK` after its
  last change. Before that, the file is read again, and its contents are compared.
- A network file system remembers the answers of its server about a file for some seconds, unless the file is opened.
  So a file is opened to ask, and a rank that reads data asks again after it has opened the file for them.

A store of zarr is a tree of folders in which other programs may add arrays: it is always read again.

What ranks know. The first device looks at files for all. Each rank keeps the same loads, because a load is kept, or
dropped, only after all ranks have agreed that they have made it, or that one of them has seen a change.
"""

import json
import os
import time
from collections.abc import Hashable, Iterable
from pathlib import Path
from typing import NamedTuple, TypeAlias

from meshcomm.blocks.session import Session
from meshcomm.core._json import read
from meshcomm.core.arrays.trees import Node
from meshcomm.core.layouts.mesh import Mesh
from meshcomm.errors import CheckpointError
from meshcomm.storage import files
from meshcomm.storage.formats.base import FileContents
from meshcomm.storage.formats.known import contents
from meshcomm.storage.formats.safetensors import INDEX
from meshcomm.storage.reading import ArraysReader
from meshcomm.storage.stored import Stored, StoredFields
from meshcomm.storage.transfer import OpenFiles
from meshcomm.storage.values import node_of_value, value_of_node

TICK = 2 * 10**9
"""Nanoseconds. The coarsest timestamp of a file system (FAT): a second change within it may leave the same time."""

MAX_FILES = 64
"""The most files with contents in the cache of a process, and loads that a rank set keeps. A guess: programs load few
files in turn."""

MAX_ARRAYS = 256
"""Files with more arrays are not kept: such a checkpoint is usually loaded once."""


_JSON_FIELDS = ("node", "checks", "sizes")
"""The fields of `FileContents` that go to JSON unchanged."""

ContentsFields: TypeAlias = tuple[str, list[StoredFields], Node, object, object, object]
"""The path and the contents of files, as JSON holds them: arrays, other fields, and those of `_JSON_FIELDS`."""


class CachedContents(NamedTuple):
    """The *contents* of files relative to *base*, as they were after *time*, in nanoseconds."""

    base: Path
    contents: FileContents
    time: int

    @property
    def has_reliable_identity(self) -> bool:
        """Whether any further change would give the files other identities."""
        origins = self.contents.origins
        return "" in origins and all(change_time + TICK < self.time for *_, change_time in origins.values())

    def is_current(self) -> bool:
        """Return whether the files are unchanged, by their identities."""
        if not self.has_reliable_identity:
            return False
        try:
            check_unchanged(self.base, self.contents, self.contents.origins, opens=True)
        except (CheckpointError, OSError):
            return False
        return True

    def as_json(self) -> ContentsFields:
        """Return *base* and *contents* as JSON holds them."""
        arrays = [stored.as_json() for stored in self.contents.arrays.values()]
        other_fields = {
            name: value
            for name, value in self.contents._asdict().items()
            if value and name not in ("arrays", *_JSON_FIELDS)
        }
        values = [
            str(self.base),
            arrays,
            node_of_value(other_fields),
            *(getattr(self.contents, name) for name in _JSON_FIELDS),
        ]
        return json.loads(json.dumps(values))


_contents_cache: dict[str, CachedContents] = {}


def cached_contents(path: Path) -> CachedContents:
    """Return the contents of *path*, read or from the cache. ``FileNotFoundError``, ``CheckpointError``."""
    absolute_path = os.path.abspath(path)
    entry = _contents_cache.get(absolute_path)
    if entry is None or not entry.is_current():
        start_time, file_path = time.time_ns(), Path(absolute_path)
        base = file_path.parent if path.name.endswith(INDEX) else file_path
        entry = CachedContents(base, contents(file_path), start_time)
        if len(entry.contents.arrays) <= MAX_ARRAYS:
            _contents_cache.pop(absolute_path, None)
            _contents_cache[absolute_path] = entry  # the newest
            # Simulated ranks are threads: another one may remove it first.
            for oldest in list(_contents_cache)[:-MAX_FILES]:
                _contents_cache.pop(oldest, None)
    return entry


def check_unchanged(base: Path, file_contents: FileContents, names: Iterable[str], *, opens: bool = False) -> None:
    """Raise ``CheckpointError`` if the files that say where arrays are have changed since they were read.

    Parameters
    ----------
    base: path that the names of files are relative to
    file_contents: contents as they were read
    names: names of the arrays
    opens: whether to open the files, as a network file system needs it
    """
    for file, *identity in {file_contents.origins[name] for name in ("", *names) if name in file_contents.origins}:
        path = base / file if file else base
        if files.identity(path, opens=opens) != tuple(identity):
            raise CheckpointError(f"{path} has changed since it was opened: open it again")


class SharedContents(NamedTuple):
    """The *contents* of files relative to *base* that all ranks know; *fields* are the same as JSON holds them."""

    base: Path
    contents: FileContents
    fields: ContentsFields | None = None


def shared_contents(path: Path, call: str, session: Session) -> SharedContents:
    """Return the contents that the first device reads at *path*. Collective; the ranks compare the text *call*."""

    def read_contents() -> ContentsFields | None:
        return None if session.device else cached_contents(path).as_json()

    local_fields = session.agree_on_result(lambda _: call, read_contents)
    (fields,) = filter(None, session.allgather(local_fields))
    base, arrays, other_fields, *values = fields
    stored = {array[0]: Stored.from_json(array) for array in arrays}
    content_fields = {
        "metadata": {},
        **read(dict, value_of_node(other_fields)),
        **dict(zip(_JSON_FIELDS, values, strict=True)),
    }
    return SharedContents(Path(base), FileContents(stored, **content_fields), fields)


class CachedLoad:
    """A load that all ranks have agreed on.

    *call* is the text that ranks compare, *checks* says whether checksums are compared, and *mesh* has all ranks.
    """

    def __init__(self, call: str, shared: SharedContents, reader: ArraysReader, mesh: Mesh, *, checks: bool) -> None:
        self.call, self.shared, self.reader, self.mesh, self.checks = call, shared, reader, mesh, checks
        self.is_cacheable = len(shared.contents.arrays) <= MAX_ARRAYS
        self.has_smaller_meshes = any(request.layout.mesh.size != mesh.size for request in reader.requests)
        self._checked_path, self._has_reliable_identity = "", False  # known to the first device only

    def check(self, path: Path, open_files: OpenFiles, *, first: bool) -> None:
        """Raise ``CheckpointError`` if the files have changed, or *path* leads to others.

        *open_files* were opened by this rank just now; *first* says whether this is the first device.
        """
        check_unchanged(
            self.shared.base, self.shared.contents, self.reader.names, opens=first and "" not in open_files.files
        )
        if first and not (self._has_reliable_identity and self._checked_path == os.path.abspath(path)):
            entry = cached_contents(path)
            if entry.as_json() != self.shared.fields:
                raise CheckpointError(f"{path} has changed")
            self._checked_path, self._has_reliable_identity = os.path.abspath(path), entry.has_reliable_identity


class CachedLoads:
    """The loads that the ranks of a rank set keep, which are the same on all of them."""

    def __init__(self) -> None:
        self._loads: dict[Hashable, CachedLoad] = {}  # the least recently used one comes first

    def get(self, key: Hashable) -> CachedLoad | None:
        """Return the load that is kept for *key*, or None."""
        return None if key is None else self._loads.get(key)

    # The methods below are called only after all ranks have agreed.

    def use(self, key: Hashable) -> None:
        """Mark the load for *key* as the most recently used one."""
        self._loads[key] = self._loads.pop(key)

    def drop(self, key: Hashable) -> None:
        """Forget the load for *key*."""
        self._loads.pop(key, None)

    def keep(self, key: Hashable, load: CachedLoad) -> None:
        """Keep *load*; above the limit, drop the least recently used one."""
        self._loads[key] = load
        if len(self._loads) > MAX_FILES:
            del self._loads[next(iter(self._loads))]

    def free(self) -> None:
        """Forget all."""
        self._loads.clear()
