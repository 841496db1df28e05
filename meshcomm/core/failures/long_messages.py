"""Messages of MPI that are longer than a call expects, because ranks make different calls."""

import contextlib
import faulthandler
import os
import signal
import sys
import threading
from functools import cache
from traceback import format_exception
from types import ModuleType
from typing import TYPE_CHECKING

from meshcomm.core.failures.watch import watch
from meshcomm.errors import CollectiveMismatch

if TYPE_CHECKING:
    from mpi4py import MPI as MPI_

_ADVICE = "Run again with MESHCOMM_CHECK=1 to see which calls differ"


def mismatch(error: BaseException, rank: int) -> CollectiveMismatch | None:
    """Return the error to raise on *rank*, this one, instead of an *error* of MPI that means that calls differ.

    None for other errors. With Open MPI this ends the job if the error may be one for which `guard_memory` ends it.
    """
    MPI = sys.modules.get("mpi4py.MPI")
    if MPI is None or not isinstance(error, MPI.Exception):
        return None
    if error.Get_error_class() == MPI.ERR_OTHER and _handler(MPI) is not None:
        _end_job(
            MPI,
            f"in {watch.operation()} MPI has an error that it does not name ({error}). If ranks made different calls, "
            "it may have got a message that is longer than the memory for it",
            "".join(format_exception(error)),
        )
    if error.Get_error_class() not in (MPI.ERR_TRUNCATE, MPI.ERR_IN_STATUS):
        return None
    return CollectiveMismatch(
        f"rank {rank} made another collective call than others, now or before: MPI has a message for it that does not "
        f"fit its call. {_ADVICE}"
    )


def guard_memory(mpi: ModuleType, comm: "MPI_.Comm") -> None:
    """Let this rank end the job if MPI writes a message of *comm* beyond the buffer that it is for.

    Open MPI writes all of a message that is longer than its buffer, and reports the error only then: see decision 17.
    Other memory of this process may be wrong after that. MPICH writes only as much as fits.
    """
    handler = _handler(mpi)
    if handler is not None:
        comm.Set_errhandler(handler)


@cache
def _handler(mpi: ModuleType) -> "MPI_.Errhandler | None":
    if "Open MPI" not in mpi.Get_library_version():  # with MPICH a handler would hide errors, which mpi4py raises
        return None

    def error_handler(comm: "MPI_.Comm", code: int) -> None:
        if mpi.Get_error_class(code) == mpi.ERR_TRUNCATE:
            _end_job(
                mpi,
                "CollectiveMismatch: it made another collective call than others, now or before. In "
                f"{watch.operation()} it got a message that is longer than the memory for it",
            )

    _let_crashes_end()
    return mpi.Comm.Create_errhandler(error_handler)


def _let_crashes_end() -> None:
    """Let a crash end this process. Open MPI's report of it may wait for ever if memory is damaged: see decision 17.

    Settings of the program stay: a handler in Python, `faulthandler`, Open MPI's variable.
    """
    has_handlers = "OMPI_MCA_opal_signal" in os.environ or faulthandler.is_enabled()
    if has_handlers or threading.current_thread() is not threading.main_thread():
        return
    for signal_number in (signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGSEGV):
        if signal.getsignal(signal_number) is signal.SIG_DFL:  # as Python does not see the handlers of Open MPI
            signal.signal(signal_number, signal.SIG_DFL)


def _end_job(mpi: ModuleType, why: str, details: str = "") -> None:
    """End the job in as few steps as possible: this process may crash in any of them."""
    world = mpi.COMM_WORLD
    text = (
        f"meshcomm: rank {world.rank} of {world.size} ends the job: {why}. Open MPI writes the rest over other memory "
        f"of this process. {_ADVICE}\n{details}"
    )
    with contextlib.suppress(OSError):
        os.write(2, text.encode(errors="backslashreplace"))
    with contextlib.suppress(Exception):
        sys.stdout.flush()
    world.Abort(1)
    os._exit(1)
