# cython: language_level=3, boundscheck=False, wraparound=False, embedsignature=True
# cython: auto_pickle=False
"""The operations that make a segment of a block: one along the axis of pieces. See `_evaluation.pyx`."""

import numpy as np

from meshcomm.core.arrays._expressions cimport Expression, Pieces

cdef object ndarray = np.ndarray


cdef class Segment:
    """The operations that make a segment of the result along the axis of pieces.

    Parameters
    ----------
    start, stop: of the segment
    order: the expressions, operands first
    inputs: for each expression its operands: numbers in *order*, or -1, -2, ... for the first, second, ... of *leaves*
    leaves: what is read: the segment of each array, and numbers
    buffers: the number of the buffer of each expression that is not stored; -1 for others
    """

    cdef int add(self, Expression expression, Py_ssize_t shift) except -1:
        """Add an expression whose axis begins *shift* before that of the result, after those that it needs."""
        cdef list entries = []
        for operand in expression.operands:
            entries.append(self.entry(operand, shift))
        self.widest = max(self.widest, <Py_ssize_t>expression.dtype.itemsize)
        self.numbers[id(expression)] = len(self.order)
        self.order.append(expression)
        self.inputs.append(entries)
        return 0

    cdef Py_ssize_t entry(self, operand, Py_ssize_t shift) except? -2:
        """Return where an operand is: its number among the expressions, or -1 and less among the leaves."""
        cdef Py_ssize_t start = self.start - shift, stop = self.stop - shift
        if type(operand) is Pieces:
            for low, high, part in (<Pieces>operand).parts:
                if low <= start and stop <= high:
                    return self.entry(part, shift + low)
            raise AssertionError(f"no part has {start} to {stop}")
        if type(operand) is Expression:
            if (<Expression>operand).block is None:
                if id(operand) not in self.numbers:
                    self.add(<Expression>operand, shift)
                return self.numbers[id(operand)]
            operand = (<Expression>operand).block
        key = id(operand), shift
        if key not in self.numbers:
            self.numbers[key] = -1 - <Py_ssize_t>len(self.leaves)
            if type(operand) is ndarray:
                self.widest = max(self.widest, <Py_ssize_t>operand.itemsize)
                if self.axis >= 0:
                    operand = operand[(slice(None),) * self.axis + (slice(start, stop),)]
            self.leaves.append(operand)
        return self.numbers[key]

    cdef int share(self, dict stored) except -1:
        """Choose the buffers of results that are not *stored*, nor the last: if not needed together, they share."""
        cdef Py_ssize_t i, k, number, count = len(self.order)
        cdef list last = list(range(count)), ends = [[] for _ in range(count)], free = []
        cdef Expression expression
        for i in range(count):
            for k in self.inputs[i]:
                if k >= 0:
                    last[k] = i
        for i in range(count - 1):
            (<list>ends[<Py_ssize_t>last[i]]).append(i)
        self.count, self.buffers = 0, [-1] * count
        for i in range(count):
            expression = self.order[i]
            if id(expression) not in stored and i < count - 1:
                number = -1
                for k in ends[i]:  # a universal function may write where it reads an operand of the same dtype
                    if self.buffers[k] >= 0 and (<Expression>self.order[k]).dtype == expression.dtype:
                        number = self.buffers[k]
                        (<list>ends[i]).remove(k)
                        break
                if number < 0 and free:
                    number = free.pop()
                if number < 0:
                    number = self.count
                    self.count += 1
                self.buffers[i] = number
            for k in ends[i]:
                if self.buffers[k] >= 0:
                    free.append(self.buffers[k])
        return 0


cdef int collect(Expression expression, list order, dict numbers) except -1:
    """Add an expression and those that it needs to *order*, operands first; *numbers* has the number of each there."""
    for operand in expression.operands:
        if type(operand) is Expression and (<Expression>operand).block is None and id(operand) not in numbers:
            collect(<Expression>operand, order, numbers)
    numbers[id(expression)] = len(order)
    order.append(expression)
    return 0


cdef list intervals(list borders):
    """Return what is between borders: from where to where; one interval if there is one border only."""
    if len(borders) == 1:
        return [(borders[0], borders[0])]
    return [(borders[i], borders[i + 1]) for i in range(len(borders) - 1)]


cdef int borders_in(Pieces pieces, Py_ssize_t shift, set borders) except -1:
    """Add where parts begin and end, also those of expressions among them."""
    for low, high, part in pieces.parts:
        borders.update((shift + low, shift + high))
        if type(part) is Expression:
            _borders_of(<Expression>part, shift + low, borders)
    return 0


cdef int _borders_of(Expression expression, Py_ssize_t shift, set borders) except -1:
    if expression.block is None:
        for operand in expression.operands:
            if type(operand) is Pieces:
                borders_in(<Pieces>operand, shift, borders)
            elif type(operand) is Expression:
                _borders_of(<Expression>operand, shift, borders)
    return 0
