"""Signals that ask a program to save: how often each has arrived in this process.

A batch system sends them to some ranks or to all, at any time. So a handler only counts; ranks compare their counts at
a step that all of them reach. The simulated ranks of a process share its counts.
"""

import contextlib
import signal
import threading
from types import FrameType

from meshcomm.core._arguments import quote
from meshcomm.core.ranks.simulate import current_world

_counts: dict[int, int] = {}
"""How often each counted signal has arrived, by its number."""


def number_of(name: object) -> int:
    """Return the number of a signal that a handler can count, from its name or its number.

    ``ValueError`` for anything else.

    >>> number_of("SIGUSR1") == number_of("USR1") == number_of(signal.SIGUSR1) == signal.SIGUSR1
    True
    """
    with contextlib.suppress(ValueError, KeyError):
        if isinstance(name, str):
            number = signal.Signals["SIG" + name.removeprefix("SIG")]
        elif isinstance(name, int) and not isinstance(name, bool):
            number = signal.Signals(name)
        else:
            raise ValueError
        if number not in (signal.SIGKILL, signal.SIGSTOP):
            return int(number)
    raise ValueError(f'{quote(name)} is no signal that a program can handle; such a one is "SIGUSR1"')


def count(number: int) -> None:
    """Count a signal from now on. A handler that the program has set before is called, too.

    Python lets only the main thread set a handler. So another thread gets a ``ValueError`` if none is set yet; but
    for simulated ranks, which are threads, there is no error: the signal does what it did before.
    """
    if number in _counts:
        return
    if threading.current_thread() is not threading.main_thread():
        if current_world() is not None:
            return
        raise ValueError(f"{signal.Signals(number).name} is not handled yet, and only the main thread can begin to")
    previous_handler = signal.getsignal(number)
    _counts[number] = 0

    def handler(number: int, frame: FrameType | None) -> None:
        _counts[number] += 1
        if callable(previous_handler):
            previous_handler(number, frame)

    signal.signal(number, handler)
    signal.siginterrupt(number, False)  # calls of the system that MPI makes go on afterwards


def arrived(number: int) -> int:
    """Return how often a signal has arrived in this process since it is counted."""
    return _counts.get(number, 0)
