"""What the terminal of this process can show, and what the command prints there."""

import os
import re
import shutil
import sys
from typing import NamedTuple

from meshcomm.errors import printable


class Terminal(NamedTuple):
    """How wide lines are, and whether there are Unicode's box characters, and colours."""

    width: int
    unicode: bool
    colour: bool


def terminal() -> Terminal:
    """Return what standard output can show: plain ASCII in 80 columns, if it is no terminal.

    Python makes ``LC_CTYPE`` C.UTF-8 where the locale is C, so this value alone does not count.
    """
    environ, encoding = os.environ, sys.stdout.encoding or ""
    capable = sys.stdout.isatty() and environ.get("TERM", "dumb") != "dumb"
    ctype = environ.get("LC_CTYPE", "")
    locale = environ.get("LC_ALL") or (ctype if ctype != "C.UTF-8" else "") or environ.get("LANG") or "C"
    unicode = all("utf" in name.lower() for name in (encoding, locale))
    width = shutil.get_terminal_size((80, 24)).columns
    return Terminal(width, capable and unicode, capable and not environ.get("NO_COLOR"))


_COLOUR = re.compile(r"(\x1b\[[0-9;]*m)")


def say(text: str = "", *, error: bool = False, colours: bool = False) -> None:
    """Print lines: all that the command says comes from here.

    Names and texts of files may hold anything: what steers a terminal is shown as its escape, but for line breaks, and
    colours if *text* has some of ours. `printable` keeps a text of a file in its line.
    """
    shown = "\n".join(
        "".join(part if colours and _COLOUR.fullmatch(part) else printable(part) for part in _COLOUR.split(line))
        for line in text.split("\n")
    )
    print(shown, file=sys.stderr if error else sys.stdout, flush=True)
