from meshcomm.core.arrays._expressions cimport Expression

cdef object evaluate(Expression top)
cdef int evaluate_into(Expression top, target) except -1
