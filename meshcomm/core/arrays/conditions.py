"""Floating-point errors and warnings that a script of NumPy sees: all its ranks raise them, or issue them, alike.

A division by zero is in the block of one rank. NumPy would raise `FloatingPointError` there alone, or record a
warning, and the program would go on differently on each rank. So where a program sees such conditions, a call with
tensors has three steps: each rank computes, and notes its conditions; the ranks exchange their notes; and each handles
the conditions of all ranks as NumPy does. All ranks know without communication whether the program sees conditions:
see `are_conditions_seen`.
"""

import builtins
import sys
import warnings
from collections.abc import Mapping
from operator import getitem

import numpy as np

from meshcomm.core import _hooks
from meshcomm.core._callers import FLOAT_ERRORS, ConditionLog, WarningLog, program_line, set_is_script
from meshcomm.core._tracing import Value
from meshcomm.core.arrays import _conditions
from meshcomm.core.arrays._recipes import completed
from meshcomm.core.failures.launchers import EAGER, is_on
from meshcomm.core.layouts.mesh import Mesh
from meshcomm.core.ranks.agreement import agree
from meshcomm.core.ranks.calls import collective, exchanging
from meshcomm.core.ranks.meshes import mesh_of_program

_MERGING_UFUNCS = frozenset(("add", "multiply", "matmul"))
"""Names in texts of conditions that come from ranks' shares of a result, or from merging them."""

_NAMES_IN_TEXTS = {
    **dict.fromkeys(("sum", "mean", "average", "prod", "std", "var", "reduce", "nansum", "nanmean"), "reduce"),
    **dict.fromkeys(("cumsum", "cumprod", "accumulate"), "accumulate"),
    **dict.fromkeys(("dot", "vdot", "inner", "tensordot"), "dot"),
    "matmul": "matmul",
}
"""The name in NumPy's text instead, by function."""

_UNCHECKED_FUNCTIONS = frozenset(("einsum",))
"""Functions in which NumPy does not look for conditions."""

_usual_warning_handlers: list[object] = []
"""The functions that show warnings as text, while the program records none."""


def agree_on_conditions(enabled: bool) -> None:
    """Set whether all ranks see conditions alike. The current warning handlers count as showing text."""
    _usual_warning_handlers[:] = _warning_handlers()
    set_is_script(enabled)
    _conditions.set_condition_probe(are_conditions_seen if enabled else None)


def are_conditions_seen() -> bool:
    """Return whether the program sees floating-point conditions, other than as text: the same on all ranks."""
    modes = {*np.geterr().values()}
    if "raise" in modes:
        return True
    if isinstance(np.geterrcall(), WarningLog):  # within a call of the program that was checked before
        return False
    if not modes.isdisjoint(("call", "log")):
        return True
    return "warn" in modes and (_warning_handlers() != _usual_warning_handlers or _raises_warnings())


def may_wait() -> bool:
    """Return whether operations may wait: if conditions are ignored, or are warnings shown as text."""
    modes = {*np.geterr().values()}
    if type(np.geterrcall()) is WarningLog:  # within a call of the program, these become warnings
        modes = {"warn" if mode == "log" else mode for mode in modes}
    if not modes <= {"ignore", "warn"}:
        return False
    return "warn" not in modes or (_warning_handlers() == _usual_warning_handlers and not _raises_warnings())


def begin() -> None:
    """Let operations wait. The current warning handlers count as showing text."""
    _usual_warning_handlers[:] = _warning_handlers()
    _conditions.let_wait(None if is_on(EAGER) else may_wait)


def _warning_handlers() -> list[object]:
    """Return the functions that Python calls for each warning. A context that records warnings replaces them."""
    return [warnings.showwarning, getattr(warnings, "_showwarnmsg_impl", None)]


def _raises_warnings() -> bool:
    """Return whether filters let some `RuntimeWarning` of NumPy be raised. The first one that fits decides."""
    for action, message, category, module, lineno in warnings.filters:
        if issubclass(RuntimeWarning, category):
            if action == "error":
                return True
            if message is None and module is None and not lineno:
                return False
    return False


def call_protocol(
    function: object, method: str | None, args: tuple[object, ...], kwargs: Mapping[str, object]
) -> Value:
    """Return the result of a call with tensors by NumPy's protocol, or a `Call` that is decided and has not run.

    Where the script sees conditions, the call runs. That is Collective: each rank handles the conditions of all ranks,
    as NumPy does. The arguments are those of the hook.
    """
    if function is getitem or not _conditions.are_seen():
        return _hooks.call("numpy", function, method, args, kwargs)
    name = str(getattr(function, "__name__", function) if method in (None, "__call__") else method)
    log = ConditionLog()
    log_modes: dict[str, Value] = {kind: "log" for kind, mode in np.geterr().items() if mode != "ignore"}
    with np.errstate(call=log, **log_modes):
        result = completed(_hooks.call("numpy", function, method, args, kwargs))
    notes = [(_numpy_text(text, name), category) for text, category in log.noted]
    notes = _notes_of_all_ranks(mesh_of_program(), name, notes)
    flags = sum({FLOAT_ERRORS[_condition_name(text)][1] for text, category in notes if not category})
    for text, category in notes:
        if category:
            cls: Value = getattr(builtins, category, None) or getattr(np.exceptions, category, RuntimeWarning)
            program_line().warn(text, cls)
        elif name not in _UNCHECKED_FUNCTIONS:
            _handle_condition(text, flags)
    return result


def _notes_of_all_ranks(mesh: Mesh, name: str, notes: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """Return the notes of all ranks of *mesh* in a call, each once, in NumPy's order. Collective over *mesh*."""
    operation = f"floating-point errors and warnings in numpy.{name}"
    with collective(operation, mesh) as location:
        if location is not None and len(location.rank_set.ranks) > 1:
            with exchanging(location.rank_set):
                if not agree(location.rank_set, operation, value=len(notes)):
                    return []
                notes_by_rank = location.rank_set.everyone.communicator().allgather_json(notes)
            notes = [(text, category) for rank_notes in notes_by_rank for text, category in rank_notes]
    order = [*FLOAT_ERRORS]
    return sorted(dict.fromkeys(notes), key=lambda note: -1 if note[1] else order.index(_condition_name(note[0])))


def _condition_name(text: str) -> str:
    return text.partition(" encountered")[0]


def _numpy_text(text: str, name: str) -> str:
    """Return *text* with NumPy's name for the operation in function *name*, where ranks have merged their shares."""
    message, _, operation = text.rpartition(" ")
    return f"{message} {_NAMES_IN_TEXTS[name]}" if operation in _MERGING_UFUNCS and name in _NAMES_IN_TEXTS else text


def _handle_condition(text: str, flags: int) -> None:
    """Handle a condition as NumPy does: raise, warn, call, log or print. *flags* are those of all conditions."""
    modes: Mapping[str, Value] = dict(np.geterr())
    mode, handler = modes[FLOAT_ERRORS[_condition_name(text)][0]], np.geterrcall()
    if mode == "raise":
        raise FloatingPointError(text)
    if mode == "warn":
        program_line().warn(text, RuntimeWarning)
    elif mode == "call" and callable(handler):
        handler(_condition_name(text), flags)
    elif mode == "log" and handler is not None and not callable(handler):
        handler.write(f"Warning: {text}\n")
    elif mode == "print":
        sys.stderr.write(f"Warning: {text}\n")


begin()
