"""What ranks hold stays the same, however many calls they make: communicators, descriptors, threads, memory.

Each is measured after half of the calls and at the end. `make test-all` makes few calls; `make resources` makes 20,000
assignments, 100,000 relayouts and 10,000 meshes.
"""

import json
import sys

import pytest

from meshcomm.core._tuning import GROUPS_PER_WORLD
from support.paths import PROGRAMS, TESTS
from support.patience import CPU

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="what a process holds is read from /proc")

COMMUNICATORS = GROUPS_PER_WORLD + 1  # of ours that may be open on a rank: those of groups, and the one of all ranks
KILOBYTES = 2048  # that the second half of the calls may add: parts of it are allocators, and MPI's own buffers
FEW = {"assignments": (4, 150), "relayouts": (2, 2_000), "meshes": (2, 200)}  # ranks, and calls
MANY = {"assignments": (8, 20_000), "relayouts": (2, 100_000), "meshes": (2, 10_000)}
MANY_CPU = 1800.0  # seconds of CPU time for many calls
BOUND = 16  # programs and communicators that are kept, where there are few calls


@pytest.mark.parametrize("memory", ["shared", "unshared"])
@pytest.mark.parametrize("name", MANY)
def test_what_ranks_hold_stays_the_same(launch, pytestconfig, capsys, name, memory):
    full = pytestconfig.getoption("exhaustive")
    ranks, calls = (MANY if full else FEW)[name]
    bound, cpu = ([], MANY_CPU) if full else ([BOUND], 4 * CPU)
    environment = {"PYTHONPATH": str(TESTS)} | ({"MESHCOMM_SHARED_MEMORY": "0"} if memory == "unshared" else {})
    job = launch(ranks, PROGRAMS / "resources.py", name, calls, *bound, cpu=cpu, **environment)
    assert job.code == 0, job
    found = [json.loads(line) for line in job.text.splitlines() if line.startswith("{")]
    if full:
        with capsys.disabled():
            print(f"\n{name}, {memory}:", *found, sep="\n")
    for rank in range(ranks):
        middle, end = (next(x for x in found if (x["rank"], x["at"]) == (rank, at)) for at in ("middle", "end"))
        assert end["communicators"] <= COMMUNICATORS, job
        for what in ("descriptors", "threads", "communicators"):
            assert end[what] == middle[what], f"{what} on rank {rank}: {job}"
        assert end["kilobytes"] <= middle["kilobytes"] + KILOBYTES, f"memory of rank {rank}: {job}"
