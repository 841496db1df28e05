"""What other compiled modules may use. They pass addresses, and check the sizes of the memory themselves."""

cdef enum:
    FEW = 3  # buffers that `_Views` holds without memory of its own: a header, and a block or two


cdef class _Boxes:
    cdef void *list  # a Copies of memory/strided/types.h
    cdef void *loops
    cdef Py_ssize_t ndim


cdef class _Regions:
    cdef Py_ssize_t *sizes
    cdef bint *used
    cdef Py_ssize_t count
    cdef str name

    cdef int check(
        self, Py_ssize_t box, Py_ssize_t region, Py_ssize_t itemsize, Py_ssize_t offset,
        const Py_ssize_t[:] extents, const Py_ssize_t[:] strides,
    ) except -1
    cdef _Views hold(self, buffers, bint writable)


cdef class _Views:
    cdef Py_buffer *views
    cdef Py_ssize_t filled
    cdef char **pointers
    cdef void *many
    cdef Py_buffer few_views[FEW]
    cdef char *few_pointers[FEW]


cdef class RegionCopies:
    cdef _Regions source_regions
    cdef _Regions target_regions

    # Each pointer is the address of a region of the size given at construction. It may be NULL if no box uses it.
    cdef void run_pointers(self, const char **sources, char **targets) noexcept nogil


cdef class BoxCopies(RegionCopies):
    cdef _Boxes boxes


cdef class Packing:
    cdef _Boxes boxes  # in row-major order; source: the regions, target: the buffer
    cdef _Boxes packs
    cdef _Boxes unpacks
    cdef Py_ssize_t itemsize
    cdef readonly Py_ssize_t nbytes
    cdef readonly bint contiguous
    cdef _Regions regions

    # The buffer has at least `bytes_of_round` bytes; 0 <= number < rounds.
    cdef Py_ssize_t bytes_of_round(self, Py_ssize_t number, Py_ssize_t rounds) noexcept nogil
    cdef void pack_pointers(
        self, const char **regions, char *buffer, Py_ssize_t number, Py_ssize_t rounds
    ) noexcept nogil
    cdef void unpack_pointers(
        self, const char *buffer, char **regions, Py_ssize_t number, Py_ssize_t rounds
    ) noexcept nogil

    cdef void _run_round(
        self, char **regions, char *buffer, Py_ssize_t number, Py_ssize_t rounds, bint unpacks
    ) noexcept nogil
    cdef Py_ssize_t _start(self, Py_ssize_t i, Py_ssize_t number, Py_ssize_t rounds) noexcept nogil
