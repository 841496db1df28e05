"""Messages between Python's prompt and rank 0: lines of JSON over a Unix socket in a folder of this user alone."""

import json
import socket
import threading
from pathlib import Path

from meshcomm.core._types import Json


class Lines:
    """One end of the socket."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection, self._file, self._lock = connection, connection.makefile("rb"), threading.Lock()

    @classmethod
    def connected(cls, address: Path) -> "Lines":
        """Return the end of rank 0, connected to the prompt at this *address*."""
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(str(address))
        return cls(connection)

    def write(self, message: Json) -> None:
        """Send a message."""
        with self._lock:
            self._connection.sendall(json.dumps(message).encode() + b"\n")

    def receive(self) -> Json:
        """Return the next message, or None if the other end has gone."""
        try:
            line = self._file.readline()
        except ConnectionError:
            line = b""
        return json.loads(line) if line else None
