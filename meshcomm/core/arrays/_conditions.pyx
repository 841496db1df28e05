# cython: language_level=3, boundscheck=False, wraparound=False, embedsignature=True
# cython: auto_pickle=False
"""Whether ranks of a script are to agree on the floating-point conditions of a call: asked in each, so in C.

What a program has said does not change between most calls: `meshcomm.core.arrays.conditions` looks at it only where
``np.errstate`` or the filters of warnings may have changed. Each context and function of NumPy and of Python that
changes them puts a new object where this module looks.
"""

import warnings

from cpython.contextvars cimport get_value
from numpy._core.umath import _extobj_contextvar as _errstate

cdef object _asked = None
cdef object _handling = None, _filters = None, _first = None, _shows = None, _records = None
cdef Py_ssize_t _count = 0
cdef bint _sees = False
cdef dict _warnings = warnings.__dict__


def let_see(sees):
    """Set what returns whether the program would see a condition now; None if its ranks never agree on them."""
    global _asked, _handling
    _asked, _handling = sees, None


cpdef bint are_seen() except -1:
    """Return whether ranks are to agree on the conditions of a call."""
    global _handling, _filters, _first, _count, _shows, _records, _sees
    cdef object handling, shows, records, first
    cdef list filters
    if _asked is None:
        return False
    handling, filters = get_value(_errstate), _warnings["filters"]
    shows, records = _warnings["showwarning"], _warnings.get("_showwarnmsg_impl")
    first = filters[0] if filters else None
    if not (
        handling is _handling and shows is _shows and records is _records
        and filters is _filters and first is _first and len(filters) == _count
    ):
        _sees = _asked()
        _handling, _shows, _records = handling, shows, records
        _filters, _first, _count = filters, first, len(filters)
    return _sees
