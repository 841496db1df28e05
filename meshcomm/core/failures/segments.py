"""Files in /dev/shm that MPI shares memory by, and leaves behind when a job ends before MPI_Finalize.

They belong to the user who ran the job. A rank that ends its job removes those that it has mapped: all ranks of the
host mapped them in MPI_Init, and need their names no more. What a killed job leaves stays until `left_behind` finds
it.
"""

import contextlib
import fcntl
import os
import re
import signal
import stat
from pathlib import Path

from meshcomm.core._files import opened

FOLDER = Path("/dev/shm")
_NAME = re.compile(r"mpich_shm_[0-9a-f]+_[0-9]+|(vader|sm)_segment\..+")
"""Names that MPICH and Open MPI give them."""


def left_behind() -> dict[Path, int]:
    """Return the files of this user that no process has open, with their bytes."""
    sizes = {}
    with contextlib.suppress(OSError):
        for path in sorted(FOLDER.iterdir()):
            with contextlib.suppress(OSError):
                status = path.lstat()
                is_own = stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid()
                if _NAME.fullmatch(path.name) and is_own and _is_free(path):
                    sizes[path] = status.st_size
    return sizes


def _is_free(path: Path) -> bool:
    """Return whether no process has the file open or mapped, in other containers neither.

    Only then Linux gives a lease for writing. Who opens the file while we have it waits, and we hear of it by a signal
    that does nothing.
    """
    number = opened(path, os.O_RDWR)
    try:
        fcntl.fcntl(number, fcntl.F_SETSIG, signal.SIGURG)
        fcntl.fcntl(number, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        return True
    except OSError:
        return False
    finally:
        os.close(number)


def remove_mapped() -> None:
    """Remove the files that this process has mapped, as its job ends."""
    with contextlib.suppress(OSError):
        maps = Path("/proc/self/maps").read_text(errors="replace")
        for name in set(re.findall(rf" {FOLDER}/(\S+)$", maps, re.MULTILINE)):
            if _NAME.fullmatch(name):
                (FOLDER / name).unlink(missing_ok=True)
