"""What is wrong with an operation of a fused function, and what NumPy warns of: both name the line of the program."""

import sys
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from meshcomm.core._callers import CONDITIONS, Line, program_line


def located(text: str) -> str:
    """Return the text of an error, with the line of the program before it."""
    return f"{_text(program_line())}: {text}"


def refused(text: str) -> TypeError:
    """Return the error for an operation that a fused function cannot make."""
    return TypeError(located(text))


def _text(line: Line) -> str:
    return f"{line.file}, line {line.number}"


class Origin(NamedTuple):
    """Where a fused function makes an operation, and what NumPy does there about divisions by zero and their like.

    Parameters
    ----------
    line: of the program
    handling: what numpy.geterr says
    handler: what numpy.geterrcall says
    """

    line: Line
    handling: Mapping[str, object]
    handler: Any

    def tell(self, text: str) -> None:
        """Warn, raise or call as NumPy would here, about what it has logged."""
        found = text.removeprefix("Warning: ").rstrip()
        condition = found.partition(" encountered")[0]
        kind, flag = CONDITIONS[condition]
        match self.handling[kind]:
            case "warn":
                self.line.warn(found, RuntimeWarning)
            case "raise":
                error = FloatingPointError(found)
                self.note(error)
                raise error
            case "print":
                sys.stdout.write(text)  # as NumPy prints it
            case "call":
                self.handler(condition, flag)
            case "log":
                self.handler.write(text)

    def note(self, error: BaseException) -> None:
        """Add this line to what an error says."""
        error.add_note(f"in {_text(self.line)}, in a fused function")


def here() -> Origin:
    """Return where the program is now."""
    return Origin(program_line(), np.geterr(), np.geterrcall())


class Watch:
    """A context for the steps of a program: their warnings and errors name the lines that they come from.

    Each step warns once, as if it had run for whole arrays. *origins* are those of the steps, and *step* is the one
    that runs.
    """

    __slots__ = ("_errors", "_logged", "_origins", "step")

    def __init__(self, origins: Sequence[Origin]) -> None:
        self._origins, self.step = origins, 0
        self._logged: dict[tuple[int, str], None] = {}
        self._errors = np.errstate(all="log", call=self)

    def write(self, text: str) -> None:
        """Note what NumPy logs, such as ``Warning: divide by zero encountered in log``: once for all pieces."""
        self._logged[self.step, text] = None

    def __enter__(self) -> "Watch":
        self._errors.__enter__()
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        self._errors.__exit__(None, None, None)
        if error is not None:
            self._origins[self.step].note(error)
            return
        for step, text in sorted(self._logged):
            self._origins[step].tell(text)
