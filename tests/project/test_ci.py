"""Which steps of `.ci/run` are left out: `.ci/scope` decides."""

import shutil
import subprocess

import pytest

from support.paths import ROOT

STEPS = ["sanitizers", "wheels", "site"]
SEEN = {
    "meshcomm/core/memory/_pool.pyx": ["sanitizers"],
    "meshcomm/core/memory/_pool.h": ["sanitizers"],
    "meshcomm/core/memory/_pool.pxd": ["sanitizers"],
    "meshcomm/core/transport/choose.py": ["sanitizers"],
    "meshcomm/core/arrays/compile.py": [],
    "packaging/build_wheels.sh": ["wheels"],
    "building.py": ["wheels"],
    "docs/site/conf.py": ["site"],
    "README.md": ["site"],
}


@pytest.fixture
def scope(tmp_path):
    """A function that runs `.ci/scope` in a copy of the clone, and returns its code and output."""
    for folder in ["meshcomm", "packaging", "docs"]:
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    for path in ["building.py", "pyproject.toml", "MANIFEST.in", "README.md", "CONTRIBUTING.md", "CHANGELOG.md"]:
        shutil.copy(ROOT / path, tmp_path)
    shutil.copytree(ROOT / ".ci", tmp_path / ".ci", ignore=shutil.ignore_patterns("passed"))

    def scope(*arguments, full=""):
        command = [tmp_path / ".ci" / "scope", *arguments]
        done = subprocess.run(command, env={"PATH": "/usr/bin:/bin", "FULL": full}, capture_output=True, text=True)
        return done.returncode, done.stdout

    return scope


def needed(scope, **options):
    return [step for step in STEPS if scope("needs", step, **options)[0] == 0]


def test_steps_run_when_their_files_have_changed_since_they_passed(scope, tmp_path):
    assert needed(scope) == STEPS
    for step in STEPS:
        assert scope("run", step, "false")[0] == 1
        assert scope("needs", step)[0] == 0, "it did not pass"
        code, output = scope("run", step, "echo", "it runs")
        assert code == 0
        assert output.endswith("\nit runs\n")
        assert scope("run", step, "false")[0] == 0, "it is left out"
    assert needed(scope) == []
    assert needed(scope, full="1") == STEPS
    assert scope("run", "wheel", "true")[0] == 2
    for name, steps in SEEN.items():
        path = tmp_path / name
        before = path.read_text("utf-8")
        path.write_text(before + "\n")
        assert needed(scope) == steps, name
        path.write_text(before)
    (tmp_path / "meshcomm" / "core" / "memory" / "_new.pyx").touch()
    (tmp_path / "docs" / "faq.md").unlink()
    assert needed(scope) == ["sanitizers", "site"]
