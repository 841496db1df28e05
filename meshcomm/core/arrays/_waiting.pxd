from meshcomm.core.arrays._expressions cimport Expression, Memory

cdef Expression expression_of(function, list operands, list memories, tuple shape, dtype)
cdef int settle(Memory memory, list next_ones=*) except -1
cpdef int compute_waiting() except -1
cdef bint is_fusing() except -1
cpdef int end_fusing(bint completely=*) except -1
