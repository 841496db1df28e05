"""mpi4py-fft's names on meshcomm.fft: what its tests/test_mpifft.py needs, for ``make test-mpi4py-fft``."""

from mpi4py_fft import fftw
from mpi4py_fft.distarray import newDistArray
from mpi4py_fft.mpifft import PFFT
from mpi4py_fft.pencil import Subcomm

__all__ = ["PFFT", "Subcomm", "fftw", "newDistArray"]
