"""The process that Jupyter starts: it starts the job, ends it when Jupyter goes, and says why the job has ended."""

import ctypes
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from threading import Thread
from typing import IO

LOOK_EVERY = 0.1
"""Seconds between two checks whether the job and the process that started it still run."""
END_WITHIN = 2.0
"""Seconds in which a launcher has to end all ranks after SIGTERM, before it is killed."""
CONNECT_WITHIN = 2.0
"""Seconds in which Jupyter connects again to the port of a kernel that has gone. It tries about ten times a second."""
_LAST_LINES = 20
_PR_SET_PDEATHSIG = 1


class LaunchedJob:
    """A job of ranks, which ends when this process ends or is killed.

    Parameters
    ----------
    command: the command that starts the job
    environment: environment variables of the command
    """

    def __init__(self, command: Sequence[str], environment: dict[str, str]) -> None:
        self._parent_pid = os.getppid()
        self.process = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,  # some launchers say on one of them why a job has ended, some on the other
            start_new_session=True,  # Ctrl-C in a terminal is for the prompt, which tells the ranks
            preexec_fn=_end_with_parent,
        )
        self.last_lines = deque[str](maxlen=_LAST_LINES)
        """The last lines that the launcher has written, and that ranks have written without Python's streams."""
        self._reader = Thread(target=self._read, args=(self.process.stdout,), daemon=True)
        self._reader.start()
        signal.signal(signal.SIGTERM, lambda number, frame: self.end())

    def wait(self) -> int:
        """Wait for the end of the job, and return its exit code. End it if the process that started this one ends."""
        while self.process.poll() is None:
            if os.getppid() != self._parent_pid:
                self.end()
            time.sleep(LOOK_EVERY)
        self._reader.join(LOOK_EVERY)
        return self.process.returncode

    def end(self) -> None:
        """End the job now."""
        self.process.terminate()
        try:
            self.process.wait(END_WITHIN)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)

    def _read(self, stream: IO[bytes] | None) -> None:
        for line in stream or ():
            self.last_lines.append(line.decode(errors="replace"))
            sys.stderr.write(self.last_lines[-1])
            sys.stderr.flush()


def _end_with_parent() -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def keep_kernel(command: Sequence[str], environment: dict[str, str], connection: Path) -> int:
    """Run the ranks that *command* starts with a *connection* file, and return the exit code.

    If the job fails, show the reason in the notebook.
    """
    with tempfile.TemporaryDirectory(prefix="meshcomm-") as folder:  # only this user can read it
        cell_file = Path(folder, "cell.json")
        job = LaunchedJob([*command, str(connection), "--note", str(cell_file)], environment)
        code = job.wait()
        if code > 0 and cell_file.exists():
            text = f"meshcomm: the ranks have ended, with code {code}:\n{''.join(job.last_lines)}"
            _publish(connection, json.loads(cell_file.read_text()), text)
    return code


def _publish(connection: Path, parent: object, text: str) -> None:
    """Show *text* as output of the cell that the message *parent* asked for, in place of the kernel that has ended."""
    zmq, client_module = import_module("zmq"), import_module("jupyter_client.client")
    kernel = client_module.KernelClient(connection_file=str(connection))  # it knows the ports and the key
    kernel.load_connection_file()
    socket = kernel.context.socket(zmq.XPUB)
    socket.linger = int(1000 * CONNECT_WITHIN)
    separator = ":" if kernel.transport == "tcp" else "-"
    socket.bind(f"{kernel.transport}://{kernel.ip}{separator}{kernel.iopub_port}")
    if socket.poll(int(1000 * CONNECT_WITHIN)):  # one has subscribed; the others are about to
        time.sleep(2 * LOOK_EVERY)
        for kind, content in ("stream", {"name": "stderr", "text": text}), ("status", {"execution_state": "idle"}):
            socket.send_multipart(kernel.session.serialize(kernel.session.msg(kind, content, parent)))
        time.sleep(LOOK_EVERY)
    socket.close()
