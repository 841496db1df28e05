"""Which format a path has, by its suffix."""

from pathlib import Path

from meshcomm._arguments import quote
from meshcomm.errors import CheckpointError
from meshcomm.storage.formats import folder, hdf5, hdf5_write, npy, safetensors, zarr
from meshcomm.storage.formats.base import Contents, Reader, Writer

FORMATS: dict[str, tuple[type[Writer], Reader]] = {
    ".npy": (npy.NpyWriter, npy.contents),
    ".safetensors": (safetensors.SafetensorsWriter, safetensors.contents),
    ".h5": (hdf5_write.Hdf5Writer, hdf5.contents),
    ".hdf5": (hdf5_write.Hdf5Writer, hdf5.contents),
    ".nc": (hdf5_write.NetcdfWriter, hdf5.contents),
    ".zarr": (zarr.ZarrWriter, zarr.contents),
}
ALMOST = 0.81
"""A suffix that is so similar to one of a format is a mistake: .npyy and .safetensor. 1 is equal, by `difflib`."""
FOLDER = (folder.FolderWriter, folder.contents)
OTHERS = frozenset(
    (
        *("arrow", "avro", "bin", "bmp", "bp", "bz2", "cdf", "cgns", "csv", "dat", "db", "exr", "feather", "fits"),
        *("gguf", "gif", "grib", "grib2", "gz", "hdf", "html", "jpeg", "jpg", "joblib", "json", "las", "log", "mat"),
        *("md", "msgpack", "n5", "nc4", "npz", "obj", "onnx", "orc", "parquet", "pb", "pdf", "pickle", "pkl"),
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
    if path.suffix in FORMATS:
        return FORMATS[path.suffix][0]
    from difflib import get_close_matches  # here, as its import takes long

    suffix = path.suffix.lower()
    close = get_close_matches(suffix, FORMATS, 1, ALMOST) if suffix[1:].isalnum() else []
    if suffix[1:] in OTHERS or close:
        meant = f"; did you mean {close[0]}?" if close else f": {quote(path.suffix)} is a suffix of another one."
        raise CheckpointError(
            f"{path} has no format that can be saved{meant} Save to {', '.join(FORMATS)}, {safetensors.INDEX}, or to "
            "a checkpoint, which is a folder without such a suffix"
        )
    return FOLDER[0]


def contents(path: Path) -> Contents:
    """Return what *path* holds. ``FileNotFoundError`` if nothing is there, ``CheckpointError`` for another format."""
    if not path.exists():
        raise FileNotFoundError(2, "No such file or checkpoint", str(path))
    if path.name.endswith(safetensors.INDEX):
        return safetensors.contents(path)
    if path.suffix in FORMATS:
        return FORMATS[path.suffix][1](path)
    if path.is_dir():
        return zarr.contents(path) if (path / zarr.METADATA).is_file() else folder.contents(path)
    raise CheckpointError(
        f"{path} has no format that is known: {', '.join(FORMATS)}, or a checkpoint, which is a folder"
    )
