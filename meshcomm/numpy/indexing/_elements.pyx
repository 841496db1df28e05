# cython: language_level=3, boundscheck=False, wraparound=False, embedsignature=True
# cython: auto_pickle=False
"""One element, on the way of each turn of a loop: read from a page, and written to the block of its owner."""

from cpython.ref cimport PyObject

import numpy as np

from meshcomm.core.arrays._storage cimport Storage, Stored, block_of, has_block
from meshcomm.core.failures.watch import watch

cdef extern from "Python.h":
    PyObject *PyEval_GetGlobals()
    Py_ssize_t PyNumber_AsSsize_t(object, void *)

cdef object _plain = frozenset((int, float, bool)), _kinds = frozenset("biufc")
cdef object can_cast = np.can_cast, ndim_of = np.ndim, generic = np.generic
cdef object _owners_of = None, _fetched = None, _as_tensor = None
cdef Py_ssize_t _line = 0, _mask = 0
cdef dict _pages = {}


def register_functions(owners_of, fetched, as_tensor, Py_ssize_t line):
    """Set what is in Python.

    Parameters
    ----------
    owners_of: returns the `ElementOwners` of a spec; None for tensors whose elements take the slow path
    fetched: returns an element that no page has, or None. Collective
    as_tensor: returns a number as a tensor
    line: bits of the index of an element in its line
    """
    global _owners_of, _fetched, _as_tensor, _line, _mask
    _owners_of, _fetched, _as_tensor, _line, _mask = owners_of, fetched, as_tensor, line, (1 << line) - 1


def all_pages():
    """Return the pages by the ids of their tensors."""
    return _pages


cdef inline Py_ssize_t _from_front(number, Py_ssize_t n):
    """Return an index along an axis of *n* elements, counted from the front; -1 if it is out of bounds."""
    cdef Py_ssize_t i = PyNumber_AsSsize_t(number, NULL)
    return i if 0 <= i < n else i + n if -n <= i < 0 else -1


cdef class PagedElements:
    """The elements of a tensor that all ranks have.

    Parameters
    ----------
    shape, storage, scalar: of the tensor; the last one is the type of its elements
    lines: arrays of consecutive elements, by their numbers
    values, first, step, count: a run of elements: the array, the first index in C order, their distance, their number
    whole: all elements, in C order; None if they have not been fetched
    version: of the storage, to which these elements belong
    hits: reads since the last message
    asker: the global names of the program that read last
    """

    cdef public Storage storage
    cdef public tuple shape
    cdef public dict lines
    cdef public object values, whole, asker, scalar
    cdef public Py_ssize_t first, step, count, version, hits
    cdef object __weakref__

    cdef object locate(self, tuple index, Py_ssize_t *number):
        """Return the array that has an element, and set its *number* there; None if no page has it."""
        cdef Py_ssize_t flat = 0, i, n, axis
        for axis in range(len(self.shape)):
            n = self.shape[axis]
            i = _from_front(index[axis], n)
            if i < 0:
                return None
            flat = flat * n + i
        number[0] = flat
        if self.whole is not None:
            return self.whole
        line = self.lines.get(flat >> _line)
        if line is not None:
            number[0] = flat & _mask
            return line
        if self.count:
            flat -= self.first
            if flat % self.step == 0 and 0 <= flat // self.step < self.count:
                number[0] = flat // self.step
                return self.values
        return None

    def find(self, tuple index not None):
        """Return the element at *index* in a tuple; None if no page has it."""
        cdef Py_ssize_t number = 0
        array = self.locate(index, &number)
        return None if array is None else (array[number],)

    cdef int write(self, tuple index, value) except -1:
        """Write what a call, which has been counted, writes to an element, or drop the pages."""
        cdef Py_ssize_t number = 0
        if self.version != self.storage.version - 1:
            return 0  # they are not up to date
        array = self.locate(index, &number)
        if array is not None:
            if type(value) is not self.scalar and type(value) not in _plain and not can_cast(type(value), self.scalar):
                return 0  # to convert it is not for the page to do
            array[number] = value
        self.version += 1
        return 0


cdef class ElementOwners:
    """Which device has an element, and where in its block.

    Parameters
    ----------
    mesh: of the tensor
    shape, dtype: of the tensor
    starts: the first index of each block along each axis
    device_of: the first device that has each block, by the numbers of the block along each axis
    numbers: of the block of each device
    is_whole: whether each device has all elements
    result_layout: the layout of an element
    """

    cdef readonly object mesh, dtype, result_layout
    cdef readonly dict device_of
    cdef readonly list numbers
    cdef readonly tuple starts
    cdef readonly bint is_whole
    cdef tuple _shape
    cdef dict _own
    cdef object _other  # takes what is written to elements of other devices

    def __init__(
        self, mesh, tuple shape, dtype, tuple starts, dict device_of, list numbers, bint is_whole, result_layout
    ):
        self.mesh, self._shape, self.dtype, self.starts, self.device_of = mesh, shape, dtype, starts, device_of
        self.numbers, self.is_whole, self.result_layout, self._own = numbers, is_whole, result_layout, {}
        self._other = np.empty((1,) * len(shape), dtype)

    cdef tuple block_with(self, tuple index, list at):
        """Return the numbers of the block with an element, and append where it is there; None if out of bounds."""
        cdef Py_ssize_t i, n, axis, number, count
        cdef list numbers = []
        cdef tuple starts
        for axis in range(len(self._shape)):
            n = self._shape[axis]
            i = _from_front(index[axis], n)
            if i < 0:
                return None
            starts = self.starts[axis]
            number, count = 0, len(starts)
            while number + 1 < count and i >= <Py_ssize_t>starts[number + 1]:
                number += 1
            numbers.append(number)
            at.append(i - <Py_ssize_t>starts[number])
        return tuple(numbers)

    def find(self, tuple index not None):
        """Return the first device that has the element at *index*, and where; None if it is out of bounds."""
        cdef list at = []
        numbers = self.block_with(index, at)
        return None if numbers is None else (self.device_of[numbers], tuple(at))

    cdef object own_numbers(self):
        """Return the numbers of the block of this rank; None if it has none. Simulated ranks share this object."""
        try:
            return self._own[watch.simulated]
        except KeyError:
            rank = self.mesh.rank
            own = self._own[watch.simulated] = None if rank is None else self.numbers[rank]
            return own

    def is_here(self, device):
        """Return whether this rank has the same block as *device*."""
        return self.own_numbers() == self.numbers[device]


def element_of(Stored tensor not None, tuple index not None):
    """Return the element at *index*, an integer for each axis. Collective; None for what the slow path has to say.

    It is a copy, on each device, as in NumPy. In a script it comes in a page, which further reads find: there it is a
    number, unless a function of ours asks.
    """
    cdef PagedElements pages = _pages.get(id(tensor))
    cdef Py_ssize_t number = 0
    if pages is not None and pages.version == pages.storage.version:
        array = pages.locate(index, &number)
        if array is not None:
            pages.hits += 1
            names = <object>PyEval_GetGlobals()
            if names is not pages.asker:
                if str(names.get("__name__")).startswith(("meshcomm.", "numpy.")):
                    return _as_tensor(array[number], tensor._spec)
                pages.asker = names
            return array[number]
    return _fetched(tensor, index)


def to_set(Stored tensor not None, tuple index not None, value):
    """Return the array, and the index there, to which `t[index] = value` writes; None for the slow path.

    *value* is a number, or a tensor of one, which all devices have. Devices that lack the element write it to an array
    that nobody reads: so all ranks raise what NumPy raises.
    """
    cdef ElementOwners owners = _owners_of(tensor._spec)
    cdef PagedElements pages
    cdef list at = []
    if owners is None:
        return None
    if type(value) not in _plain and not isinstance(value, generic):
        if ndim_of(value):
            return None
        if isinstance(value, Stored):
            if (<Stored>value)._spec.mesh is not owners.mesh or (<Stored>value)._spec.dtype.kind not in _kinds:
                return None
            value = block_of(<Stored>value)[()] if has_block(<Stored>value) else None
    numbers = owners.block_with(index, at)
    if numbers is None:
        return None
    pages = _pages.get(id(tensor))
    if pages is not None:
        pages.write(index, value)
    if owners.is_whole or owners.own_numbers() == numbers:
        return block_of(tensor), tuple(at)
    return owners._other, (0,) * len(at)
