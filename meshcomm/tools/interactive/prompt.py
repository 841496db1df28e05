"""``meshcomm shell`` without IPython: Python's own prompt in this terminal, whose lines run on the ranks of a job."""

import code
import contextlib
import socket
import sys
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path

from meshcomm.tools.interactive.launch import Launched
from meshcomm.tools.interactive.lines import Lines

_BEGIN_WITHIN = 60.0
"""Seconds in which the ranks have to start."""


def prompt(command: Sequence[str], environment: dict[str, str], file: Path | None) -> int:
    """Run a prompt over ranks that *command* starts with the address of a socket; first, run a *file* on them."""
    with tempfile.TemporaryDirectory(prefix="meshcomm-") as folder, socket.socket(socket.AF_UNIX) as listening:
        listening.bind(f"{folder}/prompt")
        listening.listen(1)
        listening.settimeout(_BEGIN_WITHIN)
        launched = Launched([*command, f"{folder}/prompt"], environment)
        threading.Thread(target=_close_at_end, args=(launched, listening), daemon=True).start()
        try:
            connection, _ = listening.accept()
        except OSError:
            return launched.process.poll() or 1
        connection.settimeout(None)
        console = Prompt(Lines(connection))
        with contextlib.suppress(EOFError):
            if file is not None:
                console.run({"text": file.read_text(), "file": str(file), "mode": "exec"})
            console.interact(f"Python {sys.version.split()[0]} on ranks of meshcomm", "")
        connection.shutdown(socket.SHUT_RDWR)
        launched.end_gently()
        return 0


def _close_at_end(launched: Launched, listening: socket.socket) -> None:
    launched.process.wait()
    with contextlib.suppress(OSError):
        listening.shutdown(socket.SHUT_RDWR)


class Prompt(code.InteractiveConsole):
    """Python's prompt; what is complete runs on the ranks."""

    def __init__(self, ranks: Lines) -> None:
        super().__init__()
        self._ranks = ranks
        with contextlib.suppress(ImportError):
            import readline

            readline.set_completer(self._complete)
            readline.parse_and_bind("tab: complete")

    def runsource(self, source: str, filename: str = "<input>", symbol: str = "single") -> bool:
        """Run *source* on all ranks, and return whether more lines are needed. Errors of syntax are shown here."""
        try:
            if self.compile(source, filename, symbol) is None:
                return True
        except (OverflowError, SyntaxError, ValueError):
            self.showsyntaxerror(filename)
            return False
        if source.strip() in ("exit()", "quit()"):
            raise EOFError
        self.run({"text": source, "file": filename, "mode": symbol})
        return False

    def run(self, cell: dict[str, str]) -> None:
        """Run a *cell* on all ranks, and show what they print. Ctrl-C stops it."""
        self._ranks.write(["run", cell])
        while True:
            try:
                message = self._ranks.receive()
            except KeyboardInterrupt:
                self._ranks.write(["interrupt"])
                continue
            if message is None:
                sys.stderr.write("meshcomm: the ranks have ended\n")
                raise EOFError
            if message[0] == "done":
                return
            self._show(*message)

    def _show(self, kind: str, text: str) -> None:
        if kind == "input":
            self._ranks.write(["answer", input(text)])
        else:
            stream = sys.stderr if kind == "stderr" else sys.stdout
            stream.write(text)
            stream.flush()

    def _complete(self, text: str, state: int) -> str | None:
        self._ranks.write(["complete", text, state])
        message = self._ranks.receive()
        return None if message is None else message[1]
