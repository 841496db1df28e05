"""MKL's cluster FFT as a peer of `fft.py`: PyPI's package mkl on the MPI of mpi4py.

Transforms are in place and leave the spectrum transposed (DFTI_TRANSPOSE).
"""

import ctypes
from ctypes import byref, c_double, c_int, c_long, c_void_p
from math import prod
from pathlib import Path

from fft_slabs import Slabs
from fft_turns import CALLS, Case, Peer
from rounds import asleep, serve

# Of mkl_dfti.h and mkl_cdft.h.
BACKWARD_SCALE, TRANSPOSE = c_int(5), c_int(19)
COMPLEX, REAL, SINGLE, DOUBLE, ALLOW = map(c_int, (32, 33, 35, 36, 51))
LOCAL_SIZE, LOCAL_X_START, LOCAL_NX, LOCAL_OUT_X_START, LOCAL_OUT_NX = map(c_int, (1000, 1001, 1002, 1005, 1006))


class MklTransform(Slabs):
    """A descriptor, and its buffer."""

    def __init__(self, peer: "Mkl", case: Case) -> None:
        self.peer, self.handle, n = peer, c_void_p(), len(case.shape)
        lengths = (c_long * n)(*case.shape)
        kind = SINGLE if case.single else DOUBLE, REAL if case.real else COMPLEX
        self.call("mkl_cdft_DftiCreateDescriptorDM", peer.comm, byref(self.handle), *kind, c_long(n), lengths)
        self.set(TRANSPOSE, ALLOW)
        self.set(BACKWARD_SCALE, c_double(1 / prod(case.shape)))  # C passes numbers of single precision so, too
        self.call("mkl_cdft_DftiCommitDescriptorDM", self.handle)
        size, first, rows, second, columns = map(
            self.get, (LOCAL_SIZE, LOCAL_X_START, LOCAL_NX, LOCAL_OUT_X_START, LOCAL_OUT_NX)
        )
        super().__init__(case, size, range(first, first + rows), range(second, second + columns), (*range(1, n), 0))
        self.address = c_void_p(self.buffer.ctypes.data)

    def call(self, name: str, *arguments: object) -> None:
        """Call a function of MKL."""
        status = self.peer.library[name](*arguments)
        if status:
            raise RuntimeError(f"{name} returned {status}")

    def set(self, key: c_int, value: object) -> None:
        self.call("DftiSetValueDM", self.handle, key, value)

    def get(self, key: c_int) -> int:
        value = c_long()
        self.call("mkl_cdft_DftiGetValueDM", self.handle, key, byref(value))
        return value.value

    def forward(self) -> None:
        self.call("DftiComputeForwardDM", self.handle, self.address)

    def backward(self) -> None:
        self.call("DftiComputeBackwardDM", self.handle, self.address)

    def __del__(self) -> None:
        self.call("mkl_cdft_DftiFreeDescriptorDM", byref(self.handle))


class Mkl(Peer):
    """The ranks of mpi4py, and the library."""

    name = "MKL"

    def __init__(self, ranks: int) -> None:
        from mpi4py import MPI

        from meshcomm.linalg.library import library
        from meshcomm.linalg.native import mpi_library

        source = Path(library().source)  # which loads what the cluster FFT needs
        found = sorted(source.parent.glob("libmkl_cdft_core.so*"))
        if not found:
            raise ImportError(f"MKL is not installed, only {source}: pip install mkl")
        # Its own names, as those of mkl_cdft.h in libmkl_intel_lp64 call stand-ins of libmkl_core.
        self.library = ctypes.CDLL(str(found[-1]), mode=ctypes.RTLD_GLOBAL)
        world = MPI.COMM_WORLD
        self.comm = (c_int if mpi_library().interface == "mpich" else c_void_p)(world.handle)
        self.rank, self.size = world.rank, world.size
        self.barrier = world.Dup().Ibarrier

    def together(self) -> None:
        asleep(self.barrier().Test)

    def transform(self, case: Case) -> MklTransform | None:
        return MklTransform(self, case) if case.dims == 1 else None


if __name__ == "__main__":
    serve(Mkl, CALLS)
