"""The terminal of ``meshcomm shell``: launchers give ranks none, so rank 0 gets its file descriptors by a socket."""

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
    """Run the ranks that *command* starts, let rank 0 use this terminal, and return the exit code.

    Parameters
    ----------
    command: command to which the address of a socket is appended
    environment: environment variables of the command
    file: a program that runs first
    """
    with tempfile.TemporaryDirectory(prefix="meshcomm-") as folder, socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"{folder}/terminal")
        listener.listen()
        job = LaunchedJob([*command, f"{folder}/terminal"], environment)
        threading.Thread(target=_close_at_end, args=(job, listener), daemon=True).start()
        with contextlib.suppress(OSError), _restored_terminal(), listener.accept()[0] as connection:
            socket.send_fds(connection, [f"{file or ''}\n".encode()], [0, 1, 2])
            signal.signal(signal.SIGINT, lambda number, frame: connection.sendall(b"\3"))
            job.wait()
        return job.wait()


def _close_at_end(job: LaunchedJob, listener: socket.socket) -> None:
    """Stop waiting for rank 0 if the job ends before rank 0 has connected."""
    job.process.wait()
    with contextlib.suppress(OSError):
        listener.shutdown(socket.SHUT_RDWR)


@contextlib.contextmanager
def _restored_terminal() -> Iterator[None]:
    """Return a context that restores the settings of the terminal, also if rank 0 was killed while it read a line."""
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
    message, descriptors, _, _ = socket.recv_fds(terminal, 1 << 16, 3)
    for standard_descriptor, descriptor in enumerate(descriptors):
        os.dup2(descriptor, standard_descriptor)
    streams: list[Value] = [sys.stdout, sys.stderr]
    for stream in streams:
        stream.reconfigure(line_buffering=True)
    threading.Thread(target=_pass_interrupts, args=(job, terminal), daemon=True).start()
    return message.decode().rstrip("\n")


def _pass_interrupts(job: Job, terminal: socket.socket) -> None:
    """Stop the cell that runs, or the line that is typed, at each Ctrl-C that `lend_terminal` passes on."""
    while terminal.recv_into(bytearray(1)):
        if not job.interrupt():
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
