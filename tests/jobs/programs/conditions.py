"""A script of NumPy that runs the statements of a table, and prints what it sees of floating-point conditions."""

import contextlib
import re
import sys
import warnings
import zlib

import numpy as np


def names():
    """Return the arrays that a row of the table begins with."""
    x, z, far, m = np.arange(20_000.0), np.ones(20_000), np.zeros(20_000), np.zeros((200, 200))
    z[15_000] = 0
    far[2] = far[-2] = 1e308
    m[0, 199] = m[199, 0] = 1e200
    more = {"i": np.arange(20_000), "j": z.astype(int), "row": np.arange(200.0)}
    return {"np": np, "x": x, "z": z, "far": far, "large": np.full(20_000, 1e305), "m": m} | more


@contextlib.contextmanager
def by_errors(seen):
    with np.errstate(all="raise", under="ignore"):
        yield


@contextlib.contextmanager
def by_calls(seen):
    before = np.seterr(all="call"), np.seterrcall(lambda *args: seen.append(args))
    try:
        yield
    finally:
        np.seterr(**before[0])
        np.seterrcall(before[1])


@contextlib.contextmanager
def by_log(seen):
    class Log:
        def write(self, text):
            seen.append(text)

    with np.errstate(all="log", call=Log()):
        yield


@contextlib.contextmanager
def by_warnings(seen):
    warnings.simplefilter("error")
    yield


@contextlib.contextmanager
def by_records(seen):
    with warnings.catch_warnings(record=True) as issued:
        warnings.simplefilter("always")
        try:
            yield
        finally:
            seen += [(str(each.message), each.category.__name__) for each in issued]


with open(sys.argv[1], encoding="utf-8") as file:
    rows = re.findall(r"^(?!##).+", file.read().partition("\n## ")[2].partition("\n")[2], re.MULTILINE)
for way in (by_errors, by_calls, by_log, by_warnings, by_records):
    for row in rows:
        known, seen = names(), []
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                with way(seen):
                    exec(row, known)
            except (FloatingPointError, RuntimeWarning) as error:
                seen.append((type(error).__name__, str(error)))
            seen.append(float(known["x"][:15_001].max()))  # what was written before an error
        print(way.__name__, row, seen)
        np.array([zlib.crc32(repr(seen).encode())])  # which the ranks compare with their next call
        np.sum(np.zeros(20_000))
