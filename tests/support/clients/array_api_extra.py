"""The tests of array-api-extra, from a checkout: they are in no package."""

import os
from importlib import import_module
from pathlib import Path

import pytest

from support.clients import cutting

ENVIRONMENT = {}
FOLDER = "tests/main"


def paths(root):
    """Return the files of tests."""
    return [str(Path(os.environ["ARRAY_API_EXTRA"]) / FOLDER)]


def takes(item):
    """Return whether a test belongs to the suite."""
    return "xp" in getattr(item, "fixturenames", ())


def install(on_tensors):
    """Put tensors, or NumPy's arrays, in for the list of array libraries."""
