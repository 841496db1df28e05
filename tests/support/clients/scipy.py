"""SciPy's tests with several array libraries: those with its fixture `xp`."""

from importlib import import_module
from types import ModuleType

import pytest

from support.clients import cutting

ENVIRONMENT = {"SCIPY_ARRAY_API": "1"}
FILES = [
    *("cluster/tests/test_vq.py", "constants/tests/test_constants.py", "differentiate/tests/test_differentiate.py"),
    *(f"fft/tests/test_{name}.py" for name in ("basic", "real_transforms", "fftlog", "helper")),
    *(f"integrate/tests/test_{name}.py" for name in ("tanhsinh", "cubature", "quadrature")),
    *(f"signal/tests/test_{name}.py" for name in ("signaltools", "fir_filter_design", "windows", "savitzky_golay")),
    *(f"signal/tests/test_{name}.py" for name in ("upfirdn", "bsplines", "splines", "filter_design", "cont2discrete")),
    *(f"special/tests/test_{name}.py" for name in ("logsumexp", "support_alternative_backends")),
    *(f"stats/tests/test_{name}.py" for name in ("resampling", "rank", "morestats", "hypotests", "variation")),
    *(f"stats/tests/test_{name}.py" for name in ("correlation", "quantile", "stats", "entropy", "device_dtype")),
    *(f"optimize/tests/test_{name}.py" for name in ("chandrupatla", "bracket")),
    "linalg/tests/test_special_matrices.py",
]


def paths(root):
    """Return the files of tests; *root* is the folder of the package."""
    return [str(root / name) for name in FILES]


def takes(item):
    """Return whether a test belongs to the suite."""
    return "xp" in getattr(item, "fixturenames", ())


def install(on_tensors):
    """Let SciPy's list of array libraries have tensors, or NumPy's arrays again, only."""
    conftest = import_module("scipy.conftest")
    from scipy._lib._array_api import array_namespace, default_xp

    backend = ModuleType("meshcomm.array_api" if on_tensors else "numpy")

    @pytest.fixture(params=[pytest.param(backend, id="xp")], name="xp")
    def given(request):
        conftest.skip_or_xfail_xp_backends(request, "skip")
        conftest.skip_or_xfail_xp_backends(request, "xfail")
        if on_tensors:
            xp = cutting.namespace()
        else:
            import numpy as np

            xp = array_namespace(np.empty(0))
        with default_xp(xp):
            yield xp

    conftest.xp_known_backends.add(backend.__name__)
    conftest.xp = given

    @pytest.fixture(name="devices")
    def known(xp):
        return [*xp.__array_namespace_info__().devices(), None]  # SciPy 1.17 adds a list; 2025.12 asks for a tuple

    conftest.devices = known
