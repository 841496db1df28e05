"""Jobs whose ranks share memory: nothing is left behind."""

import os
import signal
import sys
import tempfile
from pathlib import Path

import pytest

from support.paths import PROGRAMS

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has this memory")

CASES = PROGRAMS / "shared_memory.py"


# -- jobs -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def job(launch):
    def run(ranks, name, **environment):
        before = set(Path("/dev/shm").iterdir())
        finished = launch(ranks, CASES, name, **environment)
        assert finished.left == [], f"processes of the job are left: {finished}"
        ours = [path for path in set(Path("/dev/shm").iterdir()) - before if "meshcomm" in path.name]
        assert ours == []
        return finished

    return run


@pytest.mark.parametrize(
    ("ranks", "case", "environment"),
    [
        (2, "progress", {"MPIR_CVAR_CH4_CMA_ENABLE": "0", "OMPI_MCA_smsc": "^cma,xpmem,knem"}),
        (3, "after_finalize", {}),
        (2, "little_address_space", {}),
    ],
)
def test_jobs_that_go_well(job, ranks, case, environment):
    finished = job(ranks, case, **environment)
    assert finished.code == 0, finished
    assert finished.text.count("as expected") == ranks, finished


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another user")
@pytest.mark.parametrize("named", [False, True])
def test_another_user_can_read_neither_blocks_nor_flight_files(job, named):
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)  # not that of pytest, which nobody else may enter
        finished = job(2, "another_user", TMPDIR=folder, MESHCOMM_FLIGHTS=folder if named else "")
    assert finished.code == 0, finished
    assert finished.text.count("as expected") == 2, finished


def test_a_rank_that_is_killed_leaves_nothing(job):
    assert job(3, "one_is_killed").code != 0


def test_a_rank_that_is_interrupted_ends_the_job(job):
    finished = job(2, "one_is_interrupted")
    assert finished.code != 0
    assert "KeyboardInterrupt" in finished.text
    assert signal.Signals.SIGSEGV.name not in finished.text
