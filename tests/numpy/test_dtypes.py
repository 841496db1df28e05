"""Dates, durations, texts and records come to every function: what NumPy's gives or raises, also with empty blocks."""

import numpy as np
import pytest

import meshcomm as mc
from support.numpy_law import check, outcome, table

ELEMENTS = {
    "dates": np.array(["2000", "1999", "2003", "2001", "1998"], "M8[D]"),
    "dates and NaT": np.array(["2000", "NaT", "2003", "2001", "NaT"], "M8[D]"),
    "few dates": np.array(["2000", "1999"], "M8[ns]"),
    "durations": np.array([3, 1, 2, 5, 4], "m8[h]"),
    "durations and NaT": np.array([1, "NaT", 3], "m8[D]"),
    "few durations": np.array([3, "NaT"], "m8[s]"),
    "texts": np.array(["b", "a", "c", "b", ""]),
    "few texts": np.array(["b", "a"]),
    "bytes": np.array([b"b", b"a", b"c", b"b", b""]),
    "few bytes": np.array([b"b", b"a"]),
    "records": np.array([(1, 2.0), (3, 4.0)], "i4, f8"),
    "booleans": np.array([True, False]),
    "NaN": np.array([1.5, np.nan]),
    "complex": np.array([1 + 2j, 3]),
}
"""What a function may be given. With 3 ranks, a block of the short ones has no elements."""
CALLS = [call for calls in table("dtype_calls.txt").values() for call in calls]
UNLIKE = {("records", "np.trim_zeros(t)"), ("records", "np.count_nonzero(t)"), ("records", "t.astype(bool)")}
"""Records have no truth here."""


def names(t, elements):
    return {"t": t, "one": elements[1], "chosen": np.arange(len(elements)) % 2 == 0}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("kind", ELEMENTS)
def test_functions_give_what_numpy_gives_or_raise_what_it_raises_on_all_ranks(kind, ranks):
    elements = ELEMENTS[kind]

    def program():
        mesh = mc.create_mesh([("x", -1)])
        t = mc.distribute(elements, mc.Layout(["x"], mesh))
        for call in CALLS:
            if (kind, call) not in UNLIKE:
                found, expected = outcome(call, names(t, elements)), outcome(call, names(elements, elements))
                try:
                    check(found, expected)
                except AssertionError as error:
                    raise AssertionError(f"{call}: {error}") from error

    with mc.simulate(ranks) as world:
        world.run(program)
