"""A rank may start programs that use meshcomm by themselves."""

import pytest

from support.paths import PROGRAMS


@pytest.mark.parametrize("case", ["subprocess", "spawn", "forkserver"])
def test_children_are_worlds_of_their_own(launch, case):
    finished = launch(2, PROGRAMS / "children.py", case)
    assert finished.code == 0, finished
    assert finished.text.count("as expected") == 2, finished
