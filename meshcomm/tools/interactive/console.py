"""``meshcomm shell`` where IPython is installed: its prompt in this terminal, over a kernel of ranks."""

from pathlib import Path

from jupyter_console.app import ZMQTerminalIPythonApp
from traitlets.config import Config

_COMPLETES_WITHIN = 5.0
"""Seconds for a completion: the first one takes more than a second on a busy machine."""


def console(name: str, file: Path | None) -> int:
    """Run a prompt over the kernel of this *name*; first, run a *file* in it."""
    config = Config({"ZMQCompleter": {"timeout": _COMPLETES_WITHIN}})
    app = ZMQTerminalIPythonApp.instance(config=config, kernel_name=name, confirm_exit=False)
    app.initialize([])
    if file is not None:
        app.shell.run_cell(f"%run -i {file}", store_history=False)
    app.start()
    return 0
