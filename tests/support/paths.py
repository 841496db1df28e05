"""Where things are in the repository."""

from pathlib import Path

TESTS = Path(__file__).parents[1]
ROOT = TESTS.parent
DATA = TESTS / "data"
DOCS = ROOT / "docs"
EXAMPLES = ROOT / "mpi_examples"
PROGRAMS = TESTS / "jobs" / "programs"
