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

from bisect import bisect_right
from math import prod

import numpy as np

from cpython.contextvars cimport get_value
from cpython.ref cimport PyObject

from numpy._core.umath import _extobj_contextvar as _errstate

from meshcomm.core._callers import Line
from meshcomm.core._tuning import LINE, PIECE_BYTES, SHORT_AXIS, WAITING_LEAVES, WAITING_OPERATIONS
from meshcomm.core.arrays.logged import tell
from meshcomm.core.failures.watch import watch
from meshcomm.core.memory.blocks import new_block
from meshcomm.core.memory.scratch import scratch

cdef extern from "Python.h":
    Py_ssize_t Py_REFCNT(PyObject *)
    PyObject *PyList_GET_ITEM(object, Py_ssize_t)
    ctypedef struct PyFrameObject:
        pass
    PyFrameObject *PyEval_GetFrame()

cdef object ascontiguousarray = np.ascontiguousarray, copyto = np.copyto
cdef object ndarray = np.ndarray, broadcast_to = np.broadcast_to, may_share_memory = np.may_share_memory
cdef Py_ssize_t _piece_bytes = PIECE_BYTES, _most_operations = WAITING_OPERATIONS, _most_leaves = WAITING_LEAVES
cdef Py_ssize_t _line = LINE, _short = SHORT_AXIS


cdef class Memory:
    """Memory that expressions read.

    `waiting` is how many operands of expressions are in it, `is_alone` whether nobody outside of this package can have
    an array in it, and `is_lent` whether that cannot be found out any more.
    """


cdef class Pieces:
    """A block in parts along an axis: of each, from where to where it is, and its array or expression."""

    def __init__(self, Py_ssize_t axis, list parts not None):
        self.axis, self.parts = axis, parts

    @property
    def waits(self):
        """Whether some parts are expressions."""
        return any([type(part) is Expression for _, _, part in self.parts])


cdef class Expression:
    """An elementwise operation whose block is not there yet.

    Parameters
    ----------
    function: takes a piece of each operand, and as *out* where to write the result
    operands: expressions, blocks, `Pieces` and numbers
    memories: those of the operands, None for numbers
    shape, dtype: of the block
    rank: the simulated rank that it is of; None for real ones
    """

    def __dealloc__(self):
        _unlink(self)
        if self.memories is not None:
            _release(self)


def let_cut(Py_ssize_t size):
    """Let pieces have *size* bytes; return the size before."""
    global _piece_bytes
    before, _piece_bytes = _piece_bytes, size
    return before


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
        elif type(each) is Pieces:
            _mark([part for _, _, part in (<Pieces>each).parts], is_next)
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
        if type(operand) is Pieces:
            for _, _, part in (<Pieces>operand).parts:
                if type(part) is Expression and _reads(<Expression>part, memory):
                    return True
    return False


cpdef int compute_waiting() except -1:
    """Compute all expressions of this rank that wait."""
    cdef Expression expression
    cdef void *each = _newest
    while each != NULL:
        expression = <Expression>each
        if expression.rank == watch.simulated:
            evaluate(expression)
            each = _newest
        else:
            each = expression.older
    return 0


# -- making one -------------------------------------------------------------------------------------------------------


cdef Expression expression_of(function, list operands, list memories, tuple shape, dtype):
    """Return the expression of an operation: see `Expression` for its parameters."""
    cdef Expression expression = Expression.__new__(Expression), operand
    cdef Py_ssize_t i, axis, size = 0
    expression.axis, expression.count = -1, 1
    for x in operands:
        if type(x) is Pieces:
            expression.axis = (<Pieces>x).axis
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
        if type(x) is ndarray and x.shape != shape:
            x = broadcast_to(x, shape)
        operands[i] = x
        if axis >= 0:
            expression.axis = axis
    expression.function, expression.operands, expression.memories = function, operands, memories
    expression.shape, expression.dtype, expression.rank = shape, dtype, watch.simulated
    expression.origin = _origin()
    _begin(expression)
    for n in shape:
        size = n if size == 0 else size * <Py_ssize_t>n
    if _kept() > _most_leaves * size * <Py_ssize_t>dtype.itemsize:
        compute_waiting()
    return expression


cdef int _begin(Expression expression) except -1:
    """Let an expression wait."""
    for memory in expression.memories:
        if memory is not None:
            (<Memory>memory).waiting += 1
    _link(expression)
    return 0


cdef Py_ssize_t _kept() except -1:
    """Return the bytes of blocks that no tensor has any more, and that are there for expressions only."""
    cdef Py_ssize_t size = 0, i
    cdef PyObject *memory
    cdef Expression expression
    cdef void *each = _newest
    while each != NULL:
        expression = <Expression>each
        for i in range(len(expression.operands) if expression.rank == watch.simulated else 0):
            if type(expression.operands[i]) is ndarray:
                memory = PyList_GET_ITEM(expression.memories, i)
                if memory != <PyObject *>None and Py_REFCNT(memory) <= (<Memory>memory).waiting:
                    size += expression.operands[i].nbytes
        each = expression.older
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


def reduce_pieces(Expression top not None, reduce, tuple axes, dtype):
    """Return a reduction of an expression, which is stored nowhere; None if pieces have no axis of *axes* as a whole.

    Parameters
    ----------
    reduce: takes an array, and reduces it over *axes*
    axes: which are reduced, ascending
    dtype: of the result
    """
    cdef Evaluation evaluation = Evaluation.__new__(Evaluation)
    if top.block is not None or not axes or 0 in axes or top.axis in axes:
        return None
    evaluation.top, evaluation.reduce = top, reduce
    evaluation.kept = [axis for axis in range(len(top.shape)) if axis not in axes]
    evaluation.prepare()
    if 0 in top.shape or <Py_ssize_t>axes[0] < evaluation.first_whole:
        return None
    evaluation.target = np.empty([top.shape[axis] for axis in evaluation.kept], dtype)
    _finish(evaluation)
    return evaluation.target


cdef int _evaluate(Expression top, target) except -1:
    cdef Evaluation evaluation = Evaluation.__new__(Evaluation)
    evaluation.top, evaluation.target = top, target
    evaluation.prepare()
    return _finish(evaluation)


cdef int _finish(Evaluation evaluation) except -1:
    """Run an evaluation, and note what it has computed."""
    cdef Expression each, top = evaluation.top
    with np.errstate(all="log", call=evaluation):
        evaluation.run()
    if evaluation.reduce is None:
        top.block = evaluation.target
    for each, block in evaluation.stored.values():
        each.block = block
    for each in evaluation.order:
        if each.block is not None:
            _unlink(each)
            _release(each)
            each.operands, each.memories = [], []
    for (_, text), origin in evaluation.notes.items():
        code, line, names, errors, filters = origin
        tell(Line(code.co_filename, line, names), errors, filters, text)
    return 0


cdef int _collect(Expression expression, list order, dict numbers) except -1:
    """Add an expression and those that it needs to *order*, operands first; *numbers* has the place of each there."""
    for operand in expression.operands:
        if type(operand) is Expression and (<Expression>operand).block is None and id(operand) not in numbers:
            _collect(<Expression>operand, order, numbers)
    numbers[id(expression)] = len(order)
    order.append(expression)
    return 0


cdef class Program:
    """The operations that make a stretch of the result along the axis of pieces.

    Parameters
    ----------
    start, stop: of the stretch
    order: the expressions, operands first
    inputs: for each expression its operands: places in *order*, or -1, -2, ... for the first, second, ... of *leaves*
    leaves: what is read: the stretch of each array, and numbers
    buffers: the number of the buffer of each expression that is not stored; -1 for others
    """

    cdef Py_ssize_t start, stop, axis, count, widest
    cdef list order, inputs, leaves, buffers
    cdef dict places, made

    cdef int add(self, Expression expression, Py_ssize_t shift) except -1:
        """Add an expression whose axis begins *shift* before that of the result, after those that it needs."""
        cdef list entries = []
        for operand in expression.operands:
            entries.append(self.entry(operand, shift))
        self.widest = max(self.widest, <Py_ssize_t>expression.dtype.itemsize)
        self.places[id(expression)] = len(self.order)
        self.order.append(expression)
        self.inputs.append(entries)
        return 0

    cdef Py_ssize_t entry(self, operand, Py_ssize_t shift) except? -2:
        """Return where an operand is: its place among the expressions, or -1 and less among the leaves."""
        cdef Py_ssize_t start = self.start - shift, stop = self.stop - shift
        if type(operand) is Pieces:
            for low, high, part in (<Pieces>operand).parts:
                if low <= start and stop <= high:
                    return self.entry(part, shift + low)
            raise AssertionError(f"no part has {start} to {stop}")
        if type(operand) is Expression:
            if (<Expression>operand).block is None:
                if id(operand) not in self.places:
                    self.add(<Expression>operand, shift)
                return self.places[id(operand)]
            operand = (<Expression>operand).block
        key = id(operand), shift
        if key not in self.places:
            self.places[key] = -1 - <Py_ssize_t>len(self.leaves)
            if type(operand) is ndarray:
                self.widest = max(self.widest, <Py_ssize_t>operand.itemsize)
                if self.axis >= 0:
                    operand = operand[(slice(None),) * self.axis + (slice(start, stop),)]
            self.leaves.append(operand)
        return self.places[key]

    cdef int share(self, dict stored) except -1:
        """Choose the buffers of results that are not *stored*, and not the last: if not needed together, they share."""
        cdef Py_ssize_t i, k, place, count = len(self.order)
        cdef list last = list(range(count)), ends = [[] for _ in range(count)], free = []
        cdef Expression each
        for i in range(count):
            for k in self.inputs[i]:
                if k >= 0:
                    last[k] = i
        for i in range(count - 1):
            (<list>ends[<Py_ssize_t>last[i]]).append(i)
        self.count, self.buffers = 0, [-1] * count
        for i in range(count):
            each = self.order[i]
            if id(each) not in stored and i < count - 1:
                place = -1
                for k in ends[i]:  # a universal function may write where it reads an operand of the same dtype
                    if self.buffers[k] >= 0 and (<Expression>self.order[k]).dtype == each.dtype:
                        place = self.buffers[k]
                        (<list>ends[i]).remove(k)
                        break
                if place < 0 and free:
                    place = free.pop()
                if place < 0:
                    place = self.count
                    self.count += 1
                self.buffers[i] = place
            for k in ends[i]:
                if self.buffers[k] >= 0:
                    free.append(self.buffers[k])
        return 0


cdef class Evaluation:
    """One pass over the operands of an expression, and of those that it needs.

    Parameters
    ----------
    top: the expression
    target: the array to which it goes; None for a new block
    order: what is computed: the expressions of this shape, operands first
    stored: those whose blocks are kept, with these, by their identities
    programs: one for each stretch along the axis of pieces
    boxes: the pieces in the order of memory: of each the number of its program, its slices, and its lengths
    first_whole: this axis and those behind it are whole in each piece
    reduce: takes a piece, and reduces it; None: pieces go to the target as they are
    kept: the axes that it keeps
    is_turned: whether pieces have the first axis last in memory: so universal functions go over that, and not over few
        elements of the last one time and again
    """

    cdef Expression top
    cdef object target, memory, origin, reduce
    cdef list order, programs, boxes, kept
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
        cdef Expression each
        cdef Program program
        cdef Py_ssize_t i, count
        cdef dict numbers = {}, stored = {}
        cdef list uses
        self.order, self.notes, self.stored, self.programs = [], {}, stored, []
        self.shape, self.axis = self.top.shape, self.top.axis
        _collect(self.top, self.order, numbers)
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
                    _borders(<Pieces>operand, 0, borders)
        operand = None
        for i in range(count):
            # The list has one reference; others than those of these expressions are tensors', or of later expressions.
            if i == count - 1 or Py_REFCNT(PyList_GET_ITEM(self.order, i)) > 1 + <Py_ssize_t>uses[i]:
                each = self.order[i]
                if i < count - 1 or (self.target is None and self.reduce is None):
                    stored[id(each)] = each, new_block(self.shape, each.dtype)
                each = None
        self.widest = 1
        for start, stop in _stretches(sorted(borders)):
            program = Program.__new__(Program)
            program.start, program.stop, program.axis, program.widest = start, stop, self.axis, 1
            program.order, program.inputs, program.leaves, program.places, program.made = [], [], [], {}, {}
            program.add(self.top, 0)
            self.widest = max(self.widest, program.widest)
            self.programs.append(program)
        self._cut()
        self._turn()
        return 0

    cdef int _turn(self) except -1:
        """Decide whether pieces have the first axis last in memory: if the last one is short, and some are broadcast."""
        cdef Program program
        cdef Py_ssize_t n = len(self.shape), length, stride
        if n < 2 or <Py_ssize_t>self.shape[n - 1] > _short or self.first_whole != 1 or self.axis > 0:
            return 0
        for program in self.programs:
            for x in program.leaves:
                if type(x) is ndarray:
                    for length, stride in zip(x.shape, x.strides):
                        self.is_turned = self.is_turned or (length > 1 and stride == 0)
        return 0

    cdef int run(self) except -1:
        """Compute all pieces."""
        cdef Program program = self.programs[0]
        cdef list boxes = self.boxes
        cdef object target = self.target
        cdef Py_ssize_t late
        if 0 in self.shape:
            return 0
        self.is_direct = target is not None and target.dtype == self.top.dtype and self.reduce is None
        if self.reduce is not None:
            return self._pieces(boxes, 0)
        if len(program.order) == 1 and self.axis < 0 and (target is None or self.is_direct):
            self.origin = self.top.origin
            out = self.stored[id(self.top)][1] if target is None else target
            self.top.function(*[program.leaves[-1 - <Py_ssize_t>k] for k in program.inputs[0]], out=out)
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
        cdef Py_ssize_t i, number = 0, most = 0
        cdef Program program
        cdef bint is_top_stored = id(self.top) in self.stored
        cdef list pending = []
        self.is_direct = self.is_direct and not late and not self.is_turned
        self.rotating = 0 if (is_top_stored and not self.is_turned) or self.is_direct else late + 1
        target = self.stored[id(self.top)][1] if is_top_stored else self.target
        self.largest = -(-max([prod(sizes) for _, _, sizes in boxes]) * self.widest // _line) * _line
        for program in self.programs:
            program.share(self.stored)
            most = max(most, program.count)
        self.memory = scratch("expressions", self.largest * (most + self.rotating))
        for i, box, sizes in boxes:
            program = self.programs[i]
            if self.rotating:
                out = self._buffer(sizes, self.top.dtype, number % self.rotating)
            else:
                out = target[box]
            self._piece(program, box, sizes, out)
            number += 1
            if self.reduce is not None:
                target[tuple([box[axis] for axis in self.kept])] = self.reduce(self._reducible(out))
            elif self.rotating:
                pending.append((box, out))
                if len(pending) > late:
                    at, array = pending.pop(0)
                    target[at] = array
        for at, array in pending:
            target[at] = array
        return 0

    cdef object _buffer(self, tuple sizes, dtype, Py_ssize_t place):
        """Return a buffer as an array of a piece."""
        cdef Py_ssize_t n = len(sizes)
        if not self.is_turned:
            return ndarray(sizes, dtype, self.memory, self.largest * place)
        turned = ndarray((*sizes[1:], sizes[0]), dtype, self.memory, self.largest * place)
        return turned.transpose(n - 1, *range(n - 1))

    cdef object _reducible(self, piece):
        """Return a piece in the order of memory in which a sum has NumPy's digits.

        NumPy adds up less than 8 numbers in memory one after the other, and all others over any axis but the last.
        """
        cdef Py_ssize_t short
        if not self.is_turned:
            return piece
        short = 4 if piece.dtype.kind == "c" else 8
        reduced = [n for axis, n in enumerate(piece.shape) if axis not in self.kept]
        return piece if len(reduced) == 1 and <Py_ssize_t>reduced[0] < short else ascontiguousarray(piece)

    cdef int _piece(self, Program program, tuple box, tuple sizes, out) except -1:
        """Compute one piece of the result, and write it to *out*."""
        cdef Py_ssize_t i, j, k, count = len(program.order), place
        cdef list arrays = [], results = [], entries
        cdef tuple at = box
        cdef Expression each
        if program.start and self.axis >= 0:
            its = box[self.axis]
            its = slice(its.start - program.start, its.stop - program.start)
            at = (*box[:self.axis], its, *box[self.axis + 1:])
        buffers = program.made.get(sizes)
        if buffers is None:
            buffers = program.made[sizes] = {}
        for i, x in enumerate(program.leaves):
            if type(x) is ndarray:
                x = self._turned(x[at], buffers, -1 - i) if self.is_turned else x[at]
            arrays.append(x)
        for i in range(count):
            each = program.order[i]
            if i == count - 1:
                result = out
            elif program.buffers[i] < 0:
                result = self.stored[id(each)][1][box]
            else:
                result = buffers.get(i)
                if result is None:
                    place = <Py_ssize_t>program.buffers[i] + self.rotating
                    result = buffers[i] = self._buffer(sizes, each.dtype, place)
            results.append(result)
            entries = program.inputs[i]
            self.origin = each.origin
            if len(entries) == 2:
                j, k = entries[0], entries[1]
                each.function(
                    results[j] if j >= 0 else arrays[-1 - j], results[k] if k >= 0 else arrays[-1 - k], out=result
                )
            elif len(entries) == 1:
                j = entries[0]
                each.function(results[j] if j >= 0 else arrays[-1 - j], out=result)
            else:
                each.function(*[results[j] if j >= 0 else arrays[-1 - j] for j in entries], out=result)
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
        cdef Py_ssize_t count = max(1, _piece_bytes // self.widest), ndim = len(self.shape), axis, inner = 1, step, i
        cdef list runs = [], boxes = [], borders
        cdef Program program
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
                for program in self.programs:
                    ends.add(program.start)
            borders = sorted(ends)
            runs.append([(slice(start, stop), stop - start) for start, stop in _stretches(borders)])
        _nested(runs, 0, (), (), boxes)
        starts = [(<Program>each).start for each in self.programs]
        self.boxes = [
            (0 if self.axis < 0 else bisect_right(starts, box[self.axis].start) - 1, box, sizes) for box, sizes in boxes
        ]
        return 0

    cdef Py_ssize_t _lateness(self, list boxes) except -2:
        """Return how many pieces late the target may be written, so that no operand is read after it was; -1 if none.

        Operands in the memory of the target that have its strides, and begin some bytes before or after it, read what
        is that far from where a piece is written. Pieces are in the order of memory.
        """
        cdef Py_ssize_t worst = 0, late
        cdef tuple strides = self.target.strides
        cdef list begins, ends
        cdef Program program
        begin = _address(self.target)
        for program in self.programs:
            for x in program.leaves:
                if type(x) is not ndarray or not may_share_memory(x, self.target):
                    continue
                if not _is_nested(self.target) or not _has_strides(x, strides):
                    return -1
                distance = _address(x) - begin
                if self.axis >= 0:
                    distance -= program.start * <Py_ssize_t>strides[self.axis]
                worst = max(worst, -<Py_ssize_t>distance)
        if worst == 0:
            return 0
        begins, ends = _spans(boxes, strides, self.target.itemsize)
        for late in range(1, 5):
            if all([begins[i] - worst >= <Py_ssize_t>ends[i - 1 - late] for i in range(late + 1, len(boxes))]):
                return late
        return -1


cdef list _stretches(list borders):
    """Return what is between borders: from where to where; one stretch if there is one border only."""
    if len(borders) == 1:
        return [(borders[0], borders[0])]
    return [(borders[i], borders[i + 1]) for i in range(len(borders) - 1)]


cdef int _borders(Pieces pieces, Py_ssize_t shift, set borders) except -1:
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
                _borders(<Pieces>operand, shift, borders)
            elif type(operand) is Expression:
                _borders_of(<Expression>operand, shift, borders)
    return 0


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


# -- parts ------------------------------------------------------------------------------------------------------------


cpdef object part_of(x, Py_ssize_t axis, Py_ssize_t start, Py_ssize_t stop):
    """Return a stretch along an axis of an expression, which waits; and of an array, `Pieces` or a number."""
    cdef Expression expression, part
    cdef Pieces pieces
    if type(x) is Expression:
        expression = x
        if expression.block is not None:
            return part_of(expression.block, axis, start, stop)
        part = Expression.__new__(Expression)
        part.function, part.dtype, part.origin = expression.function, expression.dtype, expression.origin
        part.rank = expression.rank
        part.operands = [part_of(operand, axis, start, stop) for operand in expression.operands]
        part.axis = -1
        for operand in part.operands:
            if type(operand) is Pieces:
                part.axis = axis
            elif type(operand) is Expression and (<Expression>operand).axis >= 0:
                part.axis = axis
        part.count, part.memories = expression.count, list(expression.memories)
        part.shape = (*expression.shape[:axis], stop - start, *expression.shape[axis + 1:])
        _begin(part)
        return part
    if type(x) is Pieces:
        pieces = x
        parts = [
            (max(low, start) - start, min(high, stop) - start,
             part_of(its, axis, max(low, start) - low, min(high, stop) - low))
            for low, high, its in pieces.parts if low < stop and start < high
        ]
        return parts[0][2] if len(parts) == 1 else Pieces(axis, parts)
    if type(x) is ndarray:
        return x[(slice(None),) * axis + (slice(start, stop),)]
    return x


def array_of(x):
    """Return the elements of what `part_of` returns for an array or an expression."""
    return evaluate(<Expression>x) if type(x) is Expression else x
