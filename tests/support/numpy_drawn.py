"""Calls of NumPy with operands that are drawn: see `support.numpy_draws` for their names, in capitals.

As in `support.numpy_table`, what the last statement gives is compared.
"""

from support.numpy_composed import PRODUCTS

REDUCTIONS = ["sum", "prod", "mean", "any", "all", "max", "min", "ptp", "count_nonzero", "var", "std"]
WITHOUT_NAN = ["nansum", "nanprod", "nanmean", "nanvar", "nanstd", "nanmax", "nanmin"]
LOCATING = ["argmax", "argmin", "nanargmax", "nanargmin"]

STATISTICS = {
    **{name: [f"np.{name}(A, axis=AXES, keepdims=KEEP)"] * 2 for name in (*REDUCTIONS, *WITHOUT_NAN)},
    **{name: [f"np.{name}(A, axis=AXIS, keepdims=KEEP)", f"np.{name}(A)"] for name in LOCATING},
    **{name: [f"np.{name}(A, axis=AXIS)"] * 2 for name in ("cumsum", "cumprod", "nancumsum", "nancumprod")},
    "with options": [
        *(f"np.{name}(A, ddof={ddof})" for name in ("var", "std", "nanvar", "nanstd") for ddof in (1, 0.5)),
        "np.cumsum(N, axis=AXIS, dtype='f4')",
        "abs(A).sum(AXES, dtype='c8')",
        "abs(A).mean(AXES, dtype='c16')",
        "np.max(A, AXIS, None, True)",
        "np.sum(A, AXIS, 'c16', None, KEEP)",
        "np.arange(6).reshape(3, 2).astype('M8[D]').max(0)",
    ],
    "norm": [
        "np.linalg.norm(A, keepdims=KEEP)",
        *(f"np.linalg.norm(A, {order}, AXIS, KEEP)" for order in (None, 0, 1, 2, 3, 0.5, "np.inf", "-np.inf", -1)),
        *(f"np.linalg.norm(A, {order}, TWO, KEEP)" for order in (None, "'fro'", 1, -1, "np.inf", "-np.inf")),
        "np.linalg.norm(I(5, 3), 'fro')",
        "np.linalg.norm(I(5, 3), 1)",
    ],
    "diff": ["np.diff(A, TIMES)", "np.diff(A, TIMES, DIM)", "np.diff(S, 1, -1)"],
    "compare": [
        "np.array_equal(A, B)",
        "np.array_equal(A, B, equal_nan=True)",
        "np.allclose(A, B, equal_nan=KEEP)",
        "np.isclose(A, B, 0.1, equal_nan=KEEP)",
        "np.array_equiv(A, B)",
        "np.array_equiv(A, A[:1])",
    ],
    "average": [
        "np.average(A, AXES, returned=KEEP)",
        "np.average(A, AXES, W, keepdims=KEEP)",
        "np.average(A, AXIS, LINE)",
        "np.average(A, AXIS, NUMBERS)",
    ],
    "quantiles": [
        *(f"np.{name}(Q, axis=AXES, keepdims=KEEP)" for name in ("median", "nanmedian")),
        *(f"np.{name}(I(3, 7) + 0, AXES)" for name in ("median", "nanmedian")),
        *(
            f"np.{name}(Q, {level}, SOME, method={method!r}, keepdims=KEEP)"
            for name, level in [
                ("quantile", "LEVEL"),
                ("nanquantile", "LEVEL"),
                ("percentile", "np.multiply(LEVEL, 100)"),
                ("nanpercentile", "np.multiply(LEVEL, 100)"),
            ]
            for method in ("linear", "hazen", "lower")
        ),
        *(f"np.{name}(I({size}))" for name in ("median", "nanmedian") for size in (2, 7, 10, 16, 2000)),
        "np.median(f), np.median(v[1:]), np.nanmedian(x), np.quantile(v, [0.3, 1]), np.nanquantile(x, 0.3)",
        "np.median(np.resize(Q, 2001))",
        "np.nanquantile(np.resize(Q, 300) * np.nan, [0.2, 0.5]).astype(float)",  # NumPy: of NaN alone another dtype
    ],
    "histogram": [
        *(
            f"np.histogram(N, {bins}, {limits})"
            for bins in (1, 10, "np.int64(3)", [0, 1, 5, 20], "np.array([-3.5, 0, 0, 2.25])")
            for limits in (None, (-5, 12.5), (3, 3))
        ),
        *(f"np.histogram(N, {bins}, weights=W, density=KEEP)" for bins in (7, [0, 1, 5, 20])),
        "np.histogram(Q, 7, (-2, 2))",
        "np.histogram(Q, [0, 1, np.inf])",
        "np.histogram(Q, 4, weights=1j * Q)",
        "np.histogram(Q)",
        "np.histogram(A[:0])",
        "np.histogramdd(I(9, 2), 3)",
        "np.histogramdd(I(9, 3), [1, 2, 4], [(-3, 5)] * 3, weights=J(9))",
        "np.histogramdd(I(9, 2).real, [np.array([-9, 0, 4])] * 2, density=True)",
        "np.histogramdd([C, D], 3, [(0, 5)] * 2)",
        *(f"np.histogram2d(C, D, {bins}, weights=D)" for bins in (4, [2, 3], [-3, 0, 4], [[-3, 0], 3])),
    ],
}

ORDER = {
    "sort": [
        "np.sort(S, AXIS, kind='stable')",
        "np.sort(S, None)",
        "np.sort(S, -1, 'heapsort')",
        "np.signbit(np.sort(Q, -1, kind='stable'))",
        "np.argsort(S, AXIS, kind='mergesort')",
        "np.argsort(S, None, kind='stable')",
        "np.take_along_axis(S, np.argsort(S, -1), -1)",
        "S.sort(0); S",
        "np.sort(np.resize(S, 3000), kind='stable')",
        "np.argsort(np.resize(S, 3000)[::-1], kind='stable')",
        "np.sort_complex(N)",
    ],
    "keys": [
        "np.lexsort((N, A, W), DIM)",
        "np.lexsort(np.atleast_2d(Q))",
        "np.partition(Q, 0)[..., 0]",
        "np.sort(np.partition(Q, [-1, 0]))",
        "np.take_along_axis(Q, Q.argpartition(-1), -1)[..., -1]",
        "np.partition(Q, 0, None)[:1]",
        "np.partition(A[:0], 7, DIM), np.argpartition(A[:0], 7, None)",
    ],
    "unique": [
        "np.unique(S)",
        "np.unique(S, return_index=True, return_inverse=True, return_counts=True)",
        "np.unique(S, return_index=True, return_counts=KEEP, equal_nan=False)",
        "np.unique(N, return_inverse=True)",
        "np.unique(N, axis=AXIS, return_index=True, return_inverse=True, return_counts=KEEP)",
        "np.unique(np.full(50, 7), return_counts=True)",
        *(f"np.{name}(N)" for name in ("unique_all", "unique_counts", "unique_inverse")),
        "np.sort(np.unique_values(N))",
    ],
    "sets": [
        *(
            f"np.{name}({pair})"
            for name in ("union1d", "intersect1d", "setdiff1d", "setxor1d")
            for pair in ("L, V", "V, N")
        ),
        "np.intersect1d(V, L, return_indices=True)",
        *(
            f"np.{name}(np.unique(N)[::-1], np.unique(C), assume_unique=True)"
            for name in ("intersect1d", "setdiff1d", "setxor1d")
        ),
        "np.intersect1d(np.unique(N)[::-1], np.unique(C), True, True)",
        "np.ediff1d(D)",
        "np.ediff1d(D, to_begin=D)",
        "np.ediff1d(D, to_end=D, to_begin=3)",
        *(f"np.isin({pair}, invert=KEEP)" for pair in ("L, V", "V, L", "V[0], L")),
    ],
    "search": [
        *(f"np.searchsorted(np.sort(L), {values}, SIDE)" for values in ("V", "L[:1]", "V[0]")),
        "np.searchsorted(L, V, SIDE, np.argsort(L, kind='stable'))",
        "np.sort(L).searchsorted(V)",
        "np.digitize(Q, np.sort(D), KEEP)",
        "np.digitize(Q, np.sort(D)[::-1], KEEP)",
        "np.digitize(I(4, 3).real, [-2, 0, 3])",
    ],
    "bincount": ["np.bincount(C, minlength=TIMES)", "np.bincount(C, D, 20)", "np.bincount(C, D)"],
}

SHAPES = {
    "reshape": [
        "np.reshape(R, SHAPE)",
        "R.reshape(SHAPE, copy=True) + 0",
        "np.ravel(R)",
        "R.flatten()",
        "R.reshape(-1)",
    ],
    "axes": [
        "np.squeeze(R)",
        "np.squeeze(R, DIM)",
        *(f"np.expand_dims(R, {new})" for new in (0, -1, (0, -1), [1], (0, 1))),
        "np.swapaxes(R, DIM, 0)",
        "R.swapaxes(-1, DIM)",
        "np.moveaxis(R, DIM, -1)",
        "np.moveaxis(R, ORDER, range(R.ndim))",
        "np.rollaxis(R, DIM, 0)",
        "np.transpose(R, ORDER)",
        "R.transpose(*ORDER), R.transpose(), R.transpose(None), R.T",
        *(f"np.atleast_{n}d(R)" for n in (1, 2, 3)),
        "np.broadcast_to(P, (3, *A.shape))",
        "np.broadcast_arrays(P, A)",
    ],
    "flip": [
        "np.flip(R)",
        "np.flip(R, AXES)",
        "np.flipud(R)",
        "np.fliplr(R)",
        "np.rot90(R, SHIFT, TWO)",
        "R[::-1, 5:1:-2].copy()",
    ],
    "roll": [
        "np.roll(R, SHIFT)",
        "np.roll(R, SHIFT, AXES)",
        "np.roll(R, SHIFT, DIM)",
        "np.roll(R, (1, 2), 0)",
        "np.roll(R, (1, 2))",
        "np.roll(R, (1, -3), TWO)",
    ],
    "repeat": [
        "np.repeat(R, TIMES)",
        "np.repeat(R, TIMES, DIM)",
        "np.repeat(R, COUNTS, DIM)",
        "R.repeat(COUNTS, DIM)",
        *(f"np.tile(R, {times})" for times in ("TIMES", (2, 1), (1, 1), (2, 0, 1, 2))),
    ],
    "join": [
        *(f"np.concatenate([{given}], DIM)" for given in ("R, R", "A, B, N", "N, N[:0]", "S, S[1:]")),
        "np.concatenate([A, P, N], None)",
        "np.concatenate([A, W], DIM, dtype='c16', casting='unsafe')",
        *(f"np.{name}([A, N, B])" for name in ("stack", "vstack", "hstack", "dstack", "column_stack")),
        "np.stack([R, R], DIM)",
        "np.append(A, N, DIM)",
        "np.append(A, P)",
    ],
    "split": [
        *(f"np.array_split(R, {sections}, DIM)" for sections in (3, 1, [2, 5], (0, 3, 3, 20), [-2], "np.array([1])")),
        "np.split(R, 3, DIM)",
        *(f"np.{name}(R, [1, 3])" for name in ("vsplit", "hsplit", "dsplit")),
        "np.hsplit(I(6), 2)",
    ],
    "pad": [
        "np.pad(A, WIDTH)",
        "np.pad(A, WIDTH, constant_values=(3, 4))",
        *(f"np.pad(R, WIDTH, {mode!r})" for mode in ("edge", "reflect", "symmetric", "wrap")),
        *(f"np.pad(R, WIDTH, {mode!r}, stat_length=2)" for mode in ("maximum", "minimum", "mean", "median")),
        *(f"np.pad(R, WIDTH, {mode!r})" for mode in ("mean", "median", "maximum")),
        "np.pad(R, WIDTH, 'linear_ramp', end_values=(3, -4))",
    ],
    "triangles": [
        *(f"np.{name}(np.atleast_1d(A), {k})" for name in ("tril", "triu") for k in (0, 2, -3, 20)),
        "np.triu(I(5, 3, 7)[..., ::2], 1)",
        "np.signbit(np.tril(np.atleast_2d(Q)))",
        "np.meshgrid(C, C[:3], indexing='ij')",
        "np.meshgrid(C, C[:2], C[:3])",
        "np.meshgrid(C)",
    ],
    "like": [
        *(f"np.{name}(A, dtype={dtype!r})" for name in ("zeros_like", "ones_like") for dtype in (None, "i4")),
        "np.full_like(A, 1)",
        "np.full_like(A, 2.5, dtype='f4')",
        "np.empty_like(A, dtype='u2') * 0",
        "np.copy(A)",
        "np.shape(A), np.ndim(A), np.size(A), np.iscomplexobj(A)",
    ],
}

TAKING = {
    "take": [
        "np.take(R, INDEX, DIM)",
        "R.take(WIDE, DIM, mode=MODE)",
        "np.take(R, AT)",
        "np.take(R, NUMBER, DIM)",
        "np.take_along_axis(R, ALONG, DIM)",
        "np.take_along_axis(R, AT.ravel(), None)",
        "np.take(Q, [0], 0, Q[:1].copy())",
    ],
    "masks": [
        "np.compress(MASK, R, DIM)",
        "R.compress(MASK)",
        "np.extract(M, R)",
        "np.compress(N > 3, A, DIM)",
        *(f"np.{name}(N)" for name in ("nonzero", "argwhere", "flatnonzero")),
        "np.where(A > 1)",
        "N.nonzero()",
        "N[np.nonzero(N)]",
    ],
    "choose": [
        "np.choose(N % 3, (A, P, B))",
        "np.choose(N, (A, P), mode=MODE)",
        "np.select([M, N > 3], [A, P], 7)",
        "np.where(M, A, P)",
        "np.where(M, 1, 0.5)",
    ],
    "indices": [
        *(f"np.unravel_index(N, (2, 3, 4), {order!r})" for order in "CF"),
        "np.ravel_multi_index(np.unravel_index(N, (3, 4)), (3, 4))",
        "np.ravel_multi_index((N * 3, N), (3, 4), MODE)",
    ],
    "put": [
        "np.put(A, AT, P); A",
        "A.put(AT * 2, 3, mode=MODE); A",
        "np.put_along_axis(A, ALONG, 3, DIM); A",
        "np.put_along_axis(A, ALONG, np.take_along_axis(B, ALONG, DIM), DIM); A",
        "np.place(A, M, B.ravel()[:2]); A",
        "np.putmask(A, M, B); A",
        "np.putmask(A, M, B.ravel()[:3]); A",
        "np.copyto(A, P, 'unsafe', where=M); A",
        "np.copyto(A, B); A",
    ],
    "edit": [
        *(
            f"np.{call}, DIM)"
            for call in (
                "delete(R, NUMBER",
                "delete(R, INDEX.ravel()",
                "delete(R, MASK",
                "delete(R, slice(1, 5, 2)",
                "insert(A, NUMBER, 3",
                "insert(A, INDEX.ravel(), 3",
                "insert(A, MASK, 3",
                "insert(A, slice(0, 3), 7",
            )
        ),
        "np.delete(R, AT.ravel())",
        "np.insert(A, AT.ravel(), AT.ravel())",
        "np.insert(A, 0, B[..., :1].swapaxes(-1, 0), -1)",
    ],
}

UFUNCS = [
    "add",
    "subtract",
    "multiply",
    "true_divide",
    "maximum",
    "hypot",
    "less",
    "equal",
    "logical_or",
    "floor_divide",
]
OPERATORS = ["+", "-", "*", "/", "//", "%", "<", "<=", ">", ">=", "==", "!="]
SCALARS = ["2", "1.5", "True", "1j", "np.float32(2)", "np.int64(3)", "np.array(1.25)"]

ELEMENTS = {
    "functions": [f"np.{name}({pair})" for name in UFUNCS for pair in ("A, B", "P, A", "A, W")],
    "operators": [
        *(f"A {operator} P" for operator in OPERATORS),
        *(f"2 {operator} W" for operator in OPERATORS),
        *("-A", "+A", "abs(A)", "W**2", "2**W", "M**2", "~M"),
        *("M & (N > 2)", "divmod(P, W)", "np.modf(W)"),
        *(f"(A + {scalar}).dtype" for scalar in (*SCALARS, "np.array([1.0])", "np.int8(1)")),
        "W + [1, 2, 3]",
        "np.ones(3, 'u1') + 300",
    ],
    "scalars": [f"A * {scalar}" for scalar in SCALARS] + [f"{scalar} - W" for scalar in SCALARS],
    "in place": [
        "W += 2; W",
        "A *= P; A",
        "A -= A; A",
        "np.maximum(A, P, out=A); A",
        "np.multiply(A, P, out=np.zeros_like(A), casting='unsafe')",
        "np.modf(W, out=(np.zeros_like(W), W)); W",
        "np.clip(W, 1, 3, out=W); W",
        "np.round(W, out=W); W",
    ],
    "complex": [
        *(f"np.{name}(A * 1j)" for name in ("real", "imag", "conj", "isreal", "iscomplex")),
        "A.conj(), A.conjugate(), A.real, A.imag, np.isreal(A), np.iscomplex(A)",
    ],
    "values": [
        *(f"A.astype({kind!r})" for kind in ("f8", "c8", "?", "f2", "g")),
        *(f"N.astype({kind!r})" for kind in ("i1", "u2", ">i4")),
        "np.round(A)",
        "A.round(1)",
        "np.around(N, -1)",
        "np.clip(A, B, None)",
        "np.clip(A, None, B)",
        "np.clip(N, 0, W)",
        "W.clip(max=3)",
        "np.clip(2, W, 100)",
        "np.clip(N, N, 100)",
    ],
}


_GROUPS = {
    "statistics": STATISTICS,
    "order": ORDER,
    "shapes": SHAPES,
    "taking": TAKING,
    "drawn": ELEMENTS,
    "products": PRODUCTS,
}
DRAWN = {f"{kind} {name}": calls for kind, group in _GROUPS.items() for name, calls in group.items()}
"""The calls, by a name."""
