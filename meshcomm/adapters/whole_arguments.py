"""Lets functions and methods of a library get arrays of NumPy where a script of ``run --numpy`` passes tensors.

Each rank gets all elements, to be read: Collective, as all calls of such a script are.
"""

from collections.abc import Callable, Iterable
from functools import partial, update_wrapper, wraps
from types import FunctionType, MethodType

import numpy as np

from meshcomm.core._tracing import Value
from meshcomm.core.arrays.dtensor import DTensor


def whole(x: Value) -> Value:
    """Return the array of a tensor, also in a list, a tuple or a dict; anything else as it is."""
    kind = type(x)
    if kind is DTensor:
        return np.asarray(x)
    if kind is dict:
        return {key: whole(value) for key, value in x.items()} if _has_tensors(x.values()) else x
    if kind is list or kind is tuple:
        return kind(map(whole, x)) if _has_tensors(x) else x
    return x


def _has_tensors(items: Iterable[object]) -> bool:
    return any(type(item) in (DTensor, tuple) for item in items)


def of_arrays(function: Callable[..., object]) -> Callable[..., object]:
    """Return *function* with the arrays of its arguments; what it writes to ``output=`` goes back into the tensor."""

    @wraps(function)
    def called(*args: object, **kwargs: object) -> object:
        output = kwargs.get("output")
        named = {key: x if key == "out" else whole(x) for key, x in kwargs.items()}
        if type(output) is not DTensor:
            return function(*map(whole, args), **named)
        named["output"] = array = output.to_numpy()
        result = function(*map(whole, args), **named)
        output[...] = array
        return output if result is array else result

    return called


def returning_arrays(function: Callable[..., object]) -> Callable[..., object]:
    """Return *function*, which takes functions of the program, so that these return arrays: as code in C wants."""

    @wraps(function)
    def called(*args: object, **kwargs: object) -> object:
        return function(*map(_whole_or_function, args), **{key: _whole_or_function(x) for key, x in kwargs.items()})

    return called


def _whole_or_function(x: object) -> object:
    if not isinstance(x, FunctionType | MethodType | partial):
        return whole(x)

    def called(*args: object, **kwargs: object) -> object:
        return whole(x(*args, **kwargs))

    return update_wrapper(called, x)


def teach(owner: object, names: Iterable[str]) -> None:
    """Let functions of a module, or methods of a class that are its own, get arrays."""
    for name in names:
        member = vars(owner).get(name)
        if isinstance(member, FunctionType):
            setattr(owner, name, of_arrays(member))
        elif isinstance(member, classmethod):
            setattr(owner, name, classmethod(of_arrays(member.__func__)))
