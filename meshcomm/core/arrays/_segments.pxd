from meshcomm.core.arrays._expressions cimport Expression, Pieces

cdef class Segment:
    cdef Py_ssize_t start, stop, axis, count, widest
    cdef list order, inputs, leaves, buffers
    cdef dict numbers, buffers_of

    cdef int add(self, Expression expression, Py_ssize_t shift) except -1
    cdef Py_ssize_t entry(self, operand, Py_ssize_t shift) except? -2
    cdef int share(self, dict stored) except -1

cdef int collect(Expression expression, list order, dict numbers) except -1
cdef int borders_in(Pieces pieces, Py_ssize_t shift, set borders) except -1
cdef list intervals(list borders)
