"""Paths in the repository."""

from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

TESTS = Path(__file__).parents[1]
ROOT = TESTS.parent
DATA = TESTS / "data"
DOCS = ROOT / "docs"
EXAMPLES = ROOT / "mpi_examples"
PROGRAMS = TESTS / "jobs" / "programs"


def script(path):
    """Return a Python file of the repository that is in no package, as a module."""
    spec = spec_from_file_location(Path(path).stem, ROOT / path)
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
