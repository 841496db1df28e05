"""A real Slurm on this machine, from Debian's packages slurm-wlm and munge: it ends with the test that started it.

It has two nodes, both on this machine, and daemons, keys, ports and folders of its own: Slurms that run at the same
time do not interact. It needs root, as slurmd does, and does not use the machine's own configuration.
"""

import contextlib
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

import pytest

from support.jobs import kill, processes_with
from support.patience import IDLE, Stuck, run, slowness, until

NODES = ("node0", "node1")
CORES = 8  # of each node, as configured; nothing is bound, so the machine may have fewer
DAEMONS = ("munged", "slurmctld", "slurmd")
BIN = Path(sys.executable).parent
SOON = 10.0  # seconds for daemons to come up or to end, on an idle machine
END_STATES = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY", "BOOT_FAIL", "DEADLINE")

GARBLED = "mpi/pmi2: value not properly terminated"
"""Output of a step if its daemon has read a message of MPI in two pieces, as happens on a busy machine."""

STRANGERS = re.compile(r"^srun: error: (io_init_msg_|failed reading io init message).*\n", re.MULTILINE)
"""Output of srun when a process of another job connects to its port for output. It continues."""

PORTS = range(61_000, 65_000, 200)
"""First TCP ports of Slurms: above the ports that Linux assigns to programs that ask for any."""

CONFIGURATION = """
ClusterName=test
FirstJobId={first}
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SrunPortRange={of_sruns[0]}-{of_sruns[1]}
SlurmUser=root
AuthType=auth/munge
CryptoType=crypto/munge
AuthInfo=socket={folder}/munge.socket
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerParameters=batch_sched_delay=0,sched_min_interval=0,sched_interval=1
CompleteWait=0
KillWait=1
MpiDefault=none
ReturnToService=2
JobRequeue=1
{nodes}
PartitionName=all Nodes={names} Default=YES MaxTime=INFINITE State=UP
"""


class Finished(NamedTuple):
    """A job that has ended: its state, the exit code of its script, the number of requeues, and its output."""

    state: str
    code: int
    restarts: int
    text: str

    def __str__(self):
        return f"a job that is {self.state}, with code {self.code}, after {self.restarts} restarts:\n{self.text}"


class Slurm(NamedTuple):
    """A Slurm: the environment of its commands, and its folder."""

    environment: dict[str, str]
    folder: Path

    def submit(self, script, *options, cwd):
        """Submit a batch *script* from the folder *cwd*, and return the number of the job."""
        completed = self.command("sbatch", "--parsable", *options, str(script), cwd=cwd)
        return completed.stdout.strip()

    def command(self, *command, cwd=None):
        """Run a command of Slurm, and return the `subprocess.CompletedProcess`."""
        completed = run(command, env=self.environment, cwd=cwd)
        assert completed.returncode == 0, f"{' '.join(command)}: {completed.stdout}{completed.stderr}"
        return completed

    def facts(self, job):
        """Return the facts about a job by Slurm's names."""
        return dict(re.findall(r"(\w+)=(\S*)", self.command("scontrol", "show", "job", "--oneliner", job).stdout))

    def finish(self, job, output):
        """Wait until *job* has ended, and return a `Finished`; *output* is the path of its output.

        `Stuck` if its state and its output stay the same for too long. A job that is `GARBLED` is cancelled.
        """
        last_state, last_change = None, time.monotonic()
        while (facts := self.facts(job))["JobState"] not in END_STATES:
            state = (facts["JobState"], output.stat().st_size if output.exists() else 0)
            if state != last_state:
                last_state, last_change = state, time.monotonic()
                if GARBLED in text_of(output):
                    self.command("scancel", job)
            if time.monotonic() - last_change > IDLE * slowness():
                raise Stuck(f"job {job} stays {facts['JobState']} ({facts['Reason']})\n{text_of(output)}{self.logs()}")
            time.sleep(0.1)
        code = int(facts["ExitCode"].partition(":")[0])
        return Finished(facts["JobState"], code, int(facts["Restarts"]), text_of(output))

    def has_ended(self, job):
        """Return whether all steps of a job have ended on the nodes."""
        mark = f"slurmstepd: [{job}.".encode()
        for entry in Path("/proc").glob("[0-9]*/cmdline"):
            with contextlib.suppress(OSError):  # it has ended meanwhile
                if entry.read_bytes().startswith(mark):
                    return False
        return True

    def kill(self):
        """Kill the processes of jobs, and the daemons."""
        until(self._nothing_to_kill, SOON)

    def _nothing_to_kill(self):
        pids = processes_with("SLURM_CONF", self.environment["SLURM_CONF"])
        kill(pids)
        return not pids

    def logs(self):
        """Return the last lines of the daemons' logs, for a test that fails."""
        paths = sorted(self.folder.glob("*.log"))
        return "".join(f"\n== {path.name}\n{path.read_text(errors='replace')[-3000:]}" for path in paths)


@contextlib.contextmanager
def made(folder):
    """Return a context in which a Slurm runs, with its files in the empty *folder*; skip the test if it cannot."""
    _check_means()
    slurm = _configure(folder)
    with contextlib.ExitStack() as stack:
        for name, command in _daemons(slurm, folder).items():
            stack.enter_context(_running(name, command, slurm))
        _wait_for_nodes(slurm)
        stack.callback(slurm.kill)
        yield slurm


def _check_means():
    if os.geteuid() != 0:
        pytest.skip("a Slurm of its own needs root, as slurmd does")
    for tool in (*DAEMONS, "sbatch", "srun", "scontrol", "scancel"):
        if _path_of(tool) is None:
            pytest.skip(f"a Slurm needs the command {tool}, of Debian's slurm-wlm and munge, which is missing")


def _path_of(tool):
    return shutil.which(tool, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")


def _configure(folder):
    """Write the configuration of the daemons, and return the Slurm that they will form."""
    host = socket.gethostname().partition(".")[0]
    ports, of_sruns = _free_ports()
    nodes = "\n".join(
        f"NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs={CORES} RealMemory=4000"
        for name, port in zip(NODES, ports[1:], strict=True)
    )
    (folder / "state").mkdir()
    for name in NODES:
        (folder / f"spool-{name}").mkdir()
    key = folder / "munge.key"
    key.touch(0o600)
    key.write_bytes(os.urandom(128))
    # MPICH names its shared memory after the job: numbers of other Slurms may still have files in /dev/shm.
    first_job = random.randrange(1, 50_000_000)
    text = CONFIGURATION.format(
        first=first_job, host=host, ports=ports, of_sruns=of_sruns, folder=folder, nodes=nodes, names=",".join(NODES)
    )
    (folder / "slurm.conf").write_text(text)
    prefixes = ("PMI", "HYDI_", "MESHCOMM_", "SLURM", "SBATCH")
    variables = {name: value for name, value in os.environ.items() if not name.startswith(prefixes)}
    # Addresses of few transports are short: Slurm's pmi2 garbles long ones on a busy machine.
    return Slurm(variables | {"SLURM_CONF": str(folder / "slurm.conf"), "UCX_TLS": "tcp,self"}, folder)


def _daemons(slurm, folder):
    """Return the command of each daemon, in the order in which they come up."""
    munge = ("--key-file", "--socket", "--pid-file", "--log-file", "--seed-file")
    files = ("munge.key", "munge.socket", "munge.pid", "munge.log", "munge.seed")
    options = [f"{option}={folder / file}" for option, file in zip(munge, files, strict=True)]
    return {
        "munged": [_path_of("munged"), "--foreground", "--force", *options],
        "slurmctld": [_path_of("slurmctld"), "-D", "-c"],
        **{name: [_path_of("slurmd"), "-D", "-c", "-N", name] for name in NODES},
    }


@contextlib.contextmanager
def _running(name, command, slurm):
    """Return a context in which a daemon runs, in a process group of its own: Ctrl-C ends it after its jobs."""
    with open(slurm.folder / f"{name}.log", "ab") as log:
        process = subprocess.Popen(
            command, env=slurm.environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
        )
    try:
        if name == "munged" and not until((slurm.folder / "munge.socket").exists, SOON):
            pytest.skip(f"munged does not come up here: {slurm.logs()}")
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(SOON * slowness())
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait_for_nodes(slurm):
    def ready():
        completed = run(["sinfo", "--noheader", "--format=%T"], env=slurm.environment)
        return completed.returncode == 0 and completed.stdout.split() == ["idle"]

    if not until(ready, 3 * SOON):
        pytest.skip(f"the daemons of Slurm do not come up here: {slurm.logs()}")


def _free_ports():
    """Return free TCP ports: one for each daemon, and the first and the last port for sruns."""
    while True:
        start = random.choice(PORTS)
        daemon_ports = range(start, start + 1 + len(NODES))
        with contextlib.ExitStack() as stack, contextlib.suppress(OSError):  # in use: try others
            for port in daemon_ports:
                stack.enter_context(socket.socket()).bind(("127.0.0.1", port))
            return daemon_ports, (daemon_ports.stop, start + PORTS.step - 1)


def text_of(path):
    """Return the output of a job up to now, without the messages `STRANGERS`."""
    return STRANGERS.sub("", path.read_text(errors="replace")) if path.exists() else ""
