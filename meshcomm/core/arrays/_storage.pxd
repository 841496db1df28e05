cdef Py_ssize_t sources

cdef class Storage:
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
    cdef readonly object fetch, send
    cdef Storage storage
    cdef Py_ssize_t low, high, shown
    cdef bint is_counted
    cdef Py_ssize_t sent

cdef class Stored:
    cdef readonly object _block, _spec, _view
    cdef readonly Storage _storage
    cdef object __weakref__

cpdef bint count_write(Stored tensor, index=*) except -1
cpdef int refresh(x) except -1
cpdef int send_home(x) except -1
cpdef int begin(x) except -1
cpdef int end(x, bint succeeded) except -1
