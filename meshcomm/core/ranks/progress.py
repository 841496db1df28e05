"""Progress of messages: a thread that calls MPI now and then while large messages are in flight.

Most MPIs move messages only while the program is in a call of MPI. So where a program computes between the start of an
exchange and the wait for it, nothing would move but what the system has taken.
"""

import threading
import time
from functools import cache

from meshcomm.core._tuning import ADVANCE_EVERY
from meshcomm.core.ranks.mpi import mpi

_lock = threading.Lock()
_in_flight = 0
_wanted = threading.Event()
_ended = False
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
    """Stop what `begin` began: the messages are complete, or this thread waits for them in MPI."""
    global _in_flight
    with _lock:
        _in_flight -= 1
        if not _in_flight:
            _wanted.clear()


def stop() -> None:
    """End the thread, before MPI ends: messages may be in flight that nobody waits for."""
    global _ended
    if _threads:
        _ended = True
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
    while _wanted.wait() and not _ended:
        probe()  # it takes no message, but moves all
        time.sleep(ADVANCE_EVERY)
