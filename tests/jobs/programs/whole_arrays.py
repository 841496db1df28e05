"""A script of NumPy that runs the statements of a table and prints what each of them gives.

Its arguments are the table and the number of elements of the arrays.
"""

import contextlib
import copy  # noqa: F401 - here and below: for statements of the table
import hashlib  # noqa: F401
import importlib
import io  # noqa: F401
import json  # noqa: F401
import math  # noqa: F401
import pickle  # noqa: F401
import struct  # noqa: F401
import sys
import zlib  # noqa: F401

import numpy as np
from numpy.lib.stride_tricks import as_strided  # noqa: F401

NAMES = (
    *("numpy.lib.recfunctions", "pandas", "PIL.Image", "matplotlib.pyplot"),
    *(f"scipy.{name}" for name in ("fft", "integrate", "interpolate", "linalg", "ndimage", "optimize", "signal")),
    *(f"scipy.{name}" for name in ("sparse.linalg", "spatial", "special", "stats")),
    *(
        f"sklearn.{name}"
        for name in (
            "cluster",
            "feature_extraction.image",
            "linear_model",
            "metrics",
            "model_selection",
            "preprocessing",
        )
    ),
    *("sklearn.decomposition", "sklearn.pipeline", "h5py", "zarr", "xarray"),
)
for name in NAMES:
    with contextlib.suppress(ImportError):  # as the script prints the same error without it
        globals()[name.partition(".")[0]] = importlib.import_module(name.partition(".")[0])
        importlib.import_module(name)
size = int(sys.argv[2])


def names():
    """Return the arrays that a row of the table begins with."""
    z = np.zeros(size // 4, [("a", "f8"), ("b", "f8"), ("c", "i4")])
    z["a"] = np.arange(size // 4)
    x = np.arange(float(size))
    m = x.reshape(-1, 4).copy()
    return globals() | {"x": x, "k": np.arange(size), "m": m, "K": np.array([[1.0, 2.0], [3.0, 4.0]]), "z": z}


with open(sys.argv[1], encoding="utf-8") as file:
    rows = [line for line in file.read().partition("\n## ")[2].splitlines()[1:] if line and line[0] not in "# "]
    for row in rows:
        *statements, last = row.split("; ")
        known = names()
        try:
            for statement in statements:
                exec(statement, known)
            exec(last, known) if last.startswith("for ") else print(repr(eval(last, known)))
            print(known["x"], known["m"], known["z"])
        except Exception as error:
            print(row, type(error).__name__, error)
