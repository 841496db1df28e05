# cython: language_level=3, boundscheck=False, wraparound=False, embedsignature=True
# cython: auto_pickle=False
"""What a tensor is in memory, and the fast path of its calls; knows no MPI.

A call that was made before, with tensors of the same specs and the same other arguments, runs by the recipe that was
kept for it. It is in C for two reasons: it takes a tenth of the time, and NumPy's warnings name the line of the
program, as no line of ours is on the way.
"""
# How a call gets a recipe
# ========================
#
# 1. A call looks for its signature in the recipes of the spec of its first tensor: what is called, the specs of the
#    tensors, and the other arguments. Numbers that are operands count by their type; all others by type and value.
#    What has no signature, such as plain arrays, takes the slow path each time.
# 2. Without a recipe it takes the slow path, which checks and decides. What decides returns a `Call`: a `Recipe`, and
#    the operands on which it is to run.
# 3. Back here, the recipe runs, and is kept if the operands are the tensors of the call, all of them. What is made in
#    several steps comes back as a result, and is not kept.
#
# A recipe does the same as the slow path does, also towards other ranks: so it does not matter which of them have kept
# it, and it may be dropped at any time. What it may depend on is in the signature. What may change between calls is
# checked in each: whether a mesh is closed, and whether a tensor may be written to.

from cpython.ref cimport PyObject

from operator import getitem as _getitem, setitem as _setitem
import numpy as np

from meshcomm.core._tuning import MAX_UNPLANNED_BYTES, RECIPES
from meshcomm.core.arrays._conditions cimport are_seen
from meshcomm.core.arrays._recipes cimport Call, OfTensors, Recipe, completed, tensors_in
from meshcomm.core.arrays._storage cimport (
    Storage, Stored, begin, block_of, count_write, end, has_block, note_export, sources
)
from meshcomm.core.arrays._indices import sliced, with_ints
from meshcomm.core.arrays._recipes import set_kind as set_kind_of_results
from meshcomm.core.arrays.operators import LIKE_FUNCTIONS, Operators, power_ufunc
from meshcomm.core.arrays.spec import TensorSpec, known_spec
from meshcomm.core.failures.watch import watch
from meshcomm.errors import StaleViewError

cdef extern from *:
    """
    #if PY_VERSION_HEX >= 0x030E0000
    #define is_temporary(x) PyUnstable_Object_IsUniqueReferencedTemporary(x)
    #else
    #define is_temporary(x) (Py_REFCNT(x) == 1)
    #endif
    """
    bint is_temporary(object)

cdef extern from "Python.h":
    Py_ssize_t Py_REFCNT(PyObject *)

# References to the tensor of a method, and of a function of NumPy, that the call itself holds: counted in CPython 3.11
# with NumPy 2. If that is wrong elsewhere, a reduction computes again what it could have stored, or stores in vain.
cdef Py_ssize_t OF_METHOD = 2, OF_FUNCTION = 4

cdef object dtype = np.dtype, ndarray = np.ndarray, generic = np.generic
cdef object _numbers = frozenset(
    [bool, int, float, complex, np.bool_, *(np.dtype(char).type for char in "bBhHiIlLqQefdgFDG")]
)
cdef object _NONE = object()  # in place of a signature: there is none
cdef object _KIND = None  # DTensor
cdef object _long = None  # NumPy's protocol, the slow path
cdef object _check_open = None
cdef object _element_of = None, _to_set = None, _slice_of = None, _write = None
cdef object _rows = None
cdef bint _has_rows = False
cdef Py_ssize_t _short = MAX_UNPLANNED_BYTES, _max_recipes = RECIPES


def set_kind(kind, slow_path, check_open):
    """Set the class of tensors, NumPy's protocol, and the check for a closed mesh."""
    global _KIND, _long, _check_open
    _KIND, _long, _check_open = kind, slow_path, check_open
    set_kind_of_results(kind)


def set_protocol(get, put, slice_of, write):
    """Set what NumPy's protocol has for calls that take the fast path.

    Parameters
    ----------
    get, put: return an element; the array and the index to which one is written
    slice_of: returns what an index of integers and slices takes that is right, without the checks of others
    write: writes an array that each rank has whole to such a slice; returns whether it has
    """
    global _element_of, _to_set, _slice_of, _write
    _element_of, _to_set, _slice_of, _write = get, put, slice_of, write


def set_rows(rows):
    """Set the module that notes calls with rows that sent something, and writes, and makes calls without them."""
    global _rows
    _rows = rows


def let_rows(bint on):
    """Say whether rows are counted: then ranks may have copies of arrays."""
    global _has_rows
    _has_rows = on


STALE = (
    "this view is a copy, as its elements had to move, and they have been written since: t.refresh() brings it up to "
    "date (Collective)"
)


cdef class TensorBase(Stored):
    """The block of this rank, the spec, and how the block shares memory."""

    def __init__(self, local, layout, tuple shape, dtype, _view=None, Storage _storage=None):
        reference = known_spec((id(layout), shape, id(dtype)))
        spec = None if reference is None else reference()
        self._array, self._view = local, _view
        self._spec = TensorSpec(layout, shape, dtype) if spec is None else spec
        if _storage is None:
            _storage = (<TensorBase>_view.root)._storage if _view is not None and _view.root is not None else Storage()
        self._storage = _storage

    @property
    def local(self):
        """The block of this rank; None if the rank is outside of the mesh. C-contiguous, unless the tensor is a view.

        ``StaleViewError`` if the tensor is a view whose elements had to move, and they have been written since.
        """
        if self._storage.source is not None and self._storage.is_stale():
            raise StaleViewError(STALE)
        block = block_of(self)
        note_export(self)
        return block

    @property
    def layout(self):
        """How the global array is cut over the mesh."""
        return self._spec.layout

    @property
    def shape(self):
        """The shape of the global array."""
        return self._spec.shape

    @property
    def dtype(self):
        """The dtype of the elements."""
        return self._spec.dtype

    @property
    def mesh(self):
        """The mesh of the layout."""
        return self._spec.mesh

    # -- calls --------------------------------------------------------------------------------------------------------

    def __array_ufunc__(self, ufunc, method, *inputs, **kwargs):
        result = _attending(_by_ufunc, self, ufunc, method, inputs, kwargs)
        return result if script is None or kwargs.get("out") is not None else _for_script(result, None, None)

    def _apply(self, function, *args, **kwargs):
        """Return what *function*, one of NumPy, makes of this tensor."""
        self._may_be_dropped = Py_REFCNT(<PyObject *>self) <= OF_METHOD
        return _function(self, function, (self, *args), kwargs)

    def __getitem__(self, index):
        result = _attending(_item, self, with_ints(index), None, None, None)
        return result if script is None else _for_script(result, None, index)

    def __setitem__(self, index, value):
        note_dropped(value)
        _attending(_set_item, self, with_ints(index), value, None, None)
        forget_dropped(value)

    def __array_function__(self, func, types, tuple args, dict kwargs):
        if func in LIKE_FUNCTIONS:  # like= is this tensor, and not in the arguments
            kwargs = {**kwargs, "like": self}
        self._may_be_dropped = Py_REFCNT(<PyObject *>self) <= OF_FUNCTION
        # In a fused function, NumPy calls the other class.
        return NotImplemented if any([hasattr(t, "is_fused") for t in types]) else _function(self, func, args, kwargs)

    # -- operators ----------------------------------------------------------------------------------------------------

    def __add__(self, other): return _binary(np_add, self, other, Operators.__add__)
    def __radd__(self, other): return _reflected(np_add, self, other, Operators.__radd__)
    def __iadd__(self, other): return _in_place(np_add, self, other, Operators.__iadd__)
    def __sub__(self, other): return _binary(np_subtract, self, other, Operators.__sub__)
    def __rsub__(self, other): return _reflected(np_subtract, self, other, Operators.__rsub__)
    def __isub__(self, other): return _in_place(np_subtract, self, other, Operators.__isub__)
    def __mul__(self, other): return _binary(np_multiply, self, other, Operators.__mul__)
    def __rmul__(self, other): return _reflected(np_multiply, self, other, Operators.__rmul__)
    def __imul__(self, other): return _in_place(np_multiply, self, other, Operators.__imul__)
    def __truediv__(self, other): return _binary(np_divide, self, other, Operators.__truediv__)
    def __rtruediv__(self, other): return _reflected(np_divide, self, other, Operators.__rtruediv__)
    def __itruediv__(self, other): return _in_place(np_divide, self, other, Operators.__itruediv__)
    def __floordiv__(self, other): return _binary(np_floor_divide, self, other, Operators.__floordiv__)
    def __rfloordiv__(self, other): return _reflected(np_floor_divide, self, other, Operators.__rfloordiv__)
    def __mod__(self, other): return _binary(np_remainder, self, other, Operators.__mod__)
    def __rmod__(self, other): return _reflected(np_remainder, self, other, Operators.__rmod__)

    def __pow__(self, other, modulo):
        if modulo is not None:
            return NotImplemented
        ufunc = power_ufunc(self._spec.dtype, other)  # as arrays do: a square takes less time than a power
        return _unary(ufunc, self) if ufunc.nin == 1 else _binary(np_power, self, other, Operators.__pow__)

    def __rpow__(self, other, modulo):
        if modulo is not None:
            return NotImplemented
        return _reflected(np_power, self, other, Operators.__rpow__)

    def __and__(self, other): return _binary(np_bitwise_and, self, other, Operators.__and__)
    def __rand__(self, other): return _reflected(np_bitwise_and, self, other, Operators.__rand__)
    def __or__(self, other): return _binary(np_bitwise_or, self, other, Operators.__or__)
    def __ror__(self, other): return _reflected(np_bitwise_or, self, other, Operators.__ror__)
    def __xor__(self, other): return _binary(np_bitwise_xor, self, other, Operators.__xor__)
    def __rxor__(self, other): return _reflected(np_bitwise_xor, self, other, Operators.__rxor__)
    def __lt__(self, other): return _binary(np_less, self, other, Operators.__lt__)
    def __le__(self, other): return _binary(np_less_equal, self, other, Operators.__le__)
    def __gt__(self, other): return _binary(np_greater, self, other, Operators.__gt__)
    def __ge__(self, other): return _binary(np_greater_equal, self, other, Operators.__ge__)
    def __eq__(self, other): return _binary(np_equal, self, other, Operators.__eq__)
    def __ne__(self, other): return _binary(np_not_equal, self, other, Operators.__ne__)
    def __neg__(self): return _unary(np_negative, self)
    def __abs__(self): return _unary(np_absolute, self)
    def __invert__(self): return _unary(np_invert, self)

cdef object np_add = np.add, np_subtract = np.subtract, np_multiply = np.multiply, np_divide = np.divide
cdef object np_floor_divide = np.floor_divide, np_remainder = np.remainder, np_power = np.power
cdef object np_bitwise_and = np.bitwise_and, np_bitwise_or = np.bitwise_or, np_bitwise_xor = np.bitwise_xor
cdef object np_less = np.less, np_less_equal = np.less_equal, np_greater = np.greater
cdef object np_greater_equal = np.greater_equal, np_equal = np.equal, np_not_equal = np.not_equal
cdef object np_negative = np.negative, np_absolute = np.absolute, np_invert = np.invert


cdef inline void note_dropped(x) noexcept:
    """Note whether the program has an operand no more after the call: it is what an expression has made."""
    if type(x) is _KIND:
        (<TensorBase>x)._is_dropped = is_temporary(x)


cdef inline void forget_dropped(x) noexcept:
    if type(x) is _KIND:
        (<TensorBase>x)._is_dropped = False


cdef list waiting_in(tuple operands):
    """Return the expressions of operands, or None."""
    cdef list expressions = None
    for x in operands:
        if type(x) is _KIND and (<TensorBase>x)._expression is not None:
            if expressions is None:
                expressions = []
            expressions.append((<TensorBase>x)._expression)
    return expressions


cdef object _unary(ufunc, TensorBase tensor):
    return _operated(tensor, (ufunc, tensor._spec), (tensor,), None)


cdef object _binary(ufunc, TensorBase tensor, other, slow_path):
    cdef object part = _operand(other)
    note_dropped(tensor)
    note_dropped(other)
    if part is _NONE:
        return slow_path(tensor, other)
    result = _operated(tensor, (ufunc, tensor._spec, part), (tensor, other), None)
    forget_dropped(other)
    return result


cdef object _reflected(ufunc, TensorBase tensor, other, slow_path):
    cdef object part = _operand(other)
    note_dropped(tensor)
    note_dropped(other)
    if part is _NONE:
        return slow_path(tensor, other)
    result = _operated(tensor, (ufunc, part, tensor._spec), (other, tensor), None)
    forget_dropped(other)
    return result


cdef object _in_place(ufunc, TensorBase tensor, other, slow_path):
    cdef object part = _operand(other), spec = tensor._spec
    note_dropped(other)
    if part is _NONE:
        return slow_path(tensor, other)
    result = _operated(tensor, (ufunc, spec, part, _OUT, spec), (tensor, other), tensor)
    forget_dropped(other)
    return result


cdef object _operated(TensorBase tensor, tuple key, tuple operands, out):
    result = _attending(_by_operator, tensor, key, operands, out, None)
    tensor._is_dropped = False
    return result if script is None or out is not None else _for_script(result, None, None)


cdef object _by_operator(TensorBase tensor, key, operands, out, _):
    cdef object ufunc = key[0]
    result = _by_recipe(tensor, key, operands, out)
    if result is not _NONE:
        return result
    if ufunc is np_equal or ufunc is np_not_equal:  # there is more to compare than a ufunc knows
        return Operators.__eq__(*operands) if ufunc is np_equal else Operators.__ne__(*operands)
    return _run_call(tensor, key, operands, _long(ufunc, "__call__", operands, {} if out is None else {"out": (out,)}))


cdef object _OUT = "out"
script = None  # what gives results to a script of NumPy, if it is one: see meshcomm.core.arrays.scripted


cdef inline object _for_script(result, function, index):
    """Return what a call gives to a script: a tensor that is cut as it is."""
    if type(result) is _KIND:
        cuts = (<TensorBase>result)._spec.cuts or (<TensorBase>result)._spec.find_cuts()
        if (<tuple>cuts).count(None) < len(<tuple>cuts):
            return result
    return result if isinstance(result, generic) else script(result, function, index)


cdef object _function(TensorBase tensor, function, tuple args, dict kwargs):
    result = _attending(_by_function, tensor, function, None, args, kwargs)
    tensor._may_be_dropped = False
    return result if script is None or kwargs.get("out") is not None else _for_script(result, function, None)


# -- ways -------------------------------------------------------------------------------------------------------------


cdef tuple _NUMPYS = (ValueError, TypeError, LookupError, ArithmeticError, Warning)


ctypedef object (*_Way)(TensorBase, object, object, object, object)


cdef inline object _attending(_Way way, TensorBase tensor, a, b, c, d):
    """Return what a call comes to. A script's calls with rows may need no message."""
    if script is None or not _is_row(tensor):
        return _with_views(way, tensor, a, b, c, d)
    result = _of_rows(way, tensor, a, b, c, d) if _has_rows else NotImplemented
    if result is not NotImplemented:
        return result
    begun = watch.count
    result = _with_views(way, tensor, a, b, c, d)
    if _rows is not None and watch.count != begun:
        _rows.note_call(b if way == _by_operator else c if way == _by_ufunc or way == _by_function else (tensor,))
    if _has_rows and (way == _by_operator or way == _by_ufunc):
        _rows.note_written(c if way == _by_operator else d.get("out"))
    return result


cdef inline bint _is_row(TensorBase tensor):
    """Return whether a tensor is a short row, column or diagonal of another one."""
    cdef object spec = tensor._spec
    if tensor._view is None or tensor._view.root is None or len(<tuple>spec.shape) != 1:
        return False
    return <Py_ssize_t>spec.shape[0] * <Py_ssize_t>spec.dtype.itemsize <= _short


cdef object _of_rows(_Way way, TensorBase tensor, a, b, c, d):
    """Return what a call makes of rows of which all ranks have a copy; NotImplemented if it goes its usual way."""
    if are_seen():
        return NotImplemented
    if watch.any_closed:
        _check_open(tensor._spec.mesh)
    if way == _by_operator:
        return _rows.run_local((<tuple>a)[0], "__call__", b, {} if c is None else {"out": c})
    if way == _by_ufunc or way == _by_function:
        return _rows.run_local(a, b, c, d)
    is_element = way == _item and _is_element(tensor, a)
    return _rows.run_local(_getitem, None, (tensor, a), {}) if is_element else NotImplemented


cdef inline object _with_views(_Way way, TensorBase tensor, a, b, c, d):
    """Return what a call comes to. Views among its arguments, whose elements had to move, are as NumPy's before it."""
    cdef tuple arguments
    if sources == 0:
        return way(tensor, a, b, c, d)
    arguments = (tensor, a, b, c, d)
    begin(arguments)
    try:
        result = way(tensor, a, b, c, d)
    except BaseException as error:
        # In a script all ranks raise NumPy's errors alike: what was written before one is there, as NumPy leaves it.
        end(arguments, script is not None and isinstance(error, _NUMPYS))
        raise
    end(arguments, True)
    return result


cdef object _by_ufunc(TensorBase tensor, ufunc, method, inputs, kwargs):
    cdef object out = None, key, result
    if method == "__call__":
        if kwargs:
            out = kwargs.get("out") if len(kwargs) == 1 else None
            if out is None or len(out) != 1:
                return completed(_long(ufunc, method, inputs, kwargs))
            out = out[0]
        key = _NONE if out is not None and type(out) is not _KIND else _signature(ufunc, inputs, out, True)
        if key is not _NONE:
            result = _by_recipe(tensor, key, inputs, out)
            return _run_call(tensor, key, inputs, _long(ufunc, method, inputs, kwargs)) if result is _NONE else result
    return completed(_long(ufunc, method, inputs, kwargs))


cdef object _item(TensorBase tensor, index, _b, _c, _d):
    cdef object at, key, result
    if _is_element(tensor, index):
        if watch.any_closed:
            _check_open(tensor._spec.mesh)
        result = _element_of(tensor, index if type(index) is tuple else (index,))
        return completed(_long(_getitem, None, (tensor, index), {})) if result is None else result
    at = sliced(index, tensor._spec.shape, tensor._spec.cuts or tensor._spec.find_cuts())
    if at is None:
        return completed(_long(_getitem, None, (tensor, index), {}))
    key = _getitem, at[0], None if tensor._view is None else tensor._view.strides
    result = _by_recipe(tensor, key, (tensor, at[1]), None)
    if result is not _NONE:
        return result
    if watch.any_closed:
        _check_open(tensor._spec.mesh)
    if _slice_of is None:  # NumPy's protocol is not loaded yet
        return completed(_long(_getitem, None, (tensor, index), {}))
    return _run_call(tensor, key, (tensor,), _slice_of(tensor, index))


cdef object _set_item(TensorBase tensor, index, value, _c, _d):
    cdef object at, part = _operand(value), key
    if part is not _NONE and not are_seen() and _is_element(tensor, index) and count_write(tensor, index):
        if watch.any_closed:
            _check_open(tensor._spec.mesh)
        target = _to_set(tensor, index if type(index) is tuple else (index,), value)
        if target is not None:
            target[0][target[1]] = block_of(<TensorBase>value) if type(value) is _KIND else value
            return None
    if part is _NONE and _write is not None and isinstance(value, ndarray) and not are_seen():
        if sliced(index, tensor._spec.shape, tensor._spec.cuts or tensor._spec.find_cuts()) is not None:
            if watch.any_closed:
                _check_open(tensor._spec.mesh)
            if _write(tensor, index, value):
                return None
    at = None if part is _NONE else sliced(index, tensor._spec.shape, tensor._spec.cuts or tensor._spec.find_cuts())
    # A view whose elements had to move may be this very slice: the slow path looks.
    if at is None or (type(value) is _KIND and (<TensorBase>value)._storage.source is not None):
        completed(_long(_setitem, None, (tensor, index, value), {}))
        return None
    key = _setitem, at[0], part
    if _by_recipe(tensor, key, (tensor, value, at[1]), tensor, index) is _NONE:
        _run_call(tensor, key, (tensor, value), _long(_setitem, None, (tensor, index, value), {}))
    if _has_rows:
        _rows.note_written(tensor, index, value)


cdef object _by_function(TensorBase tensor, function, _b, args, kwargs):
    cdef object part
    key = _signature(function, args, None if tensor._view is None else tensor._view.strides, False)
    if key is _NONE:
        return completed(_long(function, None, args, kwargs))
    if kwargs:
        part = _static(tuple(kwargs.items()))
        for x in kwargs.values():
            if type(x) is _KIND:  # such as out=
                part = _NONE
        if part is _NONE:
            return completed(_long(function, None, args, kwargs))
        key = (*key, part)
    result = _by_recipe(tensor, key, args, None)
    return _run_call(tensor, key, args, _long(function, None, args, kwargs)) if result is _NONE else result


# -- signatures -------------------------------------------------------------------------------------------------------


cdef inline object _operand(x):
    """Return what an operand is in a signature: the spec of a tensor, the type of a number."""
    cdef object kind = type(x)
    if kind is _KIND:
        return (<TensorBase>x)._spec
    return kind if kind in _numbers else _NONE


cdef object _static(x):
    """Return what an argument is in a signature: the spec of a tensor; type and value of what is compared by value."""
    cdef object kind = type(x), item
    cdef list parts
    if kind is _KIND:
        return (<TensorBase>x)._spec
    if x is None or x is Ellipsis or kind is str or kind is type:
        return x
    if kind is int or kind is bool:
        return kind, x
    if isinstance(x, dtype):
        return x if x.metadata is None else _NONE
    if kind is float:
        return (kind, x) if x == x and x != 0 else (kind, repr(x))
    if kind is tuple or kind is list:
        parts = [kind]
        for item in x:
            part = _static(item)
            if part is _NONE:
                return _NONE
            parts.append(part)
        return tuple(parts)
    return _NONE


cdef object _signature(function, tuple args, out, bint by_type):
    cdef list parts = [function]
    for x in args:
        part = _operand(x) if by_type else _static(x)
        if part is _NONE:
            return _NONE
        parts.append(part)
    if out is not None:
        parts.append(_OUT)
        parts.append((<TensorBase>out)._spec if type(out) is _KIND else out)
    return tuple(parts)


# -- recipes ----------------------------------------------------------------------------------------------------------


cdef bint _is_element(TensorBase tensor, index):
    """Return whether *index* is one integer of Python for each axis, so that it takes one element."""
    cdef Py_ssize_t ndim
    if not has_block(tensor) or _element_of is None:
        return False
    if type(index) is int:
        return len(<tuple>tensor._spec.shape) == 1
    ndim = len(<tuple>tensor._spec.shape)
    if type(index) is not tuple or ndim == 0 or len(<tuple>index) != ndim:
        return False
    for x in <tuple>index:
        if type(x) is not int:
            return False
    return True


cdef inline object _rank_key(key):
    """Return *key* as this rank has it: simulated ranks may share specs, and a recipe is of one rank."""
    return key if watch.simulated is None else (watch.simulated, key)


cdef object _by_recipe(TensorBase tensor, key, tuple operands, out, index=None):
    """Return what the recipe of a signature makes; `_NONE` if there is none, or if it cannot be used now."""
    cdef object recipe = (<dict>tensor._spec.recipes).get(_rank_key(key))
    if recipe is None or not has_block(tensor) or are_seen():
        return _NONE
    if out is not None and not count_write(out, index, waiting_in(operands)):
        return _NONE
    if watch.any_closed:
        _check_open(tensor._spec.mesh)
    return (<Recipe>recipe).make(operands, out)


cdef object _run_call(TensorBase tensor, key, tuple args, result):
    """Return *result*; of a call, the result of running it, whose recipe is kept."""
    cdef Call call
    cdef Recipe recipe
    if type(result) is not Call:
        return result
    call = result
    recipe = call.recipe
    operands = [id(x) for x in call.operands]
    if [id(x) for x in args] != operands:
        if [id(x) for x in tensors_in(args)] != operands:
            return call.run()
        recipe = OfTensors(recipe)
    if len(tensor._spec.recipes) >= _max_recipes:
        tensor._spec.recipes.clear()
    tensor._spec.recipes[_rank_key(key)] = recipe
    return call.run()
