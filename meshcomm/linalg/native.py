"""The MPI of this program, for libraries in C or Fortran: its file, and handles of communicators."""

import ctypes
import os
import re
from pathlib import Path
from typing import NamedTuple

from meshcomm.core.layouts.mesh import Mesh
from meshcomm.core.ranks.communicator import Communicator
from meshcomm.core.ranks.mpi import MPICommunicator, MPIWorld, mpi
from meshcomm.errors import MeshError

_BINARY_INTERFACES = {
    "mpich": r"lib(mpi|mpich|mpi_\w+|mpich_\w+)\.so\.12(\.\d+)*",
    "openmpi": r"lib(mpi|open-mpi|open-rte)\.so\.(20|40|80)(\.\d+)*",
}
"""The binary interfaces of MPI, and the names of their files."""


class MPILibrary(NamedTuple):
    """The MPI that mpi4py has loaded: its binary interface, ``mpich`` or ``openmpi``, its name, and its file."""

    interface: str
    name: str
    path: str | None


def interface_of(path: str) -> str | None:
    """Return the binary interface of a library of MPI, from the name of its file; None for other files.

    >>> interface_of("/usr/lib/libmpi.so.12.1.8"), interface_of("libmpi.so.40"), interface_of("libm.so.6")
    ('mpich', 'openmpi', None)
    """
    name = os.path.basename(path)
    return next((interface for interface, names in _BINARY_INTERFACES.items() if re.fullmatch(names, name)), None)


def mpi_library() -> MPILibrary:
    """Return the MPI that mpi4py has loaded. ``MeshError`` if it is neither of the kind of MPICH nor Open MPI."""
    MPI = mpi()
    name = " ".join(MPI.Get_library_version().strip("\0 \n").partition("\n")[0].partition(",")[0].split())
    path = next((file for file in loaded_files() if interface_of(file)), None)
    interface = interface_of(path) if path else "openmpi" if "Open MPI" in name else "mpich"
    if interface == "mpich" and MPI._sizeof(MPI.Comm) != ctypes.sizeof(ctypes.c_int):
        raise MeshError(
            f"mpi4py runs on {name} by the interface of the MPI standard, which ScaLAPACK libraries do not know yet: "
            "use mpi4py with MPICH (pip install mpich) or Open MPI"
        )
    assert interface is not None
    return MPILibrary(interface, name, path)


def loaded_files() -> list[str]:
    """Return the files of the libraries that this process has loaded; none where the system does not list them."""
    try:
        lines = Path("/proc/self/maps").read_text().splitlines()
    except OSError:
        return []
    return list(dict.fromkeys(line.split(maxsplit=5)[5] for line in lines if line.count("/")))


def check_is_mpi(name: str, mesh: Mesh) -> None:
    """Raise ``MeshError`` if *mesh* is in a simulated world. *name* is the operation."""
    if not isinstance(mesh.world, MPIWorld):
        raise MeshError(f"{name} needs MPI, which a simulated world does not have; run the program with mpiexec")


def native_handle(communicator: Communicator) -> ctypes.c_int | ctypes.c_void_p:
    """Return the handle of a communicator as C passes it. ``MeshError`` for a simulated one."""
    if not isinstance(communicator, MPICommunicator):
        raise MeshError("a simulated world has no MPI, which ScaLAPACK needs; run the program with mpiexec")
    return communicator.native_handle()


def mkl_folders() -> list[Path]:
    """Return the folders of the MKL that the environment names: those below ``MKLROOT``."""
    root = os.environ.get("MKLROOT")
    return [Path(root, "lib", "intel64"), Path(root, "lib")] if root else []
