"""Formats of several files: a small one, the index, names the others.

A save writes data files with new names beside the old ones, and then renames a new index to the old one: in this step
all arrays change at once. Only then the old data files are removed. So if a process dies at any time, either all old
arrays are there or all new ones.
"""

import re
from abc import abstractmethod
from contextlib import suppress
from pathlib import Path

from meshcomm.core.arrays.trees import Node
from meshcomm.errors import CheckpointError
from meshcomm.storage import files
from meshcomm.storage.files import File
from meshcomm.storage.formats.base import ArrayToSave, Writer


class IndexedWriter(Writer):
    """Writes new data files, and a new index."""

    def __init__(
        self, path: Path, arrays: list[ArrayToSave], node: Node, metadata: dict[str, object], *, mode: str = "w"
    ) -> None:
        super().__init__(path, arrays, node, metadata, mode=mode)
        self.tag = self.temporary_path.name.split(".")[-2]  # part of the names of all data files of this save
        self._data_files: list[Path] = []
        self._has_put_index = False  # whether the new index is written, and replaces the old one next

    @property
    @abstractmethod
    def index(self) -> Path:
        """The path of the index; data files are in the same folder."""

    @property
    @abstractmethod
    def data_name_pattern(self) -> re.Pattern[str]:
        """The pattern of the names of data files of this index."""

    @abstractmethod
    def names_in_index(self) -> set[str]:
        """Return the names of the data files in the index. ``CheckpointError`` or ``OSError`` if it cannot be read."""

    def has_index(self) -> bool:
        """Return whether there is an index, also a damaged one, that may name data files."""
        return self.index.exists()

    def new_data(self, name: str) -> File:
        """Return a new data file with the permissions of the old index, if there is one: see `new_file`."""
        self._data_files.append(self.index.parent / name)
        return self.new_file(self._data_files[-1], self.index)

    def swap(self, content: bytes) -> None:
        """Replace the index by a new one with this *content*."""
        files.sync_folder(self.index.parent)
        for path, file in zip(self._data_files, self._locked, strict=True):
            if not file.has_a_name():
                raise FileNotFoundError(f"another save has removed {path}, the data of this one")
        self.refuse_another()
        files.put(self._new_index, content, self.index)
        self._has_put_index = True
        files.replace(self._new_index, self.index)
        self.release()
        with suppress(OSError):  # the next save tries again
            self.remove_leftovers()

    def abandon(self) -> None:
        if self._has_put_index and not self._unnamed_files(self._data_files):
            self.release()  # the index has changed
            return
        for path in (self._new_index, *self._data_files):
            with suppress(OSError):
                files.remove(path)
        with suppress(OSError):
            self.release()

    def remove_leftovers(self) -> None:
        """Remove data files that no process has locked and the index does not name, and new indices of their saves."""
        free_entries = []
        for entry in files.entries(self.index.parent):
            data_file = entry.with_name(entry.name.removeprefix(f"{self.index.name}."))
            if self.data_name_pattern.fullmatch(data_file.name) and files.is_free(data_file):
                free_entries.append(entry)
        # Read the index last: a save that ended meanwhile has unlocked its files, and the index names them now.
        for path in self._unnamed_files(free_entries):
            files.remove(path)

    @property
    def _new_index(self) -> Path:
        return self.index.with_name(f"{self.index.name}.{self._data_files[0].name if self._data_files else self.tag}")

    def _unnamed_files(self, paths: list[Path]) -> list[Path]:
        """Return the *paths* that the index does not name; none of them if it cannot be read."""
        if not paths:
            return []
        try:
            named = self.names_in_index()
        except (CheckpointError, OSError):
            return [] if self.has_index() else paths
        return [path for path in paths if path.name not in named]
