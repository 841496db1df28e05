"""How much memory ranks share, and with whom."""

import os
import resource
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import meshcomm as mc
from meshcomm.core.memory import pools
from meshcomm.core.ranks import rendezvous
from meshcomm.core.ranks.meshes import location_in
from support.in_process_ranks import PAGE
from support.paths import ROOT
from support.reference import simulated

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has this memory")

# -- how much, and for whom -------------------------------------------------------------------------------------------


@pytest.fixture
def fresh(monkeypatch):
    """Sharing as it is before the first rendezvous."""
    monkeypatch.setattr(pools, "shared", None)
    monkeypatch.setattr(rendezvous, "_why_not", None)
    monkeypatch.delenv("MESHCOMM_SHARED_MEMORY", raising=False)
    return monkeypatch


def test_before_the_first_rendezvous_nothing_is_shared(fresh):
    assert pools.allocate(100) is None
    assert pools.locate(np.zeros(3)) == -1


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("0", 0),
        ("500", 500),
        ("2G", 2**31),
        ("1.5 MiB", 3 * 2**19),
        ("7k", 7168),
        ("1TB", 2**40),
    ],
)
def test_sizes(fresh, text, size):
    fresh.setenv("MESHCOMM_SHARED_MEMORY", text)
    assert rendezvous.shared_limit() == size


@pytest.mark.parametrize("text", ["much", "-1", "2 X", "1e3", "G"])
def test_no_sizes(fresh, text):
    fresh.setenv("MESHCOMM_SHARED_MEMORY", text)
    assert (
        rendezvous.describe() == f"error: MESHCOMM_SHARED_MEMORY must be a size such as 500M or 2G, or 0, not {text!r}"
    )


def test_half_of_what_there_is_by_default(fresh, tmp_path):
    whole = os.sysconf("SC_PHYS_PAGES") * PAGE
    fresh.setattr(pools, "_cgroup_limits", lambda: [2**62])
    assert rendezvous.shared_limit() == whole // 2
    fresh.setattr(pools, "_cgroup_limits", lambda: [2**62, 2**30])
    assert rendezvous.shared_limit() == 2**29


def test_a_pool_leaves_addresses_to_the_program(fresh):
    """All of what is asked for without RLIMIT_AS, else a quarter of what is left."""
    taken = int(Path("/proc/self/statm").read_text().split()[0]) * PAGE
    for limit, expected in [(resource.RLIM_INFINITY, 2**40), (2**50, 2**40), (taken + 2**34, 2**32), (1, 1)]:
        fresh.setattr(resource, "getrlimit", lambda _, limit=limit: (limit, limit))
        assert abs(pools.reservable(2**40) - expected) < 2**26


def test_descriptions(fresh):
    fresh.setenv("MESHCOMM_SHARED_MEMORY", "3G")
    assert rendezvous.describe() == "up to 3.0 GiB for all ranks of this node"
    fresh.setenv("MESHCOMM_SHARED_MEMORY", "0")
    assert rendezvous.describe() == "off: MESHCOMM_SHARED_MEMORY=0"


def test_threads_of_one_process_do_not_share(fresh):
    def program(rank):
        location = location_in(mc.create_mesh())
        return rendezvous.open_rendezvous(location.rank_set.everyone.communicator(), (0, 1, 2))

    assert simulated(3, program) == [(None, None)] * 3
    assert rendezvous.describe() == "off: the ranks are threads of one process"


def test_other_systems_can_compile_it(tmp_path):
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("there is no compiler")
    headers = [ROOT / "meshcomm" / "core" / "memory" / name for name in ("_pool.h", "_rendezvous.h")]
    program = tmp_path / "other.c"
    program.write_text(
        "".join(f'#include "{header}"\n' for header in headers)
        + "int main(void) { char *base; return mc_map(0, 1, &base) != ENOSYS; }\n"
    )
    flags = ["-U__linux__", "-Wall", "-Werror", "-Wno-unused-function", "-Wno-unused-variable"]
    subprocess.run([compiler, *flags, program, "-o", tmp_path / "other"], check=True)
    subprocess.run([tmp_path / "other"], check=True)
