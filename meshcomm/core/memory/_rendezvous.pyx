# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, embedsignature=True
# cython: auto_pickle=False
"""Ranks of a node that copy straight between their blocks; knows no MPI.

In a `Rendezvous`, each rank says where its blocks are, copies what it has to, and leaves when no other rank needs its
blocks any more. `Routes` says who sends to whom, and holds the copies.
"""
# How ranks exchange without locks
# ===============================
#
# Each rank r has two lines in its own pool. The other ranks have mapped them. Only r writes them:
#
# ready_r:  epoch, digest, source, target, agreeing              done_r:  epoch, failed
#
# The peers of r in an exchange are the ranks with which it has bytes to exchange. If p is a peer of r, r is a peer
# of p: both make their `Routes` from the same description, and equal descriptions have equal numbers. `digest` is a
# hash of the numbers of all exchanges so far. `epoch` counts them; ranks without peers count as well. In epoch e,
# rank r does this:
#
# ready_r.digest, source, target = ...     plain stores                 outside
# ready_r.epoch = e                        release              (1)
# until ready_p.epoch >= e, each peer p    acquire              (2)     waiting
# ready_p.digest == ready_r.digest?        loads                (3)
# copy, from and to blocks of peers        plain, non-temporal  (4)     copying; first make the copies, if need be
# done_r.epoch = e                         sfence, release      (5)
# until done_p.epoch >= e, each peer p     acquire              (6)     leaving
# return                                                        (7)     outside, e + 1
#
#            (1)           (2), (3)            (5)             (6)
# outside ───────► waiting ────────► copying ───────► leaving ───────► outside, e + 1
#                     │ other digest    │ error          │ interrupted
#                     └─────────────────┴────────────────┴───────────► failed, closed for ever
#
# (A) The blocks are there when r copies. What p wrote to its line and its blocks comes before p's release (1), which
#     r has seen by its acquire (2). So r's loads (3) and copies (4) see it.
#
# (B) At (7), r may change and free its blocks. What p read from them and wrote to them in (4) comes before p's
#     release (5). That alone does not order non-temporal stores on x86; the sfence does. r has seen (5) of each peer
#     at (6). So no peer uses r's blocks any longer, and r sees what they wrote to its new block.
#
# (C) The plain loads of ready_p at (3) and (4) are safe. p writes these fields again only in epoch e + 1, after its
#     (6), which needs r's (5), which comes after all of r's loads. So r may use its ready line for the next epoch at
#     once. The done line is one of its own because a slow peer may still wait at (6) while r is ready for e + 1:
#     done_r.epoch only grows, and the peer waits for >=.
#
# (D) Nothing is copied between ranks that make different calls. When r waits for p, p is in one of three states. In
#     epoch e with another digest: a mismatch. In a later epoch: p left e without r, so r was no peer of p, and the
#     calls differ: a mismatch. (Only here p may write its digest while r loads it, hence atomically; the old one and
#     the new one both differ from r's.) In an earlier epoch: r waits. For equal numbers, the next digest is a
#     bijection of the last. So once they differ they stay different, and ranks without peers find out when they next
#     have some.
#
# (E) No rank waits for a failed one for ever. r sets done_r.failed after its last epoch, by a release, and never
#     writes these lines again. A peer that waits finds `failed` (acquire) and then done_r.epoch < e, and fails as
#     well. If r failed only after (5), the peer reads done_r.epoch == e, as this was stored before `failed`, and
#     finishes epoch e: nothing is missing. Peers may still copy from and to the blocks of r, so r keeps them, and
#     its lines, until it hears that all ranks have left the exchange, else until the process ends.
#
# (F) A later rendezvous may use the lines again, with old numbers in them. No number in r's lines is above the clock
#     of r's pool, also not the epoch of `agreeing`. A rendezvous begins with the largest clock of its ranks, which
#     they tell each other after each reserved its lines. So all its epochs are larger than the old numbers. A slow
#     peer that still leaves the old rendezvous waits for done_r.epoch >= e, which stays true. Numbers in a line only
#     grow, so there is no ABA problem; 2**48 epochs of a microsecond take nine years.
#
# (G) A rank that makes a call for the first time agrees on it with all others, and says so by ready.agreeing before it
#     exchanges: the epoch e that comes next, and how many agreements there were before e, in one number. A peer that
#     has made its call before goes straight to exchange e, and would wait for ever. It finds that p made more
#     agreements before e than it did, and reports the mismatch. (Ranks make equal agreements between two exchanges.)
#
# (H) Ranks that make equal calls never block each other: each publishes before it waits, and waits only for its own
#     epoch. Of all waiting ranks, take one of the lowest epoch: its peers are in this epoch or a later one, or still
#     on the way to it.
#
# A rank that dies takes no memory away: its file exists as long as somebody maps it. `progress` has to notice that
# it does not come. A forked child has private copies of the pools; there, `exchange` refuses.

from meshcomm.errors import CollectiveMismatch, MeshError

cimport cython
from cpython.buffer cimport PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.exc cimport PyErr_CheckSignals
from cpython.mem cimport PyMem_Calloc, PyMem_Free
from libc.stdint cimport int64_t, uint64_t
from libc.string cimport memcmp, memcpy

from meshcomm._kernels cimport RegionCopies, _Regions, _Views
from meshcomm.core.memory._pool cimport LINES, Memory, Pool

cdef extern from "Python.h":
    object PyMemoryView_FromMemory(char *memory, Py_ssize_t size, int flags)
    int PyBUF_READ

cdef extern from "_rendezvous.h" nogil:
    ctypedef struct mc_line:
        uint64_t epoch, failed, digest, agreeing
        int64_t source, target
    ctypedef struct mc_lines:
        mc_line ready, done
    uint64_t mc_epoch(const mc_line *line)
    uint64_t mc_failed(const mc_line *line)
    void mc_publish(mc_line *line, uint64_t epoch)
    uint64_t mc_agreeing(const mc_line *line)
    uint64_t mc_first_agreement(uint64_t epoch)
    void mc_agree(mc_line *line, uint64_t epoch)
    void mc_fail(mc_line *line)
    void mc_forgive(mc_line *line)
    uint64_t mc_get_digest(const mc_line *line)
    void mc_set_digest(mc_line *line, uint64_t digest)
    uint64_t mc_digest(uint64_t digest, uint64_t number)
    int64_t mc_nanoseconds()
    void mc_nap(int64_t waited)
    int mc_wait(
        mc_lines **lines, const int *peers, int count, bint done, uint64_t epoch, int64_t microseconds, int *next
    )

cdef enum:
    CALL_BACK = 100  # microseconds between two calls of `progress`

# How a block gets from one rank to another: the receiver reads it, the sender writes it, or neither can.
cdef enum:
    READ = 1
    WRITE = 2
    OTHER = 3

cdef bint _measures = False  # whether exchanges note the times of their phases

cdef list _left_behind = []  # those that ended with an error, with their blocks

if sizeof(mc_lines) > LINES:
    raise ImportError(f"the lines of a rank take {sizeof(mc_lines)} bytes, but pools reserve {LINES}")


def measure_times(bint measures):
    """Let exchanges of this process note when their phases begin and end, or not: see `Rendezvous.times`."""
    global _measures
    _measures = measures


cdef class Routes:
    """Say who sends to whom in an exchange, as one rank sees it.

    The rank is the one at *position* of *size*. *incoming* has a pair for each rank that sends to it, *outgoing* one
    for each rank that it sends to: (position, whether the sender should write rather than the receiver read). Both
    ends must name each other and say the same.

    If the sender's block is shared, the receiver reads from it. Otherwise, if the receiver's new block is shared, the
    sender writes to it. Otherwise the bytes must go by other means: `left`.

    In the first exchange, and whenever other blocks are shared than before, ``copies(reads_from, writes_to)`` is
    called: with the positions of the ranks from whose blocks this rank reads, and of those to whose new blocks it
    writes. It returns the copies to make, (reads, writes). Each may be None: nothing to copy. *reads* copies from the
    blocks of all positions to this rank's one new block. *writes* copies from this rank's blocks to the new blocks of
    all positions. Both may use the blocks at `position` too: bytes that stay here.
    """

    cdef readonly int size, position
    cdef object copies
    cdef readonly tuple left
    """None, or the senders and the receivers whose bytes do not get through, as neither block is shared."""
    cdef int senders, pairs, peers
    cdef int *ends  # the positions at the other ends of the pairs: first of incoming, then of outgoing
    cdef int *order  # the peers, each once
    cdef char *rather_writes
    cdef char *ways  # of the pairs in this exchange
    cdef char *planned  # and those that `reads` and `writes` are for
    cdef RegionCopies reads
    cdef RegionCopies writes

    def __cinit__(self, int size, int position, incoming, outgoing, copies):
        cdef int i
        incoming = list(incoming)
        pairs = [*incoming, *outgoing]
        peers = sorted({end for end, _ in pairs}, key=lambda end: (end - position) % size)
        if not set(peers) <= set(range(size)) - {position}:
            raise ValueError(
                f"the rank at position {position} of {size} cannot exchange with those at {peers}: "
                f"others are at 0 to {size - 1}"
            )
        self.size, self.position = size, position
        self.copies = copies
        self.senders, self.pairs, self.peers = len(incoming), len(pairs), len(peers)
        self.ends = <int *> _zeros(self.pairs * sizeof(int))
        self.order = <int *> _zeros(self.peers * sizeof(int))
        self.rather_writes = <char *> _zeros(self.pairs)
        self.ways = <char *> _zeros(self.pairs + 1)
        self.planned = <char *> _zeros(self.pairs + 1)
        self.ways[self.pairs] = OTHER  # unlike `planned`, so that an exchange without pairs is planned as well
        for i in range(self.pairs):
            self.ends[i], self.rather_writes[i] = pairs[i]
        for i in range(self.peers):
            self.order[i] = peers[i]

    def __dealloc__(self):
        PyMem_Free(self.ends)
        PyMem_Free(self.order)
        PyMem_Free(self.rather_writes)
        PyMem_Free(self.ways)
        PyMem_Free(self.planned)

    cdef bint is_planned(self) noexcept nogil:
        return not memcmp(self.ways, self.planned, self.pairs + 1)

    cdef int plan(self) except -1:
        """Make the copies for the ways that were found in this exchange."""
        cdef RegionCopies reads, writes
        chosen_ways = [(self.ends[i], self.ways[i]) for i in range(self.pairs)]
        incoming, outgoing = chosen_ways[:self.senders], chosen_ways[self.senders:]
        left = _going(incoming, OTHER), _going(outgoing, OTHER)
        reads_from, writes_to = _going(incoming, READ), _going(outgoing, WRITE)
        reads, writes = self.copies(reads_from, writes_to)
        if reads is not None:
            _check_regions(reads.source_regions, self.size, {*reads_from, self.position})
            _check_regions(reads.target_regions, 1, {0})
        if writes is not None:
            _check_regions(writes.target_regions, self.size, {*writes_to, self.position})
        self.reads, self.writes, self.left = reads, writes, left if left != ((), ()) else None
        memcpy(self.planned, self.ways, self.pairs + 1)
        return 0


cdef void *_zeros(Py_ssize_t nbytes) except NULL:
    cdef void *memory = PyMem_Calloc(max(1, nbytes), 1)
    if memory == NULL:
        raise MemoryError()
    return memory


cdef tuple _going(list chosen_ways, int way):
    return tuple([end for end, chosen in chosen_ways if chosen == way])


cdef int _check_regions(_Regions regions, Py_ssize_t count, allowed) except -1:
    used = [i for i in range(regions.count) if regions.used[i]]
    if regions.count != count or not set(used) <= set(allowed):
        raise ValueError(
            f"the copies use {used} of {regions.count} {regions.name}s, but may only use {sorted(allowed)} of {count}"
        )
    return 0


@cython.no_gc_clear  # so that the memory of the lines is there to the end
cdef class Rendezvous:
    """Let ranks of a node copy between their blocks. All of these ranks must make it.

    *memories* are the mapped pools of all ranks; that of this rank, *pool*, is at *position*. *lines* says where in
    each pool its rank has its lines. *epoch* is the largest clock of the pools. *members* are the ranks in some
    communicator, *names* is what errors call them. While a rank waits for others, it calls *progress* about every 100
    microseconds. If that raises, the exchange ends with the error.
    """

    cdef readonly int size, position
    cdef readonly tuple members
    cdef readonly tuple names
    cdef Pool pool
    cdef readonly list memories
    cdef object progress
    cdef Py_ssize_t offset  # of our lines in our pool
    cdef mc_lines **lines
    cdef char **bases
    cdef Py_ssize_t *sizes
    cdef const char **sources
    cdef char **targets
    cdef uint64_t epoch, digest
    cdef bint busy
    cdef object several
    cdef Py_buffer source, target  # of the exchange that runs
    cdef readonly tuple times
    """When the last exchange began, when all peers were ready, when this rank had copied, and when all had.

    Nanoseconds of ``time.monotonic_ns``; None unless `measure_times` asked for them."""
    cdef int64_t began, ready_at, copied_at
    cdef readonly str closed
    """Why no exchange is possible any more, or None."""
    cdef tuple kept
    """The blocks of an exchange that ended with an error, which others may still read, or write to; or None."""

    def __cinit__(self, Pool pool not None, memories, lines, int position, uint64_t epoch, members, names, progress):
        cdef Memory memory
        cdef int i
        self.pool, self.memories, self.progress = pool, list(memories), progress
        self.members, self.names = tuple(members), tuple(names)
        self.size, self.position, self.epoch = len(self.memories), position, epoch
        if not (
            len(lines) == len(self.members) == len(self.names) == self.size
            and 0 <= position < self.size and self.memories[position] is pool
        ):
            raise ValueError(
                f"a rendezvous of {self.size} ranks needs the memory, the lines and the name of each of them, "
                f"and its own pool at position {position}"
            )
        self.lines = <mc_lines **> _zeros(self.size * sizeof(char *))
        self.bases = <char **> _zeros(self.size * sizeof(char *))
        self.sizes = <Py_ssize_t *> _zeros(self.size * sizeof(Py_ssize_t))
        self.sources = <const char **> _zeros(self.size * sizeof(char *))
        self.targets = <char **> _zeros(self.size * sizeof(char *))
        self.offset = lines[position]
        for i in range(self.size):
            memory = self.memories[i]
            if not 0 <= lines[i] <= memory.size - LINES:
                raise ValueError(
                    f"lines at {lines[i]} are not in the memory of rank {self.names[i]}, which has {memory.size} bytes"
                )
            self.bases[i], self.sizes[i] = memory.base, memory.size
            self.lines[i] = <mc_lines *> (memory.base + <Py_ssize_t> lines[i])

    def __dealloc__(self):
        PyMem_Free(self.lines)
        PyMem_Free(self.bases)
        PyMem_Free(self.sizes)
        PyMem_Free(self.sources)
        PyMem_Free(self.targets)

    def close(self, bint all_left=False):
        """Give the lines back, and blocks that are kept after an error. Does nothing the second time.

        Without an error, this rank has left its last exchange only when the others needed nothing more from it. After
        one, they may still be in it: then nothing is given back, unless the caller knows that they have *all_left*.
        """
        if self.kept is not None and all_left:
            self.kept = None
            _left_behind.remove(self)
            mc_forgive(&self.lines[self.position].done)
            self.pool.close_lines(self.offset)
        elif self.closed is None:
            self.pool.close_lines(self.offset)
            self.closed = "it is closed"

    def agree(self):
        """Tell the others that this rank agrees with all of them on a call before the next exchange."""
        if self.closed is None and not self.pool.is_fork():
            self.pool.clock = max(self.pool.clock, self.epoch + 1)
            mc_agree(&self.lines[self.position].ready, self.epoch + 1)

    def exchange(self, Routes routes not None, int64_t number, source, target, several=None):
        """Copy what *routes* say from the blocks *source* of all ranks to their new blocks *target*. Collective.

        All ranks of the rendezvous call it, also those without peers, with equal *number* for equal routes. Both
        arrays are contiguous. If *several* arrays are given, this rank writes from these; others read from *source*.

        When it returns, all is copied, except for `routes.left`, and the arrays may be changed and freed.

        ``CollectiveMismatch`` if a peer passed another number, now or before, or left with an error. After any error
        in an exchange, no further one is possible. ``ValueError`` if the copies of *routes* use other blocks than they
        may.
        """
        cdef mc_lines *mine
        if self.closed is not None or self.busy or self.pool.is_fork():
            raise MeshError(self._why_not())
        if routes.size != self.size or routes.position != self.position:
            raise ValueError(
                f"the routes are those of other ranks: position {routes.position} of {routes.size}, "
                f"but this is {self.position} of {self.size}"
            )
        self.busy = True
        try:
            PyObject_GetBuffer(source, &self.source, PyBUF_SIMPLE)
            try:
                PyObject_GetBuffer(target, &self.target, PyBUF_WRITABLE)
            except BaseException:
                PyBuffer_Release(&self.source)
                raise
        except BaseException:
            self.busy = False
            raise
        self.several = several
        if _measures:
            self.began = mc_nanoseconds()
        try:
            self.epoch += 1
            self.pool.clock = max(self.pool.clock, self.epoch)
            self.digest = mc_digest(self.digest, <uint64_t> number)
            mine = self.lines[self.position]
            mc_set_digest(&mine.ready, self.digest)
            mine.ready.source, mine.ready.target = (
                self.pool.offset_of(&self.source), self.pool.offset_of(&self.target)
            )
            mc_publish(&mine.ready, self.epoch)
            with nogil:
                self._wait(routes, False)
                if _measures:
                    self.ready_at = mc_nanoseconds()
                self._find_ways(routes)
                if not routes.is_planned():
                    with gil:
                        routes.plan()
                self._finish(routes)
        except BaseException:
            self._fail()
            raise
        self._release()
        if _measures:
            self.times = self.began, self.ready_at, self.copied_at, mc_nanoseconds()

    def memory_of(self, int position, int64_t offset, Py_ssize_t size):
        """Return *size* bytes at *offset* in the pool of a rank, which cannot be written to.

        They are there as long as this rendezvous, and that rank keeps its block. ``CollectiveMismatch`` if they are
        not in the pool.
        """
        if not 0 <= position < self.size or size < 0:
            raise ValueError(f"{size} bytes of the rank at position {position} of {self.size}")
        return PyMemoryView_FromMemory(self._theirs(position, offset, size), size, PyBUF_READ)

    cdef str _why_not(self):
        return "ranks that share memory cannot exchange: " + (
            self.closed
            or ("this process is a fork" if self.pool.is_fork() else "another exchange of this rank has not finished")
        )

    cdef int _wait(self, Routes routes, bint done) except -1 nogil:
        """Wait until all peers are ready with the same digest, or done."""
        cdef int64_t began = 0
        cdef int arrived = 0
        while not mc_wait(self.lines, routes.order, routes.peers, done, self.epoch, CALL_BACK, &arrived):
            with gil:
                # Peers that made another call or left may never reach this epoch.
                self._check_peers(routes, done)
                PyErr_CheckSignals()
                self.progress()
            began = began or mc_nanoseconds()
            mc_nap(mc_nanoseconds() - began)
        for arrived in range(0 if done else routes.peers):
            if self._differs(routes.order[arrived]):
                with gil:
                    self._check_peers(routes, done)
        return 0

    cdef bint _differs(self, int position) noexcept nogil:
        """Return whether a peer made another call than this rank, as far as its line says: see (D)."""
        cdef const mc_line *ready = &self.lines[position].ready
        cdef uint64_t epoch = mc_epoch(ready)
        return epoch > self.epoch or (epoch == self.epoch and mc_get_digest(ready) != self.digest)

    cdef int _check_peers(self, Routes routes, bint done) except -1:
        cdef const mc_line *theirs
        cdef const mc_line *mine = &self.lines[self.position].ready
        cdef uint64_t agreement
        cdef int position
        peers = [routes.order[i] for i in range(routes.peers)]
        others = [] if done else [str(self.names[position]) for position in peers if self._differs(position)]
        if others:
            raise CollectiveMismatch(
                f"rank {self.names[self.position]} made another collective call than rank{'s' * (len(others) > 1)} "
                f"{', '.join(others)}, now or before, or one has an error in it: run again with MESHCOMM_CHECK=1 to "
                "see which"
            )
        for position in peers:
            theirs = &self.lines[position].ready
            # It agrees with all others before this exchange. This rank has not, and so is in another call: see (G).
            agreement = mc_agreeing(theirs)
            if mc_epoch(theirs) < self.epoch and agreement >= mc_first_agreement(self.epoch) \
                    and agreement > mc_agreeing(mine):
                raise CollectiveMismatch(  # in the same words on all ranks that wait, so that one prints them
                    f"this rank makes a call that it has made before, but rank {self.names[position]} makes one for "
                    "the first time, on which all ranks have to agree. Run again with MESHCOMM_CHECK=1 to see which"
                )
            theirs = &self.lines[position].done
            if mc_failed(theirs) and mc_epoch(theirs) < self.epoch:
                raise CollectiveMismatch(
                    f"rank {self.names[position]} has left an exchange with rank {self.names[self.position]} "
                    "with an error"
                )
        return 0

    cdef void _find_ways(self, Routes routes) noexcept nogil:
        """Find the way of each pair from what both ranks say. Both find the same."""
        cdef const mc_line *ready
        cdef bint source_shared, target_shared
        cdef int i
        cdef bint own_source = self.lines[self.position].ready.source >= 0
        cdef bint own_target = self.lines[self.position].ready.target >= 0
        for i in range(routes.pairs):
            ready = &self.lines[routes.ends[i]].ready
            source_shared = ready.source >= 0 if i < routes.senders else own_source
            target_shared = own_target if i < routes.senders else ready.target >= 0
            if source_shared and not (target_shared and routes.rather_writes[i]):
                routes.ways[i] = READ
            else:
                routes.ways[i] = WRITE if target_shared else OTHER

    cdef int _finish(self, Routes routes) except -1 nogil:
        """Copy, tell the peers, and wait until they are done as well."""
        if routes.reads is not None:
            self._read(routes.reads)
        if routes.writes is not None:
            self._write(routes.writes)
        mc_publish(&self.lines[self.position].done, self.epoch)
        if _measures:
            self.copied_at = mc_nanoseconds()
        self._wait(routes, True)
        return 0

    cdef int _read(self, RegionCopies copies) except -1 nogil:
        """Copy from the blocks of others, and perhaps our own, to our new block."""
        cdef int64_t offset
        cdef int position
        self.targets[0] = _own_block(copies.target_regions, 0, &self.target)
        for position in range(self.size):
            if position == self.position:
                self.sources[position] = _own_block(copies.source_regions, position, &self.source)
            elif copies.source_regions.used[position]:
                offset = self.lines[position].ready.source
                self.sources[position] = self._theirs(position, offset, copies.source_regions.sizes[position])
        copies.run_pointers(self.sources, self.targets)
        return 0

    cdef int _write(self, RegionCopies copies) except -1 nogil:
        """Copy from our block, or from several, to the new blocks of others, and perhaps our own."""
        cdef int64_t offset
        cdef int position
        for position in range(self.size):
            if position == self.position:
                self.targets[position] = _own_block(copies.target_regions, position, &self.target)
            elif copies.target_regions.used[position]:
                offset = self.lines[position].ready.target
                self.targets[position] = self._theirs(position, offset, copies.target_regions.sizes[position])
        if self.several is not None:
            with gil:
                self._write_several(copies)
        elif copies.source_regions.count != 1:
            with gil:
                raise ValueError(f"the copies are from {copies.source_regions.count} blocks, but one was given")
        else:
            self.sources[0] = _own_block(copies.source_regions, 0, &self.source)
            copies.run_pointers(self.sources, self.targets)
        return 0

    cdef int _write_several(self, RegionCopies copies) except -1:
        cdef _Views views = copies.source_regions.hold(self.several, False)
        with nogil:
            copies.run_pointers(<const char **> views.pointers, self.targets)
        return 0

    cdef char *_theirs(self, int position, int64_t offset, Py_ssize_t size) except NULL nogil:
        """Return where the block of another rank is, if all of it is in that rank's pool."""
        if not 0 <= offset <= self.sizes[position] - size:
            with gil:
                raise CollectiveMismatch(
                    f"{size} bytes at {offset} are not in the memory of rank {self.names[position]}, "
                    f"which has {self.sizes[position]} bytes"
                )
        return self.bases[position] + offset

    cdef int _fail(self) except -1:
        """Tell those who wait for this rank. Some may still read its block and write to its new one: keep them."""
        self.kept = self.source.obj, self.target.obj, self.several
        _left_behind.append(self)
        self.closed = "an earlier call of these ranks ended with an error; close() the mesh and make it again"
        mc_fail(&self.lines[self.position].done)
        self._release()
        return 0

    cdef int _release(self) except -1:
        self.several = None
        PyBuffer_Release(&self.target)
        PyBuffer_Release(&self.source)
        self.busy = False
        return 0


cdef char *_own_block(_Regions regions, Py_ssize_t region, const Py_buffer *block) except? NULL nogil:
    """Return where a block of this rank is, if it is as long as the copies expect."""
    if regions.used[region] and regions.sizes[region] != block.len:
        with gil:
            raise ValueError(f"the block has {block.len} bytes, but the copies are for {regions.sizes[region]}")
    return <char *> block.buf
