"""The terminal of ``meshcomm shell``: a launcher gives ranks none, so rank 0 gets the files of it by a socket."""

import contextlib
import os
import signal
import socket
import sys
import tempfile
import termios
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

from meshcomm.core._tracing import Value
from meshcomm.tools.interactive.cells import Job
from meshcomm.tools.interactive.launch import LaunchedJob


def lend_terminal(command: Sequence[str], environment: dict[str, str], file: Path | None) -> int:
    """Run the ranks that *command* starts with the address of a socket, and let rank 0 use this terminal.

    Return the exit code. *file* is a program that runs first.
    """
    with tempfile.TemporaryDirectory(prefix="meshcomm-") as folder, socket.socket(socket.AF_UNIX) as listening:
        listening.bind(f"{folder}/terminal")
        listening.listen()
        launched = LaunchedJob([*command, f"{folder}/terminal"], environment)
        threading.Thread(target=_close_at_end, args=(launched, listening), daemon=True).start()
        with contextlib.suppress(OSError), _restored_terminal(), listening.accept()[0] as rank_0:
            socket.send_fds(rank_0, [f"{file or ''}\n".encode()], [0, 1, 2])
            signal.signal(signal.SIGINT, lambda number, frame: rank_0.sendall(b"\3"))
            launched.wait()
        return launched.wait()


def _close_at_end(launched: LaunchedJob, listening: socket.socket) -> None:
    """Wait no longer for rank 0 if the job has ended before it came."""
    launched.process.wait()
    with contextlib.suppress(OSError):
        listening.shutdown(socket.SHUT_RDWR)


@contextlib.contextmanager
def _restored_terminal() -> Iterator[None]:
    """Return a context after which the terminal is as before, also if rank 0 was killed while it read a line."""
    settings = termios.tcgetattr(0) if os.isatty(0) else None
    try:
        yield
    finally:
        if settings is not None:
            termios.tcsetattr(0, termios.TCSADRAIN, settings)


def take_terminal(job: Job, address: Path) -> str:
    """Let rank 0 use the terminal that is lent at this *address*; return the path of the file that runs first."""
    terminal = socket.socket(socket.AF_UNIX)
    terminal.connect(str(address))
    message, files, _, _ = socket.recv_fds(terminal, 1 << 16, 3)
    for number, file in enumerate(files):
        os.dup2(file, number)
    streams: list[Value] = [sys.stdout, sys.stderr]
    for stream in streams:
        stream.reconfigure(line_buffering=True)
    threading.Thread(target=_pass_interrupts, args=(job, terminal), daemon=True).start()
    return message.decode().rstrip("\n")


def _pass_interrupts(job: Job, terminal: socket.socket) -> None:
    """Let Ctrl-C, which the terminal sends to its own process, stop the cell that runs, or the line that is typed."""
    while terminal.recv_into(bytearray(1)):
        if not job.interrupt():
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
