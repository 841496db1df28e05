"""An extension of Sphinx: it reads the docstrings of this package.

They are reStructuredText, with two habits of their own: a section "Parameters" has lines ``name: text``, and a public
name in single backticks is a link.
Classes say that they are of the package itself: Sphinx has to know their files, where their attributes are described.
"""

import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from zlib import crc32

from sphinx.application import Sphinx

import meshcomm as mc

HEADER = re.compile(r"^-{3,}$")
ITEM = re.compile(r"^(\*{0,2}\w+(?:, \*{0,2}\w+)*): (.*)$")
ROLE = re.compile(r":(?:mod|class|func):`(meshcomm\.[\w.]+)`")  # of modules that the site does not have
PAGE = re.compile(r"\bdocs/([\w-]+)\.md\b")
ERROR = re.compile(r"``(\w+)``")
NAME = re.compile(r"(?<![`:\w])`([\w.]+)`(?![`_\w])")


def with_fields(lines: list[str]) -> Iterator[str]:
    """Yield a docstring with a field for each parameter: the reader sees each name by itself.

    >>> list(with_fields(["Parameters", "----------", "a, b: two", "    numbers", "", "More."]))
    [':param a: two', '    numbers', ':param b: two', '    numbers', '', 'More.']
    """
    number = 0
    while number < len(lines):
        if (
            number + 1 < len(lines)
            and lines[number] in ("Parameters", "Attributes")
            and HEADER.match(lines[number + 1])
        ):
            field, number = "param" if lines[number] == "Parameters" else "ivar", number + 2
            while number < len(lines) and (item := ITEM.match(lines[number])):
                number += 1
                rest = []
                while number < len(lines) and lines[number].startswith(" "):
                    rest.append(lines[number])
                    number += 1
                for name in item[1].split(", "):
                    yield f":{field} {name.replace('*', chr(92) + '*')}: {item[2]}"
                    yield from rest
        else:
            yield lines[number]
            number += 1


def with_links(line: str, owner: object) -> str:
    """Return a line with links from public names, errors and pages; other names in backticks are code."""

    def new(match: re.Match[str]) -> str:
        name = match[1]
        if isinstance(owner, str) and hasattr(getattr(mc, owner, None), name):
            return f":py:obj:`{name} <meshcomm.{owner}.{name}>`"
        first, *others = name.removeprefix("mc.").split(".")
        if first in mc.__all__ and (not others or hasattr(getattr(mc, first), others[0])):
            return f":py:obj:`{name} <meshcomm.{'.'.join([first, *others])}>`"
        return f"``{name}``"

    def error(match: re.Match[str]) -> str:
        value = vars(mc).get(match[1]) if match[1] in mc.__all__ else None
        is_error = inspect.isclass(value) and issubclass(value, Exception)
        return f":py:obj:`{match[1]} <meshcomm.{match[1]}>`" if is_error else match.group()

    return PAGE.sub(r":doc:`/\1`", ERROR.sub(error, NAME.sub(new, ROLE.sub(r"``\1``", line))))


def process(app: Sphinx, what: str, name: str, *others: object) -> None:
    """Change the lines of a docstring, as Sphinx asks for it."""
    lines = others[-1]
    assert isinstance(lines, list)
    first, _, last = name.removeprefix("meshcomm.").rpartition(".")
    owner = last if what == "class" else first
    lines[:] = [with_links(line, owner) for line in with_fields(lines)]


def setup(app: Sphinx) -> dict[str, object]:
    """Register with Sphinx, and let public classes say in which module they are."""
    for name in mc.__all__:
        if inspect.isclass(value := getattr(mc, name)):
            own = [each.__module__ for each in vars(value).values() if inspect.isfunction(each)]
            value.__module__ = own[0] if own else value.__module__
    app.connect("autodoc-process-docstring", process)
    changes = crc32(Path(__file__).read_bytes())  # Sphinx reads all pages again if this file has changed
    return {"parallel_read_safe": True, "env_version": changes}
