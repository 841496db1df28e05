# cython: language_level=3, boundscheck=False, wraparound=False, embedsignature=True
# cython: auto_pickle=False
"""Digests of calls in the messages of small exchanges: compiled, as each of them passes here twice."""

from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_FromStringAndSize
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport int64_t
from libc.string cimport memcmp


cdef class Digests:
    """A number for all peers, and theirs: what an exchange sends besides its blocks.

    Parameters
    ----------
    rank_set: the ranks that compare their calls
    number: names the exchange
    count: the number of peers that send something
    """

    cdef object rank_set
    cdef int64_t number
    cdef Py_ssize_t count

    def __init__(self, rank_set, int64_t number, Py_ssize_t count):
        self.rank_set, self.number, self.count = rank_set, number, count

    def begin(self, list sources not None, list targets not None):
        """Return *sources* after this rank's number, *targets* after space for others, and both new ones."""
        cdef int64_t mine = self.number ^ <int64_t> self.rank_set.call_digest
        sent = PyBytes_FromStringAndSize(<char *> &mine, sizeof(int64_t))
        received = PyByteArray_FromStringAndSize(NULL, self.count * sizeof(int64_t))
        return [sent] + sources, [received] + targets, (sent, received)

    def differing(self, tuple begun not None):
        """Return which of the peers, counted from 0, have sent another number."""
        cdef bytes sent
        cdef bytearray received
        cdef const char *mine
        cdef const char *theirs
        cdef list peers = []
        cdef Py_ssize_t i
        sent, received = begun
        if len(sent) != sizeof(int64_t) or len(received) != self.count * sizeof(int64_t):
            raise ValueError(f"{len(sent)} and {len(received)} bytes are not a number and those of {self.count} peers")
        mine, theirs = PyBytes_AS_STRING(sent), PyByteArray_AS_STRING(received)
        for i in range(self.count):
            if memcmp(theirs + i * sizeof(int64_t), mine, sizeof(int64_t)):
                peers.append(i)
        return peers
