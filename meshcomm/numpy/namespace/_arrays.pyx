# cython: language_level=3, boundscheck=False, wraparound=False, binding=True, embedsignature=True
# cython: auto_pickle=False
"""What operators, indices and functions of NumPy do with arrays that each rank of a script has whole; knows no MPI.

An operator looks at the shapes of its operands before NumPy computes. Where the result is large, each rank makes its
block only. It is in C because it is on the way of each operation on small arrays, where it takes a tenth of a
microsecond.
"""

import numpy as np

from meshcomm.core.arrays.dtensor import DTensor
from meshcomm.numpy.namespace.rule import WHOLE_BELOW

ctypedef object (*_Binary)(object, object)

cdef extern from *:
    """
    static PyTypeObject *numpys;  /* numpy.ndarray, from set_numpys on */
    #define set_numpys(kind) (numpys = (PyTypeObject *)(kind))
    #define numpys_numbers (numpys->tp_as_number)
    #define numpys_item(array, index) (numpys->tp_as_mapping->mp_subscript(array, index))
    #define numpys_compared(a, b, how) (numpys->tp_richcompare(a, b, how))
    """
    ctypedef struct PyNumberMethods:
        _Binary nb_add, nb_subtract, nb_multiply, nb_true_divide, nb_floor_divide, nb_remainder
        _Binary nb_and, nb_or, nb_xor, nb_matrix_multiply
    ctypedef struct PyType_Slot:
        int slot
        void *pfunc
    ctypedef struct PyType_Spec:
        const char *name
        int basicsize
        int itemsize
        unsigned int flags
        PyType_Slot *slots
    object PyType_FromSpecWithBases(PyType_Spec *, object)
    unsigned int Py_TPFLAGS_DEFAULT, Py_TPFLAGS_BASETYPE
    int Py_mp_subscript, Py_nb_add, Py_nb_subtract, Py_nb_multiply, Py_nb_true_divide, Py_nb_floor_divide
    int Py_nb_remainder, Py_nb_and, Py_nb_or, Py_nb_xor, Py_nb_matrix_multiply, Py_tp_richcompare, Py_tp_hash
    void *PyObject_HashNotImplemented
    void set_numpys(object)
    PyNumberMethods *numpys_numbers
    object numpys_item(object, object)
    object numpys_compared(object, object, int)

set_numpys(np.ndarray)
cdef object _ndarray = np.ndarray, _view = np.ndarray.view, _may_share_memory = np.may_share_memory
cdef object _growing = frozenset(), _by_blocks = None
cdef object _kind = None, _cut_result = None, _cut = None, _item = None
cdef Py_ssize_t _limit = WHOLE_BELOW


def set_kind(kind, cut_result, cut, item):
    """Set the class of a script's arrays, and what makes tensors of them.

    Parameters
    ----------
    kind: the class
    cut_result: takes a universal function and two arrays; returns their result, cut, or None if it is not to be cut
    cut: takes an array that NumPy has made, and returns what a script gets of it
    item: takes an array, and an index that has tensors
    """
    global _kind, _cut_result, _cut, _item
    _kind, _cut_result, _cut, _item = kind, cut_result, cut, item


def set_growing(functions, by_blocks):
    """Set the *functions* of which *by_blocks* makes a large result, or returns NotImplemented."""
    global _growing, _by_blocks
    _growing, _by_blocks = functions, by_blocks


# -- operators --------------------------------------------------------------------------------------------------------


cdef object _number(_Binary numpys_way, object ufunc, object a, object b):
    """Return what an operator makes of two operands, of which one at least is an array of ours."""
    cdef object result = _larger(ufunc, a, b)
    return numpys_way(a, b) if result is None else result


cdef object _larger(object ufunc, object a, object b):
    """Return a result that is cut, NotImplemented if another class decides, or None if NumPy is to compute."""
    cdef object first = type(a), second = type(b), one, other
    cdef double elements
    if (first is not _kind and first is not _ndarray) or (second is not _kind and second is not _ndarray):
        # A class that derives from NumPy's arrays decides first, and it does not derive from ours.
        return NotImplemented if first is _kind and second is not _kind and isinstance(b, _ndarray) else None
    one, other = a.shape, b.shape
    if one == other:
        return None
    elements = _of_product(one, other) if ufunc is np_matmul else _of_broadcast(one, other)
    if elements * 16 < _limit or elements * max(8, <Py_ssize_t>a.itemsize, <Py_ssize_t>b.itemsize) < _limit:
        return None
    return _cut_result(ufunc, a, b)


cdef double _of_broadcast(tuple one, tuple other):
    """Return how many elements the result of two shapes has at most."""
    cdef Py_ssize_t i, n = len(one), m = len(other)
    cdef double elements = 1
    if n < m:
        one, other, n, m = other, one, m, n
    for i in range(n - m):
        elements *= <Py_ssize_t>one[i]
    for i in range(m):
        elements *= max(<Py_ssize_t>one[n - m + i], <Py_ssize_t>other[i])
    return elements


cdef double _of_product(tuple one, tuple other):
    """Return how many elements a product of matrices has at most: all axes but the two that are summed over."""
    cdef Py_ssize_t i, n = len(one), m = len(other)
    cdef double elements = 1
    for i in range(n - 1):
        elements *= <Py_ssize_t>one[i]
    for i in range(m):
        if i != max(0, m - 2):
            elements *= <Py_ssize_t>other[i]
    return elements


cdef object _compared(object a, object b, int how):
    cdef object result = _larger(_COMPARISONS[how], a, b)
    return numpys_compared(a, b, how) if result is None else result


cdef object _add(object a, object b): return _number(numpys_numbers.nb_add, np_add, a, b)
cdef object _subtract(object a, object b): return _number(numpys_numbers.nb_subtract, np_subtract, a, b)
cdef object _multiply(object a, object b): return _number(numpys_numbers.nb_multiply, np_multiply, a, b)
cdef object _divide(object a, object b): return _number(numpys_numbers.nb_true_divide, np_divide, a, b)
cdef object _floor_divide(object a, object b): return _number(numpys_numbers.nb_floor_divide, np_floor_divide, a, b)
cdef object _remainder(object a, object b): return _number(numpys_numbers.nb_remainder, np_remainder, a, b)
cdef object _and(object a, object b): return _number(numpys_numbers.nb_and, np_bitwise_and, a, b)
cdef object _or(object a, object b): return _number(numpys_numbers.nb_or, np_bitwise_or, a, b)
cdef object _xor(object a, object b): return _number(numpys_numbers.nb_xor, np_bitwise_xor, a, b)
cdef object _matmul(object a, object b): return _number(numpys_numbers.nb_matrix_multiply, np_matmul, a, b)

cdef object np_add = np.add, np_subtract = np.subtract, np_multiply = np.multiply, np_divide = np.divide
cdef object np_floor_divide = np.floor_divide, np_remainder = np.remainder, np_matmul = np.matmul
cdef object np_bitwise_and = np.bitwise_and, np_bitwise_or = np.bitwise_or, np_bitwise_xor = np.bitwise_xor
cdef tuple _COMPARISONS = (np.less, np.less_equal, np.equal, np.not_equal, np.greater, np.greater_equal)  # as Py_LT...


# -- indices ----------------------------------------------------------------------------------------------------------


cdef object _getitem(object array, object index):
    cdef object kind = type(index)
    if kind is DTensor:
        return _item(array, index)
    if kind is tuple:
        for item in <tuple>index:
            if type(item) is DTensor:
                return _item(array, index)
    return numpys_item(array, index)


# -- the class --------------------------------------------------------------------------------------------------------


cdef PyType_Slot _slots[14]
_slots[:] = [
    PyType_Slot(Py_mp_subscript, <void *>_getitem),
    PyType_Slot(Py_nb_add, <void *>_add),
    PyType_Slot(Py_nb_subtract, <void *>_subtract),
    PyType_Slot(Py_nb_multiply, <void *>_multiply),
    PyType_Slot(Py_nb_true_divide, <void *>_divide),
    PyType_Slot(Py_nb_floor_divide, <void *>_floor_divide),
    PyType_Slot(Py_nb_remainder, <void *>_remainder),
    PyType_Slot(Py_nb_and, <void *>_and),
    PyType_Slot(Py_nb_or, <void *>_or),
    PyType_Slot(Py_nb_xor, <void *>_xor),
    PyType_Slot(Py_nb_matrix_multiply, <void *>_matmul),
    PyType_Slot(Py_tp_richcompare, <void *>_compared),
    PyType_Slot(Py_tp_hash, PyObject_HashNotImplemented),
    PyType_Slot(0, NULL),
]
cdef PyType_Spec _spec = PyType_Spec(
    "meshcomm.numpy.namespace._arrays.Operated", 0, 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE, &_slots[0]
)
Operated = PyType_FromSpecWithBases(&_spec, (np.ndarray,))
"""NumPy's arrays, with the operators and the indices above."""


def array_wrap(self, array, context=None, return_scalar=False):
    """Return what a universal function has made, as ``__array_wrap__`` of the class does."""
    if return_scalar:
        return array[()]
    if array is self or type(self) is not _kind:
        return array
    return _cut(array) if array.nbytes >= _limit else _view(array, _kind)


def array_function(self, function, types, args, kwargs):
    """Return what a function of NumPy makes of plain views of the arrays, as ``__array_function__`` does.

    A class of another library decides itself, and so do tensors.
    """
    cdef dict views = {}, arrays = {}  # by the ids of the arrays; by those of the views
    for kind in types:
        if kind is not _kind and not issubclass(kind, _ndarray):
            return NotImplemented
    args = _plain(args, views, arrays, 0)
    if kwargs:
        kwargs = _plain(kwargs, views, arrays, 0)
    if function in _growing:
        result = _by_blocks(function, args, kwargs)
        if result is not NotImplemented:
            return result
    return _for_script(function(*args, **kwargs), views, arrays)


cdef object _plain(object x, dict views, dict arrays, int depth):
    """Return *x* with plain views of the arrays of a script, also in lists, tuples and dicts."""
    cdef object kind = type(x), view
    if kind is _kind:
        view = views.get(id(x))
        if view is None:
            view = views[id(x)] = _view(x, _ndarray)
            arrays[id(view)] = x
        return view
    if depth > _DEEPEST:
        return x  # NumPy says so
    if kind is tuple:
        return tuple([_plain(item, views, arrays, depth + 1) for item in <tuple>x])
    if kind is list:
        return [_plain(item, views, arrays, depth + 1) for item in <list>x]
    if kind is dict:
        return {key: _plain(item, views, arrays, depth + 1) for key, item in (<dict>x).items()}
    return x


cdef bint _is_shared(object result, dict views) except -1:
    """Return whether NumPy has made a view of an argument."""
    if result.base is not None:
        for view in views.values():
            if _may_share_memory(result, view):
                return True
    return False


cdef object _for_script(object result, dict views, dict arrays):
    """Return what a script gets of what NumPy has made."""
    cdef object kind = type(result), array
    if kind is _ndarray:
        array = arrays.get(id(result))
        if array is not None:
            return array
        return _cut(result) if result.nbytes >= _limit and not _is_shared(result, views) else _view(result, _kind)
    if kind is tuple:
        return tuple([_for_script(item, views, arrays) for item in <tuple>result])
    if kind is list:
        return [_for_script(item, views, arrays) for item in <list>result]
    if isinstance(result, tuple) and hasattr(result, "_fields"):
        return kind(*[_for_script(item, views, arrays) for item in result])
    return result


cdef int _DEEPEST = 70  # lists in lists: NumPy's arrays have 64 axes at most
