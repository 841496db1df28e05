"""Batch scripts, as text; tests/jobs/test_slurm.py submits those for Slurm."""

import os
import re
import shlex
import shutil
import subprocess
import sys

import pytest

from meshcomm.tools.cli.main import main
from support.batch import HOME, on_the_page, printed

SYSTEMS = ("slurm", "pbs")
NASTY = ["a b.py", "it's", '"$HOME"', "*", "--nodes", "9", "", "ü"]

CASES = [
    ["x.py"],
    ["--nodes", "2", "--ntasks-per-node", "64", "x.py"],
    ["--time", "2-01:00:05", "--partition", "p", "--account", "a.b-c", *NASTY],
    ["--requeue", "--array", "0-9", "-m", "package.module", "arg"],
    ["--container", "my image.sif", "--requeue", "x.py"],
    ["--numpy", "x.py"],
]
FOR_SLURM = [["--mpi", "mpiexec", "--requeue", "x.py"], ["--pmi", "pmix", "x.py"], ["--array", "1,4-9:2%3", "x.py"]]
SCRIPTS = [[system, *case] for system in SYSTEMS for case in CASES] + [["slurm", *case] for case in FOR_SLURM]


def shell(*command, text):
    return subprocess.run(command, input=text, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("arguments", SCRIPTS, ids=lambda arguments: arguments[0])
def test_scripts_are_right_for_bash(arguments):
    script = printed(*arguments, modules="mpich/4 other")
    done = shell("bash", "-n", text=script)
    assert (done.returncode, done.stderr) == (0, "")
    assert max(map(len, script.splitlines())) < 125
    if shutil.which("shellcheck"):
        done = shell("shellcheck", "--severity=warning", "-", text=script)
        assert done.returncode == 0, done.stdout


def test_the_page_shows_what_the_command_prints():
    arguments, shown = on_the_page()
    assert printed(*arguments, prefix=HOME) == shown


def launched(script, folder, *, code=0, python="exit 0"):
    """Run a script whose launchers run the shell code *python*; return the exit code, and what was launched."""
    tools = folder / "tools"
    tools.mkdir()
    log = folder / "launched"
    for name in ("srun", "mpiexec", "scontrol", "module"):
        (tools / name).write_text(
            f'#!/bin/bash\nprintf "%s\\0" {name} "$@" END >> {shlex.quote(str(log))}\n{python}\n'
        )
        (tools / name).chmod(0o700)
    script = re.sub(r"^export PATH=.*\n", "", script, flags=re.MULTILINE)
    path = folder / "job.sh"
    path.write_text(script)
    environment = {"PATH": f"{tools}:{os.environ['PATH']}", "SLURM_NTASKS": "6", "SLURM_JOB_ID": "7"}
    environment |= {"PBS_O_WORKDIR": str(folder)}
    done = subprocess.run(["bash", path], env=environment, capture_output=True, text=True, cwd=folder, check=False)
    assert done.stderr == ""
    assert done.returncode == code
    return [each.split("\0") for each in log.read_text().removesuffix("\0END\0").split("\0END\0")]


@pytest.mark.parametrize("system", SYSTEMS)
def test_arguments_arrive_as_they_were_given(system, tmp_path):
    script = printed(system, "--nodes", "2", "--ntasks-per-node", "3", *NASTY, modules="mpich/4:$HOME x")
    module, info, run = launched(script, tmp_path)
    assert module == ["module", "load", "mpich/4", "$HOME x"]
    assert info[-4:] == ["python", "-m", "meshcomm", "info"]
    assert run[-len(NASTY) - 4 :] == ["python", "-m", "meshcomm", "run", *NASTY]
    assert ("--cpu-bind=cores" if system == "slurm" else "--bind-to") in run


@pytest.mark.parametrize("system", SYSTEMS)
def test_a_script_of_numpy_runs_as_one(system, tmp_path):
    _, run = launched(printed(system, "--numpy", "x.py", "--numpy"), tmp_path)
    assert run[-6:] == ["-m", "meshcomm", "run", "--numpy", "x.py", "--numpy"]


def test_mpiexec_in_slurm_gets_the_number_of_ranks(tmp_path):
    _, run = launched(printed("slurm", "--mpi", "mpiexec", "x.py"), tmp_path)
    assert run[:5] == ["mpiexec", "-n", "6", "--bind-to", "core"]


@pytest.mark.parametrize("system", SYSTEMS)
@pytest.mark.parametrize("requeue", [[], ["--requeue"]])
def test_the_job_has_the_exit_code_of_the_program(system, requeue, tmp_path):
    failing = '[ "${!#}" != x.py ] || exit 37'
    found = launched(printed(system, *requeue, "x.py"), tmp_path, code=37, python=failing)
    assert len(found) == 2


@pytest.mark.parametrize("system", SYSTEMS)
def test_ranks_that_are_no_world_end_the_job_at_once(system, tmp_path):
    (only,) = launched(printed(system, "--requeue", "x.py"), tmp_path, code=3, python='[ "${!#}" != info ] || exit 3')
    assert only[-1] == "info"


SAVING = '[ "${!#}" != x.py ] || { trap "echo saved; exit $CODE" USR1; kill -USR1 $PPID; for ((;;)); do :; done; }'


@pytest.mark.parametrize("code", [0, 5])
def test_a_signal_is_sent_on_and_only_a_program_that_saved_is_requeued(code, tmp_path):
    # What is launched sends the signal to the script itself, after a moment for its trap.
    saving = SAVING.replace("$CODE", str(code)).replace("kill", "sleep 0.5; kill")
    _, _, *last = launched(printed("slurm", "--requeue", "x.py"), tmp_path, code=code, python=saving)
    assert last == ([] if code else [["scontrol", "requeue", "7"]])


def test_pbs_sends_the_signal_before_the_time_is_over(tmp_path):
    script = printed("pbs", "--requeue", "--time", "0:05:02", "x.py")
    saving = SAVING.replace("$CODE", "6").replace("kill -USR1 $PPID; ", "")
    assert len(launched(script, tmp_path, code=6, python=saving)) == 2


BAD = [
    ([], "it needs a script"),
    (["--nodes", "0", "x.py"], "--nodes is a number, 1 or more, not '0'"),
    (["--nodes", "two", "x.py"], "--nodes is a number"),
    (["--ntasks-per-node", "-4", "x.py"], "--ntasks-per-node is a number"),
    (["--time", "90", "x.py"], "--time is"),
    (["--time", "0:00:00", "x.py"], "--time is"),
    (["--time", "1:60:00", "x.py"], "--time is"),
    (["--time", "0:05:00", "--requeue", "x.py"], "--requeue saves 300 s before the end"),
    (["--array", "0-9;rm", "x.py"], "--array has numbers"),
    (["--partition", "a b", "x.py"], "--partition is a name"),
    (["--account", "$(id)", "x.py"], "--account is a name"),
    (["--container", "", "x.py"], "--container is the path of an image"),
    (["x.py", "two\nlines"], "line break"),
]


@pytest.mark.parametrize(("arguments", "said"), BAD)
@pytest.mark.parametrize("system", SYSTEMS)
def test_bad_values_are_refused_in_one_line(system, arguments, said, capsys):
    assert main([system, *arguments]) == 2
    found = capsys.readouterr()
    assert found.out == ""
    assert found.err.startswith(f"meshcomm: {system}: ")
    assert said in found.err
    assert found.err.count("\n") == 1


@pytest.mark.parametrize(
    "arguments",
    [["slurm", "--mpi", "ssh", "x.py"], ["slurm", "--pmi", "a b", "x.py"], ["pbs", "--array", "1,2", "x.py"]],
)
def test_bad_values_of_one_system_are_refused(arguments, capsys):
    assert main(arguments) == 2
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize(
    ("program", "name"),
    [("9-run.py", "job_9-run"), ("a b/ü$ x.py", "job__"), ("a" * 40, "a" * 15), (".py", "job_.py")],
)
def test_jobs_have_names_that_batch_systems_take(program, name):
    for system, line in (("slurm", "#SBATCH --job-name="), ("pbs", "#PBS -N ")):
        (found,) = [each for each in printed(system, program).splitlines() if each.startswith(line)]
        assert found.removeprefix(line)[: len(name)] == name


def test_outside_of_an_environment_no_path_is_set():
    assert "export PATH" not in printed("slurm", "x.py", prefix=sys.base_prefix)
