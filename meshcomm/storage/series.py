"""Series: snapshots of tensors in one file, along an axis that grows."""

import operator
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TypeVar, cast

import numpy as np
from numpy.typing import DTypeLike

from meshcomm.blocks.make import make, on_blocks
from meshcomm.blocks.small import agree_on_result, broadcast_from_device
from meshcomm.core._arguments import as_dtype, as_path, as_shape, quote, refuse_masked
from meshcomm.core._types import Array, DType, Shape
from meshcomm.core.arrays.dtensor import DTensor, unwrapped
from meshcomm.core.layouts.layout import Layout
from meshcomm.errors import CheckpointError, DTypeError, LayoutError, ShapeError
from meshcomm.storage.formats.known import contents, writer_for
from meshcomm.storage.load import load
from meshcomm.storage.meshes import check_limits, common_mesh
from meshcomm.storage.options import Chunks, Compression, Dims, SaveOptions
from meshcomm.storage.request import meshes_of
from meshcomm.storage.save import PathLike, TreeSaving, run_save

T = TypeVar("T")


class Series:
    """Snapshots of tensors in one file, along an axis that grows: HDF5, netCDF or zarr. Collective.

    Other programs may read the file meanwhile. A job that is killed loses at most the snapshot that it was writing;
    the next job continues after the last whole snapshot, with any number of ranks.

    Parameters
    ----------
    path: its suffix says the format: ``.h5``, ``.nc`` or ``.zarr``. An existing series is continued; other arrays in
        the file stay
    layouts: a dict of layouts by the names of tensors, in which `Series` returns them; `append` takes any layout
    shape: shape of a snapshot; or a dict of shapes by name
    dtype: dtype of the elements; or a dict of dtypes by name
    axis: the name of the axis that grows
    dims: names of the axes of a snapshot; or a dict of them by name. In netCDF and HDF5 they become dimensions
    chunks: lengths of the chunks of a snapshot; or a dict of them by name
    compression: as for `save`
    metadata: attributes, as for `save`; written with the first snapshot
    max_scratch_bytes: bytes that a rank may use beyond its blocks; by default 32 MiB

    ``ShapeError``, ``DTypeError``, ``CheckpointError`` if the file has other snapshots.

    >>> import tempfile, numpy as np, meshcomm as mc
    >>> path = tempfile.mkdtemp() + "/run.h5"
    >>> def program():
    ...     rows = mc.Layout(["x", mc.UNSHARDED], mc.create_mesh([("x", 2)]))
    ...     with mc.Series(path, {"u": rows}, shape=(4, 3), dtype=float) as series:
    ...         for step in range(3):
    ...             series.append(u=mc.full((4, 3), step, float, rows), time=0.1 * step)
    ...         return len(series), series[-1]["time"], series[1]["u"].local.tolist()
    >>> with mc.simulate(2) as world:
    ...     world.run(program)[0]
    (3, 0.2, [[1.0, 1.0, 1.0], [1.0, 1.0, 1.0]])
    """

    __module__ = "meshcomm"

    def __init__(
        self,
        path: PathLike,
        layouts: Mapping[str, Layout],
        *,
        shape: Shape | Mapping[str, Shape],
        dtype: DTypeLike | Mapping[str, DTypeLike],
        axis: str = "time",
        dims: Dims = None,
        chunks: Chunks = None,
        compression: Compression = None,
        metadata: Mapping[str, object] | None = None,
        max_scratch_bytes: int | None = None,
    ) -> None:
        self._mesh = common_mesh(meshes_of(layouts, None))

        def checked_arguments() -> tuple[Path, dict[str, Shape], dict[str, DType]]:
            check_limits(max_scratch_bytes)
            file_path = as_path(path, "Series(path, layouts)")
            writer = writer_for(file_path)
            if not (writer.adds and writer.has_chunks):
                raise CheckpointError(f"{file_path} cannot grow: a series is an .h5, .nc or .zarr file")
            _check_names(layouts, axis)
            return file_path, *_shapes_and_dtypes(layouts, shape, dtype)

        self.path, self._shapes, self._dtypes = agree_on_result(
            "Series", self._mesh, "the arguments of Series", checked_arguments
        )
        self._layouts, self._axis, self._limit = dict(layouts), axis, max_scratch_bytes
        codecs: Mapping[str, object] | None = _by_name(compression, layouts)
        self._options = SaveOptions(metadata, None, "a", _by_name(dims, layouts), _by_name(chunks, layouts), codecs)
        self._is_open = True
        self._find_snapshots(axis)

    def _find_snapshots(self, axis: str) -> None:
        """Find how many snapshots the file has, and the names of its numbers. Collective over the mesh."""

        def count_and_names() -> tuple[int, list[str] | None]:
            if not self.path.exists():
                return 0, None
            file_contents = contents(self.path)
            arrays = file_contents.arrays
            missing = [name for name in self._layouts if name not in arrays]
            if missing and all(arrays[name].shape[:1] <= (1,) for name in self._layouts if name in arrays):
                return 0, None  # none is there, or a job was killed as it added the first snapshot
            if missing:
                raise CheckpointError(f"{self.path} has no {quote(missing[0])}, but other arrays of this series")
            for name, shape in self._shapes.items():
                if arrays[name].shape[1:] != shape or not arrays[name].shape:
                    raise ShapeError(f"{self.path}: {quote(name)} has {arrays[name].shape}; snapshots are {shape}")
                dim = file_contents.dims.get(name, (axis,))[0]
                if dim != axis:
                    raise CheckpointError(f"{self.path}: the snapshots are along {quote(dim)}, not {quote(axis)}")
                if arrays[name].dtype != self._dtypes[name]:
                    raise DTypeError(f"{self.path}: {quote(name)} is {arrays[name].dtype}, not {self._dtypes[name]}")
            other_names = [
                name
                for name in arrays
                if name not in self._layouts and file_contents.dims.get(name, ())[:1] == (axis,)
            ]
            wide = next((name for name in other_names if len(arrays[name].shape) > 1), None)
            if wide is not None:
                raise CheckpointError(f"{self.path} has {quote(wide)} along {quote(axis)}, too: the series needs it")
            count = min(arrays[name].shape[0] for name in [*self._layouts, *other_names])
            return count, other_names if count else None

        text = f"Series {quote(str(self.path))}: {self._shapes}, {self._dtypes}, {self._axis}"
        count, number_names = broadcast_from_device("Series", self._mesh, text, count_and_names) or (0, None)
        self._snapshot_count: int = count
        self._number_names: tuple[str, ...] | None = None if number_names is None else tuple(number_names)

    def append(self, **values: object) -> None:
        """Write one more snapshot. Collective over the mesh.

        When it returns, the snapshot is on the disk; if it fails, the file is as before.

        Parameters
        ----------
        values: a tensor for each name of the series, in any layout; and numbers that are the same on all ranks, with
            the same names in each snapshot, such as ``time=0.5``

        ``ShapeError`` and ``DTypeError`` for another shape or dtype, ``ValueError`` for a missing or unknown name.

        >>> import tempfile, meshcomm as mc
        >>> layout = mc.Layout(["x"], mc.create_mesh([("x", 1)]))
        >>> with mc.Series(tempfile.mkdtemp() + "/run.nc", {"u": layout}, shape=(3,), dtype=int) as series:
        ...     series.append(u=mc.ones(3, int, layout), time=0.5)
        ...     series[-1]["time"]
        0.5
        """

        def saving() -> TreeSaving:
            self._check_open()
            tensors = {name: self._check_snapshot(name, values) for name in self._layouts}
            scalars = {name: value for name, value in values.items() if name not in self._layouts}
            coordinate = scalars.get(self._axis)
            if type(coordinate) is int:
                scalars[self._axis] = float(coordinate)  # a time may begin with 0, and go on with 0.1
            numbers = {name: _number(name, value)[np.newaxis] for name, value in scalars.items()}
            return self._snapshot_saving({**{name: _as_step(t) for name, t in tensors.items()}, **numbers}, {})

        self._run_save(agree_on_result("append", self._mesh, "the arguments of append", saving))

    def _snapshot_saving(self, steps: Mapping[str, object], fixed: Mapping[str, object]) -> TreeSaving:
        """Return the save of more snapshots: each value of *steps* has them along its first axis.

        A new file also gets the arrays of *fixed*, which have no snapshots.
        """
        self._check_numbers(tuple(name for name in steps if name not in self._layouts))
        options = self._options if self._snapshot_count == 0 else self._options._replace(metadata=None)
        # The coordinate, named as the axis, comes last: in zarr a snapshot is whole when it is there.
        ordered_steps = dict(sorted(steps.items(), key=lambda item: item[0] == self._axis))
        return TreeSaving(self.path, {**fixed, **ordered_steps}, options, dict.fromkeys(steps, self._axis))

    def _run_save(self, saving: TreeSaving) -> None:
        """Do all of a save. Collective over the mesh."""
        run_save("append", saving, self._limit)
        growing_arrays = [array for array in saving.content.arrays if array.grows]
        self._number_names = tuple(array.name for array in growing_arrays if array.name not in self._layouts)
        self._snapshot_count += growing_arrays[0].steps

    def _check_snapshot(self, name: str, values: Mapping[str, object]) -> DTensor:
        if name not in values:
            names = ", ".join(quote(other) for other in values)
            raise ValueError(f"append needs {quote(name)}: the series has {', '.join(self._layouts)}, not {names}")
        tensor = unwrapped(values[name])
        if not isinstance(tensor, DTensor):
            raise TypeError(f"{quote(name)} is a tensor, not {quote(tensor)}")
        if tensor.shape != self._shapes[name]:
            raise ShapeError(f"{quote(name)} has the shape {tensor.shape}; snapshots have {self._shapes[name]}")
        if tensor.dtype != self._dtypes[name]:
            raise DTypeError(f"{quote(name)} is {tensor.dtype}; snapshots are {self._dtypes[name]}")
        return tensor

    def _check_numbers(self, names: tuple[str, ...]) -> None:
        needed = self._number_names
        if needed is not None and set(needed) != set(names):
            missing = [name for name in needed if name not in names]
            problem = (
                f"needs {quote(missing[0])}, too"
                if missing
                else f"has no {quote(set(names).difference(needed).pop())}"
            )
            raise ValueError(f"the series {problem}: each of its snapshots has {', '.join([*self._layouts, *needed])}")

    def _check_open(self) -> None:
        if not self._is_open:
            raise ValueError(f"{self.path} is closed")

    def __len__(self) -> int:
        return self._snapshot_count

    def __getitem__(self, index: int) -> dict[str, object]:
        """Return a snapshot: the tensors in the layouts of the series, and the numbers. Collective over the mesh."""
        self._check_open()
        number = operator.index(index)
        number += self._snapshot_count * (number < 0)
        if not 0 <= number < self._snapshot_count:
            raise IndexError(f"{self.path} has {self._snapshot_count} snapshots, and none with the number {index}")
        names = [*self._layouts, *(self._number_names or ())]
        values = load(
            self.path,
            {**self._layouts, **{name: Layout.replicated(self._mesh, 0) for name in self._number_names or ()}},
            names=names,
            slices=dict.fromkeys(names, number),
            max_scratch_bytes=self._limit,
        )
        return {**values, **{name: on_blocks(np.ndarray.item, values[name]) for name in self._number_names or ()}}

    def close(self) -> None:
        """End the use of the series. Nothing waits to be written.

        >>> import tempfile, meshcomm as mc
        >>> layout = mc.Layout(["x"], mc.create_mesh([("x", 1)]))
        >>> series = mc.Series(tempfile.mkdtemp() + "/run.h5", {"u": layout}, shape=(3,), dtype=int)
        >>> series.append(u=mc.ones(3, int, layout))
        >>> series.close()
        """
        self._is_open = False

    def __enter__(self) -> "Series":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        names = ", ".join([*self._layouts, *(self._number_names or ())])
        return f"Series({str(self.path)!r}; {self._snapshot_count} snapshots of {names})"


class StepSeries(Series):
    """A series to which several snapshots are added at once."""

    def extend(self, steps: Mapping[str, object], fixed: Mapping[str, object]) -> None:
        """Write several snapshots, all or none of them. Collective over the mesh.

        Parameters
        ----------
        steps: tensors, and arrays that are the same on all ranks, by name: the snapshots are along their first axis
        fixed: other arrays, for a new file
        """
        self._run_save(
            agree_on_result(
                "append", self._mesh, "the arguments of append", lambda: self._snapshot_saving(steps, fixed)
            )
        )


def _as_step(tensor: DTensor) -> DTensor:
    """Return a tensor with one more axis before the others, of length 1."""
    layout = Layout([(), *tensor.layout.axes], tensor.mesh)
    return make(on_blocks(lambda block: block[np.newaxis], tensor), layout, (1, *tensor.shape), tensor.dtype)


def _check_names(layouts: Mapping[str, Layout], axis: str) -> None:
    if not isinstance(layouts, Mapping) or not layouts:
        raise TypeError(f"a series has a dict of layouts by the names of its tensors, not {quote(layouts)}")
    for name, layout in layouts.items():
        if not isinstance(name, str) or not isinstance(layout, Layout):
            raise TypeError(f"a series has a dict of layouts by name; it has {quote(layout)} for {quote(name)}")
    if not isinstance(axis, str) or not axis or "/" in axis:
        raise TypeError(f"axis is the name of an axis, not {quote(axis)}")
    if axis in layouts:
        raise ValueError(f"{quote(axis)} is the name of the axis that grows, and cannot be that of a tensor")


def _shapes_and_dtypes(
    layouts: Mapping[str, Layout], shape: Shape | Mapping[str, Shape], dtype: DTypeLike | Mapping[str, DTypeLike]
) -> tuple[dict[str, Shape], dict[str, DType]]:
    """Return the shape and the dtype of each tensor."""
    shapes, dtypes = {}, {}
    for name, layout in layouts.items():
        lengths = shape.get(name) if isinstance(shape, Mapping) else shape
        dtype_like = cast("Mapping[str, DTypeLike]", dtype).get(name) if isinstance(dtype, Mapping) else dtype
        if lengths is None or dtype_like is None:
            raise ValueError(f"{'dtype' if dtype_like is None else 'shape'} has nothing for {quote(name)}")
        shapes[name], dtypes[name] = as_shape(lengths), as_dtype(dtype_like)
        if layout.ndim != len(shapes[name]):
            raise LayoutError(f"snapshots of {quote(name)} have the shape {shapes[name]}, but its layout is {layout}")
        layout.check_fits(shapes[name])
    return shapes, dtypes


def _by_name(option: Mapping[str, T] | T | None, names: Iterable[str]) -> Mapping[str, T] | None:
    """Return an option as a dict by the names of tensors: it does not apply to the numbers."""
    return option if option is None or isinstance(option, Mapping) else dict.fromkeys(names, option)


def _number(name: str, value: object) -> Array:
    refuse_masked(value)
    array = np.asarray(value)
    if array.ndim or array.dtype.kind in "OTV" or isinstance(value, DTensor):
        raise ValueError(
            f"the series has no tensor {quote(name)}; beside its tensors, append takes numbers, not {quote(value)}"
        )
    return array
