"""PYTHONHASHSEED: `run` sets it, unless it is set."""

import os
import subprocess
import sys

import pytest

from meshcomm.tools.cli.batch import SYSTEMS, BatchJob, script

PROGRAM = "import os, sys; print(os.environ.get('PYTHONHASHSEED'), sys.flags.hash_randomization, *sys.argv[1:])"


@pytest.mark.parametrize(
    ("given", "flags", "expected"),
    [(None, [], "0 0 a b"), ("7", [], "7 1 a b"), ("random", [], "random 1 a b"), (None, ["-E"], "None 1 a b")],
)
def test_run_gives_text_one_hash_on_all_ranks(given, flags, expected, tmp_path):
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONHASHSEED"}
    if given is not None:
        variables["PYTHONHASHSEED"] = given
    folder = "import runpy, sys; sys.path[:0] = sys.argv.pop(1).split(':'); "
    start = f"{folder}sys.argv[0] = 'meshcomm'; runpy.run_module('meshcomm', run_name='__main__')"
    command = [sys.executable, *flags, "-c", start, ":".join(sys.path), "run", str(program), "a", "b"]
    done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout.strip(), done.returncode) == (expected, 0), done.stderr


@pytest.mark.parametrize("system", SYSTEMS)
def test_batch_scripts_set_it(system):
    assert "export PYTHONHASHSEED=0" in script(system, BatchJob(("a.py",)))


def test_info_says_whether_it_is_set():
    for seed, says in (("0", "0: without salt"), ("7", "7: the same"), ("random", "not set"), (None, "not set")):
        variables = {name: value for name, value in os.environ.items() if name != "PYTHONHASHSEED"}
        if seed is not None:
            variables["PYTHONHASHSEED"] = seed
        command = [sys.executable, "-c", "from meshcomm.tools.cli.hashes import hashes_text; print(hashes_text())"]
        done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=60, check=True)
        assert done.stdout.startswith(says)
