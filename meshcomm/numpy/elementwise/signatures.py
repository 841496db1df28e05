"""NumPy's functions as callers write them: arguments by NumPy's names, and a clear no to those that are not taken."""

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
"""What is called for functions of NumPy that are defined for tensors. `implements` writes it."""

_SAME_KIND = {"ptp": "biufcmM", "std": "biufc", "nanstd": "biufc", "nanmean": "fc", "nanvar": "fc"}
_SAME_KIND |= {f"{name}{axes}": "biufc" for name in ("fft", "ifft", "rfft", "irfft") for axes in ("", "2", "n")}
_SAME_KIND |= {"hfft": "biufc", "ihfft": "biufc"}
"""Functions that convert their result to ``out=`` by the rule ``same_kind`` only, for these kinds of operands."""


def like_numpy(function: Function, ours: Function) -> Function:
    """Return *ours* with the arguments of NumPy's *function*, which it takes by name; some may be missing there.

    What it does not take may be passed with NumPy's default; otherwise there is a ``TypeError``. The result is written
    to the tensor ``out=``, by the conversions of NumPy's function: most reductions take any.
    """
    name = f"numpy.{function.__name__}"
    taken = frozenset(signature(ours).parameters)

    @wraps(ours)  # its signature says which arguments are taken: docs/numpy.md has the others
    def called(*args: object, **kwargs: object) -> object:
        if len(args) == 1 and taken.issuperset(kwargs) and all(map(is_not, kwargs.values(), repeat(NO_VALUE))):
            return ours(*args, **kwargs)  # as the methods of tensors call it
        form = _form(function)
        arguments = form.bind(*args, **kwargs).arguments
        out = None if "out" in taken else arguments.pop("out", None)
        for argument in [argument for argument in arguments if argument not in taken]:
            value = arguments.pop(argument)
            if not _is_default(value, form.parameters[argument]):
                raise TypeError(f"{name}: {argument}= is not supported for DTensors; leave it out")
        result = ours(**{argument: value for argument, value in arguments.items() if value is not NO_VALUE})
        if out is None or out is NO_VALUE:
            return result
        result = completed(result)
        kinds = _SAME_KIND.get(function.__name__)
        casting: Casting = "same_kind" if kinds and _dtype_kind(arguments) in kinds else "unsafe"
        return with_out(name, out, result, casting)

    return called


def implements(*functions: Function | None, partly: bool = False) -> Callable[[Ours], Ours]:
    """Let NumPy's *functions* take tensors: for each of them, the function below is called.

    None stands for a function that this NumPy lacks. *partly*: the function below takes some of NumPy's arguments; see
    `like_numpy`.
    """

    def define(ours: Ours) -> Ours:
        for function in functions:
            if function is not None:
                FUNCTIONS[function] = like_numpy(function, ours) if partly else ours
        return ours

    return define


def operation(*functions: Function | None, partly: bool = False) -> Callable[[Callable[P, Call | R]], Callable[P, R]]:
    """Let NumPy's *functions* take tensors: the function below decides what is made, and may return that as a `Call`.

    So it decides by specs and other arguments only, not by elements. Who called the function of NumPy runs the call,
    and keeps it for others with tensors of the same specs. In our own code, the name below is of a function that runs
    the call; `decision` gives the one that decides. Arguments are those of `implements`.
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
    """Return what decides for a function that runs what is decided: see `operation`; else the function itself."""
    return _DECISIONS.get(function, function)


_DECISIONS: dict[Function, AnyFunction] = {}


def implements_each(*functions: Function) -> Callable[[Maker], Maker]:
    """Let NumPy's *functions* take tensors: for each of them, what the function below makes of it is called."""

    def define(make: Maker) -> Maker:
        for function in functions:
            implements(function)(make(function))
        return make

    return define


def _dtype_kind(arguments: Mapping[str, object]) -> str:
    """Return the kind of the dtype of the first argument."""
    return as_tensor("a reduction", next(iter(arguments.values()))).dtype.kind


@lru_cache(maxsize=256)
def _form(function: Function) -> Signature:
    return signature(function)


def _is_default(value: object, parameter: Parameter) -> bool:
    unset = value is None or value is NO_VALUE or value is parameter.default
    return unset or (value is True and parameter.name == "where")
