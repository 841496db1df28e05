# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, embedsignature=True
"""Reads of many runs of bytes of a file, without Python between two of them."""

import os

from libc.errno cimport EINTR, errno
from libc.stdint cimport int64_t, uint8_t

cdef extern from "<unistd.h>" nogil:
    ssize_t pread(int file, void *buffer, size_t count, int64_t offset)


def read_runs(int file, const int64_t[::1] offsets, const int64_t[::1] lengths, uint8_t[::1] into):
    """Fill *into* with runs of bytes of an open file, one after the other, and return how many bytes were found.

    It returns early, with fewer bytes than *into* has, where the file ends before a run does.

    Parameters
    ----------
    file: its descriptor
    offsets, lengths: of the runs in the file; the lengths add up to that of *into*
    into: where the bytes go

    ``OSError`` if the system cannot read.
    """
    cdef Py_ssize_t done = 0, end = 0, run
    cdef ssize_t got
    cdef int failed = 0
    if lengths.shape[0] != offsets.shape[0] or not _add_up(lengths, into.shape[0]):
        raise ValueError(f"{offsets.shape[0]} runs do not fill {into.shape[0]} bytes")
    with nogil:
        for run in range(offsets.shape[0]):
            end += lengths[run]
            while done < end:
                got = pread(file, &into[done], end - done, offsets[run] + lengths[run] - (end - done))
                if got < 0:
                    failed = errno
                    if failed != EINTR:
                        break
                    failed = 0  # Python sees the signal after the call
                elif got == 0:
                    break
                else:
                    done += got
            if done < end:
                break
    if failed:
        raise OSError(failed, os.strerror(failed))
    return done


cdef bint _add_up(const int64_t[::1] lengths, Py_ssize_t size) noexcept:
    """Return whether no length is negative, and their sum is *size*."""
    cdef Py_ssize_t run
    for run in range(lengths.shape[0]):
        if not 0 <= lengths[run] <= size:
            return False
        size -= lengths[run]
    return size == 0
