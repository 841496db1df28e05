"""The two programs of the README, with meshcomm and with mpi4py, do the same on any number of ranks."""

import re

import numpy as np

from support.paths import ROOT


def program(language):
    """Return the program of the README in blocks of this name."""
    (found,) = re.findall(rf"^```{language}\n(.*?)^```$", (ROOT / "README.md").read_text("utf-8"), re.M | re.S)
    return compile(found, "README.md", "exec")


def test_both_programs_have_the_same_columns():
    ours, theirs = {"print": lambda text: None}, {"print": lambda text: None}
    exec(program("python"), ours)
    exec(program("py"), theirs)
    ours["mesh"].close()
    assert np.array_equal(ours["t"].local, theirs["block"])
    assert np.array_equal(ours["u"].local, theirs["after"])
