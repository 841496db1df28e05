"""The cases of files: save or load a sharded array. The reference is one stream of equally many bytes on rank 0."""

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

import meshcomm
from meshcomm.core._files import resolved
from meshcomm.core.ranks.communicator import Communicator
from meshcomm.errors import MeshcommError
from meshcomm.tools.cli.bench.cases import Setting, block_of, count_differences, fill, indices_of
from meshcomm.tools.cli.bench.measure import Case
from meshcomm.tools.cli.turns import Run

BUFFER = 2**22
"""Bytes that the stream writes or reads at a time."""

Maker = Callable[[Setting, int], Case]
"""A function that makes a case from a setting and the bytes of a block."""


@contextmanager
def new_folder(communicator: Communicator, parent: str | None) -> Iterator[Path]:
    """Make a new folder in *parent*, by default the folder of temporary files; remove it at the end. Collective.

    ``MeshcommError`` on all ranks if it cannot be made, or if a rank does not see it.
    """
    path, problem = "", ""
    if communicator.rank == 0:
        try:
            path = tempfile.mkdtemp(prefix="meshcomm-bench-", dir=parent and resolved(parent))
        except OSError as error:
            problem = f"no folder can be made in {parent or tempfile.gettempdir()}: {error.strerror}"
    path, problem = communicator.allgather_json([path, problem])[0]
    try:
        if problem:
            raise MeshcommError(problem)
        blind_ranks = [
            rank
            for rank, sees_folder in enumerate(communicator.allgather_json(Path(path).is_dir()))
            if not sees_folder
        ]
        if blind_ranks:
            raise MeshcommError(
                f"rank {blind_ranks[0]} does not see the folder {path}: name one that all hosts share, with --folder"
            )
        yield Path(path)
    finally:
        if path and communicator.rank == 0:
            shutil.rmtree(path, ignore_errors=True)


def makers(folder: Path) -> dict[str, Maker]:
    """Return what makes the cases that save to this *folder*, and those that load from it."""
    return {
        "save": lambda setting, nbytes: _case(setting, nbytes, folder, saves=True),
        "load": lambda setting, nbytes: _case(setting, nbytes, folder, saves=False),
    }


def _case(setting: Setting, nbytes: int, folder: Path, saves: bool) -> Case:
    layout, dtype = setting.rows(), setting.dtype or np.dtype(float)
    shape = setting.shape_for(layout, nbytes, dtype)
    tensor = meshcomm.zeros(shape, dtype, layout)
    _check_space(folder, 3 * tensor.nbytes)  # the old checkpoint, the new one, and the stream
    indices = indices_of(layout, shape, setting.rank)
    fill(block_of(tensor), indices, shape, 1)
    array_path, stream_path = folder / "array", folder / "stream"

    def save() -> None:
        meshcomm.save(array_path, tensor)

    def load() -> meshcomm.DTensor:
        loaded = meshcomm.load(array_path, layout)
        assert isinstance(loaded, meshcomm.DTensor)
        return loaded

    def count_wrong() -> int:
        fill(block_of(tensor), indices, shape, 2)
        save()
        return count_differences(block_of(load()), indices, shape, 2)

    save()
    if setting.rank == 0:
        _write(stream_path, tensor.nbytes)
    reference: Run = lambda: None  # noqa: E731 - the other ranks do nothing
    if setting.rank == 0:
        reference = (lambda: _write(stream_path, tensor.nbytes)) if saves else (lambda: _read(stream_path))
    return Case(
        layout.largest_block(shape) * dtype.itemsize, tensor.nbytes, save if saves else load, reference, count_wrong
    )


def _check_space(folder: Path, needed_bytes: int) -> None:
    free_bytes = shutil.disk_usage(folder).free
    if free_bytes < needed_bytes:
        raise MeshcommError(f"{folder} has {free_bytes} bytes free, but this size needs {needed_bytes}")


def _write(path: Path, nbytes: int) -> None:
    """Write *nbytes* bytes one after the other, and wait until they are on the disk."""
    buffer = memoryview(bytes(min(BUFFER, nbytes)))
    with open(path, "wb", buffering=0) as file:
        remaining = nbytes
        while remaining:
            remaining -= file.write(buffer[:remaining])
        os.fsync(file.fileno())


def _read(path: Path) -> None:
    """Read all bytes, one after the other."""
    buffer = bytearray(BUFFER)
    with open(path, "rb", buffering=0) as file:
        while file.readinto(buffer):
            pass
