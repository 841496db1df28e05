"""Files in /dev/shm with the shared memory of MPI, which stay there when a job ends before MPI_Finalize.

They belong to the user who ran the job. A rank that ends its job removes the files that it has mapped: all ranks of
the host mapped them in MPI_Init, and need their names no more. Files of a killed job stay until `left_behind` finds
them.
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
    """Return the files of this user that no process has open, and the size of each in bytes."""
    sizes = {}
    with contextlib.suppress(OSError):
        for path in sorted(FOLDER.iterdir()):
            with contextlib.suppress(OSError):
                status = path.lstat()
                is_ours = stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid()
                if _NAME.fullmatch(path.name) and is_ours and _is_free(path):
                    sizes[path] = status.st_size
    return sizes


def _is_free(path: Path) -> bool:
    """Return whether no process, in any container, has the file open or mapped.

    Only then Linux gives a lease for writing. A process that opens the file meanwhile waits, and this one gets a
    signal that does nothing.
    """
    fd = opened(path, os.O_RDWR)
    try:
        fcntl.fcntl(fd, fcntl.F_SETSIG, signal.SIGURG)
        fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        return True
    except OSError:
        return False
    finally:
        os.close(fd)


def remove_mapped() -> None:
    """Remove the files that this process has mapped, as its job ends."""
    with contextlib.suppress(OSError):
        maps = Path("/proc/self/maps").read_text(errors="replace")
        for file_name in set(re.findall(rf" {FOLDER}/(\S+)$", maps, re.MULTILINE)):
            if _NAME.fullmatch(file_name):
                (FOLDER / file_name).unlink(missing_ok=True)
