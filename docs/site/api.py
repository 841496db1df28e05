"""Write tables from signatures and docstrings: python docs/site/api.py. A test compares both.

docs/api.md says which names there are, and in which order. A row that begins with `name(` shows how it is called.
The tables of docs/numpy.md say which functions are alike; with them stand the arguments that ours do not take.
"""

import inspect
import re
from itertools import groupby
from pathlib import Path

import numpy as np

import meshcomm
from meshcomm.numpy.protocols import FUNCTIONS

PAGE = Path(__file__).parents[1] / "api.md"
NUMPY_PAGE = Path(__file__).parents[1] / "numpy.md"
ROW = re.compile(r"^\| `(\w+)(\(?)[^`]*` \|(.*)\|$", re.MULTILINE)


def page(text: str) -> str:
    """Return the page with each row as the sources have it; a name without a docstring keeps its text."""
    return ROW.sub(lambda match: row(*match.groups()), text)


def row(name: str, called: str, text: str) -> str:
    """Return the row of a public name: how it is called, and the first paragraph of its docstring.

    >>> row("unpack", "(", "")[:41]
    '| `unpack(tensor)` | The list of the comp'
    """
    value = getattr(meshcomm, name)
    if callable(value):
        text = (inspect.getdoc(value) or "").partition("\n\n")[0].replace("\n", " ").replace("``", "`").rstrip(".")
        text = text.removeprefix("Return ").replace("|", r"\|")
    text = text.strip()
    return f"| `{name}{signature(value) if called else ''}` | {text[:1].upper()}{text[1:]} |"


def signature(value: object) -> str:
    """Return the parameters of a function or a class, with their defaults and without their types."""
    given = inspect.signature(value)  # type: ignore[arg-type]
    parameters = [each.replace(annotation=inspect.Parameter.empty) for each in given.parameters.values()]
    shown = str(given.replace(parameters=parameters, return_annotation=inspect.Signature.empty))
    return re.sub(r"<class '(\w+)'>", r"\1", shown)


NUMPY_ROW = re.compile(r"^\| (`\w+`[^|]*) \|", re.MULTILINE)


def numpy_tables(text: str) -> str:
    """Return the part of docs/numpy.md with the tables of functions that take tensors."""
    return text.partition("## Functions\n")[2].partition("\n## ")[0]


def functions_of_rows(tables: str) -> list[list[str]]:
    """Return the functions that each row of the tables has.

    >>> functions_of_rows("| function | what moves |\\n|---|---|\\n| `astype` (not `order=`), `real` | nothing |")
    [['astype', 'real']]
    """
    return [names_in(cell) for cell in NUMPY_ROW.findall(tables)]


def names_in(text: str) -> list[str]:
    """Return the names in backticks; an argument, such as `order=`, is none."""
    return re.findall(r"`(\w+)`", text)


def numpy_page(text: str) -> str:
    """Return the page with the arguments in its tables that the functions of tensors do not take."""
    tables = numpy_tables(text)
    return text.replace(tables, NUMPY_ROW.sub(lambda match: f"| {cell(names_in(match[1]))} |", tables))


def cell(names: list[str]) -> str:
    """Return the first cell of a row with these functions.

    >>> cell(["real", "copy"])
    '`real`, `copy` (not `order=`, `subok=`)'
    """
    groups = [(", ".join(f"`{name}`" for name in names), missing) for missing, names in groupby(names, not_taken)]
    return ", ".join(f"{shown} (not {missing})" if missing else shown for shown, missing in groups)


def not_taken(name: str) -> str:
    """Return the arguments of this function of NumPy that tensors do not take."""
    function = getattr(np, name)
    try:
        theirs, ours = (inspect.signature(each).parameters for each in (function, FUNCTIONS[function]))
    except ValueError:  # as of those that NumPy writes in C
        return ""
    if any(each.kind in (each.VAR_POSITIONAL, each.VAR_KEYWORD) for each in ours.values()):
        return ""
    options = [name for name, each in theirs.items() if each.default is not each.empty and name not in ("out", "like")]
    return ", ".join(f"`{name}=`" for name in options if name not in ours)


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text("utf-8")), "utf-8")
    NUMPY_PAGE.write_text(numpy_page(NUMPY_PAGE.read_text("utf-8")), "utf-8")
