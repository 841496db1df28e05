"""``meshcomm shell`` without IPython, in its terminal: it reads lines for rank 0 and shows what this one prints."""

import contextlib
import json
import queue
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path

from meshcomm.core._types import Json
from meshcomm.tools.interactive.launch import LaunchedJob


class Messages:
    """Messages of JSON between the terminal and rank 0, as lists that begin with a kind.

    Parameters
    ----------
    connection: with the other end
    at_once: functions that a thread calls with messages of their kind; ``gone`` if the other end has gone
    """

    def __init__(self, connection: Connection, at_once: Mapping[str, Callable[..., object]]) -> None:
        self._connection, self._at_once, self._lock = connection, at_once, threading.Lock()
        self._received = queue.SimpleQueue[Json]()
        threading.Thread(target=self._read, daemon=True).start()

    def write(self, *message: Json) -> None:
        """Send a message."""
        with self._lock:
            self._connection.send_bytes(json.dumps(message).encode())

    def receive(self) -> Json:
        """Wait for a message that no function has got, and return it; ``["gone"]`` if the other end has gone."""
        return self._received.get()

    def _read(self) -> None:
        kind = ""
        while kind != "gone":
            try:
                kind, *arguments = json.loads(self._connection.recv_bytes())
            except (EOFError, OSError):
                kind, arguments = "gone", []
            if kind in self._at_once:
                self._at_once[kind](*arguments)
            if kind not in self._at_once or kind == "gone":
                self._received.put([kind, *arguments])


def prompt(command: Sequence[str], environment: dict[str, str], file: Path | None) -> int:
    """Run a prompt over ranks that *command* starts with the address of a socket; first, run a *file* on them."""
    with tempfile.TemporaryDirectory(prefix="meshcomm-") as folder, Listener(f"{folder}/prompt") as listener:
        launched = LaunchedJob([*command, f"{folder}/prompt"], environment)
        threading.Thread(target=_connect_at_end, args=(launched, listener.address), daemon=True).start()
        with listener.accept() as connection:
            rank_0 = Messages(connection, {})
            rank_0.write("file", *([] if file is None else [file.read_text(), str(file)]))
            with contextlib.suppress(ImportError):
                import readline

                readline.set_completer(partial(_completed, rank_0))
                readline.parse_and_bind("tab: complete")
            has_gone = _serve(rank_0)
        launched.end_gently()
        if has_gone and launched.process.returncode:
            sys.stderr.write("meshcomm: the ranks have ended\n")
            return launched.process.returncode
        return 0


def _connect_at_end(launched: LaunchedJob, address: str) -> None:
    """Let the prompt wait no longer for ranks that have ended before they came."""
    launched.process.wait()
    with contextlib.suppress(OSError):
        Client(address).close()


def _serve(rank_0: Messages) -> bool:
    """Do what rank 0 asks for, until Ctrl-D or until it has gone; return whether it has. Ctrl-C stops a cell."""
    while True:
        try:
            kind, *texts = rank_0.receive()
            if kind == "read":
                rank_0.write(*_line(*texts))
            elif kind in {"stdout", "stderr"}:
                stream = getattr(sys, kind)
                stream.write(*texts)
                stream.flush()
            else:
                return True
        except KeyboardInterrupt:
            rank_0.write("interrupt")
        except EOFError:
            sys.stdout.write("\n")
            return False


def _line(prompt: str) -> tuple[str, ...]:
    try:
        return "line", input(prompt)
    except KeyboardInterrupt:
        return ("break",)


def _completed(rank_0: Messages, text: str, state: int) -> str | None:
    rank_0.write("complete", text, state)
    return rank_0.receive()[1]
