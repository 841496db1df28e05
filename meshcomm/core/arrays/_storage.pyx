# cython: language_level=3, boundscheck=False, wraparound=False, embedsignature=True
# cython: auto_pickle=False
"""The memory that a tensor and its views share, how often it was written, and where its elements come from.

It is in C because each call of a tensor asks for it.
"""
# Views whose elements had to move
# ================================
#
# NumPy's view of an array shows what is written to the array later, and a write to the view changes the array. A view
# of a tensor whose elements stay on their ranks is NumPy's own view of the block, so both hold. If the elements had to
# move, the view has a block of its own, a copy. Its storage knows the `Source`: the tensor that has the elements, how
# to bring them again (`fetch`), and how to bring them back (`write_to_base`).
#
# Each storage counts the calls that write to it: its version. Once a view has its source there, it also keeps the
# last writes, each as the bytes of NumPy's global array between which it wrote. A source knows which version the view
# shows. So there are three states of the copy:
#
#   fresh     nothing that the view takes was written since it was fetched
#   stale     something was: the next call that has the view among its arguments fetches it again, before it begins
#   ahead     the view itself was written: the call that did so writes it back, before it ends
#
# Why all ranks fetch and send alike: versions count calls, and a script makes the same calls on all its ranks. Bytes
# between which a call writes follow from shapes, strides and indices of the global array, which are the same on all
# ranks; no block is looked at. When a rank drops a view does not matter to others: nobody else asks for it.
#
# After ``x = x.reshape(n, n)`` only the view has the base. Then it would be in vain to write all back. So the first
# writes through a view ask all ranks whether one of them still has the base: if none has, the view has no source from
# then on. The base is held by variables of the program, by other views of it, and by views with the same source.
#
# The bytes are compared as intervals. A view of a column overlaps with a write to the next column, as both reach over
# all rows. Then it is fetched although nothing in it has changed: the result is the same.

import numpy as np

from cpython.ref cimport PyObject

from meshcomm.core.arrays._evaluation cimport evaluate
from meshcomm.core.arrays._expressions cimport Memory
from meshcomm.core.arrays._indices import sliced
from meshcomm.core.arrays._waiting cimport end_fusing, is_fusing, settle
from meshcomm.core.memory._pool import Block
from meshcomm.core.memory.copies import opaque
from meshcomm.core.ranks.agreement import agree
from meshcomm.core.ranks.calls import collective, exchanging

KEPT_WRITES = 64
"""How many writes to a storage are kept. A view that has not been read for more of them is fetched again."""

cdef extern from "Python.h":
    Py_ssize_t Py_REFCNT(PyObject *)

cdef Py_ssize_t _max_writes = KEPT_WRITES
cdef object _copyto = np.copyto, ndarray = np.ndarray


cdef class Source:
    """Where the elements of a view are that had to move.

    Parameters
    ----------
    base: the tensor that has them; the storage of the view keeps it
    low, high: the bytes of NumPy's global array of *base*, between which the elements are
    fetch: takes *base*, and returns a tensor in the layout of the view, with its elements. Collective
    write_to_base: takes *base* and the view, and writes the elements of the view to *base*. Collective
    """

    def __init__(self, Stored base, Py_ssize_t low, Py_ssize_t high, fetch, write_to_base):
        global sources
        self.base, self.low, self.high, self.fetch, self.write_to_base = base, low, high, fetch, write_to_base
        self.storage = base._storage
        self.storage.observe()
        self.shown = self.storage.version
        self.is_counted = True
        sources += 1

    def __dealloc__(self):
        global sources
        sources -= self.is_counted


cdef class Storage(Memory):
    """The memory of a tensor and its views.

    `version` is how often calls have written to it; `source` is where its elements come from, None for its own.
    """

    def __init__(self, Source source=None):
        self.source = source

    cdef int note(self, Py_ssize_t low, Py_ssize_t high) except -1:
        """Count a write between these bytes."""
        self.version += 1
        self.is_ahead = self.source is not None
        if self._writes is not None:
            self._writes.append((low, high))
            if len(self._writes) > 2 * _max_writes:
                del self._writes[:_max_writes]
        return 0

    cdef int observe(self) except -1:
        """Keep writes from now on."""
        if self._writes is None:
            self._writes = []
        return 0

    cdef bint is_written(self, Py_ssize_t since, Py_ssize_t low, Py_ssize_t high):
        """Return whether something may have been written between these bytes after the version *since*."""
        cdef Py_ssize_t count = self.version - since, number
        cdef tuple write
        if count > len(self._writes) or count > _max_writes:
            return True
        for number in range(len(self._writes) - count, len(self._writes)):
            write = self._writes[number]
            if <Py_ssize_t>write[0] < high and low < <Py_ssize_t>write[1]:
                return True
        return False

    cpdef bint is_stale(self):
        """Return whether the source has elements that are not in this storage: alike on all ranks.

        A call has brought its arguments up to date. While it runs, they are what they were when it began.
        """
        return self.calls == 0 and self.is_behind()

    cdef bint is_behind(self):
        cdef Source source = self.source
        if source is None:
            return False
        if source.storage.version != source.shown:
            if source.storage.is_written(source.shown, source.low, source.high):
                return True
            source.shown = source.storage.version
        return source.storage.is_behind()


cdef class Stored:
    """The block of this rank, the spec, and the storage: what a tensor has in memory.

    The block may be an expression that waits. Whoever asks for the block gets it. `_is_dropped` says that the program
    has the tensor no more when the call ends to which it was given, `_may_be_dropped` that this is likely.
    """

    @property
    def _block(self):
        """The block of this rank, for this package: whoever writes to it counts that first."""
        return block_of(self)

    @property
    def _has_block(self):
        """Whether this rank has a block: whether it is in the mesh."""
        return has_block(self)

    @property
    def _is_alone(self):
        """Whether the block waits, or nobody but tensors can have an array in its memory."""
        return self._expression is not None or is_alone(self)

    @property
    def _waits(self):
        """Whether the block is not computed yet."""
        return self._expression is not None and self._expression.block is None


cdef object block_of(Stored tensor):
    """Return the block of this rank, which is computed if it waits; None outside of the mesh."""
    if tensor._expression is not None:
        tensor._array = evaluate(tensor._expression)
        tensor._expression = None
        tensor._storage.is_alone = True
    return tensor._array


cpdef object lazy_block_of(Stored tensor):
    """Return the block of this rank; or if it waits, and the program drops the tensor after this call, its expression.
    """
    cdef bint is_only = tensor._expression is not None and Py_REFCNT(<PyObject *>tensor._expression) == 1
    return tensor._expression if is_only and (tensor._is_dropped or tensor._may_be_dropped) else block_of(tensor)


cdef bint has_block(Stored tensor):
    """Return whether this rank is in the mesh."""
    return tensor._array is not None or tensor._expression is not None


cdef bint is_alone(Stored tensor) except -1:
    """Return whether nobody but tensors can write to the memory of *tensor* for now."""
    return is_fusing() or _is_alone(tensor)


cdef bint _is_alone(Stored tensor) except -1:
    """Return whether nobody but tensors can have an array in the memory of *tensor*.

    References tell: each tensor in it has its block, and each block refers to the array that has the memory, which may
    itself be in memory of the pool.
    """
    cdef Storage storage = tensor._storage
    cdef object block, base
    cdef Py_ssize_t tensors
    if storage.is_alone or storage.is_exported or storage.waiting or storage._writes is not None:
        return storage.is_alone
    block = _owner(tensor)._array
    base = block.base
    tensors = Py_REFCNT(<PyObject *>storage) - 1  # that of this function
    if base is None:
        storage.is_alone = Py_REFCNT(<PyObject *>block) == tensors + 1
    elif type(base) is ndarray and (base.base is None or type(base.base) is Block):
        storage.is_alone = Py_REFCNT(<PyObject *>block) == 2 and Py_REFCNT(<PyObject *>base) == tensors + 1
    return storage.is_alone


cdef int note_export(Stored tensor) except -1:
    """Note that the program gets the block, to which it may write whenever it likes."""
    if is_fusing():
        end_fusing()
    settle(tensor._storage)
    tensor._storage.is_alone = False
    if tensor._view is not None and tensor._view.root is not None:
        tensor._storage.is_exported = True
    return 0


cdef Stored _owner(Stored tensor):
    """Return the tensor whose block is the whole memory of *tensor*."""
    return tensor if tensor._view is None or tensor._view.root is None else <Stored>tensor._view.root


# -- writes -----------------------------------------------------------------------------------------------------------


cpdef bint count_write(Stored tensor, index=None, list next_ones=None) except -1:
    """Return whether *tensor* may be written to, and count a call that writes to it, or to where *index* says.

    What waits for it is computed, but for *next_ones*, expressions that the call computes.
    """
    if tensor._view is not None and not tensor._view.writeable:
        return False
    _count(tensor, index, next_ones)
    return True


cdef int _count(Stored tensor, index, list next_ones=None) except -1:
    cdef Storage storage = tensor._storage
    cdef tuple bounds
    if is_fusing() and not _is_alone(tensor):  # other tensors may be in this memory
        end_fusing()
    settle(storage, next_ones)
    if storage._writes is None:
        storage.version += 1
        storage.is_ahead = storage.source is not None
    else:
        bounds = bounds_of(tensor, index)
        storage.note(bounds[0], bounds[1])
    return 0


cpdef tuple bounds_of(Stored tensor, index=None):
    """Return the bytes between which the elements of *tensor*, or what *index* takes of them, are.

    They count from the first element of NumPy's global array that owns the memory.
    """
    cdef object spec = tensor._spec, key
    cdef Py_ssize_t low, high, axis = 0, count, step, stride, start
    cdef tuple shape = spec.shape, strides = strides_of(tensor)
    low = 0 if tensor._view is None else tensor._view.begin
    high = low + <Py_ssize_t>spec.dtype.itemsize
    at = None if index is None else sliced(index, shape, spec.cuts or spec.find_cuts())
    if at is None:
        for axis in range(len(shape)):
            count, stride = shape[axis], strides[axis]
            if count == 0:
                return low, low
            if stride < 0:
                low += (count - 1) * stride
            else:
                high += (count - 1) * stride
        return low, high
    for key in at[0]:
        if key is None or key is Ellipsis:
            continue
        start, stride = at[1][axis], strides[axis]
        count, step = 1, 1
        if type(key) is tuple and len(key) > 1:
            count, step = key[len(key) - 2], key[len(key) - 1]
        axis += 1
        if count == 0:
            return low, low
        low += start * stride
        high += start * stride
        if step * stride < 0:
            low += (count - 1) * step * stride
        else:
            high += (count - 1) * step * stride
    return low, high


cpdef tuple strides_of(Stored tensor):
    """Return the strides of NumPy's global array of *tensor*."""
    cdef Py_ssize_t step, n
    cdef list strides
    if tensor._view is not None:
        return tensor._view.strides
    strides, step = [], tensor._spec.dtype.itemsize
    for n in reversed(<tuple>tensor._spec.shape):
        strides.append(step)
        step *= n
    strides.reverse()
    return tuple(strides)


# -- views whose elements had to move ---------------------------------------------------------------------------------


cdef list _views_in(x):
    """Return the views among the arguments of a call whose elements had to move."""
    cdef list views = []
    _collect(x, views)
    return views


cdef int _collect(x, list views) except -1:
    if isinstance(x, Stored):
        if (<Stored>x)._storage.source is not None:
            views.append(x)
    elif type(x) is list or type(x) is tuple:
        for item in x:
            _collect(item, views)
    elif type(x) is dict:
        for item in (<dict>x).values():
            _collect(item, views)
    return 0


cpdef int refresh(x) except -1:
    """Bring views among the arguments of a call up to date, before it begins. Collective for those that are stale."""
    cdef Stored view, owner
    cdef Storage storage
    cdef Source source
    for view in _views_in(x):
        storage = view._storage
        if storage.calls:
            continue
        if storage.is_ahead:
            write_back(view)
        if not storage.is_behind():
            continue
        source = storage.source
        refresh(source.base)
        owner = _owner(view)
        fetched = source.fetch(source.base)
        _count(owner, None)  # for views of this one
        if has_block(owner):
            _overwrite(block_of(owner), block_of(<Stored>fetched))
        storage.is_ahead = False
        source.shown = source.storage.version
    return 0


cdef int _overwrite(block, new) except -1:
    """Write to a *block* that may be marked as one that programs must not write to."""
    cdef bint is_read_only = not block.flags.writeable
    if is_read_only:
        block.flags.writeable = True
    _copyto(opaque(block), opaque(new))
    if is_read_only:
        block.flags.writeable = False
    return 0


cdef bint _has_base(Source source) except -1:
    """Return whether a rank has the base of a view, apart from the view. Collective over the mesh."""
    cdef Stored base = source.base
    cdef Py_ssize_t references = Py_REFCNT(<PyObject *> base) - 2  # those of the source, and of this function
    if base._view is not None:
        return True  # the memory is another tensor's
    with collective("write to a view", base._spec.mesh) as location:
        if location is None:
            return references > 0
        with exchanging(location.rank_set):
            return agree(location.rank_set, "write to a view", value=references > 0) > 0


cpdef int write_back(x) except -1:
    """Write views among the arguments of a call that it has written back to their base. Collective for these."""
    cdef Stored view
    cdef Storage storage
    cdef Source source
    for view in _views_in(x):
        storage = view._storage
        source = storage.source
        if source is None or storage.calls or not storage.is_ahead:
            continue
        storage.is_ahead = False
        source.sent += 1
        if not source.sent & (source.sent - 1) and not _has_base(source):
            storage.source = None
            continue
        source.write_to_base(source.base, _owner(view))
        write_back(source.base)
        source.shown = source.storage.version
    return 0


cpdef int about_to_write(Stored tensor) except -1:
    """Compute what waits for the elements of *tensor*, which are to be written."""
    settle(tensor._storage)
    return 0


cpdef int begin(x) except -1:
    """Begin a call with views among its arguments: see `refresh`."""
    cdef Stored view
    for view in _views_in(x):
        refresh(view)
        view._storage.calls += 1
    return 0


cpdef int end(x, bint succeeded) except -1:
    """End a call with these arguments. If it has *succeeded*, what it has written is written back: see `write_back`.

    If not, views that it may have written to are fetched again.
    """
    cdef Stored view
    cdef Storage storage
    for view in _views_in(x):
        storage = view._storage
        storage.calls -= storage.calls > 0
        if succeeded:
            write_back(view)
        elif storage.is_ahead and storage.source is not None:
            storage.is_ahead, storage.source.shown = False, -1
    return 0
