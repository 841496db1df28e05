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

cdef object _asked = None, _asked_to_wait = None
cdef object _handling = None, _filters = None, _first = None, _shows = None, _records = None
cdef Py_ssize_t _count = 0
cdef bint _sees = False, _waits = False
cdef dict _warnings = warnings.__dict__


def let_see(sees):
    """Set what returns whether the program would see a condition now; None if its ranks never agree on them."""
    global _asked, _handling
    _asked, _handling = sees, None


def let_wait(waits):
    """Set what returns whether operations may wait now; None if none may."""
    global _asked_to_wait, _handling
    _asked_to_wait, _handling = waits, None


cpdef bint are_seen() except -1:
    """Return whether ranks are to agree on the conditions of a call."""
    if _asked is None:
        return False
    _look()
    return _sees


cpdef bint may_wait() except -1:
    """Return whether an operation may be computed later: whether its conditions are no more than warnings."""
    if _asked_to_wait is None:
        return False
    _look()
    return _waits


cdef int _look() except -1:
    """Ask again if the program may have changed how it handles conditions."""
    global _handling, _filters, _first, _count, _shows, _records, _sees, _waits
    cdef object handling, shows, records, first
    cdef list filters
    handling, filters = get_value(_errstate), _warnings["filters"]
    shows, records = _warnings["showwarning"], _warnings.get("_showwarnmsg_impl")
    first = filters[0] if filters else None
    if not (
        handling is _handling and shows is _shows and records is _records
        and filters is _filters and first is _first and len(filters) == _count
    ):
        _sees = _asked is not None and _asked()
        _waits = _asked_to_wait is not None and _asked_to_wait()
        _handling, _shows, _records = handling, shows, records
        _filters, _first, _count = filters, first, len(filters)
    return 0
