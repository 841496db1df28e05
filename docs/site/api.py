"""Write the tables of docs/api.md from signatures and docstrings: python docs/site/api.py. A test compares both.

The page says which names there are, and in which order. A row that begins with `name(` shows how the name is called.
"""

import inspect
import re
from pathlib import Path

import meshcomm

PAGE = Path(__file__).parents[1] / "api.md"
ROW = re.compile(r"^\| `(\w+)(\(?)[^`]*` \| (.*) \|$", re.MULTILINE)


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
    return f"| `{name}{signature(value) if called else ''}` | {text[:1].upper()}{text[1:]} |"


def signature(value: object) -> str:
    """Return the parameters of a function or a class, with their defaults and without their types."""
    given = inspect.signature(value)  # type: ignore[arg-type]
    parameters = [each.replace(annotation=inspect.Parameter.empty) for each in given.parameters.values()]
    shown = str(given.replace(parameters=parameters, return_annotation=inspect.Signature.empty))
    return re.sub(r"<class '(\w+)'>", r"\1", shown)


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text("utf-8")), "utf-8")
