"""NumPy's functions for tensors: arguments by NumPy's names, and clear errors for arguments that are not supported."""

from collections.abc import Callable, Mapping
from functools import lru_cache, wraps
from inspect import Parameter, Signature, signature
from itertools import repeat
from operator import is_not
from typing import ParamSpec, TypeAlias, TypeVar

from meshcomm.blocks.map import with_out
from meshcomm.core._arguments import NO_VALUE
from meshcomm.core._types import AnyFunction, Casting
from meshcomm.core.arrays._recipes import Call, completed
from meshcomm.core.arrays.dtensor import DTensor, as_tensor

Function: TypeAlias = Callable[..., object]
P = ParamSpec("P")
R = TypeVar("R")
Ours = TypeVar("Ours", bound=Function)
Maker = TypeVar("Maker", bound=Callable[..., Function])

FUNCTIONS: dict[Function, AnyFunction] = {}
"""The function that is called for each function of NumPy that is defined for tensors. `implements` fills it."""

_SAME_KIND = {"ptp": "biufcmM", "std": "biufc", "nanstd": "biufc", "nanmean": "fc", "nanvar": "fc"}
_SAME_KIND |= {f"{name}{axes}": "biufc" for name in ("fft", "ifft", "rfft", "irfft") for axes in ("", "2", "n")}
_SAME_KIND |= {"hfft": "biufc", "ihfft": "biufc"}
"""Kinds of operands for which functions convert their result to ``out=`` by the rule ``same_kind`` only."""


def like_numpy(function: Function, ours: Function) -> Function:
    """Return *ours* with the signature of NumPy's *function*; *ours* may lack some parameters.

    An argument that *ours* lacks may be passed with NumPy's default; any other value raises ``TypeError``. The result
    is written to the tensor ``out=``, by the casting rule of NumPy's function; most reductions allow any conversion.
    """
    name = f"numpy.{function.__name__}"
    parameter_names = frozenset(signature(ours).parameters)

    @wraps(ours)  # its signature has the supported arguments; docs/numpy.md lists the others
    def wrapper(*args: object, **kwargs: object) -> object:
        if (
            len(args) == 1
            and parameter_names.issuperset(kwargs)
            and all(map(is_not, kwargs.values(), repeat(NO_VALUE)))
        ):
            return ours(*args, **kwargs)  # as the methods of tensors call it
        numpy_signature = _signature_of(function)
        arguments = numpy_signature.bind(*args, **kwargs).arguments
        out = None if "out" in parameter_names else arguments.pop("out", None)
        for argument in [argument for argument in arguments if argument not in parameter_names]:
            value = arguments.pop(argument)
            if not _is_default(value, numpy_signature.parameters[argument]):
                raise TypeError(f"{name}: {argument}= is not supported for DTensors; leave it out")
        result = ours(**{argument: value for argument, value in arguments.items() if value is not NO_VALUE})
        if out is None or out is NO_VALUE:
            return result
        result = completed(result)
        kinds = _SAME_KIND.get(function.__name__)
        casting: Casting = "same_kind" if kinds and _dtype_kind(arguments) in kinds else "unsafe"
        return with_out(name, out, result, casting)

    return wrapper


def implements(*functions: Function | None, partly: bool = False) -> Callable[[Ours], Ours]:
    """Return a decorator that lets NumPy's *functions* take tensors: NumPy then calls the decorated function.

    None stands for a function that this NumPy lacks. *partly* says that the decorated function takes only some of
    NumPy's arguments; see `like_numpy`.
    """

    def define(ours: Ours) -> Ours:
        for function in functions:
            if function is not None:
                FUNCTIONS[function] = like_numpy(function, ours) if partly else ours
        return ours

    return define


def operation(*functions: Function | None, partly: bool = False) -> Callable[[Callable[P, Call | R]], Callable[P, R]]:
    """Return a decorator that lets NumPy's *functions* take tensors: the decorated function may return a `Call`.

    It decides by specs and other arguments only, not by elements. NumPy's protocol runs the call, and keeps its recipe
    for later calls with tensors of the same specs. In our own code, the decorated name is a function that also runs
    the call; `decision` returns the function that only decides. Arguments are those of `implements`.
    """

    def define(decide: Callable[P, Call | R]) -> Callable[P, R]:
        implements(*functions, partly=partly)(decide)

        @wraps(decide)
        def run(*args: P.args, **kwargs: P.kwargs) -> R:
            return completed(decide(*args, **kwargs))

        _DECISIONS[run] = decide
        return run

    return define


def decision(function: Callable[..., DTensor]) -> Callable[..., Call | DTensor]:
    """Return the deciding function of an `operation`; any other function unchanged."""
    return _DECISIONS.get(function, function)


_DECISIONS: dict[Function, AnyFunction] = {}


def implements_each(*functions: Function) -> Callable[[Maker], Maker]:
    """Return a decorator for a function factory: its result for each of NumPy's *functions* is called for tensors."""

    def define(make: Maker) -> Maker:
        for function in functions:
            implements(function)(make(function))
        return make

    return define


def _dtype_kind(arguments: Mapping[str, object]) -> str:
    """Return the kind of the dtype of the first argument."""
    return as_tensor("a reduction", next(iter(arguments.values()))).dtype.kind


@lru_cache(maxsize=256)
def _signature_of(function: Function) -> Signature:
    return signature(function)


def _is_default(value: object, parameter: Parameter) -> bool:
    is_unset = value is None or value is NO_VALUE or value is parameter.default
    return is_unset or (value is True and parameter.name == "where")
