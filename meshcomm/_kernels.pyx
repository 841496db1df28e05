# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, embedsignature=True
"""Pack, unpack and copy boxes of blocks, as bytes; knows no dtype and no MPI.

A box of a region of memory is an offset, an extent per axis and a stride per axis, in bytes. `BoxCopies` copies boxes
of some regions into boxes of others; `Packing` copies boxes of regions into one buffer, where they lie one after the
other, and back. A list of boxes is checked once, when it is made, and then run any number of times without the GIL.

What is written must not overlap what is read. Where two boxes, or two items of one box, write to the same byte, either
may remain.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.mem cimport PyMem_Free, PyMem_Malloc
from libc.string cimport memcpy

cdef extern from "Python.h":
    const Py_ssize_t PY_SSIZE_T_MAX

cdef enum:
    MOST_AXES = 64  # as NumPy has


cdef class _Regions:
    """Sizes of the buffers on one side of a list of boxes, and which of them the boxes use."""

    def __cinit__(self, sizes, str name):
        cdef Py_ssize_t i
        sizes = tuple(sizes)
        self.count, self.name = len(sizes), name
        self.sizes = <Py_ssize_t *> _allocate(self.count * sizeof(Py_ssize_t))
        self.used = <bint *> _allocate(self.count * sizeof(bint))
        for i in range(self.count):
            self.sizes[i], self.used[i] = sizes[i], False
            if self.sizes[i] < 0:
                raise ValueError(f"sizes cannot be negative: {sizes[i]} bytes of {name} {i}")

    def __dealloc__(self):
        PyMem_Free(self.sizes)
        PyMem_Free(self.used)

    cdef int check(
        self, Py_ssize_t box, Py_ssize_t region, Py_ssize_t itemsize, Py_ssize_t offset,
        const Py_ssize_t[:] extents, const Py_ssize_t[:] strides,
    ) except -1:
        """Raise ``ValueError`` unless all bytes of a box that is not empty are in the region."""
        # By division, never by a product that could overflow: steps * |stride| must fit into what is left.
        cdef Py_ssize_t size, low = offset, high = 0, steps, stride, axis
        if not 0 <= region < self.count:
            raise ValueError(f"box {box} is in {self.name} {region}, but there are {self.count} of them")
        size = self.sizes[region]
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
                f"reaches outside of the {size} bytes of {self.name} {region}"
            )
        self.used[region] = True
        return 0

    cdef _Views hold(self, buffers, bint writable):
        """Return the memory of *buffers*, which must have the sizes that the boxes were checked against."""
        cdef _Views held = _Views(self.count)
        cdef Py_buffer *view = <Py_buffer *> held.views
        cdef int flags = PyBUF_SIMPLE | PyBUF_WRITABLE if writable else PyBUF_SIMPLE
        cdef Py_ssize_t i
        if len(buffers) != self.count:
            raise ValueError(
                f"the boxes were checked against {self.count} of {self.name}, not against {len(buffers)}"
            )
        for i in range(self.count):
            buffer = buffers[i]
            held.pointers[i] = NULL
            if buffer is None and not self.used[i]:
                continue
            PyObject_GetBuffer(buffer, view + held.held, flags)
            held.held += 1
            held.pointers[i] = <char *> view[held.held - 1].buf
            if view[held.held - 1].len != self.sizes[i]:
                raise ValueError(
                    f"the boxes were checked against {self.sizes[i]} bytes of {self.name} {i}, "
                    f"not against {view[held.held - 1].len}"
                )
        return held


cdef class _Views:
    """Buffers that are held for as long as this object lives."""

    def __cinit__(self, Py_ssize_t count):
        self.views = _allocate(count * sizeof(Py_buffer))
        self.pointers = <char **> _allocate(count * sizeof(char *))

    def __dealloc__(self):
        cdef Py_ssize_t i
        for i in range(self.held):
            PyBuffer_Release(<Py_buffer *> self.views + i)
        PyMem_Free(self.views)
        PyMem_Free(self.pointers)


cdef class BoxCopies:
    """A list of box copies between regions of bytes, checked once and run many times. Local.

    *source_sizes* and *target_sizes* are the bytes of each region. Per box: *sources* and *targets* say in which region
    it is, *source_offsets* and *target_offsets* (bytes) where; *extents* (elements), *source_strides* and
    *target_strides* (bytes) have one row per box and one column per axis; an element is *itemsize* bytes.
    ``ValueError`` if a box reaches outside of its region.

    >>> import numpy as np
    >>> box = lambda *values: np.array([values], dtype=np.intp)
    >>> columns = BoxCopies(  # columns 1 and 2 of 2 x 3
    ...     [6], [4], 1, box(0)[0], box(1)[0], box(3, 1), box(0)[0], box(0)[0], box(2, 1), box(2, 2))
    >>> packed = np.zeros(4, np.uint8)
    >>> columns.run([np.arange(6, dtype=np.uint8)], [packed])
    >>> packed
    array([1, 2, 4, 5], dtype=uint8)
    """

    def __cinit__(
        self, source_sizes, target_sizes, Py_ssize_t itemsize,
        const Py_ssize_t[:] sources not None, const Py_ssize_t[:] source_offsets not None,
        const Py_ssize_t[:, :] source_strides not None,
        const Py_ssize_t[:] targets not None, const Py_ssize_t[:] target_offsets not None,
        const Py_ssize_t[:, :] target_strides not None,
        const Py_ssize_t[:, :] extents not None,
    ):
        cdef Py_ssize_t boxes = extents.shape[0], ndim = extents.shape[1], i, axis
        cdef Box *box
        if not (boxes == sources.shape[0] == targets.shape[0] == source_offsets.shape[0] == target_offsets.shape[0]
                == source_strides.shape[0] == target_strides.shape[0]):
            raise ValueError("regions, offsets, strides and extents must describe the same number of boxes")
        if not ndim == source_strides.shape[1] == target_strides.shape[1]:
            raise ValueError("strides and extents must describe the same number of axes")
        self.source_regions, self.target_regions = _Regions(source_sizes, "source"), _Regions(target_sizes, "target")
        self.boxes = _Boxes(boxes, ndim)
        for i in range(boxes):
            if not _has_items(itemsize, extents[i]):
                continue
            self.source_regions.check(i, sources[i], itemsize, source_offsets[i], extents[i], source_strides[i])
            self.target_regions.check(i, targets[i], itemsize, target_offsets[i], extents[i], target_strides[i])
            box = self.boxes.next()
            box.source_region, box.source = sources[i], source_offsets[i]
            box.target_region, box.target = targets[i], target_offsets[i]
            for axis in range(ndim):
                box.loop[axis] = Loop(extents[i, axis], source_strides[i, axis], target_strides[i, axis])
            _merge(box, itemsize)

    @property
    def count(self):
        """The number of boxes that are not empty."""
        return self.boxes.count

    def run(self, sources, targets):
        """Copy every box from the buffers *sources* to the writable buffers *targets*, one for each region. Local.

        ``ValueError`` unless their sizes are those that the boxes were checked against; a region that no box uses may
        be None.
        """
        cdef _Views read = self.source_regions.hold(sources, False)
        cdef _Views write = self.target_regions.hold(targets, True)
        with nogil:
            self.run_pointers(<const char **> read.pointers, write.pointers)

    cdef void run_pointers(self, const char **sources, char **targets) noexcept nogil:
        cdef Py_ssize_t i
        cdef const Box *box
        for i in range(self.boxes.count):
            box = self.boxes.box + i
            _copy(
                sources[box.source_region] + box.source, targets[box.target_region] + box.target, box.run, box.loops,
                box.loop,
            )


cdef class Packing:
    """Boxes of regions of bytes, and the same boxes one after the other in one buffer. Local.

    *sizes* are the bytes of each region. Per box: *regions* says in which region it is, *offsets* (bytes) where;
    *extents* (elements) and *strides* (bytes) have one row per box and one column per axis; an element is *itemsize*
    bytes. ``ValueError`` if a box reaches outside of its region.

    The boxes can be cut: part number r of *parts* is, of each box of n elements, those from
    ``block_start(n, parts, r)`` to ``block_start(n, parts, r + 1)`` in row-major order.

    >>> import numpy as np
    >>> box = lambda *values: np.array([values], dtype=np.intp)
    >>> columns = Packing([6], 1, box(0)[0], box(1)[0], box(3, 1), box(2, 2))  # columns 1 and 2 of 2 x 3
    >>> columns.nbytes, columns.contiguous, columns.part_bytes(1, 3)
    (4, False, 1)
    >>> packed = np.zeros(4, np.uint8)
    >>> columns.pack([np.arange(6, dtype=np.uint8)], packed)
    >>> packed
    array([1, 2, 4, 5], dtype=uint8)
    """

    def __cinit__(
        self, sizes, Py_ssize_t itemsize, const Py_ssize_t[:] regions not None, const Py_ssize_t[:] offsets not None,
        const Py_ssize_t[:, :] strides not None, const Py_ssize_t[:, :] extents not None,
    ):
        cdef Py_ssize_t boxes = extents.shape[0], ndim = extents.shape[1], i, axis, items
        cdef Box *box
        if not boxes == regions.shape[0] == offsets.shape[0] == strides.shape[0]:
            raise ValueError("regions, offsets, strides and extents must describe the same number of boxes")
        if ndim != strides.shape[1]:
            raise ValueError("strides and extents must describe the same number of axes")
        self.regions, self.itemsize, self.contiguous = _Regions(sizes, "region"), itemsize, True
        self.boxes = _Boxes(boxes, ndim)
        for i in range(boxes):
            if not _has_items(itemsize, extents[i]):
                continue
            self.regions.check(i, regions[i], itemsize, offsets[i], extents[i], strides[i])
            box = self.boxes.next()
            box.source_region, box.source, box.target_region, box.target = regions[i], offsets[i], 0, self.nbytes
            items = 1
            for axis in range(ndim - 1, -1, -1):
                box.loop[axis] = Loop(extents[i, axis], strides[i, axis], items * itemsize)
                if items > PY_SSIZE_T_MAX // itemsize // extents[i, axis]:
                    raise ValueError(f"box {i} with extents {list(extents[i])} is too large to be packed")
                items *= extents[i, axis]
            if items > (PY_SSIZE_T_MAX - self.nbytes) // itemsize:
                raise ValueError(f"{boxes} boxes are too large to be packed together")
            self.nbytes += items * itemsize
            _merge(box, itemsize)
            self.contiguous = self.contiguous and box.loops == 0

    @property
    def count(self):
        """The number of boxes that are not empty."""
        return self.boxes.count

    def part_bytes(self, Py_ssize_t part, Py_ssize_t parts):
        """Return how many bytes part number *part* of *parts* has. Local."""
        _check_part(part, parts)
        return self.bytes_of_part(part, parts)

    def pack(self, regions, buffer, Py_ssize_t part=0, Py_ssize_t parts=1):
        """Copy the boxes, or one part of them, from *regions* to the beginning of the writable *buffer*. Local.

        ``ValueError`` unless the regions have the sizes that the boxes were checked against, and the buffer room for
        the part; a region that no box uses may be None.
        """
        _check_part(part, parts)
        cdef _Views read = self.regions.hold(regions, False)
        cdef _Views write = _hold_buffer(buffer, self.bytes_of_part(part, parts), True)
        with nogil:
            self.pack_pointers(<const char **> read.pointers, write.pointers[0], part, parts)

    def unpack(self, buffer, regions, Py_ssize_t part=0, Py_ssize_t parts=1):
        """Copy the boxes, or one part of them, from the beginning of *buffer* to the writable *regions*. Local."""
        _check_part(part, parts)
        cdef _Views read = _hold_buffer(buffer, self.bytes_of_part(part, parts), False)
        cdef _Views write = self.regions.hold(regions, True)
        with nogil:
            self.unpack_pointers(<const char *> read.pointers[0], write.pointers, part, parts)

    cdef Py_ssize_t bytes_of_part(self, Py_ssize_t part, Py_ssize_t parts) noexcept nogil:
        cdef Py_ssize_t i, total = 0
        if parts == 1:
            return self.nbytes
        for i in range(self.boxes.count):
            total += self._cut(i, part + 1, parts) - self._cut(i, part, parts)
        return total

    cdef void pack_pointers(
        self, const char **regions, char *buffer, Py_ssize_t part, Py_ssize_t parts
    ) noexcept nogil:
        self._run(<char **> regions, buffer, part, parts, False)

    cdef void unpack_pointers(
        self, const char *buffer, char **regions, Py_ssize_t part, Py_ssize_t parts
    ) noexcept nogil:
        self._run(regions, <char *> buffer, part, parts, True)

    cdef void _run(
        self, char **regions, char *buffer, Py_ssize_t part, Py_ssize_t parts, bint unpacks
    ) noexcept nogil:
        cdef Py_ssize_t i, begin, end
        cdef const Box *box
        for i in range(self.boxes.count):
            box = self.boxes.box + i
            begin, end = self._cut(i, part, parts), self._cut(i, part + 1, parts)
            _copy_part(regions[box.source_region] + box.source, buffer, box, 0, begin, end, unpacks)
            buffer += end - begin

    cdef Py_ssize_t _cut(self, Py_ssize_t i, Py_ssize_t part, Py_ssize_t parts) noexcept nogil:
        # The byte of a packed box at which a part begins, as meshcomm.blocks has it; no product exceeds the items.
        cdef Py_ssize_t stop = self.nbytes if i == self.boxes.count - 1 else self.boxes.box[i + 1].target
        cdef Py_ssize_t items = (stop - self.boxes.box[i].target) // self.itemsize
        return (part * (items // parts) + min(part, items % parts)) * self.itemsize


cdef class _Boxes:
    """Memory for boxes of *ndim* loops each."""

    def __cinit__(self, Py_ssize_t room, Py_ssize_t ndim):
        if ndim > MOST_AXES:
            raise ValueError(f"a box has at most {MOST_AXES} axes, not {ndim}")
        self.ndim = ndim
        self.box = <Box *> _allocate(room * sizeof(Box))
        self.loops = <Loop *> _allocate(room * ndim * sizeof(Loop))

    def __dealloc__(self):
        PyMem_Free(self.box)
        PyMem_Free(self.loops)

    cdef Box *next(self) noexcept:
        cdef Box *box = self.box + self.count
        box.loop, box.loops = self.loops + self.count * self.ndim, self.ndim
        self.count += 1
        return box


cdef void *_allocate(size_t size) except NULL:
    cdef void *memory = PyMem_Malloc(max(1, size))
    if memory == NULL:
        raise MemoryError()
    return memory


cdef _Views _hold_buffer(buffer, Py_ssize_t size, bint writable):
    """Return the memory of *buffer*, which must have at least *size* bytes."""
    cdef _Views held = _Views(1)
    cdef Py_buffer *view = <Py_buffer *> held.views
    PyObject_GetBuffer(buffer, view, PyBUF_SIMPLE | PyBUF_WRITABLE if writable else PyBUF_SIMPLE)
    held.held, held.pointers[0] = 1, <char *> view.buf
    if view.len < size:
        raise ValueError(f"a buffer of {view.len} bytes has no room for {size}")
    return held


cdef int _check_part(Py_ssize_t part, Py_ssize_t parts) except -1:
    if not 0 <= part < parts:
        raise ValueError(f"part {part} of {parts}: parts are numbered from 0, and there is at least one")
    return 0


cdef bint _has_items(Py_ssize_t itemsize, const Py_ssize_t[:] extents) except -1:
    cdef Py_ssize_t axis
    cdef bint full = itemsize > 0
    if itemsize < 0:
        raise ValueError(f"an item cannot have {itemsize} bytes")
    for axis in range(extents.shape[0]):
        if extents[axis] < 0:
            raise ValueError(f"an extent cannot be negative: {extents[axis]} on axis {axis}")
        full = full and extents[axis] > 0
    return full


cdef void _merge(Box *box, Py_ssize_t itemsize) noexcept:
    # The fewest loops over the longest runs: an axis that continues the run on both sides joins it, one that
    # continues the next loop on both sides joins that. From the last axis to the first.
    cdef Py_ssize_t axis, free = box.loops
    cdef Loop here
    cdef Loop *inner
    box.run = itemsize
    for axis in range(box.loops - 1, -1, -1):
        here, inner = box.loop[axis], box.loop + free
        if here.extent == 1:
            continue
        if free == box.loops and here.source == box.run and here.target == box.run:
            box.run *= here.extent
        elif (free < box.loops and here.source == inner.source * inner.extent
                and here.target == inner.target * inner.extent):
            inner.extent *= here.extent
        else:
            free -= 1
            box.loop[free] = here
    box.loop += free
    box.loops -= free


cdef void _copy_part(
    char *region, char *packed, const Box *box, Py_ssize_t level, Py_ssize_t begin, Py_ssize_t end, bint unpacks
) noexcept nogil:
    # Bytes begin to end of what the loops from this one on pack: parts of an iteration, whole ones, part of one.
    cdef Py_ssize_t whole, first, last, stride
    if begin >= end:
        return
    if level == box.loops:
        if unpacks:
            memcpy(region + begin, packed, end - begin)
        else:
            memcpy(packed, region + begin, end - begin)
        return
    whole, stride = box.loop[level].target, box.loop[level].source
    first, last = begin // whole + (begin % whole != 0), end // whole
    if first > last:
        _copy_part(
            region + last * stride, packed, box, level + 1, begin - last * whole, end - last * whole, unpacks
        )
        return
    _copy_part(
        region + (first - 1) * stride, packed, box, level + 1, begin - (first - 1) * whole, whole, unpacks
    )
    packed += first * whole - begin
    _copy_whole(region + first * stride, packed, box, level, last - first, unpacks)
    packed += (last - first) * whole
    _copy_part(region + last * stride, packed, box, level + 1, 0, end - last * whole, unpacks)


cdef void _copy_whole(
    char *region, char *packed, const Box *box, Py_ssize_t level, Py_ssize_t extent, bint unpacks
) noexcept nogil:
    # So many iterations of a loop, and of all those inside of it.
    cdef Loop[MOST_AXES] loops
    cdef Py_ssize_t i, count = box.loops - level
    if extent == 0:
        return
    for i in range(count):
        loops[i] = box.loop[level + i]
        if unpacks:
            loops[i].source, loops[i].target = loops[i].target, loops[i].source
    loops[0].extent = extent
    if unpacks:
        _copy(packed, region, box.run, count, loops)
    else:
        _copy(region, packed, box.run, count, loops)


cdef void _copy(const char *source, char *target, Py_ssize_t run, Py_ssize_t loops, const Loop *loop) noexcept nogil:
    cdef Py_ssize_t i
    if loops == 0:
        memcpy(target, source, run)
    elif loops == 1:
        _copy_runs(source, target, run, loop.extent, loop.source, loop.target)
    else:
        for i in range(loop.extent):
            _copy(source + i * loop.source, target + i * loop.target, run, loops - 1, loop + 1)


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
