"""open: a file of arrays, looked at without loading it."""

from collections.abc import Iterator
from math import prod

import numpy as np
from numpy.typing import DTypeLike

from meshcomm.core._arguments import as_path, counted, quote
from meshcomm.core._types import Array, DType, Shape
from meshcomm.core._units import bytes_text, outline
from meshcomm.core.arrays.dtensor import DTensor
from meshcomm.core.layouts.layout import Layout
from meshcomm.core.memory.blocks import as_bytes
from meshcomm.storage.by_library import read_box
from meshcomm.storage.formats.base import FileContents
from meshcomm.storage.kept import cached_contents, check_unchanged
from meshcomm.storage.load import run_load
from meshcomm.storage.request import SHOWN, LoadRequest, PathLike, load_request, meshes_of
from meshcomm.storage.routes import runs
from meshcomm.storage.selection import Selection, selected
from meshcomm.storage.stored import Stored
from meshcomm.storage.transfer import OpenFiles
from meshcomm.storage.values import with_numbers

_MAX_SHOWN = 20  # arrays in a repr


def open(path: PathLike) -> "Store":
    """Return a file or a checkpoint, of which nothing but the header is read: its arrays by name, and its metadata.

    It is not collective: each process that calls it opens the file for itself. Only `StoredArray.load` is.

    Parameters
    ----------
    path: a file or folder that `save` or another program has made

    ``FileNotFoundError`` if it is not there, ``CheckpointError`` if it is damaged or holds something else.

    >>> import tempfile, numpy as np, meshcomm as mc
    >>> path = tempfile.mkdtemp() + "/a.npy"
    >>> np.save(path, np.arange(12).reshape(6, 2))
    >>> with mc.open(path) as file:
    ...     print(file.names, file["array"].shape, file["array"][3:5].tolist())
    ['array'] (6, 2) [[6, 7], [8, 9]]
    """
    return Store(path)


class Store:
    """Arrays in a file, by name, as `open` returns them. Close it, or use it in a ``with`` statement."""

    __module__ = "meshcomm"

    def __init__(self, path: PathLike) -> None:
        self.path = as_path(path, "open(path)")
        self._base, self._contents, _ = cached_contents(self.path)
        self._open_files: OpenFiles | None = OpenFiles(self._base, False)

    @property
    def names(self) -> list[str]:
        """The names of the arrays, in the order of the file."""
        return list(self._contents.arrays)

    @property
    def metadata(self) -> dict[str, object]:
        """What was saved beside the arrays.

        >>> import tempfile, meshcomm as mc
        >>> path, layout = tempfile.mkdtemp() + "/run", mc.Layout(["x"], mc.create_mesh([("x", 1)]))
        >>> mc.save(path, {"w": mc.ones(3, int, layout)}, metadata={"epoch": 4})
        >>> with mc.open(path) as file:
        ...     print(file.metadata)
        {'epoch': 4}
        """
        return with_numbers(self._contents.metadata)

    @property
    def left_out(self) -> dict[str, str]:
        """The reason for each array in the file that cannot be loaded, by name."""
        return dict(self._contents.left_out)

    def __len__(self) -> int:
        return len(self._contents.arrays)

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __contains__(self, name: object) -> bool:
        return name in self._contents.arrays

    def __getitem__(self, name: str) -> "StoredArray":
        stored = self._contents.arrays.get(name)
        if stored is None:
            reason, shown = self._contents.why_not(name), ", ".join(self.names[:SHOWN])
            problem = f"no array {quote(name)}; it has {shown}" if reason is None else f"{quote(name)}, but {reason}"
            raise KeyError(f"{self.path} has {problem}")
        return StoredArray(self, stored, self._contents)

    def close(self) -> None:
        """Close the files. Another call does nothing.

        >>> import tempfile, numpy as np, meshcomm as mc
        >>> path = tempfile.mkdtemp() + "/a.npy"
        >>> np.save(path, np.arange(3))
        >>> file = mc.open(path)
        >>> file["array"][:].tolist()
        [0, 1, 2]
        >>> file.close()
        """
        open_files, self._open_files = self._open_files, None
        if open_files is not None:
            open_files.close()

    def __enter__(self) -> "Store":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        arrays = [self[name] for name in self.names[:_MAX_SHOWN]]
        rows = [f"{array.name}  {array.shape} {array.dtype}, {bytes_text(array.nbytes)}" for array in arrays]
        if len(self) > _MAX_SHOWN:
            rows.append(f"... and {len(self) - _MAX_SHOWN} more")
        return outline(f"Store({str(self.path)!r}) with {counted(len(self), 'array')}", rows=rows)

    def _box(self, stored: Stored, selection: Selection) -> Array:
        """Return the box of *selection*, with the axes that are dropped."""
        if self._open_files is None:
            raise ValueError(f"{self.path} is closed")
        self._check(stored)
        if stored.chunks is not None:
            block = read_box(self._base, stored, selection)
        else:
            itemsize, intervals = stored.dtype.itemsize, [[(0, n)] for n in selection.box]
            file_intervals = selection.in_file(intervals, itemsize)
            block = np.empty(
                tuple(sum(stop - start for start, stop in axis_intervals) for axis_intervals in file_intervals),
                stored.dtype,
            )
            starts, lengths = runs(file_intervals, selection.shape)
            self._open_files.fill(stored, (starts * itemsize, lengths * itemsize), as_bytes(block))
            block = selection.taken(block, intervals)
        self._check(stored)
        return block

    def _check(self, stored: Stored) -> None:
        """Raise ``CheckpointError`` if the file has changed since it was opened."""
        check_unchanged(self._base, self._contents, [stored.name])


class StoredArray:
    """One array of a `Store`. Indexing reads the bytes that it needs, and returns a NumPy array.

    *layout* is a text for people, the layout in which it was saved; *dims* are the names of its axes, if the file has
    some, and "" for an axis without one.
    """

    def __init__(self, store: Store, stored: Stored, contents: FileContents) -> None:
        self._store, self._stored = store, stored
        self.layout = contents.hints.get(stored.name) or None
        self.dims = contents.dims.get(stored.name)
        self._attributes = contents.attributes.get(stored.name, {})

    @property
    def name(self) -> str:
        """Its name in the file."""
        return self._stored.name

    @property
    def metadata(self) -> dict[str, object]:
        """Its attributes in HDF5, netCDF and zarr: texts, numbers, and arrays of NumPy.

        Those that libraries keep for themselves are left out.
        """
        return with_numbers(self._attributes)

    @property
    def shape(self) -> Shape:
        """Its shape."""
        return self._stored.array_shape

    @property
    def ndim(self) -> int:
        """The number of its axes."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """The number of its elements."""
        return prod(self.shape)

    @property
    def dtype(self) -> DType:
        """The dtype of its elements in the file."""
        return self._stored.dtype

    @property
    def nbytes(self) -> int:
        """The bytes of its elements."""
        return self._stored.nbytes

    def load(
        self,
        layout: Layout | None = None,
        *,
        slices: object = None,
        out: DTensor | None = None,
        dtype: DTypeLike | None = None,
        decode: bool = False,
        check: bool | None = None,
        max_scratch_bytes: int | None = None,
    ) -> DTensor:
        """Return the array in any layout. Collective over the mesh of the layout.

        Parameters
        ----------
        layout: layout of the result; by default replicated on the mesh of `default_mesh`, or on all ranks
        slices, dtype, decode, check, max_scratch_bytes: as for `load`
        out: tensor to overwrite and return
        """
        outs = None if out is None else {self.name: out}

        def make_request() -> LoadRequest:
            self._store._check(self._stored)
            options = slices, outs, dtype, None, decode, check, max_scratch_bytes
            return load_request(self._store.path, layout, [self.name], *options)

        return run_load(make_request, meshes_of(layout, out))[self.name]

    def __getitem__(self, index: object) -> Array:
        selection = selected(self.shape, index)
        is_transposed = self._stored.fortran
        elements = self._store._box(self._stored, selection.turned() if is_transposed else selection)
        elements = (elements.T if is_transposed else elements).squeeze(selection.dropped)
        stays_array = any(item is ... for item in index) if isinstance(index, tuple) else index is ...
        return elements if stays_array else elements[()]  # as in NumPy: without ... an element is a scalar

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> Array:
        if copy is False:
            raise ValueError("an array in a file is copied when it becomes an array of NumPy")
        elements = self[...]
        return elements if dtype is None else elements.astype(dtype, copy=False)

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("an array without axes has no length")
        return self.shape[0]

    def __repr__(self) -> str:
        layout = "" if self.layout is None else f", saved as {self.layout}"
        return f"StoredArray({self.name!r}, {self.shape}, {self.dtype}, {bytes_text(self.nbytes)}{layout})"
