"""Which calls are meshcomm's own, and which the program's: warnings and short tracebacks name the latter."""

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
    """Issue a warning that points to the line which called meshcomm, however many calls of ours are in between.

    ``warnings.warn`` can skip the files of a package only since Python 3.12.
    """
    program_line().warn(text, category)


class Line(NamedTuple):
    """A line of the program.

    Parameters
    ----------
    file, number: where it is
    names: the global names of its module. A frame would hold what the program has locally
    """

    file: str
    number: int
    names: dict[str, Any]

    def warn(self, text: str, category: type[Warning]) -> None:
        """Issue a warning that points to this line; where ranks are to agree on it first, note it."""
        conditions = noted_conditions()
        if conditions is not None:
            conditions.note(text, category.__name__)
            return
        namespace = self.names
        module, registry = namespace.get("__name__", "<unknown>"), namespace.setdefault("__warningregistry__", {})
        warnings.warn_explicit(text, category, self.file, self.number, module, registry)


def program_line() -> Line:
    """Return the line of the program that called meshcomm, however many calls of ours are in between."""
    frame = sys._getframe(1)
    while frame.f_back is not None and (is_ours(frame) or _is_import(frame) or _is_numpys(frame)):
        frame = frame.f_back
    return Line(frame.f_code.co_filename, frame.f_lineno, frame.f_globals)


def _is_import(frame: FrameType) -> bool:
    """Return whether *frame* is Python's own, between an ``import`` and the module."""
    return frame.f_code.co_filename.startswith("<frozen importlib.")


def _is_numpys(frame: FrameType) -> bool:
    """Return whether *frame* is NumPy's, between an operator of the program and meshcomm."""
    return str(frame.f_globals.get("__name__")).partition(".")[0] == "numpy"


def naming_callers(function: Callable[P, R]) -> Callable[P, R]:
    """Return a *function* of NumPy whose warnings point to the line which called meshcomm: see `warn`."""

    def called(*args: P.args, **kwargs: P.kwargs) -> R:
        with warnings.catch_warnings(record=True) as issued:
            warnings.simplefilter("always")
            result = function(*args, **kwargs)
        for warning in issued:
            warn(str(warning.message), warning.category)
        return result

    return called


CONDITIONS = {
    "divide by zero": ("divide", 1),
    "overflow": ("over", 2),
    "underflow": ("under", 4),
    "invalid value": ("invalid", 8),
}
"""How NumPy's texts of floating-point errors begin, in the order in which it handles them. For each: what
`numpy.errstate` calls it, and its flag in the second argument of a function of `numpy.seterrcall`."""


class NumericalWarnings:
    """What NumPy logs of divisions by zero and their like, as the warnings that it issues itself: see `warn`."""

    def write(self, text: str) -> None:
        """Issue a warning of a text, such as ``Warning: divide by zero encountered in log``."""
        warn(text.removeprefix("Warning: ").rstrip(), RuntimeWarning)


_WARNINGS, _LOGGED = NumericalWarnings(), frozenset({"call", "log"})
"""What issues NumPy's warnings at the line of the program, and where the program has an object of its own for them."""


_handled: tuple[Any, Any] | None = None
"""NumPy's state of errors in which a call was guarded last, and the one that it had then: making one takes long."""


def call_naming_callers(
    function: Callable[..., object], args: tuple[object, ...], kwargs: dict[str, object]
) -> object:
    """Return what *function* returns; warnings of NumPy in it name the line of the program."""
    global _handled
    outside, before = _errstate.get(None), _handled
    if before is not None and outside is before[0]:
        token = _errstate.set(before[1])
        try:
            return function(*args, **kwargs)
        finally:
            _errstate.reset(token)
    if before is not None and outside is before[1]:  # within a guarded call
        return function(*args, **kwargs)
    handling = np.geterr()
    if "warn" not in handling.values() or not _LOGGED.isdisjoint(handling.values()):
        return function(*args, **kwargs)
    logged: dict[str, Literal["log"]] = {name: "log" for name, how in handling.items() if how == "warn"}
    with np.errstate(call=_WARNINGS, **logged):
        _handled = outside, _errstate.get(None)
        return function(*args, **kwargs)


class Conditions(NumericalWarnings):
    """Floating-point errors and warnings in a call of this rank, noted: ranks agree on them when it is over.

    It is what `numpy.errstate` logs to. `meshcomm.core.arrays.conditions` says when.
    """

    def __init__(self) -> None:
        self.noted: dict[tuple[str, str], None] = {}

    def note(self, text: str, category: str) -> None:
        """Note a warning of this class; "" is for what NumPy handles as `numpy.errstate` says."""
        self.noted[text, category] = None

    def write(self, text: str) -> None:
        """Note a floating-point error, as NumPy logs it."""
        self.note(text.removeprefix("Warning: ").rstrip(), "")


def noted_conditions() -> Conditions | None:
    """Return what notes floating-point errors and warnings now, if anything does."""
    handler = np.geterrcall()
    return handler if isinstance(handler, Conditions) else None


def unstopped() -> np.errstate:
    """Return a context in which no floating-point error stops this rank before a communication.

    They are noted where ranks agree on them later. Elsewhere a warning may be an error; only a script that sees no
    conditions, other than as text, gets them as such. In other programs they are ignored.
    """
    handler = np.geterrcall()
    is_kept = isinstance(handler, NumericalWarnings if _Script.shows else Conditions)
    return np.errstate() if is_kept else np.errstate(all="ignore")


def let_show(on: bool) -> None:
    """Say whether the program is a script of NumPy, in which no warning of this rank alone is an error."""
    _Script.shows = on


class _Script:
    shows = False


@contextlib.contextmanager
def in_short(error: BaseException) -> Iterator[None]:
    """Within the context, let the traceback of a ``MeshcommError`` name no calls of meshcomm but the program's own.

    Such errors blame the caller, as do those that meshcomm raises as NumPy does, and Ctrl-C may come anywhere. The
    same holds for those that it was raised from; other errors keep all frames, as they may be mistakes of ours.
    Nothing is left out in Python's development mode (``python -X dev``).
    """
    tracebacks: dict[BaseException, TracebackType | None] = {}
    now: BaseException | None = error if not sys.flags.dev_mode else None
    while now is not None and now not in tracebacks:
        tracebacks[now] = now.__traceback__
        if isinstance(now, MeshcommError | KeyboardInterrupt) or _is_raised_by_us(now):
            now.__traceback__ = _of_program(now.__traceback__)
        now = now.__cause__ or (None if now.__suppress_context__ else now.__context__)
    try:
        yield
    finally:
        for link, traceback in tracebacks.items():
            link.__traceback__ = traceback


def _is_raised_by_us(error: BaseException) -> bool:
    """Return whether a ``raise`` of meshcomm made an error of NumPy's classes, so that the arguments are to blame."""
    last = error.__traceback__
    while last is not None and last.tb_next is not None:
        last = last.tb_next
    if last is None or not isinstance(error, LookupError | TypeError | ValueError) or not is_ours(last.tb_frame):
        return False
    return linecache.getline(last.tb_frame.f_code.co_filename, last.tb_lineno).lstrip().startswith("raise ")


def _is_unknown_to_program(frame: FrameType) -> bool:
    """Return whether a call of ours says nothing to a program: compiled, without source, or of what runs it."""
    return frame.f_code.co_filename.endswith(".pyx") or frame.f_globals["__name__"].startswith("meshcomm.tools.")


def _of_program(traceback: TracebackType | None) -> TracebackType | None:
    """Return *traceback* without the calls that meshcomm makes itself; what the program called stays."""
    entries: list[TracebackType] = []
    after_ours = True  # an error that another one was raised from begins within a call of ours
    while traceback is not None:
        ours = is_ours(traceback.tb_frame)
        if not (ours and (after_ours or _is_unknown_to_program(traceback.tb_frame))):
            entries.append(traceback)
        after_ours, traceback = ours, traceback.tb_next
    result: TracebackType | None = None
    for entry in reversed(entries):
        result = TracebackType(result, entry.tb_frame, entry.tb_lasti, entry.tb_lineno)
    return result
