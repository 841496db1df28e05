# cython: language_level=3, boundscheck=False, wraparound=False, embedsignature=True
# cython: auto_pickle=False
"""Elementwise operations that wait, and how they are computed: in pieces that stay in the cache; knows no MPI.

An operation on large blocks need not be computed at once. Its result is a tensor whose block is not there yet, but an
`Expression`. Operations on that tensor join it. The block is computed when somebody needs it, in one pass over the
operands of all operations together, so that what one operation makes is still in the cache when the next one reads it.
NumPy's functions make each piece: the values are NumPy's bit for bit.
"""
# What keeps it right
# ===================
#
# - An expression holds the blocks that it reads, and their `Memory`, which counts the expressions that wait. Whoever
#   writes to memory calls `settle` first, which computes these.
# - Nothing waits on memory that others could write to without a call of ours: see `is_alone` of a tensor.
# - What its tensor or another expression still needs of an expression is stored when it is computed. Their references
#   tell: one that only the expressions of this evaluation have is not stored anywhere.
# - All expressions that are computed together have one shape. Operands with other shapes are broadcast, or computed
#   first.
# - Floating-point errors are logged, and told in the end: each once for an operation, as a warning at the line of the
#   program that made it. Where the program would see more of them than a warning, nothing waits.
# - Waiting is a matter of one rank: nothing here communicates, and ranks need not agree on when anything is computed.

from math import prod

import numpy as np

from cpython.contextvars cimport get_value
from cpython.ref cimport PyObject

from numpy._core.umath import _extobj_contextvar as _errstate

from meshcomm.core._callers import Line
from meshcomm.core._tuning import LINE, PIECE_BYTES, WAITING_LEAVES, WAITING_OPERATIONS
from meshcomm.core.arrays.logged import handled, tell
from meshcomm.core.memory.blocks import new_block
from meshcomm.core.memory.scratch import scratch

cdef extern from "Python.h":
    Py_ssize_t Py_REFCNT(PyObject *)
    PyObject *PyList_GET_ITEM(object, Py_ssize_t)
    ctypedef struct PyFrameObject:
        pass
    PyFrameObject *PyEval_GetFrame()

cdef object ndarray = np.ndarray, broadcast_to = np.broadcast_to
cdef Py_ssize_t _piece_bytes = PIECE_BYTES, _most_operations = WAITING_OPERATIONS, _most_leaves = WAITING_LEAVES
cdef Py_ssize_t _line = LINE


cdef class Memory:
    """Memory that expressions read.

    `waiting` is how many operands of expressions are in it, `is_alone` whether nobody outside of this package can have
    an array in it, and `is_lent` whether that cannot be found out any more.
    """


cdef class Pieces:
    """A block in parts along an axis: in each part, from where to where, and the array."""

    def __init__(self, Py_ssize_t axis, list parts not None):
        self.axis, self.parts = axis, parts


cdef class Expression:
    """An elementwise operation whose block is not there yet.

    Parameters
    ----------
    function: takes a piece of each operand, and where to write the result
    operands: expressions, blocks, `Pieces` and numbers
    memories: those of the operands, None for numbers
    shape, dtype: of the block
    """

    def __dealloc__(self):
        _unlink(self)
        if self.memories is not None:
            _release(self)


# -- which expressions wait -------------------------------------------------------------------------------------------

cdef void *_newest = NULL  # of a list through all expressions that wait, linked by their addresses


cdef void _link(Expression expression) noexcept:
    global _newest
    expression.older = _newest
    if _newest != NULL:
        (<Expression>_newest).newer = <void *>expression
    _newest = <void *>expression


cdef void _unlink(Expression expression) noexcept:
    global _newest
    if expression.newer != NULL:
        (<Expression>expression.newer).older = expression.older
    elif _newest == <void *>expression:
        _newest = expression.older
    if expression.older != NULL:
        (<Expression>expression.older).newer = expression.newer
    expression.newer = expression.older = NULL


cdef void _release(Expression expression) noexcept:
    """Count off the operands of an expression."""
    for memory in expression.memories:
        if memory is not None:
            (<Memory>memory).waiting -= 1


cdef int settle(Memory memory, list next_ones=None) except -1:
    """Compute all expressions that wait for what is in *memory*, which is to be written.

    *next_ones* are computed by the same call, before it writes.
    """
    if memory.waiting == 0:
        return 0
    if next_ones is None:
        return _settle(memory)
    _mark(next_ones, True)
    try:
        _settle(memory)
    finally:
        _mark(next_ones, False)
    return 0


cdef int _settle(Memory memory) except -1:
    cdef Expression expression
    cdef void *each
    while memory.waiting:
        each = _newest
        while each != NULL and ((<Expression>each).is_next or not _reads(<Expression>each, memory)):
            each = (<Expression>each).older
        if each == NULL:
            return 0
        expression = <Expression>each
        evaluate(expression)
    return 0


cdef int _mark(list expressions, bint is_next) except -1:
    for each in expressions:
        if type(each) is Expression:
            (<Expression>each).is_next = is_next
            _mark((<Expression>each).operands, is_next)
    return 0


cdef bint _reads(Expression expression, Memory memory):
    if expression.block is not None:
        return False
    for its in expression.memories:
        if its is memory:
            return True
    for operand in expression.operands:
        if type(operand) is Expression and _reads(<Expression>operand, memory):
            return True
    return False


cpdef int compute_waiting() except -1:
    """Compute all expressions of this process that wait."""
    cdef Expression expression
    while _newest != NULL:
        expression = <Expression>_newest
        evaluate(expression)
    return 0


# -- making one -------------------------------------------------------------------------------------------------------


cdef Expression expression_of(function, list operands, list memories, tuple shape, dtype):
    """Return the expression of an operation: see `Expression` for its parameters."""
    cdef Expression expression = Expression.__new__(Expression), operand
    cdef Py_ssize_t i, axis, size = 0
    expression.axis, expression.count = -1, 1
    for i in range(len(operands)):
        x = operands[i]
        axis = -1
        if type(x) is Expression:
            operand = x
            if operand.block is None and (
                operand.shape != shape or expression.count + operand.count > _most_operations
                or (operand.axis >= 0 and expression.axis >= 0 and operand.axis != expression.axis)
            ):
                evaluate(operand)
            if operand.block is None:
                axis = operand.axis
                expression.count += operand.count
            else:
                x = operand.block
        elif type(x) is Pieces:
            axis = (<Pieces>x).axis
        if type(x) is ndarray and x.shape != shape:
            x = broadcast_to(x, shape)
        operands[i] = x
        if axis >= 0:
            expression.axis = axis
    expression.function, expression.operands, expression.memories = function, operands, memories
    expression.shape, expression.dtype = shape, dtype
    expression.origin = _origin()
    for memory in memories:
        if memory is not None:
            (<Memory>memory).waiting += 1
    _link(expression)
    for n in shape:
        size = n if size == 0 else size * <Py_ssize_t>n
    if _kept_alive(expression) > _most_leaves * size * <Py_ssize_t>dtype.itemsize:
        evaluate(expression)
    return expression


cdef Py_ssize_t _kept_alive(Expression expression) except -1:
    """Return the bytes of blocks that no tensor has any more, and that are there for an expression only."""
    cdef Py_ssize_t size = 0, i
    cdef PyObject *memory
    for i in range(len(expression.operands)):
        x = expression.operands[i]
        if type(x) is Expression:
            if (<Expression>x).block is None:
                size += _kept_alive(<Expression>x)
        elif type(x) is ndarray:
            memory = PyList_GET_ITEM(expression.memories, i)
            if memory != <PyObject *>None and Py_REFCNT(memory) <= (<Memory>memory).waiting:
                size += x.nbytes
    return size


cdef tuple _origin():
    """Return where the program is, and how it handles floating-point errors and warnings there."""
    frame = <object>PyEval_GetFrame()
    names = frame.f_globals
    while frame.f_back is not None and _is_ours(names):
        frame = frame.f_back
        names = frame.f_globals
    return frame.f_code, frame.f_lineno, names, get_value(_errstate), _filters()["filters"]


cdef bint _is_ours(dict names):
    name = names.get("__name__")
    return type(name) is str and ((<str>name).startswith("meshcomm.") or (<str>name).startswith("numpy."))


import warnings as _warnings
cdef dict _of_warnings = _warnings.__dict__
cdef inline dict _filters(): return _of_warnings


# -- computing --------------------------------------------------------------------------------------------------------


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


cdef int _evaluate(Expression top, target) except -1:
    cdef list order = [], notes
    cdef Expression each
    cdef Py_ssize_t i
    cdef Evaluation evaluation
    _collect(top, order)
    try:
        evaluation = Evaluation.__new__(Evaluation)
        evaluation.order, evaluation.top, evaluation.target = order, top, target
        evaluation.prepare()
        logged = handled(top.origin[3])
        if all([each.origin[3] is top.origin[3] for each in order]) and not logged:
            with np.errstate(all="ignore"):
                evaluation.run()
        else:
            with np.errstate(all="log", call=evaluation):
                evaluation.run()
    finally:
        for each in order:
            each.number = 0
    for i in range(len(order)):
        each = order[i]
        block = evaluation.stored[i]
        if block is not None or each is top:
            each.block = target if block is None else block
            _unlink(each)
            _release(each)
            each.operands, each.memories = [], []
    if evaluation.notes:
        notes = sorted(evaluation.notes)
        for i, text in notes:
            code, line, names, errors, filters = (<Expression>order[i]).origin
            tell(Line(code.co_filename, line, names), errors, filters, text)
    return 0


cdef int _collect(Expression expression, list order) except -1:
    """Add an expression and those that it needs to *order*, operands first, and number them from 1 on."""
    for operand in expression.operands:
        if type(operand) is Expression and not (<Expression>operand).number:
            if (<Expression>operand).block is None:
                _collect(<Expression>operand, order)
    order.append(expression)
    expression.number = len(order)
    return 0


cdef class Evaluation:
    """One pass over the operands of expressions.

    Parameters
    ----------
    order: the expressions, operands first
    target: the array to which the last one goes; None for a new block
    """

    cdef list order, leaves, inputs, stored, buffers
    cdef Expression top
    cdef object target
    cdef set notes
    cdef tuple shape
    cdef Py_ssize_t step, widest, count, largest
    cdef bint is_through_buffer  # what goes to the target

    def write(self, text):
        """Note what NumPy logs of a floating-point error: once for all pieces."""
        self.notes.add((self.step, text))

    cdef int prepare(self) except -1:
        """Find the operands, what is stored, and which buffer each result goes to."""
        cdef Expression each, other
        cdef Py_ssize_t i, count = len(self.order)
        cdef dict numbers = {}
        cdef list uses = [0] * count, last = [i for i in range(count)], entries
        self.leaves, self.inputs, self.notes, self.shape = [], [], set(), self.top.shape
        self.widest = 1
        for i in range(count):
            each = self.order[i]
            entries = []
            self.widest = max(self.widest, <Py_ssize_t>each.dtype.itemsize)
            for operand in each.operands:
                if type(operand) is Expression:
                    other = operand
                    if other.block is None:
                        uses[other.number - 1] += 1
                        last[other.number - 1] = i
                        entries.append(other.number - 1)
                        continue
                    operand = other.block
                number = numbers.get(id(operand))
                if number is None:
                    number = numbers[id(operand)] = len(self.leaves)
                    self.leaves.append(operand)
                    if type(operand) is ndarray:
                        self.widest = max(self.widest, <Py_ssize_t>operand.itemsize)
                entries.append(-1 - number)
            self.inputs.append(entries)
        each = other = operand = None
        self.stored = [None] * count
        for i in range(count - 1):
            # The list has one reference; all others are those of tensors, and of expressions that are not computed now.
            if Py_REFCNT(PyList_GET_ITEM(self.order, i)) > 1 + <Py_ssize_t>uses[i]:
                self.stored[i] = 0
        for i in range(count):
            if self.stored[i] is not None or (i == count - 1 and self.target is None):
                each = self.order[i]
                self.stored[i] = new_block(self.shape, each.dtype)
        self.is_through_buffer = False
        if self.target is not None and self.target.dtype != self.top.dtype:
            self.is_through_buffer = True
        self._share(last)
        return 0

    cdef int _share(self, list last) except -1:
        """Choose the buffer of each result that is not stored: results that are not needed at the same time share."""
        cdef Py_ssize_t i, k, count = len(self.order)
        cdef list free = [], ends = [[] for _ in range(count)]
        cdef Expression each
        self.count, self.buffers = 0, [-1] * count
        for i in range(count - 1):
            (<list>ends[<Py_ssize_t>last[i]]).append(i)
        for i in range(count):
            each = self.order[i]
            if self.stored[i] is None and i < count - 1:
                # A ufunc may write where it reads an operand of the same dtype.
                for k in ends[i]:
                    if self.buffers[k] >= 0 and (<Expression>self.order[k]).dtype == each.dtype:
                        self.buffers[i] = self.buffers[k]
                        (<list>ends[i]).remove(k)
                        break
                else:
                    if free:
                        self.buffers[i] = free.pop()
                    else:
                        self.buffers[i] = self.count
                        self.count += 1
            for k in ends[i]:
                if self.buffers[k] >= 0:
                    free.append(self.buffers[k])
        return 0

    cdef int run(self) except -1:
        """Compute all pieces."""
        cdef Py_ssize_t count = len(self.order), lateness
        cdef list boxes
        cdef object target = self.target
        if 0 in self.shape:
            return 0
        if count == 1 and self.top.axis < 0 and (target is None or not self.is_through_buffer):
            return self._at_once()
        boxes = self._boxes()
        lateness = 0 if target is None else self._lateness(boxes)
        if lateness < 0:  # all pieces are computed before one is written
            self.stored[count - 1] = new_block(self.shape, self.top.dtype)
            self.target = None
            self._pieces(boxes, 0)
            target[...] = self.stored[count - 1]
            self.target, self.stored[count - 1] = target, None
            return 0
        return self._pieces(boxes, lateness)

    cdef int _at_once(self) except -1:
        """Compute one operation on whole blocks."""
        cdef list operands = [self.leaves[-1 - <Py_ssize_t>k] for k in self.inputs[0]]
        self.top.function(*operands, self.stored[0] if self.target is None else self.target)
        return 0

    cdef int _pieces(self, list boxes, Py_ssize_t lateness) except -1:
        cdef Py_ssize_t i, k, j, count = len(self.order), number = 0
        cdef list arrays = [None] * len(self.leaves), results = [None] * count, made = [], pending = []
        cdef list entries, rotating = []
        cdef tuple lengths = None
        cdef Expression each
        cdef bint is_direct = self.target is not None and not self.is_through_buffer and lateness == 0
        self.largest = max([prod(sizes) for _, sizes in boxes])  # all pieces have their buffers in the same places
        for i in range(len(self.leaves)):
            if type(self.leaves[i]) is not ndarray and type(self.leaves[i]) is not Pieces:
                arrays[i] = self.leaves[i]
        for box, sizes in boxes:
            if sizes != lengths:
                made = self._buffers(sizes, lateness)
                rotating = made.pop()
                lengths = sizes
            for i in range(len(self.leaves)):
                x = self.leaves[i]
                if type(x) is ndarray:
                    arrays[i] = x[box]
                elif type(x) is Pieces:
                    arrays[i] = _part(<Pieces>x, box)
            for i in range(count):
                each = self.order[i]
                self.step = i
                if self.stored[i] is not None:
                    out = self.stored[i][box]
                elif i == count - 1 and is_direct:
                    out = self.target[box]
                elif i == count - 1:
                    out = rotating[number % len(rotating)]
                else:
                    out = made[<Py_ssize_t>self.buffers[i]][i]
                results[i] = out
                entries = self.inputs[i]
                if len(entries) == 2:
                    j, k = entries[0], entries[1]
                    each.function(
                        results[j] if j >= 0 else arrays[-1 - j], results[k] if k >= 0 else arrays[-1 - k], out
                    )
                elif len(entries) == 1:
                    j = entries[0]
                    each.function(results[j] if j >= 0 else arrays[-1 - j], out)
                else:
                    each.function(*[results[j] if j >= 0 else arrays[-1 - j] for j in entries], out)
            number += 1
            if self.target is not None and not is_direct:
                pending.append((box, results[count - 1]))
                if len(pending) > lateness:
                    at, array = pending.pop(0)
                    self.target[at] = array
        for at, array in pending:
            self.target[at] = array
        return 0

    cdef list _buffers(self, tuple lengths, Py_ssize_t lateness):
        """Return arrays of a piece: in each buffer for each result, and in turn for what goes to the target late."""
        cdef Py_ssize_t step, i, count = len(self.order), extra = 0
        cdef Expression each
        step = -(-self.largest * self.widest // _line) * _line
        if self.target is not None and (lateness or self.is_through_buffer):
            extra = lateness + 1
        memory = scratch("expressions", step * (self.count + extra))
        made = [{} for _ in range(self.count)]
        for i in range(count):
            if self.buffers[i] >= 0:
                each = self.order[i]
                made[self.buffers[i]][i] = ndarray(lengths, each.dtype, memory, step * <Py_ssize_t>self.buffers[i])
        made.append(
            [ndarray(lengths, self.top.dtype, memory, step * (self.count + i)) for i in range(extra)]
        )
        return made

    cdef list _boxes(self):
        """Return the pieces, in the order of memory: their slices, and their lengths."""
        cdef Py_ssize_t count = max(1, _piece_bytes // self.widest), ndim = len(self.shape), axis, inner = 1, step
        cdef list runs, boxes = []
        cdef set ends
        cdef Py_ssize_t along = self.top.axis
        axis = ndim
        while axis and inner * <Py_ssize_t>self.shape[axis - 1] <= count:
            axis -= 1
            inner *= <Py_ssize_t>self.shape[axis]
        ends = set()
        for x in self.leaves:
            if type(x) is Pieces:
                for a, b, _ in (<Pieces>x).parts:
                    ends.update((a, b))
        runs = []
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
            borders = {*range(0, n, max(1, step)), n}
            if i == along:
                borders |= {end for end in ends if 0 <= end <= n}
            borders = sorted(borders)
            runs.append([(slice(borders[k], borders[k + 1]), borders[k + 1] - borders[k]) for k in range(len(borders) - 1)])
        _nested(runs, 0, (), (), boxes)
        return boxes

    cdef Py_ssize_t _lateness(self, list boxes) except -2:
        """Return how many pieces late the target may be written, so that no operand is read after it was; -1 if none.

        Operands in the memory of the target that have its strides, and begin some bytes before or after it, read what
        is that far from where a piece is written. Pieces are in the order of memory.
        """
        cdef Py_ssize_t worst = 0, distance, late
        cdef list strides = [*self.target.strides]
        cdef tuple spans
        begin = _address(self.target)
        for x in self.leaves:
            parts = [(0, 0, x)] if type(x) is ndarray else (<Pieces>x).parts if type(x) is Pieces else []
            for start, _, array in parts:
                if not np.may_share_memory(array, self.target):
                    continue
                if not _is_nested(self.target) or not _same_strides(array, strides, self.shape):
                    return -1
                distance = _address(array) - begin
                if type(x) is Pieces:
                    distance -= start * <Py_ssize_t>strides[(<Pieces>x).axis]
                if distance < 0:
                    worst = max(worst, -distance)
        if worst == 0:
            return 0
        spans = _spans(boxes, strides, <Py_ssize_t>self.target.itemsize)
        for late in range(1, 5):
            if all([spans[0][i] - worst >= <Py_ssize_t>spans[1][i - 1 - late] for i in range(late + 1, len(boxes))]):
                return late
        return -1


cdef int _nested(list runs, Py_ssize_t axis, tuple box, tuple sizes, list boxes) except -1:
    if axis == len(runs):
        boxes.append((box, sizes))
        return 0
    for at, length in runs[axis]:
        _nested(runs, axis + 1, (*box, at), (*sizes, length), boxes)
    return 0


cdef object _part(Pieces pieces, tuple box):
    """Return what a box takes of a block in parts."""
    at = box[pieces.axis]
    for start, stop, array in pieces.parts:
        if start <= at.start and at.stop <= stop:
            return array[(*box[:pieces.axis], slice(at.start - start, at.stop - start), *box[pieces.axis + 1:])]
    raise AssertionError(f"no part has {at}")


cdef object _address(array):
    return array.__array_interface__["data"][0]


cdef bint _same_strides(array, list strides, tuple shape):
    """Return whether an array has these strides, where they matter."""
    for n, one, other in zip(shape, array.strides, strides):
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


cdef tuple _spans(list boxes, list strides, Py_ssize_t itemsize):
    """Return the byte at which each piece begins, and that at which it ends."""
    cdef list begins = [], ends = []
    cdef Py_ssize_t low, high, stride
    for box, _ in boxes:
        low, high = 0, itemsize
        for at, stride in zip(box, strides):
            low += <Py_ssize_t>at.start * stride
            high += <Py_ssize_t>(at.stop - 1) * stride
        begins.append(low)
        ends.append(high)
    return begins, ends
