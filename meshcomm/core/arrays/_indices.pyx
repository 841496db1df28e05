# cython: language_level=3, boundscheck=False, wraparound=False, embedsignature=True
# cython: auto_pickle=False
"""Slices in signatures: what decides the layout is in the key, all else is an argument; knows no MPI.

Loops over rows take another index in each turn. Where it begins along an axis that each device has whole does not
matter to the layout of a slice, only how many elements it takes. Along an axis that is cut, an integer decides which
block has it, and an interval where the result is cut. It is in C because it takes a tenth of the time.
"""

import numpy as np


def sliced(index, tuple shape, tuple cuts):
    """Return what an *index* is in a signature, and where it begins along each axis; None if it is for the slow path.

    Parameters
    ----------
    index: integers, slices of integers, ..., and None, or one of them
    shape: of the array
    cuts: for each axis where its blocks begin, and where the last one ends; None if it is not cut, () if block-cyclic
    """
    cdef tuple items = <tuple>index if type(index) is tuple else (index,)
    cdef list key = [], starts = []
    cdef Py_ssize_t axis = 0, ndim = len(shape), taken = 0, n, i, number
    cdef bint is_open = False
    cdef object cut
    for item in items:
        if item is Ellipsis:
            if is_open:
                return None
            is_open = True
        elif item is not None:
            taken += 1
    if taken > ndim:
        return None
    for item in items:
        if item is None:
            key.append(None)
        elif item is Ellipsis:
            for _ in range(ndim - taken):
                _interval(_WHOLE, shape[axis], cuts[axis], key, starts)
                axis += 1
        elif type(item) is int:
            n, cut = shape[axis], cuts[axis]
            if not -n <= item < n:
                return None
            i = item
            i += n if i < 0 else 0
            if cut is None:
                key.append(-1)
            elif not cut:
                key.append((i,))
            else:
                number = len(<tuple>cut) - 2
                while (<tuple>cut)[number] > i:
                    number -= 1
                key.append(number)
            starts.append(i)
            axis += 1
        elif type(item) is slice:
            for bound in (item.start, item.stop, item.step):
                if bound is not None and type(bound) is not int:
                    return None
            if item.step == 0:
                return None
            _interval(item, shape[axis], cuts[axis], key, starts)
            axis += 1
        else:
            return None
    while axis < ndim:
        _interval(_WHOLE, shape[axis], cuts[axis], key, starts)
        axis += 1
    if is_open:
        key.append(Ellipsis)  # t[..., 1] of one axis is a view, t[1] an element
    return tuple(key), starts


cdef slice _WHOLE = slice(None)


cdef int _interval(slice item, Py_ssize_t n, cut, list key, list starts) except -1:
    cdef Py_ssize_t start, stop, step, count
    start, stop, step = item.indices(n)
    count = (stop - start + step - (1 if step > 0 else -1)) // step
    count = count if count > 0 else 0
    if cut is None:
        key.append((count, step))
    else:
        key.append((start, count, step))
    starts.append(start)
    return 0


cdef class At:
    """Where the slices of one signature are in the block of this rank.

    Parameters
    ----------
    block: for each axis of the block, which elements of it the first slice takes
    begins: for each axis, the index with which the block begins, if it depends on the slice which elements it takes;
        else None
    lengths, steps: of the slices along each axis
    """

    cdef tuple block, begins, lengths, steps

    def __init__(self, tuple block, tuple begins, tuple lengths, tuple steps):
        self.block = (*block, Ellipsis)  # with which NumPy gives a view, also of no axes
        self.begins, self.lengths, self.steps = begins, lengths, steps

    def of(self, starts):
        """Return which elements of the block a slice takes that begins at *starts*; the first one if that is None."""
        cdef Py_ssize_t axis, start, stop, step, count
        cdef list result
        if starts is None:
            return self.block
        result = []
        for axis in range(len(self.begins)):
            if self.begins[axis] is None:
                result.append(self.block[axis])
                continue
            count, step = self.lengths[axis], self.steps[axis]
            if count == 0:
                result.append(slice(0, 0))
                continue
            start = starts[axis] - self.begins[axis]
            stop = start + count * step
            result.append(slice(start, None if stop < 0 else stop, step))
        result.append(Ellipsis)
        return tuple(result)


cdef object _integers = frozenset([np.dtype(code).type for code in "bBhHiIlLqQ"])


def with_ints(index):
    """Return an index with integers of Python in place of NumPy's, such as those of a loop over an array."""
    if type(index) is tuple:
        for x in <tuple>index:
            if type(x) in _integers:
                return tuple([int(x) if type(x) in _integers else x for x in <tuple>index])
        return index
    return int(index) if type(index) in _integers else index
