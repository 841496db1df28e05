"""Facts about this process that `info` gathers: versions out of range with the cure, and libraries that are loaded."""

from importlib import metadata

import pytest

from meshcomm import _kernels
from meshcomm.tools.cli import facts


@pytest.mark.parametrize(
    ("asked", "has", "cure"),
    [
        ("numpy>=1.25", "1.24.4", "numpy is 1.24.4, and meshcomm needs numpy>=1.25: pip install 'numpy>=1.25'"),
        ("numpy<3,>=1.25", "3.0", "numpy is 3.0, and meshcomm needs numpy<3,>=1.25: pip install 'numpy<3,>=1.25'"),
        ("numpy>=1.25", "", "numpy is missing, and meshcomm needs numpy>=1.25: pip install 'numpy>=1.25'"),
        ("numpy>=1.25", "1.25", None),
        ("numpy>=1.25; extra == 'old'", "1.24", None),
    ],
)
def test_packages_out_of_range_and_the_cure(monkeypatch, asked, has, cure):
    monkeypatch.setattr(metadata, "requires", lambda name: [asked])
    monkeypatch.setattr(facts, "_version", lambda name: has)
    assert facts.outdated_versions() == [cure] * (cure is not None)


def test_no_package_mends_a_python_out_of_range(monkeypatch):
    monkeypatch.setattr(metadata, "requires", lambda name: None)
    monkeypatch.setattr(facts.platform, "python_version", lambda: "3.9.2")
    (text,) = facts.outdated_versions()
    assert text == "Python is 3.9.2, and meshcomm needs Python>=3.11: take another Python"


def test_what_runs_these_tests_is_in_range():
    assert facts.outdated_versions() == []


def test_loaded_libraries_are_found_by_name():
    name = _kernels.__file__.rpartition("/")[2].partition(".so")[0]
    assert facts.mapped_files(name.replace(".", r"\.")) == [_kernels.__file__]
    assert facts.mapped_files("libnobody") == []
