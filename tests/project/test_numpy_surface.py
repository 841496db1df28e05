"""No function of NumPy, and no method of its arrays, is missing without a word: docs/numpy.md says why.

A new NumPy that has more names fails here, until they work or are on the page.
"""

import re
from pathlib import Path

import numpy as np
import pytest

import meshcomm as mc
from meshcomm.numpy import protocols

PAGE = (Path(__file__).parents[2] / "docs" / "numpy.md").read_text()
_DROPPED = """
    add_docstring add_newdoc add_newdoc_ufunc alltrue asfarray byte_bounds compare_chararrays cumproduct deprecate
    deprecate_with_doc disp fastCopyAndTranspose find_common_type get_array_wrap geterrobj in1d issctype issubclass_
    issubsctype lookfor mat maximum_sctype msort obj2sctype product recfromcsv recfromtxt round_ safe_eval sctype2char
    set_numeric_ops set_string_function seterrobj sometrue source trapz who t.itemset t.newbyteorder t.ptp t.tostring
"""
DROPPED = set(_DROPPED.split())
"""Names of NumPy 1 that NumPy 2 has dropped, as the page says."""
NOT_THERE = DROPPED | set(re.findall(r"`([\w.]+)`", PAGE.partition("## What takes no tensors")[2]))


def functions():
    """The names of functions of NumPy's main namespace that are no universal functions, which all take tensors."""
    for name in np.__all__:
        function = getattr(np, name)
        if callable(function) and not isinstance(function, type | np.ufunc) and not name.startswith("_"):
            yield name


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_every_function_takes_tensors_or_is_on_the_page():
    unknown = [n for n in functions() if getattr(np, n) not in protocols.FUNCTIONS and n not in NOT_THERE]
    assert not unknown


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_the_page_names_no_function_that_takes_tensors():
    wrong = [n for n in NOT_THERE if hasattr(np, n) and getattr(np, n) in protocols.FUNCTIONS]
    assert not set(wrong) - {"histogram", "resize", *DROPPED}  # two are recommended there


def test_every_method_of_arrays_is_one_of_tensors_or_is_on_the_page():
    methods = [name for name in dir(np.ndarray) if not name.startswith("_")]
    unknown = [n for n in methods if not hasattr(mc.DTensor, n) and f"t.{n}" not in NOT_THERE]
    assert not unknown
    assert not [n for n in methods if hasattr(mc.DTensor, n) and f"t.{n}" in NOT_THERE - {"t.view", "t.base"}]


def test_names_of_the_tables_are_those_of_numpy():
    """Each function in the tables of this page is one of NumPy, of any version that it runs with."""
    tables = re.findall(r"^\| (`[^|]*) \|", PAGE, re.MULTILINE)
    names = {name for row in tables for name in re.findall(r"`([a-z]\w+)`", row)}
    later = {"row_stack", "matvec", "vecmat"}
    assert not [name for name in names - later if not hasattr(np, name)]
