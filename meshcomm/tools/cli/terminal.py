"""The abilities of the terminal of this process, and `say`, which prints there."""

import os
import re
import shutil
import sys
from typing import NamedTuple

from meshcomm.errors import printable


class Terminal(NamedTuple):
    """The number of characters in a line, and whether the terminal shows Unicode's box characters, and colours."""

    width: int
    unicode: bool
    colour: bool


def terminal() -> Terminal:
    """Return the abilities of standard output: plain ASCII in 80 columns, if it is no terminal.

    Python sets ``LC_CTYPE`` to C.UTF-8 where the locale is C, so this value alone does not count.
    """
    environ, encoding = os.environ, sys.stdout.encoding or ""
    is_capable = sys.stdout.isatty() and environ.get("TERM", "dumb") != "dumb"
    ctype = environ.get("LC_CTYPE", "")
    locale = environ.get("LC_ALL") or (ctype if ctype != "C.UTF-8" else "") or environ.get("LANG") or "C"
    unicode = all("utf" in name.lower() for name in (encoding, locale))
    width = shutil.get_terminal_size((80, 24)).columns
    return Terminal(width, is_capable and unicode, is_capable and not environ.get("NO_COLOR"))


_COLOUR = re.compile(r"(\x1b\[[0-9;]*m)")


def say(text: str = "", *, error: bool = False, colours: bool = False) -> None:
    """Print *text*. All output of the command goes through this function.

    Names and texts of files may hold anything, so control characters are printed as escapes, except for line breaks
    and, with *colours*, escape sequences of colours. `printable` also escapes the line breaks of a text of a file.
    """
    escaped_text = "\n".join(
        "".join(
            fragment if colours and _COLOUR.fullmatch(fragment) else printable(fragment)
            for fragment in _COLOUR.split(line)
        )
        for line in text.split("\n")
    )
    print(escaped_text, file=sys.stderr if error else sys.stdout, flush=True)
