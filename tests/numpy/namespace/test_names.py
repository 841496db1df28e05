"""Every public name of NumPy is in `meshcomm.numpy`: NumPy's own, or ours with NumPy's arguments."""

import inspect
import sys

import numpy as np
import pytest

import meshcomm as mc
import meshcomm.numpy as namespace
from meshcomm.numpy.namespace import creation, names
from support.patience import run

OURS = {*names.OWN_MEMBERS, "mgrid", "ogrid", "r_", "c_", "fft", "linalg", "random", "testing"}


@pytest.mark.parametrize("name", sorted(np.__all__))
def test_a_name_is_numpys_or_ours(name):
    assert (getattr(namespace, name) is not getattr(np, name)) == (name in OURS)


@pytest.mark.parametrize("module", ["fft", "linalg", "random", "testing"])
def test_modules_have_all_names(module):
    ours, numpys = getattr(namespace, module), getattr(np, module)
    assert ours is sys.modules[f"meshcomm.numpy.{module}"]
    assert set(ours.__all__) == set(numpys.__all__)
    assert all(hasattr(ours, name) for name in numpys.__all__)


def test_a_name_that_is_not_there():
    with pytest.raises(AttributeError, match="has no attribute 'zeroes'; did you mean 'zeros'"):
        _ = namespace.zeroes


@pytest.mark.parametrize("name", sorted(set(creation.OWN_FUNCTIONS) - {"arange"}))
def test_arguments_are_numpys(name):
    numpys = getattr(np, name)
    try:
        expected = [*inspect.signature(numpys).parameters]
    except ValueError:  # NumPy's own tells none
        return
    found = inspect.signature(creation.OWN_FUNCTIONS[name]).parameters
    if not any(each.kind is each.VAR_KEYWORD for each in found.values()):
        assert set(expected) <= {*found}


def test_tensors_are_arrays():
    assert isinstance(namespace.zeros(3), namespace.ndarray)
    assert isinstance(np.zeros(3), namespace.ndarray)
    assert not isinstance([1, 2], namespace.ndarray)
    assert issubclass(np.ndarray, namespace.ndarray)
    assert issubclass(mc.DTensor, namespace.ndarray)
    assert namespace.ndarray((2, 3), int).shape == (2, 3)
    kind = type(namespace.ndarray)("Mine", (namespace.ndarray,), {})
    assert kind.__mro__[1] is np.ndarray  # a class of NumPy's arrays, which knows no tensors
    assert type(namespace.zeros(3).view(kind) + 1) is kind


def test_import_star_and_submodules():
    program = (
        "from meshcomm.numpy import *\nimport meshcomm.numpy.linalg as la\n"
        "from meshcomm.numpy.random import default_rng\n"
        "print(type(zeros(3)).__name__, float(la.norm(array([3.0, 4.0]))), default_rng(1).random(2).shape, pi)"
    )
    done = run([sys.executable, "-c", program])
    assert done.stdout == f"ndarray 5.0 (2,) {np.pi}\n", done
