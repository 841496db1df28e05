"""Runs tests/test_mpifft.py of a checkout of mpi4py-fft with the package beside this file in place of mpi4py-fft.

    mpiexec -n 4 python tests/fft/shims/run_mpi4py_fft_tests.py CHECKOUT [SHAPES]

SHAPES is how many of the shapes with 2, 3 and 4 axes are tested, each with all types, groups of axes and grids; all by
default.
"""

import importlib.util
import itertools
import random
import sys
import time
import types
from pathlib import Path

import numpy as np
from mpi4py import MPI


def main(checkout, shapes=None):
    sys.path.insert(0, str(Path(__file__).parent))
    spec = importlib.util.spec_from_file_location("test_mpifft", Path(checkout, "tests", "test_mpifft.py"))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    if shapes is not None:  # the test imports itertools.product when it runs; modules that have it keep theirs
        sampling, choice = types.ModuleType("itertools"), random.Random(1)
        vars(sampling).update(vars(itertools))
        sampling.product = lambda *sizes: choice.sample(list(itertools.product(*sizes)), int(shapes))
        sys.modules["itertools"] = sampling
    np.random.seed(MPI.COMM_WORLD.rank)
    for name in ("test_r2r", "test_mpifft"):
        start = time.perf_counter()
        getattr(module, name)()
        if MPI.COMM_WORLD.rank == 0:
            print(f"{name} passes with {MPI.COMM_WORLD.size} ranks: {time.perf_counter() - start:.0f} s", flush=True)


main(*sys.argv[1:])
