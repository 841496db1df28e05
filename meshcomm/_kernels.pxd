"""What other compiled modules may use: the copies, on memory that they have checked the sizes of themselves."""


cdef struct Loop:
    Py_ssize_t extent, source, target  # strides of both sides, in bytes


cdef struct Box:
    Py_ssize_t source_region, target_region, source, target, run, loops
    Loop *loop  # outermost first


cdef class _Boxes:
    cdef Box *box
    cdef Loop *loops
    cdef Py_ssize_t count
    cdef Py_ssize_t ndim

    cdef Box *next(self) noexcept


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
    cdef void *views
    cdef Py_ssize_t held
    cdef char **pointers


cdef class BoxCopies:
    cdef _Boxes boxes
    cdef _Regions source_regions
    cdef _Regions target_regions

    # Each pointer is the beginning of a region of the size that was given; one that no box uses may be NULL.
    cdef void run_pointers(self, const char **sources, char **targets) noexcept nogil


cdef class Packing:
    cdef _Boxes boxes
    cdef Py_ssize_t itemsize
    cdef readonly Py_ssize_t nbytes
    cdef readonly bint contiguous
    cdef _Regions regions

    # The buffer has at least `bytes_of_part` bytes; 0 <= part < parts.
    cdef Py_ssize_t bytes_of_part(self, Py_ssize_t part, Py_ssize_t parts) noexcept nogil
    cdef void pack_pointers(
        self, const char **regions, char *buffer, Py_ssize_t part, Py_ssize_t parts
    ) noexcept nogil
    cdef void unpack_pointers(
        self, const char *buffer, char **regions, Py_ssize_t part, Py_ssize_t parts
    ) noexcept nogil
    cdef void _run(
        self, char **regions, char *buffer, Py_ssize_t part, Py_ssize_t parts, bint unpacks
    ) noexcept nogil
    cdef Py_ssize_t _cut(self, Py_ssize_t i, Py_ssize_t part, Py_ssize_t parts) noexcept nogil
