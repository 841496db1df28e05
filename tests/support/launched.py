"""What a launcher tells a process by its environment, for tests in one process."""

import os
import sys

import pytest

_OF_LAUNCHERS = ("PMI", "OMPI_COMM", "SLURM", "MPI_LOCAL", "HYDI", "I_MPI", "FLUX", "JSM", "PALS", "PBS", "LSB")


@pytest.fixture
def environment(monkeypatch):
    """A function that sets variables of launchers and of meshcomm, and those only."""
    for name in [name for name in os.environ if name.startswith((*_OF_LAUNCHERS, "MESHCOMM"))]:
        monkeypatch.delenv(name)
    return lambda variables: [monkeypatch.setenv(*variable) for variable in variables.items()]


@pytest.fixture
def launched_as(environment, monkeypatch):
    """A function that lets this process be a *rank* of *size* that a launcher has launched, before MPI starts."""
    monkeypatch.delitem(sys.modules, "mpi4py.MPI", raising=False)
    return lambda rank, size: environment({"OMPI_COMM_WORLD_RANK": str(rank), "OMPI_COMM_WORLD_SIZE": str(size)})


@pytest.fixture
def every_call_is_checked(monkeypatch):
    """Let ranks agree on every call, as in a program that begins with this variable."""
    from meshcomm.core.ranks.agreement import checks_every_call  # here, as this is read before pytest is configured

    monkeypatch.setenv("MESHCOMM_CHECK", "1")
    checks_every_call.cache_clear()
    yield
    checks_every_call.cache_clear()


@pytest.fixture
def job(monkeypatch, tmp_path):
    """Host signals of a job of its own."""
    monkeypatch.setenv("PMIX_NAMESPACE", str(tmp_path))
