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
cdef _Answer _last = None, _other = None
cdef dict _warnings = warnings.__dict__


def set_condition_probe(sees):
    """Set what returns whether the program would see a condition now; None if its ranks never agree on them."""
    global _asked, _last, _other
    _asked, _last, _other = sees, None, None


def let_wait(waits):
    """Set what returns whether operations may wait now; None if none may."""
    global _asked_to_wait, _last, _other
    _asked_to_wait, _last, _other = waits, None, None


cpdef bint are_seen() except -1:
    """Return whether ranks are to agree on the conditions of a call."""
    return _asked is not None and _look().sees


cpdef bint may_wait() except -1:
    """Return whether an operation may be computed later: whether its conditions are no more than warnings."""
    return _asked_to_wait is not None and _look().waits


cdef class _Answer:
    """What was answered, and what `np.errstate` and `warnings` had then."""

    cdef object handling, shows, records, first
    cdef list filters
    cdef Py_ssize_t count
    cdef bint sees, waits


cdef _Answer _look():
    """Return the answers, also of the state before the last one: a call of ours may change it for its own time."""
    global _last, _other
    cdef object handling = get_value(_errstate)
    cdef _Answer answer
    if _last is None or not _holds(_last, handling):
        _last, _other = _other, _last
        if _last is None or not _holds(_last, handling):
            answer = _Answer.__new__(_Answer)
            answer.handling, answer.filters = handling, _warnings["filters"]
            answer.shows, answer.records = _warnings["showwarning"], _warnings.get("_showwarnmsg_impl")
            answer.count = len(answer.filters)
            answer.first = answer.filters[0] if answer.count else None
            answer.sees = _asked is not None and _asked()
            answer.waits = _asked_to_wait is not None and _asked_to_wait()
            _last = answer
    return _last


cdef bint _holds(_Answer answer, handling):
    """Return whether the program handles conditions as it did when this was answered."""
    cdef list filters = _warnings["filters"]
    return (
        answer.handling is handling and answer.filters is filters and answer.count == len(filters)
        and answer.first is (filters[0] if filters else None)
        and answer.shows is _warnings["showwarning"] and answer.records is _warnings.get("_showwarnmsg_impl")
    )
