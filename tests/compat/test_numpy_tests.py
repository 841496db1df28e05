"""NumPy's own tests of arrays and functions on tensors: all pass but those in tests/data/numpy_tests.txt."""

import re

import numpy as np
import pytest

from meshcomm.core.arrays.scripted import set_scripted
from support import numpy_shim
from support.client_suites import has_reasons, known_of
from support.paths import DATA
from support.sampling import sampled

TABLE = DATA / "numpy_tests.txt"
MANY = {
    "test_arraysetops": (r"\[", 24),
    "test_einsum": ("::test_einsum_sums_", 4),  # one for each dtype, some seconds each
    "test_multiarray": (r"\[", 48),
    "test_linalg": (r"\[|::test_stacked_inputs|TestNorm\w+::test_(axis|vector_return)", 48),
    "test_function_base": (r"\[|TestDelete::test_slices", 48),
    "test_nanfunctions": (r"\[|test_float_special", 48),
    "test_umath": (r"\[|test_remainder_basic|_blocked|test_avx_based_ufunc", 96),
}
"""Tests that go through many cases, or are slow, of which a sample runs, and how many of them on one rank."""


@pytest.mark.skipif(np.__version__ != "2.4.6", reason="the table is for the tests of this version of NumPy")
@pytest.mark.parametrize("ranks", [1, 3])
@pytest.mark.parametrize("module", numpy_shim.MODULES)
def test_numpys_own_tests(module, ranks):
    labels = list(numpy_shim.cases(module, ranks))
    names, count = MANY.get(module, ("$^", 0))
    many = [label for label in labels if re.search(names, label)]
    others = [label for label in labels if label not in many]
    others = sampled(others, (2 if ranks == 1 else 1) * len(others))  # with --quick a quarter, or an eighth
    labels = [*others, *sampled(many, -(-count // ranks))]
    found = numpy_shim.outcomes(module, ranks, labels)
    failed = {name: error for name, error in found.items() if error is not None}
    known = known_of(TABLE, ranks, [f"{module}.py::{label}" for label in labels])
    assert {name: repr(error)[:200] for name, error in failed.items() if name not in known} == {}
    assert known - set(failed) == set(), "they pass now: take them out of the table"
    assert len(found) > len(failed)


AS_SCRIPT = {
    "test_index_tricks": "^$",
    "test_twodim_base": "^$",
    "test_shape_base": "TestSqueeze::test_basic|test_axis_insertion_ma",  # how it counts types; masked arrays
    "test_nanfunctions": "_nan_mask|_replace_nan",  # functions of NumPy's own modules
}
"""Modules that also run as a script of ``run --numpy``, and which of their tests do not pass."""


@pytest.mark.skipif(np.__version__ != "2.4.6", reason="the table is for the tests of this version of NumPy")
@pytest.mark.parametrize("module", AS_SCRIPT)
def test_numpys_own_tests_as_a_script(module):
    set_scripted(True)
    try:
        labels = sampled([*numpy_shim.cases(module, 2)], 40)
        found = numpy_shim.outcomes(module, 2, labels)
    finally:
        set_scripted(False)
    failed = {name: repr(error)[:200] for name, error in found.items() if error is not None}
    assert {name: error for name, error in failed.items() if not re.search(AS_SCRIPT[module], name)} == {}
    assert len(found) > len(failed)


def test_every_group_has_a_reason():
    assert has_reasons(TABLE)
