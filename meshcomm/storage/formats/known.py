"""The known formats, and the format of a path by its suffix."""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from time import monotonic, sleep

from meshcomm.core._arguments import quote
from meshcomm.core._types import Array, Shape
from meshcomm.errors import CheckpointError
from meshcomm.storage import files
from meshcomm.storage.formats import (
    folder,
    hdf5,
    hdf5_write,
    netcdf3,
    npy,
    npz,
    safetensors,
    zarr,
    zarr_library,
    zarr_read,
)
from meshcomm.storage.formats.base import FileContents, Reader, Sliced, Writer

WAIT_FOR_WRITERS = 1.0
"""Seconds for which a header is read again while another program changes the file. A save locks an HDF5 file for less
than a millisecond, as measured on one disk."""


def _hdf5_or_classic(path: Path) -> FileContents:
    """Return the contents of an HDF5 file or a classic netCDF file. ``CheckpointError`` for HDF4 and other files."""
    first_bytes = _first_bytes(path)
    if first_bytes == b"\x0e\x03\x13\x01":
        raise CheckpointError(f"{path} is an HDF4 file; it becomes HDF5 by h4toh5, a program of The HDF Group")
    return netcdf3.contents(path) if first_bytes[:3] == netcdf3.MAGIC else hdf5.contents(path)


def _first_bytes(path: Path) -> bytes:
    with files.for_reading(path) as file:
        return files.section(file, 0, min(4, file.size()))


FORMATS: dict[str, tuple[type[Writer], Reader]] = {
    ".npy": (npy.NpyWriter, npy.contents),
    ".npz": (npz.NpzWriter, npz.contents),
    ".safetensors": (safetensors.SafetensorsWriter, safetensors.contents),
    **dict.fromkeys((".h5", ".hdf5", ".he5", ".hdf"), (hdf5_write.Hdf5Writer, _hdf5_or_classic)),
    **dict.fromkeys(hdf5.NETCDF, (hdf5_write.NetcdfWriter, _hdf5_or_classic)),
    ".zarr": (zarr.ZarrWriter, zarr_read.contents),
}
"""The writer and the reader of each format, by the suffix in lower case."""
MIN_SIMILARITY = 0.81
"""Suffixes with at least this similarity to one of a format are mistakes, such as .npyy and .safetensor. The measure
is that of `difflib`: 1 means equal."""
FOREIGN_SUFFIXES = frozenset(
    (
        *("arrow", "avro", "bin", "bmp", "bp", "bz2", "cdf", "cgns", "csv", "dat", "db", "exr", "feather", "fits"),
        *("gguf", "gif", "grib", "grib2", "gz", "html", "jpeg", "jpg", "joblib", "json", "las", "log", "mat"),
        *("md", "msgpack", "n5", "obj", "onnx", "orc", "parquet", "pb", "pdf", "pickle", "pkl"),
        *("ply", "png", "pt", "pth", "py", "raw", "rds", "sqlite", "stl", "svg", "tar", "tfrecord", "tif", "tiff"),
        *("toml", "tsv", "txt", "vti", "vtk", "vtr", "vts", "vtu", "wav", "xdmf", "xls", "xlsx", "xml", "xyz", "xz"),
        *("yaml", "yml", "zip", "zst"),
    )
)
"""Suffixes of formats of other programs, which names of checkpoints must not have. Any other one is fine, as in
``run.v2``."""


def writer_for(path: Path) -> type[Writer]:
    """Return the writer for the format of *path*, by its suffix; that of checkpoints if no format has the suffix.

    ``CheckpointError`` for the suffix of another format, and for one that is similar to a known one.
    """
    if path.name.endswith(safetensors.INDEX):
        return safetensors.SafetensorsIndexWriter
    suffix = path.suffix.lower()
    if suffix in FORMATS:
        return FORMATS[suffix][0]
    from difflib import get_close_matches  # here, as its import takes long

    similar = get_close_matches(suffix, FORMATS, 1, MIN_SIMILARITY) if suffix[1:].isalnum() else []
    if suffix[1:] in FOREIGN_SUFFIXES or similar:
        hint = f"; did you mean {similar[0]}?" if similar else f": a file with {quote(path.suffix)} has another one."
        raise CheckpointError(
            f"{path} has no format that can be saved{hint} Save to {', '.join(FORMATS)}, {safetensors.INDEX}, or to "
            "a checkpoint, which is a folder without such a suffix"
        )
    return folder.FolderWriter


def contents(path: Path) -> FileContents:
    """Return the contents of *path*. ``FileNotFoundError`` if there is none, ``CheckpointError`` for other formats.

    A file that changes while it is read is read once more.
    """
    if not path.exists():
        raise FileNotFoundError(2, "No such file or checkpoint", str(path))
    if path.is_dir() or path.name.endswith(safetensors.INDEX):
        return _contents(path)
    deadline = monotonic() + WAIT_FOR_WRITERS
    while True:
        identity, error = files.identity(path), None
        try:
            file_contents = _contents(path)
        except (CheckpointError, BlockingIOError) as problem:
            error = problem
        has_changed = files.identity(path) != identity or isinstance(error, BlockingIOError)
        if error is None and not has_changed:
            return file_contents._replace(origins={"": ("", *identity)})
        if not has_changed or monotonic() > deadline:
            raise error or CheckpointError(f"{path} changes while it is read: try again")
        sleep(0.001)


def _contents(path: Path) -> FileContents:
    if path.name.endswith(safetensors.INDEX):
        return safetensors.contents(path)
    if path.suffix.lower() in FORMATS:
        return FORMATS[path.suffix.lower()][1](path)
    if path.is_dir():
        return zarr_read.contents(path) if (path / zarr.METADATA).is_file() else folder.contents(path)
    raise CheckpointError(
        f"{path} has no format that is known: {', '.join(FORMATS)}, or a checkpoint, which is a folder"
    )


def texts(path: Path, name: str, shape: Shape) -> Array:
    """Return an array of this *shape*, of texts of any length."""
    return zarr_library.texts(path, name) if path.is_dir() else hdf5.texts(path, name, shape)


@contextmanager
def open_array(path: Path, name: str, shape: Shape) -> Iterator[Sliced]:
    """Open an array of this *shape* that is not in uncompressed runs, and yield it as an array of its library."""
    if path.is_dir():
        yield zarr_library.open_array(path, name)
    elif path.suffix.lower() == ".npz":
        with closing(npz.Member(path, name)) as member:
            yield member
    elif _first_bytes(path)[:3] == netcdf3.MAGIC:
        with closing(netcdf3.Records(path, name)) as records:
            yield records
    else:
        dataset, file = hdf5.open_dataset(path, name, shape)
        with file:
            yield dataset
