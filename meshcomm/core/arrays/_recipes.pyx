# cython: language_level=3, boundscheck=False, wraparound=False, embedsignature=True
# cython: auto_pickle=False
"""Calls that are decided: how they run, again and again, on tensors of the same specs; knows no MPI.

It is in C for the same reasons as `_tensor.pyx`, which keeps recipes and finds them.
"""

from types import FunctionType

from cpython.ref cimport PyObject

import numpy as np

from meshcomm.core._callers import call_warning_at_program as _calling
from meshcomm.core._tuning import POOLED_FROM, WAITING_FROM
from meshcomm.core.arrays._conditions cimport may_wait
from meshcomm.core.arrays._evaluation cimport evaluate_into
from meshcomm.core.arrays._waiting cimport expression_of
from meshcomm.core.arrays._storage cimport Storage, Stored, block_of, has_block, is_alone, lazy_block_of
from meshcomm.core.arrays.spec import View
from meshcomm.core.memory.blocks import new_block
from meshcomm.core.memory.copies import is_same_memory

cdef extern from "Python.h":
    Py_ssize_t Py_REFCNT(PyObject *)

cdef object copyto = np.copyto, where = np.where, ndarray = np.ndarray, asarray = np.asarray
cdef object may_share_memory = np.may_share_memory, power = np.power
cdef object _KIND = None  # DTensor
cdef object _guarded = _calling
cdef Py_ssize_t _pooled = POOLED_FROM, _waiting_from = WAITING_FROM


def set_kind(kind):
    """Set the class of tensors."""
    global _KIND
    _KIND = kind


cdef class Call:
    """A call that is decided, and has not run: a *recipe*, the *operands*, and the tensor *out* to write to, or None.

    Operands are tensors and numbers, in the order in which the recipe takes them.
    """

    def __init__(self, Recipe recipe not None, tuple operands not None, out=None):
        self.recipe, self.operands, self.out = recipe, operands, out

    cpdef object run(self):
        """Return the result. Collective if elements have to move."""
        return self.recipe.make(self.operands, self.out)


cpdef object completed(result):
    """Return *result*; of a call, the result of running it."""
    return (<Call>result).run() if type(result) is Call else result


cdef class Recipe:
    """How calls of one signature run: *run* takes the operands, and returns the result."""

    def __init__(self, run):
        self.run = run

    cdef object make(self, tuple operands, out):
        return _guarded(self.run, operands, {} if out is None else {"out": (out,)})


cdef class OfTensors(Recipe):
    """A recipe of the tensors among the arguments of a call: the others it has from its signature."""

    def __init__(self, of):
        self.of = of

    cdef object make(self, tuple operands, out):
        return self.of.make(tensors_in(operands), out)


cdef tuple tensors_in(args):
    """Return the tensors among arguments, and in lists among these, in order."""
    return tuple([y for x in args for y in (x if type(x) is list or type(x) is tuple else (x,)) if type(y) is _KIND])


def _where(condition, x, y, out):
    copyto(out, where(condition, x, y))


cdef dict _WRITE = {np.where: _where}


cdef class OnBlocks(Recipe):
    """What a function makes of blocks that are aligned already.

    Parameters
    ----------
    run: takes the blocks, and numbers as they are
    spec: of the result
    takes_out: whether *run* is a universal function
    warns_at_program: whether warnings have to point to the program's line, as those of a Python function point to ours
    is_lazy: whether *run* also takes an expression instead of a block
    write: does the same to pieces of the blocks, and writes it to *out*; None: then the call cannot wait
    """

    cdef readonly object spec, write
    cdef readonly bint takes_out, warns_at_program, is_lazy
    cdef tuple lengths
    cdef bint is_large

    def __init__(self, run, spec, takes_out=False, warns_at_program=False, is_lazy=False, write=None):
        self.run, self.spec, self.takes_out, self.is_lazy = run, spec, takes_out, is_lazy
        self.write = run if takes_out else _WRITE.get(run) if write is None else write
        self.warns_at_program = warns_at_program or type(run) is FunctionType

    cdef object make(self, tuple operands, out):
        cdef list blocks = []
        cdef Stored stored
        cdef bint is_view = False
        cdef object shape = None, result
        if self.write is not None:
            if self.lengths is None:
                self.measure(operands)
            if self.is_large:
                result = deferred(self.write, operands, self.lengths, self.spec, out)
                if result is not None:
                    return result
        for x in operands:
            if type(x) is _KIND:
                stored = x
                if not has_block(stored):  # outside of the mesh
                    return tensor_of(None, self.spec, None) if out is None else out
                blocks.append(lazy_block_of(stored) if self.is_lazy else block_of(stored))
                is_view = is_view or stored._view is not None
                if shape is None or (<Stored>shape)._spec.shape != self.spec.shape:
                    shape = stored
            else:
                blocks.append(x)
        if out is not None:
            self.run(*blocks, out=(block_of(<Stored>out),))
            return out
        if self.takes_out:
            local = block_of(<Stored>shape)
            if local.nbytes >= _pooled:
                result = new_block(local.shape, self.spec.dtype)
                self.run(*blocks, out=result)
                return tensor_of(result, self.spec, None)
            result = self.run(*blocks, order="C") if is_view else self.run(*blocks)
        elif self.warns_at_program:
            result = _guarded(self.run, tuple(blocks), {})
        else:
            result = self.run(*blocks)
        if type(result) is not ndarray or is_view:
            result = asarray(result, order="C")
        if result.dtype is not self.spec.dtype:
            return _KIND(result, self.spec.layout, self.spec.shape, result.dtype)
        return tensor_of(result, self.spec, None)

    cdef int measure(self, tuple operands) except -1:
        """Find the shape of the block, and whether it is large enough to wait."""
        self.lengths = ()
        for x in operands:
            if type(x) is _KIND and has_block(<Stored>x) and (<Stored>x)._spec.shape == self.spec.shape:
                self.lengths = lengths_of(<Stored>x)
                self.is_large = not may_raise(self.write, self.spec.dtype) and is_large(self.lengths, [
                    self.spec.dtype, *[(<Stored>x)._spec.dtype for x in operands if type(x) is _KIND]
                ])
        return 0


# -- operations that wait ---------------------------------------------------------------------------------------------


def let_wait_from(Py_ssize_t size):
    """Let operations wait from blocks of *size* bytes on; return the size before."""
    global _waiting_from
    before, _waiting_from = _waiting_from, size
    return before


cdef tuple lengths_of(Stored tensor):
    """Return the shape of the block of this rank."""
    return tensor._array.shape if tensor._expression is None else tensor._expression.shape


cpdef bint may_raise(function, dtype) except -1:
    """Return whether values decide if an operation raises an error, which must come at once: as 2 ** -1 does."""
    return function is power and dtype.kind in "iu"


cpdef bint is_large(tuple lengths, list dtypes) except -1:
    """Return whether an operation on blocks of this shape may wait; *dtypes* are those of operands and result."""
    cdef Py_ssize_t size = 0
    for kind in dtypes:
        if kind.kind not in "biufc":
            return False
        size = max(size, <Py_ssize_t>kind.itemsize)
    for n in lengths:
        size *= <Py_ssize_t>n
    return size >= _waiting_from and len(lengths) > 0


cdef object deferred(function, tuple operands, tuple lengths, spec, out):
    """Return what an operation on aligned tensors and numbers makes, if it may wait, or its operands do; else None.

    The result waits, but for one that goes to the block of *out*.
    """
    cdef list values = [], memories = []
    cdef Stored tensor, result
    cdef bint is_waiting = False
    if not may_wait():
        return None
    for x in operands:
        if type(x) is _KIND:
            tensor = x
            if not has_block(tensor):
                return None
            is_waiting = is_waiting or tensor._expression is not None
            if tensor._expression is None and not is_alone(tensor):
                return None
            add_operand(values, memories, tensor)
        elif type(x) is int and not is_in_range(x, operands):
            return None
        else:
            values.append(x)
            memories.append(None)
    if out is not None:
        if not is_waiting:
            return None
        expression = expression_of(function, values, memories, lengths, spec.dtype)
        if (<Stored>out)._expression is not None:  # nobody has a view of it: that would have needed the block
            (<Stored>out)._expression = expression
            return out
        for x in operands:
            if type(x) is _KIND and (<Stored>x)._is_dropped:
                (<Stored>x)._expression = None
        evaluate_into(expression, block_of(<Stored>out))
        return out
    result = tensor_of(None, spec, None)
    result._expression = expression_of(function, values, memories, lengths, spec.dtype)
    return result


cpdef bint is_in_range(number, operands) except -1:
    """Return whether all tensors of integers among *operands* can hold an integer: else NumPy raises an error now."""
    for x in operands:
        if type(x) is _KIND and (<Stored>x)._spec.dtype.kind in "iub":
            least = 0 if (<Stored>x)._spec.dtype.kind == "u" else -128
            if not least <= number <= (127 if (<Stored>x)._spec.dtype.itemsize < 4 else 2147483647):
                return False
    return True


def waiting(function, list operands, list owners, spec):
    """Return the tensor that an elementwise operation makes, which waits.

    Parameters
    ----------
    function: takes a piece of each operand, and as *out* where to write the result
    operands: tensors in the layout of the result, `Pieces`, arrays that nobody else has, and numbers
    owners: the tensor in whose memory an operand is; None for others
    spec: of the result
    """
    cdef list values = [], memories = []
    cdef Stored result
    for x, owner in zip(operands, owners):
        if type(x) is _KIND:
            add_operand(values, memories, <Stored>x)
        else:
            values.append(x)
            memories.append(None if owner is None else (<Stored>owner)._storage)
    result = tensor_of(None, spec, None)
    lengths = spec.layout.block_shape(spec.shape, spec.mesh.rank)
    result._expression = expression_of(function, values, memories, lengths, spec.dtype)
    return result


def write_pieces(block, pieces, tensor):
    """Write `Pieces` to a *block*, with whose memory they may overlap. They are those of *tensor*."""
    expression = expression_of(converted, [pieces], [(<Stored>tensor)._storage], block.shape, block.dtype)
    evaluate_into(expression, block)


def converted(x, out):
    """Write *x* to *out*, in the dtype of that."""
    copyto(out, x, casting="unsafe")


cdef int add_operand(list values, list memories, Stored tensor) except -1:
    """Add what an expression reads of a *tensor*: its expression, its block, or its only element."""
    if tensor._expression is not None:
        values.append(tensor._expression)
    elif tensor._array.ndim:
        values.append(tensor._array)
    else:
        values.append(tensor._array[()])
    memories.append(tensor._storage)
    return 0


cdef class Assignment(Recipe):
    """What writes a number, or a tensor in the layout of a slice, to the slice.

    *run* is where the slice is in the block, *lengths* its shape there.
    """

    cdef readonly tuple lengths

    def __init__(self, run, tuple lengths):
        self.run, self.lengths = run, lengths

    cdef object make(self, tuple operands, out):
        cdef Stored tensor = operands[0], other
        value = operands[1]
        if not has_block(tensor):  # outside of the mesh
            return tensor
        target = block_of(tensor)[self.run.of(operands[2] if len(operands) > 2 else None)]
        if target.shape != self.lengths:
            target = target.reshape(self.lengths)  # a view: only axes of length 1 come and go
        if type(value) is _KIND:
            other = value
            if other._expression is not None and other._is_dropped and Py_REFCNT(<PyObject *>other._expression) == 1:
                evaluate_into(other._expression, target)
                return tensor
            value = block_of(other)
            if (other is tensor or other._view is not None or tensor._view is not None) and may_share_memory(
                target, value
            ):
                if is_same_memory(target, value):  # as in t[index] += value
                    return tensor
                value = value.copy()
        target[...] = value
        return tensor


cdef class OfView(Recipe):
    """What is a view of the block of one tensor, whose strides are in the signature.

    Parameters
    ----------
    run: takes the block, and returns a view of it
    spec: of the result
    strides: those of NumPy's global array
    first: the byte of that of the tensor with which it begins
    """

    cdef readonly object spec, strides
    cdef readonly Py_ssize_t first

    def __init__(self, run, spec, strides, Py_ssize_t first=0):
        self.run, self.spec, self.strides, self.first = run, spec, strides, first

    cdef object make(self, tuple operands, out):
        cdef Stored tensor = operands[0]
        cdef object view = tensor._view, root = tensor, writeable = True
        cdef Py_ssize_t first = self.first_of(operands)
        if view is not None:
            root, writeable, first = tensor if view.root is None else view.root, view.writeable, first + view.begin
        view = tuple.__new__(View, (root, self.strides, writeable, first))
        return tensor_of(self.taken(block_of(tensor), operands) if has_block(tensor) else None, self.spec, view)

    cdef object taken(self, local, tuple operands):
        return self.run(local)

    cdef Py_ssize_t first_of(self, tuple operands) except? -1:
        return self.first


cdef class OfSlice(OfView):
    """What is a slice of the block of one tensor, and begins where the call says.

    Parameters
    ----------
    run: where it is in the block
    spec, strides, first: those of `OfView`, for the first slice
    lengths: the shape of its block
    steps: the strides of NumPy's global array of the tensor
    """

    cdef readonly tuple lengths, steps

    def __init__(self, run, spec, strides, first, tuple lengths, tuple steps):
        OfView.__init__(self, run, spec, strides, first)
        self.lengths, self.steps = lengths, steps

    cdef Py_ssize_t first_of(self, tuple operands) except? -1:
        cdef Py_ssize_t first = 0, axis
        if len(operands) < 2:
            return self.first
        for axis in range(len(self.steps)):
            first += <Py_ssize_t>operands[1][axis] * <Py_ssize_t>self.steps[axis]
        return first

    cdef object taken(self, local, tuple operands):
        block = local[self.run.of(operands[1] if len(operands) > 1 else None)]
        return block if block.shape == self.lengths else block.reshape(self.lengths)


cdef Stored tensor_of(local, spec, view):
    cdef Stored tensor = _KIND.__new__(_KIND)
    tensor._array, tensor._spec, tensor._view = local, spec, view
    tensor._storage = Storage.__new__(Storage) if view is None else (<Stored>view[0])._storage
    return tensor
