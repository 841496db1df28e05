"""Who launched a process, by made-up environments; the names of our environment variables."""

import os
import re
import shlex
import subprocess
import sys

import pytest

from meshcomm.core.failures import launchers
from meshcomm.core.failures.launchers import Launch, launch
from meshcomm.core.layouts.machine import CONSTANTS, DISK_CONSTANTS
from meshcomm.core.ranks import hosts, variables
from meshcomm.errors import MeshError
from support.paths import TESTS

BATCH = {"SLURM_JOB_ID": "7", "SLURM_NTASKS": "32", "SLURM_PROCID": "0", "SLURM_LOCALID": "0"}
STEP = {**BATCH, "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "4", "SLURM_PROCID": "1"}
HYDRA = {"HYDI_CONTROL_FD": "7", "MPI_LOCALNRANKS": "2", "PMI_FD": "9", "PMI_RANK": "1", "PMI_SIZE": "4"}
OPENMPI = {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "4", "PMIX_RANK": "1", "PMIX_NAMESPACE": "prte@1"}

ENVIRONMENTS = [
    ({}, None),
    (BATCH, None),  # a batch script: what it runs by itself is one process
    ({**STEP, "SLURM_STEP_ID": "4294967291"}, None),  # "batch"
    ({**STEP, "SLURM_STEP_ID": "4294967290"}, None),  # "interactive"
    ({**STEP, "SLURM_STEP_ID": "4294967281"}, None),  # Slurm numbers no step of srun so
    ({**STEP, "SLURM_STEP_ID": "4294967280"}, ("srun of Slurm", 1, 4, "", "job 7 of Slurm")),
    (STEP, ("srun of Slurm", 1, 4, "", "job 7 of Slurm")),
    ({**STEP, "PMI_FD": "9", "PMI_RANK": "1", "PMI_SIZE": "4"}, ("srun of Slurm", 1, 4, "PMI", "job 7 of Slurm")),
    ({**STEP, "PMIX_RANK": "1", "PMIX_NAMESPACE": "s"}, ("srun of Slurm", 1, 4, "PMIx", "job 7 of Slurm")),
    ({**STEP, "PMI_CONTROL_PORT": "2"}, ("srun of Slurm", 1, 4, "Cray PMI", "job 7 of Slurm")),
    # Hydra and Open MPI launch one process on each node with srun: what those start has its variables, too.
    ({**STEP, **HYDRA, "SLURM_STEP_NUM_TASKS": "2"}, ("mpiexec of MPICH (Hydra)", 1, 4, "PMI", "job 7 of Slurm")),
    ({**STEP, **OPENMPI, "SLURM_PROCID": "0"}, ("mpiexec of Open MPI", 1, 4, "PMIx", "job 7 of Slurm")),
    ({**HYDRA, "I_MPI_ROOT": "/opt"}, ("mpiexec of MPICH (Hydra)", 1, 4, "PMI", "")),  # as the module sets it
    ({**HYDRA, "I_MPI_HYDRA_TOPOLIB": "hwloc"}, ("mpiexec of Intel MPI (Hydra)", 1, 4, "PMI", "")),
    (OPENMPI, ("mpiexec of Open MPI", 1, 4, "PMIx", "")),
    (
        {"PALS_RANKID": "1", "PALS_LOCAL_SIZE": "2", "PMI_RANK": "1", "PMI_SIZE": "4", "PBS_JOBID": "3.pbs"},
        ("mpiexec of Cray PALS", 1, 4, "Cray PMI", "job 3.pbs of PBS"),
    ),
    (
        {"FLUX_TASK_RANK": "1", "FLUX_JOB_SIZE": "4", "FLUX_JOB_ID": "f1", "PMI_FD": "9", "PMI_RANK": "1"},
        ("Flux", 1, 4, "PMI", "job f1 of Flux"),
    ),
    (
        {"JSM_NAMESPACE_RANK": "1", "JSM_NAMESPACE_SIZE": "4", "PMIX_RANK": "1", "LSB_JOBID": "5"},
        ("jsrun", 1, 4, "PMIx", "job 5 of LSF"),
    ),
    ({"LSB_JOBID": "5", **HYDRA}, ("mpiexec of MPICH (Hydra)", 1, 4, "PMI", "job 5 of LSF")),
    ({"PMIX_RANK": "1", "PMIX_NAMESPACE": "n"}, ("a launcher that uses PMIx", 1, None, "PMIx", "")),
    ({"PMI_RANK": "1", "PMI_SIZE": "4"}, ("a launcher that uses PMI", 1, 4, "PMI", "")),
    ({"PMI_RANK": "1"}, None),
    ({"PMI_RANK": "x", "PMI_SIZE": "y"}, None),
]


@pytest.mark.parametrize(("given", "found"), ENVIRONMENTS)
def test_who_launched_it(given, found):
    its = launch(given)
    assert (its and its[:5]) == found


def test_every_launcher_is_in_the_table_of_environments():
    results = {found[0] for _, found in ENVIRONMENTS if found}
    assert {launcher.name for launcher in launchers.LAUNCHERS} - results == {"mpirun_rsh of MVAPICH"}


@pytest.mark.parametrize(("given", "found"), [(STEP, None), (HYDRA, (1, 4)), ({**STEP, "PMIX_RANK": "1"}, (1, 4))])
def test_ranks_are_known_where_mpi_can_know_them(environment, given, found):
    environment(given)
    assert launchers.launched() == found


@pytest.mark.parametrize(
    ("given", "library", "texts"),
    [
        (STEP, "MPICH 5", ["srun of Slurm launched 4", "srun --mpi=pmi2"]),
        ({**STEP, "PMI_RANK": "1"}, "Open MPI v5", ["it speaks PMI, and", "srun --mpi=pmix"]),
        (OPENMPI, "MPICH 5", ["mpiexec of Open MPI launched 4", "Use the mpiexec of this MPI"]),
        (HYDRA, "Open MPI v5", ["(Hydra) launched 4 processes", "mpi4py has loaded Open MPI v5"]),
    ],
)
def test_copies_that_are_alone(environment, given, library, texts):
    environment(given)
    with pytest.raises(MeshError) as error:
        launchers.refuse_alone(1, lambda: library)
    assert all(text in str(error.value) for text in texts), error.value
    assert launchers.is_reported_by_another(error.value), "rank 1 leaves it to rank 0"
    assert launchers.isolation_reason(4, lambda: library) == "", "ranks of one world are not alone"


@pytest.mark.parametrize(
    "given",
    [
        {},
        BATCH,
        {**HYDRA, "PMI_SIZE": "1", "PMI_RANK": "0"},
        {"PMIX_RANK": "0", "PMIX_NAMESPACE": "n"},
        {**STEP, "SLURM_PTY_PORT": "1"},  # srun --pty bash: a shell, and what the user runs in it
        {**STEP, "MESHCOMM_ALONE": "1"},
    ],
)
def test_one_process_that_is_meant_to_be_alone(environment, given):
    environment(given)
    assert launchers.isolation_reason(1, lambda: "an MPI") == ""


PROGRAM = "from meshcomm.core.failures import launchers; print(bool(launchers.isolation_reason(1, lambda: 'an MPI')))"


@pytest.mark.parametrize(("through", "alone"), [("a shell", True), ("Python", False)])
def test_a_child_of_a_rank_has_its_variables_but_is_no_copy(environment, through, alone):
    environment(HYDRA)
    code = [sys.executable, "-c", PROGRAM]
    if through == "a shell":
        command = ["sh", "-c", '"$@"; true', "sh", *code]
    else:
        command = [sys.executable, "-c", f"import subprocess; subprocess.run({code!r}, check=True)"]
    ran = subprocess.run(command, capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == str(alone), ran.stderr


# -- our own variables ------------------------------------------------------------------------------------------------


def test_misspelt_variables(environment):
    environment({"MESHCOMM_TIMEOOUT": "3", "MESHCOMM_XYZ": "", "MESHCOMM_CHECK": "1"})
    first, second = variables.find_problems().values()
    assert first == "no environment variable of meshcomm is called MESHCOMM_TIMEOOUT; is it MESHCOMM_TIMEOUT?"
    assert "MESHCOMM_XYZ; there are MESHCOMM_ABORT, " in second


def test_names_in_small_letters_have_no_effect(environment):
    environment({"meshcomm_check": "1"})
    (line,) = variables.find_problems().values()
    assert line == "no environment variable of meshcomm is called meshcomm_check; is it MESHCOMM_CHECK?"


@pytest.mark.parametrize("name", variables.SWITCHES)
def test_switches_that_are_neither_on_nor_off(name, environment):
    environment({name: "2"})
    assert variables.find_problems() == {name: f"{name} is a switch, and '2' counts as 1: set it to 1 or 0"}
    for value in ("", "0", "1", "no", "Yes", "off", "on", "TRUE", "false "):
        environment({name: value})
        assert variables.find_problems() == {}


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("MESHCOMM_TIMEOUT", "soon", "must be a number of seconds, or 0 for ever, not 'soon'"),
        ("MESHCOMM_SHARED_MEMORY", "lots", "must be a size such as 500M or 2G, or 0, not 'lots'"),
        ("MESHCOMM_WHOLE_BELOW", "few", "must be a size such as 64KiB or 2M, not 'few'"),
        ("MESHCOMM_MACHINE", "nowhere.json", "python -m meshcomm calibrate FILE writes"),
        ("MESHCOMM_MACHINE", __file__, "python -m meshcomm calibrate FILE writes"),
        ("MESHCOMM_FLIGHTS", f"{__file__}/below", "it is a file, or in one"),
        ("MESHCOMM_TRACE", f"{__file__}/below", "no trace can be written there: it is a file, or in one"),
    ],
)
def test_wrong_values(name, value, words, environment):
    environment({name: value})
    (line,) = variables.find_problems().values()
    assert line.startswith(name)
    assert words in line


def test_only_the_first_rank_needs_the_file_of_constants(environment, launched_as):
    environment({"MESHCOMM_MACHINE": "nowhere.json"})
    launched_as(1, 2)
    assert variables.find_problems() == {}
    launched_as(0, 2)
    assert list(variables.find_problems()) == ["MESHCOMM_MACHINE"]


def test_jobs_in_containers_have_names_of_their_own(tmp_path):
    """Launchers with the same number, in two namespaces of processes: the shell is process 1 in both."""
    program = f"{sys.executable} -c 'from meshcomm.core.failures.launchers import job_name; print(job_name())'"
    container = ["unshare", "--pid", "--fork", "--mount-proc", "sh", "-c", f"{program}; {program}"]
    results = [subprocess.run(container, capture_output=True, text=True, check=False) for _ in range(2)]
    if any(each.returncode for each in results):
        pytest.skip("no namespaces of processes can be made here")
    (one, same), (other, _) = (each.stdout.split() for each in results)
    assert one == same != other
    assert re.fullmatch("[0-9a-f]{32}", one)


@pytest.mark.parametrize("shell", [False, True])
def test_ranks_that_a_shell_starts_have_the_name_of_their_job(shell, monkeypatch):
    program = "from meshcomm.core.failures.launchers import job_name; print(job_name())"
    its = {**os.environ, "PMI_RANK": "1", "PMI_SIZE": "2", "PYTHONPATH": os.pathsep.join(sys.path)}
    run = shlex.join([sys.executable, "-c", program])
    names = [
        subprocess.run(
            ["sh", "-c", f"{run}; true"] if shell else shlex.split(run),
            env=its | {"PMI_RANK": rank},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for rank in "01"
    ]
    assert names[0] == names[1]


def test_what_is_wrong_can_be_set_aside(environment):
    environment({"MESHCOMM_TIMEOUT": "soon", "MESHCOMM_CHEK": "1", "MESHCOMM_ABORT": "2", "MESHCOMM_CHECK": "1"})
    assert len(variables.reset_invalid()) == 3
    ours = {name: value for name, value in os.environ.items() if name.startswith("MESHCOMM_")}
    assert ours == {"MESHCOMM_ABORT": "1", "MESHCOMM_CHECK": "1"}
    assert variables.reset_invalid() == []


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"gama": 1e-10}', "no constant is called 'gama'; did you mean 'gamma'? There are wait_within, "),
        ('{"gamma": 1e-10, "nodes": 2}', "no constant is called 'nodes'. There are wait_within, "),
        ("[1, 2]", 'it must be an object of JSON, such as {"wait_within": 3e-6}'),
        ('{"gamma": "fast"}', "gamma must be a time in seconds, zero or more, not 'fast'"),
    ],
)
def test_a_file_of_constants_says_what_is_wrong_in_it(text, words, environment, tmp_path):
    (tmp_path / "machine.json").write_text(text)
    environment({"MESHCOMM_MACHINE": str(tmp_path / "machine.json")})
    with pytest.raises(MeshError) as caught:
        hosts.stored_constants()
    message = str(caught.value)
    assert message.startswith(f"MESHCOMM_MACHINE={tmp_path / 'machine.json'} holds no constants of a machine: {words}")
    assert ".." not in message
    assert "?." not in message
    if "There are" in message:
        assert all(name in message for name in (*CONSTANTS, *DISK_CONSTANTS))


def test_a_folder_for_flights_need_not_be_there(environment, tmp_path):
    environment({"MESHCOMM_FLIGHTS": str(tmp_path / "new" / "flights")})
    assert variables.find_problems() == {}
    assert list(tmp_path.iterdir()) == []


def test_the_known_variables_are_those_of_the_page():
    page = (TESTS.parent / "docs" / "environment.md").read_text()
    assert {*variables.KNOWN} == {*re.findall(r"^\| `(MESHCOMM_[A-Z_]+)`", page, re.MULTILINE)}


def test_launch_in_words():
    its = Launch("mpiexec", 0, 2, "PMI", "job 7 of Slurm", "")
    assert str(its) == "mpiexec, which speaks PMI; in job 7 of Slurm"
