"""The tests of array-api-extra, from a checkout in $ARRAY_API_EXTRA: the package does not contain them."""

import os
import sys
from importlib import import_module
from pathlib import Path

import pytest

from support.clients import cutting

ENVIRONMENT = {}


def root():
    """Return the folder of the checkout."""
    return Path(os.environ["ARRAY_API_EXTRA"])


def paths(root):
    """Return the files of tests."""
    return [str(root / "tests")]


def takes(item):
    """Return whether a test belongs to the suite."""
    return "xp" in getattr(item, "fixturenames", ())


def install(on_tensors):
    """Let the fixtures of the tests give tensors, or NumPy's arrays."""
    sys.path.insert(0, str(root()))
    conftest = import_module("tests.conftest")
    backends = import_module("array_api_extra._lib._backends")

    # What tests ask about the library is true of CuPy: it has arrays without axes for scalars.
    backend = backends.Backend.CUPY if on_tensors else backends.Backend.NUMPY

    @pytest.fixture(params=[pytest.param(backend, id="xp")])
    def library(request):
        return request.param

    @pytest.fixture
    def xp(library):
        return cutting.only_namespace() if on_tensors else conftest.np_compat

    conftest.library, conftest.xp = library, xp
