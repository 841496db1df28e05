"""The ScaLAPACK of this process: search, loading, and calls of its routines."""

import ctypes
import os
from collections.abc import Callable, Iterator
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import NamedTuple, TypeAlias

import numpy as np

from meshcomm.core._types import Array
from meshcomm.linalg.native import MPILibrary, interface_of, loaded_files, mkl_folders, mpi_library

Argument: TypeAlias = bytes | int | Array | tuple[int, ...] | ctypes.c_int
"""An argument of a routine: a letter, a number, a block, a descriptor, or a number that the routine writes."""

_LAZY_GLOBAL = 0x1 | 0x100  # RTLD_LAZY | RTLD_GLOBAL of Linux
_MKL_SCALAPACK = "libmkl_scalapack_lp64"
_BLACS_OF_MKL = {"mpich": "libmkl_blacs_intelmpi_lp64", "openmpi": "libmkl_blacs_openmpi_lp64"}
_DEBIAN_LIBRARIES = {
    "mpich": ("libscalapack-mpich.so.2.2", "libscalapack-mpich.so.2.1"),
    "openmpi": ("libscalapack-openmpi.so.2.2", "libscalapack-openmpi.so.2.1"),
}
"""File names of the libraries in Debian's packages; each is built for one MPI."""
_NAMES_WITHOUT_MPI = ("libscalapack.so", "libscalapack.so.2.2")
"""File names in modules of clusters; each is built for the MPI of its module."""


class ScalapackLibrary(NamedTuple):
    """A loaded ScaLAPACK: its file or name, and the libraries with its routines and with those of BLACS."""

    source: str
    scalapack: ctypes.CDLL
    blacs: ctypes.CDLL

    def call(self, name: str, *arguments: Argument) -> None:
        """Call a routine of Fortran. Routines of ScaLAPACK are Collective over a grid."""
        letters = [argument for argument in arguments if isinstance(argument, bytes)]
        lengths = [ctypes.c_size_t(len(letter)) for letter in letters]  # Fortran expects them after all arguments
        self.scalapack[f"{name}_"](*map(_by_reference, arguments), *lengths)


def _by_reference(argument: Argument) -> object:
    """Return *argument* as ctypes passes it to Fortran."""
    if isinstance(argument, bytes):
        return ctypes.c_char_p(argument)
    if isinstance(argument, tuple):
        return (ctypes.c_int * len(argument))(*argument)
    if isinstance(argument, np.ndarray):
        return ctypes.c_void_p(argument.ctypes.data)
    return ctypes.byref(argument if isinstance(argument, ctypes.c_int) else ctypes.c_int(argument))


class _ScalapackChoice:
    """The library that this process has chosen by `use`, and the one it has loaded."""

    chosen: str | None = None
    loaded: ScalapackLibrary | None = None


def use(path_or_name: str | os.PathLike[str]) -> None:
    """Choose the ScaLAPACK to load: a file, a name for the dynamic linker, or a folder with the libraries of MKL.

    Call it on every rank before the first operation. ``ImportError`` if one is loaded already.

    >>> import meshcomm.linalg.scalapack as scalapack
    >>> scalapack.use("/opt/scalapack/lib/libscalapack.so")  # doctest: +SKIP
    """
    if _ScalapackChoice.loaded is not None:
        raise ImportError(
            f"{_ScalapackChoice.loaded.source} is loaded already; use() comes before the first operation"
        )
    _ScalapackChoice.chosen = os.fspath(path_or_name)


def library() -> ScalapackLibrary:
    """Return the ScaLAPACK of this process, which the first call loads.

    ``ImportError`` if there is none that runs on the MPI of mpi4py, ``MeshError`` if there is no MPI.
    """
    if _ScalapackChoice.loaded is None:
        _ScalapackChoice.loaded = load_for(mpi_library(), _ScalapackChoice.chosen)
    return _ScalapackChoice.loaded


def load_for(mpi: MPILibrary, requested: str | None) -> ScalapackLibrary:
    """Load into this process the library *requested* by `use`, or else the first one that works.

    ``ImportError`` that says what to install if none runs on *mpi*.
    """
    if mpi.path is not None:
        ctypes.CDLL(mpi.path, mode=ctypes.RTLD_GLOBAL)  # BLACS takes its functions from loaded libraries
    failures = []
    for source, load in candidates(mpi, requested):
        try:
            loaded = load()
            check_same_mpi(source, mpi)
        except (OSError, AttributeError) as error:
            failures.append(str(error) if source in str(error) else f"{source}: {error}")
        else:
            return loaded
    raise ImportError(missing_text(mpi, requested, failures))


def missing_text(mpi: MPILibrary, requested: str | None, failures: list[str]) -> str:
    """Return the error message: what to install, and the *failures*."""
    attempts = "; ".join(failures)
    if requested is not None:
        return f"the ScaLAPACK that use({requested!r}) names cannot be used on {mpi.name}: {attempts}"
    return (
        f"no ScaLAPACK was found for {mpi.name}. On a PC with Linux: "
        f"pip install mkl, or apt install libscalapack-{mpi.interface}2.2. On a cluster: load its "
        f"module of ScaLAPACK or MKL, or name the file with meshcomm.linalg.scalapack.use(path). Tried: {attempts}"
    )


def candidates(mpi: MPILibrary, requested: str | None) -> Iterator[tuple[str, Callable[[], ScalapackLibrary]]]:
    """Yield the name of each library that may be loaded, and a function that loads it."""
    if requested is not None:
        folder = Path(requested) if Path(requested).is_dir() else Path(requested).parent
        is_mkl = Path(requested).is_dir() or Path(requested).name.startswith(_MKL_SCALAPACK)
        yield requested, partial(_load_mkl, folder, mpi) if is_mkl else partial(_load, requested)
        return
    for folder in [*mkl_wheel_folders(), *mkl_folders()]:
        yield f"MKL in {folder}", partial(_load_mkl, folder, mpi)
    for name in (*_DEBIAN_LIBRARIES[mpi.interface], *_NAMES_WITHOUT_MPI):
        yield name, partial(_load, name)


def mkl_wheel_folders() -> list[Path]:
    """Return the folder of the libraries in PyPI's package mkl, if it is installed."""
    try:
        files = metadata.files("mkl") or []
    except metadata.PackageNotFoundError:
        return []
    return [Path(str(file.locate())).resolve().parent for file in files if file.name.startswith(_MKL_SCALAPACK)][:1]


def _load(name: str) -> ScalapackLibrary:
    """Load a library that includes BLACS, as ScaLAPACK's own build does."""
    loaded = ctypes.CDLL(name, mode=ctypes.RTLD_GLOBAL)
    _ = loaded.Csys2blacs_handle, loaded.pdgemr2d_
    return ScalapackLibrary(name, loaded, loaded)


def _load_mkl(folder: Path, mpi: MPILibrary) -> ScalapackLibrary:
    """Load the libraries of MKL. The first three need functions of later ones, too, so they are opened lazily."""
    for name in ("libmkl_core", "libmkl_sequential", "libmkl_intel_lp64"):
        _open_lazily(_file_of(folder, name))
    blacs = ctypes.CDLL(str(_file_of(folder, _BLACS_OF_MKL[mpi.interface])), mode=ctypes.RTLD_GLOBAL)
    path = _file_of(folder, _MKL_SCALAPACK)
    return ScalapackLibrary(str(path), ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL), blacs)


def _open_lazily(path: Path) -> None:
    """Load a library whose functions are looked up when they are called: ctypes would look them all up at once."""
    dynamic_linker = ctypes.CDLL(None)
    dlopen, dlerror = dynamic_linker.dlopen, dynamic_linker.dlerror
    dlopen.restype, dlopen.argtypes = ctypes.c_void_p, (ctypes.c_char_p, ctypes.c_int)
    dlerror.restype = ctypes.c_char_p
    if not dlopen(os.fsencode(path), _LAZY_GLOBAL):
        raise OSError((dlerror() or b"it cannot be loaded").decode(errors="replace"))


def _file_of(folder: Path, name: str) -> Path:
    """Return the newest file of a library in a folder; ``OSError`` if there is none."""
    files = sorted(folder.glob(f"{name}.so*"))
    if not files:
        raise OSError(f"{folder} has no {name}.so")
    return files[-1]


def check_same_mpi(source: str, mpi: MPILibrary) -> None:
    """Raise ``OSError`` if a library has brought in another MPI than that of mpi4py."""
    other_files = [file for file in loaded_files() if interface_of(file) not in (None, mpi.interface)]
    if other_files:
        raise OSError(f"{source} is built for another MPI, {other_files[0]}, than the one of mpi4py, {mpi.name}")
