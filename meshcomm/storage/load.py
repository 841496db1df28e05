"""load: tensors from files, in any layout."""

from collections.abc import Callable, Hashable, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from numpy.typing import DTypeLike

from meshcomm.blocks.make import make, on_blocks
from meshcomm.blocks.session import Session, in_session
from meshcomm.core._types import Json
from meshcomm.core.arrays.dtensor import DTensor
from meshcomm.core.layouts.mesh import Mesh
from meshcomm.core.memory.blocks import new_block
from meshcomm.errors import CheckpointError, MeshcommError
from meshcomm.storage.formats.base import Contents
from meshcomm.storage.kept import KeptLoad, KeptLoads, Told, check_unchanged, looked_at, told_contents
from meshcomm.storage.meshes import common_mesh
from meshcomm.storage.progress import showing
from meshcomm.storage.reading import ArraysReader
from meshcomm.storage.request import ArrayRequest, Layouts, LoadRequest, Names, PathLike, load_request, meshes_of
from meshcomm.storage.transfer import Opened
from meshcomm.storage.verify import compare_checksums

CHECKED_UP_TO = 2**26
"""Bytes of a checkpoint. Up to this size `load` compares checksums unless it is told not to: it takes below 0.1 s."""


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
    options = slices, out, dtype, strict, decode, check, max_scratch_bytes
    return loaded(lambda: load_request(path, layout, names, *options), meshes_of(layout, out))


def loaded(requested: Callable[[], LoadRequest], meshes: list[Mesh]) -> Json:
    """Return what a call of `load` returns. Collective over *meshes*, those of its layouts and tensors.

    *requested* checks the arguments. What it raises on one rank, all ranks raise.
    """
    mesh = common_mesh(meshes)

    def steps(here: Session) -> tuple[LoadRequest, dict[str, DTensor], Contents]:
        with here.exchanging():
            try:
                request = requested()
            except Exception as error:
                _raise_on_all(error, here)
                raise
            return request, *_loaded(request, request.key(mesh, meshes), mesh, here)

    made = in_session("load", mesh, steps)
    if made is None:  # a rank outside
        request = requested()
        found = looked_at(request.path).found
        made = request, _untouched(request, found, mesh), found
    request, tensors, found = made
    return request.result(tensors, found, mesh)


def load_told(request: LoadRequest, told: Told, mesh: Mesh) -> dict[str, DTensor]:
    """Return the tensors that are requested, by name, of files that all ranks know. Collective over *mesh*."""

    def steps(here: Session) -> dict[str, DTensor]:
        with here.exchanging():
            return _first(request, told, mesh, here)[0]

    return in_session("load", mesh, steps) or _untouched(request, told.found, mesh)


def _untouched(request: LoadRequest, found: Contents, mesh: Mesh) -> dict[str, DTensor]:
    """Return the tensors by name on a rank outside of their meshes."""
    return {each.name: each.target() for each in request.arrays(found, mesh)}


def _loaded(request: LoadRequest, key: Hashable, mesh: Mesh, here: Session) -> tuple[dict[str, DTensor], Contents]:
    """Return the tensors that are requested, by name, and what the file has. Collective over *mesh*.

    The load is kept for *key*, unless that is None.
    """
    kept = here.kept("loads", KeptLoads)
    load = kept.get(key)
    if load is not None:
        tensors = _again(load, request, here)
        if tensors is not None:
            kept.use(key)
            return tensors, load.told.found
        kept.drop(key)
    told = told_contents(request.path, request.text(), here)
    tensors, load = _first(request, told, mesh, here, keeps=key is not None)
    if load is not None:
        kept.keep(key, load)
    return tensors, told.found


def _first(
    request: LoadRequest, told: Told, mesh: Mesh, here: Session, *, keeps: bool = False
) -> tuple[dict[str, DTensor], KeptLoad | None]:
    """Return the tensors that are requested, by name, and what to keep, if any. Collective over *mesh*."""
    found = told.found

    def prepare() -> tuple[list[ArrayRequest], list[DTensor], bool]:
        requests = request.arrays(found, mesh, warns=here.device == 0)
        return requests, [each.target() for each in requests], is_checked(request.path, found, request.check)

    if request.out is None:
        try:
            requests, targets, checks = prepare()
        except Exception as error:
            _raise_on_all(error, here)
            raise
    else:  # nothing is overwritten before all ranks have seen no error
        requests, targets, checks = here.together(lambda prepared: _text(request, prepared[0]), prepare)
        requests = _with_whole_outs(requests, here)
    load = KeptLoad(_text(request, requests), told, ArraysReader(requests, request.limit), mesh, checks=checks)
    opened = Opened(told.base, False, checks)
    keeps = keeps and load.is_short and not request.leaves_out(found)  # which warns each time

    def agree() -> None:
        nonlocal keeps
        with opened.trying():
            check_unchanged(told.base, found, load.reader.names)
        keeps = not here.agree(load.call, opened.error, not keeps)

    opened.agree = agree
    with opened.trying():
        check_unchanged(told.base, found, load.reader.names)
    tensors = _filled(load, targets, request, opened, here)
    return tensors, load if keeps else None


def _raise_on_all(error: Exception, here: Session) -> None:
    """Raise *error*, which this rank has found alone maybe, on all ranks. Collective: others agree on the call."""

    def fail() -> None:
        raise error

    here.together(str, fail)


class _Changed(MeshcommError):
    """A file has changed since a load of it, or cannot be read on some rank."""


def _again(load: KeptLoad, request: LoadRequest, here: Session) -> dict[str, DTensor] | None:
    """Return the tensors of a load that was made before; None if it has to be made anew. Collective over the mesh.

    What this rank reads of a file that has changed nobody sees: the ranks agree before they send anything.
    """
    opened = Opened(load.told.base, False, load.checks)

    def agree() -> None:
        with opened.trying():
            load.check(request.path, opened, first=here.device == 0)
        if here.agree(load.call, None, opened.error is not None):
            raise _Changed

    opened.agree = agree
    try:
        targets = []
        try:
            check_unchanged(load.told.base, load.told.found, load.reader.names)  # before anything is read
            for each in load.reader.requests:
                block = None if each.block_shape is None else new_block(each.block_shape, each.dtype)
                targets.append(make(block, each.layout, each.shape, each.dtype))
        except (CheckpointError, OSError, MemoryError) as error:
            opened.error = error
            agree()
        return _filled(load, targets, request, opened, here)
    except _Changed:
        return None


def _filled(
    load: KeptLoad, targets: Sequence[DTensor], request: LoadRequest, opened: Opened, here: Session
) -> dict[str, DTensor]:
    """Return the *targets* by name, filled. Collective over the mesh."""
    with showing(opened, "loading", request.path, load.reader.nbytes, here), closing(opened):
        if load.is_mixed:  # ranks outside of a mesh do not know when the others have something to send
            opened.before_sending()
            opened.settled = False
        load.reader.fill(targets, opened, here)
        opened.settle()
    if opened.checks:
        compare_checksums(load.told.base, load.told.found, opened, here)
    if request.out is not None:
        for tensor in targets:
            tensor.written()
    return dict(zip(load.reader.names, targets, strict=True))


def is_checked(path: Path, found: Contents, check: bool | None) -> bool:
    """Return whether checksums are compared. ``CheckpointError`` if there are none, but *check* asks for it."""
    if found.checks is None and check:
        raise CheckpointError(f"{path} has no checksums: check=True is for checkpoints, which are folders")
    small = sum((found.sizes or {}).values()) <= CHECKED_UP_TO
    return found.checks is not None and (small if check is None else check)


def _text(request: LoadRequest, requests: Sequence[ArrayRequest]) -> str:
    layouts = [f"{each.name} in {each.layout.specs_text}" for each in requests]
    return f"{request.text()}: {layouts}"


def _with_whole_outs(requests: list[ArrayRequest], here: Session) -> list[ArrayRequest]:
    """Return *requests*, with those to tensors of the user marked that are `unsliced`. Collective over the team."""
    own = [not on_blocks(lambda block: not block.flags.c_contiguous, each.target()) for each in requests]
    return [replace(each, unsliced=all(flags)) for each, *flags in zip(requests, *here.told(own), strict=True)]
