"""Facts about this process that `info` gathers: versions out of range with the cure, and libraries that are loaded."""

import platform

import pytest

from meshcomm import _kernels
from meshcomm.tools.cli import facts


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """A function that installs a package, of which there is what ``pip`` notes only, before those that are here."""
    monkeypatch.syspath_prepend(tmp_path)

    def install(name, lines):
        folder = tmp_path / f"{name}-0.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\n{lines}\n")

    return install


@pytest.mark.parametrize(
    ("asked", "has", "cure"),
    [
        (
            "other>=1.25",
            "1.24.4",
            "other is 1.24.4, and meshcomm needs other>=1.25: pip install 'other>=1.25'",
        ),
        (
            "other<3,>=1.25",
            "3.0",
            "other is 3.0, and meshcomm needs other<3,>=1.25: pip install 'other<3,>=1.25'",
        ),
        (
            "other>=1.25",
            "",
            "other is missing, and meshcomm needs other>=1.25: pip install 'other>=1.25'",
        ),
        ("other>=1.25", "1.25", None),
        ("other>=1.25; extra == 'old'", "1.24", None),
    ],
)
def test_packages_out_of_range_and_the_cure(installed, asked, has, cure):
    installed("meshcomm", f"Version: 0\nRequires-Python: >=3\nRequires-Dist: {asked}")
    if has:
        installed("other", f"Version: {has}")
    assert facts.outdated_versions() == [cure] * (cure is not None)


def test_no_package_mends_a_python_out_of_range(installed):
    installed("meshcomm", "Version: 0\nRequires-Python: >=4")
    (text,) = facts.outdated_versions()
    assert text == f"Python is {platform.python_version()}, and meshcomm needs Python>=4: take another Python"


def test_what_runs_these_tests_is_in_range():
    assert facts.outdated_versions() == []


def test_loaded_libraries_are_found_by_name():
    name = _kernels.__file__.rpartition("/")[2].partition(".so")[0]
    assert facts.mapped_files(name.replace(".", r"\.")) == [_kernels.__file__]
    assert facts.mapped_files("libnobody") == []
