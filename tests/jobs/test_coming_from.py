"""The pages of docs/coming-from: the code of the other system gives what ours gives."""

import os
from importlib.util import find_spec

import pytest

from support.paths import PROGRAMS, TESTS
from support.side_by_side import RANKS, SYSTEMS

pytestmark = pytest.mark.any_mpi


@pytest.mark.parametrize("page", SYSTEMS)
def test_both_sides_agree(launch, page):
    missing = [module for module in SYSTEMS[page] if find_spec(module) is None]
    if missing:
        pytest.skip(f"not installed: {', '.join(missing)}")
    path = os.pathsep.join(filter(None, (str(TESTS), os.environ.get("PYTHONPATH"))))
    job = launch(RANKS, PROGRAMS / "coming_from.py", page, PYTHONPATH=path)
    assert job.code == 0, job
    assert "the end" in job.text, job
