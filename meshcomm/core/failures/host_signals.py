"""Host signals: what ranks on one host can tell each other without MPI, in any state of it.

A host signal is a socket with a name of its own in Linux's abstract namespace. It needs no file, and vanishes with its
process. To look for one never waits. Five things are shown so:

- that a rank has ended its program (`show_end`). Before ranks have communicated there is no other way: MPI could only
  tell if all ranks took part.
- what a rank does, if another one asks (`Questions`, `answer_channel`)
- that a rank has an error to report (`show_words`, `note_reported`). A rank that ends the job says so (`show_ending`,
  `is_ending`), and waits for it (`let_tell`).
- that a rank prints an error already, which other ranks have, too (`Error`). One of them prints it.
- that a rank need not wait any longer (`Bell`, `ring`)

Where there are no such sockets, there are no signals. Ranks on other hosts see none.
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

_MAX_WAITING = 4096
"""Connections that a signal holds; a host has fewer ranks."""

_LISTENS_WITHIN = 0.5
"""Seconds in which a process that has taken a name listens, also where a busy machine does not let it run at once."""

_CREDENTIALS = struct.Struct("3i")
"""Process, user and group, as Linux tells them."""

_MAX_MESSAGE_LENGTH = 2**16
"""Bytes. An answer has some hundred."""

_ONE = struct.Struct("<q")

_SHARED = "_shared_by_ranks"

E = TypeVar("E", bound=BaseException)


def show_end(rank: int, code: int) -> None:
    """Show to this host, until this process is gone, that *rank* of COMM_WORLD has ended its program, with *code*."""
    for name in (f"ended with {code}", f"ended {rank}"):
        signal = _new_signal(name)
        if signal is not None:
            signal.detach()  # Python closes what it still knows long before MPI lets this process go


def code_of_end() -> int:
    """Return with which code but 0 a rank on this host has ended its program; 0 if none has."""
    return next((code for code in range(1, 256) if _is_shown(f"ended with {code}")), 0)


def ended_ranks(ranks: Iterable[int]) -> list[int]:
    """Return those of *ranks* that have ended their program, as far as this host shows."""
    return [rank for rank in ranks if _is_shown(f"ended {rank}")]


class Questions:
    """Questions to *rank*, this one in COMM_WORLD, of others on this host."""

    def __init__(self, rank: int) -> None:
        self._signal = _new_signal(f"answers {rank}")
        self._asking: list[socket.socket] = []

    def answer(self, reply: Callable[[bytes], bytes]) -> None:
        """Send to each that has asked what *reply* makes of its question. Does not wait."""
        connections, self._asking = self._asking + list(_accepted_sockets(self._signal)), []
        for other in connections:
            try:
                question = receive_message(other)
                if question:
                    other.sendall(reply(question))
            except BlockingIOError:  # its question is on its way
                self._asking.append(other)
                continue
            except (OSError, ValueError):  # it has gone, or this was no question
                pass
            other.close()


def answer_channel(rank: int, question: bytes) -> socket.socket | None:
    """Return from where to receive the answer of *rank* to a *question*, in one message; None if it hears none."""
    other = _connection_to(f"answers {rank}")
    if other is not None:
        with contextlib.suppress(OSError):  # it has gone meanwhile: there will be no answer
            other.sendall(question)
    return other


def receive_message(other: socket.socket) -> bytes:
    """Return the message that has come from *other*; ``OSError`` if none has."""
    message = bytearray(_MAX_MESSAGE_LENGTH)
    return bytes(message[: other.recv_into(message)])


_words: list[int] = []
"""The signal that this rank has an error to tell: a file, or none."""


def show_words(rank: int) -> None:
    """Show until `note_reported` that *rank*, this one in COMM_WORLD, has an error to report."""
    signal = _new_signal(f"tells {rank}") if not _words else None
    if signal is not None:
        _words.append(signal.detach())


def note_reported() -> None:
    """Show that this rank has no error to report: it has reported it, or goes on."""
    while _words:
        os.close(_words.pop())


def show_ending() -> None:
    """Show that a rank of this host ends the job: those that still have an error to tell have to tell it now."""
    signal = _new_signal("ends the job")
    if signal is not None:
        signal.detach()  # until this process is gone


def is_ending() -> bool:
    """Return whether a rank of this host ends the job."""
    return _is_shown("ends the job")


def let_tell(ranks: Iterable[int], end: float, over: Callable[[], bool] = lambda: False) -> None:
    """Wait until those of *ranks* with an error to report have reported it or are gone, or *over* returns true.

    At most until the time *end*.
    """
    for signal in [_connection_to(f"tells {rank}") for rank in ranks]:
        if signal is not None:
            with signal:
                _wait_for_end(signal, end, over)


def _wait_for_end(signal: socket.socket, end: float, over: Callable[[], bool]) -> None:
    """Wait until a *signal* to which this is a connection vanishes, or *over* returns true; at most until *end*."""
    signal.settimeout(POLL_TO)
    with contextlib.suppress(ConnectionError):
        while time.monotonic() < end and not over():
            with contextlib.suppress(TimeoutError):
                signal.recv_into(bytearray(1))
                break


def note_shared(error: E, text: str, *, seen: bool) -> E:
    """Note that all ranks raise *error*, which says *text* on those that have *seen* it, and return it."""
    error.__dict__[_SHARED] = text, seen
    return error


def is_shared(error: BaseException) -> bool:
    """Return whether all ranks of a rank set raise *error*."""
    return _SHARED in vars(error)


def shared_text(error: BaseException) -> tuple[str, bool]:
    """Return a text that is the same on ranks with the same error, and whether this rank knows where it comes from.

    That is the traceback, but of an error that ranks have agreed on only what it says.
    """
    texts: list[str] = []
    now: BaseException | None = error
    while now is not None:
        if _SHARED in vars(now):
            text, seen = vars(now)[_SHARED]
            return "".join([text, *texts]), seen
        texts += format_exception(type(now), now, now.__traceback__, None, False)  # of this one alone
        now = now.__cause__ or (None if now.__suppress_context__ else now.__context__)
    return "".join(texts), True


class Error:
    """An error that several ranks may have at the same time.

    The first of them on this host prints it (`ours` is true), and shows when it has.

    Parameters
    ----------
    text: text of the error, the same on ranks that have the same one
    rank: this rank, in COMM_WORLD
    tellers, end: ranks that may be the first until the time *end*, while they have an error to tell
    """

    def __init__(self, text: str, rank: int, tellers: Iterable[int] = (), end: float = 0.0) -> None:
        self._text, self._rank = text, rank
        self._printed: socket.socket | None = None
        self._ranks = {rank}
        let_tell(tellers, end, lambda: _is_shown(f"prints {text}"))
        self._signal, self._first = _shown_or_connected(f"prints {text}")
        self.ours = self._first is None
        if self._first is not None:
            with contextlib.suppress(OSError):
                self._first.sendall(_ONE.pack(rank))

    def note_printed(self) -> None:
        """Show that this rank has printed the error."""
        self._printed = self._printed or _new_signal(f"has printed {self._text}")

    def settled(self, seconds: float) -> "Error":
        """Return the error when another rank has printed it, or as one that is ours to print.

        A rank that prints it has *seconds* for that: it may die meanwhile, or a busy machine may not let it run. Then
        the first of those that have waited in vain prints it.
        """
        if self._first is None:
            return self
        _wait_for_end(self._first, time.monotonic() + seconds, self._is_printed)
        if self._is_printed():
            return self
        self._first.close()
        return Error(f"{self._text} again", self._rank).settled(seconds)

    def _is_printed(self) -> bool:
        return _is_shown(f"has printed {self._text}")

    def ranks(self) -> list[int]:
        """Return this rank and those that have found by now that it prints their error."""
        for other in _accepted_sockets(self._signal):
            with other, contextlib.suppress(OSError, struct.error):  # one that has only looked sends nothing
                self._ranks.update(_ONE.unpack(receive_message(other)))
        return sorted(self._ranks)


class Bell:
    """A bell of *rank*, this one in COMM_WORLD, which any rank on this host can `ring`."""

    def __init__(self, rank: int) -> None:
        self._signal = _new_signal(f"wakes {rank}")
        self.has_rung = False

    def wait(self, seconds: float) -> bool:
        """Wait so long, or until the bell rings; return whether it does."""
        if self._signal is None:
            time.sleep(seconds)
            return False
        select.select([self._signal], [], [], seconds)
        rings = list(_accepted_sockets(self._signal))
        for other in rings:
            other.close()
        self.has_rung = self.has_rung or bool(rings)
        return bool(rings)


def ring(rank: int) -> None:
    """Ring the bell of *rank*, if it is on this host."""
    _is_shown(f"wakes {rank}")


def _address(name: str) -> str:
    text = f"{job_name()} {name}"
    return f"\0meshcomm {blake2b(text.encode(errors='backslashreplace'), digest_size=16).hexdigest()}"


def _new_signal(name: str) -> socket.socket | None:
    """Return a new signal, or None if there is one of that name already, or no signals here."""
    return _new_socket(name, shows=True)


def _accepted_sockets(signal: socket.socket | None) -> Iterator[socket.socket]:
    """Yield connections of processes of this user that have come to a *signal*. Does not wait."""
    with contextlib.suppress(OSError):  # there are no more
        while signal is not None:
            other, _ = signal.accept()
            other.setblocking(False)
            if _is_ours(other):
                yield other
            else:
                other.close()


def _shown_or_connected(name: str) -> tuple[socket.socket | None, socket.socket | None]:
    """Return a new signal, or a connection to the one that is there; neither if there are no signals here."""
    end = time.monotonic() + _LISTENS_WITHIN
    while True:
        signal = _new_signal(name)
        other = _connection_to(name) if signal is None else None
        if signal or other or sys.platform != "linux" or time.monotonic() > end:
            return signal, other
        time.sleep(POLL_TO)


def _connection_to(name: str) -> socket.socket | None:
    """Return a connection to the signal of that name that a process of this user shows, or None."""
    return _new_socket(name, shows=False)


def _new_socket(name: str, *, shows: bool) -> socket.socket | None:
    """Return a new socket that never waits, which *shows* a signal, or is connected to one; None if it cannot be.

    Elsewhere than on Linux there is none: a name like ours would be a file.
    """
    if sys.platform != "linux":
        return None
    with contextlib.suppress(OSError):  # this process may have as many files as it may
        new_socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            new_socket.setblocking(False)
            if shows:
                new_socket.bind(_address(name))
                new_socket.listen(_MAX_WAITING)
                return new_socket
            new_socket.connect(_address(name))
            if _is_ours(new_socket):
                return new_socket
            new_socket.close()
        except OSError:
            new_socket.close()
    return None


def _is_ours(other: socket.socket) -> bool:
    """Return whether the process at the other end belongs to this user: anyone may use any name."""
    credentials = other.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return bool(_CREDENTIALS.unpack(credentials)[1] == os.getuid())


def _is_shown(name: str) -> bool:
    signal = _connection_to(name)
    if signal is not None:
        signal.close()
    return signal is not None
