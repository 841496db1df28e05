"""FFTW-MPI as a peer of `fft.py`: the libraries of Debian's libfftw3-mpi3 on its Open MPI, without mpi4py.

Plans are measured (FFTW_MEASURE), in place, and leave the spectrum transposed. FFTW does not scale: here a pass over
the values does it after each transform back.
"""

import ctypes
from ctypes import byref, c_int, c_ssize_t, c_uint, c_void_p
from math import prod

import numpy as np
from fft_slabs import Slabs
from fft_turns import CALLS, Case, Peer
from rounds import asleep, serve

FORWARD, BACKWARD = c_int(-1), c_int(1)
THERE, BACK = c_uint(1 << 30), c_uint(1 << 29)
"""FFTW_MPI_TRANSPOSED_OUT and FFTW_MPI_TRANSPOSED_IN, with FFTW_MEASURE, which is 0."""


def shared(name: str) -> ctypes.CDLL:
    """Load a library whose functions others use."""
    return ctypes.CDLL(name, mode=ctypes.RTLD_GLOBAL)


class FftwTransform(Slabs):
    """Two plans for one buffer."""

    def __init__(self, peer: "Fftw", case: Case) -> None:
        self.letter, self.peer, self.scale = "f" if case.single else "", peer, 1 / prod(case.shape)
        n, comm = len(case.shape), peer.comm
        extents = [c_ssize_t() for _ in range(4)]
        items = self.call(
            "mpi_local_size_transposed", c_int(n), (c_ssize_t * n)(*case.spectrum), comm, *map(byref, extents)
        )
        rows, first, columns, second = (each.value for each in extents)
        order = (1, 0, *range(2, n))
        super().__init__(case, items, range(first, first + rows), range(second, second + columns), order)
        address = c_void_p(self.buffer.ctypes.data)
        common = c_int(n), (c_ssize_t * n)(*case.shape), address, address, comm
        if case.real:
            made = [self.call("mpi_plan_dft_r2c", *common, THERE), self.call("mpi_plan_dft_c2r", *common, BACK)]
        else:
            made = [
                self.call("mpi_plan_dft", *common, sign, how) for sign, how in ((FORWARD, THERE), (BACKWARD, BACK))
            ]
        assert all(made), case
        self.plans = [c_void_p(plan) for plan in made]

    def call(self, name: str, *arguments: object) -> int:
        """Call a function of FFTW for this precision; a result is a size or an address."""
        function = self.peer.libraries[self.letter][f"fftw{self.letter}_{name}"]
        function.restype = c_ssize_t
        result: int = function(*arguments)
        return result

    def forward(self) -> None:
        self.call("execute", self.plans[0])

    def backward(self) -> None:
        self.call("execute", self.plans[1])
        np.multiply(self.field, self.scale, out=self.field)

    def __del__(self) -> None:
        for plan in self.plans:
            self.call("destroy_plan", plan)


class Fftw(Peer):
    """The ranks of Open MPI, and the libraries for double and single precision, by the letter in their names."""

    name = "FFTW-MPI"

    def __init__(self, ranks: int) -> None:
        try:
            self.mpi = shared("libmpi.so.40")
            self.libraries = {letter: shared(f"libfftw3{letter}_mpi.so.3") for letter in ("", "f")}
        except OSError as problem:
            raise ImportError(f"{problem}: apt install libfftw3-mpi3 openmpi-bin") from None
        self.comm = c_void_p(ctypes.addressof(ctypes.c_char.in_dll(self.mpi, "ompi_mpi_comm_world")))

    def begin(self) -> None:
        self.mpi.MPI_Init(None, None)
        rank, size = c_int(), c_int()
        self.mpi.MPI_Comm_rank(self.comm, byref(rank))
        self.mpi.MPI_Comm_size(self.comm, byref(size))
        self.rank, self.size = rank.value, size.value
        for letter, library in self.libraries.items():
            library[f"fftw{letter}_mpi_init"]()

    def together(self) -> None:
        request, done = c_void_p(), c_int()
        self.mpi.MPI_Ibarrier(self.comm, byref(request))

        def ended() -> bool:
            self.mpi.MPI_Test(byref(request), byref(done), None)
            return bool(done.value)

        asleep(ended)

    def transform(self, case: Case) -> FftwTransform | None:
        return FftwTransform(self, case) if case.dims == 1 else None

    def end(self) -> None:
        self.mpi.MPI_Finalize()


if __name__ == "__main__":
    serve(Fftw, CALLS)
