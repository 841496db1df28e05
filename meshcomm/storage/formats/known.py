"""Which format a path has, by its suffix."""

import re
from pathlib import Path

from meshcomm.errors import CheckpointError
from meshcomm.storage.formats import folder, hdf5, npy, safetensors, zarr
from meshcomm.storage.formats.base import Contents, Reader, Writer

FORMATS: dict[str, tuple[type[Writer], Reader]] = {
    ".npy": (npy.NpyWriter, npy.contents),
    ".safetensors": (safetensors.SafetensorsWriter, safetensors.contents),
    ".h5": (hdf5.Hdf5Writer, hdf5.contents),
    ".hdf5": (hdf5.Hdf5Writer, hdf5.contents),
    ".zarr": (zarr.ZarrWriter, zarr.contents),
}
FOLDER = (folder.FolderWriter, folder.contents)
OTHERS = re.compile(
    r"\.(bin|bp|csv|gguf|gz|hdf|json|mat|n5|nc|nc4|npz|onnx|parquet|pickle|pkl|pt|pth|tar|tif|tiff|txt|zip)"
)
"""Suffixes of formats of others, which are no names for checkpoints."""


def writer_for(path: Path) -> type[Writer]:
    """Return what makes files of the format of *path*: a checkpoint if it has no suffix that is known.

    ``CheckpointError`` for the suffix of another format.
    """
    if path.name.endswith(safetensors.INDEX):
        return safetensors.SafetensorsIndexWriter
    if OTHERS.fullmatch(path.suffix.lower()) or (path.suffix not in FORMATS and path.suffix.lower() in FORMATS):
        raise CheckpointError(
            f"{path} has no format that can be saved: {', '.join(FORMATS)}, {safetensors.INDEX}, or a checkpoint, "
            "which is a folder without such a suffix"
        )
    return FORMATS.get(path.suffix, FOLDER)[0]


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
