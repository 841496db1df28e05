"""convert: arrays from a file of one format to a file of another, a box at a time."""

import json
from collections.abc import Mapping
from contextlib import closing
from functools import partial
from pathlib import Path

from meshcomm.blocks.session import Session, in_session
from meshcomm.core._arguments import quote
from meshcomm.core._tuning import DEFAULT_SCRATCH
from meshcomm.core.layouts.layout import Layout
from meshcomm.core.layouts.mesh import Mesh
from meshcomm.storage.chunked import write_chunks
from meshcomm.storage.formats.base import ArrayToSave, FileContents, Writer
from meshcomm.storage.formats.known import writer_for
from meshcomm.storage.kept import SharedContents, check_unchanged, shared_contents
from meshcomm.storage.meshes import rows_of
from meshcomm.storage.reading import ArraysReader
from meshcomm.storage.request import ArrayRequest, PathLike
from meshcomm.storage.save import Content, Saving, has_arrays_only, run_save
from meshcomm.storage.selection import box_of, boxes
from meshcomm.storage.stored import Stored
from meshcomm.storage.transfer import OpenFiles, write_tensor
from meshcomm.storage.values import as_json
from meshcomm.storage.verify import compare_checksums


def convert(
    source: PathLike, target: PathLike, mesh: Mesh, *, overwrite: bool = False, limit: int | None = None
) -> str:
    """Write the arrays of *source* to *target*, in its format; return what was left out. Collective over the mesh.

    A rank holds a box of at most *limit* bytes at a time. The checksums of a checkpoint are compared, and a target
    that is not complete never gets its name.

    Parameters
    ----------
    source, target: paths, as for `load` and `save`
    mesh: mesh of the ranks that read and write
    overwrite: whether an existing *target* is replaced
    limit: scratch limit of a rank, in bytes; by default 32 MiB
    """

    call = f"convert {quote(str(source))} to {quote(str(target))}"
    shared = in_session("convert", mesh, lambda session: shared_contents(Path(source), call, session))
    if shared is None:  # a rank outside of the mesh
        return ""
    saving = _Conversion(shared, Path(target), mesh, overwrite)
    run_save("convert", saving, limit, ("converting", source))
    return saving.left_out


class _Conversion(Saving):
    """A save of the arrays of another file."""

    def __init__(self, shared: SharedContents, target: Path, mesh: Mesh, overwrite: bool) -> None:
        content, self.left_out = _content(shared.contents, target)
        super().__init__(target, content, mesh, overwrite)
        self._base, self._contents, _ = shared

    def write(self, stored: list[Stored], open_files: OpenFiles, session: Session, limit: int | None) -> None:
        contents = self._contents
        source_files = OpenFiles(self._base, False, contents.checks is not None)
        with closing(source_files):
            for array in stored:
                self._copy(array, source_files, open_files, session, limit)
        open_files.error = open_files.error or source_files.error
        if contents.checks is not None:
            session.agree(f"all arrays of {quote(str(self._base))}", open_files.error)
            compare_checksums(self._base, contents, source_files, session)

    def _copy(
        self, target: Stored, source_files: OpenFiles, target_files: OpenFiles, session: Session, limit: int | None
    ) -> None:
        """Copy one array. Collective over the mesh."""
        source, chunks, mesh = self._contents.arrays[target.name], target.chunks, self.mesh
        max_bytes = (limit or DEFAULT_SCRATCH) * mesh.size
        for start, box in boxes(target.shape, source.dtype.itemsize, max_bytes, chunks and chunks.shape):
            selection = box_of(target.shape, start, box)
            axis = next((axis for axis, n in enumerate(box) if n > 1), -1)
            layout = Layout([rows_of(mesh) if k == axis else () for k in range(len(box))], mesh)
            request = ArrayRequest(source, selection, layout, source.dtype)
            tensor = request.target()
            self._check(source.name, source_files)
            ArraysReader([request], limit).fill([tensor], source_files, session)
            self._check(source.name, source_files)
            target_files.error = target_files.error or source_files.error
            if chunks is None:
                write_tensor(tensor, target, target_files, limit, selection)
            else:
                first = tuple(s // n for s, n in zip(start, chunks.shape, strict=True))
                placed = partial(self.placed, session, target.name)
                write_chunks(tensor, target, target_files, limit, placed, first=first)

    def _check(self, name: str, source_files: OpenFiles) -> None:
        with source_files.trying():
            check_unchanged(self._base, self._contents, [name])


def _content(contents: FileContents, target: Path) -> tuple[Content, str]:
    """Return the content that goes to *target*, and a text for people that lists what is left out."""
    writer = writer_for(target)
    arrays = [_array_to_save(contents, array, writer) for array in contents.arrays.values()]
    node, left_out = contents.node, list(map(quote, contents.left_out))
    if node is None or not (writer.any_tree or has_arrays_only(node)):
        if node is not None:
            left_out.append("the numbers and texts of the tree")
        names = list(contents.arrays)
        node = ["array", "array"] if names == ["array"] else ["dict", {name: ["array", name] for name in names}]
    if contents.metadata and not writer.has_metadata:
        left_out.append("the metadata")
    if contents.attributes and not writer.has_attributes:
        left_out.append("the attributes of arrays")
    return Content(arrays, node, _supported_metadata(contents.metadata, writer)), " and ".join(left_out)


def _array_to_save(contents: FileContents, stored: Stored, writer: type[Writer]) -> ArrayToSave:
    """Return the description of an array, with the attributes and dims that *writer* supports."""
    name = stored.name
    array = ArrayToSave(name, stored.array_shape, stored.dtype, contents.hints.get(name, ""))
    if not writer.has_attributes:
        return array
    attributes = _supported_metadata(contents.attributes.get(name, {}), writer)
    dims = contents.dims.get(name, ())
    unlimited = tuple(dim for dim in dims if dim in contents.unlimited)
    complete_dims = dims if all(dims) else ()
    return array._replace(dims=complete_dims or None, attributes=attributes, unlimited=unlimited)


def _supported_metadata(metadata: Mapping[str, object], writer: type[Writer]) -> dict[str, object]:
    """Return *metadata* with values that *writer* supports: others become values of JSON, or a text of JSON."""

    def supported_value(value: object) -> object:
        if writer.holds(value):
            return value
        return json.dumps(as_json(value)) if writer.metadata_types else as_json(value)

    return {key: supported_value(value) for key, value in metadata.items()}
