"""save and start_save: trees of tensors to files."""

import atexit
import errno
import os
import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import closing
from functools import partial
from itertools import count
from pathlib import Path
from typing import NamedTuple

from meshcomm.blocks.align import replicated
from meshcomm.blocks.session import Session, in_session
from meshcomm.blocks.small import agree_on_result
from meshcomm.core._arguments import as_path, quote
from meshcomm.core._files import resolved
from meshcomm.core._json import read
from meshcomm.core._types import Bytes
from meshcomm.core._units import some_of
from meshcomm.core.arrays.create import array_text
from meshcomm.core.arrays.dtensor import DTensor
from meshcomm.core.arrays.trees import Node, leaf_nodes, tensors_in
from meshcomm.core.layouts.mesh import Mesh
from meshcomm.core.memory.copies import contiguous
from meshcomm.errors import CheckpointError
from meshcomm.storage.background import Background
from meshcomm.storage.checksums import Piece, joined
from meshcomm.storage.chunked import ChunkLocation, EncodedChunk, write_chunks
from meshcomm.storage.files import WRITTEN_AT_ONCE, final_names, with_final_names
from meshcomm.storage.formats.base import ArrayToSave, Writer
from meshcomm.storage.formats.known import writer_for
from meshcomm.storage.formats.safetensors import INDEX
from meshcomm.storage.meshes import check_limits, common_mesh
from meshcomm.storage.options import Chunks, Compression, Dims, SaveOptions
from meshcomm.storage.progress import showing
from meshcomm.storage.stored import Stored, StoredFields
from meshcomm.storage.transfer import ByteRuns, OpenFiles, gathered_pieces, write_tensor
from meshcomm.storage.trees import flattened

PathLike = str | os.PathLike[str]
_MAX_SHOWN = 5  # things that would be lost, in an error


def save(
    path: PathLike,
    tree: object,
    *,
    metadata: Mapping[str, object] | None = None,
    overwrite: bool | None = None,
    mode: str = "w",
    dims: Dims = None,
    chunks: Chunks = None,
    compression: Compression = None,
    max_scratch_bytes: int | None = None,
) -> None:
    """Save tensors to a file or a checkpoint. Collective over the meshes of the tensors.

    When it returns, the data are on the disk. An old file at *path* is replaced in one step, and is unchanged until
    then. A save is refused if it would lose data that meshcomm did not write, or arrays with other names. If one rank
    raises an error, all ranks raise it.

    Parameters
    ----------
    path: its suffix says the format: ``.npy``, ``.safetensors``, ``.safetensors.index.json``, ``.h5``, ``.hdf5``,
        ``.zarr``; any other path is a folder, a checkpoint. A relative path is relative to the working directory of
        rank 0 of the mesh
    tree: a tensor, a variable, an array of NumPy or PyTorch that is the same on all ranks, or dicts, lists, tuples
        and modules of these; keys are texts or integers. In a checkpoint also numbers, texts and None, as the first
        rank has them, and `per_rank`
    metadata: values that JSON can hold, with texts as keys. In HDF5, netCDF and zarr they become attributes, of
        numbers and texts; a dict under the name of an array becomes the attributes of that array
    overwrite: True replaces whatever is at *path*, False nothing. By default, files and checkpoints that meshcomm
        wrote with arrays of the same names are replaced, and all others are refused
    mode: ``"w"``, or ``"a"`` to keep the contents of the file, and add or replace these arrays and metadata only: in
        HDF5, netCDF, zarr, and several safetensors files with an index
    dims: names of the axes, in netCDF, HDF5 and zarr: a list of them, or a dict of lists by the name of the array
    chunks: lengths of the chunks along each axis, in HDF5, netCDF and zarr; or a dict of them by the name of the array
    compression: ``"gzip"``, ``"zstd"``, ``"blosc"`` or ``"shuffle"``, or a list of these, in which a pair such as
        ``("gzip", 6)`` has a level; or a dict of them by the name of the array. For HDF5, netCDF and zarr
    max_scratch_bytes: bytes that a rank may use beyond its blocks; by default 32 MiB

    ``OSError`` if a file cannot be written, ``FileExistsError`` if something would be lost, ``DTypeError`` if the
    format has no such dtype, ``TypeError`` if the tree holds a value that no file can hold, ``CollectiveMismatch`` if
    an array is not the same on all ranks.

    >>> import tempfile, numpy as np, meshcomm as mc
    >>> path = tempfile.mkdtemp() + "/a.npy"
    >>> def program():
    ...     rows = mc.Layout(["x"], mc.create_mesh([("x", 2)]))
    ...     mc.save(path, mc.distribute(np.arange(3), rows))
    >>> with mc.simulate(2) as world:
    ...     _ = world.run(program)
    >>> np.load(path).tolist()
    [0, 1, 2]
    """
    save_with(path, tree, SaveOptions(metadata, overwrite, mode, dims, chunks, compression), max_scratch_bytes)


def save_with(path: PathLike, tree: object, options: SaveOptions, limit: int | None = None) -> None:
    """Save *tree* with these options: `save` explains them. Collective over the meshes of the tensors.

    Parameters
    ----------
    path, tree: as for `save`
    options: options of `save`, and the names of axes that may grow
    limit: scratch limit of a rank, in bytes
    """
    run_save("save", _agreed_saving("save", path, tree, options, limit), limit)


def run_save(
    operation: str, saving: "Saving", limit: int | None, verb_and_path: tuple[str, object] | None = None
) -> None:
    """Do all of a save. Collective over its mesh. A terminal shows *verb_and_path* beside the progress."""
    verb, path = verb_and_path or ("saving", saving.path)

    def run_in_session(session: Session) -> None:
        try:
            base, stored = saving.begin(session)
            open_files = OpenFiles(base, True, saving.writer.checks)
            with showing(open_files, verb, path, saving.nbytes, session), closing(open_files):
                saving.write(stored, open_files, session, limit)
            saving.end(session, open_files)
        finally:
            saving.abandon()

    in_session(operation, saving.mesh, run_in_session)


def start_save(
    path: PathLike,
    tree: object,
    *,
    metadata: Mapping[str, object] | None = None,
    overwrite: bool | None = None,
    mode: str = "w",
    dims: Dims = None,
    chunks: Chunks = None,
    compression: Compression = None,
    max_scratch_bytes: int | None = None,
    max_staged_bytes: int | None = None,
) -> "SaveRequest":
    """Begin to save, and return a request: call its `wait`. Collective over the meshes of the tensors.

    The tensors may be changed as soon as this returns: each rank has copied the data that it writes. A thread writes
    the copies while the program goes on. The rest is as for `save`.

    Parameters
    ----------
    path, tree, metadata, overwrite, mode, dims, chunks, compression, max_scratch_bytes: as for `save`
    max_staged_bytes: bytes of copies that a rank may hold, or one element; this call waits until enough are written

    >>> import tempfile, meshcomm as mc
    >>> layout = mc.Layout(["x"], mc.create_mesh([("x", 1)]))
    >>> path = tempfile.mkdtemp() + "/a.npy"
    >>> request = mc.start_save(path, mc.ones(3, int, layout))
    >>> request.wait()
    >>> mc.load(path, layout).local
    array([1, 1, 1])
    """
    options = SaveOptions(metadata, overwrite, mode, dims, chunks, compression)
    saving = _agreed_saving("start_save", path, tree, options, max_scratch_bytes, max_staged_bytes)

    def run_in_session(session: Session) -> SaveRequest:
        try:
            base, stored = saving.begin(session)
            open_files = StagedFiles(base, True, saving.writer.checks)
            open_files.background = Background(max_staged_bytes)
            open_files.max_write = min(max_staged_bytes or open_files.max_write, WRITTEN_AT_ONCE)
            try:
                saving.write(stored, open_files, session, max_scratch_bytes)
            finally:
                open_files.background.add(open_files.close, 0)
                open_files.background.finish()
        except BaseException:
            saving.abandon()
            raise
        return SaveRequest(saving, open_files, session)

    return in_session("start_save", saving.mesh, run_in_session) or SaveRequest(None, None, None)


class SaveRequest:
    """A save that goes on in the background, as `start_save` returns it. It is complete only after `wait`."""

    __module__ = "meshcomm"

    def __init__(self, saving: "Saving | None", open_files: "StagedFiles | None", session: Session | None) -> None:
        self._saving, self._open_files, self._session = saving, open_files, session
        self._error: BaseException | None = None
        self._path = saving and saving.path
        if saving is not None:
            _unfinished[id(self)] = self

    def __repr__(self) -> str:
        path_text = "outside of its mesh" if self._path is None else repr(str(self._path))
        state = "failed" if self._error is not None else "complete" if self._saving is None else "in flight"
        return f"SaveRequest({path_text}; {state})"

    def test(self) -> bool:
        """Return whether this rank has written all its data. ``MeshError`` if its ranks make no call any more.

        >>> import tempfile, time, meshcomm as mc
        >>> t = mc.ones(3, int, mc.Layout(["x"], mc.create_mesh([("x", 1)])))
        >>> request = mc.start_save(tempfile.mkdtemp() + "/a.npy", t)
        >>> while not request.test():
        ...     time.sleep(0.001)  # compute something
        >>> request.wait()
        """
        if self._saving is not None and self._session is not None:
            self._session.check()
        return self._open_files is None or self._open_files.background.done()

    def wait(self) -> None:
        """Wait until all is on the disk, and give it its name. Collective over the meshes of the tensors.

        The next call does nothing, or raises the same error. ``OSError`` on all ranks if one could not write.

        >>> import pathlib, tempfile, meshcomm as mc
        >>> path = pathlib.Path(tempfile.mkdtemp(), "a.npy")
        >>> request = mc.start_save(path, mc.ones(3, int, mc.Layout(["x"], mc.create_mesh([("x", 1)]))))
        >>> path.exists(), request.wait(), path.exists()
        (False, None, True)
        """
        saving, open_files = self._saving, self._open_files
        if self._error is not None:
            raise self._error
        if saving is None or open_files is None:
            return
        self._saving = None
        _unfinished.pop(id(self), None)

        def run_in_session(session: Session) -> None:
            open_files.background.join()
            open_files.error = open_files.error or open_files.background.error
            open_files.close()
            saving.end(session, open_files)

        try:
            in_session("wait for a save", saving.mesh, run_in_session)
        except BaseException as error:
            self._error = error
            raise
        finally:
            saving.abandon()

    def _give_up(self) -> None:
        """Remove the files of the save: the program ends, and nobody has waited for it."""
        saving, open_files = self._saving, self._open_files
        if saving is not None and open_files is not None:
            open_files.background.join()
            saving.abandon()
            if self._session is not None and self._session.device == 0:
                sys.stderr.write(f"meshcomm: the save to {saving.path} is not complete: nobody waited for it\n")


_unfinished: dict[int, SaveRequest] = {}


@atexit.register
def _give_up_all() -> None:
    for request in list(_unfinished.values()):
        request._give_up()


class StagedFiles(OpenFiles):
    """Files that a thread writes, from copies of the data."""

    background: Background

    def transfer(self, stored: Stored, byte_runs: ByteRuns, block: Bytes) -> None:
        self.background.reserve(block.nbytes)
        copy = block.copy()
        write = super().transfer
        self.background.add(lambda: write(stored, byte_runs, copy), copy.nbytes)

    def put(self, name: str, offset: int, data: Bytes) -> None:
        self.background.reserve(data.nbytes)
        copy = data.copy()  # without codecs *data* is the block of the tensor
        write = super().put
        self.background.add(lambda: write(name, offset, copy), copy.nbytes)


def _agreed_saving(
    operation: str, path: PathLike, tree: object, options: SaveOptions, *limits: int | None
) -> "TreeSaving":
    """Return the save for the arguments of *operation*. Collective over the meshes of the tensors."""

    def make_saving() -> TreeSaving:
        check_limits(*limits)
        return TreeSaving(path, tree, options)

    mesh = common_mesh(tensor.mesh for tensor in tensors_in(tree))
    return agree_on_result(operation, mesh, f"the arguments of {operation}", make_saving)


class Content(NamedTuple):
    """What is saved: arrays, the tree that they are in, and metadata."""

    arrays: list[ArrayToSave]
    node: Node
    metadata: dict[str, object]


_save_numbers = count()
_last_complete: dict[Path, int] = {}
"""For each path, the number of the last complete save that this process began."""


class Saving(ABC):
    """A save: the steps of all its ranks together, and those of the first rank alone."""

    def __init__(self, path: PathLike, content: Content, mesh: Mesh, overwrite: bool | None, mode: str = "w") -> None:
        self.path, self.content, self.mesh = Path(path), content, mesh
        self.writer = writer_for(self.path)
        self.writer.check_names([array.name for array in content.arrays])
        self._overwrite, self._mode = overwrite, mode
        self._active: Writer | None = None
        self._number = next(_save_numbers)

    @abstractmethod
    def write(self, stored: list[Stored], open_files: OpenFiles, session: Session, limit: int | None) -> None:
        """Write each array to its location. Collective over the mesh."""

    @property
    def nbytes(self) -> int:
        """The bytes of all arrays."""
        return sum(array.nbytes * array.steps for array in self.content.arrays)

    def begin(self, session: Session) -> tuple[Path, list[Stored]]:
        """Make the new files; return their path, and the location of each array. Collective."""
        base, locations = session.broadcast_from_first(f"save to {quote(str(self.path))}: {self._text()}", self._begin)
        return Path(base), [Stored.from_json(location) for location in locations]

    @final_names()
    def _begin(self) -> tuple[str, list[StoredFields]]:
        path = Path(os.path.abspath(self.path))
        # A link is followed, unless the format has files beside it.
        path = resolved(path.parent) / path.name if self.writer.beside else resolved(path)
        if not path.parent.exists():
            raise FileNotFoundError(errno.ENOENT, "There is no folder to save in", str(path.parent))
        self._active = self.writer(path, *self.content, mode=self._mode)
        if self._mode == "w" and path.exists():
            self._refuse_to_lose(self._active)
        base, stored = self._active.begin()
        return str(base), [array.as_json() for array in stored]

    def _refuse_to_lose(self, writer: Writer) -> None:
        """Raise ``FileExistsError`` if the existing file must not be replaced."""
        path = writer.path
        if self._overwrite is False:
            raise FileExistsError(f"{path} is there, and overwrite is False")
        if self._overwrite is None:
            try:
                lost = writer.would_lose()
            except CheckpointError as error:
                raise FileExistsError(f"{error}. This save would replace it; overwrite=True does so") from None
            if lost:
                hint = "overwrite=True replaces it" + ('; mode="a" keeps it' if writer.adds else "")
                raise FileExistsError(f"{path} holds what this save would lose: {some_of(lost, _MAX_SHOWN)}. {hint}")

    def end(self, session: Session, open_files: OpenFiles) -> None:
        """Agree that all is on the disk, and give the files their name. Collective."""
        error = open_files.error and with_final_names(open_files.error)
        with session.exchanging():
            session.agree(f"all data of the save to {quote(str(self.path))}", error)
            pieces = gathered_pieces(joined(open_files.pieces), session) if self.writer.checks else []
        session.broadcast_from_first(f"the end of the save to {quote(str(self.path))}", lambda: self._commit(pieces))

    @final_names()
    def _commit(self, pieces: list[Piece]) -> None:
        assert self._active is not None
        path = self._active.path
        if _last_complete.get(path, -1) > self._number:
            raise CheckpointError(
                f"a save to {path} that began later is complete: that one stays, and this is dropped"
            )
        self._active.commit(pieces)
        _last_complete[path] = self._number
        self._active = None

    def placed(self, session: Session, name: str, chunks: list[EncodedChunk]) -> list[ChunkLocation]:
        """Return the locations of the *chunks* of this rank. Collective, in rounds of chunks of one array."""
        chunks_of_ranks = session.allgather(chunks)
        first = sum(map(len, chunks_of_ranks[: session.position]))

        def placed() -> list[ChunkLocation]:
            assert self._active is not None
            with final_names():
                return self._active.place(
                    name, [(tuple(index), nbytes) for rank_chunks in chunks_of_ranks for index, nbytes in rank_chunks]
                )

        call = f"chunks of {name} in the save to {quote(str(self.path))}"
        locations = session.broadcast_from_first(call, placed)
        return locations[first : first + len(chunks)]

    def abandon(self) -> None:
        """Remove the new files, unless they have their final name."""
        writer, self._active = self._active, None
        if writer is not None:
            writer.abandon()

    def _text(self) -> str:
        arrays = [_array_text(array) for array in self.content.arrays]
        options = f"metadata {quote(self.content.metadata)}; overwrite={self._overwrite}; mode={self._mode}"
        return f"{'; '.join(arrays)}; {options}"


class TreeSaving(Saving):
    """A save of a tree of tensors. *grows* maps the names of snapshots to the name of the axis that grows."""

    def __init__(
        self, path: PathLike, tree: object, options: SaveOptions, grows: Mapping[str, str] | None = None
    ) -> None:
        node, leaves = flattened(tree, writer_for(as_path(path, "save(path, tensors)")).separator)
        mesh = common_mesh(leaf.mesh for leaf in leaves.values() if isinstance(leaf, DTensor))
        options = options.checked(numpy=writer_for(Path(path)).has_attributes)
        options.refuse_unknown(list(leaves))
        plain_arrays = {name: leaf for name, leaf in leaves.items() if not isinstance(leaf, DTensor)}
        self._plain_texts = [f"{name} is {array_text(array)}" for name, array in plain_arrays.items()]
        self._tensors = {
            name: leaf if isinstance(leaf, DTensor) else replicated(contiguous(leaf), mesh)
            for name, leaf in leaves.items()
        }
        self._per_rank = [leaf for leaf in leaf_nodes(node) if leaf[0] == "per_rank"]
        file_metadata, arrays = metadata_and_arrays(
            self._tensors, options, writer_for(Path(path)).has_attributes, grows or {}
        )
        super().__init__(path, Content(arrays, node, file_metadata), mesh, options.overwrite, options.mode)
        self._refuse_missing(options)
        if not self.writer.any_tree and not has_arrays_only(node):
            raise TypeError(f"{path} holds arrays only; numbers, texts and None go to a checkpoint, which is a folder")

    def _refuse_missing(self, options: SaveOptions) -> None:
        """Raise ``TypeError`` if the format cannot hold what the options ask for."""
        writer, suffix = self.writer, f"a {self.path.suffix} file" if self.path.suffix else "a checkpoint"
        if options.metadata and not writer.has_metadata:
            raise TypeError(f"{suffix} has no metadata; save to another format")
        if options.mode == "a" and not writer.adds:
            raise TypeError(f"nothing can be added to {suffix}: mode='a' is for .h5, .nc, .zarr and {INDEX}")
        if options.dims is not None and not writer.has_attributes:
            raise TypeError(f"{suffix} has no names of axes: dims= is for .h5, .nc and .zarr")
        if (options.chunks is not None or options.compression is not None) and not writer.has_chunks:
            raise TypeError(f"{suffix} has no chunks and no compression: they are for .h5, .nc and .zarr")

    def _text(self) -> str:
        return "; ".join([super()._text(), *self._plain_texts, f"{len(self._per_rank)} values of each rank"])

    def write(self, stored: list[Stored], open_files: OpenFiles, session: Session, limit: int | None) -> None:
        for array in stored:
            if array.chunks is None:
                write_tensor(self._tensors[array.name], array, open_files, limit)
            else:
                placed = partial(self.placed, session, array.name)
                write_chunks(self._tensors[array.name], array, open_files, limit, placed)
        if self._per_rank:  # device 0 writes the tree, with the values of all ranks
            values_of_ranks = session.gather_to_first([read(list, node, 1)[0] for node in self._per_rank])
            for number, node in enumerate(self._per_rank if values_of_ranks else ()):
                node[1] = [values[number] for values in values_of_ranks]


def metadata_and_arrays(
    tensors: Mapping[str, DTensor], options: SaveOptions, has_attributes: bool, grows: Mapping[str, str]
) -> tuple[dict[str, object], list[ArrayToSave]]:
    """Return the metadata of the file, and descriptions of the arrays with their *options*.

    With *has_attributes*, a dict in the metadata under the name of an array has the attributes of that array. Tensors
    named in *grows* consist of snapshots along their first axis.
    """
    metadata = dict(options.metadata or {})
    arrays = []
    for name, tensor in tensors.items():
        attributes = metadata.get(name) if has_attributes else None
        if isinstance(attributes, Mapping):
            del metadata[name]
        else:
            attributes = {}
        shape = tensor.shape[1:] if name in grows else tensor.shape
        dims = options.dims_of(name, shape)
        arrays.append(
            ArrayToSave(
                name,
                shape,
                tensor.dtype,
                f"{tensor.layout.specs_text} on {tensor.mesh.dims_text}",
                dims,
                options.chunks_of(name, shape),
                options.codecs_of(name),
                attributes,
                grows.get(name),
                tuple(axis for axis in dims or () if axis in options.unlimited),
                tensor.shape[0] if name in grows else 1,
            )
        )
    return metadata, arrays


def _array_text(array: ArrayToSave) -> str:
    """Return the text of an array that ranks compare."""
    text = f"{array.name} {array.shape} {array.dtype} {array.layout}"
    keys = ("dims", "chunks", "codecs", "attributes", "unlimited")
    return text + "".join(f" {key}={quote(getattr(array, key))}" for key in keys if getattr(array, key))


def has_arrays_only(node: Node) -> bool:
    """Return whether a tree holds arrays, and no other values."""
    return all(leaf[0] == "array" for leaf in leaf_nodes(node))
