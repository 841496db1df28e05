"""A bell: rank 0 wakes a rank of its host that waits for a cell, which need not look for messages of MPI all the time.

It is a Unix socket with a name that nobody can guess. Who rings it without need makes the rank look once more.
"""

import contextlib
import select
import socket
import sys
import time
from secrets import token_hex


class Bell:
    """The bell of this rank; one that cannot ring where there are no such sockets."""

    def __init__(self) -> None:
        self.name = ""
        self._rung = False
        if sys.platform == "linux":
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            self._socket.setblocking(False)
            self.name = f"meshcomm cells {token_hex(16)}"
            self._socket.bind(f"\0{self.name}")

    @property
    def works(self) -> bool:
        """Whether it has rung: rank 0 is on this host."""
        return self._rung

    def wait(self, seconds: float) -> bool:
        """Wait so long, or until the bell rings; return whether it does."""
        if not self.name:
            time.sleep(seconds)
        elif select.select([self._socket], [], [], seconds)[0]:
            with contextlib.suppress(BlockingIOError):
                while self._socket.recv_into(bytearray(1)):
                    self._rung = True
            return True
        return False


def ring(name: str) -> None:
    """Ring the bell of this *name*, if it is on this host."""
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as bell:
        bell.setblocking(False)
        bell.sendto(b"1", f"\0{name}")
