# cython: language_level=3, boundscheck=False, wraparound=False, embedsignature=True
# cython: auto_pickle=False
"""The scope of a collective call: what begins and ends with it, as a context; knows no MPI.

Its two methods are C, for one reason: Python runs the handler of a signal, which may raise an exception, only between
two steps of its own. So a handler never finds a call half begun or half ended, and no call is left behind in
`watch.calls`, where the watchdog would take it for one that goes on.
"""

from time import monotonic

from meshcomm.errors import MeshError
from meshcomm.core.failures.watch import watch

cdef extern from "pythread.h":
    unsigned long PyThread_get_thread_ident() nogil


cdef class CallLock:
    """The lock of the calls on a rank set: one thread at a time may make them, or none any more."""

    cdef readonly str operation
    """The outermost call that goes on, or None."""
    cdef readonly int depth
    """How many calls go on, one within the other."""
    cdef readonly str end_reason
    """Why no call can be made any more, or None."""
    cdef unsigned long owner

    def end(self, str reason not None):
        """Let no further call be made, for this *reason*. The first one counts."""
        if self.end_reason is None:
            self.end_reason = reason

    cdef int acquire(self, str operation) except -1:
        cdef unsigned long me = PyThread_get_thread_ident()
        if self.depth and self.owner != me:
            self.end(
                f"two threads of this rank made collective calls on the same ranks at the same time, {self.operation} "
                f"and {operation}: ranks would mix them up. Let one thread make them, or give each thread a "
                "communicator of its own (comm.Dup()) and a mesh on it"
            )
        if self.end_reason is not None:
            raise MeshError(self.end_reason)
        if not self.depth:
            self.owner, self.operation = me, operation
        self.depth += 1
        return 0

    cdef int release(self) except -1:
        self.depth -= 1
        if not self.depth:
            self.operation = None
        return 0


cdef class CallScope:
    """A context in which this rank is in a collective call: the watchdog knows, and no other thread makes one.

    Parameters
    ----------
    operation: what the rank does
    rank_set: the ranks that do it; None if there is no rank set yet
    number: that of a `meshcomm.core.failures.watch.Call`; by default the next one of the rank set
    value: what the context gives

    ``MeshError`` if another thread is in a call on the rank set, in both threads, or if no call is possible any more.
    A wrong argument that ends the call before this rank has joined the others is noted: they may make the call.
    """

    cdef str operation
    cdef object rank_set, number, value
    cdef tuple call
    cdef object span, noted, begun
    cdef CallLock call_lock

    def __cinit__(self, str operation not None, rank_set, number=None, value=None):
        self.operation, self.rank_set, self.number, self.value = operation, rank_set, number, value

    def __enter__(self):
        cdef list stack
        recorder, number = watch.recorder, self.number
        # Python code, in which a handler may raise: before the call begins. It is noted when it has begun.
        span = None if recorder is None else recorder.begin(self.operation)
        if self.rank_set is None:
            number = number or 0
        else:
            self.call_lock = self.rank_set.call_lock
            self.call_lock.acquire(self.operation)
            if number is None:
                number = self.rank_set.calls = self.rank_set.calls + 1
                self.noted = self.rank_set.noted
        self.call = self.operation, self.rank_set, number, monotonic()
        self.begun = watch.count = watch.count + 1
        watch.recent.append(self.call)
        watch.calls.append(self.call)
        if span is not None:
            self.span = span
            stack = span.stack
            stack.append(span)
        return self.value

    def __exit__(self, kind, value, traceback):
        _remove(watch.calls, self.call)
        span, self.span = self.span, None
        if span is not None:
            _remove(span.stack, span)
        if self.call_lock is not None:
            self.call_lock.release()
        if span is not None:
            span.end()
        if self.call_lock is not None:
            if self.call_lock.end_reason is not None and kind is None:
                raise MeshError(self.call_lock.end_reason)
            if kind is not None and self.noted is not None:
                joined = self.noted != self.rank_set.noted or self.begun != watch.count  # a call within this one
                self.rank_set.note_error(self.operation, value, joined)


cdef int _remove(list calls, call) except -1:
    """Remove *call* from *calls*, the last time that it is there."""
    cdef Py_ssize_t i = len(calls) - 1
    while i >= 0 and calls[i] is not call:  # another thread may have begun a call later
        i -= 1
    if i >= 0:
        del calls[i]
    return 0
