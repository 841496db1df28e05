from meshcomm.core.arrays._expressions cimport Expression, Memory

cdef Py_ssize_t sources

cdef class Storage(Memory):
    cdef readonly Py_ssize_t version
    cdef readonly Source source
    cdef bint is_ahead
    cdef Py_ssize_t calls
    cdef list _writes

    cdef int note(self, Py_ssize_t low, Py_ssize_t high) except -1
    cdef int observe(self) except -1
    cdef bint is_written(self, Py_ssize_t since, Py_ssize_t low, Py_ssize_t high)
    cpdef bint is_stale(self)
    cdef bint is_behind(self)

cdef class Source:
    cdef readonly object base
    cdef readonly object fetch, write_to_base
    cdef Storage storage
    cdef Py_ssize_t low, high, shown
    cdef bint is_counted
    cdef Py_ssize_t sent

cdef class Stored:
    cdef object _array
    cdef Expression _expression
    cdef bint _is_dropped, _may_be_dropped
    cdef readonly object _spec, _view
    cdef readonly Storage _storage
    cdef object __weakref__

cdef object block_of(Stored tensor)
cpdef object lazy_block_of(Stored tensor)
cdef bint has_block(Stored tensor)
cdef bint is_alone(Stored tensor) except -1
cdef int note_export(Stored tensor) except -1

cpdef bint count_write(Stored tensor, index=*, list next_ones=*) except -1
cpdef int refresh(x) except -1
cpdef int write_back(x) except -1
cpdef int about_to_write(Stored tensor) except -1
cpdef int begin(x) except -1
cpdef int end(x, bint succeeded) except -1
