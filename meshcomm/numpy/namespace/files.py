"""NumPy's functions for files: one rank writes, and each rank reads its block of an array. Collective."""

import os
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from inspect import signature
from io import BytesIO
from math import prod
from pathlib import Path
from typing import BinaryIO, TypeAlias

import numpy as np

from meshcomm.blocks.small import broadcast_from_device
from meshcomm.core._arguments import quote
from meshcomm.core._files import resolved
from meshcomm.core._tracing import Value
from meshcomm.core._tuning import WHOLE_ARRAY
from meshcomm.core.arrays.dtensor import DTensor
from meshcomm.core.ranks.meshes import mesh_of_program
from meshcomm.numpy.namespace.making import create_by_blocks, from_equal
from meshcomm.numpy.namespace.rule import WHOLE_BELOW

File: TypeAlias = str | os.PathLike[str] | BinaryIO


def _whole_array(x: object) -> object:
    """Return a tensor as a NumPy array on rank 0 of its mesh, None on other ranks; anything else unchanged."""
    return x.to_numpy(root=0) if isinstance(x, DTensor) else x


def _write_once(
    name: str, file: File, arrays: list[object], write: Callable[[Value, list[Value]], object], suffix: str = ""
) -> None:
    """Write arrays to a path on one rank, or to a file object on each rank. All ranks raise an error of the writer.

    *write* takes the file and the arrays. *suffix* is added to file names without it, as NumPy does.
    """
    if not isinstance(file, str | os.PathLike):
        write(file, [x.to_numpy() if isinstance(x, DTensor) else x for x in arrays])
        return
    whole_arrays, path = [_whole_array(x) for x in arrays], os.fspath(file)
    path = path if path.endswith(suffix) else path + suffix
    content = BytesIO()
    may_hold_tensors = not all(isinstance(x, DTensor | np.ndarray) and x.dtype.kind != "O" for x in arrays)
    if may_hold_tensors:  # all ranks pickle them
        write(content, whole_arrays)

    def write_path() -> None:
        resolved_path = resolved(path)  # no link of another user leads elsewhere
        if may_hold_tensors:
            np.frombuffer(content.getvalue(), np.uint8).tofile(resolved_path)
        else:
            write(path, whole_arrays)

    broadcast_from_device(f"numpy.{name}", mesh_of_program(), f"numpy.{name} to {path!r}", write_path)


def save(file: File, arr: object, **options: Value) -> None:
    """Write an array to a ``.npy`` file: a large tensor in parallel. Collective."""
    is_large = isinstance(arr, DTensor) and not arr.layout.is_fully_replicated()
    if is_large and isinstance(file, str | os.PathLike):
        path = os.fspath(file)
        import_module("meshcomm.storage.save").save(
            path if path.endswith(".npy") else f"{path}.npy", arr, overwrite=True
        )
        return
    _write_once("save", file, [arr], lambda target, arrays: np.save(target, arrays[0], **options), ".npy")


def _savez_function(name: str) -> Callable[..., None]:
    def savez(file: File, *args: object, **kwds: object) -> None:
        def write(target: object, arrays: list[object]) -> None:
            positional, keywords = arrays[: len(args)], dict(zip(kwds, arrays[len(args) :], strict=True))
            getattr(np, name)(target, *positional, **keywords)

        _write_once(name, file, [*args, *kwds.values()], write, ".npz")

    savez.__name__ = name
    savez.__doc__ = "Write arrays to a ``.npz`` file. Collective: rank 0 has all of them in its memory."
    return savez


savez, savez_compressed = _savez_function("savez"), _savez_function("savez_compressed")


def savetxt(fname: File, X: object, *args: Value, **kwargs: Value) -> None:  # noqa: N803 - NumPy's name
    """Write an array to a text file. Collective: rank 0 has all of it in its memory."""
    _write_once("savetxt", fname, [X], lambda target, arrays: np.savetxt(target, arrays[0], *args, **kwargs))


def load(file: File, mmap_mode: str | None = None, **options: Value) -> Value:
    """Return the array of a ``.npy`` file as a tensor, or the arrays of a ``.npz`` file. Each rank reads its block."""
    if mmap_mode in ("r+", "w+"):
        raise TypeError(f"numpy.load: mmap_mode={mmap_mode!r} writes to the file: mc.save(path, t) does, in parallel")
    path = Path(file) if isinstance(file, str | os.PathLike) else None
    is_large = path is not None and path.suffix == ".npy" and path.stat().st_size > WHOLE_BELOW
    try:
        content = np.load(file, "r" if is_large else None, **options)
    except ValueError:
        if not is_large:
            raise
        content = np.load(file, None, **options)  # an array of objects cannot be mapped
    if isinstance(content, np.memmap):
        return create_by_blocks(content.shape, content.dtype, None, lambda index: np.array(content[index], order="C"))
    if isinstance(content, np.ndarray):
        return from_equal(content)
    return ZippedArrays(content) if isinstance(content, np.lib.npyio.NpzFile) else content


class ZippedArrays(Mapping[str, object]):
    """The arrays of a ``.npz`` file as tensors; each is read on access."""

    def __init__(self, file: np.lib.npyio.NpzFile) -> None:
        self._file, self.files, self.close = file, file.files, file.close

    def __getitem__(self, key: str) -> Value:
        member = self._file[key]
        return from_equal(member) if isinstance(member, np.ndarray) else member

    def __iter__(self) -> Iterator[str]:
        return iter(self.files)

    def __len__(self) -> int:
        return len(self.files)

    def __enter__(self) -> "ZippedArrays":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return repr(self._file)


def _check_mapped(filename: object, nbytes: int) -> None:
    """Raise ``TypeError`` for a file that is too large to be whole on each rank."""
    if nbytes > WHOLE_ARRAY:
        raise TypeError(
            f"numpy.memmap of {quote(filename)}: each rank has all of it, and it has {nbytes:,} bytes of at most "
            f"{WHOLE_ARRAY:,}: mc.open(path) reads and writes slices of an array in a file, and mc.load(path) all of "
            "it, each rank its own block"
        )


class _MemmapType(type):
    """The metaclass of `memmap`: implements ``memmap(...)`` and ``isinstance(x, memmap)``."""

    def __call__(cls, *args: object, **kwargs: object) -> Value:
        """Map a file of up to 64 MiB on each rank. Collective if *mode* creates the file: rank 0 does."""
        memmap_class = np.memmap
        bound = signature(memmap_class.__new__).bind(memmap_class, *args, **kwargs)
        bound.apply_defaults()
        arguments = bound.arguments
        if arguments["mode"] in ("w+", "write") and isinstance(arguments["filename"], str | os.PathLike):
            arguments["filename"] = path = resolved(os.fspath(arguments["filename"]))
            shape = np.atleast_1d(arguments["shape"] or 0)
            _check_mapped(path, np.dtype(arguments["dtype"]).itemsize * prod(shape.tolist()))

            def create_file() -> None:
                memmap_class.__new__(*bound.args).flush()

            broadcast_from_device("numpy.memmap", mesh_of_program(), f"numpy.memmap of {path!r}", create_file)
            arguments["mode"] = "r+"
        array = memmap_class.__new__(*bound.args)
        _check_mapped(arguments["filename"], array.nbytes)
        return array

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, np.memmap)


class memmap(metaclass=_MemmapType):  # noqa: N801 - NumPy's name
    """A file in memory, whole on each rank: see `numpy.memmap`."""


OWN_FUNCTIONS = {member.__name__: member for member in (save, savez, savez_compressed, savetxt, load, memmap)}
