"""NumPy's protocols: its operators and functions, called with DTensors.

:mod:`meshcomm.blocks.rules` says how operands come together and what their result is.

Numbers and arrays without axes take part as NumPy's do. Plain arrays count as replicated: each time, all ranks of the
mesh agree on a digest of their bytes, and then each rank uses the block that it needs. If an array is used often, call
`distribute` first. Ranks outside of the mesh may call everything here; their results have shape, dtype and layout, and
no block.
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
from meshcomm.core._callers import call_naming_callers
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
from meshcomm.numpy.namespace.gathering import Unfit, by_gathering
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
    """Return what a function of NumPy makes of tensors, or the `Call` that makes it.

    Collective where the function of meshcomm is, and returns no call: then to run the call is.

    Parameters
    ----------
    function: function or universal function of NumPy
    method: called method of a universal function; None for other functions
    args, kwargs: arguments of the call
    """
    quick = _BY_MASK.get(function)
    if quick is not None:
        by_mask = quick(*args)
        if by_mask is not None:
            return by_mask
    begun = watch.count
    try:
        return call_naming_callers(_call_function, (function, method, args, kwargs), {})
    except Exception as error:
        if watch.count == begun and is_scripted() and type(error) in (TypeError, NotImplementedError, DTypeError):
            try:
                return call_naming_callers(by_gathering, (function, method, args, kwargs), {})
            except Unfit:
                pass
            except Exception as numpys:
                raise numpys from None
        if watch.count == begun and _may_move(function, args, error):
            note_refusal(_name_of(function), error, (args, kwargs))
        raise


def _call_function(
    function: np.ufunc | Function, method: str | None, args: tuple[object, ...], kwargs: dict[str, object]
) -> object:
    if is_scripted() and any(map(_has_class, args)):
        with suppress(Unfit):
            return by_gathering(function, method, args, kwargs)
    promotion = Promotion(function, method, args, kwargs)
    if promotion:
        return promotion.call(function if method is None else getattr(function, method))
    if isinstance(function, np.ufunc) and method is not None:
        out: Value = kwargs.get("out")
        if not out:
            return _call_ufunc(function, method, args, kwargs)
        targets = tuple(map(unwrapped, out))  # what a variable holds
        result = _call_ufunc(function, method, args, {**kwargs, "out": targets})
        if all(map(operator.is_, targets, out)):
            return result
        result = completed(result)
        return out[0] if len(out) == 1 and result is targets[0] else result
    return (FUNCTIONS.get(function) or _own_function(function))(*args, **kwargs)


def _has_class(x: object) -> bool:
    """Return whether *x* is an array of a class of its own, such as a matrix, or a list with one: so is the result."""
    items = x if isinstance(x, list | tuple) else (x,)
    return any(isinstance(item, np.ndarray) and takes_over_operators(item) for item in items)


def takes_tensors(function: object) -> bool:
    """Return whether *function*, one of NumPy, is defined for tensors."""
    if isinstance(function, np.ufunc):
        return function.signature is None or products.is_product(function)
    module = str(getattr(function, "__module__", "numpy"))
    if module in _ELSEWHERE:
        import_module(_ELSEWHERE[module])
    return function in FUNCTIONS


def _may_move(function: object, args: tuple[object, ...], error: Exception) -> bool:
    """Return whether elements may have to move in the call that ended with *error*, so that it is Collective."""
    if isinstance(function, np.ufunc):
        layouts = {x.layout for x in map(unwrapped, args) if isinstance(x, DTensor)}
        # Of one layout only, and without an error of ours, an operand is of no class that any rank could pass.
        return len(layouts) > 1 or products.is_product(function) or isinstance(error, MeshcommError)
    return function in FUNCTIONS and _name_of(function) not in _LOCAL


def _own_function(function: Function) -> Function:
    ours = FUNCTIONS.get(function)
    if ours is None:
        name, module = _name_of(function), str(getattr(function, "__module__", "numpy"))
        if module in _ELSEWHERE:
            import_module(_ELSEWHERE[module])
            if function in FUNCTIONS:
                return FUNCTIONS[function]
        instead = instead_of(name)
        raise TypeError(f"{module}.{name} is not defined for DTensors: {instead}{ADVICE}")
    return ours


def _name_of(function: object) -> str:
    return str(getattr(function, "__name__", function))


def instead_of(name: str) -> str:
    """Return what to use instead of a function of NumPy that is not defined for tensors; "" if there is nothing.

    >>> instead_of("save"), instead_of("roots")
    ("mc.save('t.npy', t) writes it in parallel; or ", '')
    """
    if name in _INSTEAD:
        return f"{_INSTEAD[name]}; or "
    same = (
        getattr(np, name, None) if name not in np.emath.__all__ else None
    )  # of a function of another module of NumPy
    return f"numpy.{name} is; or " if isinstance(same, np.ufunc) or same in FUNCTIONS else ""


def _call_ufunc(ufunc: np.ufunc, method: str, inputs: tuple[object, ...], kwargs: dict[str, Value]) -> object:
    """Return what a universal function of NumPy makes of tensors, or the call. Collective if an operand has to move.

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
    if out and any(target is None for target in out):  # some of several results
        several: Value = _call_ufunc(ufunc, method, inputs, kwargs)
        return tuple(with_out(name, target, result) for target, result in zip(out, several, strict=True))
    if method != "__call__":
        return ufuncs.call_method(ufunc, method, inputs, kwargs | ({"out": out} if out else {}))
    for target in out:
        check_writable(f"{name}: out=", target)
    if products.is_product(ufunc):
        return products.core_product(ufunc, operands, out, kwargs)
    if ufunc.signature is not None:
        raise TypeError(f"{name} is not defined for DTensors: it is not elementwise; {ADVICE}")
    return ufuncs.of_elements(ufunc, operands, out, kwargs)


def _into_arrays(name: str, ufunc: np.ufunc, method: str, operands: list[object], kwargs: dict[str, Value]) -> object:
    """Write what a universal function makes of tensors to plain arrays, on each rank, as ``array += t`` does.

    Collective: as `numpy.asarray` does, it gathers the tensors. ``TypeError`` for those of more than 64 MiB.
    """
    if method != "__call__" or not all(isinstance(target, np.ndarray | None) for target in kwargs["out"]):
        raise TypeError(f"{name}: out= must be DTensors, or plain arrays all; {ADVICE}")
    where = ufuncs.mask_of(kwargs.pop("where", True))
    inputs = operands if where is True else [*operands, where]
    arrays = [np.asarray(x) if isinstance(x, DTensor) else x for x in agree_on_plain(name, inputs, mesh_of(inputs))]
    if where is not True:
        kwargs["where"] = arrays.pop()
    return ufunc(*arrays, **kwargs)


def _ufunc_at(name: str, ufunc: np.ufunc, inputs: tuple[object, ...]) -> None:
    """Combine elements of a tensor with values in place, each as often as its index is there. Collective."""
    tensor, index = as_tensor(name, inputs[0]), inputs[1]
    arguments = [unwrapped(value) for value in inputs[2:]]
    if len(arguments) != ufunc.nin - 1 or ufunc.nout != 1 or not all(map(is_operand, arguments)):
        raise TypeError(f"{name} takes a tensor, an index, and {ufunc.nin - 1} values: numbers, arrays or tensors")
    with np.errstate(all="ignore"):  # NumPy's errors for the dtypes, on all ranks
        ufunc.at(np.ones(1, tensor.dtype), [0], *(np.ones(1, _dtype_of_value(value)) for value in arguments))
    agreed = agree_on_plain(name, arguments, tensor.mesh)
    if has_arrays(index):
        check_writable(name, tensor)
        indexing.update(name, tensor, index, agreed[0] if agreed else None, ufunc)
    else:  # no element is there twice
        indexing.setitem(tensor, index, ufunc(indexing.getitem(tensor, index), *agreed))


def _dtype_of_value(value: object) -> DType:
    return value.dtype if isinstance(value, DTensor | np.ndarray) else np.asarray(value).dtype


def _refuse_or_defer(name: str, operands: list[object]) -> object:
    """Leave a call to *operands* of a class that takes part in NumPy's protocol; ``TypeError`` if there are none."""
    if any(getattr(type(x), "__array_ufunc__", None) is not None for x in operands):
        return NotImplemented  # NumPy would also raise this error, with the elements of all operands in it
    other = operands[0]
    instead = ": write t is None" if other is None and "equal" in name else ""
    raise TypeError(f"{not_operand(name, other)}{instead}")


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


_BY_MASK: dict[object, Callable[..., object]] = {operator.getitem: masks.masked_elements, operator.setitem: masks.put}
"""The fast paths of calls of which none is kept: they return None where the function of ours has to look."""

_ELSEWHERE = {"numpy.fft": "meshcomm.fft.protocols", "numpy.linalg": "meshcomm.linalg.protocols"}
"""The modules that define more functions when they are imported, by the module of NumPy that has these."""

_INSTEAD = {
    "save": "mc.save('t.npy', t) writes it in parallel",
    **dict.fromkeys(
        ("savez", "savez_compressed", "savetxt"),
        "mc.save(path, t) writes it in parallel, to .npy, .h5, .zarr and others",
    ),
}
"""What there is instead, by the names of NumPy's functions."""

_LOCAL = {
    *("shape", "ndim", "size", "result_type", "iscomplexobj", "copy", "astype", "round", "around", "real", "imag"),
    *("empty_like", "zeros_like", "ones_like", "full_like", "expand_dims", "atleast_1d", "atleast_2d", "atleast_3d"),
    *("transpose", "matrix_transpose", "swapaxes", "moveaxis", "rollaxis", "tril", "triu"),
}
"""Names of the functions in which nothing moves: ranks do not compare them."""

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
