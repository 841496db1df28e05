"""An extension of Sphinx: it reads the docstrings of this package.

They are reStructuredText, with habits of their own: a section "Parameters" has lines ``name: text``, "Arguments are
those of `name`" stands for the parameters of that function, and a public name in single backticks is a link.
Classes say that they are of the package itself: Sphinx has to know their files, where their attributes are described.
"""

import inspect
import re
from collections.abc import Iterator
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING
from zlib import crc32

import meshcomm as mc

if TYPE_CHECKING:
    from sphinx.application import Sphinx

HEADER = re.compile(r"^-{3,}$")
ITEM = re.compile(r"^(\*{0,2}\w+(?:, \*{0,2}\w+)*): (.*)$")
THOSE_OF = re.compile(r"\b[Aa]rguments are those of `(\w+)`")
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


def section(lines: list[str]) -> tuple[int, dict[str, list[str]]]:
    """Return where the parameters of a docstring end, and the lines about each; -1 if there are none.

    >>> section(["Parameters", "----------", "a, b: two", "    numbers", "", "More."])
    (4, {'a': ['a: two', '    numbers'], 'b': ['b: two', '    numbers']})
    """
    found: dict[str, list[str]] = {}
    if "Parameters" not in lines:
        return -1, found
    end = lines.index("Parameters") + 2
    names: list[str] = []
    while end < len(lines) and lines[end]:
        if item := ITEM.match(lines[end]):
            names = item[1].split(", ")
            found |= {name: [f"{name}: {item[2]}"] for name in names}
        else:
            for name in names:
                found[name].append(lines[end])
        end += 1
    return end, found


def with_those_of(lines: list[str], name: str) -> list[str]:
    """Return the docstring of the function with this full *name*, with the parameters of the function that it names.

    >>> lines = with_those_of(["Return more.", "Arguments are those of `relayout`."], "meshcomm.relayout_like")
    >>> [line for line in lines if line.startswith("name: ")]
    ['name: name of this call in messages while it waits']
    """
    named = THOSE_OF.search(" ".join(lines))
    if named is None:
        return lines
    owner = name.removeprefix("meshcomm.").rpartition(".")[0]
    of = next(each for each in (f"{owner}.{named[1]}", named[1]) if is_public(each))
    other = with_those_of((inspect.getdoc(attrgetter(of)(mc)) or "").splitlines(), f"meshcomm.{of}")
    end, own = section(lines)
    wanted = inspect.signature(attrgetter(name.removeprefix("meshcomm."))(mc)).parameters
    more = [line for each, text in section(other)[1].items() if each in wanted and each not in own for line in text]
    if own:
        return [*lines[:end], *more, *lines[end:]]
    end = next((number for number, line in enumerate(lines) if line.startswith(">>>")), len(lines))
    return [*lines[:end], "", "Parameters", "-" * 10, *more, "", *lines[end:]]


def is_public(name: str) -> bool:
    """Return whether the package has this *name*, maybe in a module."""
    try:
        attrgetter(name)(mc)
    except AttributeError:
        return False
    return not name.startswith(".")


def with_links(line: str, owner: object) -> str:
    """Return a line with links from public names, errors and pages; other names in backticks are code."""

    def new(match: re.Match[str]) -> str:
        name = match[1]
        if isinstance(owner, str) and hasattr(getattr(mc, owner, None), name):
            return f":py:obj:`{name} <meshcomm.{owner}.{name}>`"
        first, *others = name.removeprefix("mc.").split(".")
        if first in mc._module_of and (not others or hasattr(getattr(mc, first), others[0])):
            return f":py:obj:`{name} <meshcomm.{'.'.join([first, *others])}>`"
        return f"``{name}``"

    def error(match: re.Match[str]) -> str:
        value = vars(mc).get(match[1]) if match[1] in mc._module_of else None
        is_error = inspect.isclass(value) and issubclass(value, Exception)
        return f":py:obj:`{match[1]} <meshcomm.{match[1]}>`" if is_error else match.group()

    return PAGE.sub(r":doc:`/\1`", ERROR.sub(error, NAME.sub(new, ROLE.sub(r"``\1``", line))))


def process(app: "Sphinx", what: str, name: str, *others: object) -> None:
    """Change the lines of a docstring, as Sphinx asks for it."""
    lines = others[-1]
    assert isinstance(lines, list)
    first, _, last = name.removeprefix("meshcomm.").rpartition(".")
    owner = last if what == "class" else first
    lines[:] = [with_links(line, owner) for line in with_fields(with_those_of(lines, name))]


def setup(app: "Sphinx") -> dict[str, object]:
    """Register with Sphinx, and let public classes say in which module they are."""
    for name in mc._module_of:
        if inspect.isclass(value := getattr(mc, name)):
            own = [each.__module__ for each in vars(value).values() if inspect.isfunction(each)]
            value.__module__ = own[0] if own else value.__module__
    app.connect("autodoc-process-docstring", process)
    changes = crc32(Path(__file__).read_bytes())  # Sphinx reads all pages again if this file has changed
    return {"parallel_read_safe": True, "env_version": changes}
