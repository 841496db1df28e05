"""Files: a sharded array is saved and loaded, beside one stream of as many bytes that rank 0 writes or reads."""

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


@contextmanager
def new_folder(communicator: Communicator, parent: str | None) -> Iterator[Path]:
    """Make a new folder in *parent*, by default that of temporary files, and remove it at the end. Collective.

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
        blind = [rank for rank, sees in enumerate(communicator.allgather_json(Path(path).is_dir())) if not sees]
        if blind:
            raise MeshcommError(
                f"rank {blind[0]} does not see the folder {path}: name one that all hosts share, with --folder"
            )
        yield Path(path)
    finally:
        if path and communicator.rank == 0:
            shutil.rmtree(path, ignore_errors=True)


def makers(folder: Path) -> dict[str, Maker]:
    """Return the operations that save to this *folder* and load from it."""
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
    path, stream = folder / "array", folder / "stream"

    def save() -> None:
        meshcomm.save(path, tensor)

    def load() -> meshcomm.DTensor:
        loaded = meshcomm.load(path, layout)
        assert isinstance(loaded, meshcomm.DTensor)
        return loaded

    def count_wrong() -> int:
        fill(block_of(tensor), indices, shape, 2)
        save()
        return count_differences(block_of(load()), indices, shape, 2)

    save()
    if setting.rank == 0:
        _write(stream, tensor.nbytes)
    reference: Run = lambda: None  # noqa: E731 - the other ranks do nothing
    if setting.rank == 0:
        reference = (lambda: _write(stream, tensor.nbytes)) if saves else (lambda: _read(stream))
    return Case(
        layout.largest_block(shape) * dtype.itemsize, tensor.nbytes, save if saves else load, reference, count_wrong
    )


def _check_space(folder: Path, needed: int) -> None:
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise MeshcommError(f"{folder} has {free} bytes free, but this size needs {needed}")


def _write(path: Path, nbytes: int) -> None:
    """Write so many bytes one after the other, until they are on the disk."""
    buffer = memoryview(bytes(min(BUFFER, nbytes)))
    with open(path, "wb", buffering=0) as file:
        left = nbytes
        while left:
            left -= file.write(buffer[:left])
        os.fsync(file.fileno())


def _read(path: Path) -> None:
    """Read all bytes, one after the other."""
    buffer = bytearray(BUFFER)
    with open(path, "rb", buffering=0) as file:
        while file.readinto(buffer):
            pass
