# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, embedsignature=True
"""Copy boxes between memory regions, or pack them into one buffer and unpack them again.

A box (MPI: subarray) of a memory region is an offset, an extent per axis and a stride per axis. The classes here
check once that every box lies within its region. Then they copy any number of times, without the GIL. They see only
bytes: no dtype and no MPI. How the bytes are copied is in ``memory/strided/*.h``.

The target must not overlap the source. If two boxes, or two items of one box, write to the same byte, the byte gets
one of the two values.
"""

cimport cython
from cpython.buffer cimport PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.mem cimport PyMem_Free, PyMem_Malloc
from libc.stdint cimport int32_t, int64_t
from libc.stdlib cimport qsort

cdef extern from "Python.h":
    const Py_ssize_t PY_SSIZE_T_MAX

cdef extern from "core/memory/strided/strided.h" nogil:
    enum:
        MAX_AXES
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
    ctypedef struct Pieces:
        Py_ssize_t count, loops
        bint unpacks, streams
        char **regions
        char *packed
    void drop_single_iterations(Box *box)
    void merge_loops(Box *box)
    void copies_plan(Copies *list)
    void copies_run(const Copies *list, const char **sources, char **targets)
    void cut_range(
        const Box *box, Py_ssize_t level, Py_ssize_t source, Py_ssize_t begin, Py_ssize_t end, Py_ssize_t packed,
        Pieces *pieces,
    )
    void copy_pieces(Pieces *pieces)

cdef extern from "core/memory/gather.h" nogil:
    void rows_run(
        const char **sources, const int32_t *regions, const Py_ssize_t *row_numbers, Py_ssize_t count, Py_ssize_t row,
        char *target,
    )
    Py_ssize_t rows_find(
        const int64_t *indices, Py_ssize_t count, const int64_t *boundaries, Py_ssize_t blocks, const int32_t *owners,
        int32_t *regions, Py_ssize_t *row_numbers,
    )


cdef enum:
    # Bytes. A round of at least this size is packed past the caches: the process that reads it may not share them.
    READ_ELSEWHERE = 1 << 20


cdef class _Regions:
    """The sizes of the memory regions on one side of a list of boxes, and which of them the boxes use."""

    def __cinit__(self, sizes, str name):
        cdef Py_ssize_t i
        sizes = tuple(sizes)
        self.count, self.name = len(sizes), name
        self.sizes = <Py_ssize_t *> _allocate(self.count * sizeof(Py_ssize_t))
        self.used = <bint *> _allocate(self.count * sizeof(bint))
        for i in range(self.count):
            self.sizes[i], self.used[i] = sizes[i], False
            if self.sizes[i] < 0:
                raise ValueError(f"{name} {i} has {sizes[i]} bytes: a size cannot be negative")

    def __dealloc__(self):
        PyMem_Free(self.sizes)
        PyMem_Free(self.used)

    cdef int check(
        self, Py_ssize_t box, Py_ssize_t region, Py_ssize_t itemsize, Py_ssize_t offset,
        const Py_ssize_t[:] extents, const Py_ssize_t[:] strides,
    ) except -1:
        """Raise ``ValueError`` if a byte of the box, which is not empty, lies outside its region."""
        # steps * |stride| must fit into the bytes that are left. A product could overflow, so this divides.
        cdef Py_ssize_t size, low = offset, high = 0, steps, stride, axis
        if not 0 <= region < self.count:
            raise ValueError(f"box {box} is in {self.name} {region}, but there are {self.count}, numbered from 0")
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
        """Return the memory of *buffers*. Raise ``ValueError`` if a size differs from that given at construction."""
        cdef _Views views = _Views(self.count)
        cdef Py_buffer *view = views.views
        cdef int flags = PyBUF_SIMPLE | PyBUF_WRITABLE if writable else PyBUF_SIMPLE
        cdef Py_ssize_t i
        if len(buffers) != self.count:
            raise ValueError(
                f"got {len(buffers)} buffers for {self.count} {self.name} regions: the boxes were checked against "
                f"{self.count}"
            )
        for i in range(self.count):
            buffer = buffers[i]
            views.pointers[i] = NULL
            if buffer is None and not self.used[i]:
                continue
            PyObject_GetBuffer(buffer, view + views.filled, flags)
            views.filled += 1
            views.pointers[i] = <char *> view[views.filled - 1].buf
            if view[views.filled - 1].len != self.sizes[i]:
                raise ValueError(
                    f"the buffer of {self.name} {i} has {view[views.filled - 1].len} bytes: the boxes were checked "
                    f"against {self.sizes[i]}"
                )
        return views


@cython.freelist(4)
cdef class _Views:
    """Buffers that cannot be freed or resized while this object lives."""

    def __cinit__(self, Py_ssize_t count):
        if count <= FEW:
            self.views, self.pointers = self.few_views, self.few_pointers
            return
        self.many = _allocate(count * (sizeof(Py_buffer) + sizeof(char *)))
        self.views = <Py_buffer *> self.many
        self.pointers = <char **> (self.views + count)

    def __dealloc__(self):
        cdef Py_ssize_t i
        for i in range(self.filled):
            PyBuffer_Release(self.views + i)
        PyMem_Free(self.many)


cdef class RegionCopies:
    """Copies between memory regions, of whatever kind: `BoxCopies` or `RowCopies`."""

    def run(self, sources, targets):
        """Copy all from the buffers *sources* to the writable buffers *targets*.

        Both have one buffer per region, of the size given at construction; otherwise raise ``ValueError``. The buffer
        of a region that nothing uses may be None.
        """
        cdef _Views read = self.source_regions.hold(sources, False)
        cdef _Views write = self.target_regions.hold(targets, True)
        with nogil:
            self.run_pointers(<const char **> read.pointers, write.pointers)

    cdef void run_pointers(self, const char **sources, char **targets) noexcept nogil:
        pass


cdef class BoxCopies(RegionCopies):
    """A list of box copies between memory regions: checked once, copied any number of times.

    *source_sizes*, *target_sizes*: the bytes of each region.
    *itemsize*: the bytes of an element.
    *sources*, *targets*: for each box, the number of its region.
    *source_offsets*, *target_offsets*: for each box, the byte of the region at which it begins.
    *source_strides*, *target_strides*: in bytes, one row per box and one column per axis.
    *extents*: in elements, one row per box and one column per axis.
    *at_once*: the number of processes that share a cache and copy such lists at the same time. If their lists
    together are larger than the cache, the copy writes past it.

    Raise ``ValueError`` if a box reaches outside its region.

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
        """The number of boxes, without empty ones."""
        return (<Copies *> self.boxes.list).count

    cdef void run_pointers(self, const char **sources, char **targets) noexcept nogil:
        copies_run(<const Copies *> self.boxes.list, sources, targets)


cdef class RowCopies(RegionCopies):
    """Rows that are gathered from several memory regions into one: checked once, copied any number of times.

    *source_sizes*: the bytes of each region.
    *row*: the bytes of a row.
    *regions*: for each row of the target, the number of its region.
    *row_numbers*: for each row of the target, the number of the row there.

    Raise ``ValueError`` if a row lies outside its region.

    >>> import numpy as np
    >>> rows = RowCopies([2, 4], 2, np.array([1, 0], dtype=np.int32), np.array([1, 0]))
    >>> found = np.zeros(4, np.uint8)
    >>> rows.run([np.arange(2, dtype=np.uint8), np.arange(10, 14, dtype=np.uint8)], [found])
    >>> found
    array([12, 13,  0,  1], dtype=uint8)
    """

    cdef const int32_t[::1] regions
    cdef const Py_ssize_t[::1] row_numbers
    cdef Py_ssize_t row

    def __cinit__(
        self, source_sizes, Py_ssize_t row,
        const int32_t[::1] regions not None, const Py_ssize_t[::1] row_numbers not None,
    ):
        cdef Py_ssize_t i, count = row_numbers.shape[0]
        cdef int32_t region
        cdef bint inside = regions.shape[0] == count and row > 0
        if not inside:
            raise ValueError("there must be a region and a row number for each row, and rows have bytes")
        self.source_regions, self.target_regions = _Regions(source_sizes, "source"), _Regions([count * row], "target")
        self.regions, self.row_numbers, self.row = regions, row_numbers, row
        self.target_regions.used[0] = count > 0
        for i in range(count):
            region = regions[i]
            inside = 0 <= region < self.source_regions.count
            if not inside or not 0 <= row_numbers[i] < self.source_regions.sizes[region] // row:
                raise ValueError(f"row {i} is row {row_numbers[i]} of region {region}, which is outside of its bytes")
            self.source_regions.used[region] = True

    cdef void run_pointers(self, const char **sources, char **targets) noexcept nogil:
        if self.row_numbers.shape[0]:
            rows_run(sources, &self.regions[0], &self.row_numbers[0], self.row_numbers.shape[0], self.row, targets[0])


def find_rows(
    const int64_t[::1] indices not None, const int64_t[::1] boundaries not None, const int32_t[::1] owners not None,
    int32_t[::1] regions not None, Py_ssize_t[::1] row_numbers not None,
):
    """Find the blocks of an axis that have the elements at *indices*, which may count from its end.

    Block b has the elements from boundaries[b] to boundaries[b + 1]. Write owners[b] to *regions*, and
    where in its block an element is to *row_numbers*. Return the position of the first index that is out of bounds,
    or -1.

    >>> import numpy as np
    >>> regions, row_numbers = np.zeros(3, np.int32), np.zeros(3, np.intp)
    >>> find_rows(np.array([0, 5, -1]), np.array([0, 4, 6]), np.array([7, 8], np.int32), regions, row_numbers)
    -1
    >>> regions.tolist(), row_numbers.tolist()
    ([7, 8, 8], [0, 1, 1])
    """
    cdef Py_ssize_t count = indices.shape[0], blocks = owners.shape[0], b, wrong_index
    if not (boundaries.shape[0] == blocks + 1 and blocks and regions.shape[0] == row_numbers.shape[0] == count):
        raise ValueError("there must be a boundary at each end of each block, and a region and a row for each index")
    for b in range(blocks):
        if boundaries[b] > boundaries[b + 1] or boundaries[0] != 0:
            raise ValueError("boundaries must ascend from 0")
    if not count:
        return -1
    with nogil:
        wrong_index = rows_find(&indices[0], count, &boundaries[0], blocks, &owners[0], &regions[0], &row_numbers[0])
    return wrong_index


cdef class Packing:
    """Boxes of memory regions that can be packed into one buffer, one after the other, and unpacked again.

    *sizes*: the bytes of each region.
    *itemsize*: the bytes of an element.
    *regions*: for each box, the number of its region.
    *offsets*: for each box, the byte of the region at which it begins.
    *strides*: in bytes, one row per box and one column per axis.
    *extents*: in elements, one row per box and one column per axis.

    Raise ``ValueError`` if a box reaches outside its region.

    The boxes can be packed in several rounds, to need a smaller buffer. Round r of *rounds* packs, of each box, block
    r of the elements in row-major order, cut into *rounds* blocks by the rule of ``numpy.array_split``.

    >>> import numpy as np
    >>> box = lambda *values: np.array([values], dtype=np.intp)
    >>> columns = Packing([6], 1, box(0)[0], box(1)[0], box(3, 1), box(2, 2))  # columns 1 and 2 of 2 x 3
    >>> columns.nbytes, columns.contiguous, columns.round_bytes(1, 3)
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
                    raise ValueError(
                        f"box {i} with extents {list(extents[i])} is too large to pack: "
                        f"{PY_SSIZE_T_MAX} bytes at most"
                    )
                items *= extents[i, axis]
            if items > (PY_SSIZE_T_MAX - self.nbytes) // itemsize:
                raise ValueError(f"{boxes} boxes are too large to pack together: {PY_SSIZE_T_MAX} bytes at most")
            self.nbytes += items * itemsize
            drop_single_iterations(box)
            merge_loops(box)
            self.contiguous = self.contiguous and box.loops == 0
        self.packs, self.unpacks = _planned(self.boxes, False), _planned(self.boxes, True)

    @property
    def count(self):
        """The number of boxes, without empty ones."""
        return (<Copies *> self.boxes.list).count

    def round_bytes(self, Py_ssize_t number, Py_ssize_t rounds):
        """Return how many bytes round *number* of *rounds* packs."""
        _check_round(number, rounds)
        return self.bytes_of_round(number, rounds)

    def pack(self, regions, buffer, Py_ssize_t number=0, Py_ssize_t rounds=1):
        """Copy the boxes, or one round of them, from *regions* to the beginning of the writable *buffer*.

        *regions* has one buffer per region, of the size given at construction. The buffer of a region that no box uses
        may be None. *buffer* has at least ``round_bytes(number, rounds)`` bytes. Otherwise raise ``ValueError``.
        """
        _check_round(number, rounds)
        cdef _Views read = self.regions.hold(regions, False)
        cdef _Views write = _hold_buffer(buffer, self.bytes_of_round(number, rounds), True)
        with nogil:
            self.pack_pointers(<const char **> read.pointers, write.pointers[0], number, rounds)

    def unpack(self, buffer, regions, Py_ssize_t number=0, Py_ssize_t rounds=1):
        """Copy the boxes, or one round of them, from the beginning of *buffer* to the writable *regions*."""
        _check_round(number, rounds)
        cdef _Views read = _hold_buffer(buffer, self.bytes_of_round(number, rounds), False)
        cdef _Views write = self.regions.hold(regions, True)
        with nogil:
            self.unpack_pointers(<const char *> read.pointers[0], write.pointers, number, rounds)

    cdef Py_ssize_t bytes_of_round(self, Py_ssize_t number, Py_ssize_t rounds) noexcept nogil:
        cdef Py_ssize_t i, total = 0
        if rounds == 1:
            return self.nbytes
        for i in range((<Copies *> self.boxes.list).count):
            total += self._start(i, number + 1, rounds) - self._start(i, number, rounds)
        return total

    cdef void pack_pointers(
        self, const char **regions, char *buffer, Py_ssize_t number, Py_ssize_t rounds
    ) noexcept nogil:
        if rounds == 1:
            copies_run(<const Copies *> self.packs.list, regions, &buffer)
        else:
            self._run_round(<char **> regions, buffer, number, rounds, False)

    cdef void unpack_pointers(
        self, const char *buffer, char **regions, Py_ssize_t number, Py_ssize_t rounds
    ) noexcept nogil:
        if rounds == 1:
            copies_run(<const Copies *> self.unpacks.list, &buffer, regions)
        else:
            self._run_round(regions, <char *> buffer, number, rounds, True)

    cdef void _run_round(
        self, char **regions, char *buffer, Py_ssize_t number, Py_ssize_t rounds, bint unpacks
    ) noexcept nogil:
        cdef Py_ssize_t i, begin, end, packed = 0
        cdef const Copies *list = <const Copies *> self.boxes.list
        cdef Pieces pieces
        pieces.count, pieces.loops, pieces.unpacks, pieces.regions, pieces.packed = 0, 0, unpacks, regions, buffer
        pieces.streams = self.nbytes // rounds >= (STREAM_FROM if unpacks else READ_ELSEWHERE)
        for i in range(list.count):
            begin, end = self._start(i, number, rounds), self._start(i, number + 1, rounds)
            cut_range(list.box + i, 0, list.box[i].source, begin, end, packed, &pieces)
            packed += end - begin
        copy_pieces(&pieces)

    cdef Py_ssize_t _start(self, Py_ssize_t i, Py_ssize_t number, Py_ssize_t rounds) noexcept nogil:
        # The byte of packed box i at which a round begins, by the rule of numpy.array_split. No product can overflow:
        # each is at most the number of items.
        cdef const Copies *list = <const Copies *> self.boxes.list
        cdef Py_ssize_t stop = self.nbytes if i == list.count - 1 else list.box[i + 1].target
        cdef Py_ssize_t items = (stop - list.box[i].target) // self.itemsize
        return (number * (items // rounds) + min(number, items % rounds)) * self.itemsize


cdef struct Extent:
    const char *start
    const char *stop
    bint written


cdef int _earlier(const void *a, const void *b) noexcept nogil:
    cdef const char *first = (<const Extent *> a).start
    cdef const char *second = (<const Extent *> b).start
    return (first > second) - (first < second)


def overlap(written, read):
    """Return whether one of the buffers *written* shares memory with another one, written or read.

    >>> import numpy as np
    >>> bytes_ = np.zeros(8, np.uint8)
    >>> overlap([bytes_[:4]], [bytes_[4:]]), overlap([bytes_[:5]], [bytes_[4:]]), overlap([], [bytes_, bytes_])
    (False, True, False)
    """
    cdef list buffers = [*written, *read]
    cdef Py_ssize_t count = 0, i, writes = len(written)
    cdef const char *end = NULL  # of all buffers before this one
    cdef const char *end_written = NULL
    cdef Extent *extents = <Extent *> _allocate(len(buffers) * sizeof(Extent))
    cdef Py_buffer view
    try:
        for i in range(len(buffers)):
            PyObject_GetBuffer(buffers[i], &view, PyBUF_SIMPLE)
            if view.len:
                extents[count] = Extent(<const char *> view.buf, <const char *> view.buf + view.len, i < writes)
                count += 1
            PyBuffer_Release(&view)
        qsort(extents, count, sizeof(Extent), &_earlier)
        for i in range(count):
            if extents[i].start < (end if extents[i].written else end_written):
                return True
            end = max(end, extents[i].stop)
            if extents[i].written:
                end_written = max(end_written, extents[i].stop)
        return False
    finally:
        PyMem_Free(extents)


cdef class _Boxes:
    """Memory for *capacity* boxes of *ndim* loops each."""

    def __cinit__(self, Py_ssize_t capacity, Py_ssize_t ndim):
        cdef Copies *list
        if ndim > MAX_AXES:
            raise ValueError(f"a box has at most {MAX_AXES} axes, not {ndim}")
        self.list = list = <Copies *> _allocate(sizeof(Copies))
        list.box, list.count, list.at_once, list.streams = NULL, 0, 1, False
        list.box = <Box *> _allocate(capacity * sizeof(Box))
        self.loops = _allocate(capacity * ndim * sizeof(Loop))
        self.ndim = ndim

    def __dealloc__(self):
        if self.list != NULL:
            PyMem_Free((<Copies *> self.list).box)
        PyMem_Free(self.list)
        PyMem_Free(self.loops)


cdef Box *_next(_Boxes boxes) noexcept:
    """Return the next free box, with memory for its loops."""
    cdef Copies *list = <Copies *> boxes.list
    cdef Box *box = list.box + list.count
    box.loop, box.loops = <Loop *> boxes.loops + list.count * boxes.ndim, boxes.ndim
    list.count += 1
    return box


cdef _Boxes _planned(_Boxes boxes, bint swapped):
    """Return a copy of the boxes that is ready to run, with source and target *swapped* or not."""
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
    """Return the memory of *buffer*. Raise ``ValueError`` if it has fewer than *size* bytes."""
    cdef _Views views = _Views(1)
    cdef Py_buffer *view = views.views
    PyObject_GetBuffer(buffer, view, PyBUF_SIMPLE | PyBUF_WRITABLE if writable else PyBUF_SIMPLE)
    views.filled, views.pointers[0] = 1, <char *> view.buf
    if view.len < size:
        raise ValueError(f"the buffer has {view.len} bytes, but this round needs {size}")
    return views


cdef int _check_round(Py_ssize_t number, Py_ssize_t rounds) except -1:
    if not 0 <= number < rounds:
        raise ValueError(f"round {number} of {rounds}: rounds are numbered from 0, and there is at least one")
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
