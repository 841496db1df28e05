"""Passes arrays of NumPy to functions and methods of a library where a script of ``run --numpy`` passes tensors.

Each rank gets all elements, read-only. Collective, as all calls of such a script.
"""

from collections.abc import Callable, Iterable
from functools import partial, update_wrapper, wraps
from types import FunctionType, MethodType

import numpy as np

from meshcomm.core._tracing import Value
from meshcomm.core.arrays.dtensor import DTensor


def whole(x: Value) -> Value:
    """Return the array of a tensor, also in a list, a tuple or a dict; anything else unchanged."""
    x_type = type(x)
    if x_type is DTensor:
        return np.asarray(x)
    if x_type is dict:
        return {key: whole(value) for key, value in x.items()} if _has_tensors(x.values()) else x
    if x_type is list or x_type is tuple:
        return x_type(map(whole, x)) if _has_tensors(x) else x
    return x


def _has_tensors(items: Iterable[object]) -> bool:
    return any(type(item) in (DTensor, tuple) for item in items)


def of_arrays(function: Callable[..., object]) -> Callable[..., object]:
    """Return *function* for tensors: it gets their arrays, and ``output=`` is copied back to the tensor."""

    @wraps(function)
    def wrapper(*args: object, **kwargs: object) -> object:
        output = kwargs.get("output")
        array_kwargs = {key: x if key == "out" else whole(x) for key, x in kwargs.items()}
        if type(output) is not DTensor:
            return function(*map(whole, args), **array_kwargs)
        array_kwargs["output"] = array = output.to_numpy()
        result = function(*map(whole, args), **array_kwargs)
        output[...] = array
        return output if result is array else result

    return wrapper


def returning_arrays(function: Callable[..., object]) -> Callable[..., object]:
    """Return *function*, which takes functions of the program, so that these return arrays, as code in C needs."""

    @wraps(function)
    def wrapper(*args: object, **kwargs: object) -> object:
        return function(*map(_whole_or_function, args), **{key: _whole_or_function(x) for key, x in kwargs.items()})

    return wrapper


def _whole_or_function(x: object) -> object:
    if not isinstance(x, FunctionType | MethodType | partial):
        return whole(x)

    def wrapper(*args: object, **kwargs: object) -> object:
        return whole(x(*args, **kwargs))

    return update_wrapper(wrapper, x)


def pass_arrays(owner: object, names: Iterable[str]) -> None:
    """Replace functions of a module, or methods that a class itself defines, by ones that pass arrays."""
    for name in names:
        member = vars(owner).get(name)
        if isinstance(member, FunctionType):
            setattr(owner, name, of_arrays(member))
        elif isinstance(member, classmethod):
            setattr(owner, name, classmethod(of_arrays(member.__func__)))
