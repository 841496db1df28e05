"""Layouts: how the axes of a global array are sharded over a mesh; pure values, without MPI and without data.

For each axis a layout holds the mesh dimensions that shard it. Their sizes multiply to the number of blocks that the
axis is cut into: by the rule of :mod:`meshcomm.core.layouts.partition`, at chosen boundaries, or in cyclic blocks
(:mod:`meshcomm.core.layouts.specs`). The coordinates of a device along these mesh dimensions give the number of the
block that it holds. All code that needs to know where elements are asks the layout.
"""

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, NoReturn, Self, TypeAlias

from meshcomm.core._arguments import as_integer, counted, quote
from meshcomm.core._mistakes import suggestion
from meshcomm.core._types import Indices, Names, ShapeLike
from meshcomm.core.layouts import layout_text
from meshcomm.core.layouts.axes import axis_number, listed, refuse_match
from meshcomm.core.layouts.boxes import Box, box_shape
from meshcomm.core.layouts.cyclic import AnyCut
from meshcomm.core.layouts.descriptor import array_descriptor
from meshcomm.core.layouts.layout_text import MATCH, UNSHARDED, LayoutType, Spec
from meshcomm.core.layouts.mesh import Mesh
from meshcomm.core.layouts.partition import indices_of, intervals_of
from meshcomm.core.layouts.specs import CutSpec, Cyclic, cut_of, specs_of_blocks
from meshcomm.core.layouts.tensorflow_layout import TensorFlowLayout
from meshcomm.errors import LayoutError, MeshError, ShapeError

Axes: TypeAlias = tuple[Names, ...]


class Layout(TensorFlowLayout):
    """How the axes of a global array are sharded over a mesh; a frozen value.

    Each device holds one block of the array (elsewhere: a shard). A mesh dimension shards at most one axis.
    Source: tf.experimental.dtensor.Layout.

    Parameters
    ----------
    sharding_specs: a spec for each axis: the name of the mesh dimension that shards it; ``UNSHARDED``; a tuple of
        names, if the axis is cut over several mesh dimensions, the first name slowest; `Cuts`, for chosen boundaries;
        `Cyclic`, for block-cyclic cuts; or ``MATCH``, in the target of a relayout only
    mesh: the mesh

    >>> mesh = Mesh(["TPU:0", "TPU:1", "TPU:2", "TPU:3", "TPU:4", "TPU:5"], [("x", 3), ("y", 2)])
    >>> layout = Layout(["x", UNSHARDED], mesh)
    >>> layout.shape, layout.block_slices((3, 2), 4)
    ([3, 1], (slice(2, 3, None), slice(0, 2, None)))
    >>> Layout([("x", "y")], mesh).block_slices((7,), 1)
    (slice(2, 3, None),)
    >>> Layout(["x", UNSHARDED], Mesh(range(4), {"x": 4}))
    Layout(['x', UNSHARDED], Mesh(x=4))
    """

    __module__ = "meshcomm"

    __slots__ = ("__weakref__", "_along", "_axes", "_hash", "_match", "_mesh", "_shards", "_text", "_type")

    _mesh: Mesh
    _axes: Axes
    _match: int | None
    _text: str | None
    _type: LayoutType
    _along: tuple[tuple[tuple[int, int], ...], ...]  # per axis and mesh dimension on it: its stride and size
    _shards: tuple[int, ...]  # blocks per axis; -1 for MATCH
    _hash: int | None

    def __new__(cls, sharding_specs: Sequence[str | Sequence[str]], mesh: Mesh) -> Self:
        """Normalise and check the arguments; LayoutError if they make no layout."""
        if not isinstance(mesh, Mesh):
            hint = ": a Layout takes the specs first, then the mesh" if isinstance(sharding_specs, Mesh) else ""
            raise LayoutError(f"mesh is not a valid Mesh object: {quote(mesh)} is a {type(mesh).__name__}{hint}")
        return cls._make(mesh, *_canonical_axes(sharding_specs, mesh), LayoutType.STATIC)

    @classmethod
    def _make(cls, mesh: Mesh, axes: Axes, match: int | None, layout_type: LayoutType) -> Self:
        layout = object.__new__(cls)
        layout._mesh = mesh
        layout._axes = axes
        layout._match = match
        layout._type = layout_type
        layout._along = tuple([tuple([mesh._steps[name] for name in names]) for names in axes])
        shards = [math.prod([size for _, size in dims]) for dims in layout._along]
        if match is not None:
            shards[match] = -1
        layout._shards = tuple(shards)
        layout._hash = None
        layout._text = None
        return layout

    # -- attributes ---------------------------------------------------------------------------------------------------

    # Read by every relayout: attrgetter spares a call of Python.
    mesh: Mesh = property(attrgetter("_mesh"), doc="The mesh.")  # type: ignore[assignment]
    match_axis: int | None = property(  # type: ignore[assignment]
        attrgetter("_match"), doc="The axis whose spec is MATCH, or None."
    )

    @property
    def sharding_specs(self) -> list[Spec]:
        """The spec of each axis, a tuple where several mesh dimensions shard it; a copy.

        >>> Layout([("x", "y"), UNSHARDED], Mesh(range(6), [("x", 3), ("y", 2)])).sharding_specs
        [('x', 'y'), 'unsharded']
        """
        specs: list[Spec] = [
            names if isinstance(names, CutSpec) else names[0] if len(names) == 1 else names or UNSHARDED
            for names in self._axes
        ]
        if self._match is not None:
            specs[self._match] = MATCH
        return specs

    @property
    def specs_text(self) -> str:
        """The specs as one text, as in messages.

        >>> Layout([("x", "y"), UNSHARDED], Mesh(range(6), [("x", 3), ("y", 2)])).specs_text
        '[x+y, unsharded]'
        """
        if self._text is None:
            self._text = layout_text.specs_text(self.sharding_specs)
        return self._text

    @property
    def axes(self) -> Axes:
        """The names of the mesh dimensions on each axis, ``()`` for UNSHARDED and for MATCH.

        >>> Layout(["x", UNSHARDED], Mesh(range(2), {"x": 2})).axes
        (('x',), ())
        """
        return self._axes

    @property
    def type(self) -> LayoutType:
        """Whether the layout is static, of a single device, or parted.

        >>> Layout(["x"], Mesh(range(2), {"x": 2})).type, Layout.from_device("CPU:0").type
        (<LayoutType.STATIC: 1>, <LayoutType.SINGLE_DEVICE: 2>)
        """
        return self._type

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self._axes)

    @property
    def rank(self) -> int:
        """The number of axes, by TensorFlow's name for it: see `ndim`."""
        return len(self._axes)

    @property
    def shape(self) -> list[int]:
        """The number of shards of each axis, -1 for MATCH; the mesh's shape is ``mesh.shape()``.

        >>> Layout(["x", UNSHARDED], Mesh(range(2), {"x": 2})).shape
        [2, 1]
        """
        return list(self._shards)

    def num_shards(self, idx: int) -> int:
        """Return the number of shards of axis *idx*, which may count from the end; -1 for MATCH.

        >>> Layout(["x", UNSHARDED], Mesh(range(2), {"x": 2})).num_shards(0)
        2
        """
        return self._shards[axis_number(idx, self.ndim)]

    def is_fully_replicated(self) -> bool:
        """Return whether every device holds all elements; an axis sharded over one device counts as unsharded.

        >>> mesh = Mesh(range(2), {"x": 2})
        >>> Layout([UNSHARDED], mesh).is_fully_replicated(), Layout(["x"], mesh).is_fully_replicated()
        (True, False)
        """
        return all(shards == 1 for shards in self._shards)

    def is_batch_parallel(self) -> bool:
        """Return whether the first axis is sharded and no other one is.

        >>> mesh = Mesh(range(2), {"x": 2})
        >>> Layout(["x", UNSHARDED], mesh).is_batch_parallel(), Layout([UNSHARDED, "x"], mesh).is_batch_parallel()
        (True, False)
        """
        return self._match is None and [bool(names) for names in self._axes] == [True] + [False] * (self.ndim - 1)

    def is_single_device(self) -> bool:
        """Return whether this is the layout of a single device, as made by ``from_device``.

        >>> Layout.from_device("CPU:0").is_single_device(), Layout(["x"], Mesh(range(2), {"x": 2})).is_single_device()
        (True, False)
        """
        return self._type is LayoutType.SINGLE_DEVICE

    # -- other layouts ------------------------------------------------------------------------------------------------

    @classmethod
    def batch_sharded(cls, mesh: Mesh, batch_dim: str | Sequence[str], rank: int, axis: int = 0) -> "Layout":
        """Return a layout of *rank* axes that shards *axis* only, over the mesh dimension *batch_dim*.

        Parameters
        ----------
        mesh: the mesh
        batch_dim: a mesh dimension, or several
        rank: the number of axes
        axis: number of the sharded axis

        >>> Layout.batch_sharded(Mesh.from_string("|x=2|*CPU"), "x", rank=3, axis=-1).sharding_specs
        ['unsharded', 'unsharded', 'x']
        """
        specs: list[str | Sequence[str]] = [UNSHARDED] * _checked_rank(rank, minimum=1)
        specs[axis_number(axis, len(specs))] = batch_dim
        return cls(specs, mesh)

    @classmethod
    def inner_sharded(cls, mesh: Mesh, inner_dim: str | Sequence[str], rank: int) -> "Layout":
        """Return a layout of *rank* axes that shards the last axis only, over the mesh dimension *inner_dim*.

        >>> Layout.inner_sharded(Mesh(range(2), {"x": 2}), "x", rank=3).sharding_specs
        ['unsharded', 'unsharded', 'x']
        """
        return cls.batch_sharded(mesh, inner_dim, rank, axis=-1)

    @classmethod
    def from_blocks(
        cls, shapes: Sequence[Sequence[int]], sharding_specs: Sequence[str | Sequence[str]], mesh: Mesh
    ) -> "Layout":
        """Return the layout in which device d holds a block of shape ``shapes[d]``, with axes cut at `Cuts`.

        ``LayoutError`` if devices with the same coordinates along an axis have other lengths there.

        Parameters
        ----------
        shapes: the shape of the block of each device
        sharding_specs: the mesh dimensions that shard each axis, or ``UNSHARDED``
        mesh: the mesh

        >>> mesh = Mesh(range(2), {"x": 2})
        >>> Layout.from_blocks([(3, 5), (1, 5)], ["x", UNSHARDED], mesh).sharding_specs
        [Cuts('x', (0, 3, 4)), 'unsharded']
        """
        default_layout = cls(sharding_specs, mesh)
        refuse_match(default_layout)
        return cls(specs_of_blocks(default_layout.axes, default_layout.offset_to_shard(), shapes), mesh)

    @classmethod
    def replicated(cls, mesh: Mesh, rank: int) -> "Layout":
        """Return a layout of *rank* axes that shards none of them.

        >>> Layout.replicated(Mesh(range(2), {"x": 2}), rank=3).sharding_specs
        ['unsharded', 'unsharded', 'unsharded']
        """
        return cls([UNSHARDED] * _checked_rank(rank), mesh)

    def matched(self, source: "Layout") -> "Layout":
        """Return this layout with MATCH replaced by the spec of *source* on that axis.

        The axis becomes UNSHARDED if the source's mesh dimension there shards another axis of this layout. LayoutError
        if the numbers of axes or the meshes differ, or if the source has MATCH itself. Source: relayout of
        TensorFlow's DTensor.

        >>> mesh = Mesh.from_string("|x=2,y=2|*CPU")
        >>> Layout([MATCH, "y"], mesh).matched(Layout(["x", UNSHARDED], mesh)).sharding_specs
        ['x', 'y']
        >>> Layout([MATCH, "x"], mesh).matched(Layout(["x", UNSHARDED], mesh)).sharding_specs
        ['unsharded', 'x']
        """
        if self._match is None:
            return self
        if not isinstance(source, Layout):
            raise LayoutError(f"{quote(source)} is a {type(source).__name__}; {MATCH!r} takes its spec from a Layout")
        refuse_match(source)
        if source.ndim != self.ndim:
            raise LayoutError(
                f"a layout for {counted(self.ndim, 'axis')} cannot match one for {source.ndim}; they must agree"
            )
        if source.mesh != self._mesh:
            raise LayoutError(f"a layout on {quote(self._mesh)} cannot match one on {quote(source.mesh)}")
        names = source.axes[self._match]
        used_names = {name for axis in self._axes for name in axis}
        axes = list(self._axes)
        axes[self._match] = () if used_names.intersection(names) else names
        return self._make(self._mesh, tuple(axes), None, self._type)

    # -- blocks -------------------------------------------------------------------------------------------------------

    def block_numbers(self, device: int) -> tuple[int, ...]:
        """Return the number of the block that *device* holds along each axis.

        >>> Layout([("y", "x")], Mesh(range(6), [("x", 3), ("y", 2)])).block_numbers(5)
        (5,)
        """
        if self._match is not None:
            refuse_match(self)
        if type(device) is not int:
            device = as_integer(device, "device", LayoutError)
        if not 0 <= device < self._mesh.size:
            raise LayoutError(
                f"device {quote(device)} of a mesh of {counted(self._mesh.size, 'device')}; 0 <= device < size"
            )
        numbers = []
        for dims in self._along:
            number = 0
            for stride, size in dims:
                number = number * size + device // stride % size
            numbers.append(number)
        return tuple(numbers)

    def block_box(self, global_shape: Iterable[int], device: int | None = None) -> Box:
        """Return the elements on *device* along each axis of an array of *global_shape*: ``(start, stop)``, or `Runs`.

        By default it is the device of this rank.

        >>> Layout(["x", UNSHARDED], Mesh(range(2), {"x": 2})).block_box((5, 3), 1)
        ((3, 5), (0, 3))
        """
        shape = self._checked_shape(global_shape)
        numbers = self.block_numbers(self._checked_device(device))
        if self.is_single_device():
            return tuple((0, length) for length in shape)
        axes = zip(self._axes, shape, self._shards, numbers, strict=True)
        return tuple([(0, n) if blocks == 1 else cut_of(names, n, blocks).span(i) for names, n, blocks, i in axes])

    def cut(self, axis: int, length: int) -> AnyCut:
        """Return the cut of *axis* of an array with *length* elements along it. *axis* counts from 0.

        >>> Layout(["x"], Mesh(range(3), {"x": 3})).cut(0, 4).longest
        2
        """
        return cut_of(self._axes[axis], length, self._shards[axis])

    def cyclic(self, axis: int) -> Cyclic | None:
        """Return the spec of *axis* if it is block-cyclic, else None. *axis* counts from 0.

        >>> layout = Layout([Cyclic("x", 2), "y"], Mesh(range(4), [("x", 2), ("y", 2)]))
        >>> layout.cyclic(0), layout.cyclic(1)
        (Cyclic('x', 2), None)
        """
        names = self._axes[axis]
        return names if isinstance(names, Cyclic) else None

    def for_shape(self, shape: Sequence[int]) -> "Layout":
        """Return this layout for arrays of *shape*: an axis with `Cuts` for another length is cut as by default.

        >>> from meshcomm import Cuts
        >>> layout = Layout([Cuts("x", (0, 3, 4))], Mesh(range(2), {"x": 2}))
        >>> layout.for_shape((4,)).sharding_specs, layout.for_shape((5,)).sharding_specs
        ([Cuts('x', (0, 3, 4))], ['x'])
        """
        axes = list(self._axes)
        for axis, names in enumerate(axes):
            try:
                self.cut(axis, shape[axis])
            except ShapeError:
                axes[axis] = tuple(names)
        return self._recut(tuple(axes))

    def check_fits(self, shape: Sequence[int]) -> None:
        """Raise ``ShapeError`` if an axis has `Cuts` for another length than an array of *shape* has.

        >>> from meshcomm import Cuts
        >>> layout = Layout([Cuts("x", (0, 3, 4))], Mesh(range(2), {"x": 2}))
        >>> layout.check_fits((4,))
        >>> layout.check_fits((5,))  # doctest: +ELLIPSIS
        Traceback (most recent call last):
            ...
        meshcomm.ShapeError: Cuts('x', (0, 3, 4)) cuts an axis of 4 elements, but this axis has 5; ...
        """
        for axis, names in enumerate(self._axes):
            if isinstance(names, CutSpec):
                self.cut(axis, shape[axis])

    def largest_block(self, shape: Sequence[int]) -> int:
        """Return how many elements the largest block of an array of *shape* has.

        >>> Layout(["x", UNSHARDED], Mesh(range(3), {"x": 3})).largest_block((4, 5))
        10
        """
        return math.prod(cut.longest for cut in map(cut_of, self._axes, shape, self._shards))

    def block_slices(self, global_shape: Iterable[int], device: int | None = None) -> tuple[slice, ...]:
        """Return the slices that cut the block on *device*, by default that of this rank, from an array.

        By default an axis of any length is cut as numpy.array_split cuts; blocks may be empty. ``LayoutError`` for a
        layout with a `Cyclic` axis: use `blocks` or `global_indices` there.

        >>> layout = Layout(["x"], Mesh(range(3), {"x": 3}))
        >>> [layout.block_slices((4,), device)[0] for device in range(3)]
        [slice(0, 2, None), slice(2, 3, None), slice(3, 4, None)]
        """
        self._refuse_cyclic()
        return tuple(slice(start, stop) for start, stop, *_ in self.block_box(global_shape, device))

    def blocks(self, global_shape: Iterable[int], device: int | None = None) -> Iterator[tuple[slice, ...]]:
        """Yield the boxes of an array that *device*, by default this rank, holds, in the order of its memory.

        There is one box, unless an axis is `Cyclic`; none, if the block is empty.

        >>> from meshcomm import Cyclic
        >>> layout = Layout([Cyclic("x", 2), UNSHARDED], Mesh(range(2), {"x": 2}))
        >>> [box[0] for box in layout.blocks((7, 5), 1)]
        [slice(2, 4, None), slice(6, 7, None)]
        """
        runs = [[slice(*run) for run in intervals_of(span)] for span in self.block_box(global_shape, device)]
        return itertools.product(*runs)

    def global_indices(self, global_shape: Iterable[int], device: int | None, axis: int) -> Indices:
        """Return the indices along *axis* of an array of *global_shape* that *device* holds, in its block's order.

        None is the device of this rank.

        >>> from meshcomm import Cyclic
        >>> Layout([Cyclic("x", 2)], Mesh(range(2), {"x": 2})).global_indices((7,), 1, 0).tolist()
        [2, 3, 6]
        """
        box = self.block_box(global_shape, device)
        return indices_of(box[axis_number(axis, len(box))])

    def descriptor(self, global_shape: Iterable[int], context: int, device: int | None = None) -> tuple[int, ...]:
        """Return ScaLAPACK's array descriptor of a block: nine numbers.

        ScaLAPACK stores columns one after the other, and a block here has its rows one after the other. So the block
        of an m x n array is, to ScaLAPACK, the block of its n x m transpose, and the descriptor is that of the
        transpose: DTYPE 1, the context, N, M, the block size of axis 1 and of axis 0, the process row of the first
        block (the offset of axis 1), its process column (the offset of axis 0), and the leading dimension. The grid of
        the *context* has the devices along axis 1 as its rows, and those along axis 0 as its columns.

        ``LayoutError`` if an axis is cut in a way that ScaLAPACK does not know, or if a number does not fit into 32
        bits, ``ShapeError`` unless there are two axes.

        Parameters
        ----------
        global_shape: shape of the array
        context: handle of the grid, from BLACS
        device: number of the device, by default that of this rank; for a rank outside the mesh the context is -1

        >>> from meshcomm import Cyclic
        >>> mesh = Mesh(range(4), [("x", 2), ("y", 2)])
        >>> Layout([Cyclic("x", 3), Cyclic("y", 2)], mesh).descriptor((10, 7), 0, device=0)
        (1, 0, 7, 10, 2, 3, 0, 0, 4)
        """
        refuse_match(self)
        if self.is_single_device():
            raise LayoutError(f"{quote(self)} is the layout of a single device; a descriptor is for a grid")
        shape = self._checked_shape(global_shape)
        device = self._mesh.rank if device is None else device
        lengths = None if device is None else self.block_shape(shape, device)
        return array_descriptor(list(map(cut_of, self._axes, shape, self._shards)), lengths, context)

    def block_shape(self, global_shape: Iterable[int], device: int | None = None) -> tuple[int, ...]:
        """Return the shape of the block of an array of *global_shape* on *device*, by default that of this rank.

        >>> Layout(["x"], Mesh(range(3), {"x": 3})).block_shape((4,), 0)
        (2,)
        """
        return box_shape(self.block_box(global_shape, device))

    def _checked_device(self, device: int | None) -> int:
        """Return *device*, or that of this rank; ``MeshError`` if the rank is outside of the mesh."""
        if device is None and (device := self._mesh.rank) is None:
            raise MeshError(f"this rank is outside of the {self._mesh} and holds no block: say which device you mean")
        return device

    def _refuse_cyclic(self) -> None:
        for axis, names in enumerate(self._axes):
            if isinstance(names, Cyclic):
                raise LayoutError(
                    f"a layout with axis {axis} {quote(names)} has no one slice for its block: layout.blocks("
                    "shape, device) gives its boxes, and layout.global_indices(shape, device, axis) its indices"
                )

    def _checked_shape(self, shape: Iterable[int]) -> tuple[int, ...]:
        if type(shape) is tuple and len(shape) == len(self._axes) and all(type(n) is int and n >= 0 for n in shape):
            return shape
        if len(getattr(shape, "shape", (0,))) != 1:  # an array may list the lengths
            raise ShapeError(f"this is {quote(shape)}, and not its shape: pass .shape")
        lengths = tuple(as_integer(length, "length", ShapeError) for length in listed("shape", shape))
        if len(lengths) != len(self._axes) and not self.is_single_device():
            raise LayoutError(
                f"shape {quote(lengths)} has {counted(len(lengths), 'axis')}, but the layout is for "
                f"{self.ndim}; they must agree"
            )
        if any(length < 0 for length in lengths):
            raise ShapeError(f"shape {quote(lengths)} has a negative length; lengths are zero or more")
        return lengths

    # -- protocols of values ------------------------------------------------------------------------------------------

    @classmethod
    def _parsed(cls, layout_type: LayoutType, texts: list[str], mesh: Mesh) -> "Layout":
        """Return the layout of *layout_type* with the specs in *texts*."""
        if layout_type is LayoutType.SINGLE_DEVICE:
            if texts:
                raise LayoutError(f"specs {quote(texts)} in the layout of a single device, which has none")
            return cls.from_single_device_mesh(mesh)
        return cls._make(mesh, *_canonical_axes(layout_text.parsed_specs(texts), mesh), layout_type)

    def _value(self) -> tuple[object, ...]:
        return self._axes, self._match, self._type, self._mesh

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Layout):
            return NotImplemented
        return self is other or (hash(self) == hash(other) and self._value() == other._value())

    def __hash__(self) -> int:
        if self._hash is None:
            self._hash = hash(self._value())
        return self._hash

    def __repr__(self) -> str:
        if self.is_single_device():
            return f"Layout.from_device({self._mesh.single_device!r})"
        suffix = ".to_parted()" if self._type is LayoutType.PARTED else ""
        return f"Layout({layout_text.specs_repr(self.sharding_specs)}, {self._mesh!r}){suffix}"

    if TYPE_CHECKING:  # meshcomm.tools.pictures.of_layouts gives layouts this method

        def html(self, shape: ShapeLike | None = None, title: str = "") -> str:
            """Return the picture of the layout for notebooks, of an array of *shape* if that is given."""

    def _repr_html_(self) -> str:
        return self.html()

    def __reduce__(self) -> tuple[object, ...]:
        return _unpickled, (self._type.name, self.sharding_specs, self._mesh)

    def __copy__(self) -> "Layout":
        return self

    def __deepcopy__(self, memo: object) -> "Layout":
        return self


def _unpickled(type_name: str, sharding_specs: list[Spec], mesh: Mesh) -> Layout:
    if type_name == LayoutType.SINGLE_DEVICE.name:
        return Layout.from_single_device_mesh(mesh)
    layout = Layout(sharding_specs, mesh)
    return layout.to_parted() if type_name == LayoutType.PARTED.name else layout


def _canonical_axes(specs: Sequence[str | Sequence[str]], mesh: Mesh) -> tuple[Axes, int | None]:
    """Return the names on each axis, and the axis of MATCH. It checks axis by axis, repetition before membership."""
    if not isinstance(specs, list | tuple) or isinstance(specs, CutSpec):
        raise LayoutError(
            f"sharding specs are {quote(specs)}, a {type(specs).__name__}; they must be a list, one spec per axis"
            + (f": [{specs!r}] for an array of one axis" if isinstance(specs, str) else "")
        )
    axes: list[tuple[str, ...]] = []
    match = None
    seen_names: set[str] = set()
    for axis, spec in enumerate(specs):
        if isinstance(spec, str) and spec == MATCH:
            if match is not None:
                raise LayoutError(
                    f"Attempted to shard two or more tensor dimensions over mesh dimension match: "
                    f"axes {match} and {axis}"
                )
            match = axis
        names = _spec_names(axis, spec)
        for name in names:
            if name in seen_names:
                raise LayoutError(
                    f"Mesh dimension {name} was repeated in sharding specification {quote(specs)}. "
                    "Mesh dimensions must be unique in a layout."
                )
            if name not in mesh:
                _refuse_name(axis, name, mesh)
            seen_names.add(name)
        if isinstance(spec, CutSpec):
            names = spec.over(names).canonical(math.prod(mesh.dim_size(name) for name in names))
        axes.append(names)
    return tuple(axes), match


def _spec_names(axis: int, spec: object) -> tuple[str, ...]:
    """Return the mesh dimensions that *spec* names; their existence is not checked."""
    if isinstance(spec, str):
        return () if spec in (UNSHARDED, MATCH) else (str.__str__(spec),)
    if not isinstance(spec, list | tuple) or not all(isinstance(name, str) for name in spec):
        raise LayoutError(
            f"axis {axis} has the sharding spec {quote(spec)}; a spec is a mesh dimension, UNSHARDED, MATCH, "
            "a tuple of mesh dimensions, Cuts or Cyclic"
        )
    for name in (UNSHARDED, MATCH):
        if name in spec:
            raise LayoutError(f"axis {axis}: {name!r} in {quote(spec)}; a tuple holds names of mesh dimensions only")
    return tuple(map(str.__str__, spec))


def _refuse_name(axis: int, name: str, mesh: Mesh) -> NoReturn:
    raise LayoutError(
        f"{quote(name)[1:-1]}: A dimension sharding must either be a valid mesh dimension or UNSHARDED. Axis {axis}; "
        f"the mesh has the dimensions {quote(mesh.dim_names)}{suggestion(name, [*mesh.dim_names, UNSHARDED]) or '.'}"
    )


_MAX_AXES = 1024  # far more than an array of NumPy can have: a number like 10**9 is a mistake, or an attack


def _checked_rank(rank: object, minimum: int = 0) -> int:
    number = as_integer(rank, "rank", LayoutError)
    if not minimum <= number <= _MAX_AXES:
        raise LayoutError(f"rank {quote(number)}; here it is {minimum} .. {_MAX_AXES}")
    return number
