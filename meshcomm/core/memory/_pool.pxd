"""What `_rendezvous` uses of the pool: where mapped memory is, and where in it a block of this process begins."""

from libc.stdint cimport int64_t, uint32_t, uint64_t

cdef enum:
    LINES = 256  # bytes that `open_lines` reserves


cdef class Memory:
    cdef char *base
    cdef readonly Py_ssize_t size


cdef class Pool(Memory):
    cdef void *system  # what _pool.h calls mc_pool
    cdef readonly Py_ssize_t share, used
    cdef Py_ssize_t fraction  # as much as 1 / fraction of the most used may be free on top of it
    cdef Py_ssize_t[4] free_bytes  # by kind
    cdef Py_ssize_t most_used, most_used_before  # at once, in this window and in the last one
    cdef double window, window_began
    cdef uint32_t frees
    cdef readonly bytes token
    cdef public uint64_t clock
    cdef void *ranges  # one for each page
    cdef uint32_t[4][32] heads  # of the lists of free ranges, by kind and class
    cdef list free_lines

    cdef bint is_fork(self) noexcept nogil
    # The view is contiguous. Returns -1 if not all of its bytes are in the pool.
    cdef int64_t offset_of(self, const Py_buffer *view) noexcept nogil

    cdef Py_ssize_t _ready(self) noexcept
    cdef Py_ssize_t _budget(self, Py_ssize_t used) noexcept
    cdef uint32_t _find(self, uint32_t pages)
    cdef uint32_t _take_whole(self, uint32_t pages) noexcept
    cdef uint32_t _take(self, uint32_t kind, uint32_t pages) noexcept
    cdef uint32_t _take_bare(self, uint32_t pages)
    cdef void _free(self, uint32_t first, uint32_t pages) noexcept
    cdef void _age(self) noexcept
    cdef void _join_all(self) noexcept
    cdef void _trim(self, uint32_t kind, Py_ssize_t limit) noexcept
    cdef void _make_bare(self, uint32_t first, uint32_t pages) noexcept
    cdef void _put(self, uint32_t kind, uint32_t first, uint32_t pages) noexcept
    cdef void _link(self, uint32_t kind, uint32_t first, uint32_t pages) noexcept
    cdef void _unlink(self, uint32_t first) noexcept
    cdef void _mark(self, uint32_t kind, uint32_t first, uint32_t pages) noexcept
