"""The recipe of an Apptainer image: its sections, its files, and the commands that install."""

import re
import shlex
import shutil
import subprocess
import sys
import tomllib

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


def test_files_cover_what_the_build_reads():
    """What pyproject.toml names, and the script that building.py asks before it compiles."""
    copied = dict(line.split() for line in commands("files"))
    assert copied == {source: f"/src/{source}" for source in copied}
    asked = tomllib.loads((ROOT / "pyproject.toml").read_text())
    project, setuptools = asked["project"], asked["tool"]["setuptools"]
    classes = setuptools["cmdclass"].values()
    needed = {"pyproject.toml", project["readme"], *project["license-files"], ".ci/preflight"}
    needed |= {f"{each.partition('.')[0]}.py" for each in classes}
    needed |= {source for module in setuptools["ext-modules"] for source in (*module["sources"], *module["depends"])}
    assert all((ROOT / file).is_file() for file in needed)
    folders = tuple(f"{source}/" for source in copied if (ROOT / source).is_dir())
    assert {file for file in needed if file not in copied and not file.startswith(folders)} == set()


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
