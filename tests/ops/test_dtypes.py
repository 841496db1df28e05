"""Dates, durations, texts and records come to every function: what NumPy's gives or raises, also with empty blocks."""

import numpy as np
import pytest

import meshcomm as mc
from support.numpy_law import RAISED, outcome

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
UFUNCS = ("maximum", "minimum", "fmax", "fmin", "add", "subtract", "multiply", "logical_and", "logical_xor", "hypot")
REDUCTIONS = (
    *("max", "min", "nanmax", "nanmin", "sum", "prod", "mean", "nansum", "nanprod", "nanmean", "std", "var", "nanstd"),
    *("nanvar", "ptp", "median", "nanmedian", "any", "all", "argmax", "argmin", "nanargmax", "nanargmin", "cumsum"),
    *("cumprod", "nancumsum", "nancumprod", "count_nonzero", "linalg.norm", "linalg.vector_norm", "cumulative_sum"),
)
OTHERS = (
    "sort",
    "argsort",
    "diff",
    "gradient",
    "unwrap",
    "nan_to_num",
    "isnan",
    "real",
    "angle",
    "fft.fft",
    "fft.rfft",
)
TABLE = [
    *(f"np.{ufunc}.{method}(t)" for ufunc in UFUNCS for method in ("reduce", "accumulate")),
    *(f"np.{ufunc}.reduceat(t, [0, 1])" for ufunc in UFUNCS[:4]),
    *(f"np.{name}(t)" for name in REDUCTIONS + OTHERS),
    *(f"np.{name}(t, where=chosen)" for name in ("sum", "prod", "mean", "nanmean", "nansum", "std", "any", "all")),
    *(f"np.{name}(t, where=chosen, initial=one)" for name in ("max", "min", "nanmax", "nanmin", "sum")),
    *(f"np.{name}(t, initial=one)" for name in ("max", "min", "nanmax", "nanmin", "sum")),
    *(f"np.{name}(t, dtype=float)" for name in ("sum", "prod", "mean", "cumsum")),
    *(f"np.{name}(t, [0, 0.5, 1]{more})" for name in ("quantile", "nanquantile") for more in ("", ", method='lower'")),
    "np.nanpercentile(t, [0, 50, 100])",
    "np.nanquantile(t, [0.5], weights=np.ones(len(t)), method='inverted_cdf')",
    "np.quantile(t, [0.5], weights=np.ones(len(t)), method='inverted_cdf')",
    *(f"np.linalg.norm(t, {order})" for order in (0, 1, "np.inf")),
    *(f"np.linalg.norm(t[:, None]{order})" for order in ("", ", 1", ", np.inf")),
    "np.linalg.det(t[:1, None])",
    "t.astype(float)",
    "np.i0(t)",
    "t.astype(bool)",
    "np.trim_zeros(t)",
    "t == 'b'",
    "t != 'b'",
    "t == 1",
    "one in t",
    "'x' in t",
    "b'x' in t",
    "1 in t",
    "t.max()",
    "t.mean()",
]
UNLIKE = {("records", "np.trim_zeros(t)"), ("records", "np.count_nonzero(t)"), ("records", "t.astype(bool)")}
"""Records have no truth here."""


def names(t, elements):
    return {"t": t, "one": elements[1], "chosen": np.arange(len(elements)) % 2 == 0}


def plain(found):
    return np.asarray(found.to_numpy() if isinstance(found, mc.DTensor) else found)


def check(call, found, expected):
    if isinstance(expected, Exception):
        kind = next(kind for kind in RAISED if isinstance(expected, kind))
        assert isinstance(found, kind), f"{call}: {found!r}, but NumPy raises {expected!r}"
        return
    assert not isinstance(found, Exception), f"{call}: {found!r}, but NumPy gives {expected!r}"
    made, wanted = plain(found), plain(expected)
    assert (made.shape, made.dtype) == (wanted.shape, wanted.dtype), call
    if wanted.dtype.kind in "fc":
        np.testing.assert_allclose(made, wanted, err_msg=call)
    else:
        np.testing.assert_array_equal(made, wanted, err_msg=call)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("kind", ELEMENTS)
def test_functions_give_what_numpy_gives_or_raise_what_it_raises_on_all_ranks(kind, ranks):
    elements = ELEMENTS[kind]

    def program():
        mesh = mc.create_mesh([("x", -1)])
        t = mc.distribute(elements, mc.Layout(["x"], mesh))
        for call in TABLE:
            if (kind, call) not in UNLIKE:
                check(call, outcome(call, names(t, elements)), outcome(call, names(elements, elements)))

    with mc.simulate(ranks) as world:
        world.run(program)
