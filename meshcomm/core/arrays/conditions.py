"""Floating-point errors and warnings that a script of NumPy sees: all its ranks raise them, or issue them, alike.

A division by zero is in the block of one rank. NumPy would raise `FloatingPointError` there alone, or record a
warning, and the program would go on differently on each rank. So where a program sees such conditions, a call with
tensors has three steps: each rank computes, and notes its conditions; the ranks tell each other; and all handle the
conditions of all as NumPy does. Whether the program sees them, all ranks know without communication: see
`are_conditions_seen`.
"""

import builtins
import sys
import warnings
from collections.abc import Mapping
from operator import getitem

import numpy as np

from meshcomm.core import _hooks
from meshcomm.core._callers import CONDITIONS, Conditions, NumericalWarnings, let_show, program_line
from meshcomm.core._tracing import Value
from meshcomm.core.arrays import _conditions
from meshcomm.core.arrays._recipes import completed
from meshcomm.core.failures.launchers import EAGER, is_on
from meshcomm.core.layouts.mesh import Mesh
from meshcomm.core.ranks.agreement import agree
from meshcomm.core.ranks.calls import collective, exchanging
from meshcomm.core.ranks.meshes import mesh_of_program

_MERGING = frozenset(("add", "multiply", "matmul"))
"""What texts name where ranks have computed shares of a result, or merged them."""

_NAMES = {
    **dict.fromkeys(("sum", "mean", "average", "prod", "std", "var", "reduce", "nansum", "nanmean"), "reduce"),
    **dict.fromkeys(("cumsum", "cumprod", "accumulate"), "accumulate"),
    **dict.fromkeys(("dot", "vdot", "inner", "tensordot"), "dot"),
    "matmul": "matmul",
}
"""What NumPy's texts name instead, by functions."""

_UNCHECKED = frozenset(("einsum",))
"""Functions in which NumPy does not look for conditions."""

_usual: list[object] = []
"""What shows warnings as text, while the program records none."""


def let_see(on: bool) -> None:
    """Say whether ranks are to see conditions alike. What Python calls for each warning now shows it as text."""
    _usual[:] = _called_for_warnings()
    let_show(on)
    _conditions.let_see(are_conditions_seen if on else None)


def are_conditions_seen() -> bool:
    """Return whether the program sees floating-point conditions, other than as text: the same on all ranks."""
    handling = {*np.geterr().values()}
    if "raise" in handling:
        return True
    if isinstance(np.geterrcall(), NumericalWarnings):  # within a call of the program, for which this was asked
        return False
    if not handling.isdisjoint(("call", "log")):
        return True
    return "warn" in handling and (_called_for_warnings() != _usual or _raises_warnings())


def may_wait() -> bool:
    """Return whether conditions are ignored, or warnings that are shown as text: then operations may wait."""
    handling = {*np.geterr().values()}
    if type(np.geterrcall()) is NumericalWarnings:  # within a call of the program, these become warnings
        handling = {"warn" if how == "log" else how for how in handling}
    if not handling <= {"ignore", "warn"}:
        return False
    return "warn" not in handling or (_called_for_warnings() == _usual and not _raises_warnings())


def begin() -> None:
    """Let operations wait. What Python calls for each warning now shows it as text."""
    _usual[:] = _called_for_warnings()
    _conditions.let_wait(None if is_on(EAGER) else may_wait)


def _called_for_warnings() -> list[object]:
    """Return what Python calls for each warning. A context that records them replaces it."""
    return [warnings.showwarning, getattr(warnings, "_showwarnmsg_impl", None)]


def _raises_warnings() -> bool:
    """Return whether filters let some `RuntimeWarning` of NumPy be raised. The first one that fits decides."""
    for action, message, category, module, line in warnings.filters:
        if issubclass(RuntimeWarning, category):
            if action == "error":
                return True
            if message is None and module is None and not line:
                return False
    return False


def call_protocol(
    function: object, method: str | None, args: tuple[object, ...], kwargs: Mapping[str, object]
) -> Value:
    """Return what NumPy's protocol makes of a call with tensors: a result, or a `Call` that is decided.

    Where the script sees conditions, the call runs. That is Collective: all ranks handle the conditions of all, as
    NumPy does. The arguments are those of the hook.
    """
    if function is getitem or not _conditions.are_seen():
        return _hooks.call("numpy", function, method, args, kwargs)
    name = str(getattr(function, "__name__", function) if method in (None, "__call__") else method)
    conditions = Conditions()
    logged: dict[str, Value] = {kind: "log" for kind, how in np.geterr().items() if how != "ignore"}
    with np.errstate(call=conditions, **logged):
        result = completed(_hooks.call("numpy", function, method, args, kwargs))
    noted = [(_as_numpys(text, name), category) for text, category in conditions.noted]
    noted = _of_all_ranks(mesh_of_program(), name, noted)
    flags = sum({CONDITIONS[_condition_name(text)][1] for text, category in noted if not category})
    for text, category in noted:
        if category:
            kind: Value = getattr(builtins, category, None) or getattr(np.exceptions, category, RuntimeWarning)
            program_line().warn(text, kind)
        elif name not in _UNCHECKED:
            _handle_condition(text, flags)
    return result


def _of_all_ranks(mesh: Mesh, name: str, noted: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """Return what the ranks of *mesh* have noted in a call, each once, in NumPy's order. Collective over *mesh*."""
    operation = f"floating-point errors and warnings in numpy.{name}"
    with collective(operation, mesh) as location:
        if location is not None and len(location.rank_set.ranks) > 1:
            with exchanging(location.rank_set):
                if not agree(location.rank_set, operation, value=len(noted)):
                    return []
                gathered = location.rank_set.everyone.communicator().allgather_json(noted)
            noted = [(text, category) for of_rank in gathered for text, category in of_rank]
    order = [*CONDITIONS]
    return sorted(dict.fromkeys(noted), key=lambda note: -1 if note[1] else order.index(_condition_name(note[0])))


def _condition_name(text: str) -> str:
    return text.partition(" encountered")[0]


def _as_numpys(text: str, name: str) -> str:
    """Return *text* with the name that NumPy has in the same function, where ranks have merged their shares."""
    begin, _, by = text.rpartition(" ")
    return f"{begin} {_NAMES[name]}" if by in _MERGING and name in _NAMES else text


def _handle_condition(text: str, flags: int) -> None:
    """Do what NumPy does for a condition: raise, warn, call, log or print. *flags* are those of all conditions."""
    handling: Mapping[str, Value] = dict(np.geterr())
    how, handler = handling[CONDITIONS[_condition_name(text)][0]], np.geterrcall()
    if how == "raise":
        raise FloatingPointError(text)
    if how == "warn":
        program_line().warn(text, RuntimeWarning)
    elif how == "call" and callable(handler):
        handler(_condition_name(text), flags)
    elif how == "log" and handler is not None and not callable(handler):
        handler.write(f"Warning: {text}\n")
    elif how == "print":
        sys.stderr.write(f"Warning: {text}\n")


begin()
