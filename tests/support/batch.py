"""Batch scripts: the output of the command, and the example on the page."""

import contextlib
import io
import re
import shlex
import sys
from unittest import mock

from meshcomm.tools.cli.main import main
from support.paths import DOCS

PAGE = DOCS / "cluster.md"
HOME = "/home/me/venv"  # the environment in which the page calls the command


def printed(*arguments, prefix=sys.prefix, modules=""):
    """Return the output of ``python -m meshcomm *arguments``, in the environment *prefix*, with *modules* loaded."""
    text = io.StringIO()
    environment = mock.patch.dict("os.environ", LOADEDMODULES=modules)
    with mock.patch.object(sys, "prefix", prefix), environment, contextlib.redirect_stdout(text):
        code = main([*map(str, arguments)])
    assert code == 0, arguments
    return text.getvalue()


def on_the_page():
    """Return the arguments of the command on the page that prints a script, and the script that the page shows."""
    pattern = r"^```text\nmeshcomm (.*) > job\.sh\n```\n(?:(?!^```).*\n)*?^```bash\n((?:.*\n)*?)^```$"
    ((command, script),) = re.findall(pattern, PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    return shlex.split(command), script
