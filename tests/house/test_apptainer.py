"""The recipe of an Apptainer image: its sections, its files, and the commands that install."""

import re
import shlex
import shutil
import subprocess
import sys

import pytest

from support.paths import ROOT

RECIPE = ROOT / "packaging" / "apptainer" / "meshcomm.def"
SECTIONS = {"files", "post", "environment", "runscript", "test", "labels", "help"}


def sections():
    """Return the header of the recipe, and the lines of each section."""
    header, *rest = re.split(r"^%", RECIPE.read_text(), flags=re.MULTILINE)
    split = [each.split("\n", 1) for each in rest]
    return header, {name: [line.strip() for line in text.splitlines() if line.strip()] for name, text in split}


def commands(section):
    return [line for line in sections()[1][section] if not line.startswith("#")]


def test_sections_are_those_that_apptainer_knows():
    header, found = sections()
    keys = [line.partition(":")[0] for line in header.splitlines() if line.strip() and not line.startswith("#")]
    assert keys == ["Bootstrap", "From"]
    assert set(found) == SECTIONS


@pytest.mark.parametrize("section", ["post", "environment", "runscript", "test"])
def test_commands_are_right_for_sh(section):
    done = subprocess.run(
        ["sh", "-n"], input="\n".join(commands(section)), capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.jobs
def test_what_the_recipe_installs_works(tmp_path, pytestconfig):
    if not pytestconfig.getoption("exhaustive"):
        pytest.skip("it compiles for a minute or two: only with --exhaustive")
    for line in commands("files"):
        source, target = line.split()
        assert target.startswith("/src/")
        copy = shutil.copytree if (ROOT / source).is_dir() else shutil.copy
        (tmp_path / "src").mkdir(exist_ok=True)
        copy(ROOT / source, tmp_path / target.lstrip("/"))
    for compiled in (tmp_path / "src").rglob("*.so"):
        compiled.unlink()
    ours = [line for line in commands("post") if not line.startswith(("apt-get", "rm"))]
    assert len(ours) == 2
    for line in [*ours, *commands("test")]:
        words = [re.sub(r"^/(opt|src)\b", rf"{tmp_path}/\1", word) for word in shlex.split(line)]
        words[0] = sys.executable if words[0] == "python3" else words[0]
        done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}"
    assert "relayout over 2 ranks: ok" in done.stdout
