"""Who launched this process, the rank and size that the launcher passes on, and whether MPI knows them, too.

A launcher passes each process its rank and the number of ranks in environment variables. MPI gets them in another way.
If the launcher belongs to another MPI, or speaks another protocol, MPI gets nothing: then each process is alone in a
world of its own, computes everything, and ends without an error. `isolation_reason` finds that out.
"""

import contextlib
import os
import stat
import sys
import time
from collections.abc import Callable, Mapping
from functools import cache
from typing import TYPE_CHECKING, NamedTuple, TypeVar

if TYPE_CHECKING:
    from pathlib import Path

ALONE = "MESHCOMM_ALONE"
"""The environment variable that allows copies of a program that know nothing of each other."""

EAGER = "MESHCOMM_EAGER"
"""The environment variable that lets no elementwise operation wait."""

TRACE_FOLDER = "MESHCOMM_TRACE"
"""The environment variable that names the folder for traces of whole programs."""

Environment = Mapping[str, str]


class Launcher(NamedTuple):
    """A launcher, and its environment variables. As launchers run inside each other, the first match counts."""

    name: str
    marker_variables: tuple[str, ...]  # the launcher sets one of these; a star stands for any ending
    rank: str  # the variable with the rank
    size: str  # the variable with the number of ranks; it may be unset
    protocol: str = ""  # protocol between launcher and MPI; "" if other variables name it


_PMI = ("PMI_RANK", "PMI_SIZE", "PMI")

LAUNCHERS = (
    # Those that start ranks themselves, which may run inside of a batch system's step: before those of batch systems.
    Launcher("mpiexec of Open MPI", ("OMPI_COMM_WORLD_SIZE",), "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "PMIx"),
    Launcher("mpirun_rsh of MVAPICH", ("MPIRUN_RSH_LAUNCH",), *_PMI),
    Launcher("mpiexec of Intel MPI (Hydra)", ("I_MPI_HYDRA_*", "I_MPI_INFO_*", "I_MPI_MPIRUN"), *_PMI),
    Launcher("mpiexec of MPICH (Hydra)", ("HYDI_CONTROL_FD", "MPI_LOCALNRANKS"), *_PMI),
    Launcher("Flux", ("FLUX_TASK_RANK",), "FLUX_TASK_RANK", "FLUX_JOB_SIZE"),
    Launcher("jsrun", ("JSM_NAMESPACE_RANK",), "JSM_NAMESPACE_RANK", "JSM_NAMESPACE_SIZE", "PMIx"),
    Launcher("mpiexec of Cray PALS", ("PALS_RANKID",), "PALS_RANKID", "PMI_SIZE", "Cray PMI"),
    Launcher("srun of Slurm", ("SLURM_STEP_ID",), "SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),
    Launcher("a launcher that uses PMIx", ("PMIX_RANK",), "PMIX_RANK", "", "PMIx"),
    Launcher("a launcher that uses PMI", ("PMI_SIZE",), *_PMI),
)
"""The launchers, as their documents and sources describe them. docs/measuring.md says which of them we have tried."""

BATCH_SYSTEMS = (("Slurm", "SLURM_JOB_ID"), ("PBS", "PBS_JOBID"), ("LSF", "LSB_JOBID"), ("Flux", "FLUX_JOB_ID"))
"""Batch systems, and the variable with which each names a job."""

_PROTOCOLS = (("PMIx", "PMIX_RANK"), ("Cray PMI", "PMI_CONTROL_PORT"), ("PMI", "PMI_RANK"), ("PMI", "PMI_FD"))
"""Protocols, by a variable that every launcher sets for it."""

_LAST_NORMAL_STEP = 2**32 - 16
"""Larger numbers of steps are not of srun: a batch script, an interactive shell, a process that ssh starts."""

_MAX_ANCESTORS = 16


class Launch(NamedTuple):
    """What a launcher tells this process. Unknown fields are None or ""."""

    launcher: str
    rank: int | None
    size: int | None
    protocol: str  # protocol between launcher and MPI
    batch: str  # job of the batch system around the launcher
    evidence: str
    """The variable with the number of ranks, and its value, as they stand in the environment of a process."""

    def __str__(self) -> str:
        protocol = f", which speaks {self.protocol}" if self.protocol else ", which speaks no protocol of MPI"
        return f"{self.launcher}{protocol}{f'; in {self.batch}' if self.batch else ''}"


def launch(environment: Environment | None = None) -> Launch | None:
    """Return the launch of this process, from variables in the *environment*; None if there was no launcher.

    >>> print(launch({"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "4"}))
    srun of Slurm, which speaks no protocol of MPI; in job 7 of Slurm
    """
    variables = os.environ if environment is None else environment
    for launcher in LAUNCHERS:
        if any(_is_set(name, variables) for name in launcher.marker_variables) and not _is_slurm_without_srun(
            launcher, variables
        ):
            rank, size = (_parsed_number(variables.get(name, "")) for name in (launcher.rank, launcher.size))
            if rank is None and launcher.size in launcher.marker_variables:
                continue
            protocol = launcher.protocol or next((name for name, variable in _PROTOCOLS if variable in variables), "")
            evidence = f"{launcher.rank}={variables.get(launcher.rank, '')}"
            return Launch(launcher.name, rank, size, protocol, batch_job(variables), evidence)
    return None


OFF, ON = ("0", "no", "off", "false"), ("1", "yes", "on", "true")
"""Values of a switch. Other texts count as on."""


def is_on(variable: str, default: str = "0") -> bool:
    """Return whether an environment variable turns something on: all texts do but 0, no, off and false."""
    return (os.environ.get(variable, "").strip().lower() or default) not in OFF


def folder_in(variable: str) -> "Path | None":
    """Return the folder that an environment variable names; None if it names none, or is 0."""
    name = os.environ.get(variable, "")
    if name in ("", "0"):
        return None
    from pathlib import Path  # here, as ``import meshcomm`` asks for a folder

    return Path(name)


def batch_job(environment: Environment | None = None) -> str:
    """Return the batch job that this process runs in, such as "job 7 of Slurm"; else ""."""
    variables = os.environ if environment is None else environment
    return next((f"job {variables[name]} of {system}" for system, name in BATCH_SYSTEMS if variables.get(name)), "")


def launched() -> tuple[int, int] | None:
    """Return the rank of this process and the number of ranks, from the launcher; None if MPI cannot know them.

    Read from the environment: MPI does not have to be loaded, nor initialised.
    """
    facts = launch()
    if facts is None or facts.rank is None or facts.size is None or not facts.protocol:
        return None
    return facts.rank, facts.size


def is_first() -> bool:
    """Return whether this process is the first one that its launcher launched, or the only one."""
    facts = launch()
    return facts is None or not facts.rank


def are_several() -> bool:
    """Return whether the launcher launched several processes, whether or not MPI knows of them."""
    facts = launch()
    return facts is not None and (facts.size or 1) > 1


def job_name() -> str:
    """Return 32 hexadecimal digits that all ranks of this job on this host know, and no other job has.

    Ranks that have not communicated cannot agree on a random number. So the digits are a digest: of the random number
    that Linux draws when the host starts, and of the step of Slurm. Without Slurm, the second is the process of the
    launcher on this host: its PID namespace, its number and its start time. Launchers in two containers may have the
    same number at the same time.
    """
    from hashlib import blake2b  # here, as ``import meshcomm`` reads this file

    variables, facts = os.environ, launch()
    if facts is not None and facts.launcher == "srun of Slurm":
        job = f"{variables.get('SLURM_JOB_ID', '')}.{variables['SLURM_STEP_ID']}"
    else:
        evidence = facts.evidence if facts is not None else ""
        job = f"{variables.get('PMIX_NAMESPACE', '')} {_launcher_process(os.getpid(), evidence)}"
    text = f"{os.getuid()} {_boot_id()} {job}"
    return blake2b(text.encode(errors="backslashreplace"), digest_size=16).hexdigest()


@cache
def _launcher_process(pid: int, evidence: str) -> str:
    """Return the PID namespace, number and start time of the process that launched process *pid*, this one.

    Kept, as the launcher may end first. A shell may stand between the two: the launcher started it with the rank's
    environment, which contains *evidence*.
    """
    pid, namespace = os.getppid(), ""
    with contextlib.suppress(OSError, ValueError):  # it belongs to another user, as launchers may
        namespace = os.readlink("/proc/self/ns/pid")
        for _ in range(_MAX_ANCESTORS):
            program = os.readlink(f"/proc/{pid}/exe").rpartition("/")[2]
            if program.startswith("python") or f"{evidence}\0".encode() not in _read_bytes(f"/proc/{pid}/environ"):
                break
            pid = int(_read_bytes(f"/proc/{pid}/stat").rpartition(b")")[2].split()[1])
    start_time = _read_text(f"/proc/{pid}/stat").rpartition(")")[2].split()[19:20]
    return " ".join([namespace, str(pid), *start_time])


@cache
def _boot_id() -> str:
    """Return the random number that Linux drew when this host started."""
    return _read_text("/proc/sys/kernel/random/boot_id").strip()


def _read_text(path: str) -> str:
    """Return the text of a file of the system; "" if it cannot be read."""
    with contextlib.suppress(OSError):
        return _read_bytes(path).decode(errors="backslashreplace")
    return ""


def isolation_reason(world_size: int, library: Callable[[], str]) -> str:
    """Return why this process is alone although it was launched with others, and the cure; "" if all is well.

    *world_size* is the number of ranks that MPI knows; *library* returns the name of the MPI.
    """
    facts = launch()
    if world_size > 1 or facts is None or not are_several():
        return ""
    if is_on(ALONE) or "SLURM_PTY_PORT" in os.environ or _is_child_of_rank(facts):
        return ""
    return alone_text(facts, library())


def alone_text(facts: Launch, library: str) -> str:
    """Return the message for processes that one launcher launched, and that do not find each other.

    >>> print(alone_text(launch({"SLURM_STEP_ID": "0", "SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "4"}), "MPICH 5"))
    srun of Slurm launched 4 processes, but each is alone in a world of one rank: it speaks no protocol of MPI, and mpi4py has loaded MPICH 5. Launch with srun --mpi=pmi2 (srun --mpi=list shows what there is), or with the mpiexec of this MPI. MESHCOMM_ALONE=1 allows copies that are alone on purpose.
    """  # noqa: E501
    speaks = f"it speaks {facts.protocol}" if facts.protocol else "it speaks no protocol of MPI"
    if facts.launcher == "srun of Slurm":
        cure = f"Launch with srun --mpi={_slurm_protocol(library)} (srun --mpi=list shows what there is), or with"
    else:
        speaks = "it belongs to another MPI" if "mpiexec" in facts.launcher else speaks
        cure = "Use"
    return (
        f"{facts.launcher} launched {facts.size} processes, but each is alone in a world of one rank: {speaks}, and "
        f"mpi4py has loaded {library}. {cure} the mpiexec of this MPI. "
        f"{ALONE}=1 allows copies that are alone on purpose."
    )


def refuse_alone(world_size: int, library: Callable[[], str]) -> None:
    """Raise ``MeshError`` if `isolation_reason` gives one, on every copy; the first copy prints the error."""
    reason = isolation_reason(world_size, library)
    if reason:
        from meshcomm.errors import MeshError  # here, as this file is read where not even NumPy is installed

        raise reported_by_first(MeshError(reason)) from None


_E = TypeVar("_E", bound=BaseException)


def reported_by_first(error: _E) -> _E:
    """Return *error*, which all copies of a program raise, so that Python prints it in the first one only."""
    let_first_tell()
    error.__dict__[_FIRST_COPY_PRINTS] = True
    old_hook = sys.excepthook
    if is_reported_by_another(error):
        sys.excepthook = lambda kind, value, tb: None if is_reported_by_another(value) else old_hook(kind, value, tb)
    return error


def let_first_tell() -> None:
    """Wait for a second unless this is the first copy: many launchers end all copies as soon as one of them ends."""
    if not is_first():
        time.sleep(1.0)


def is_reported_by_another(error: BaseException) -> bool:
    """Return whether all copies of a program raise *error*, and this is not the first copy, which prints it."""
    return _FIRST_COPY_PRINTS in vars(error) and not is_first()


_FIRST_COPY_PRINTS = "_first_copy_tells"


def _slurm_protocol(library: str) -> str:
    if library.startswith("Open MPI"):
        return "pmix"
    return "cray_shasta" if "CRAY" in library.upper() else "pmi2"


def _is_set(name: str, environment: Environment) -> bool:
    return name in environment or any(name[-1] == "*" and variable.startswith(name[:-1]) for variable in environment)


def _is_slurm_without_srun(launcher: Launcher, environment: Environment) -> bool:
    """Return whether Slurm launched this process without srun."""
    step = _parsed_number(environment.get("SLURM_STEP_ID", ""))
    return "SLURM_STEP_ID" in launcher.marker_variables and (step is None or step > _LAST_NORMAL_STEP)


def _parsed_number(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() else None


def forget_launcher() -> None:
    """Remove the launcher's variables if this process is no rank, but was started by one. Call before MPI is loaded.

    Else MPI would take this process for that rank: MPICH ends it, as the launcher's pipe is closed here, and Open MPI
    mixes the two up.
    """
    facts = launch()
    if facts is None or not _is_child_of_rank(facts):
        return
    pipe_fd = _parsed_number(os.environ.get("PMI_FD", ""))
    if _is_child_of_rank(facts, uses_mpi=True) or not (pipe_fd is None or _is_socket(pipe_fd)):
        for name in [*os.environ]:
            if name.startswith(_RANK_PREFIXES) and "_MCA_" not in name:
                del os.environ[name]


_RANK_PREFIXES = ("PMI_", "PMIX_", "OMPI_", "PRTE_", "HYDI_", "MPI_LOCAL")
"""Prefixes of the variables in which launchers pass a rank its number."""


def _is_socket(fd: int) -> bool:
    try:
        return stat.S_ISSOCK(os.fstat(fd).st_mode)
    except OSError:
        return False


def _is_child_of_rank(facts: Launch, *, uses_mpi: bool = False) -> bool:
    """Return whether a rank started this process, which inherited the launcher's variables.

    Only processes that use MPI, or Python, count as ranks, as a shell may stand between the launcher and a rank. With
    *uses_mpi*, only those that use MPI count.
    """
    pid, mark = os.getppid(), f"{facts.evidence}\0".encode()
    with contextlib.suppress(OSError, ValueError):  # of another user, as launchers may be; or no /proc
        for _ in range(_MAX_ANCESTORS):
            folder = f"/proc/{pid}"
            if mark not in _read_bytes(f"{folder}/environ"):
                return False
            program = os.readlink(f"{folder}/exe").rpartition("/")[2]
            if (program.startswith("python") and not uses_mpi) or b"libmpi" in _read_bytes(f"{folder}/maps"):
                return True
            pid = int(_read_bytes(f"{folder}/stat").rpartition(b")")[2].split()[1])
    return False


def _read_bytes(path: str) -> bytes:
    with open(path, "rb") as file:  # not by pathlib, which ``import meshcomm`` would have to load
        return file.read()
