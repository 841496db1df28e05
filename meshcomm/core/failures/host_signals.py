"""Host signals: messages between ranks on one host without MPI, in any state of MPI.

A host signal is a socket with a name of its own in Linux's abstract namespace. It needs no file, and vanishes with its
process. A look for one never waits. There are signals for five things:

- that a rank has ended its program (`show_end`). Before ranks have communicated there is no other way: MPI could only
  tell if all ranks took part.
- that a rank answers questions about what it does (`Questions`, `answer_channel`)
- that a rank has an error to report (`show_pending_error`, `note_reported`). A rank that ends the job shows this, too
  (`show_ending`, `is_ending`), and waits until such errors are reported (`wait_for_reports`).
- that a rank prints an error which other ranks also have (`SharedError`). Only one of them prints it.
- that a rank need not wait any longer (`Bell`, `ring`)

Systems without such sockets have no signals. Ranks on other hosts see none.
"""

import contextlib
import os
import select
import socket
import struct
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from hashlib import blake2b
from traceback import format_exception
from typing import TypeVar

from meshcomm.core._tuning import POLL_TO
from meshcomm.core.failures.launchers import job_name

_BACKLOG = 4096
"""Connections that a signal keeps until they are accepted; a host has fewer ranks."""

_LISTENS_WITHIN = 0.5
"""Seconds from taking a name to listening, at most, also on a busy machine."""

_CREDENTIALS = struct.Struct("3i")
"""Process, user and group at the other end of a socket, as Linux has them."""

_MAX_MESSAGE_LENGTH = 2**16
"""Bytes. An answer has some hundreds."""

_RANK_FORMAT = struct.Struct("<q")

_SHARED_ATTRIBUTE = "_shared_by_ranks"

E = TypeVar("E", bound=BaseException)


def show_end(rank: int, code: int) -> None:
    """Show to this host, until this process is gone, that *rank* of COMM_WORLD has ended its program, with *code*."""
    for name in (f"ended with {code}", f"ended {rank}"):
        signal = _new_signal(name)
        if signal is not None:
            signal.detach()  # Python would close its sockets long before MPI lets this process end


def code_of_end() -> int:
    """Return the nonzero exit code of a rank on this host that has ended its program; 0 if there is none."""
    return next((code for code in range(1, 256) if _is_shown(f"ended with {code}")), 0)


def ended_ranks(ranks: Iterable[int]) -> list[int]:
    """Return the *ranks* on this host that have ended their program."""
    return [rank for rank in ranks if _is_shown(f"ended {rank}")]


class Questions:
    """Questions of other ranks on this host to *rank*, this one in COMM_WORLD."""

    def __init__(self, rank: int) -> None:
        self._signal = _new_signal(f"answers {rank}")
        self._pending: list[socket.socket] = []

    def answer(self, reply: Callable[[bytes], bytes]) -> None:
        """Answer each question that has arrived by the result of *reply*. Does not wait."""
        connections, self._pending = self._pending + list(_accepted_sockets(self._signal)), []
        for connection in connections:
            try:
                question = receive_message(connection)
                if question:
                    connection.sendall(reply(question))
            except BlockingIOError:  # the question is on its way
                self._pending.append(connection)
                continue
            except (OSError, ValueError):  # the asker has gone, or this was no question
                pass
            connection.close()


def answer_channel(rank: int, question: bytes) -> socket.socket | None:
    """Return a socket from which to receive the answer of *rank* to a *question*; None if that rank hears none."""
    connection = _connection_to(f"answers {rank}")
    if connection is not None:
        with contextlib.suppress(OSError):  # the rank has gone meanwhile: there will be no answer
            connection.sendall(question)
    return connection


def receive_message(connection: socket.socket) -> bytes:
    """Return the message that has arrived on *connection*; ``OSError`` if none has."""
    message = bytearray(_MAX_MESSAGE_LENGTH)
    return bytes(message[: connection.recv_into(message)])


_error_signal_fds: list[int] = []
"""The file of the signal that this rank has an error to report; empty without a signal."""


def show_pending_error(rank: int) -> None:
    """Show until `note_reported` that *rank*, this one in COMM_WORLD, has an error to report."""
    signal = _new_signal(f"tells {rank}") if not _error_signal_fds else None
    if signal is not None:
        _error_signal_fds.append(signal.detach())


def note_reported() -> None:
    """Show that this rank has no error to report any more: it has reported it, or goes on."""
    while _error_signal_fds:
        os.close(_error_signal_fds.pop())


def show_ending() -> None:
    """Show that a rank of this host ends the job: ranks with an error to report must report it now."""
    signal = _new_signal("ends the job")
    if signal is not None:
        signal.detach()  # until this process is gone


def is_ending() -> bool:
    """Return whether a rank of this host ends the job."""
    return _is_shown("ends the job")


def wait_for_reports(ranks: Iterable[int], deadline: float, is_over: Callable[[], bool] = lambda: False) -> None:
    """Wait until all *ranks* with an error to report have reported it or are gone, or *is_over* returns true.

    At most until the time *deadline*.
    """
    for connection in [_connection_to(f"tells {rank}") for rank in ranks]:
        if connection is not None:
            with connection:
                _wait_for_end(connection, deadline, is_over)


def _wait_for_end(connection: socket.socket, deadline: float, is_over: Callable[[], bool]) -> None:
    """Wait until the signal of *connection* ends, or *is_over* returns true; at most until the time *deadline*."""
    connection.settimeout(POLL_TO)
    with contextlib.suppress(ConnectionError):
        while time.monotonic() < deadline and not is_over():
            with contextlib.suppress(TimeoutError):
                connection.recv_into(bytearray(1))
                break


def note_shared(error: E, text: str, *, seen: bool) -> E:
    """Note that all ranks raise *error*, and return it. *text* is its text on the ranks that have *seen* it first."""
    error.__dict__[_SHARED_ATTRIBUTE] = text, seen
    return error


def is_shared(error: BaseException) -> bool:
    """Return whether all ranks of a rank set raise *error*."""
    return _SHARED_ATTRIBUTE in vars(error)


def shared_text(error: BaseException) -> tuple[str, bool]:
    """Return a text that is the same on ranks with the same error, and whether this rank knows its origin.

    The text is the traceback; of an error that ranks have agreed on it is the message only.
    """
    text_parts: list[str] = []
    link: BaseException | None = error
    while link is not None:
        if _SHARED_ATTRIBUTE in vars(link):
            text, seen = vars(link)[_SHARED_ATTRIBUTE]
            return "".join([text, *text_parts]), seen
        text_parts += format_exception(type(link), link, link.__traceback__, None, False)  # without those it came from
        link = link.__cause__ or (None if link.__suppress_context__ else link.__context__)
    return "".join(text_parts), True


class SharedError:
    """An error that several ranks may have at the same time.

    The first of them on this host prints it (its `ours` is true), and shows when it has printed it.

    Parameters
    ----------
    text: text of the error, the same on all ranks that have it
    rank: this rank, in COMM_WORLD
    tellers: ranks with an error to report: this rank waits for them first
    deadline: time at which that wait ends
    """

    def __init__(self, text: str, rank: int, tellers: Iterable[int] = (), deadline: float = 0.0) -> None:
        self._text, self._rank = text, rank
        self._printed: socket.socket | None = None
        self._ranks = {rank}
        wait_for_reports(tellers, deadline, lambda: _is_shown(f"prints {text}"))
        self._signal, self._first = _shown_or_connected(f"prints {text}")
        self.ours = self._first is None
        if self._first is not None:
            with contextlib.suppress(OSError):
                self._first.sendall(_RANK_FORMAT.pack(rank))

    def note_printed(self) -> None:
        """Show that this rank has printed the error."""
        self._printed = self._printed or _new_signal(f"has printed {self._text}")

    def settled(self, seconds: float) -> "SharedError":
        """Wait until another rank has printed the error and return it, or return one that this rank has to print.

        The rank that prints it has *seconds* for that: it may die meanwhile, or not run on a busy machine. Then the
        first of the ranks that have waited in vain prints it.
        """
        if self._first is None:
            return self
        _wait_for_end(self._first, time.monotonic() + seconds, self._is_printed)
        if self._is_printed():
            return self
        self._first.close()
        return SharedError(f"{self._text} again", self._rank).settled(seconds)

    def _is_printed(self) -> bool:
        return _is_shown(f"has printed {self._text}")

    def ranks(self) -> list[int]:
        """Return this rank, which prints the error, and the ranks that have shown it the same error."""
        for connection in _accepted_sockets(self._signal):
            with connection, contextlib.suppress(OSError, struct.error):  # no message from a rank that only looked
                self._ranks.update(_RANK_FORMAT.unpack(receive_message(connection)))
        return sorted(self._ranks)


class Bell:
    """A bell of *rank*, this one in COMM_WORLD, which any rank on this host can `ring`."""

    def __init__(self, rank: int) -> None:
        self._signal = _new_signal(f"wakes {rank}")
        self.has_rung = False

    def wait(self, seconds: float) -> bool:
        """Wait for *seconds*, or until the bell rings; return whether it rang."""
        if self._signal is None:
            time.sleep(seconds)
            return False
        select.select([self._signal], [], [], seconds)
        connections = list(_accepted_sockets(self._signal))
        for connection in connections:
            connection.close()
        self.has_rung = self.has_rung or bool(connections)
        return bool(connections)


def ring(rank: int) -> None:
    """Ring the bell of *rank*, if it is on this host."""
    _is_shown(f"wakes {rank}")


def _address(name: str) -> str:
    text = f"{job_name()} {name}"
    return f"\0meshcomm {blake2b(text.encode(errors='backslashreplace'), digest_size=16).hexdigest()}"


def _new_signal(name: str) -> socket.socket | None:
    """Return a new signal; None if there is one of that name already, or the system has no signals."""
    return _new_socket(name, shows=True)


def _accepted_sockets(signal: socket.socket | None) -> Iterator[socket.socket]:
    """Yield the connections to *signal* that processes of this user have made. Does not wait."""
    with contextlib.suppress(OSError):  # there are no more
        while signal is not None:
            connection, _ = signal.accept()
            connection.setblocking(False)
            if _is_ours(connection):
                yield connection
            else:
                connection.close()


def _shown_or_connected(name: str) -> tuple[socket.socket | None, socket.socket | None]:
    """Return a new signal, or a connection to an existing one; neither if the system has no signals."""
    deadline = time.monotonic() + _LISTENS_WITHIN
    while True:
        signal = _new_signal(name)
        connection = _connection_to(name) if signal is None else None
        if signal or connection or sys.platform != "linux" or time.monotonic() > deadline:
            return signal, connection
        time.sleep(POLL_TO)


def _connection_to(name: str) -> socket.socket | None:
    """Return a connection to the signal of that name that a process of this user shows, or None."""
    return _new_socket(name, shows=False)


def _new_socket(name: str, *, shows: bool) -> socket.socket | None:
    """Return a new socket that never waits: one that *shows* a signal, or is connected to one; None if that fails.

    Only Linux has such sockets: on other systems the name would be a file.
    """
    if sys.platform != "linux":
        return None
    with contextlib.suppress(OSError):  # this process may open no more files
        new_socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            new_socket.setblocking(False)
            if shows:
                new_socket.bind(_address(name))
                new_socket.listen(_BACKLOG)
                return new_socket
            new_socket.connect(_address(name))
            if _is_ours(new_socket):
                return new_socket
            new_socket.close()
        except OSError:
            new_socket.close()
    return None


def _is_ours(connection: socket.socket) -> bool:
    """Return whether the process at the other end belongs to this user: anyone may use any name."""
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return bool(_CREDENTIALS.unpack(credentials)[1] == os.getuid())


def _is_shown(name: str) -> bool:
    signal = _connection_to(name)
    if signal is not None:
        signal.close()
    return signal is not None
