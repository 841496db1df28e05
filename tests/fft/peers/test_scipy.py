"""SciPy's own tests of scipy.fft, of the SciPy that is installed, on tensors over simulated ranks.

A test of one case runs in each of the worlds, and one with parameters runs each of its cases in one world, or with
``--exhaustive`` in all of them. ``conftest.py`` marks most as slow. What cannot pass, or has nothing to do with these
functions, is in `LEFT_OUT`.
"""

import re
from zlib import crc32

import numpy as np
import pytest

pytest.importorskip("scipy.fft.tests")

from support import scipy_fft
from support.sampling import sampled

MODULES = [scipy_fft.tests_of(name) for name in ("test_basic", "test_real_transforms", "test_helper")]

LEFT_OUT = {
    r"test_multiprocess": "forks processes: those of an MPI job must not",
    r"TestNextFastLen|TestPrevFastLen|test_next_fast_len|Test_init_nd_shape_and_axes": "helpers",
    r"TestFFTFreq|TestRFFTFreq": "no tensors: these take a namespace and a device of the array API",
}


def _all_tests():
    for module in MODULES:
        for name, value in vars(module).items():
            if name.startswith(("test", "Test")) and not any(re.match(pattern, name) for pattern in LEFT_OUT):
                yield f"{name}_" if name in globals() else name, value


globals().update(dict(_all_tests()))


@pytest.fixture
def xp():
    """The namespace of the arrays that SciPy's tests make: NumPy's."""
    from scipy._lib._array_api import array_namespace

    return array_namespace(np.empty(0))


def pytest_generate_tests(metafunc):
    """Tests of one case run in all worlds, cases of tests with parameters in one, or with all cases in all."""
    worlds = list(scipy_fft.WORLDS)
    if metafunc.definition.name == "test_identity_extensive":  # two thousand calls
        worlds = ["one rank", "three ranks, chosen boundaries"]
    elif metafunc.definition.get_closest_marker("parametrize"):
        worlds = sampled(worlds, 1)
    if len(worlds) > 1:
        metafunc.parametrize("world", worlds, indirect=True)


@pytest.fixture(autouse=True)
def world(request):
    """Where the tensors of a test are."""
    np.random.seed(0)
    worlds = list(scipy_fft.WORLDS)
    name = getattr(request, "param", worlds[crc32(request.node.name.encode()) % len(worlds)])
    with scipy_fft.used(scipy_fft.WORLDS[name]):
        yield
