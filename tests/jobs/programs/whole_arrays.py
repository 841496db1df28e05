"""A script of NumPy that runs the statements of a table and prints what each of them gives."""

import contextlib
import copy  # noqa: F401 - here and below: for statements of the table
import hashlib  # noqa: F401
import importlib
import pickle  # noqa: F401
import re
import sys

import numpy as np
from numpy.lib.stride_tricks import as_strided  # noqa: F401

for name in ("scipy.sparse.linalg", "scipy.ndimage", "pandas", "PIL.Image", "sklearn.preprocessing"):
    with contextlib.suppress(ImportError):  # as the script prints the same error without it
        globals()[name.partition(".")[0]] = importlib.import_module(name.partition(".")[0])
        importlib.import_module(name)


def names():
    """Return the arrays that a row of the table begins with."""
    z = np.zeros(3, [("a", "f8"), ("b", "f8"), ("c", "i4")])
    z["a"] = np.arange(3.0)
    x = np.arange(12.0)
    return globals() | {"x": x, "m": x.reshape(3, 4).copy(), "K": np.array([[1.0, 2.0], [3.0, 4.0]]), "z": z}


with open(sys.argv[1], encoding="utf-8") as file:
    for row in filter(None, re.split(r"\n(?:#.*\n)?", file.read().partition("\n## ")[2])[1:]):
        *statements, last = row.split("; ")
        known = names()
        try:
            for statement in statements:
                exec(statement, known)
            exec(last, known) if " = " in last or last.startswith("for ") else print(repr(eval(last, known)))
            print(known["x"], known["m"], known["z"])
        except Exception as error:
            print(row, type(error).__name__, error)
