"""Users' editors infer precise types: mypy and pyright check tests/typing, and see what is wrong.

The checkers are no dependency of the tests: without one, its tests are skipped. `make check` installs both.
"""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

import meshcomm as mc

SOURCES = Path(mc.__file__).parent.parent
TYPING = Path(__file__).parent.parent / "typing"

WRONG = """
from typing import assert_type

import meshcomm as mc


def wrong(t: mc.DTensor, layout: mc.Layout) -> None:
    assert_type(mc.relayout([t], layout), mc.DTensor)
    mc.relayout(t, layout)  # type: ignore
    layout.no_such_name
"""


def run(*command, cwd):
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)


def mypy(path, tmp_path):
    """Return what mypy finds in *path*, by line, and nothing that it finds in the package itself."""
    pytest.importorskip("mypy")
    settings, kept = tmp_path / "mypy.ini", tmp_path.parent / "mypy"  # what it found is of use to the next test
    settings.write_text(f"[mypy]\nstrict = True\nmypy_path = {SOURCES}\ncache_dir = {kept}\n")
    found = run(sys.executable, "-m", "mypy", "--config-file", settings, "--no-pretty", path, cwd=tmp_path)
    assert found.returncode in (0, 1), found.stdout + found.stderr
    return [line for line in found.stdout.splitlines() if path.name in line and " error: " in line]


def pyright(path, tmp_path):
    """Return what pyright finds in *path*. basedpyright is pyright with a node that pip installs."""
    if importlib.util.find_spec("basedpyright") is None:
        pytest.skip("basedpyright is not installed")
    settings = tmp_path / "pyrightconfig.json"
    settings.write_text(
        json.dumps(
            {
                "include": [str(path)],
                "extraPaths": [str(SOURCES)],
                "typeCheckingMode": "standard",
                "reportUnnecessaryTypeIgnoreComment": "error",
            }
        )
    )
    command = [sys.executable, "-m", "basedpyright", "--outputjson", "-p", str(settings)]
    found = json.loads(run(*command, "--pythonpath", sys.executable, cwd=tmp_path).stdout)
    assert found["summary"]["filesAnalyzed"] == 1
    return [f"{each['range']['start']['line'] + 1}: {each['message']}" for each in found["generalDiagnostics"]]


@pytest.mark.slow
@pytest.mark.parametrize("checker", [mypy, pyright])
def test_public_types_are_precise(checker, tmp_path):
    assert checker(TYPING / "public_api.py", tmp_path) == []


@pytest.mark.slow
@pytest.mark.parametrize("checker", [mypy, pyright])
def test_wrong_types_are_seen(checker, tmp_path):
    path = tmp_path / "wrong_types.py"
    path.write_text(WRONG)
    found = checker(path, tmp_path)
    assert len(found) == 3, found
    for line, text in zip((8, 9, 10), found, strict=True):
        assert f"{line}:" in text
