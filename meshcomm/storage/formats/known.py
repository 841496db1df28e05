"""Which format a path has, by its suffix."""

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
"""Seconds. So long a header is read again and again while another program changes the file. A save holds an HDF5 file
for less than a millisecond, as measured on one disk."""


def _hdf5_or_classic(path: Path) -> FileContents:
    """Return what an HDF5 file or a classic netCDF file holds. ``CheckpointError`` for HDF4, and for another file."""
    begins = _begins(path)
    if begins == b"\x0e\x03\x13\x01":
        raise CheckpointError(f"{path} is an HDF4 file; it becomes HDF5 by h4toh5, a program of The HDF Group")
    return netcdf3.contents(path) if begins[:3] == netcdf3.MAGIC else hdf5.contents(path)


def _begins(path: Path) -> bytes:
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
"""What writes and reads each format, by the suffix in small letters."""
ALMOST = 0.81
"""A suffix that is so similar to one of a format is a mistake: .npyy and .safetensor. 1 is equal, by `difflib`."""
OTHERS = frozenset(
    (
        *("arrow", "avro", "bin", "bmp", "bp", "bz2", "cdf", "cgns", "csv", "dat", "db", "exr", "feather", "fits"),
        *("gguf", "gif", "grib", "grib2", "gz", "html", "jpeg", "jpg", "joblib", "json", "las", "log", "mat"),
        *("md", "msgpack", "n5", "obj", "onnx", "orc", "parquet", "pb", "pdf", "pickle", "pkl"),
        *("ply", "png", "pt", "pth", "py", "raw", "rds", "sqlite", "stl", "svg", "tar", "tfrecord", "tif", "tiff"),
        *("toml", "tsv", "txt", "vti", "vtk", "vtr", "vts", "vtu", "wav", "xdmf", "xls", "xlsx", "xml", "xyz", "xz"),
        *("yaml", "yml", "zip", "zst"),
    )
)
"""Suffixes of formats of others, which are no names for checkpoints. Others, as in ``run.v2``, may be."""


def writer_for(path: Path) -> type[Writer]:
    """Return what makes files of the format of *path*: a checkpoint if its suffix is none of a format.

    ``CheckpointError`` for the suffix of another format, and for one that is almost known.
    """
    if path.name.endswith(safetensors.INDEX):
        return safetensors.SafetensorsIndexWriter
    suffix = path.suffix.lower()
    if suffix in FORMATS:
        return FORMATS[suffix][0]
    from difflib import get_close_matches  # here, as its import takes long

    close = get_close_matches(suffix, FORMATS, 1, ALMOST) if suffix[1:].isalnum() else []
    if suffix[1:] in OTHERS or close:
        meant = f"; did you mean {close[0]}?" if close else f": a file with {quote(path.suffix)} has another one."
        raise CheckpointError(
            f"{path} has no format that can be saved{meant} Save to {', '.join(FORMATS)}, {safetensors.INDEX}, or to "
            "a checkpoint, which is a folder without such a suffix"
        )
    return folder.FolderWriter


def contents(path: Path) -> FileContents:
    """Return what *path* holds. ``FileNotFoundError`` if nothing is there, ``CheckpointError`` for another format.

    What changes while it is read is read once more.
    """
    if not path.exists():
        raise FileNotFoundError(2, "No such file or checkpoint", str(path))
    if path.is_dir() or path.name.endswith(safetensors.INDEX):
        return _contents(path)
    end = monotonic() + WAIT_FOR_WRITERS
    while True:
        identity, error = files.identity(path), None
        try:
            file_contents = _contents(path)
        except (CheckpointError, BlockingIOError) as problem:
            error = problem
        changed = files.identity(path) != identity or isinstance(error, BlockingIOError)
        if error is None and not changed:
            return file_contents._replace(origins={"": ("", *identity)})
        if not changed or monotonic() > end:
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
    """Have an array of this *shape* that is not in plain runs, as its library has it, while its file is open."""
    if path.is_dir():
        yield zarr_library.open_array(path, name)
    elif path.suffix.lower() == ".npz":
        with closing(npz.Member(path, name)) as member:
            yield member
    elif _begins(path)[:3] == netcdf3.MAGIC:
        with closing(netcdf3.Records(path, name)) as records:
            yield records
    else:
        dataset, file = hdf5.open_dataset(path, name, shape)
        with file:
            yield dataset
