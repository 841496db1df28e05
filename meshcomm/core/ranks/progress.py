"""Progress of messages: a thread that calls MPI now and then while large messages are in flight.

Most MPIs move messages only while the program is in a call of MPI. If a program computes between the start of an
exchange and the wait for it, only bytes that are already in the buffers of the system would move.
"""

import threading
import time
from functools import cache

from meshcomm.core._tuning import ADVANCE_EVERY
from meshcomm.core.ranks.mpi import mpi

_lock = threading.Lock()
_in_flight = 0
_wanted = threading.Event()
_is_stopped = False
_threads: list[threading.Thread] = []


def begin() -> None:
    """Let messages advance until `end` is called."""
    global _in_flight
    with _lock:
        _in_flight += 1
        if _in_flight == 1:
            _start()
            _wanted.set()


def end() -> None:
    """Undo one call of `begin`: the messages are complete, or this thread waits for them in MPI."""
    global _in_flight
    with _lock:
        _in_flight -= 1
        if not _in_flight:
            _wanted.clear()


def stop() -> None:
    """End the thread, before MPI ends: there may be messages in flight that nobody waits for."""
    global _is_stopped
    if _threads:
        _is_stopped = True
        _wanted.set()
        _threads.pop().join(1.0)


@cache
def _start() -> None:
    MPI = mpi()
    if MPI.Query_thread() == MPI.THREAD_MULTIPLE:
        _threads.append(threading.Thread(target=_advance, name="meshcomm progress", daemon=True))
        _threads[0].start()


def _advance() -> None:
    probe = mpi().COMM_WORLD.Iprobe
    while _wanted.wait() and not _is_stopped:
        probe()  # takes no message, but lets all advance
        time.sleep(ADVANCE_EVERY)
