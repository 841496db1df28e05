"""What a function reads besides its arguments: while that is the same, the function does the same again."""

import builtins
import dis
import math
from collections.abc import Iterator
from types import CellType, CodeType, FunctionType
from typing import Any, NamedTuple

import numpy as np

from meshcomm.fusing.deferred import Deferred
from meshcomm.fusing.functions import ATTRIBUTES, ELEMENTWISE, WHOLE

_MISSING = object()
_CONSTANTS = (bool, int, float, complex, str, type(None), np.generic, np.dtype, np.ufunc)
_BUILTINS = {
    *(abs, bool, complex, divmod, enumerate, float, int, isinstance, len, list, max, min, pow, range, reversed, round),
    *(sum, tuple, zip, ValueError, TypeError),
}
_FUNCTIONS = [*ELEMENTWISE, *WHOLE, *ATTRIBUTES, *_BUILTINS]
_CHANGING = ("LOAD_BUILD_CLASS", "STORE_GLOBAL", "STORE_ATTR", "STORE_SUBSCR", "STORE_NAME", "DELETE_", "IMPORT_")


class Reads(NamedTuple):
    """What a function has read.

    Parameters
    ----------
    names: global names: where they are looked up, the name, and the object; one that is missing there is Python's own
    cells: variables of functions around it, and the objects
    """

    names: list[tuple[dict[str, Any], str, object]]
    cells: list[tuple[CellType, object]]

    def same(self) -> bool:
        """Return whether the function would read the same objects now."""
        return all(its.get(name, _MISSING) is value for its, name, value in self.names) and all(
            _content(cell) is value for cell, value in self.cells
        )


def reads_of(function: object) -> Reads | None:
    """Return what *function* reads; None if what it does may depend on more, or if it changes something.

    Known are numbers, texts, the functions of NumPy that fused functions take, Python's `math`, and functions that
    read no more than these.

    >>> reads_of(lambda x: x + math.pi) is None, reads_of(lambda x: x + np.random.random()) is None
    (False, True)
    """
    found = Reads([], [])
    return found if _look(function, found, set()) else None


def _look(function: object, found: Reads, seen: set[FunctionType]) -> bool:
    """Add to *found* what a function reads, and return whether that is all."""
    if not isinstance(function, FunctionType) or vars(function):
        return False
    if function in seen:
        return True
    seen.add(function)
    its, values = function.__globals__, [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
    for operation in _operations(function.__code__):
        name, what = operation.argval, operation.opname
        if what.startswith(_CHANGING) or (what == "STORE_DEREF" and name in function.__code__.co_freevars):
            return False
        if what == "LOAD_GLOBAL":
            found.names.append((its, name, its.get(name, _MISSING)))
            values.append(its.get(name, getattr(builtins, name, _MISSING)))
        elif what in ("LOAD_ATTR", "LOAD_METHOD") and not _is_known_attribute(name):
            return False
    for cell in function.__closure__ or ():
        found.cells.append((cell, _content(cell)))
        values.append(_content(cell))
    return all(_is_constant(value, found, seen) for value in values)


def _content(cell: CellType) -> object:
    try:
        return cell.cell_contents
    except ValueError:  # it has none yet
        return _MISSING


def _operations(code: CodeType) -> Iterator[dis.Instruction]:
    """Yield the operations of a code, and of the functions that are defined in it."""
    yield from dis.get_instructions(code)
    for each in code.co_consts:
        if isinstance(each, CodeType):
            yield from _operations(each)


def _is_constant(value: object, found: Reads, seen: set[FunctionType]) -> bool:
    """Return whether *value* does the same whenever it is read; what it reads itself is added to *found*."""
    return _is_known(value) or value is np or value is math or _look(value, found, seen)


def _is_known(value: object) -> bool:
    """Return whether *value* is a number, a text, or a function that depends on its arguments only."""
    if isinstance(value, tuple):
        return all(map(_is_known, value))
    if isinstance(value, type):
        return value in _BUILTINS or (issubclass(value, np.generic) and value is not np.datetime64)
    return isinstance(value, _CONSTANTS) or any(value is each for each in _FUNCTIONS)


def _is_known_attribute(name: str) -> bool:
    """Return whether *name* is an attribute of NumPy, of `math` or of values that is known."""
    if name in vars(np):
        return _is_known(vars(np)[name])
    return hasattr(Deferred, name) or hasattr(math, name)
