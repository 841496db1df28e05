# cython: language_level=3, boundscheck=False, wraparound=False, embedsignature=True
# cython: auto_pickle=False
"""Elementwise operations that wait; knows no MPI.

An operation on large blocks need not be computed at once. Its result is a tensor whose block is not there yet, but an
`Expression`. Operations on that tensor join it. `_evaluation.pyx` computes it, `_waiting.pyx` says when it has to.
"""
# What keeps it right
# ===================
#
# - An expression holds the blocks that it reads, and their `Memory`, which counts the expressions that wait. Whoever
#   writes to memory calls `settle` first, which computes these.
# - Nothing waits on memory that others could write to without a call of ours: see `is_alone` of a tensor.
# - What its tensor or another expression still needs of an expression is stored when it is computed. Their references
#   tell: one that only the expressions of this evaluation have is not stored anywhere.
# - All expressions that are computed together have one shape. Operands with other shapes are broadcast, or computed
#   first.
# - Floating-point errors are logged, and reported at last: each once for an operation, as a warning at the line of the
#   program that made it. Where the program would see more of them than a warning, nothing waits.
# - Waiting is a matter of one rank: nothing here communicates, and ranks need not agree on when anything is computed.

import warnings

from cpython.contextvars cimport get_value
from numpy._core.umath import _extobj_contextvar as _errstate

import numpy as np

cdef extern from "Python.h":
    ctypedef struct PyFrameObject:
        pass
    PyFrameObject *PyEval_GetFrame()

cdef object ndarray = np.ndarray
cdef dict _warnings = warnings.__dict__


cdef class Memory:
    """Memory that expressions read.

    `waiting` is how many operands of expressions are in it, `is_alone` whether nobody outside of this package can have
    an array in it, and `is_exported` whether that cannot be found out any more.
    """


cdef class Pieces:
    """A block in parts along an axis: of each, from where to where it is, and its array or expression."""

    def __init__(self, Py_ssize_t axis, list parts not None):
        self.axis, self.parts = axis, parts

    @property
    def waits(self):
        """Whether some parts are expressions."""
        return any([type(part) is Expression for _, _, part in self.parts])


cdef class Expression:
    """An elementwise operation whose block is not there yet.

    Parameters
    ----------
    function: takes a piece of each operand, and as *out* where to write the result
    operands: expressions, blocks, `Pieces` and numbers
    memories: those of the operands, None for numbers
    shape, dtype: of the block
    rank: the simulated rank that it is of; None for real ones
    """

    def __dealloc__(self):
        unlink(self)
        if self.memories is not None:
            release(self)


# -- all that wait ----------------------------------------------------------------------------------------------------

newest = NULL  # of a list through all expressions that wait, linked by their addresses


cdef void link(Expression expression) noexcept:
    global newest
    expression.older = newest
    if newest != NULL:
        (<Expression>newest).newer = <void *>expression
    newest = <void *>expression


cdef void unlink(Expression expression) noexcept:
    global newest
    if expression.newer != NULL:
        (<Expression>expression.newer).older = expression.older
    elif newest == <void *>expression:
        newest = expression.older
    if expression.older != NULL:
        (<Expression>expression.older).newer = expression.newer
    expression.newer = expression.older = NULL


cdef void release(Expression expression) noexcept:
    """Count off the operands of an expression."""
    for memory in expression.memories:
        if memory is not None:
            (<Memory>memory).waiting -= 1


cdef int begin(Expression expression) except -1:
    """Let an expression wait."""
    for memory in expression.memories:
        if memory is not None:
            (<Memory>memory).waiting += 1
    link(expression)
    return 0


cdef tuple origin_of_call():
    """Return where the program is, and how it handles floating-point errors and warnings there."""
    frame = <object>PyEval_GetFrame()
    names = frame.f_globals
    while frame.f_back is not None and _is_ours(names):
        frame = frame.f_back
        names = frame.f_globals
    return frame.f_code, frame.f_lineno, names, get_value(_errstate), _warnings["filters"]


cdef bint _is_ours(dict names):
    name = names.get("__name__")
    return type(name) is str and ((<str>name).startswith("meshcomm.") or (<str>name).startswith("numpy."))


# -- parts ------------------------------------------------------------------------------------------------------------


cpdef object part_of(x, Py_ssize_t axis, Py_ssize_t start, Py_ssize_t stop):
    """Return an interval along an axis of an expression, which waits, of an array, `Pieces` or a number."""
    cdef Expression expression, part
    cdef Pieces pieces
    if type(x) is Expression:
        expression = x
        if expression.block is not None:
            return part_of(expression.block, axis, start, stop)
        part = Expression.__new__(Expression)
        part.function, part.dtype, part.origin = expression.function, expression.dtype, expression.origin
        part.rank = expression.rank
        part.operands = [part_of(operand, axis, start, stop) for operand in expression.operands]
        part.axis = -1
        for operand in part.operands:
            if type(operand) is Pieces:
                part.axis = axis
            elif type(operand) is Expression and (<Expression>operand).axis >= 0:
                part.axis = axis
        part.count, part.memories = expression.count, list(expression.memories)
        part.shape = (*expression.shape[:axis], stop - start, *expression.shape[axis + 1:])
        begin(part)
        return part
    if type(x) is Pieces:
        pieces = x
        parts = [
            (max(low, start) - start, min(high, stop) - start,
             part_of(content, axis, max(low, start) - low, min(high, stop) - low))
            for low, high, content in pieces.parts if low < stop and start < high
        ]
        return parts[0][2] if len(parts) == 1 else Pieces(axis, parts)
    if type(x) is ndarray:
        return x[(slice(None),) * axis + (slice(start, stop),)]
    return x
