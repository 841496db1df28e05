# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, embedsignature=True
# cython: auto_pickle=False
"""Memory for blocks that other processes of the node can map; knows no MPI.

A `Pool` is a file without a path. It holds the blocks of one process. Other processes map it as a `Mapping`.
"""
# How the pool works
# ==================
#
# The file begins with one page for the token and with the lines of rendezvous (see _rendezvous.pyx). The rest is cut
# into ranges of whole pages. A range is of one of five kinds:
#
#      allocate                  free, 64 KiB or more              end of a window
# BARE ─────────► USED ◄──────────────────────────────► WHOLE ──────────────────────► IDLE
#  ▲                ▲      allocate, the same length      │                            │ │
#  │   allocate, or │                                     │ no budget is left          │ │ end of the
#  │   free, less   │                                     ▼                            │ │ next window
#  │   than 64 KiB  └─────────────────────────────────► READY ◄────────────────────────┘ │
#  │                                                      │ end of a window, no space    │
#  └──────────────────────────────────────────────────────┴──────────────────────────────┘
#
# BARE ranges have no memory; the other kinds have. A range gets memory by a page fault for each page, which takes
# several times as long as to copy the page. So the pool keeps the memory that will be needed again.
#
# Invariants, whenever another thread can run:
#
# 1. The first and the last page of each range have a record of its kind and length (Knuth's boundary tags). So a
#    range that is freed finds its neighbours in constant time. The pages before the first range and behind the last
#    have records that say USED, so nobody looks beyond. Nobody reads the records of the pages in between.
# 2. Two READY ranges never touch each other, nor do two BARE ranges: `_put` joins them. WHOLE and IDLE ranges stay
#    as they were freed.
# 3. Each free range is in one list: that of its kind and of the logarithm of its length. The range that was freed
#    last comes first, because its memory is most likely in the caches. `free_bytes` has the sum of each kind.
# 4. used + ready <= share. New memory is taken only if afterwards used + ready <= budget = P + P / fraction + 64 MiB,
#    where P is the most that was in use at once in this window and the last. If less than what is asked for is left,
#    `_find` trims READY first.
#
# Why a loop takes no new memory after its second turn: each turn asks for the same lengths. A large block goes to a
# free range of exactly its length, else into READY memory, else into new memory. None of these cuts a WHOLE or IDLE
# range, so the number of ranges of each length never falls. After a turn it is as large as that turn needed, and
# from then on each request finds its range. The second turn may need more than the first, because the blocks that
# live across turns are in use. Of several ranges, the lowest is taken, not the last that was freed: so the blocks
# soon lie where they lay in earlier turns, also for the other ranks, which get a page fault when they first touch a
# page.
#
# This holds while the budget lasts. After that, `_join_all` makes all free ranges READY, and a block goes where it
# fits: that takes less memory, but later turns may need new memory. In simulations of 3,000 loops with 2 to 6 blocks
# of uneven sizes, twice P was enough for all of them, and half of them kept no more than P.
#
# A window ends after `window` seconds and 64 frees, whichever comes last. What nobody used in a whole window is
# given back, except for 64 MiB. So a loop keeps its memory if a turn is shorter than a window or frees fewer than 64
# blocks, however slow the machine is, and a program that shrinks gives memory back after two windows.
#
# Other ranks use our blocks without asking us. Still, memory that they may use is never given back, nor given to
# another block: only the last array on a block frees it, `Rendezvous.exchange` holds both of its arrays until all
# peers are done with them, and if it fails, it holds them until the process ends.
#
# A fork would make two processes write to the same blocks, each with its own records. So mc_in_child runs in the
# child before any other code: it maps each pool again as a private copy, and marks it. The child sees all blocks,
# what it writes stays with it, and it neither allocates nor frees.

import os

from numpy import dtype, frombuffer

from meshcomm.core import _tuning

cimport cython
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_FillInfo, PyBuffer_Release, PyObject_CheckBuffer, PyObject_GetBuffer
from libc.stdint cimport int64_t, uint32_t, uintptr_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcmp, memcpy

cdef extern from "_pool.h" nogil:
    ctypedef struct mc_pool:
        char *base
        size_t size
        int fd
        bint forked
        mc_pool *next
    mc_pool *mc_pools
    int mc_create(size_t size, int *fd)
    int mc_map(int fd, size_t size, char **base)
    void mc_unmap(char *base, size_t size)
    void mc_close(int fd)
    size_t mc_page()
    void mc_give_back(int fd, char *base, size_t offset, size_t length)
    int mc_provide(int fd, char *base, size_t offset, size_t length)
    int mc_watch_forks()
    double mc_seconds()

cdef extern from "Python.h":
    int PyTraceMalloc_Track(unsigned int domain, uintptr_t ptr, size_t size)
    int PyTraceMalloc_Untrack(unsigned int domain, uintptr_t ptr)

cdef extern from *:
    """
    #define mc_log2(n) (31 - __builtin_clz(n))
    """
    int mc_log2(uint32_t n) nogil

cdef enum:
    TOKEN = 16  # bytes at the beginning of the file; other processes know our file by them
    MAX_LINES = 4096  # how many rendezvous of a process can be open at once
    CLASSES = 32  # of ranges, by the logarithm of their length in pages
    TRACED = 389047  # the domain in which tracemalloc counts the memory of NumPy's arrays
    LOOKED_AT = 16  # ranges of a list that are looked at, of which all may be too short
    LOOKED_AT_WHOLE = 64  # the same when the length has to be exactly right

# The kinds of ranges.
cdef enum:
    READY = 0
    WHOLE = 1
    IDLE = 2
    BARE = 3
    USED = 4

cdef Py_ssize_t PAGE = mc_page()
cdef Py_ssize_t KEPT = _tuning.POOL_KEEPS
cdef uint32_t LARGE = _pages(_tuning.MIN_UNMERGED_RANGE)  # from this length on, free ranges stay WHOLE
cdef uint32_t WINDOW_FREES = _tuning.POOL_WINDOW_FREES
cdef object _BYTE = dtype("u1")

if mc_watch_forks():
    raise MemoryError("pthread_atfork")


cdef class Memory:
    """A file that processes share, mapped from its beginning."""

    def __dealloc__(self):
        if self.base != NULL:
            mc_unmap(self.base, self.size)


cdef class Mapping(Memory):
    """Map the pool of another process.

    *fd* is an open descriptor of its file, which may be closed afterwards. *size* and *token* are those of the pool.
    ``OSError`` if the file has another size or token, or if the system cannot map it.
    """

    def __cinit__(self, int fd, Py_ssize_t size, bytes token):
        if len(token) != TOKEN or size < PAGE or os.fstat(fd).st_size != size:
            raise OSError(f"the file has {os.fstat(fd).st_size} bytes, but the pool has {size}")
        self.size = size
        _check(mc_map(fd, size, &self.base))
        if memcmp(self.base, <const char *> token, TOKEN):
            raise OSError("the file does not begin with the token of the pool")


cdef struct Range:
    # What the first page of a range knows. The last page knows kind and length; see invariant 1.
    uint32_t kind, length, before, after


@cython.no_gc
cdef class Pool(Memory):
    """Allocate blocks of this process in memory that others can map.

    *share* is the most that all blocks together may take, in bytes. A *private* pool cannot be mapped by others.

    The pool keeps free memory for the next blocks, because new memory from the system is slow. It keeps as much as was
    in use at once during the last *window* (seconds, and 64 frees), plus the same again (a private pool: plus a
    quarter), plus 64 MiB, all together at most *share*. What no allocation took during a window goes back to the
    system, except for 64 MiB.

    After a fork, the child can read and change the blocks, but others do not see its changes. It can neither allocate
    nor free. ``OSError`` if the system has no such memory.

    >>> import mmap
    >>> pool = Pool(2**20)
    >>> a = pool.allocate(100)
    >>> a[:] = 7
    >>> pool.used == mmap.PAGESIZE, pool.locate(a[10:]) - pool.locate(a), pool.locate(a.copy())
    (True, 10, -1)
    >>> pool.allocate(2**21) is None
    True
    """

    # clock: the largest number that this process has written into a line of any rendezvous. A new rendezvous begins
    # with a larger one than the clocks of all its ranks.

    def __cinit__(self, Py_ssize_t share, bint private=False, double window=_tuning.POOL_WINDOW):
        global mc_pools
        cdef Py_ssize_t lines = 0 if private else MAX_LINES
        cdef Py_ssize_t before = PAGE * _pages(TOKEN) + PAGE * _pages(lines * LINES)
        cdef mc_pool *system
        cdef Range *ranges
        if not 0 < share <= PAGE << 31:
            raise ValueError(f"a pool cannot have {share} bytes, only 1 to {PAGE << 31}")
        self.fraction = 4 if private else 1
        self.window, self.window_began = window, mc_seconds()
        self.share = PAGE * _pages(share)
        self.size = before + self.share
        self.system = system = <mc_pool *> calloc(1, sizeof(mc_pool))
        if system == NULL:
            raise MemoryError()
        system.fd = -1
        if not private:
            _check(mc_create(self.size, &system.fd))
        _check(mc_map(system.fd, self.size, &self.base))
        system.base, system.size = self.base, self.size
        system.next = mc_pools
        mc_pools = system
        self.ranges = ranges = <Range *> calloc(self.size // PAGE + 1, sizeof(Range))
        if ranges == NULL:
            raise MemoryError()
        _check(mc_provide(system.fd, self.base, 0, PAGE))
        self.token = os.urandom(TOKEN)
        memcpy(self.base, <const char *> self.token, TOKEN)
        self.free_lines = [PAGE + i * LINES for i in range(lines - 1, -1, -1)]
        ranges[before // PAGE - 1].kind = USED
        ranges[self.size // PAGE].kind = USED
        self._put(BARE, before // PAGE, self.share // PAGE)

    def __dealloc__(self):
        cdef mc_pool **link = &mc_pools
        cdef mc_pool *system = <mc_pool *> self.system
        while link[0] != NULL and link[0] != system:
            link = &link[0].next
        if link[0] != NULL:
            link[0] = system.next
        if system != NULL and system.fd >= 0:
            mc_close(system.fd)
        free(system)
        free(self.ranges)

    @property
    def fd(self):
        """The descriptor of the file."""
        return (<mc_pool *> self.system).fd

    @property
    def forked(self):
        """Whether this process is a child of the one that made the pool."""
        return self.is_fork()

    @property
    def ready(self):
        """How many bytes are free and have memory."""
        return self._ready()

    def allocate(self, Py_ssize_t nbytes):
        """Return an array of *nbytes* bytes of any value, or None if there is no free space or memory."""
        cdef uint32_t first, pages
        cdef Block block
        if nbytes <= 0 or nbytes > self.share or self.is_fork():
            return None
        pages = _pages(nbytes)
        first = self._find(pages)
        if not first:
            return None
        block = Block.__new__(Block)
        block.pool, block.first, block.pages, block.nbytes = self, first, pages, nbytes
        PyTraceMalloc_Track(TRACED, <uintptr_t> (self.base + first * PAGE), nbytes)
        return frombuffer(block, _BYTE)

    def locate(self, array):
        """Return at which byte of the pool a contiguous *array* begins; -1 if not all of it is in the pool."""
        cdef Py_buffer view
        if not PyObject_CheckBuffer(array):
            return -1
        try:
            PyObject_GetBuffer(array, &view, PyBUF_SIMPLE)
        except (BufferError, ValueError):
            return -1
        cdef int64_t offset = self.offset_of(&view)
        PyBuffer_Release(&view)
        return offset

    def open_lines(self):
        """Reserve the lines of this process for a new rendezvous; return where in the pool they are.

        Returns -1 if too many are open, in a private pool, and after a fork.
        """
        cdef Py_ssize_t offset
        if not self.free_lines or self.is_fork():
            return -1
        offset = self.free_lines[len(self.free_lines) - 1]
        if mc_provide((<mc_pool *> self.system).fd, self.base, offset // PAGE * PAGE, PAGE):
            return -1
        self.free_lines.pop()
        return offset

    def close_lines(self, Py_ssize_t offset):
        """Let other rendezvous use the lines at *offset*. What they say stays there."""
        self.free_lines.append(offset)

    cdef bint is_fork(self) noexcept nogil:
        return (<mc_pool *> self.system).forked

    cdef int64_t offset_of(self, const Py_buffer *view) noexcept nogil:
        cdef Py_ssize_t offset = <char *> view.buf - self.base
        if self.is_fork() or not 0 <= offset < self.size or view.len > self.size - offset or view.len == 0:
            return -1
        return offset

    cdef Py_ssize_t _ready(self) noexcept:
        return self.free_bytes[READY] + self.free_bytes[WHOLE] + self.free_bytes[IDLE]

    cdef Py_ssize_t _budget(self, Py_ssize_t used) noexcept:
        """Return how much memory the pool may have when *used* bytes are in use."""
        cdef Py_ssize_t peak = max(used, self.most_used, self.most_used_before)
        return peak + peak // self.fraction + KEPT

    cdef uint32_t _find(self, uint32_t pages):
        """Return the first of *pages* that are now in use and have memory, or 0."""
        cdef Py_ssize_t nbytes = pages * PAGE
        cdef uint32_t first = self._take_whole(pages)
        if not first:
            first = self._take(READY, pages)
        if not first and self.used + self._ready() + nbytes <= self._budget(self.used + nbytes):
            first = self._take_bare(pages)
        if not first:
            self._join_all()
            first = self._take(READY, pages)
        if not first:
            # Not after the request: for a moment, the pool would have more than its budget.
            self._trim(READY, max(0, self._budget(self.used + nbytes) - self.used - nbytes))
            first = self._take_bare(pages)
        if not first and nbytes <= self.share - self.used:
            self._trim(READY, 0)
            first = self._take_bare(pages)
        self.most_used = max(self.most_used, self.used)
        return first

    cdef uint32_t _take_whole(self, uint32_t pages) noexcept:
        """Return the first page of the lowest free range of exactly this length, or 0."""
        cdef uint32_t first, kind, best = 0
        cdef int looked_at
        if pages < LARGE:
            return 0
        for kind in range(WHOLE, IDLE + 1):
            first, looked_at = self.heads[kind][mc_log2(pages)], 0
            while first and looked_at < LOOKED_AT_WHOLE:
                if _ranges(self)[first].length == pages and (first < best or not best):
                    best = first
                looked_at += 1
                first = _ranges(self)[first].after
        if best:
            self._unlink(best)
            self._mark(USED, best, pages)
            self.used += pages * PAGE
        return best

    cdef uint32_t _take(self, uint32_t kind, uint32_t pages) noexcept:
        """Return the first page of a free range that is long enough, or 0. The rest of the range stays free."""
        cdef uint32_t first, length
        cdef int size_class, looked_at
        for size_class in range(mc_log2(pages), CLASSES):
            first, looked_at = self.heads[kind][size_class], 0
            while first and _ranges(self)[first].length < pages:
                looked_at += 1
                first = _ranges(self)[first].after if looked_at < LOOKED_AT else 0
            if first:
                length = _ranges(self)[first].length
                self._unlink(first)
                self._mark(USED, first, pages)
                if length > pages:
                    self._link(kind, first + pages, length - pages)
                self.used += pages * PAGE
                return first
        return 0

    cdef uint32_t _take_bare(self, uint32_t pages):
        """Return the first of *pages* that had no memory, now have it and are in use, or 0."""
        cdef int error
        cdef uint32_t first = self._take(BARE, pages)
        if not first:
            return 0
        with nogil:  # the range is in use: others leave it alone
            error = mc_provide((<mc_pool *> self.system).fd, self.base, first * PAGE, pages * PAGE)
        if error:
            self.used -= pages * PAGE
            self._make_bare(first, pages)
            return 0
        return first

    cdef void _free(self, uint32_t first, uint32_t pages) noexcept:
        if self.is_fork():
            return
        self.used -= pages * PAGE
        if pages < LARGE:
            self._put(READY, first, pages)
        else:
            self._link(WHOLE, first, pages)
        self.frees += 1
        if self.frees == WINDOW_FREES:
            self.frees = 0
            if mc_seconds() - self.window_began >= self.window:
                self._age()

    cdef void _age(self) noexcept:
        """End the window: give back what nobody used in it, and begin the next."""
        cdef uint32_t first, pages
        cdef int size_class
        self._trim(IDLE, max(0, KEPT - self.free_bytes[READY] - self.free_bytes[WHOLE]))
        self._trim(READY, max(KEPT, max(self.most_used, self.most_used_before) - self.used))
        for size_class in range(CLASSES):
            while self.heads[WHOLE][size_class]:
                first = self.heads[WHOLE][size_class]
                pages = _ranges(self)[first].length
                self._unlink(first)
                self._link(IDLE, first, pages)
        self.most_used_before, self.most_used = self.most_used, self.used
        self.window_began = mc_seconds()

    cdef void _join_all(self) noexcept:
        """Make all free ranges with memory READY, joined with each other."""
        cdef uint32_t first, pages, kind
        cdef int size_class
        for kind in range(WHOLE, IDLE + 1):
            for size_class in range(CLASSES):
                while self.heads[kind][size_class]:
                    first = self.heads[kind][size_class]
                    pages = _ranges(self)[first].length
                    self._unlink(first)
                    self._put(READY, first, pages)

    cdef void _trim(self, uint32_t kind, Py_ssize_t limit) noexcept:
        """Give the longest free ranges of a kind back to the system until at most *limit* bytes are left."""
        cdef int size_class
        cdef uint32_t first, pages
        for size_class in range(CLASSES - 1, -1, -1):
            while self.free_bytes[kind] > limit and self.heads[kind][size_class]:
                first = self.heads[kind][size_class]
                pages = _ranges(self)[first].length
                self._unlink(first)
                self._make_bare(first, pages)

    cdef void _make_bare(self, uint32_t first, uint32_t pages) noexcept:
        mc_give_back((<mc_pool *> self.system).fd, self.base, first * PAGE, pages * PAGE)
        self._put(BARE, first, pages)

    cdef void _put(self, uint32_t kind, uint32_t first, uint32_t pages) noexcept:
        """Add a free range, joined with its neighbours of the same kind."""
        cdef uint32_t after = first + pages, before
        if _ranges(self)[after].kind == kind:
            pages += _ranges(self)[after].length
            self._unlink(after)
        if _ranges(self)[first - 1].kind == kind:
            before = first - _ranges(self)[first - 1].length
            pages += first - before
            first = before
            self._unlink(before)
        self._link(kind, first, pages)

    cdef void _link(self, uint32_t kind, uint32_t first, uint32_t pages) noexcept:
        cdef Range *ranges = _ranges(self)
        cdef uint32_t *head = &self.heads[kind][mc_log2(pages)]
        self._mark(kind, first, pages)
        ranges[first].before, ranges[first].after = 0, head[0]
        if head[0]:
            ranges[head[0]].before = first
        head[0] = first
        self.free_bytes[kind] += pages * PAGE

    cdef void _unlink(self, uint32_t first) noexcept:
        cdef Range *ranges = _ranges(self)
        cdef Range *range = ranges + first
        if range.before:
            ranges[range.before].after = range.after
        else:
            self.heads[range.kind][mc_log2(range.length)] = range.after
        if range.after:
            ranges[range.after].before = range.before
        self.free_bytes[range.kind] -= range.length * PAGE

    cdef void _mark(self, uint32_t kind, uint32_t first, uint32_t pages) noexcept:
        cdef Range *ranges = _ranges(self)
        ranges[first].kind = ranges[first + pages - 1].kind = kind
        ranges[first].length = ranges[first + pages - 1].length = pages


cdef inline Range *_ranges(Pool pool) noexcept:
    return <Range *> pool.ranges


@cython.final
@cython.no_gc  # so that the pool lives at least as long
@cython.freelist(64)
cdef class Block:
    """Own pages of a pool. They are freed when the last array that uses them has gone."""

    cdef Pool pool
    cdef uint32_t first, pages
    cdef Py_ssize_t nbytes

    def __getbuffer__(self, Py_buffer *view, int flags):
        PyBuffer_FillInfo(view, self, self.pool.base + self.first * PAGE, self.nbytes, False, flags)

    def __dealloc__(self):
        if self.pool is not None:
            PyTraceMalloc_Untrack(TRACED, <uintptr_t> (self.pool.base + self.first * PAGE))
            self.pool._free(self.first, self.pages)


cdef Py_ssize_t _pages(Py_ssize_t nbytes) noexcept:
    return (nbytes + PAGE - 1) // PAGE


cdef int _check(int error) except -1:
    if error:
        raise OSError(error, os.strerror(error))
    return 0
