"""What the terminal of this process can show."""

import os
import shutil
import sys
from typing import NamedTuple


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
