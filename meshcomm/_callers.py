"""The line of a program that has called meshcomm: where a warning points to, and where a message says a rank is."""

import os
import sys
import warnings
from types import FrameType

_PACKAGE = f"{os.path.dirname(__file__)}{os.sep}"


def is_ours(frame: FrameType) -> bool:
    """Return whether *frame* runs code of this package."""
    name = frame.f_code.co_filename
    return name.startswith(_PACKAGE) or (name.startswith("meshcomm/") and name.endswith(".pyx"))  # as Cython names it


def warn(text: str, category: type[Warning] = UserWarning) -> None:
    """Issue a warning that points to the line which called meshcomm, however many calls of ours are in between.

    ``warnings.warn`` can skip the files of a package only since Python 3.12.
    """
    frame = sys._getframe(1)
    while frame.f_back is not None and (is_ours(frame) or _is_import(frame)):
        frame = frame.f_back
    its = frame.f_globals
    warnings.warn_explicit(
        text,
        category,
        frame.f_code.co_filename,
        frame.f_lineno,
        its.get("__name__", "<unknown>"),
        its.setdefault("__warningregistry__", {}),
    )


def _is_import(frame: FrameType) -> bool:
    """Return whether *frame* is Python's own, between an ``import`` and the module."""
    return frame.f_code.co_filename.startswith("<frozen importlib.")
