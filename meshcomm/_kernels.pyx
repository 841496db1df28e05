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

cdef extern from "Python.h":
    const Py_ssize_t PY_SSIZE_T_MAX

cdef extern from "_strided.h" nogil:
    enum:
        MOST_AXES
        STREAM_FROM "MESHCOMM_STREAM_FROM"
    ctypedef struct Loop:
        Py_ssize_t extent, source, target
    ctypedef struct Box:
        Py_ssize_t source_region, target_region, source, target, run, loops
        Loop *loop
    ctypedef struct Copies:
        Box *box
        Py_ssize_t count, at_once
        bint streams
    ctypedef struct Cuts:
        Py_ssize_t count, loops
        bint unpacks, streams
        char **regions
        char *packed
    void drop_single_iterations(Box *box)
    void merge_loops(Box *box)
    void copies_plan(Copies *list)
    void copies_run(const Copies *list, const char **sources, char **targets)
    void cut(
        const Box *box, Py_ssize_t level, Py_ssize_t source, Py_ssize_t begin, Py_ssize_t end, Py_ssize_t packed,
        Cuts *cuts,
    )
    void run_cuts(Cuts *cuts)


cdef enum:
    READ_ELSEWHERE = 1 << 20  # bytes of a packed part that are best in memory: who reads them may share no cache


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

    *source_sizes* and *target_sizes* are the bytes of each region. Per box: *sources* and *targets* say in which
    region it is, *source_offsets* and *target_offsets* (bytes) where; *extents* (elements), *source_strides* and
    *target_strides* (bytes) have one row per box and one column per axis; an element is *itemsize* bytes.
    *at_once* is how many processes that share a cache run such a list at the same time: lists that are larger than
    the cache together are written past it. ``ValueError`` if a box reaches outside of its region.

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
        const Py_ssize_t[:, :] extents not None, Py_ssize_t at_once=1,
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
            box = _next(self.boxes)
            box.source_region, box.source = sources[i], source_offsets[i]
            box.target_region, box.target = targets[i], target_offsets[i]
            box.run = itemsize
            for axis in range(ndim):
                box.loop[axis] = Loop(extents[i, axis], source_strides[i, axis], target_strides[i, axis])
        (<Copies *> self.boxes.list).at_once = at_once
        copies_plan(<Copies *> self.boxes.list)

    @property
    def count(self):
        """The number of boxes that are not empty."""
        return (<Copies *> self.boxes.list).count

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
        copies_run(<const Copies *> self.boxes.list, sources, targets)


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
            box = _next(self.boxes)
            box.source_region, box.source, box.target_region, box.target = regions[i], offsets[i], 0, self.nbytes
            box.run, items = itemsize, 1
            for axis in range(ndim - 1, -1, -1):
                box.loop[axis] = Loop(extents[i, axis], strides[i, axis], items * itemsize)
                if items > PY_SSIZE_T_MAX // itemsize // extents[i, axis]:
                    raise ValueError(f"box {i} with extents {list(extents[i])} is too large to be packed")
                items *= extents[i, axis]
            if items > (PY_SSIZE_T_MAX - self.nbytes) // itemsize:
                raise ValueError(f"{boxes} boxes are too large to be packed together")
            self.nbytes += items * itemsize
            drop_single_iterations(box)
            merge_loops(box)
            self.contiguous = self.contiguous and box.loops == 0
        self.packs, self.unpacks = _planned(self.boxes, False), _planned(self.boxes, True)

    @property
    def count(self):
        """The number of boxes that are not empty."""
        return (<Copies *> self.boxes.list).count

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
        for i in range((<Copies *> self.boxes.list).count):
            total += self._start(i, part + 1, parts) - self._start(i, part, parts)
        return total

    cdef void pack_pointers(
        self, const char **regions, char *buffer, Py_ssize_t part, Py_ssize_t parts
    ) noexcept nogil:
        if parts == 1:
            copies_run(<const Copies *> self.packs.list, regions, &buffer)
        else:
            self._run_part(<char **> regions, buffer, part, parts, False)

    cdef void unpack_pointers(
        self, const char *buffer, char **regions, Py_ssize_t part, Py_ssize_t parts
    ) noexcept nogil:
        if parts == 1:
            copies_run(<const Copies *> self.unpacks.list, &buffer, regions)
        else:
            self._run_part(regions, <char *> buffer, part, parts, True)

    cdef void _run_part(
        self, char **regions, char *buffer, Py_ssize_t part, Py_ssize_t parts, bint unpacks
    ) noexcept nogil:
        cdef Py_ssize_t i, begin, end, packed = 0
        cdef const Copies *list = <const Copies *> self.boxes.list
        cdef Cuts cuts
        cuts.count, cuts.loops, cuts.unpacks, cuts.regions, cuts.packed = 0, 0, unpacks, regions, buffer
        cuts.streams = self.nbytes // parts >= (STREAM_FROM if unpacks else READ_ELSEWHERE)
        for i in range(list.count):
            begin, end = self._start(i, part, parts), self._start(i, part + 1, parts)
            cut(list.box + i, 0, list.box[i].source, begin, end, packed, &cuts)
            packed += end - begin
        run_cuts(&cuts)

    cdef Py_ssize_t _start(self, Py_ssize_t i, Py_ssize_t part, Py_ssize_t parts) noexcept nogil:
        # The byte of a packed box at which a part begins, as meshcomm.blocks has it; no product exceeds the items.
        cdef const Copies *list = <const Copies *> self.boxes.list
        cdef Py_ssize_t stop = self.nbytes if i == list.count - 1 else list.box[i + 1].target
        cdef Py_ssize_t items = (stop - list.box[i].target) // self.itemsize
        return (part * (items // parts) + min(part, items % parts)) * self.itemsize


cdef class _Boxes:
    """Memory for boxes of *ndim* loops each."""

    def __cinit__(self, Py_ssize_t room, Py_ssize_t ndim):
        cdef Copies *list
        if ndim > MOST_AXES:
            raise ValueError(f"a box has at most {MOST_AXES} axes, not {ndim}")
        self.list = list = <Copies *> _allocate(sizeof(Copies))
        list.box, list.count, list.at_once, list.streams = NULL, 0, 1, False
        list.box = <Box *> _allocate(room * sizeof(Box))
        self.loops = _allocate(room * ndim * sizeof(Loop))
        self.ndim = ndim

    def __dealloc__(self):
        if self.list != NULL:
            PyMem_Free((<Copies *> self.list).box)
        PyMem_Free(self.list)
        PyMem_Free(self.loops)


cdef Box *_next(_Boxes boxes) noexcept:
    """Return one box more, with room for its loops."""
    cdef Copies *list = <Copies *> boxes.list
    cdef Box *box = list.box + list.count
    box.loop, box.loops = <Loop *> boxes.loops + list.count * boxes.ndim, boxes.ndim
    list.count += 1
    return box


cdef _Boxes _planned(_Boxes boxes, bint swapped):
    """Return the same boxes ready to be run, with their sides *swapped* or not."""
    cdef const Copies *list = <const Copies *> boxes.list
    cdef _Boxes planned = _Boxes(list.count, boxes.ndim)
    cdef const Box *box
    cdef Box *copy
    cdef Loop loop
    cdef Py_ssize_t i, axis
    for i in range(list.count):
        box, copy = list.box + i, _next(planned)
        copy.run, copy.loops = box.run, box.loops
        copy.source_region = box.target_region if swapped else box.source_region
        copy.target_region = box.source_region if swapped else box.target_region
        copy.source, copy.target = box.target if swapped else box.source, box.source if swapped else box.target
        for axis in range(box.loops):
            loop = box.loop[axis]
            copy.loop[axis] = Loop(loop.extent, loop.target, loop.source) if swapped else loop
    copies_plan(<Copies *> planned.list)
    return planned


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
