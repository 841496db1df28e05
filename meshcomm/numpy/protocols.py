"""NumPy's protocols: its operators and functions, called with DTensors.

:mod:`meshcomm.blocks.rules` decides in which layout operands come together, and the layout of the result.

Numbers and arrays without axes are operands as in NumPy. Plain arrays count as replicated: in each call, all ranks of
the mesh agree on a digest of their bytes, and then each rank uses the block that it needs. If an array is used often,
call `distribute` first. Ranks outside of the mesh may call everything here; their results have shape, dtype and layout
but no block.
"""

import operator
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module

import numpy as np

from meshcomm.blocks.align import agree_on_plain
from meshcomm.blocks.map import with_out
from meshcomm.blocks.rules import ADVICE, is_operand, mesh_of, not_operand, text_as_scalar
from meshcomm.blocks.views import check_writable
from meshcomm.core import _hooks
from meshcomm.core._callers import call_warning_at_program
from meshcomm.core._tracing import Value, is_traced, untraced
from meshcomm.core._types import DType
from meshcomm.core.arrays._recipes import completed
from meshcomm.core.arrays._tensor import set_protocol, set_rows
from meshcomm.core.arrays.dtensor import DTensor, as_tensor, unwrapped
from meshcomm.core.arrays.operators import takes_over_operators
from meshcomm.core.arrays.scripted import is_scripted
from meshcomm.core.failures.watch import watch
from meshcomm.core.ranks.local_errors import note_refusal
from meshcomm.errors import DTypeError, MeshcommError, ShapeError
from meshcomm.numpy import composed, printing, ufuncs  # noqa: F401 - implement NumPy's functions
from meshcomm.numpy.contractions import products
from meshcomm.numpy.elementwise import applied, texts, values  # noqa: F401 - implement NumPy's functions
from meshcomm.numpy.elementwise.signatures import FUNCTIONS, Function, decision, implements
from meshcomm.numpy.elementwise.where import where
from meshcomm.numpy.indexing import (  # noqa: F401
    choosing,
    diagonals,
    elements,
    fields,
    indexing,
    masks,
    nonzero,
    putting,
    rows,
    taking,
)
from meshcomm.numpy.indexing.index_arrays import has_arrays
from meshcomm.numpy.joining import joining, padding, rolling, sliding  # noqa: F401 - implement NumPy's functions
from meshcomm.numpy.namespace.arrays import WholeArray
from meshcomm.numpy.namespace.gathering import CannotGather, by_gathering
from meshcomm.numpy.namespace.promotion import Promotion
from meshcomm.numpy.order import editing, order, searching, sets  # noqa: F401 - implement NumPy's functions
from meshcomm.numpy.reductions import histogram, locating  # noqa: F401 - implement NumPy's functions
from meshcomm.numpy.reductions.reductions import max, min, sum
from meshcomm.numpy.sequences import fits, scans, sequences  # noqa: F401 - implement NumPy's functions
from meshcomm.numpy.shapes import creation, linalg, shaping  # noqa: F401 - implement NumPy's functions
from meshcomm.numpy.statistics import averages, comparisons, counting, quantiles, statistics  # noqa: F401


@_hooks.provides("numpy")
def numpy_protocol(
    function: np.ufunc | Function, method: str | None, args: tuple[object, ...], kwargs: dict[str, object]
) -> object:
    """Return the result of a function of NumPy on tensors, or the `Call` that makes it.

    Collective if meshcomm's function is and it returns a result. If it returns a call, to run the call is Collective.

    Parameters
    ----------
    function: function or universal function of NumPy
    method: called method of a universal function; None for other functions
    args, kwargs: arguments of the call
    """
    mask_function = _MASK_FUNCTIONS.get(function)
    if mask_function is not None:
        masked_result = mask_function(*args)
        if masked_result is not None:
            return masked_result
    calls_before = watch.count
    try:
        return call_warning_at_program(_call_function, (function, method, args, kwargs), {})
    except Exception as error:
        if (
            watch.count == calls_before
            and is_scripted()
            and type(error) in (TypeError, NotImplementedError, DTypeError)
        ):
            try:
                return call_warning_at_program(by_gathering, (function, method, args, kwargs), {})
            except CannotGather:
                pass
            except Exception as numpy_error:
                raise numpy_error from None
        if watch.count == calls_before and _may_move(function, args, error):
            note_refusal(_name_of(function), error, (args, kwargs))
        raise


def _call_function(
    function: np.ufunc | Function, method: str | None, args: tuple[object, ...], kwargs: dict[str, object]
) -> object:
    if is_scripted() and any(map(_has_class, args)):
        with suppress(CannotGather):
            return by_gathering(function, method, args, kwargs)
    promotion = Promotion(function, method, args, kwargs)
    if promotion:
        return promotion.call(function if method is None else getattr(function, method))
    if isinstance(function, np.ufunc) and method is not None:
        out: Value = kwargs.get("out")
        if not out:
            return _call_ufunc(function, method, args, kwargs)
        targets = tuple(map(unwrapped, out))  # a variable becomes its tensor
        result = _call_ufunc(function, method, args, {**kwargs, "out": targets})
        if all(map(operator.is_, targets, out)):
            return result
        result = completed(result)
        return out[0] if len(out) == 1 and result is targets[0] else result
    return (FUNCTIONS.get(function) or _tensor_function_of(function))(*args, **kwargs)


def _has_class(x: object) -> bool:
    """Return whether *x* is an array of a subclass, such as a matrix, or a list with one: the result has its class."""
    items = x if isinstance(x, list | tuple) else (x,)
    return any(isinstance(item, np.ndarray) and takes_over_operators(item) for item in items)


def takes_tensors(function: object) -> bool:
    """Return whether *function*, one of NumPy, is defined for tensors."""
    if isinstance(function, np.ufunc):
        return function.signature is None or products.is_product(function)
    module = str(getattr(function, "__module__", "numpy"))
    if module in _LAZY_MODULES:
        import_module(_LAZY_MODULES[module])
    return function in FUNCTIONS


def _may_move(function: object, args: tuple[object, ...], error: Exception) -> bool:
    """Return whether the call that raised *error* is Collective, because elements may have to move."""
    if isinstance(function, np.ufunc):
        layouts = {x.layout for x in map(unwrapped, args) if isinstance(x, DTensor)}
        # With one layout and an error of NumPy, the class of an operand is at fault: it is wrong on every rank.
        return len(layouts) > 1 or products.is_product(function) or isinstance(error, MeshcommError)
    return function in FUNCTIONS and _name_of(function) not in _LOCAL_FUNCTIONS


def _tensor_function_of(function: Function) -> Function:
    tensor_function = FUNCTIONS.get(function)
    if tensor_function is None:
        name, module = _name_of(function), str(getattr(function, "__module__", "numpy"))
        if module in _LAZY_MODULES:
            import_module(_LAZY_MODULES[module])
            if function in FUNCTIONS:
                return FUNCTIONS[function]
        advice = instead_of(name)
        raise TypeError(f"{module}.{name} is not defined for DTensors: {advice}{ADVICE}")
    return tensor_function


def _name_of(function: object) -> str:
    return str(getattr(function, "__name__", function))


def instead_of(name: str) -> str:
    """Return a text about an alternative to a function of NumPy that is not defined for tensors; "" without one.

    >>> instead_of("save"), instead_of("roots")
    ("mc.save('t.npy', t) writes it in parallel; or ", '')
    """
    if name in _ALTERNATIVES:
        return f"{_ALTERNATIVES[name]}; or "
    # Of a function of another module of NumPy.
    numpy_function = getattr(np, name, None) if name not in np.emath.__all__ else None
    return f"numpy.{name} is; or " if isinstance(numpy_function, np.ufunc) or numpy_function in FUNCTIONS else ""


def _call_ufunc(ufunc: np.ufunc, method: str, inputs: tuple[object, ...], kwargs: dict[str, Value]) -> object:
    """Return the result of a ufunc of NumPy on tensors, or the call. Collective if an operand has to move.

    ``MeshError`` for tensors on several meshes; ``ShapeError`` if shapes do not broadcast; ``CollectiveMismatch`` for
    plain arrays that differ between ranks.
    """
    out: tuple[Value, ...] = kwargs.pop("out", ())
    operands = [unwrapped(x) for x in inputs]
    if any(map(is_traced, (*operands, *out))):
        return NotImplemented
    name = f"numpy.{ufunc.__name__}"
    if method == "at":
        _ufunc_at(f"{name}.at", ufunc, inputs)
        return None
    if not all(map(is_operand, operands)):
        operands = list(map(text_as_scalar, operands))
        if not all(map(is_operand, operands)):
            return _refuse_or_defer(name, [x for x in operands if not is_operand(x)])
    if out and not all(isinstance(target, DTensor) for target in out if target is not None):
        return _into_arrays(name, ufunc, method, operands, kwargs | {"out": out})
    if out and any(target is None for target in out):  # targets for some of several results
        results: Value = _call_ufunc(ufunc, method, inputs, kwargs)
        return tuple(with_out(name, target, result) for target, result in zip(out, results, strict=True))
    if method != "__call__":
        return ufuncs.call_method(ufunc, method, inputs, kwargs | ({"out": out} if out else {}))
    for target in out:
        check_writable(f"{name}: out=", target)
    if products.is_product(ufunc):
        return products.core_product(ufunc, operands, out, kwargs)
    if ufunc.signature is not None:
        raise TypeError(f"{name} is not defined for DTensors: it is not elementwise; {ADVICE}")
    return ufuncs.elementwise_ufunc(ufunc, operands, out, kwargs)


def _into_arrays(name: str, ufunc: np.ufunc, method: str, operands: list[object], kwargs: dict[str, Value]) -> object:
    """Write the result of a ufunc on tensors to plain arrays, on each rank, as ``array += t`` does.

    Collective: it gathers the tensors, as `numpy.asarray` does. ``TypeError`` for tensors of more than 64 MiB.
    """
    if method != "__call__" or not all(isinstance(target, np.ndarray | None) for target in kwargs["out"]):
        raise TypeError(f"{name}: out= must be DTensors, or plain arrays all; {ADVICE}")
    mask = ufuncs.mask_of(kwargs.pop("where", True))
    inputs = operands if mask is True else [*operands, mask]
    arrays = [np.asarray(x) if isinstance(x, DTensor) else x for x in agree_on_plain(name, inputs, mesh_of(inputs))]
    if mask is not True:
        kwargs["where"] = arrays.pop()
    return ufunc(*arrays, **kwargs)


def _ufunc_at(name: str, ufunc: np.ufunc, inputs: tuple[object, ...]) -> None:
    """Combine elements of a tensor with values in place, once for each time that the index has them. Collective."""
    tensor, index = as_tensor(name, inputs[0]), inputs[1]
    arguments = [unwrapped(value) for value in inputs[2:]]
    if len(arguments) != ufunc.nin - 1 or ufunc.nout != 1 or not all(map(is_operand, arguments)):
        raise TypeError(f"{name} takes a tensor, an index, and {ufunc.nin - 1} values: numbers, arrays or tensors")
    with np.errstate(all="ignore"):  # NumPy's errors for the dtypes, on all ranks
        ufunc.at(np.ones(1, tensor.dtype), [0], *(np.ones(1, _dtype_of_value(value)) for value in arguments))
    agreed_arguments = agree_on_plain(name, arguments, tensor.mesh)
    if has_arrays(index):
        check_writable(name, tensor)
        indexing.update(name, tensor, index, agreed_arguments[0] if agreed_arguments else None, ufunc)
    else:  # the index has no element twice
        indexing.setitem(tensor, index, ufunc(indexing.getitem(tensor, index), *agreed_arguments))


def _dtype_of_value(value: object) -> DType:
    return value.dtype if isinstance(value, DTensor | np.ndarray) else np.asarray(value).dtype


def _refuse_or_defer(name: str, operands: list[object]) -> object:
    """Return NotImplemented if the class of an operand has ``__array_ufunc__``, to leave the call to it.

    Else raise ``TypeError`` for the first operand.
    """
    if any(getattr(type(x), "__array_ufunc__", None) is not None for x in operands):
        return NotImplemented  # NumPy would also raise this error, with the elements of all operands in it
    operand = operands[0]
    hint = ": write t is None" if operand is None and "equal" in name else ""
    raise TypeError(f"{not_operand(name, operand)}{hint}")


@implements(np.where)
def _where(condition: Value, *choices: object) -> Value:
    if not choices:
        return nonzero.nonzero(condition)
    if len(choices) != 2:
        raise ShapeError("numpy.where takes a condition and two choices, or a condition alone")
    return decision(where)(condition, *choices)


def _dtype_of(x: object) -> Value:
    value = unwrapped(untraced(x))
    return value.dtype if isinstance(value, DTensor) else x


_MASK_FUNCTIONS: dict[object, Callable[..., object]] = {
    operator.getitem: masks.masked_elements,
    operator.setitem: masks.put,
}
"""The fast paths of calls that are never kept. They return None if meshcomm's own function has to decide."""

_LAZY_MODULES = {"numpy.fft": "meshcomm.fft.protocols", "numpy.linalg": "meshcomm.linalg.protocols"}
"""For modules of NumPy: the module that defines their functions for tensors. It is imported when first needed."""

_ALTERNATIVES = {
    "save": "mc.save('t.npy', t) writes it in parallel",
    **dict.fromkeys(
        ("savez", "savez_compressed", "savetxt"),
        "mc.save(path, t) writes it in parallel, to .npy, .h5, .zarr and others",
    ),
}
"""Texts about alternatives, by the names of NumPy's functions."""

_LOCAL_FUNCTIONS = {
    *("shape", "ndim", "size", "result_type", "iscomplexobj", "copy", "astype", "round", "around", "real", "imag"),
    *("empty_like", "zeros_like", "ones_like", "full_like", "expand_dims", "atleast_1d", "atleast_2d", "atleast_3d"),
    *("transpose", "matrix_transpose", "swapaxes", "moveaxis", "rollaxis", "tril", "triu"),
}
"""Names of functions that never move elements: ranks do not compare calls of them."""

set_protocol(elements.element_of, elements.to_set, indexing.slice_of, indexing.write_whole)
set_rows(rows)
rows.set_kind(WholeArray)
implements(np.sum, partly=True)(ufuncs.with_where(sum, np.add))
implements(np.max, np.amax, partly=True)(ufuncs.with_where(max, np.maximum))
implements(np.min, np.amin, partly=True)(ufuncs.with_where(min, np.minimum))
implements(np.copy, partly=True)(lambda a: a.copy())
implements(np.shape)(lambda a: a.shape)
implements(np.ndim)(lambda a: a.ndim)
implements(np.size)(lambda a, axis=None: np.size(np.broadcast_to(0, a.shape), axis))
implements(np.iscomplexobj)(lambda t: t.dtype.kind == "c")
implements(np.result_type)(lambda *operands: np.result_type(*map(_dtype_of, operands)))
