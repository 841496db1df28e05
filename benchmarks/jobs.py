"""How MPI jobs are launched, and jobs that take turns, seen from the launching process."""

import json
import os
import select
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

LONGEST = 300.0  # seconds for a command, should a job hang


class Failed(Exception):
    """A job ended or did not answer."""


class Setting(NamedTuple):
    """How many ranks, and whether they share memory or send messages by MPI."""

    ranks: int
    shared: bool

    def __str__(self) -> str:
        return f"{self.ranks} ranks, {'shared memory' if self.shared else 'MPI'}"


def launcher(ranks: int) -> list[str]:
    """Return the command that starts this many ranks."""
    own = Path(sys.executable).with_name("mpiexec")
    command = os.environ.get("MPIEXEC") or (str(own) if own.exists() else shutil.which("mpiexec"))
    if not command:
        raise SystemExit("there is no mpiexec beside this Python nor on PATH: set MPIEXEC")
    return [*shlex.split(command), "-n", str(ranks)]


def environment(setting: Setting) -> dict[str, str]:
    """Return the environment of a job: that of this process, without what could change what is measured."""
    env = os.environ | {"OMP_NUM_THREADS": "1"}
    for name in ("MESHCOMM_CHECK", "MESHCOMM_SHARED_MEMORY"):
        env.pop(name, None)
    return env if setting.shared else env | {"MESHCOMM_SHARED_MEMORY": "0"}


def measured_by(program: str, setting: Setting, rounds: int, *more: str) -> Any:
    """Return what the ranks of a *program* beside this one measure, with ``--job`` and *more*.

    Rank 0 prints it as JSON, in the last line: peers may print before.
    """
    path = Path(__file__).with_name(program)
    command = [*launcher(setting.ranks), sys.executable, str(path), "--rounds", str(rounds), "--job", *more]
    env = environment(setting) | {"MPIEXEC_TIMEOUT": "900"}
    found = subprocess.run(command, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, check=True)
    return json.loads(found.stdout.splitlines()[-1])


class Job:
    """One job, which `commands.obey` in each of its processes makes sleep between commands; *name* is for messages.

    *command* starts the processes, which also get ``--pipes`` and a directory, in the environment *env*.
    """

    def __init__(self, name: str, ranks: int, command: list[str], env: dict[str, str]) -> None:
        self._name = name
        self._pipes = Path(tempfile.mkdtemp(prefix="meshcomm-bench-"))
        names = [f"rank-{rank}" for rank in range(ranks)]
        for pipe in (*names, "answers"):
            os.mkfifo(self._pipes / pipe)
        # For reading too: so it never blocks here. The ranks see the end of their pipe when this process ends.
        self._commands = [os.open(self._pipes / pipe, os.O_RDWR) for pipe in names]
        self._answers = os.open(self._pipes / "answers", os.O_RDWR | os.O_NONBLOCK)
        mpiexec, *options = command
        mpiexec = os.path.abspath(shutil.which(mpiexec) or mpiexec)  # it may be relative to the directory of now
        with open(self._pipes / "log", "w", encoding="utf-8") as log:
            self._process = subprocess.Popen(
                [mpiexec, *options, "--pipes", str(self._pipes)],
                cwd=self._pipes,  # not where a folder called meshcomm is
                env=env | {"MPIEXEC_TIMEOUT": "7200"},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @classmethod
    def of_turns(cls, name: str, root: Path, setting: Setting) -> "Job":
        """Launch `turns.py` with the meshcomm of the directory *root*."""
        program = [str(Path(__file__).with_name("turns.py")), "--root", str(root)]
        command = [*launcher(setting.ranks), sys.executable, "-W", "ignore", "-m", "mpi4py", *program]
        return cls(name, setting.ranks, command, environment(setting) | {"PYTHONPATH": str(root)})

    def ask(self, command: str, *arguments: Any) -> Any:
        """Return the answer of rank 0 to a command; ``Failed`` if there is none."""
        self._send([command, *arguments])
        until, text = time.monotonic() + LONGEST, b""
        while not text.endswith(b"\n"):
            if select.select([self._answers], [], [], 0.5)[0]:
                text += os.read(self._answers, 2**16)
            elif self._process.poll() is not None:
                raise Failed(f"{self._name}: the job ended in {command}: {self._log()}")
            elif time.monotonic() > until:
                raise Failed(f"{self._name}: no answer to {command} within {LONGEST:g} s: {self._log()}")
        return json.loads(text)

    def _send(self, message: list[Any]) -> None:
        line = json.dumps(message).encode() + b"\n"
        for pipe in self._commands:
            os.write(pipe, line)

    def _log(self) -> str:
        lines = (self._pipes / "log").read_text(encoding="utf-8", errors="replace").splitlines()
        return " / ".join(lines[-5:])

    def end(self) -> None:
        """End the job, with force if it does not end by itself."""
        self._send(["end"])
        try:
            self._process.wait(20 if self._process.poll() is None else 0)
        except subprocess.TimeoutExpired:
            self._process.terminate()  # mpiexec then ends the ranks
            try:
                self._process.wait(10)
            except subprocess.TimeoutExpired:
                os.killpg(self._process.pid, signal.SIGKILL)
                self._process.wait()
        for pipe in (*self._commands, self._answers):
            os.close(pipe)
        shutil.rmtree(self._pipes, ignore_errors=True)
