"""The end of a job, in one process. That jobs end is tested in tests/jobs."""

import os
import subprocess
import sys
import threading
import time

import pytest

from meshcomm.core.failures import abort


def test_last_words_are_read_before_a_job_ends(pipe):
    reading, writing = pipe
    os.write(writing, b"last words")
    read = []

    def launcher():
        time.sleep(0.2)  # as on a busy machine
        read.append(os.read(reading, 100))

    thread = threading.Thread(target=launcher)
    thread.start()
    abort._let_be_read(60.0, [writing])
    assert abort._unread_bytes(writing) == 0
    thread.join()
    assert read == [b"last words"]


def test_a_job_ends_where_nobody_reads(pipe):
    _, writing = pipe
    os.write(writing, b"last words")
    abort._let_be_read(0.01, [writing])
    assert abort._unread_bytes(writing) == len(b"last words")


def test_files_and_closed_ones_have_been_read(tmp_path):
    with open(tmp_path / "log", "wb") as log:
        log.write(b"words")
        log.flush()
        assert abort._unread_bytes(log.fileno()) == 0
        file = log.fileno()
    assert abort._unread_bytes(file) == 0


@pytest.mark.parametrize("says", [True, False])
def test_a_process_ends_though_it_is_stuck(says):
    """Also one that C code keeps from Python's own threads, as MPI does while it waits for ranks that never come."""
    stuck = "def stuck(): ctypes.PyDLL(None).sleep(10)"  # keeps the lock of the interpreter
    program = (
        f"import ctypes\nfrom meshcomm.core.failures import abort\n{stuck}\nabort._exit_after(0.05, {says})\nstuck()"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (ended.returncode, "in stuck" in ended.stderr) == (1, says)
