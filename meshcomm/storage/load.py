"""load: tensors from files, in any layout."""

from collections.abc import Callable, Hashable, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from numpy.typing import DTypeLike

from meshcomm.blocks.make import make, on_blocks
from meshcomm.blocks.session import Session, in_session
from meshcomm.core.arrays.dtensor import DTensor
from meshcomm.core.layouts.mesh import Mesh
from meshcomm.core.memory.blocks import new_block
from meshcomm.errors import CheckpointError, MeshcommError
from meshcomm.storage.formats.base import FileContents
from meshcomm.storage.kept import (
    CachedLoad,
    CachedLoads,
    SharedContents,
    cached_contents,
    check_unchanged,
    shared_contents,
)
from meshcomm.storage.meshes import common_mesh
from meshcomm.storage.progress import showing
from meshcomm.storage.reading import ArraysReader
from meshcomm.storage.request import (
    ArrayRequest,
    Layouts,
    Loaded,
    LoadRequest,
    Names,
    PathLike,
    load_request,
    meshes_of,
)
from meshcomm.storage.transfer import OpenFiles
from meshcomm.storage.verify import compare_checksums

CHECKED_UP_TO = 2**26
"""Bytes of a checkpoint. Up to this size `load` compares checksums unless ``check=False``: it takes below 0.1 s."""


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
) -> Loaded:
    """Return the tensors of a file or a checkpoint, in any layout. Collective over the meshes of the layouts.

    The number of ranks that saved it, and their layouts, do not matter. Each byte is read once, by one rank, and then
    sent to those that need it. A file of one array gives a tensor, one of several a dict, and a checkpoint the saved
    tree.

    Parameters
    ----------
    path: a file or folder that `save` or another program has made
    layout: layout of all tensors; or a `LayoutMap` or a dict of layouts by the names of tensors; a tensor without a
        layout is replicated on the mesh of `default_mesh`, or on all ranks
    names: names of the arrays to load, or a compiled pattern that matches them, as ``re.match`` does; the result is a
        dict
    slices: part of the array to load: an index of NumPy's basic indexing, or a dict of indices by name; layouts are
        those of the result
    out: tensor to overwrite and return, or a tree of tensors with the names in the file; they keep their layouts. A
        tensor of PyTorch counts as replicated: each rank has it whole
    dtype: dtype of the result; elements are converted as by ``astype``
    decode: whether to apply the attributes of netCDF: ``_FillValue`` and ``missing_value`` become NaN, then
        ``scale_factor`` and ``add_offset`` count, and ``_Unsigned``; with the dtypes that xarray chooses. Dates stay
        numbers
    strict: if True, rules of a `LayoutMap` that match no name in the file are an error, not a warning; if False, *out*
        may have names that are missing in the file, and these tensors are unchanged
    check: whether to compare the checksums of the data; by default for checkpoints of at most 64 MiB
    max_scratch_bytes: bytes that a rank may use beyond its blocks; by default 32 MiB. Where only a library can read
        the file (chunks or compressed), a rank also holds the chunks that it reads, unless they are its block; with
        *decode*, also its block of one encoded array

    A rank outside of the meshes reads the header itself: a relative path is relative to its own working directory.

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
    return run_load(lambda: load_request(path, layout, names, *options), meshes_of(layout, out))


def run_load(make_request: Callable[[], LoadRequest], meshes: list[Mesh]) -> Loaded:
    """Return the result of a call of `load`. Collective over *meshes*, those of its layouts and tensors.

    *make_request* checks the arguments. An error that it raises on one rank, all ranks raise.
    """
    mesh = common_mesh(meshes)

    def run_in_session(session: Session) -> tuple[LoadRequest, dict[str, DTensor], FileContents]:
        with session.exchanging():
            try:
                request = make_request()
            except Exception as error:
                _raise_on_all(error, session)
                raise
            return request, *_load_tensors(request, request.key(mesh, meshes), mesh, session)

    result = in_session("load", mesh, run_in_session)
    if result is None:  # a rank outside of the mesh
        request = make_request()
        contents = cached_contents(request.path).contents
        result = request, _tensors_outside(request, contents, mesh), contents
    request, tensors, contents = result
    return request.result(tensors, contents, mesh)


def load_shared(request: LoadRequest, shared: SharedContents, mesh: Mesh) -> dict[str, DTensor]:
    """Return the requested tensors by name, from files that all ranks know. Collective over *mesh*."""

    def run_in_session(session: Session) -> dict[str, DTensor]:
        with session.exchanging():
            return _load_new(request, shared, mesh, session)[0]

    return in_session("load", mesh, run_in_session) or _tensors_outside(request, shared.contents, mesh)


def _tensors_outside(request: LoadRequest, contents: FileContents, mesh: Mesh) -> dict[str, DTensor]:
    """Return the tensors by name on a rank outside of their meshes."""
    return {array.name: array.target() for array in request.arrays(contents, mesh)}


def _load_tensors(
    request: LoadRequest, key: Hashable, mesh: Mesh, session: Session
) -> tuple[dict[str, DTensor], FileContents]:
    """Return the requested tensors by name, and the contents of the file. Collective over *mesh*.

    The load is kept for *key*, unless that is None.
    """
    loads = session.cached_resource("loads", CachedLoads)
    kept_load = loads.get(key)
    if kept_load is not None:
        tensors = _repeat_load(kept_load, request, session)
        if tensors is not None:
            loads.use(key)
            return tensors, kept_load.shared.contents
        loads.drop(key)
    shared = shared_contents(request.path, request.text(), session)
    tensors, kept_load = _load_new(request, shared, mesh, session, should_keep=key is not None)
    if kept_load is not None:
        loads.keep(key, kept_load)
    return tensors, shared.contents


def _load_new(
    request: LoadRequest, shared: SharedContents, mesh: Mesh, session: Session, *, should_keep: bool = False
) -> tuple[dict[str, DTensor], CachedLoad | None]:
    """Return the requested tensors by name, and the load to keep, if any. Collective over *mesh*."""
    contents = shared.contents

    def prepare() -> tuple[list[ArrayRequest], list[DTensor], bool]:
        requests = request.arrays(contents, mesh, warns=session.device == 0)
        return requests, [array.target() for array in requests], is_checked(request.path, contents, request.check)

    if request.out is None:
        try:
            requests, targets, checks = prepare()
        except Exception as error:
            _raise_on_all(error, session)
            raise
    else:  # nothing is overwritten before all ranks have seen no error
        requests, targets, checks = session.agree_on_result(lambda prepared: _text(request, prepared[0]), prepare)
        requests = _with_contiguous_outs(requests, session)
    new_load = CachedLoad(_text(request, requests), shared, ArraysReader(requests, request.limit), mesh, checks=checks)
    open_files = OpenFiles(shared.base, False, checks)
    # Such a load warns on every call.
    should_keep = should_keep and new_load.is_cacheable and not request.leaves_out(contents)

    def agree_on_read() -> None:
        nonlocal should_keep
        with open_files.trying():
            check_unchanged(shared.base, contents, new_load.reader.names)
        should_keep = not session.agree(new_load.call, open_files.error, not should_keep)

    open_files.agree = agree_on_read
    with open_files.trying():
        check_unchanged(shared.base, contents, new_load.reader.names)
    tensors = _fill_targets(new_load, targets, request, open_files, session)
    return tensors, new_load if should_keep else None


def _raise_on_all(error: Exception, session: Session) -> None:
    """Raise *error*, which perhaps this rank alone has, on all ranks. Collective: others agree on the call."""

    def fail() -> None:
        raise error

    session.agree_on_result(str, fail)


class _FileChanged(MeshcommError):
    """A file has changed since a load of it, or cannot be read on some rank."""


def _repeat_load(kept_load: CachedLoad, request: LoadRequest, session: Session) -> dict[str, DTensor] | None:
    """Return the tensors of a load that was made before; None if it has to be made anew. Collective over the mesh.

    Data that was read from a changed file is never used: the ranks agree before they send anything.
    """
    open_files = OpenFiles(kept_load.shared.base, False, kept_load.checks)

    def agree_on_read() -> None:
        with open_files.trying():
            kept_load.check(request.path, open_files, first=session.device == 0)
        if session.agree(kept_load.call, None, open_files.error is not None):
            raise _FileChanged

    open_files.agree = agree_on_read
    try:
        targets = []
        try:
            # Before anything is read.
            check_unchanged(kept_load.shared.base, kept_load.shared.contents, kept_load.reader.names)
            for array in kept_load.reader.requests:
                block = None if array.block_shape is None else new_block(array.block_shape, array.dtype)
                targets.append(make(block, array.layout, array.shape, array.dtype))
        except (CheckpointError, OSError, MemoryError) as error:
            open_files.error = error
            agree_on_read()
        return _fill_targets(kept_load, targets, request, open_files, session)
    except _FileChanged:
        return None


def _fill_targets(
    kept_load: CachedLoad, targets: Sequence[DTensor], request: LoadRequest, open_files: OpenFiles, session: Session
) -> dict[str, DTensor]:
    """Return the *targets* by name, filled. Collective over the mesh."""
    with showing(open_files, "loading", request.path, kept_load.reader.nbytes, session), closing(open_files):
        if kept_load.has_smaller_meshes:  # ranks outside of a mesh cannot tell when others send, so all agree first
            open_files.before_sending()
            open_files.has_agreed = False
        kept_load.reader.fill(targets, open_files, session)
        open_files.agree_on_reads()
    if open_files.checks:
        compare_checksums(kept_load.shared.base, kept_load.shared.contents, open_files, session)
    if request.out is not None:
        for tensor in targets:
            tensor.written()
    return dict(zip(kept_load.reader.names, targets, strict=True))


def is_checked(path: Path, contents: FileContents, check: bool | None) -> bool:
    """Return whether checksums are compared. ``CheckpointError`` if there are none, but *check* asks for it."""
    if contents.checks is None and check:
        raise CheckpointError(f"{path} has no checksums: check=True is for checkpoints, which are folders")
    is_small = sum((contents.sizes or {}).values()) <= CHECKED_UP_TO
    return contents.checks is not None and (is_small if check is None else check)


def _text(request: LoadRequest, requests: Sequence[ArrayRequest]) -> str:
    layouts = [f"{array.name} in {array.layout.specs_text}" for array in requests]
    return f"{request.text()}: {layouts}"


def _with_contiguous_outs(requests: list[ArrayRequest], session: Session) -> list[ArrayRequest]:
    """Return *requests* with `out_is_contiguous` as it is on all ranks. Collective."""
    are_contiguous = [not on_blocks(lambda block: not block.flags.c_contiguous, array.target()) for array in requests]
    return [
        replace(array, out_is_contiguous=all(rank_flags))
        for array, *rank_flags in zip(requests, *session.allgather(are_contiguous), strict=True)
    ]
