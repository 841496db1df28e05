"""Calls of meshcomm and of the program in a stack: warnings and short tracebacks show the program's line, not ours."""

import contextlib
import linecache
import os
import sys
import warnings
from collections.abc import Callable, Iterator
from types import FrameType, TracebackType
from typing import Any, Literal, NamedTuple, ParamSpec, TypeVar

import numpy as np
from numpy._core.umath import _extobj_contextvar as _errstate

from meshcomm.errors import MeshcommError

P = ParamSpec("P")
R = TypeVar("R")

_PACKAGE = f"{os.path.dirname(os.path.dirname(__file__))}{os.sep}"


def is_ours(frame: FrameType) -> bool:
    """Return whether *frame* runs code of this package."""
    name = frame.f_code.co_filename
    return name.startswith(_PACKAGE) or (name.startswith("meshcomm/") and name.endswith(".pyx"))  # as Cython names it


def warn(text: str, category: type[Warning] = UserWarning) -> None:
    """Issue a warning that points to the line of the program that called meshcomm.

    ``warnings.warn`` can skip the files of a package only since Python 3.12.
    """
    program_line().warn(text, category)


class Line(NamedTuple):
    """A line of the program.

    Parameters
    ----------
    file, number: its file and its number there
    module_globals: global names of its module; no frame is kept, as it keeps all local variables alive
    """

    file: str
    number: int
    module_globals: dict[str, Any]

    def warn(self, text: str, category: type[Warning]) -> None:
        """Issue a warning that points to this line; or note it, if ranks agree on warnings first."""
        log = current_log()
        if log is not None:
            log.note(text, category.__name__)
            return
        namespace = self.module_globals
        module, registry = namespace.get("__name__", "<unknown>"), namespace.setdefault("__warningregistry__", {})
        warnings.warn_explicit(text, category, self.file, self.number, module, registry)


def program_line() -> Line:
    """Return the line of the program that called meshcomm, around all calls within meshcomm."""
    frame = sys._getframe(1)
    while frame.f_back is not None and (is_ours(frame) or _is_import(frame) or _is_numpy(frame)):
        frame = frame.f_back
    return Line(frame.f_code.co_filename, frame.f_lineno, frame.f_globals)


def _is_import(frame: FrameType) -> bool:
    """Return whether *frame* is of Python's import system, between an ``import`` and the module."""
    return frame.f_code.co_filename.startswith("<frozen importlib.")


def _is_numpy(frame: FrameType) -> bool:
    """Return whether *frame* is of NumPy, between an operator of the program and meshcomm."""
    return str(frame.f_globals.get("__name__")).partition(".")[0] == "numpy"


def warning_at_program(function: Callable[P, R]) -> Callable[P, R]:
    """Return *function*, of NumPy, so that its warnings point to the line that called meshcomm: see `warn`."""

    def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
        with warnings.catch_warnings(record=True) as records:
            warnings.simplefilter("always")
            result = function(*args, **kwargs)
        for record in records:
            warn(str(record.message), record.category)
        return result

    return wrapper


FLOAT_ERRORS = {
    "divide by zero": ("divide", 1),
    "overflow": ("over", 2),
    "underflow": ("under", 4),
    "invalid value": ("invalid", 8),
}
"""Beginnings of NumPy's texts of floating-point errors, in the order in which it handles them. For each: its name in
`numpy.errstate`, and its flag in the second argument of a function of `numpy.seterrcall`."""


class WarningLog:
    """A log for NumPy's floating-point errors, which issues them as the warnings of NumPy: see `warn`."""

    def write(self, text: str) -> None:
        """Issue a warning for a *text* of NumPy, such as ``Warning: divide by zero encountered in log``."""
        warn(text.removeprefix("Warning: ").rstrip(), RuntimeWarning)


_WARNING_LOG, _LOG_MODES = WarningLog(), frozenset({"call", "log"})
"""The log that issues NumPy's warnings at the line of the program, and the modes in which the program logs them."""


_cached_error_states: tuple[Any, Any] | None = None
"""Cache: the program's error state at the last call, and the state made from it, since making one is slow."""


def call_warning_at_program(
    function: Callable[..., object], args: tuple[object, ...], kwargs: dict[str, object]
) -> object:
    """Return the result of *function*; warnings of NumPy in it point to the line of the program."""
    global _cached_error_states
    current_state, error_states = _errstate.get(None), _cached_error_states
    if error_states is not None and current_state is error_states[0]:
        token = _errstate.set(error_states[1])
        try:
            return function(*args, **kwargs)
        finally:
            _errstate.reset(token)
    if error_states is not None and current_state is error_states[1]:  # within a guarded call
        return function(*args, **kwargs)
    modes = np.geterr()
    if "warn" not in modes.values() or not _LOG_MODES.isdisjoint(modes.values()):
        return function(*args, **kwargs)
    log_modes: dict[str, Literal["log"]] = {name: "log" for name, mode in modes.items() if mode == "warn"}
    with np.errstate(call=_WARNING_LOG, **log_modes):
        _cached_error_states = current_state, _errstate.get(None)
        return function(*args, **kwargs)


class ConditionLog(WarningLog):
    """The floating-point errors and warnings in a call of this rank: ranks agree on them at its end.

    A log for `numpy.errstate`. `meshcomm.core.arrays.conditions` says when it is used.
    """

    def __init__(self) -> None:
        self.noted: dict[tuple[str, str], None] = {}

    def note(self, text: str, category: str) -> None:
        """Note a warning of the class *category*; "" for a floating-point error: `numpy.errstate` decides about it."""
        self.noted[text, category] = None

    def write(self, text: str) -> None:
        """Note a floating-point error, as NumPy logs it."""
        self.note(text.removeprefix("Warning: ").rstrip(), "")


def current_log() -> ConditionLog | None:
    """Return the current log of floating-point errors and warnings; None without one."""
    handler = np.geterrcall()
    return handler if isinstance(handler, ConditionLog) else None


def not_raising_float_errors() -> np.errstate:
    """Return a context in which no floating-point error stops this rank before a communication.

    If ranks agree on such errors later, they are noted. In a script of NumPy they are issued as warnings. In other
    programs they are ignored, as a warning may be an error there.
    """
    handler = np.geterrcall()
    is_noted = isinstance(handler, WarningLog if _Script.is_script else ConditionLog)
    return np.errstate() if is_noted else np.errstate(all="ignore")


def set_is_script(is_script: bool) -> None:
    """Set whether the program is a script of NumPy, in which a warning of one rank is no error."""
    _Script.is_script = is_script


class _Script:
    is_script = False


@contextlib.contextmanager
def shortened_traceback(error: BaseException) -> Iterator[None]:
    """Within the context, leave calls of meshcomm out of the traceback of a ``MeshcommError``.

    Such errors are mistakes of the caller. So are errors that meshcomm raises in place of NumPy. It does not matter
    where in meshcomm Ctrl-C comes. The same holds for errors that *error* was raised from. Other errors keep all
    frames, as they may be bugs of meshcomm. In Python's development mode (``python -X dev``) all frames stay.
    """
    tracebacks: dict[BaseException, TracebackType | None] = {}
    current: BaseException | None = error if not sys.flags.dev_mode else None
    while current is not None and current not in tracebacks:
        tracebacks[current] = current.__traceback__
        if isinstance(current, MeshcommError | KeyboardInterrupt) or _is_raised_by_us(current):
            current.__traceback__ = _program_traceback(current.__traceback__)
        current = current.__cause__ or (None if current.__suppress_context__ else current.__context__)
    try:
        yield
    finally:
        for linked_error, traceback in tracebacks.items():
            linked_error.__traceback__ = traceback


def _is_raised_by_us(error: BaseException) -> bool:
    """Return whether a ``raise`` in meshcomm raised *error*, of a class that NumPy raises for wrong arguments."""
    entry = error.__traceback__
    while entry is not None and entry.tb_next is not None:
        entry = entry.tb_next
    if entry is None or not isinstance(error, LookupError | TypeError | ValueError) or not is_ours(entry.tb_frame):
        return False
    return linecache.getline(entry.tb_frame.f_code.co_filename, entry.tb_lineno).lstrip().startswith("raise ")


def _is_useless_to_user(frame: FrameType) -> bool:
    """Return whether a frame of meshcomm is of no use to the user: compiled, or of a tool that runs the program."""
    return frame.f_code.co_filename.endswith(".pyx") or frame.f_globals["__name__"].startswith("meshcomm.tools.")


def _program_traceback(traceback: TracebackType | None) -> TracebackType | None:
    """Return *traceback* without calls within meshcomm; calls from the program to meshcomm stay."""
    entries: list[TracebackType] = []
    previous_is_ours = True  # the traceback of an error that another one was raised from begins within meshcomm
    while traceback is not None:
        is_our_frame = is_ours(traceback.tb_frame)
        if not (is_our_frame and (previous_is_ours or _is_useless_to_user(traceback.tb_frame))):
            entries.append(traceback)
        previous_is_ours, traceback = is_our_frame, traceback.tb_next
    result: TracebackType | None = None
    for entry in reversed(entries):
        result = TracebackType(result, entry.tb_frame, entry.tb_lasti, entry.tb_lineno)
    return result
