"""``meshcomm shell`` where IPython is installed: its prompt in this terminal, over a kernel of ranks."""

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

from jupyter_console.app import ZMQTerminalIPythonApp

from meshcomm.tools.interactive.install import write_spec


def console(options: Sequence[str], file: Path | None) -> int:
    """Run a prompt over a kernel with these *options* of ``meshcomm kernel``; first, run a *file* in it."""
    with tempfile.TemporaryDirectory(prefix="meshcomm-") as folder:
        write_spec(Path(folder, "kernels", "meshcomm"), "meshcomm", options)
        os.environ["JUPYTER_PATH"] = os.pathsep.join(filter(None, (folder, os.environ.get("JUPYTER_PATH"))))
        app = ZMQTerminalIPythonApp.instance(kernel_name="meshcomm", confirm_exit=False)
        app.initialize([])
        if file is not None:
            app.shell.run_cell(f"%run -i {file}", store_history=False)
        app.start()
    return 0
