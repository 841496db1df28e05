"""Formats of several files, of which a small one, the index, names the others.

A save writes data files with new names beside the old ones, and then gives a new index the name of the old one: that
is the step at which all changes, as a whole. Only then the old data files go. So whatever process dies at any time,
the old arrays are there or the new ones.
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
    """New data files, and a new index."""

    def __init__(
        self, path: Path, arrays: list[ArrayToSave], node: Node, metadata: dict[str, object], *, mode: str = "w"
    ) -> None:
        super().__init__(path, arrays, node, metadata, mode=mode)
        self.tag = self.aside.name.split(".")[-2]  # in the name of all data files of this save
        self._data: list[Path] = []
        self._last_step = False  # whether the save has come to the step at which all changes

    @property
    @abstractmethod
    def index(self) -> Path:
        """The index; data files are in the same folder."""

    @property
    @abstractmethod
    def data_names(self) -> re.Pattern[str]:
        """The names that data files of this index can have."""

    @abstractmethod
    def named(self) -> set[str]:
        """Return the data files that the index names. ``CheckpointError`` or ``OSError`` if it cannot be read."""

    def has_index(self) -> bool:
        """Return whether there is an index, be it damaged, that may name data files of this save's."""
        return self.index.exists()

    def new_data(self, name: str) -> File:
        """Return a new data file with the permissions of the old index, if there is one: see `new_file`."""
        self._data.append(self.index.parent / name)
        return self.new_file(self._data[-1], self.index)

    def swap(self, text: bytes) -> None:
        """Give a new index the name of the old one."""
        files.sync_folder(self.index.parent)
        for path, file in zip(self._data, self._locked, strict=True):
            if not file.has_a_name():
                raise FileNotFoundError(f"another save has removed {path}, the data of this one")
        self.refuse_another()
        files.put(self._new_index, text, self.index)
        self._last_step = True
        files.replace(self._new_index, self.index)
        self.release()
        with suppress(OSError):  # the next save tries again
            self.remove_leftovers()

    def abandon(self) -> None:
        if self._last_step and not self._not_named(self._data):
            self.release()  # the index has changed
            return
        for path in (self._new_index, *self._data):
            with suppress(OSError):
                files.remove(path)
        with suppress(OSError):
            self.release()

    def remove_leftovers(self) -> None:
        """Remove data files that no process holds and the index does not name, and new indices for these."""
        free = []
        for entry in files.entries(self.index.parent):
            data = entry.with_name(entry.name.removeprefix(f"{self.index.name}."))
            if self.data_names.fullmatch(data.name) and files.is_free(data):
                free.append(entry)
        # The index is read after that: a save lets go of its data when the index names them.
        for path in self._not_named(free):
            files.remove(path)

    @property
    def _new_index(self) -> Path:
        return self.index.with_name(f"{self.index.name}.{self._data[0].name if self._data else self.tag}")

    def _not_named(self, paths: list[Path]) -> list[Path]:
        """Return those of *paths* that the index does not name; none of them, if it cannot be read."""
        if not paths:
            return []
        try:
            named = self.named()
        except (CheckpointError, OSError):
            return [] if self.has_index() else paths
        return [path for path in paths if path.name not in named]
