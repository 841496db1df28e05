cdef void *newest

cdef class Memory:
    cdef Py_ssize_t waiting
    cdef bint is_alone, is_exported

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

cdef int begin(Expression expression) except -1
cdef void unlink(Expression expression) noexcept
cdef void release(Expression expression) noexcept
cdef tuple origin_of_call()
cpdef object part_of(x, Py_ssize_t axis, Py_ssize_t start, Py_ssize_t stop)
