# cython: language_level=3, boundscheck=False, wraparound=False, embedsignature=True
# cython: auto_pickle=False
"""When elementwise operations that wait are computed; knows no MPI."""

import numpy as np

from cpython.ref cimport PyObject

from meshcomm.core._tuning import MAX_ORPHANED_RESULTS, WAITING_OPERATIONS
from meshcomm.core.arrays._evaluation cimport evaluate
from meshcomm.core.arrays._expressions cimport Expression, Memory, Pieces, begin, newest, origin_of_call
from meshcomm.core.failures.watch import watch

cdef extern from "Python.h":
    Py_ssize_t Py_REFCNT(PyObject *)
    PyObject *PyList_GET_ITEM(object, Py_ssize_t)

cdef object ndarray = np.ndarray, broadcast_to = np.broadcast_to
cdef Py_ssize_t _most_operations = WAITING_OPERATIONS, _most_leaves = MAX_ORPHANED_RESULTS


cdef int settle(Memory memory, list next_ones=None) except -1:
    """Compute all expressions that wait for what is in *memory*, which is to be written.

    *next_ones* are computed by the same call, before it writes; so is what only they need.
    """
    cdef list marked = []
    if memory.waiting == 0:
        return 0
    if next_ones is not None:
        for x in next_ones:
            _mark(<Expression>x, marked)
    try:
        _settle(memory)
    finally:
        for x in marked:
            (<Expression>x).is_next = False
    return 0


cdef int _settle(Memory memory) except -1:
    cdef Expression expression
    cdef void *pointer
    while memory.waiting:
        pointer = newest
        while pointer != NULL and ((<Expression>pointer).is_next or not _reads(<Expression>pointer, memory)):
            pointer = (<Expression>pointer).older
        if pointer == NULL:
            return 0
        expression = <Expression>pointer
        evaluate(expression)
    return 0


cdef int _mark(Expression expression, list marked) except -1:
    """Mark an expression, and the operands that nobody else holds: the others are stored before their operands change.
    """
    cdef Py_ssize_t i
    expression.is_next = True
    marked.append(expression)
    for i in range(len(expression.operands)):
        if type(expression.operands[i]) is Expression and Py_REFCNT(PyList_GET_ITEM(expression.operands, i)) == 1:
            _mark(<Expression>expression.operands[i], marked)
    return 0


cdef bint _reads(Expression expression, Memory memory):
    if expression.block is not None:
        return False
    for held_memory in expression.memories:
        if held_memory is memory:
            return True
    for operand in expression.operands:
        if type(operand) is Expression and _reads(<Expression>operand, memory):
            return True
        if type(operand) is Pieces:
            for _, _, part in (<Pieces>operand).parts:
                if type(part) is Expression and _reads(<Expression>part, memory):
                    return True
    return False


cpdef int compute_waiting() except -1:
    """Compute all expressions of this rank that wait."""
    cdef Expression expression
    cdef void *pointer = newest
    while pointer != NULL:
        expression = <Expression>pointer
        if expression.rank == watch.simulated:
            evaluate(expression)
            pointer = newest
        else:
            pointer = expression.older
    return 0


# -- fused functions --------------------------------------------------------------------------------------------------

cdef set _fusing = set()  # the ranks whose fused functions run


cdef bint is_fusing() except -1:
    """Return whether a fused function runs: until it ends, its operands change by calls of ours only."""
    return len(_fusing) > 0 and watch.simulated in _fusing


def begin_fusing():
    """Let operations of this rank wait on all memory; return False if they do already."""
    if is_fusing():
        return False
    _fusing.add(watch.simulated)
    return True


cpdef int end_fusing(bint completely=True) except -1:
    """Let operations wait no more on all memory, and compute what waits on this rank.

    Not *completely*: nothing is computed, as after an error.
    """
    _fusing.discard(watch.simulated)
    if completely:
        compute_waiting()
    return 0


def expressed(function, list operands, tuple shape, dtype):
    """Return the expression of an operation on arrays that do not change before it is computed: see `Expression`."""
    return expression_of(function, operands, [None] * len(operands), shape, dtype)


# -- new expressions --------------------------------------------------------------------------------------------------


cdef Expression expression_of(function, list operands, list memories, tuple shape, dtype):
    """Return the expression of an operation: see `Expression` for its parameters."""
    cdef Expression expression = Expression.__new__(Expression), operand
    cdef Py_ssize_t i, axis, size = 0
    expression.axis, expression.count = -1, 1
    for x in operands:
        if type(x) is Pieces:
            expression.axis = (<Pieces>x).axis
    for i in range(len(operands)):
        x = operands[i]
        axis = -1
        if type(x) is Expression:
            operand = x
            if operand.block is None and (
                operand.shape != shape or expression.count + operand.count > _most_operations
                or (operand.axis >= 0 and expression.axis >= 0 and operand.axis != expression.axis)
            ):
                evaluate(operand)
            if operand.block is None:
                axis = operand.axis
                expression.count += operand.count
            else:
                x = operand.block
        if type(x) is ndarray and x.shape != shape:
            x = broadcast_to(x, shape)
        operands[i] = x
        if axis >= 0:
            expression.axis = axis
    expression.function, expression.operands, expression.memories = function, operands, memories
    expression.shape, expression.dtype, expression.rank = shape, dtype, watch.simulated
    expression.origin = origin_of_call()
    begin(expression)
    for n in shape:
        size = n if size == 0 else size * <Py_ssize_t>n
    if _orphaned_bytes() > _most_leaves * size * <Py_ssize_t>dtype.itemsize:
        compute_waiting()
    return expression


cdef Py_ssize_t _orphaned_bytes() except -1:
    """Return the bytes of blocks that no tensor has any more, and that are there for expressions only."""
    cdef Py_ssize_t size = 0, i
    cdef PyObject *memory
    cdef Expression expression
    cdef void *pointer = newest
    while pointer != NULL:
        expression = <Expression>pointer
        for i in range(len(expression.operands) if expression.rank == watch.simulated else 0):
            if type(expression.operands[i]) is ndarray:
                memory = PyList_GET_ITEM(expression.memories, i)
                if memory != <PyObject *>None and Py_REFCNT(memory) <= (<Memory>memory).waiting:
                    size += expression.operands[i].nbytes
        pointer = expression.older
    return size
