# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, embedsignature=True
"""Pack, unpack and copy boxes of blocks, as bytes; knows no dtype and no MPI.

A box of a C-contiguous block is an offset, an extent per axis and a stride per axis, in bytes. Packing copies boxes
of a block into consecutive bytes, unpacking copies consecutive bytes into boxes, and a copy goes from box to box: all
three are lists of box copies between two stretches of memory. Such a list is checked once, when it is made, and then
run any number of times without the GIL.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.mem cimport PyMem_Free, PyMem_Malloc
from libc.string cimport memcpy

# One prepared copy is a row of integers: source offset, target offset, bytes per run, number of loops, then for each
# loop its extent, source stride and target stride.
cdef enum:
    SOURCE = 0
    TARGET = 1
    RUN = 2
    LOOPS = 3
    HEAD = 4


cdef class BoxCopies:
    """A list of box copies from one stretch of bytes to another, checked once and run many times. Local.

    *source_offsets* and *target_offsets* have one entry per box, *extents* (elements), *source_strides* and
    *target_strides* (bytes) one row per box and one column per axis; an element is *itemsize* bytes. ``ValueError`` if
    a box reaches outside of ``source_size`` or ``target_size`` bytes.

    >>> import numpy as np
    >>> row = lambda *values: np.array([values], dtype=np.intp)
    >>> columns = BoxCopies(6, 4, 1, row(1)[0], row(3, 1), row(0)[0], row(2, 1), row(2, 2))  # columns 1 and 2 of 2 x 3
    >>> packed = np.zeros(4, np.uint8)
    >>> columns.run(np.arange(6, dtype=np.uint8), packed)
    >>> packed
    array([1, 2, 4, 5], dtype=uint8)
    """

    cdef Py_ssize_t *rows
    cdef Py_ssize_t width
    cdef readonly Py_ssize_t count
    cdef readonly Py_ssize_t source_size
    cdef readonly Py_ssize_t target_size
    cdef readonly bint single_runs
    """Whether each box is one run of consecutive bytes on both sides."""

    def __cinit__(
        self, Py_ssize_t source_size, Py_ssize_t target_size, Py_ssize_t itemsize,
        const Py_ssize_t[:] source_offsets not None, const Py_ssize_t[:, :] source_strides not None,
        const Py_ssize_t[:] target_offsets not None, const Py_ssize_t[:, :] target_strides not None,
        const Py_ssize_t[:, :] extents not None,
    ):
        cdef Py_ssize_t boxes = extents.shape[0], ndim = extents.shape[1], box
        if source_size < 0 or target_size < 0 or itemsize < 0:
            raise ValueError(f"sizes cannot be negative: {source_size}, {target_size} and {itemsize} bytes")
        if not (boxes == source_offsets.shape[0] == target_offsets.shape[0]
                == source_strides.shape[0] == target_strides.shape[0]):
            raise ValueError("offsets, strides and extents must describe the same number of boxes")
        if not ndim == source_strides.shape[1] == target_strides.shape[1]:
            raise ValueError("strides and extents must describe the same number of axes")
        self.source_size, self.target_size = source_size, target_size
        self.width = HEAD + 3 * ndim
        self.single_runs = True
        self.rows = <Py_ssize_t *> PyMem_Malloc(max(1, boxes * self.width) * sizeof(Py_ssize_t))
        if self.rows == NULL:
            raise MemoryError()
        for box in range(boxes):
            if _elements(extents[box]) == 0 or itemsize == 0:
                continue
            _check(box, "source", source_size, itemsize, source_offsets[box], extents[box], source_strides[box])
            _check(box, "target", target_size, itemsize, target_offsets[box], extents[box], target_strides[box])
            self._append(
                itemsize, source_offsets[box], source_strides[box], target_offsets[box], target_strides[box],
                extents[box],
            )

    def __dealloc__(self):
        PyMem_Free(self.rows)

    cdef void _append(
        self, Py_ssize_t run, Py_ssize_t source, const Py_ssize_t[:] source_strides, Py_ssize_t target,
        const Py_ssize_t[:] target_strides, const Py_ssize_t[:] extents,
    ) noexcept:
        # The fewest loops over the longest runs: an axis that continues the run on both sides joins it, one that
        # continues the next loop on both sides joins that. From the last axis to the first: loops come out reversed.
        cdef Py_ssize_t *row = self.rows + self.count * self.width
        cdef Py_ssize_t *loop = row + HEAD
        cdef Py_ssize_t axis, loops = 0, swap, i, k
        for axis in range(extents.shape[0] - 1, -1, -1):
            if extents[axis] == 1:
                continue
            if loops == 0 and source_strides[axis] == run and target_strides[axis] == run:
                run *= extents[axis]
            elif loops and source_strides[axis] == loop[1] * loop[0] and target_strides[axis] == loop[2] * loop[0]:
                loop[0] *= extents[axis]
            else:
                if loops:
                    loop += 3
                loop[0], loop[1], loop[2] = extents[axis], source_strides[axis], target_strides[axis]
                loops += 1
        loop = row + HEAD
        for i in range(loops // 2):
            for k in range(3):
                swap = loop[3 * i + k]
                loop[3 * i + k] = loop[3 * (loops - 1 - i) + k]
                loop[3 * (loops - 1 - i) + k] = swap
        row[SOURCE], row[TARGET], row[RUN], row[LOOPS] = source, target, run, loops
        self.single_runs = self.single_runs and loops == 0
        self.count += 1

    def run(self, source, target):
        """Copy every box from the buffer *source* to the writable buffer *target*. Local.

        ``ValueError`` unless their sizes are those that the boxes were checked against.
        """
        cdef Py_buffer read, write
        PyObject_GetBuffer(source, &read, PyBUF_SIMPLE)
        try:
            PyObject_GetBuffer(target, &write, PyBUF_SIMPLE | PyBUF_WRITABLE)
            try:
                if read.len != self.source_size or write.len != self.target_size:
                    raise ValueError(
                        f"the boxes were checked against {self.source_size} and {self.target_size} bytes, "
                        f"not against {read.len} and {write.len}"
                    )
                with nogil:
                    self._run(<const char *> read.buf, <char *> write.buf)
            finally:
                PyBuffer_Release(&write)
        finally:
            PyBuffer_Release(&read)

    cdef void _run(self, const char *source, char *target) noexcept nogil:
        cdef const Py_ssize_t *row
        cdef Py_ssize_t box
        for box in range(self.count):
            row = self.rows + box * self.width
            _copy(source + row[SOURCE], target + row[TARGET], row[RUN], row[LOOPS], row + HEAD)


cdef Py_ssize_t _elements(const Py_ssize_t[:] extents) except -1:
    # 0 for an empty box and 1 for any other: the number itself could overflow before it is checked.
    cdef Py_ssize_t axis, full = 1
    for axis in range(extents.shape[0]):
        if extents[axis] < 0:
            raise ValueError(f"an extent cannot be negative: {extents[axis]} on axis {axis}")
        if extents[axis] == 0:
            full = 0
    return full


cdef int _check(
    Py_ssize_t box, str side, Py_ssize_t size, Py_ssize_t itemsize, Py_ssize_t offset,
    const Py_ssize_t[:] extents, const Py_ssize_t[:] strides,
) except -1:
    # By division, never by a product that could overflow: steps * |stride| must fit into what is left.
    cdef Py_ssize_t low = offset, high = 0, steps, stride, axis
    cdef bint inside = 0 <= offset <= size and itemsize <= size - offset
    if inside:
        high = size - offset - itemsize
    for axis in range(extents.shape[0]):
        steps, stride = extents[axis] - 1, strides[axis]
        if not inside or steps == 0 or stride == 0:
            continue
        if stride > 0:
            inside = steps <= high // stride
            high -= steps * stride if inside else 0
        else:
            inside = stride >= -size and steps <= low // -stride
            low += steps * stride if inside else 0
    if not inside:
        raise ValueError(
            f"box {box} at offset {offset} with extents {list(extents)} and strides {list(strides)} "
            f"reaches outside of the {size} bytes of the {side}"
        )
    return 0


cdef void _copy(
    const char *source, char *target, Py_ssize_t run, Py_ssize_t loops, const Py_ssize_t *loop
) noexcept nogil:
    cdef Py_ssize_t i
    if loops == 0:
        memcpy(target, source, run)
    elif loops == 1:
        _copy_runs(source, target, run, loop[0], loop[1], loop[2])
    else:
        for i in range(loop[0]):
            _copy(source + i * loop[1], target + i * loop[2], run, loops - 1, loop + 3)


cdef inline void _copy_runs(
    const char *source, char *target, Py_ssize_t run, Py_ssize_t count, Py_ssize_t source_stride,
    Py_ssize_t target_stride,
) noexcept nogil:
    # A memcpy of a length that the compiler knows is one or two moves instead of a call.
    cdef Py_ssize_t i
    if run == 1:
        for i in range(count):
            memcpy(target + i * target_stride, source + i * source_stride, 1)
    elif run == 2:
        for i in range(count):
            memcpy(target + i * target_stride, source + i * source_stride, 2)
    elif run == 4:
        for i in range(count):
            memcpy(target + i * target_stride, source + i * source_stride, 4)
    elif run == 8:
        for i in range(count):
            memcpy(target + i * target_stride, source + i * source_stride, 8)
    elif run == 16:
        for i in range(count):
            memcpy(target + i * target_stride, source + i * source_stride, 16)
    else:
        for i in range(count):
            memcpy(target + i * target_stride, source + i * source_stride, run)
