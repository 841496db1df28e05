"""How README says to run one's own program: from any folder, in the environment that `make run` has made."""

import os
import re
import shlex
import sys
from pathlib import Path

import pytest

from support.paths import ROOT

PROGRAM = """\
import os, sys
import meshcomm as mc
mesh = mc.create_mesh([("x", -1)])
sys.stdout.write(f"rank {mesh.rank} of {mesh.size} in {os.getcwd()} by {sys.prefix}\\n")
"""


def test_own_programs_run_as_readme_says(launch, tmp_path):
    environment = Path(sys.prefix)
    if environment.parent != ROOT / ".venv":
        pytest.skip("these tests do not run in an environment that make has made")
    recipe = re.search(
        r"^    (PATH=\$PWD/\.venv/mpich/bin:\$PATH) +#.*\n    (mpiexec .*)$", (ROOT / "README.md").read_text(), re.M
    )
    assert recipe, "README has the recipe"
    (tmp_path / "my_program.py").write_text(PROGRAM)
    path, command = recipe[1].replace("mpich", environment.name), recipe[2]
    script = f"cd {shlex.quote(str(ROOT))}; {path}; cd {shlex.quote(str(tmp_path))}; {command}"
    job = launch(None, "-c", script, python=("/bin/sh",), PATH=os.defpath)
    assert job.code == 0, job
    assert sorted(job.text.splitlines()) == [f"rank {rank} of 4 in {tmp_path} by {environment}" for rank in range(4)]
