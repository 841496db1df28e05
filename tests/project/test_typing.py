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


def mypy(paths, folder):
    """Return what mypy finds in each of *paths*, by line, and nothing that it finds in the package itself."""
    pytest.importorskip("mypy")
    settings = folder / "mypy.ini"
    settings.write_text(f"[mypy]\nstrict = True\nmypy_path = {SOURCES}\ncache_dir = {folder / 'mypy'}\n")
    found = run(sys.executable, "-m", "mypy", "--config-file", settings, "--no-pretty", *paths, cwd=folder)
    assert found.returncode in (0, 1), found.stdout + found.stderr
    errors = [line for line in found.stdout.splitlines() if " error: " in line]
    return {path.name: [line for line in errors if path.name in line] for path in paths}


def pyright(paths, folder):
    """Return what pyright finds in each of *paths*. basedpyright is pyright with a node that pip installs."""
    if importlib.util.find_spec("basedpyright") is None:
        pytest.skip("basedpyright is not installed")
    settings = folder / "pyrightconfig.json"
    settings.write_text(
        json.dumps(
            {
                "include": [str(path) for path in paths],
                "extraPaths": [str(SOURCES)],
                "typeCheckingMode": "standard",
                "reportUnnecessaryTypeIgnoreComment": "error",
            }
        )
    )
    command = [sys.executable, "-m", "basedpyright", "--outputjson", "-p", str(settings)]
    found = json.loads(run(*command, "--pythonpath", sys.executable, cwd=folder).stdout)
    assert found["summary"]["filesAnalyzed"] == len(paths)
    lines = {path.name: [] for path in paths}
    for each in found["generalDiagnostics"]:
        lines[Path(each["file"]).name].append(f"{each['range']['start']['line'] + 1}: {each['message']}")
    return lines


@pytest.fixture(scope="module", params=[mypy, pyright], ids=["mypy", "pyright"])
def found(request, tmp_path_factory):
    """What a checker finds in both files: at once, because it reads the package first."""
    folder = tmp_path_factory.mktemp("typing")
    wrong = folder / "wrong_types.py"
    wrong.write_text(WRONG)
    return request.param([TYPING / "public_api.py", wrong], folder)


@pytest.mark.slow
def test_public_types_are_precise(found):
    assert found["public_api.py"] == []


@pytest.mark.slow
def test_wrong_types_are_seen(found):
    lines = found["wrong_types.py"]
    assert len(lines) == 3, lines
    for line, text in zip((8, 9, 10), lines, strict=True):
        assert f"{line}:" in text
