"""No function of NumPy, and no method of its arrays, is missing without a word: docs/numpy.md says why.

A new NumPy that has more names fails here, until they work or are on the page.
"""

import re
from importlib.util import module_from_spec, spec_from_file_location

import numpy as np
import pytest

import meshcomm as mc
from meshcomm.numpy import protocols
from support.paths import DOCS

_FOUND = spec_from_file_location("api", DOCS / "site" / "api.py")
api = module_from_spec(_FOUND)
_FOUND.loader.exec_module(api)
PAGE = api.NUMPY_PAGE.read_text("utf-8")
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
def test_every_function_is_in_one_row_or_takes_no_tensors():
    named = [name for row in api.functions_of_rows(api.numpy_tables(PAGE)) for name in row]
    taken = {name for name in functions() if getattr(np, name) in protocols.FUNCTIONS}
    assert sorted(name for name in named if hasattr(np, name)) == sorted(taken)  # NumPy drops some
    assert [name for name in functions() if name not in taken and name not in NOT_THERE] == []


def test_no_row_of_the_tables_is_skipped():
    lines = [line for line in api.numpy_tables(PAGE).splitlines() if line.startswith("|")]
    rows = [line for line in lines if not line.startswith(("| function |", "|---", "| ---"))]
    assert len(rows) == len(api.functions_of_rows("\n".join(lines))) > 50


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_the_page_names_no_function_that_takes_tensors():
    wrong = [n for n in NOT_THERE if hasattr(np, n) and getattr(np, n) in protocols.FUNCTIONS]
    assert not set(wrong) - {"histogram", "resize", *DROPPED}  # two are recommended there


def test_every_method_of_arrays_is_one_of_tensors_or_is_on_the_page():
    methods = [name for name in dir(np.ndarray) if not name.startswith("_")]
    unknown = [n for n in methods if not hasattr(mc.DTensor, n) and f"t.{n}" not in NOT_THERE]
    assert not unknown
    assert not [n for n in methods if hasattr(mc.DTensor, n) and f"t.{n}" in NOT_THERE - {"t.view", "t.base"}]
