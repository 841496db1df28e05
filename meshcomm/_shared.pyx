# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, embedsignature=True
# cython: auto_pickle=False
"""Blocks in memory that the ranks of a node share, and meetings to copy straight between them; knows no MPI.

A `Pool` is a file without a path that holds the blocks of one process. The other processes of the node map it, as a
`Mapping`. In a `Meeting` each rank tells where its blocks are, copies what it has to, and leaves when nobody needs its
blocks any more. What may be read and written at which time is the protocol of `Meeting.exchange`.
"""

import os

from numpy import dtype, frombuffer

from meshcomm.errors import CollectiveMismatch, MeshError

cimport cython
from cpython.buffer cimport (
    PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_FillInfo, PyBuffer_Release, PyObject_CheckBuffer, PyObject_GetBuffer
)
from cpython.exc cimport PyErr_CheckSignals
from cpython.mem cimport PyMem_Calloc, PyMem_Free
from libc.stdint cimport int64_t, uint32_t, uint64_t, uintptr_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcmp, memcpy

from meshcomm._kernels cimport BoxCopies, _Regions, _Views

cdef extern from "_shared.h" nogil:
    ctypedef struct mc_line:
        uint64_t epoch, failed, chain, agreeing
        int64_t source, target
    ctypedef struct mc_place:
        mc_line ready, done
    ctypedef struct mc_pool:
        char *base
        size_t size
        int fd
        bint forked
        mc_pool *next
    mc_pool *mc_pools
    uint64_t mc_epoch(const mc_line *line)
    uint64_t mc_failed(const mc_line *line)
    void mc_publish(mc_line *line, uint64_t epoch)
    uint64_t mc_agreeing(const mc_line *line)
    void mc_agree(mc_line *line, uint64_t epoch)
    void mc_fail(mc_line *line)
    uint64_t mc_chained(uint64_t chain, uint64_t number)
    int mc_create(size_t size, int *fd)
    int mc_map(int fd, size_t size, char **base)
    void mc_unmap(char *base, size_t size)
    void mc_close(int fd)
    size_t mc_page()
    void mc_give_back(int fd, char *base, size_t offset, size_t length)
    int mc_provide(int fd, char *base, size_t offset, size_t length)
    int mc_watch_forks()
    int mc_wait(
        mc_place **places, const int *partners, int count, bint done, uint64_t epoch, int64_t microseconds, int *next
    )

cdef extern from "Python.h":
    int PyTraceMalloc_Track(unsigned int domain, uintptr_t ptr, size_t size)
    int PyTraceMalloc_Untrack(unsigned int domain, uintptr_t ptr)

cdef extern from *:
    """
    #define mc_log2(n) (31 - __builtin_clz(n))
    """
    int mc_log2(uint32_t n) nogil

cdef enum:
    TOKEN = 16  # bytes at the beginning of the file, by which others know that it is ours
    PLACES = 4096  # of meetings that are open at a time
    CLASSES = 32  # of ranges, by the logarithm of their length
    TRACED = 389047  # the domain in which tracemalloc counts the memory of NumPy's arrays
    LOOKED_AT = 16  # ranges of a class that may be too short
    CALL_BACK = 100  # microseconds of waiting

# What a range of pages is. The free ones that are ready have memory behind them, the bare ones have none.
cdef enum:
    READY = 0
    BARE = 1
    USED = 2

cdef Py_ssize_t PAGE = mc_page()
cdef Py_ssize_t KEPT = 2**26  # bytes of free memory that are kept in any case
cdef object _BYTE = dtype("u1")
cdef list _left_behind = []  # what others may still read or write, after an error

if mc_watch_forks():
    raise MemoryError("pthread_atfork")


cdef class Memory:
    """Memory that processes share: a file, mapped from its beginning."""

    cdef char *base
    cdef readonly Py_ssize_t size

    def __dealloc__(self):
        if self.base != NULL:
            mc_unmap(self.base, self.size)


cdef class Mapping(Memory):
    """The pool of another process, by an open descriptor of its file. Local.

    ``OSError`` if the system does not map it or it does not begin with *token*; the descriptor may be closed after it.
    """

    def __cinit__(self, int fd, Py_ssize_t size, bytes token):
        if len(token) != TOKEN or size < PAGE or os.fstat(fd).st_size != size:
            raise OSError("the file has not the size of the pool")
        self.size = size
        _check(mc_map(fd, size, &self.base))
        if memcmp(self.base, <const char *> token, TOKEN):
            raise OSError("the file is not the pool")


cdef struct Range:
    # The first page of a range knows it, and the links to others of its class; its last page knows kind and length.
    uint32_t kind, length, before, after


@cython.no_gc
cdef class Pool(Memory):
    """Blocks of this process in *share* bytes of memory that others can map, unless it is *private*. Local.

    Free ranges that have memory are used again last in, first out, so that they are still in the caches. As much
    memory as was in use at once of late is kept, and 64 MiB in any case; more is given back to the system. In a
    process that was forked off, blocks can be read and changed, but the changes stay there; nothing is allocated or
    freed. ``OSError`` if the system has no such memory.

    >>> import mmap
    >>> pool = Pool(2**20)
    >>> a = pool.allocate(100)
    >>> a[:] = 7
    >>> pool.used == mmap.PAGESIZE, pool.locate(a[10:]) - pool.locate(a), pool.locate(a.copy())
    (True, 10, -1)
    >>> pool.allocate(2**21) is None
    True
    """

    cdef mc_pool system
    cdef readonly Py_ssize_t share, used, ready
    cdef Py_ssize_t most_used  # at once, of late: what is not reached again is forgotten bit by bit
    cdef readonly bytes token
    cdef public uint64_t clock
    """The last epoch of any meeting; a new one goes on from the largest clock of its ranks."""
    cdef Range *ranges
    cdef uint32_t[2][CLASSES] heads
    cdef list free_places

    def __cinit__(self, Py_ssize_t share, bint private=False):
        global mc_pools
        cdef Py_ssize_t places = 0 if private else PLACES
        cdef Py_ssize_t before = PAGE * _pages(TOKEN) + PAGE * _pages(places * sizeof(mc_place))
        self.system.fd = -1
        if not 0 < share <= PAGE << 31:
            raise ValueError(f"a pool cannot have {share} bytes")
        self.share = PAGE * _pages(share)
        self.size = before + self.share
        if not private:
            _check(mc_create(self.size, &self.system.fd))
        _check(mc_map(self.system.fd, self.size, &self.base))
        self.system.base, self.system.size = self.base, self.size
        self.system.next = mc_pools
        mc_pools = &self.system
        self.ranges = <Range *> calloc(self.size // PAGE + 1, sizeof(Range))
        if self.ranges == NULL:
            raise MemoryError()
        _check(mc_provide(self.system.fd, self.base, 0, PAGE))
        self.token = os.urandom(TOKEN)
        memcpy(self.base, <const char *> self.token, TOKEN)
        self.free_places = [PAGE + i * <Py_ssize_t> sizeof(mc_place) for i in range(places - 1, -1, -1)]
        # The pages on both sides of the blocks are of a kind that is not joined.
        self.ranges[before // PAGE - 1].kind = USED
        self.ranges[self.size // PAGE].kind = USED
        self._put(BARE, before // PAGE, self.share // PAGE)

    def __dealloc__(self):
        cdef mc_pool **link = &mc_pools
        while link[0] != NULL and link[0] != &self.system:
            link = &link[0].next
        if link[0] != NULL:
            link[0] = self.system.next
        if self.system.fd >= 0:
            mc_close(self.system.fd)
        free(self.ranges)

    @property
    def fd(self):
        """The descriptor of the file."""
        return self.system.fd

    @property
    def forked(self):
        """Whether this process is not the one that made the pool."""
        return self.system.forked

    def allocate(self, Py_ssize_t nbytes):
        """Return an array of *nbytes* bytes of any value, or None if the pool has no room or the system no memory."""
        cdef uint32_t first, pages
        cdef Block block
        if nbytes <= 0 or nbytes > self.share or self.system.forked:
            return None
        pages = _pages(nbytes)
        first = self._take(READY, pages)
        if not first:
            first = self._provided(pages)
        if not first:
            return None
        block = Block.__new__(Block)
        block.pool, block.first, block.pages, block.nbytes = self, first, pages, nbytes
        PyTraceMalloc_Track(TRACED, <uintptr_t> (self.base + first * PAGE), nbytes)
        return frombuffer(block, _BYTE)

    def locate(self, array):
        """Return where in the pool the bytes of a contiguous *array* begin, or -1 if not all of them are in it."""
        cdef Py_buffer view
        if not PyObject_CheckBuffer(array):
            return -1
        try:
            PyObject_GetBuffer(array, &view, PyBUF_SIMPLE)
        except (BufferError, ValueError):
            return -1
        cdef int64_t offset = self._offset(&view)
        PyBuffer_Release(&view)
        return offset

    def open_place(self):
        """Return where in the pool the lines of a new meeting are, or -1 if there is no room."""
        cdef Py_ssize_t place
        if not self.free_places or self.system.forked:
            return -1
        place = self.free_places[len(self.free_places) - 1]
        if mc_provide(self.system.fd, self.base, place // PAGE * PAGE, PAGE):
            return -1
        self.free_places.pop()
        mc_agree(&(<mc_place *> (self.base + place)).ready, 0)  # what an earlier meeting left there
        return place

    def close_place(self, Py_ssize_t place):
        """Use the lines again for other meetings."""
        self.free_places.append(place)

    cdef int64_t _offset(self, const Py_buffer *view) noexcept:
        cdef Py_ssize_t offset = <char *> view.buf - self.base
        if self.system.forked or not 0 <= offset < self.size or view.len > self.size - offset or view.len == 0:
            return -1
        return offset

    cdef uint32_t _provided(self, uint32_t pages):
        """Return the first of *pages* that had no memory and now have, or 0; what is free and ready may help out."""
        cdef uint32_t first
        cdef int error
        for _ in range(2):
            first = self._take(BARE, pages)
            if first:
                with nogil:
                    error = mc_provide(self.system.fd, self.base, first * PAGE, pages * PAGE)
                if not error:
                    return first
                self.used -= pages * PAGE
                self._bare(first, pages)
            if not self.ready or pages * PAGE > self.share - self.used:
                return 0
            self._trim(0)
        return 0

    cdef void _free(self, uint32_t first, uint32_t pages) noexcept:
        if self.system.forked:
            return
        self.most_used = max(self.used, self.most_used - self.most_used // 64)
        self.used -= pages * PAGE
        self._trim(max(KEPT, self.most_used - self.used) - pages * PAGE)  # rather others than what was just used
        self._put(READY, first, pages)

    cdef void _trim(self, Py_ssize_t limit) noexcept:
        """Give the largest free ranges back to the system until *limit* bytes of them are left at most."""
        cdef int each
        cdef uint32_t first, pages
        for each in range(CLASSES - 1, -1, -1):
            while self.ready > limit and self.heads[READY][each]:
                first = self.heads[READY][each]
                pages = self.ranges[first].length
                self._unlink(first)
                self._bare(first, pages)

    cdef void _bare(self, uint32_t first, uint32_t pages) noexcept:
        mc_give_back(self.system.fd, self.base, first * PAGE, pages * PAGE)
        self._put(BARE, first, pages)

    cdef uint32_t _take(self, uint32_t kind, uint32_t pages) noexcept:
        """Return the first page of the last free range that is long enough, now in use, or 0."""
        cdef uint32_t first, length
        cdef int each, looked_at
        for each in range(mc_log2(pages), CLASSES):
            first, looked_at = self.heads[kind][each], 0
            while first and self.ranges[first].length < pages:
                looked_at += 1
                first = self.ranges[first].after if looked_at < LOOKED_AT else 0
            if first:
                length = self.ranges[first].length
                self._unlink(first)
                self._mark(USED, first, pages)
                if length > pages:
                    self._link(kind, first + pages, length - pages)
                self.used += pages * PAGE
                return first
        return 0

    cdef void _put(self, uint32_t kind, uint32_t first, uint32_t pages) noexcept:
        """Add a free range, joined with its neighbours of the same kind."""
        cdef uint32_t after = first + pages, before
        if self.ranges[after].kind == kind:
            pages += self.ranges[after].length
            self._unlink(after)
        if self.ranges[first - 1].kind == kind:
            before = first - self.ranges[first - 1].length
            pages += first - before
            first = before
            self._unlink(before)
        self._link(kind, first, pages)

    cdef void _link(self, uint32_t kind, uint32_t first, uint32_t pages) noexcept:
        cdef uint32_t *head = &self.heads[kind][mc_log2(pages)]
        self._mark(kind, first, pages)
        self.ranges[first].before, self.ranges[first].after = 0, head[0]
        if head[0]:
            self.ranges[head[0]].before = first
        head[0] = first
        if kind == READY:
            self.ready += pages * PAGE

    cdef void _unlink(self, uint32_t first) noexcept:
        cdef Range *range = self.ranges + first
        if range.before:
            self.ranges[range.before].after = range.after
        else:
            self.heads[range.kind][mc_log2(range.length)] = range.after
        if range.after:
            self.ranges[range.after].before = range.before
        if range.kind == READY:
            self.ready -= range.length * PAGE

    cdef void _mark(self, uint32_t kind, uint32_t first, uint32_t pages) noexcept:
        self.ranges[first].kind = self.ranges[first + pages - 1].kind = kind
        self.ranges[first].length = self.ranges[first + pages - 1].length = pages


@cython.final
@cython.no_gc  # so that the pool is there to the end
@cython.freelist(64)
cdef class Block:
    """The owner of pages of a pool, which it frees when the last array that uses them has gone."""

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


# How a block gets from one rank to another: the receiver reads it, the sender writes it, or by other means.
cdef enum:
    READ = 1
    WRITE = 2
    OTHER = 3


cdef class Routes:
    """Who sends to whom in an exchange of *size* ranks, seen by the one at *place*, and the copies it takes. Local.

    *incoming* names the places of those who send to this rank, *outgoing* of those to whom it sends, each as (place,
    whether the sender should rather write than the receiver read); both ends of a pair must name each other, and say
    the same. The receiver reads from the sender's block if that is shared, else the sender writes to the receiver's
    new block if that is, else the bytes have to go by other means.

    ``copies(reads, writes)`` is called with the places that this rank reads from and those that it writes to, at first
    and when these change. It returns two `BoxCopies`, or None for nothing to copy. The first goes from the blocks of
    all places to this rank's one new block; the second from its one block to the new blocks of all places. What a rank
    sends to itself is part of one of them.
    """

    cdef readonly int size, place
    cdef int senders, pairs, partners
    cdef int *ends  # the places at the other ends of the pairs: first of incoming, then of outgoing
    cdef int *order  # the partners, each once
    cdef char *rather_writes
    cdef char *ways  # of the pairs in this exchange
    cdef char *chosen  # and those that `reads` and `writes` are for
    cdef object copies
    cdef BoxCopies reads
    cdef BoxCopies writes
    cdef object left

    def __cinit__(self, int size, int place, incoming, outgoing, copies):
        cdef int i
        pairs = [*incoming, *outgoing]
        partners = sorted({end for end, _ in pairs}, key=lambda end: (end - place) % size)
        if not set(partners) <= set(range(size)) - {place}:
            raise ValueError(f"the one at place {place} of {size} cannot exchange with those at {partners}")
        self.size, self.place, self.copies = size, place, copies
        self.senders, self.pairs, self.partners = len(incoming), len(pairs), len(partners)
        self.ends = <int *> _zeros(self.pairs * sizeof(int))
        self.order = <int *> _zeros(self.partners * sizeof(int))
        self.rather_writes = <char *> _zeros(self.pairs)
        self.ways = <char *> _zeros(self.pairs + 1)
        self.chosen = <char *> _zeros(self.pairs + 1)
        self.ways[self.pairs] = OTHER  # unlike the first `chosen`
        for i in range(self.pairs):
            self.ends[i], self.rather_writes[i] = pairs[i]
        for i in range(self.partners):
            self.order[i] = partners[i]

    def __dealloc__(self):
        PyMem_Free(self.ends)
        PyMem_Free(self.order)
        PyMem_Free(self.rather_writes)
        PyMem_Free(self.ways)
        PyMem_Free(self.chosen)

    cdef int choose(self) except -1:
        """Get the copies for the ways of this exchange."""
        cdef BoxCopies reads
        cdef BoxCopies writes
        found = [(self.ends[i], self.ways[i]) for i in range(self.pairs)]
        incoming, outgoing = found[:self.senders], found[self.senders:]
        sources, targets = _going(incoming, READ), _going(outgoing, WRITE)
        reads, writes = self.copies(sources, targets)
        if reads is not None:
            _check_regions(reads.source_regions, self.size, {*sources, self.place})
            _check_regions(reads.target_regions, 1, {0})
        if writes is not None:
            _check_regions(writes.source_regions, writes.source_regions.count, range(writes.source_regions.count))
            _check_regions(writes.target_regions, self.size, {*targets, self.place})
        left = _going(incoming, OTHER), _going(outgoing, OTHER)
        self.reads, self.writes, self.left = reads, writes, left if left != ((), ()) else None
        memcpy(self.chosen, self.ways, self.pairs + 1)
        return 0


cdef void *_zeros(Py_ssize_t nbytes) except NULL:
    cdef void *memory = PyMem_Calloc(max(1, nbytes), 1)
    if memory == NULL:
        raise MemoryError()
    return memory


cdef tuple _going(list found, int way):
    return tuple([end for end, its in found if its == way])


cdef int _check_regions(_Regions regions, Py_ssize_t count, allowed) except -1:
    used = [i for i in range(regions.count) if regions.used[i]]
    if regions.count != count or not set(used) <= set(allowed):
        raise ValueError(f"the copies use {used} of {regions.count} {regions.name}s, not only {allowed} of {count}")
    return 0


cdef class Meeting:
    """Ranks of a node that copy between their blocks. Local to make, but all its ranks must make it.

    *memories* are the mapped pools of all ranks, *own* among them at *place*; *lines* is where in each the rank has
    its lines. *epoch* is the largest clock of the pools. *members* are the ranks in some communicator, *names* what
    errors call them. While a rank waits for others, *progress* is called about every 100 microseconds; what it raises
    ends the exchange.
    """

    cdef readonly int size, place
    cdef readonly tuple members
    cdef tuple names
    cdef Pool own
    cdef list memories
    cdef object progress
    cdef Py_ssize_t line
    cdef mc_place **places
    cdef char **bases
    cdef Py_ssize_t *sizes
    cdef const char **sources
    cdef char **targets
    cdef uint64_t epoch, chain
    cdef bint busy
    cdef readonly str closed
    """Why no exchange is possible any more, or None."""

    def __cinit__(self, Pool own not None, memories, lines, int place, uint64_t epoch, members, names, progress):
        cdef Memory memory
        cdef int i
        self.own, self.memories, self.progress = own, list(memories), progress
        self.members, self.names = tuple(members), tuple(names)
        self.size, self.place, self.epoch = len(self.memories), place, epoch
        if not len(lines) == len(self.members) == len(self.names) == self.size or self.memories[place] is not own:
            raise ValueError("a meeting needs the memory, the lines and the name of each of its ranks")
        self.places = <mc_place **> _zeros(self.size * sizeof(char *))
        self.bases = <char **> _zeros(self.size * sizeof(char *))
        self.sizes = <Py_ssize_t *> _zeros(self.size * sizeof(Py_ssize_t))
        self.sources = <const char **> _zeros(self.size * sizeof(char *))
        self.targets = <char **> _zeros(self.size * sizeof(char *))
        self.line = lines[place]
        for i in range(self.size):
            memory = self.memories[i]
            if not 0 <= lines[i] <= memory.size - <Py_ssize_t> sizeof(mc_place):
                raise ValueError(f"{lines[i]} is not in the memory of rank {self.names[i]}")
            self.bases[i], self.sizes[i] = memory.base, memory.size
            self.places[i] = <mc_place *> (memory.base + <Py_ssize_t> lines[i])

    def __dealloc__(self):
        PyMem_Free(self.places)
        PyMem_Free(self.bases)
        PyMem_Free(self.sizes)
        PyMem_Free(self.sources)
        PyMem_Free(self.targets)

    def close(self):
        """Give the lines back. Local; all ranks of the meeting must have left their last exchange, or be in it."""
        if self.closed is None:
            self.own.close_place(self.line)
            self.closed = "it is closed"

    def agree(self):
        """Tell the others that this rank agrees with them on a call: in the next exchange all have to have. Local."""
        if self.closed is None and not self.own.system.forked:
            mc_agree(&self.places[self.place].ready, self.epoch + 1)

    def exchange(self, Routes routes not None, int64_t number, source, target, several=None):
        """Copy what *routes* say from the blocks *source* of all ranks to their new blocks *target*. Collective.

        All ranks of the meeting call it, also those without partners, with equal *number* for equal routes. Both
        arrays are contiguous; they may be changed and freed afterwards. With *several* blocks, what is written comes
        from these instead. Returns None, or the places of those whose bytes did not get here, and of those whom this
        rank's did not reach, because neither block is shared.
        ``CollectiveMismatch`` if a partner has passed another number, now or before, or has left with an error: no
        exchange is possible after that.
        """
        cdef Py_buffer sent, received
        if self.closed is not None or self.busy or self.own.system.forked:
            raise MeshError(
                "ranks that share memory cannot exchange: "
                + (self.closed or ("another thread of this one does" if self.busy else "this process is a fork"))
            )
        if routes.size != self.size or routes.place != self.place:
            raise ValueError("the routes are those of other ranks")
        PyObject_GetBuffer(source, &sent, PyBUF_SIMPLE)
        try:
            PyObject_GetBuffer(target, &received, PyBUF_WRITABLE)
            try:
                self.busy = True
                self._exchange(routes, number, &sent, &received, several)
            except BaseException:
                self._fail((source, several), target)
                raise
            finally:
                self.busy = False
                PyBuffer_Release(&received)
        finally:
            PyBuffer_Release(&sent)
        return routes.left

    cdef int _exchange(
        self, Routes routes, int64_t number, Py_buffer *source, Py_buffer *target, several
    ) except -1:
        cdef mc_place *mine = self.places[self.place]
        self.epoch += 1
        self.own.clock = max(self.own.clock, self.epoch)
        self.chain = mc_chained(self.chain, <uint64_t> number)
        mine.ready.chain = self.chain
        mine.ready.source, mine.ready.target = self.own._offset(source), self.own._offset(target)
        mc_publish(&mine.ready, self.epoch)
        with nogil:
            self._wait(routes, False)
            self._copy(routes, source, target, several)
            mc_publish(&mine.done, self.epoch)
            self._wait(routes, True)
        return 0

    cdef int _wait(self, Routes routes, bint done) except -1 nogil:
        """Wait until all partners are ready with the same chain, or done."""
        cdef int arrived = 0
        while not mc_wait(self.places, routes.order, routes.partners, done, self.epoch, CALL_BACK, &arrived):
            with gil:
                # Those who differ or have left may never come to this epoch, or not those that they wait for.
                self._check_partners(routes, done)
                PyErr_CheckSignals()
                self.progress()
        for arrived in range(0 if done else routes.partners):
            if self._differs(routes.order[arrived]):
                with gil:
                    self._check_partners(routes, done)
        return 0

    cdef bint _differs(self, int place) noexcept nogil:
        """Return whether a rank has made another call than this one, as far as can be seen."""
        cdef const mc_line *ready = &self.places[place].ready
        cdef uint64_t epoch = mc_epoch(ready)
        return epoch > self.epoch or (epoch == self.epoch and ready.chain != self.chain)

    cdef int _check_partners(self, Routes routes, bint done) except -1:
        cdef const mc_line *theirs
        cdef const mc_line *mine = &self.places[self.place].ready
        cdef int place
        partners = [routes.order[i] for i in range(routes.partners)]
        others = [] if done else [str(self.names[place]) for place in partners if self._differs(place)]
        if others:
            raise CollectiveMismatch(
                f"rank {self.names[self.place]} made another collective call than rank{'s' * (len(others) > 1)} "
                f"{', '.join(others)}, now or before. MESHCOMM_CHECK=1 will name the calls"
            )
        for place in partners:
            theirs = &self.places[place].ready
            # It agrees with all others before this exchange; this rank has not, and so is in another call.
            if mc_epoch(theirs) < self.epoch and mc_agreeing(theirs) == self.epoch != mc_agreeing(mine):
                raise CollectiveMismatch(
                    f"rank {self.names[self.place]} makes a call that is known to it, but rank {self.names[place]} "
                    "makes one that it first has to agree on with all ranks. MESHCOMM_CHECK=1 will name the calls"
                )
            theirs = &self.places[place].done
            if mc_failed(theirs) and mc_epoch(theirs) < self.epoch:
                raise CollectiveMismatch(
                    f"rank {self.names[place]} has left an exchange with rank {self.names[self.place]} with an error"
                )
        return 0

    cdef int _copy(self, Routes routes, const Py_buffer *source, const Py_buffer *target, several) except -1 nogil:
        """Find the ways and the blocks of the others, and copy."""
        cdef mc_line *ready
        cdef bint source_shared, target_shared
        cdef int64_t offset
        cdef int i, place
        cdef bint own_source = self.places[self.place].ready.source >= 0
        cdef bint own_target = self.places[self.place].ready.target >= 0
        for i in range(routes.pairs):
            ready = &self.places[routes.ends[i]].ready
            source_shared = ready.source >= 0 if i < routes.senders else own_source
            target_shared = own_target if i < routes.senders else ready.target >= 0
            if source_shared and not (target_shared and routes.rather_writes[i]):
                routes.ways[i] = READ
            else:
                routes.ways[i] = WRITE if target_shared else OTHER
        if memcmp(routes.ways, routes.chosen, routes.pairs + 1):
            with gil:
                routes.choose()
        if routes.reads is not None:
            self.targets[0] = _own(routes.reads.target_regions, 0, target)
            for place in range(self.size):
                if place == self.place:
                    self.sources[place] = _own(routes.reads.source_regions, place, source)
                elif routes.reads.source_regions.used[place]:
                    offset = self.places[place].ready.source
                    self.sources[place] = self._theirs(place, offset, routes.reads.source_regions.sizes[place])
            routes.reads.run_pointers(self.sources, self.targets)
        if routes.writes is not None:
            for place in range(self.size):
                if place == self.place:
                    self.targets[place] = _own(routes.writes.target_regions, place, target)
                elif routes.writes.target_regions.used[place]:
                    offset = self.places[place].ready.target
                    self.targets[place] = self._theirs(place, offset, routes.writes.target_regions.sizes[place])
            if several is not None:
                with gil:
                    self._write_several(routes, several)
            else:
                self.sources[0] = _own(routes.writes.source_regions, 0, source)
                routes.writes.run_pointers(self.sources, self.targets)
        return 0

    cdef int _write_several(self, Routes routes, several) except -1:
        cdef _Views held = routes.writes.source_regions.hold(several, False)
        with nogil:
            routes.writes.run_pointers(<const char **> held.pointers, self.targets)
        return 0

    cdef char *_theirs(self, int place, int64_t offset, Py_ssize_t size) except NULL nogil:
        """Return where the block of another rank is, if all of it is in that rank's pool."""
        if not 0 <= offset <= self.sizes[place] - size:
            with gil:
                raise CollectiveMismatch(f"{size} bytes at {offset} are not in the memory of rank {self.names[place]}")
        return self.bases[place] + offset

    cdef int _fail(self, source, target) except -1:
        """Let those who wait for this rank know; some may still read the one block and write to the other."""
        _left_behind.append((self, source, target))
        self.closed = "an earlier exchange of these ranks ended with an error; close() the mesh and make it again"
        mc_fail(&self.places[self.place].done)
        return 0


cdef char *_own(_Regions regions, Py_ssize_t region, const Py_buffer *block) except? NULL nogil:
    """Return where a block of this rank is, if it is as long as the copies expect."""
    if regions.used[region] and regions.sizes[region] != block.len:
        with gil:
            raise ValueError(f"the block has {block.len} bytes, but the copies are for {regions.sizes[region]}")
    return <char *> block.buf
