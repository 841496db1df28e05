# cython: language_level=3, boundscheck=False, wraparound=False, embedsignature=True
# cython: auto_pickle=False
"""How elementwise operations that waited are computed: in one pass, in pieces that stay in the cache; knows no MPI."""

from bisect import bisect_right
from math import prod

import numpy as np

from cpython.ref cimport PyObject

from meshcomm.core._callers import Line
from meshcomm.core._tuning import LINE, PIECE_BYTES, SHORT_AXIS
from meshcomm.core.arrays._expressions cimport Expression, Pieces, origin_of_call, release, unlink
from meshcomm.core.arrays._segments cimport Segment, borders_in, collect, intervals
from meshcomm.core.arrays.logged import tell
from meshcomm.core.memory.blocks import new_block
from meshcomm.core.memory.scratch import scratch

cdef extern from "Python.h":
    Py_ssize_t Py_REFCNT(PyObject *)
    PyObject *PyList_GET_ITEM(object, Py_ssize_t)

cdef object ascontiguousarray = np.ascontiguousarray, copyto = np.copyto, ndarray = np.ndarray
cdef object may_share_memory = np.may_share_memory
cdef Py_ssize_t _piece_bytes = PIECE_BYTES, _line = LINE, _short = SHORT_AXIS


def let_cut(Py_ssize_t size):
    """Let pieces have *size* bytes; return the size before."""
    global _piece_bytes
    before, _piece_bytes = _piece_bytes, size
    return before


cdef object evaluate(Expression top):
    """Return the block of an expression, which is computed if it is not there."""
    if top.block is None:
        _evaluate(top, None)
    return top.block


cdef int evaluate_into(Expression top, target) except -1:
    """Write what an expression is to *target*, an array of its shape. Nobody else may need the expression."""
    if top.block is not None:
        target[...] = top.block
        return 0
    _evaluate(top, target)
    return 0


def reduce_pieces(Expression top not None, reduce, tuple axes, dtype, folding=None):
    """Return a reduction of an expression, which is not stored if pieces have *axes* as a whole, or can be merged.

    Parameters
    ----------
    reduce: takes an array, and reduces it over *axes*
    axes: which are reduced, ascending
    dtype: of the result
    folding: a `Folding`, if shares of pieces give the result
    """
    cdef Evaluation evaluation
    cdef bint is_ordered
    if top.block is not None:
        return reduce(top.block)
    evaluation = Evaluation.__new__(Evaluation)
    evaluation.top, evaluation.reduce, evaluation.call_origin = top, reduce, origin_of_call()
    evaluation.kept = [axis for axis in range(len(top.shape)) if axis not in axes]
    evaluation.prepare()
    if not axes or 0 in top.shape:
        folding = None
    elif top.axis not in axes and evaluation.first_whole <= <Py_ssize_t>axes[0]:
        evaluation.target = np.empty([top.shape[axis] for axis in evaluation.kept], dtype)
        _finish(evaluation)
        return evaluation.target
    if folding is not None:
        is_ordered = top.axis <= 0 or top.axis < evaluation.first_whole
        largest = max([prod(sizes) for _, _, sizes in evaluation.boxes])
        evaluation.fold = folding.fold(top.shape, top.dtype, largest, is_ordered)
    if evaluation.fold is None:
        evaluation.reduce = None
        evaluation.stored[id(top)] = top, new_block(top.shape, top.dtype)
        _finish(evaluation)
        return reduce(top.block)
    _finish(evaluation)
    return folding.finish(evaluation.fold.result())


cdef int _evaluate(Expression top, target) except -1:
    cdef Evaluation evaluation = Evaluation.__new__(Evaluation)
    evaluation.top, evaluation.target = top, target
    evaluation.prepare()
    return _finish(evaluation)


cdef int _finish(Evaluation evaluation) except -1:
    """Run an evaluation, and note what it has computed."""
    cdef Expression expression, top = evaluation.top
    with np.errstate(all="log", call=evaluation):
        evaluation.run()
    if evaluation.reduce is None:
        top.block = evaluation.target
    for expression, block in evaluation.stored.values():
        expression.block = block
    for expression in evaluation.order:
        if expression.block is not None:
            unlink(expression)
            release(expression)
            expression.operands, expression.memories = [], []
    for (_, text), origin in evaluation.notes.items():
        code, line, names, errors, filters = origin
        tell(Line(code.co_filename, line, names), errors, filters, text)
    return 0


def array_of(x):
    """Return the elements of what `part_of` returns for an array or an expression."""
    return evaluate(<Expression>x) if type(x) is Expression else x


cdef class Evaluation:
    """One pass over the operands of an expression, and of those that it needs.

    Parameters
    ----------
    top: the expression
    target: the array to which it goes; None for a new block
    order: what is computed: the expressions of this shape, operands first
    stored: those whose blocks are kept, with these, by their identities
    segments: one for each interval along the axis of pieces
    boxes: the pieces in the order of memory: of each the number of its segment, its slices, and its lengths
    first_whole: this axis and those behind it are whole in each piece
    reduce: takes a piece, and reduces it; None: pieces go to the target as they are
    fold: the `Fold` that gets the pieces instead; None: they are reduced one by one
    call_origin: where the program reduces them
    kept: the axes that it keeps
    is_turned: whether pieces have the first axis last in memory: so universal functions go over that, and not over few
        elements of the last one time and again
    """

    cdef Expression top
    cdef object target, memory, origin, reduce, fold, call_origin
    cdef list order, segments, boxes, kept
    cdef Py_ssize_t first_whole
    cdef dict stored, notes
    cdef tuple shape
    cdef Py_ssize_t axis, widest, largest, rotating
    cdef bint is_turned
    cdef bint is_direct  # the last operation writes to the target

    def write(self, text):
        """Note what NumPy logs of a floating-point error: once for an operation."""
        self.notes[id(self.origin), text] = self.origin

    cdef int prepare(self) except -1:
        """Find what is computed, and what is stored."""
        cdef Expression expression
        cdef Segment segment
        cdef Py_ssize_t i, count
        cdef dict numbers = {}, stored = {}
        cdef list uses
        self.order, self.notes, self.stored, self.segments = [], {}, stored, []
        self.shape, self.axis = self.top.shape, self.top.axis
        collect(self.top, self.order, numbers)
        count = len(self.order)
        uses = [0] * count
        borders = {0}
        if self.axis >= 0:
            borders.add(self.shape[self.axis])
        for i in range(count):
            for operand in (<Expression>PyList_GET_ITEM(self.order, i)).operands:
                if type(operand) is Expression and (<Expression>operand).block is None:
                    uses[<Py_ssize_t>numbers[id(operand)]] += 1
                elif type(operand) is Pieces:
                    borders_in(<Pieces>operand, 0, borders)
        operand = None
        for i in range(count):
            # The list has one reference. All but it and those of these expressions are of tensors, or of later ones.
            if i == count - 1 or Py_REFCNT(PyList_GET_ITEM(self.order, i)) > 1 + <Py_ssize_t>uses[i]:
                expression = self.order[i]
                if i < count - 1 or (self.target is None and self.reduce is None):
                    stored[id(expression)] = expression, new_block(self.shape, expression.dtype)
                expression = None
        self.widest = 1
        for start, stop in intervals(sorted(borders)):
            segment = Segment.__new__(Segment)
            segment.start, segment.stop, segment.axis, segment.widest = start, stop, self.axis, 1
            segment.order, segment.inputs, segment.leaves, segment.numbers, segment.buffers_of = [], [], [], {}, {}
            segment.add(self.top, 0)
            self.widest = max(self.widest, segment.widest)
            self.segments.append(segment)
        self._cut()
        self._turn()
        return 0

    cdef int _turn(self) except -1:
        """Decide whether pieces have the first axis last in memory: if the last is short, and some are broadcast."""
        cdef Segment segment
        cdef Py_ssize_t n = len(self.shape), length, stride
        if n < 2 or <Py_ssize_t>self.shape[n - 1] > _short or self.first_whole != 1 or self.axis > 0:
            return 0
        for segment in self.segments:
            for x in segment.leaves:
                if type(x) is ndarray:
                    for length, stride in zip(x.shape, x.strides):
                        self.is_turned = self.is_turned or (length > 1 and stride == 0)
        return 0

    cdef int run(self) except -1:
        """Compute all pieces."""
        cdef Segment segment = self.segments[0]
        cdef list boxes = self.boxes
        cdef object target = self.target
        cdef Py_ssize_t late
        if 0 in self.shape:
            return 0
        self.is_direct = target is not None and target.dtype == self.top.dtype and self.reduce is None
        if self.reduce is not None:
            return self._pieces(boxes, 0)
        if len(segment.order) == 1 and self.axis < 0 and (target is None or self.is_direct):
            self.origin = self.top.origin
            out = self.stored[id(self.top)][1] if target is None else target
            self.top.function(*[segment.leaves[-1 - <Py_ssize_t>k] for k in segment.inputs[0]], out=out)
            return 0
        late = 0 if target is None else self._lateness(boxes)
        if late < 0:  # all pieces are computed before one is written
            block = new_block(self.shape, self.top.dtype)
            self.stored[id(self.top)] = self.top, block
            self._pieces(boxes, 0)
            target[...] = block
            del self.stored[id(self.top)]
            return 0
        return self._pieces(boxes, late)

    cdef int _pieces(self, list boxes, Py_ssize_t late) except -1:
        cdef Py_ssize_t i, number = 0, max_count = 0
        cdef Segment segment
        cdef bint is_top_stored = id(self.top) in self.stored
        cdef list pending = []
        self.is_direct = self.is_direct and not late and not self.is_turned
        self.rotating = 0
        if self.is_turned or not (is_top_stored or self.is_direct or self.fold is not None):
            self.rotating = late + 1
        target = self.stored[id(self.top)][1] if is_top_stored else self.target
        self.largest = -(-max([prod(sizes) for _, _, sizes in boxes]) * self.widest // _line) * _line
        for segment in self.segments:
            segment.share(self.stored)
            max_count = max(max_count, segment.count)
        self.memory = scratch("expressions", self.largest * (max_count + self.rotating))
        for i, box, sizes in boxes:
            segment = self.segments[i]
            if self.rotating:
                out = self._buffer(sizes, self.top.dtype, number % self.rotating)
            else:
                out = target[box] if self.fold is None else self.fold.buffer(box, sizes)
            self._piece(segment, box, sizes, out)
            number += 1
            if self.fold is not None:
                if self.rotating:
                    copyto(self.fold.buffer(box, sizes), out)
                self.origin = self.call_origin
                self.fold.take()
            elif self.reduce is not None:
                self.origin = self.call_origin
                target[tuple([box[axis] for axis in self.kept])] = self.reduce(self._reducible(out))
            elif self.rotating:
                pending.append((box, out))
                if len(pending) > late:
                    at, array = pending.pop(0)
                    target[at] = array
        for at, array in pending:
            target[at] = array
        return 0

    cdef object _buffer(self, tuple sizes, dtype, Py_ssize_t number):
        """Return a buffer as an array of a piece."""
        cdef Py_ssize_t n = len(sizes)
        if not self.is_turned:
            return ndarray(sizes, dtype, self.memory, self.largest * number)
        turned = ndarray((*sizes[1:], sizes[0]), dtype, self.memory, self.largest * number)
        return turned.transpose(n - 1, *range(n - 1))

    cdef object _reducible(self, piece):
        """Return a piece in the order of memory in which a sum has NumPy's digits.

        NumPy adds up less than 8 numbers in memory one after the other, and all others over any axis but the last;
        only there it adds up float16 in float32.
        """
        cdef Py_ssize_t short
        if not self.is_turned:
            return piece
        short = 0 if piece.dtype.char == "e" else 4 if piece.dtype.kind == "c" else 8
        reduced = [n for axis, n in enumerate(piece.shape) if axis not in self.kept]
        return piece if len(reduced) == 1 and <Py_ssize_t>reduced[0] < short else ascontiguousarray(piece)

    cdef int _piece(self, Segment segment, tuple box, tuple sizes, out) except -1:
        """Compute one piece of the result, and write it to *out*."""
        cdef Py_ssize_t i, j, k, count = len(segment.order), number
        cdef list arrays = [], results = [], entries
        cdef tuple at = box
        cdef Expression expression
        if segment.start and self.axis >= 0:
            interval = box[self.axis]
            interval = slice(interval.start - segment.start, interval.stop - segment.start)
            at = (*box[:self.axis], interval, *box[self.axis + 1:])
        buffers = segment.buffers_of.get(sizes)
        if buffers is None:
            buffers = segment.buffers_of[sizes] = {}
        for i, x in enumerate(segment.leaves):
            if type(x) is ndarray:
                x = self._turned(x[at], buffers, -1 - i) if self.is_turned else x[at]
            arrays.append(x)
        for i in range(count):
            expression = segment.order[i]
            if i == count - 1:
                result = out
            elif segment.buffers[i] < 0:
                result = self.stored[id(expression)][1][box]
            else:
                result = buffers.get(i)
                if result is None:
                    number = <Py_ssize_t>segment.buffers[i] + self.rotating
                    result = buffers[i] = self._buffer(sizes, expression.dtype, number)
            results.append(result)
            entries = segment.inputs[i]
            self.origin = expression.origin
            if len(entries) == 2:
                j, k = entries[0], entries[1]
                expression.function(
                    results[j] if j >= 0 else arrays[-1 - j], results[k] if k >= 0 else arrays[-1 - k], out=result
                )
            elif len(entries) == 1:
                j = entries[0]
                expression.function(results[j] if j >= 0 else arrays[-1 - j], out=result)
            else:
                expression.function(*[results[j] if j >= 0 else arrays[-1 - j] for j in entries], out=result)
        return 0

    cdef object _turned(self, array, dict buffers, Py_ssize_t key):
        """Return a piece of an operand with its first axis last in memory, and without repeated elements."""
        if array.strides[0] == 0:
            return array
        at = tuple([slice(0, 1) if stride == 0 else slice(None) for stride in array.strides])
        array = array[at]
        turned = buffers.get(key)
        if turned is None:
            turned = np.empty((*array.shape[1:], array.shape[0]), array.dtype)
            turned = buffers[key] = turned.transpose(array.ndim - 1, *range(array.ndim - 1))
        copyto(turned, array)
        return turned

    cdef int _cut(self) except -1:
        """Find the pieces."""
        cdef Py_ssize_t count = max(1, _piece_bytes // self.widest), ndim = len(self.shape)
        cdef Py_ssize_t axis, inner = 1, step, i
        cdef list runs = [], boxes = [], borders
        cdef Segment segment
        axis = ndim
        while axis and inner * <Py_ssize_t>self.shape[axis - 1] <= count:
            axis -= 1
            inner *= <Py_ssize_t>self.shape[axis]
        self.first_whole = axis
        for i in range(ndim):
            n = self.shape[i]
            step = n
            if i < axis - 1:
                step = 1
            elif i == axis - 1:
                step = max(1, count // inner)
                step = -(-n // -(-n // step))
                if inner == 1:
                    step = -(-step // _line) * _line
            ends = {*range(0, n, max(1, step)), n}
            if i == self.axis:
                for segment in self.segments:
                    ends.add(segment.start)
            borders = sorted(ends)
            runs.append([(slice(start, stop), stop - start) for start, stop in intervals(borders)])
        _nested(runs, 0, (), (), boxes)
        starts = [(<Segment>x).start for x in self.segments]
        self.boxes = [
            (0 if self.axis < 0 else bisect_right(starts, box[self.axis].start) - 1, box, sizes)
            for box, sizes in boxes
        ]
        return 0

    cdef Py_ssize_t _lateness(self, list boxes) except -2:
        """Return how many pieces late the target may be written, so that no operand is read after it was; -1 if none.

        Operands in the memory of the target that have its strides, and begin some bytes before or after it, read what
        is so many bytes from where a piece is written. Pieces are in the order of memory.
        """
        cdef Py_ssize_t worst = 0, late
        cdef tuple strides = self.target.strides
        cdef list begins, ends
        cdef Segment segment
        begin = _address(self.target)
        for segment in self.segments:
            for x in segment.leaves:
                if type(x) is not ndarray or not may_share_memory(x, self.target):
                    continue
                if not _is_nested(self.target) or not _has_strides(x, strides):
                    return -1
                distance = _address(x) - begin
                if self.axis >= 0:
                    distance -= segment.start * <Py_ssize_t>strides[self.axis]
                worst = max(worst, -<Py_ssize_t>distance)
        if worst == 0:
            return 0
        begins, ends = _spans(boxes, strides, self.target.itemsize)
        for late in range(1, 5):
            if all([begins[i] - worst >= <Py_ssize_t>ends[i - 1 - late] for i in range(late + 1, len(boxes))]):
                return late
        return -1


cdef int _nested(list runs, Py_ssize_t axis, tuple box, tuple sizes, list boxes) except -1:
    if axis == len(runs):
        boxes.append((box, sizes))
        return 0
    for at, length in runs[axis]:
        _nested(runs, axis + 1, (*box, at), (*sizes, length), boxes)
    return 0


cdef object _address(array):
    return array.__array_interface__["data"][0]


cdef bint _has_strides(array, tuple strides):
    """Return whether an array has these strides, where they matter."""
    for n, one, other in zip(array.shape, array.strides, strides):
        if n > 1 and one != other:
            return False
    return True


cdef bint _is_nested(array):
    """Return whether elements of an array come in the order of their addresses."""
    cdef Py_ssize_t extent = array.itemsize, n, stride
    for n, stride in zip(reversed(array.shape), reversed(array.strides)):
        if n > 1:
            if stride < extent:
                return False
            extent += (n - 1) * stride
    return True


cdef tuple _spans(list boxes, tuple strides, Py_ssize_t itemsize):
    """Return the byte at which each piece begins, and that at which it ends."""
    cdef list begins = [], ends = []
    cdef Py_ssize_t low, high, stride
    for _, box, _ in boxes:
        low, high = 0, itemsize
        for at, stride in zip(box, strides):
            low += <Py_ssize_t>at.start * stride
            high += <Py_ssize_t>(at.stop - 1) * stride
        begins.append(low)
        ends.append(high)
    return begins, ends
