"""What a call of `load` asks for: checked arguments, and one request for each array of a file."""

import os
import re
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from math import prod
from pathlib import Path
from types import EllipsisType
from typing import Any, NamedTuple, NoReturn, TypeAlias

import numpy as np
from numpy.typing import DTypeLike

from meshcomm.blocks.align import replicated
from meshcomm.blocks.make import on_blocks
from meshcomm.blocks.views import check_writable
from meshcomm.core._arguments import as_dtype, as_path, counted, quote
from meshcomm.core._callers import warn
from meshcomm.core._foreign import values_of
from meshcomm.core._types import DType, Shape
from meshcomm.core._units import some_of
from meshcomm.core.arrays.create import empty
from meshcomm.core.arrays.dtensor import DTensor
from meshcomm.core.arrays.many import FindsLayouts, say_unused
from meshcomm.core.arrays.trees import rebuild, tensors_in
from meshcomm.core.layouts.boxes import Box
from meshcomm.core.layouts.layout import Layout
from meshcomm.core.layouts.mesh import Mesh
from meshcomm.core.ranks.meshes import get_default_mesh
from meshcomm.errors import CheckpointError, DTypeError, LayoutError, ShapeError
from meshcomm.storage.decoding import Coding, coding_of
from meshcomm.storage.formats.base import FileContents
from meshcomm.storage.meshes import check_limits
from meshcomm.storage.selection import Selection, all_of, selected
from meshcomm.storage.small import is_small
from meshcomm.storage.stored import Stored
from meshcomm.storage.trees import flattened
from meshcomm.storage.values import all_values, value_of_node

PathLike = str | os.PathLike[str]
Layouts = Layout | Mapping[str, Layout] | FindsLayouts | None
Names = Iterable[str] | re.Pattern[str] | None
Loaded: TypeAlias = Any  # a tensor, a dict of tensors, or the saved tree: callers know the contents of their file
SHOWN = 10  # names of arrays in a text


@dataclass(frozen=True, eq=False)
class ArrayRequest:
    """One array to load: all of it or a box, in *layout*, as *dtype*, decoded by *coding* if there is one.

    It goes to the tensor *out*, if there is one; *out_is_contiguous* says whether its blocks are C-contiguous.
    """

    stored: Stored
    chosen: Selection
    layout: Layout
    dtype: DType
    coding: Coding | None = None
    out: DTensor | None = None
    out_is_contiguous: bool = True

    @cached_property
    def name(self) -> str:
        """The name of the array in the file."""
        return self.stored.name

    @cached_property
    def shape(self) -> Shape:
        """The shape of the tensor."""
        return self.chosen.result

    @property
    def chunks(self) -> Shape | None:
        """The shape of its chunks in the file, if only a library can read it."""
        return self.stored.chunks and self.stored.chunks.shape

    @property
    def nbytes(self) -> int:
        """The bytes that are read."""
        return prod(self.chosen.box) * self.stored.dtype.itemsize

    @cached_property
    def read_by_one(self) -> bool:
        """Whether one rank reads the array, and sends it to the others."""
        return is_small(self.stored) and self.chunks is None

    @cached_property
    def file_layout(self) -> Layout:
        """The layout of the box, with the axes that are dropped from it, in the order of the file."""
        axes = list(self.layout.axes)
        for axis in self.chosen.dropped:
            axes.insert(axis, ())
        return Layout(axes[::-1] if self.stored.fortran else axes, self.layout.mesh)

    @cached_property
    def file_chosen(self) -> Selection:
        """The box, with axes in the order of the file."""
        return self.chosen.turned() if self.stored.fortran else self.chosen

    @cached_property
    def staged(self) -> bool:
        """Whether elements are converted or transposed in each round, or go to a slice. Decoding comes later."""
        is_converted = self.coding is None and (self.dtype != self.stored.dtype or not self.out_is_contiguous)
        return self.stored.fortran or is_converted

    @cached_property
    def block_shape(self) -> Shape | None:
        """The shape of the block of this rank; None outside of the mesh."""
        return None if self.layout.mesh.rank is None else self.layout.block_shape(self.shape)

    @cached_property
    def block_box(self) -> Box | None:
        """The box of this rank in the tensor; None outside of the mesh."""
        return None if self.layout.mesh.rank is None else self.layout.block_box(self.shape)

    @cached_property
    def numpy_index(self) -> tuple[EllipsisType | slice | int | None, ...]:
        """The index of the box in the whole array; with NumPy it gives a view."""
        return (..., *self.chosen.numpy_index())

    def target(self) -> DTensor:
        """Return the tensor to load to, which is new without *out*."""
        return empty(self.shape, self.dtype, self.layout) if self.out is None else self.out


class LoadRequest(NamedTuple):
    """What a call of `load` asks for."""

    path: Path
    layout: Layouts
    names: tuple[str, ...] | re.Pattern[str] | None = None
    slices: object = None
    out: object = None
    dtype: DTypeLike | None = None
    strict: bool | None = None
    decode: bool = False
    check: bool | None = None
    limit: int | None = None

    def text(self) -> str:
        """Return the text of the call that ranks compare."""
        names = "" if self.names is None else f" of {self.names}"
        options = f"slices {self.slices!r}, dtype {self.dtype}, strict={self.strict}, decode={self.decode}"
        return f"load from {quote(str(self.path))}{names}, {options}, check={self.check}"

    def key(self, mesh: Mesh, meshes: list[Mesh]) -> Hashable:
        """Return the cache key of the call; None if one of its arguments may change, or has no exact text.

        *mesh* has the ranks, *meshes* are those of layouts. They are compared by identity: equal meshes may be open at
        once, and tensors belong to one. Without a layout and a default mesh, each call makes a mesh.
        """
        is_plain = (self.slices is None or _is_plain(self.slices)) and isinstance(
            self.dtype, str | type | np.dtype | None
        )
        if not is_plain or self.out is not None or isinstance(self.layout, FindsLayouts):
            return None
        layouts = tuple(self.layout.items()) if isinstance(self.layout, Mapping) else self.layout
        makes_mesh = self.layout is None and get_default_mesh() is None
        mesh_key = mesh if makes_mesh else (id(mesh), *map(id, meshes))
        return mesh_key, layouts, str(self.path), self.names, repr((self.slices, *self[5:]))

    def arrays(self, contents: FileContents, mesh: Mesh, *, warns: bool = False) -> list[ArrayRequest]:
        """Return a request for each array to load. ``CheckpointError`` if a name is missing.

        *warns* says to warn of arrays in the file that are left out, if the call asks for all of it.
        """
        if warns and self.leaves_out(contents):
            warn(f"{self.path}: {_left_out_text(contents)}")
        rules = self.layout if isinstance(self.layout, FindsLayouts) else None  # once: isinstance takes long
        if rules is not None:
            say_unused(rules, list(contents.arrays), strict=self.strict is True, warns=warns)
        for option_name, option in (("slices", self.slices), ("layout", None if rules else self.layout)):
            if isinstance(option, Mapping):
                self._refuse_unknown(option_name, [name for name in option if name not in contents.arrays], contents)
        names = self._names_in(contents)
        outs = (
            None
            if self.out is None
            else _tensors_by_name(self.out, list(contents.arrays) if names is None else names, mesh)
        )
        return [
            self._array_request(contents, name, mesh, None if outs is None else outs[name], rules)
            for name in self._chosen_names(contents, names, outs)
        ]

    def leaves_out(self, contents: FileContents) -> bool:
        """Return whether the call asks for all arrays of the file, and does not get some of them."""
        return bool(contents.left_out and contents.arrays) and self.names is None and self.out is None

    def _array_request(
        self, contents: FileContents, name: str, mesh: Mesh, out: DTensor | None, rules: FindsLayouts | None
    ) -> ArrayRequest:
        stored = contents.arrays[name]
        shape = stored.array_shape
        index = self.slices.get(name) if isinstance(self.slices, Mapping) else self.slices
        selection = all_of(shape) if index is None else _selected(name, shape, index)
        coding = coding_of(contents.attributes.get(name, {}), stored.dtype) if self.decode else None
        dtype = stored.dtype if coding is None else coding.dtype
        if self.dtype is not None:  # a str gets the length that the values need
            dtype = np.empty(0, dtype).astype(as_dtype(self.dtype)).dtype
        layout = self._layout_of(name, selection.result, rules)
        if out is not None:
            _check_out(name, out, selection, dtype, layout)
            layout = out.layout
        layout = layout or Layout.replicated(mesh, len(selection.result))
        return ArrayRequest(stored, selection, layout, dtype, coding, out, out is None)

    def _names_in(self, contents: FileContents) -> list[str] | None:
        """Return the names that the call gives, or those in the file that match its pattern; None without either."""
        pattern = self.names
        if not isinstance(pattern, re.Pattern):
            return None if pattern is None else list(pattern)
        names = [name for name in contents.arrays if pattern.match(name)]
        if not names:
            self._refuse(f"no array that matches {quote(pattern.pattern)}", contents)
        return names

    def _chosen_names(
        self, contents: FileContents, names: list[str] | None, outs: Mapping[str, DTensor] | None
    ) -> list[str]:
        if names is not None and outs is not None:
            missing = [name for name in names if name not in outs]
            if missing:
                names_text = quote(list(outs))
                raise LayoutError(f"out has no tensor {quote(missing[0])}, which names asks for; it has {names_text}")
        if names is None:
            names = list(contents.arrays if outs is None else outs)
        if outs is None or self.strict is not False:
            self._refuse_unknown("", [name for name in names if name not in contents.arrays], contents)
        if not contents.arrays and contents.left_out:
            raise CheckpointError(f"{self.path} has nothing that can be loaded: {_left_out_text(contents)}")
        return [name for name in names if name in contents.arrays]

    def _refuse_unknown(self, option: str, names: list[str], contents: FileContents) -> None:
        reason = contents.why_not(names[0]) if names else None
        if reason is not None:
            raise CheckpointError(f"{self.path}: {quote(names[0])} cannot be loaded: {reason}")
        if names:
            self._refuse(f"no array {quote(names[0])}" + (f", which {option} names" if option else ""), contents)

    def _refuse(self, problem: str, contents: FileContents) -> NoReturn:
        error = CheckpointError(f"{self.path} has {problem}; it has {', '.join(list(contents.arrays)[:SHOWN])}")
        error.unknown_name = True
        raise error

    def _layout_of(self, name: str, shape: Shape, rules: FindsLayouts | None) -> Layout | None:
        """Return the layout that the call gives for an array of *shape*, if any."""
        layout: object = self.layout
        ndim = len(shape)
        if rules is not None:
            layout = rules.layout_for(name, ndim)
        elif isinstance(layout, Mapping):
            layout = layout.get(name)
        if layout is None:
            return None
        if not isinstance(layout, Layout):
            raise LayoutError(f"the layout of {quote(name)} is {quote(layout)}; it must be a Layout")
        if layout.ndim != ndim:
            raise LayoutError(
                f"{self.path}: array {quote(name)} has the shape {shape}, but its layout is for "
                f"{counted(layout.ndim, 'axis')}; a dict of layouts or a LayoutMap gives each array its own"
            )
        layout.check_fits(shape)
        return layout

    def result(self, tensors: dict[str, DTensor], contents: FileContents, mesh: Mesh) -> object:
        """Return the result of the call on this rank of the mesh."""
        if self.out is not None:
            return self.out
        if self.names is None and contents.node is not None:
            return rebuild(contents.node, tensors.__getitem__, lambda nodes: _value_of_rank(nodes, mesh))
        return tensors["array"] if self.names is None and list(tensors) == ["array"] else tensors


def meshes_of(layout: object, out: object) -> list[Mesh]:
    """Return the meshes of *layout* and *out*, also if something is wrong with these arguments."""
    if out is not None:
        return [tensor.mesh for tensor in tensors_in(out)]
    if isinstance(layout, Layout):
        return [layout.mesh]
    layouts = layout.values() if isinstance(layout, Mapping) else []
    return [item.mesh for item in layouts if isinstance(item, Layout)]


def load_request(path: PathLike, layout: Layouts, names: Names, *options: Loaded) -> LoadRequest:
    """Return the request of a call of `load` with these arguments. ``LayoutError`` if *layout* is no layout."""
    *_, limit = options
    if limit is not None:
        check_limits(limit)
    file_path = as_path(path, "load(path, layout)")
    if layout is not None and not isinstance(layout, Layout | Mapping):
        raise LayoutError(f"load takes a Layout, a LayoutMap or a dict of layouts, not {quote(layout)}")
    if isinstance(names, str):
        raise TypeError(f"names is a list of names, not the text {quote(names)}")
    if not isinstance(names, re.Pattern | Iterable | None):
        raise TypeError(f"names must be the names of tensors, or a compiled pattern, not {quote(names)}")
    selected_names = names if names is None or isinstance(names, re.Pattern) else tuple(names)
    return LoadRequest(file_path, layout, selected_names, *options)


def _is_plain(index: object) -> bool:
    """Return whether the repr of an index, or of a dict of them, is unique."""
    if isinstance(index, tuple):
        return all(map(_is_plain, index))
    if isinstance(index, dict):
        return all(map(_is_plain, index.values()))
    if isinstance(index, slice):
        return all(map(_is_plain, (index.start, index.stop, index.step)))
    return index is None or index is ... or type(index) is int


def _selected(name: str, shape: Shape, index: object) -> Selection:
    try:
        return selected(shape, index)
    except IndexError as error:
        raise IndexError(f"slices of array {quote(name)}: {error}") from None


def _tensors_by_name(tree: object, names: list[str], mesh: Mesh) -> dict[str, DTensor]:
    """Return the tensors of *tree* by name. If *tree* is one tensor, its name is the only one of *names*.

    An array of PyTorch is a replicated one: each rank of *mesh* has it whole.
    """

    node, outs = flattened(tree, of_foreign=lambda x: replicated(values_of(x), mesh))
    if not outs:
        raise LayoutError(f"out must be a tensor, or a tree of them, not {quote(tree)}")
    if node == ["array", "array"] and len(names) == 1:
        outs = {names[0]: outs["array"]}
    tensors = {name: leaf for name, leaf in outs.items() if isinstance(leaf, DTensor)}
    if len(tensors) < len(outs):
        name = next(name for name in outs if name not in tensors)
        raise LayoutError(f"out has an array at {quote(name)}; it must have tensors only")
    return tensors


def _check_out(name: str, out: DTensor, selection: Selection, dtype: DType, layout: Layout | None) -> None:
    check_writable(f"out for {quote(name)}", out, LayoutError)
    if out.shape != selection.result:
        raise ShapeError(f"out has the shape {out.shape} for {quote(name)}; what is loaded has {selection.result}")
    if out.dtype != dtype:
        raise DTypeError(f"out is {out.dtype} for {quote(name)}; what is loaded is {dtype}: pass dtype= to convert")
    if layout not in (None, out.layout):
        raise LayoutError(f"out for {quote(name)} keeps its layout {out.layout}; layout= asks for {layout}")
    if on_blocks(lambda block: not block.flags.writeable, out):
        raise LayoutError(f"out for {quote(name)} cannot be written to: its block is read-only")


def _value_of_rank(nodes: list[object], mesh: Mesh) -> object:
    """Return the value of this rank, if the mesh has one rank for each saved value; else all values."""
    if mesh.rank is None or len(nodes) != mesh.size:
        return all_values(nodes)
    return value_of_node(nodes[mesh.rank])


def _left_out_text(contents: FileContents) -> str:
    """Return a text for people that lists the arrays of the file that cannot be loaded."""
    texts = [f"{quote(name)} ({reason})" for name, reason in contents.left_out.items()]
    return f"{some_of(texts, SHOWN)} {'is' if len(texts) == 1 else 'are'} left out"
