cdef class Memory:
    cdef Py_ssize_t waiting
    cdef bint is_alone, is_lent

cdef class Pieces:
    cdef readonly Py_ssize_t axis
    cdef readonly list parts

cdef class Expression:
    cdef readonly object function, dtype, block
    cdef readonly tuple shape
    cdef list operands, memories
    cdef Py_ssize_t axis, count
    cdef object origin, rank
    cdef bint is_next
    cdef void *newer
    cdef void *older

cdef Expression expression_of(function, list operands, list memories, tuple shape, dtype)
cdef object evaluate(Expression top)
cdef int evaluate_into(Expression top, target) except -1
cdef int settle(Memory memory, list next_ones=*) except -1
cpdef int compute_waiting() except -1
cpdef object part_of(x, Py_ssize_t axis, Py_ssize_t start, Py_ssize_t stop)
