from meshcomm.core.arrays._storage cimport Stored

cdef class Call:
    cdef readonly Recipe recipe
    cdef readonly tuple operands
    cdef readonly object out

    cpdef object run(self)

cpdef object completed(result)

cdef class Recipe:
    cdef readonly object run

    cdef object make(self, tuple operands, out)

cdef class OfTensors(Recipe):
    cdef readonly Recipe of

cdef tuple tensors_in(args)

cdef Stored tensor_of(local, spec, view)
