# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, embedsignature=True
# cython: auto_pickle=False
"""Ranks of a node that repeat an exchange between the same blocks, and do not wait for each other; knows no MPI.

In a `Channel`, each rank says when its blocks are ready. The second rank of a pair copies between the blocks of
both.
"""
# How ranks exchange without waiting
# ==================================
#
# Each rank r has a station, and for each peer p a slot, in the lines of its own pool. The others have mapped them.
#
# station_r:  epoch, digests, failed             only r writes it
# slot_r,p:   claimed, arrived, taken            both write it; it is about the bytes from p to r, `taken` is about
#                                                those from r to p
#
# The bytes from one rank of a pair to the other are a task. Either rank can do it: the receiver reads from the
# sender's block, or the sender writes to the receiver's. In epoch e, rank r does this:
#
# station_r.digests[e mod 2] = ...                                     plain
# station_r.epoch = e                                                  sfence, release       (1)
# full fence                                                                                 (2)
# for each task of a pair whose peer p has station_p.epoch == e:       acquire               (3)
#     station_p.digests[e mod 2] == station_r.digests[e mod 2]?        loads                 (4)
#     the receiver's slot.claimed: from less than e to e?              compare and swap      (5)
#     copy                                                             plain, non-temporal   (6)
#     the sender's slot.taken = e, the receiver's slot.arrived = e     sfence, release       (7)
# return; compute; then, in `wait`:
# until slot_r,p.arrived >= e and slot_r,p.taken >= e, each peer p     acquire               (8)
#
# First come the tasks whose receiver r is, then the others: two ranks that begin at the same time share the work.
#
# (A) Each task is done once. A claim (5) succeeds for one of both ranks. And one of both tries it: each stores its
#     epoch (1) and then, after a full fence, loads the other's (3). Of two ranks that do so, at least one sees the
#     other's epoch. So when the second rank of a pair has left `start`, all bytes of the pair are copied, or are being
#     copied by the first. `wait` copies nothing, and it returns while the peers compute.
#
# (B) The blocks are ready when they are copied. Who copies in epoch e has begun e, and has seen the peer's (1) by (3).
#     Between `start` and `wait` the program writes to none of its blocks.
#
# (C) After (8), r may write to its blocks, and free them: the two tasks of each pair are the only ones that use its
#     blocks, and both are done. By the release (7), r sees what others wrote to its block.
#
# (D) Ranks that make different calls copy nothing: digests are compared at (4), and p writes this digest again in
#     epoch e + 2 only, for which r has to begin e + 1. If p is in a later epoch at (3), it has left e, so both tasks
#     are done. After an error, r sets station_r.failed and stays where it is. Its peers look at it while they wait.
#
# (E) Lines are used again, with old numbers in them, by other channels and rendezvous: no number in the lines of a
#     rank is above the clock of its pool, and whoever uses them next begins above the clocks of all. What is no number
#     of this kind lies where no other use looks: `digests` is where `mc_line` has its digest and its source, `failed`
#     where the done line has it (such lines are never used again), `arrived` and `taken` are where `mc_line` ends.
#     A slow peer may still look at the lines of a rank that has left e for good. Its tasks with this rank are done. It
#     finds a number of e or above in `claimed`, so its claim fails, and writes nothing.
#
# A rank that dies, or never begins, is noticed by `progress`, as in _rendezvous.pyx.

from meshcomm.errors import CollectiveMismatch, MeshError

from cpython.exc cimport PyErr_CheckSignals
from cpython.mem cimport PyMem_Calloc, PyMem_Free
from libc.stdint cimport int64_t, uint64_t

from meshcomm._kernels cimport BoxCopies, _Regions
from meshcomm.core.memory._pool cimport LINES, Memory, Pool

cdef extern from "_channel.h" nogil:
    ctypedef struct mc_station:
        uint64_t epoch, failed
        uint64_t[2] digests
    ctypedef struct mc_slot:
        uint64_t claimed, arrived, taken
    uint64_t mc_load(const uint64_t *word)
    void mc_store(uint64_t *word, uint64_t value)
    void mc_fence()
    bint mc_claim(mc_slot *slot, uint64_t epoch)
    int64_t mc_nanoseconds()
    void mc_nap(int64_t waited)
    void mc_pause()
    void mc_yield()

cdef enum:
    CALL_BACK = 100_000  # nanoseconds between two calls of `progress`
    PAUSES = 20  # then yield: there may be more ranks than processors

cdef Py_ssize_t _SLOTS = LINES // sizeof(mc_slot)  # in the lines that a pool reserves at once

if sizeof(mc_station) > LINES or _SLOTS * sizeof(mc_slot) != LINES:
    raise ImportError(f"a station takes {sizeof(mc_station)} bytes, a slot {sizeof(mc_slot)}; lines have {LINES}")

cdef list _left_behind = []  # channels that others may still look at, after an error


def reserve(Pool pool not None, Py_ssize_t count):
    """Return where lines are reserved for a channel with so many peers, and its slots; None if there are none."""
    lines = [pool.open_lines() for _ in range(1 + (count + _SLOTS - 1) // _SLOTS)]
    if min(lines) < 0:
        give_back(pool, [offset for offset in lines if offset >= 0])
        return None
    return lines, [lines[1 + i // _SLOTS] + i % _SLOTS * sizeof(mc_slot) for i in range(count)]


def give_back(Pool pool not None, lines):
    """Let others use *lines* that were reserved and that no channel has."""
    for offset in lines:
        pool.close_lines(offset)


cdef struct Peer:
    mc_station *station
    mc_slot *ours  # what this rank has for the peer
    mc_slot *theirs  # what the peer has for this rank
    char **blocks  # of the peer
    bint receives, sends


cdef class Channel:
    """Repeat an exchange between the same blocks, from and to them. All ranks of it must make it.

    Parameters
    ----------
    pool: the pool of this rank, in which its blocks are
    lines: where this rank has its lines, as `reserve` returns it
    blocks: where in the pool its blocks are
    peers: for each, (its mapped pool, its station, its slot for this rank, its blocks, what comes from it, what goes
        to it); the last two are `BoxCopies` from blocks to blocks, or None
    epoch: the largest clock of the pools of all ranks
    names: what errors call this rank, and each peer

    The blocks must stay where they are while an exchange is in flight.
    """

    cdef Pool pool
    cdef list lines, memories, receiving, sending
    cdef tuple names
    cdef mc_station *station
    cdef char **blocks
    cdef Py_ssize_t regions
    cdef Peer *peers
    cdef int count
    cdef uint64_t epoch
    cdef bint in_flight
    cdef readonly str closed
    """Why no exchange is possible any more, or None."""

    def __cinit__(self, Pool pool not None, lines, blocks, peers, uint64_t epoch, names):
        cdef Peer *peer
        cdef int i
        self.pool, self.lines, self.names, self.epoch = pool, list(lines), tuple(names), epoch
        self.memories, self.receiving, self.sending = [], [], []
        self.count, self.regions = len(peers), len(blocks)
        if len(self.names) != self.count + 1 or (len(self.lines) - 1) * _SLOTS < self.count:
            raise ValueError(f"{self.count} peers need a name and a slot each, and this rank a name and a station")
        self.station = <mc_station *> _at(pool, self.lines[0], LINES)
        self.blocks = <char **> _zeros(self.regions * sizeof(char *))
        self.peers = <Peer *> _zeros(self.count * sizeof(Peer))
        for i, (memory, station, slot, theirs, receiving, sending) in enumerate(peers):
            peer = &self.peers[i]
            peer.station = <mc_station *> _at(memory, station, LINES)
            peer.theirs = <mc_slot *> _at(memory, slot, sizeof(mc_slot))
            peer.ours = <mc_slot *> _at(pool, self.lines[1 + i // _SLOTS], LINES) + i % _SLOTS
            peer.blocks = <char **> _zeros(self.regions * sizeof(char *))
            peer.receives, peer.sends = receiving is not None, sending is not None
            self.memories.append(memory)
            self.receiving.append(receiving)
            self.sending.append(sending)
            if receiving is not None:
                _point(peer.blocks, memory, theirs, (<BoxCopies> receiving).source_regions, self.regions)
                _point(self.blocks, pool, blocks, (<BoxCopies> receiving).target_regions, self.regions)
            if sending is not None:
                _point(peer.blocks, memory, theirs, (<BoxCopies> sending).target_regions, self.regions)
                _point(self.blocks, pool, blocks, (<BoxCopies> sending).source_regions, self.regions)

    def __dealloc__(self):
        cdef int i
        if self.peers != NULL:
            for i in range(self.count):
                PyMem_Free(self.peers[i].blocks)
        PyMem_Free(self.peers)
        PyMem_Free(self.blocks)

    def close(self):
        """Give the lines back. Does nothing the second time, nor while an exchange is in flight."""
        if self.closed is None and not self.in_flight:
            self.closed = "it is closed"
            give_back(self.pool, self.lines)

    def __del__(self):
        self.close()

    def start(self, int64_t number):
        """Begin an exchange, and copy between this rank and all peers that have begun it before. Does not wait.

        All ranks pass equal numbers. Until `wait` returns, or `test` returns True, the program may write to none of
        the blocks, and read only what the exchange does not write.

        ``CollectiveMismatch`` if a peer passed another number; after that no further exchange is possible.
        """
        cdef int other
        if self.closed is not None or self.in_flight or self.pool.is_fork():
            why = self.closed or (
                "this process is a fork" if self.pool.is_fork() else "the last exchange is in flight"
            )
            raise MeshError(f"ranks that share memory cannot exchange: {why}")
        self.epoch += 1
        self.pool.clock = max(self.pool.clock, self.epoch)
        self.in_flight = True
        self.station.digests[self.epoch & 1] = <uint64_t> number
        mc_store(&self.station.epoch, self.epoch)
        mc_fence()
        other = self._copy()
        if other < self.count:
            self._fail(other)

    def test(self):
        """Return whether the exchange is complete. ``CollectiveMismatch`` as for `start`."""
        if self.in_flight:
            self.in_flight = not self._is_complete()
            if self.in_flight:
                self._check_peers()
        return not self.in_flight

    def wait(self, progress):
        """Wait until the exchange is complete, and call *progress* about every 100 microseconds meanwhile.

        If that raises, the exchange stays in flight. ``CollectiveMismatch`` as for `start`.
        """
        cdef int64_t began = mc_nanoseconds()
        cdef bint complete
        while self.in_flight:
            with nogil:
                complete = self._wait()
            self.in_flight = not complete
            if self.in_flight:
                self._check_peers()
                PyErr_CheckSignals()
                progress()
                with nogil:
                    mc_nap(mc_nanoseconds() - began)

    cdef int _copy(self) except -1:
        """Do what tasks there are to do. Return the number of a peer that made another call, or that of all peers."""
        cdef Peer *peer
        cdef int i, receives
        for receives in range(1, -1, -1):
            for i in range(self.count):
                peer = &self.peers[i]
                if mc_load(&peer.station.epoch) != self.epoch:
                    continue
                if self._differs(peer):
                    return i
                if receives:
                    if peer.receives and mc_claim(peer.ours, self.epoch):
                        _run(self.receiving[i], peer.blocks, self.blocks)
                        mc_store(&peer.theirs.taken, self.epoch)
                        mc_store(&peer.ours.arrived, self.epoch)
                elif peer.sends and mc_claim(peer.theirs, self.epoch):
                    _run(self.sending[i], self.blocks, peer.blocks)
                    mc_store(&peer.ours.taken, self.epoch)
                    mc_store(&peer.theirs.arrived, self.epoch)
        return self.count

    cdef bint _differs(self, const Peer *peer) noexcept nogil:
        """Return whether a peer that is in this epoch made another call than this rank."""
        return mc_load(&peer.station.digests[self.epoch & 1]) != self.station.digests[self.epoch & 1]

    cdef bint _is_complete(self) noexcept nogil:
        cdef int i
        for i in range(self.count):
            if self._lacks(&self.peers[i]):
                return False
        return True

    cdef bint _lacks(self, const Peer *peer) noexcept nogil:
        """Return whether bytes to or from a peer are not copied yet."""
        return (peer.receives and mc_load(&peer.ours.arrived) < self.epoch) or (
            peer.sends and mc_load(&peer.ours.taken) < self.epoch
        )

    cdef bint _wait(self) noexcept nogil:
        """Wait for a while, and return whether the exchange is complete."""
        cdef int pauses = PAUSES
        cdef int64_t end = 0
        while not self._is_complete():
            if pauses:
                pauses -= 1
                mc_pause()
                continue
            mc_yield()
            if not end:
                end = mc_nanoseconds() + CALL_BACK
            elif mc_nanoseconds() >= end:
                return False
        return True

    cdef int _check_peers(self) except -1:
        cdef Peer *peer
        cdef bint failed
        cdef int i
        for i in range(self.count):
            peer = &self.peers[i]
            if mc_load(&peer.station.epoch) == self.epoch and self._differs(peer):
                self._fail(i)
            failed = mc_load(&peer.station.failed)
            if failed and self._lacks(peer):
                self._fail(i)
        return 0

    cdef int _fail(self, int other) except -1:
        """Tell those who wait for this rank, and keep what they may look at. The exchange is never complete."""
        self.closed = "an earlier call of these ranks ended with an error; close() the mesh and make it again"
        _left_behind.append(self)
        mc_store(&self.station.failed, 1)
        raise CollectiveMismatch(
            f"rank {self.names[0]} made another collective call than rank {self.names[1 + other]}, now or before, or "
            "one has an error in it: run again with MESHCOMM_CHECK=1 to see which"
        )


cdef int _run(BoxCopies copies, char **sources, char **targets) except -1:
    with nogil:
        copies.run_pointers(<const char **> sources, targets)
    return 0


cdef char *_at(Memory memory, Py_ssize_t offset, Py_ssize_t size) except NULL:
    if not 0 <= offset <= memory.size - size:
        raise ValueError(f"{size} bytes at {offset} are not in memory of {memory.size} bytes")
    return memory.base + offset


cdef int _point(char **pointers, Memory memory, offsets, _Regions regions, Py_ssize_t count) except -1:
    """Let *pointers* point to the blocks at *offsets*, which the copies use as *regions*."""
    cdef Py_ssize_t i
    if not regions.count == len(offsets) == count:
        raise ValueError(f"the copies are for {regions.count} blocks, not for {len(offsets)}, or for {count}")
    for i in range(count):
        if regions.used[i]:
            pointers[i] = _at(memory, offsets[i], regions.sizes[i])
    return 0


cdef void *_zeros(Py_ssize_t nbytes) except NULL:
    cdef void *memory = PyMem_Calloc(max(1, nbytes), 1)
    if memory == NULL:
        raise MemoryError()
    return memory
