"""load: tensors from files, in any layout."""

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from functools import partial
from math import prod
from pathlib import Path
from typing import NamedTuple, NoReturn

import numpy as np
from numpy.typing import DTypeLike

from meshcomm.blocks.align import replicated
from meshcomm.blocks.make import cut, make, on_blocks
from meshcomm.blocks.session import Session, in_session
from meshcomm.blocks.small import together
from meshcomm.blocks.views import check_writable
from meshcomm.core._arguments import as_dtype, as_path, counted, quote
from meshcomm.core._callers import warn
from meshcomm.core._foreign import values_of
from meshcomm.core._types import Array, DType, Json, Shape
from meshcomm.core._units import some_of
from meshcomm.core.arrays.create import empty
from meshcomm.core.arrays.dtensor import DTensor
from meshcomm.core.arrays.many import FindsLayouts, say_unused
from meshcomm.core.arrays.trees import rebuilt, tensors_in
from meshcomm.core.layouts.layout import Layout
from meshcomm.core.layouts.mesh import Mesh
from meshcomm.errors import CheckpointError, DTypeError, LayoutError, ShapeError
from meshcomm.storage.by_library import read_by_library
from meshcomm.storage.decoding import Coding, coding_of, decode
from meshcomm.storage.formats.base import Contents
from meshcomm.storage.formats.known import contents
from meshcomm.storage.formats.safetensors import INDEX
from meshcomm.storage.meshes import check_limits, common_mesh
from meshcomm.storage.progress import showing
from meshcomm.storage.selection import Selection, all_of, selected
from meshcomm.storage.small import batches, is_small
from meshcomm.storage.stored import Stored
from meshcomm.storage.transfer import Opened, convert, read_tensor
from meshcomm.storage.trees import flattened
from meshcomm.storage.unchanged import check_unchanged
from meshcomm.storage.values import all_values, node_of_value, value_of_node
from meshcomm.storage.verify import compare_checksums

CHECKED_UP_TO = 2**26
"""Bytes of a checkpoint. Up to this size `load` compares checksums unless it is told not to: it takes below 0.1 s."""

PathLike = str | os.PathLike[str]
Layouts = Layout | Mapping[str, Layout] | FindsLayouts | None
Names = Iterable[str] | re.Pattern[str] | None
SHOWN = 10  # names of arrays in a text


def load(
    path: PathLike,
    layout: Layouts = None,
    *,
    names: Names = None,
    slices: object = None,
    out: object = None,
    dtype: DTypeLike | None = None,
    decode: bool = False,
    strict: bool | None = None,
    check: bool | None = None,
    max_scratch_bytes: int | None = None,
) -> Json:
    """Return the tensors of a file or a checkpoint, in any layout. Collective over the meshes of the layouts.

    How many ranks saved it, and in which layouts, does not matter. Each byte is read once, by one rank, and then sent
    to those that need it. A file of one array gives a tensor, one of several a dict, and a checkpoint the tree that
    was saved.

    Parameters
    ----------
    path: a file or folder that `save` or another program has made
    layout: one for all tensors; a `LayoutMap` or a dict, with the names of tensors; without a layout, a tensor is
        replicated on the mesh of `default_mesh`, or on all ranks
    names: load these only, and return a dict; or a compiled pattern that they match as ``re.match`` does
    slices: load this part of the array only: an index as NumPy's basic indexing takes it, or a dict of them by name;
        layouts are those of the result
    out: overwrite these tensors, and return them: a tensor, or a tree with the names that are in the file; they keep
        their layouts. A tensor of PyTorch is one that each rank has whole
    dtype: convert to this one, as ``astype`` does
    decode: apply the attributes of netCDF: ``_FillValue`` and ``missing_value`` become NaN, then ``scale_factor`` and
        ``add_offset`` count, and ``_Unsigned``; with the dtypes that xarray chooses. Dates stay numbers
    strict: True: rules of a `LayoutMap` that match no name in the file are an error, not a warning. False: *out* may
        have names that are missing in the file; these tensors stay as they are
    check: compare the checksums of what is read; by default for checkpoints of at most 64 MiB
    max_scratch_bytes: bytes that a rank may use beyond its blocks; by default 32 MiB. Where only a library can read
        the file (chunks or compressed), a rank also holds its share of the result, unless that is its block; with
        *decode*, its block of one array as it is in the file

    A rank outside of the meshes reads the header itself: a relative path is relative to its own folder.

    ``CheckpointError`` if the file is damaged or holds something else, ``FileNotFoundError`` if it is not there,
    ``LayoutError`` and ``ShapeError`` if a layout or *out* does not fit.

    >>> import tempfile, numpy as np, meshcomm as mc
    >>> path = tempfile.mkdtemp() + "/a.npy"
    >>> np.save(path, np.arange(6).reshape(3, 2))
    >>> def program():
    ...     columns = mc.Layout([mc.UNSHARDED, "x"], mc.create_mesh([("x", 2)]))
    ...     return mc.load(path, columns).local.tolist()
    >>> with mc.simulate(2) as world:
    ...     print(world.run(program))
    [[[0], [2], [4]], [[1], [3], [5]]]
    """
    mesh = common_mesh(meshes_of(layout, out))

    def make() -> Wanted:
        check_limits(max_scratch_bytes)
        return wanted_by(path, layout, names, slices, out, dtype, strict, decode)

    wanted = together("load", mesh, "the arguments of load", make)

    def steps(here: Session) -> tuple[dict[str, DTensor], Contents]:
        with here.exchanging():
            base, found = told_contents(wanted.path, f"{wanted.text()}, check={check}", here)
            return _loaded(wanted, (base, found), mesh, here, check=check, limit=max_scratch_bytes), found

    tensors, found = in_session("load", mesh, steps) or _untouched(wanted, contents(Path(path)), mesh)
    return wanted.result(tensors, found, mesh)


def load_found(wanted: "Wanted", held: tuple[Path, Contents], mesh: Mesh) -> dict[str, DTensor]:
    """Return the tensors that are *wanted*, by name. Collective over *mesh*.

    *held* is what `told_contents` returns: all ranks know what the file has.
    """

    def steps(here: Session) -> dict[str, DTensor]:
        with here.exchanging():
            return _loaded(wanted, held, mesh, here)

    return in_session("load", mesh, steps) or _untouched(wanted, held[1], mesh)[0]


def _untouched(wanted: "Wanted", found: Contents, mesh: Mesh) -> tuple[dict[str, DTensor], Contents]:
    """Return the tensors by name on a rank outside of their meshes, and what the file has."""
    return {job.stored.name: job.target for job in wanted.jobs(found, mesh)}, found


def _loaded(
    wanted: "Wanted",
    held: tuple[Path, Contents],
    mesh: Mesh,
    here: Session,
    *,
    check: bool | None = None,
    limit: int | None = None,
) -> dict[str, DTensor]:
    """Return the tensors that are *wanted* of the file that is *held*, by name. Collective over *mesh*."""
    base, found = held
    jobs = here.together(_jobs_text, lambda: wanted.jobs(found, mesh, warns=here.device == 0))
    jobs = _with_whole_outs(jobs, here)
    opened = Opened(base, False, is_checked(wanted.path, found, check))
    with showing(opened, "loading", wanted.path, sum(job.nbytes for job in jobs), here), closing(opened):
        tensors = loaded(jobs, found, opened, here, limit)
    here.agree(f"all data of the load from {quote(str(wanted.path))}", opened.error)
    if opened.checks:
        compare_checksums(base, found, opened, here)
    return tensors


def is_checked(path: Path, found: Contents, check: bool | None) -> bool:
    """Return whether checksums are compared. ``CheckpointError`` if there are none, but *check* asks for it."""
    if found.checks is None and check:
        raise CheckpointError(f"{path} has no checksums: check=True is for checkpoints, which are folders")
    small = sum((found.sizes or {}).values()) <= CHECKED_UP_TO
    return found.checks is not None and (small if check is None else check)


class Job(NamedTuple):
    """One array to load: all of it or a box, to the tensor *target*; *unsliced* if that is no slice on any rank.

    Its numbers are decoded by *coding*, if there is one.
    """

    stored: Stored
    chosen: Selection
    target: DTensor
    unsliced: bool
    coding: Coding | None = None

    @property
    def nbytes(self) -> int:
        """The bytes that are read."""
        return prod(self.chosen.box) * self.stored.dtype.itemsize


def _jobs_text(jobs: list[Job]) -> str:
    return f"load of {[f'{job.stored.name} in {job.target.layout.specs_text}' for job in jobs]}"


def _with_whole_outs(jobs: list[Job], here: Session) -> list[Job]:
    """Return *jobs*, with those to tensors of the user marked that are `unsliced`. Collective over the team."""
    if all(job.unsliced for job in jobs):
        return jobs
    own = [job.unsliced or not on_blocks(lambda block: not block.flags.c_contiguous, job.target) for job in jobs]
    return [job._replace(unsliced=all(flags)) for job, *flags in zip(jobs, *here.told(own), strict=True)]


class Asked(NamedTuple):
    """One array that is asked for: all of it or a box, in *layout*, as *dtype*; in tensor *out*, if there is one."""

    stored: Stored
    chosen: Selection
    layout: Layout
    dtype: DType
    out: DTensor | None
    coding: Coding | None = None

    @property
    def reading(self) -> "Reading":
        """How the array is read, if it is in plain runs and not small."""
        chosen, layout, stored = self.chosen, with_dropped(self.layout, self.chosen), self.stored
        changes = stored.fortran or self.dtype != stored.dtype
        if not stored.fortran:
            return Reading(layout, chosen, changes)
        return Reading(Layout(layout.axes[::-1], layout.mesh), chosen.turned(), changes)


def with_dropped(layout: Layout, chosen: Selection) -> Layout:
    """Return *layout*, which is that of the result, with the axes that are dropped from it."""
    axes = list(layout.axes)
    for axis in chosen.dropped:
        axes.insert(axis, ())
    return Layout(axes, layout.mesh)


class Reading(NamedTuple):
    """In which layout the box *chosen* is read; the axes of both are those of the file.

    *staged* says whether its elements are converted or transposed in each round.
    """

    layout: Layout
    chosen: Selection
    staged: bool


def _of_rank(nodes: list[Json], mesh: Mesh) -> Json:
    """Return the value of this rank, if as many have saved theirs as the mesh has; else all values."""
    alone = mesh.rank is not None and len(nodes) == mesh.size
    return value_of_node(nodes[mesh.rank]) if alone else all_values(nodes)  # type: ignore[index]


def _left_out_text(found: Contents) -> str:
    """Return what the file has, but cannot be loaded, for people."""
    texts = [f"{quote(name)} ({why})" for name, why in found.left_out.items()]
    return f"{some_of(texts, SHOWN)} {'is' if len(texts) == 1 else 'are'} left out"


class Wanted(NamedTuple):
    """What a call of `load` asks for."""

    path: Path
    layout: Layouts
    names: tuple[str, ...] | re.Pattern[str] | None
    slices: object
    out: object
    dtype: DTypeLike | None
    strict: bool | None
    decode: bool = False

    def text(self) -> str:
        """Return the call, as ranks compare it."""
        names = "" if self.names is None else f" of {self.names}"
        options = f"slices {self.slices!r}, dtype {self.dtype}, strict={self.strict}, decode={self.decode}"
        return f"load from {quote(str(self.path))}{names}, {options}"

    def jobs(self, found: Contents, mesh: Mesh, *, warns: bool = False) -> list[Job]:
        """Return what to load, into new tensors or those of *out*.

        *warns* says to warn of what the file has, but is left out, if the call asks for all of it.
        """
        if warns and found.left_out and found.arrays and self.names is None and self.out is None:
            warn(f"{self.path}: {_left_out_text(found)}")
        if isinstance(self.layout, FindsLayouts):
            say_unused(self.layout, list(found.arrays), strict=self.strict is True, warns=warns)
        return [
            Job(stored, chosen, empty(chosen.result, dtype, layout) if out is None else out, out is None, coding)
            for stored, chosen, layout, dtype, out, coding in self.asked(found, mesh)
        ]

    def asked(self, found: Contents, mesh: Mesh) -> list[Asked]:
        """Return what to load, and in which layouts. ``CheckpointError`` if a name is missing."""
        for what, given in (("slices", self.slices), ("layout", self.layout)):
            if isinstance(given, Mapping) and not isinstance(given, FindsLayouts):
                self._refuse_unknown(what, [name for name in given if name not in found.arrays], found)
        names = self._names_in(found)
        outs = None if self.out is None else _outs(self.out, list(found.arrays) if names is None else names, mesh)
        asked, finds = [], isinstance(self.layout, FindsLayouts)  # once: it takes long
        for name in self._chosen_names(found, names, outs):
            stored = found.arrays[name]
            shape = stored.shape[::-1] if stored.fortran else stored.shape
            index = self.slices.get(name) if isinstance(self.slices, Mapping) else self.slices
            chosen = all_of(shape) if index is None else _selected(name, shape, index)
            coding = coding_of(found.attributes.get(name, {}), stored.dtype) if self.decode else None
            kind = stored.dtype if coding is None else coding.dtype
            if self.dtype is not None:  # a str gets the length that the values need
                kind = np.empty(0, kind).astype(as_dtype(self.dtype)).dtype
            layout = self._layout_of(name, chosen.result, finds)
            out = None if outs is None else outs[name]
            if out is not None:
                _check_out(name, out, chosen, kind, layout)
                layout = out.layout
            layout = layout or Layout.replicated(mesh, len(chosen.result))
            asked.append(Asked(stored, chosen, layout, kind, out, coding))
        return asked

    def _names_in(self, found: Contents) -> list[str] | None:
        """Return the names that the call gives, or those in the file that match its pattern; None without either."""
        pattern = self.names
        if not isinstance(pattern, re.Pattern):
            return None if pattern is None else list(pattern)
        names = [name for name in found.arrays if pattern.match(name)]
        if not names:
            self._refuse(f"no array that matches {quote(pattern.pattern)}", found)
        return names

    def _chosen_names(self, found: Contents, names: list[str] | None, outs: Mapping[str, DTensor] | None) -> list[str]:
        if names is not None and outs is not None:
            missing = [name for name in names if name not in outs]
            if missing:
                has = quote(list(outs))
                raise LayoutError(f"out has no tensor {quote(missing[0])}, which names asks for; it has {has}")
        if names is None:
            names = list(found.arrays if outs is None else outs)
        if outs is None or self.strict is not False:
            self._refuse_unknown("", [name for name in names if name not in found.arrays], found)
        if not found.arrays and found.left_out:
            raise CheckpointError(f"{self.path} has nothing that can be loaded: {_left_out_text(found)}")
        return [name for name in names if name in found.arrays]

    def _refuse_unknown(self, what: str, names: list[str], found: Contents) -> None:
        why = found.why_not(names[0]) if names else None
        if why is not None:
            raise CheckpointError(f"{self.path}: {quote(names[0])} cannot be loaded: {why}")
        if names:
            self._refuse(f"no array {quote(names[0])}" + (f", which {what} names" if what else ""), found)

    def _refuse(self, what: str, found: Contents) -> NoReturn:
        error = CheckpointError(f"{self.path} has {what}; it has {', '.join(list(found.arrays)[:SHOWN])}")
        error.unknown_name = True
        raise error

    def _layout_of(self, name: str, shape: Shape, finds: bool) -> Layout | None:
        """Return the layout that the call gives for an array of *shape*, if any."""
        layout: object = self.layout
        ndim = len(shape)
        if finds:
            layout = self.layout.layout_for(name, ndim)  # type: ignore[union-attr]
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

    def result(self, tensors: dict[str, DTensor], found: Contents, mesh: Mesh) -> Json:
        """Return what the call returns on this rank of the mesh."""
        if self.out is not None:
            return self.out
        if self.names is None and found.node is not None:
            return rebuilt(found.node, tensors.__getitem__, lambda nodes: _of_rank(nodes, mesh))
        return tensors["array"] if self.names is None and list(tensors) == ["array"] else tensors


def meshes_of(layout: object, out: object) -> list[Mesh]:
    """Return the meshes of the layouts and tensors that were given, also if something is wrong with them."""
    if out is not None:
        return [tensor.mesh for tensor in tensors_in(out)]
    layouts = layout.values() if isinstance(layout, Mapping) else [layout]
    return [each.mesh for each in layouts if isinstance(each, Layout)]


def wanted_by(path: PathLike, layout: Layouts, names: Names, slices: object, out: object, *options: Json) -> Wanted:
    """Return what a call of `load` with these arguments asks for. ``LayoutError`` for what is no layout."""
    where = as_path(path, "load(path, layout)")
    if layout is not None and not isinstance(layout, Layout | Mapping):
        raise LayoutError(f"load takes a Layout, a LayoutMap or a dict of layouts, not {quote(layout)}")
    if isinstance(names, str):
        raise TypeError(f"names is a list of names, not the text {quote(names)}")
    if not isinstance(names, re.Pattern | Iterable | None):
        raise TypeError(f"names must be the names of tensors, or a compiled pattern, not {quote(names)}")
    given = names if names is None or isinstance(names, re.Pattern) else tuple(names)
    return Wanted(where, layout, given, slices, out, *options)


def _selected(name: str, shape: Shape, index: object) -> Selection:
    try:
        return selected(shape, index)
    except IndexError as error:
        raise IndexError(f"slices of array {quote(name)}: {error}") from None


def _outs(tree: object, names: list[str], mesh: Mesh) -> dict[str, DTensor]:
    """Return the tensors of *tree* by name; a tensor alone is for the only one of *names*.

    An array of PyTorch is one that each rank of *mesh* has whole.
    """

    node, outs = flattened(tree, of_foreign=lambda x: replicated(values_of(x), mesh))
    if not outs:
        raise LayoutError(f"out must be a tensor, or a tree of them, not {quote(tree)}")
    if node == ["array", "array"] and len(names) == 1:
        outs = {names[0]: outs["array"]}
    for name, leaf in outs.items():
        if not isinstance(leaf, DTensor):
            raise LayoutError(f"out has an array at {quote(name)}; it must have tensors only")
    return outs  # type: ignore[return-value]


def _check_out(name: str, out: DTensor, chosen: Selection, dtype: DType, layout: Layout | None) -> None:
    check_writable(f"out for {quote(name)}", out, LayoutError)
    if out.shape != chosen.result:
        raise ShapeError(f"out has the shape {out.shape} for {quote(name)}; what is loaded has {chosen.result}")
    if out.dtype != dtype:
        raise DTypeError(f"out is {out.dtype} for {quote(name)}; what is loaded is {dtype}: pass dtype= to convert")
    if layout not in (None, out.layout):
        raise LayoutError(f"out for {quote(name)} keeps its layout {out.layout}; layout= asks for {layout}")
    if on_blocks(lambda block: not block.flags.writeable, out):
        raise LayoutError(f"out for {quote(name)} cannot be written to: its block is read-only")


def told_contents(path: Path, call: str, here: Session) -> tuple[Path, Contents]:
    """Return what the first rank finds at *path*, and what its files are relative to. Collective over the mesh.

    The ranks compare the text *call*.
    """

    def look() -> list[Json]:
        base, found = base_and_contents(path)
        arrays = [stored.told() for stored in found.arrays.values()]
        others = found._replace(arrays={}, node=None, checks=None, sizes=None)
        return [str(base), arrays, node_of_value(others), found.node, found.checks, found.sizes]

    base, arrays, others, node, checks, sizes = here.looked_up(call, look)
    stored = {each[0]: Stored.from_told(each) for each in arrays}
    found = Contents(*value_of_node(others))
    return Path(base), found._replace(arrays=stored, node=node, checks=checks, sizes=sizes)


def base_and_contents(path: Path) -> tuple[Path, Contents]:
    """Return what *path* holds, and what its files are relative to. ``FileNotFoundError``, ``CheckpointError``."""
    path = Path(os.path.abspath(path))
    found = contents(path)
    return path.parent if path.name.endswith(INDEX) else path, found


def loaded(jobs: list[Job], found: Contents, opened: Opened, here: Session, limit: int | None) -> dict[str, DTensor]:
    """Return the tensors of *jobs* by name, filled. Collective over the team: all its ranks have to make the call."""
    small = [job for job in jobs if is_small(job.stored) and job.stored.name not in found.by_library]
    names = {job.stored.name for job in small}
    every = [job.stored.name for job in jobs]
    with opened.trying():
        check_unchanged(opened.base, found, every)
    left = iter(small)
    for batch in batches((job.stored for job in small), limit):
        packed = np.zeros(batch.nbytes, np.uint8) if here.position else batch.read(opened)
        here.broadcast(packed)
        for array, job in zip(batch.unpacked(packed), left, strict=False):  # in this order
            with _decoding(job, opened, limit) as stored:
                _put_small(array, stored)
    for job in jobs:
        if job.stored.name not in names:
            with _decoding(job, opened, limit) as stored:
                _load_large(stored, found, opened, limit)
    with opened.trying():
        check_unchanged(opened.base, found, every)
    return {job.stored.name: job.target for job in jobs}


@contextmanager
def _decoding(job: Job, opened: Opened, limit: int | None) -> Iterator[Job]:
    """Yield what is to be loaded for *job*; if it has a coding, a tensor in the dtype of the file, then decode it."""
    if job.coding is None:
        yield job
        return
    target = job.target
    found = empty(target.shape, job.stored.dtype, target.layout)
    yield job._replace(target=found, unsliced=True)
    with opened.trying():
        on_blocks(partial(decode, coding=job.coding, limit=limit), found, target)


def _load_large(job: Job, found: Contents, opened: Opened, limit: int | None) -> None:
    """Fill the tensor of *job*. Collective over its mesh; all ranks of the call have to make it."""
    stored, chosen, target, unsliced, _ = job
    layout = with_dropped(target.layout, chosen)
    block = on_blocks(lambda block: np.expand_dims(block, chosen.dropped), target)
    into = make(block, layout, chosen.box, target.dtype)
    into = _turned(into) if stored.fortran else into
    if stored.name in found.by_library:
        chunks = found.by_library[stored.name]
        its = chosen.turned() if stored.fortran else chosen
        read_by_library(opened, stored, its, into, chunks=chunks, limit=limit, unsliced=unsliced)
    else:
        reading = Asked(stored, chosen, target.layout, target.dtype, target).reading
        read_tensor(into, stored, opened, reading.chosen, limit, staged=reading.staged or not unsliced)


def _turned(tensor: DTensor) -> DTensor:
    """Return *tensor* with its axes in reverse order; the block is a view."""
    layout = Layout(tensor.layout.axes[::-1], tensor.mesh)
    return make(on_blocks(np.transpose, tensor), layout, tensor.shape[::-1], tensor.dtype)


def _put_small(array: Array, job: Job) -> None:
    """Write what *job* takes of a whole array, which all ranks have, to its tensor."""
    stored, chosen, target, *_ = job
    whole = array.T if stored.fortran else array
    on_blocks(convert, cut(whole[(..., *chosen.numpy_index())], target.layout), target)
