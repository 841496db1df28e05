"""Calls of NumPy, by the name of what they try: each must give on tensors what it gives on arrays.

`;` comes between statements; what the last one gives is compared. Operands are arrays for NumPy, and tensors in
layouts of all kinds: f, g (7 x 6 floats), v, w (11 floats), n (7 x 6 integers), k (11 integers), b (7 x 6 booleans),
c (7 x 6 complex), t (4 x 3 x 5 floats), e (0 x 6 floats), z (no axes), x (7 x 6 floats, some NaN), s (11 sorted
floats), u (11 bytes). A list of calls may hold errors, too: both must raise of one class.
"""

import numpy as np

from support.numpy_composed import COMPOSED, METHODS

UFUNCS = {
    "call": [
        "np.add(f, g, where=b)[b]",
        "np.divide(f, n, out=g, where=n != 0); g",
        "np.divide(f, n, where=n != 0)[n != 0]",
        "np.sqrt(f, where=f > 0, dtype='f4')[f > 0]",
        "np.divmod(n, 3, out=(None, n)); n",
        "np.modf(f, out=(g, None))[0]; g",
        "np.add(1, 2, where=b)[b]",
        "np.frexp(f)",
        "np.add(f, g, where=n)",
    ],
    "reduce": [
        *(
            f"np.{ufunc}.reduce(f)"
            for ufunc in ("add", "multiply", "maximum", "minimum", "fmax", "hypot", "logaddexp")
        ),
        *(f"np.{ufunc}.reduce(n, axis=1)" for ufunc in ("bitwise_or", "bitwise_and", "bitwise_xor", "gcd", "lcm")),
        *(f"np.{ufunc}.reduce(b, axis=None)" for ufunc in ("logical_and", "logical_or", "logical_xor")),
        "np.subtract.reduce(f, axis=0)",
        "np.subtract.reduce(f, axis=1, initial=5, keepdims=True)",
        "np.divide.reduce(f, axis=1, where=f != 0, initial=1)",
        "np.subtract.reduce(f, axis=None)",
        "np.float_power.reduce(abs(n), axis=0)",
        "np.add.reduce(t, axis=(0, 2), keepdims=True)",
        "np.add.reduce(f, axis=1, initial=3)",
        "np.add.reduce(f, axis=0, where=b)",
        "np.multiply.reduce(n, axis=None, where=b, initial=2)",
        "np.maximum.reduce(f, axis=0, where=b, initial=-1)",
        "np.maximum.reduce(f, axis=0, where=b)",
        "np.bitwise_and.reduce(n, axis=1, where=b)",
        "np.hypot.reduce(n, axis=1, where=b)",
        "np.maximum.reduce(e)",
        "np.maximum.reduce(e, initial=3)",
        "np.maximum.reduce(e, axis=1)",
        "np.add.reduce(e)",
        "np.add.reduce(f, axis=0, dtype='f4')",
        "np.add.reduce(n, axis=0, out=w[:6]); w",
        "np.add.reduce(z)",
        "np.add.reduce(f, where=False)",
        "f.sum(axis=0, where=None, initial=2)",
        "f.max(axis=1, where=[1, 0, 1, 0, 0, 1], initial=-9)",
        "np.add(f, 1, where=[1, 0, 1, 0, 0, 1], out=g); g",
        "np.sum(f, where=n)",
        "np.add.reduce(f, axis=2)",
        "np.sin.reduce(f)",
    ],
    "accumulate": [
        *(f"np.{ufunc}.accumulate(f)" for ufunc in ("add", "maximum", "fmin", "subtract", "divide")),
        "np.multiply.accumulate(n, axis=1)",
        "np.bitwise_xor.accumulate(k)",
        "np.logaddexp.accumulate(v)",
        "np.subtract.accumulate(t, axis=1, dtype='f4')",
        "np.add.accumulate(f, axis=5)",
        "np.add.accumulate(f, axis=None)",
        "np.add.accumulate(z, axis=None)",
    ],
    "reduceat": [
        "np.add.reduceat(v, [0, 3, 7])",
        "np.maximum.reduceat(f, [0, 4, 2], axis=1)",
        "np.subtract.reduceat(n, np.array([0, 6]), axis=0)",
        "np.add.reduceat(v, [0, 30])",
        "np.add.reduceat(f, [], axis=1)",
    ],
    "outer": [
        "np.add.outer(v, w)",
        "np.subtract.outer(f, k)",
        "np.multiply.outer(v, 2)",
        "np.maximum.outer([1, 2], v)",
    ],
    "at": ["np.add.at(v, [0, 0, 3], 1); v"],
}

REDUCTIONS = {
    **{
        name: [
            f"np.{name}(f, axis=0, where=b)",
            f"np.{name}(f, where=b, keepdims=True)",
            f"np.{name}(t, axis=(0, 2), out=f[:3, 0]); f",
            f"np.{name}(n, axis=1, where=[True, False, True, True, False, True])",
        ]
        for name in (
            "sum",
            "prod",
            "mean",
            "any",
            "all",
            "var",
            "std",
            "nansum",
            "nanprod",
            "nanmean",
            "nanvar",
            "nanstd",
        )
    },
    "with initial": [
        *(f"np.{name}(f, axis=1, initial=2)" for name in ("sum", "prod", "max", "min", "nansum", "nanprod")),
        *(f"np.{name}(f, where=b, initial=-7, axis=0)" for name in ("max", "min")),
        *(f"np.{name}(x, where=b, initial=-7, axis=0)" for name in ("nanmax", "nanmin")),
        "np.sum(n, initial=2.5)",
        "np.max(e, initial=1)",
        "np.max(f, where=b)",
    ],
    "of nan": [f"np.{name}(x, axis=0, where=b)" for name in ("nansum", "nanprod", "nanmean", "nanvar", "nanstd")],
    "with a mean": [
        "np.var(f, axis=0, mean=np.mean(f, axis=0, keepdims=True))",
        "np.std(f, mean=np.mean(f, keepdims=True), ddof=1)",
    ],
    "out": [
        "np.cumsum(f, axis=0, out=g); g",
        "np.argmax(f, axis=0, out=k[:6]); k",
        "np.median(f, axis=0, out=v[:6]); v",
        "np.sum(f, axis=0, out=v); v",
        "np.sum(f, axis=0, out=k[:6])",
        *(f"np.{name}(f, axis=0, out=k[:6]); k" for name in ("var", "std", "ptp", "nanmean", "nanstd", "nanvar")),
        "np.nanmean(n, axis=0, out=k[:6]); k",
        "np.nanstd(f, axis=0, out=v[:6]); v",
    ],
    "axes in a list": ["np.sum(f, axis=[0])", "f.max([0])", "np.squeeze(f, [0])", "np.average(f, axis=[0])"],
    "cumsum": ["np.cumsum(f)", "np.cumprod(n)", "np.nancumsum(x)", "t.cumsum()"],
}

ELEMENTS = {
    "one by one": [
        *(f"np.{name}(f)" for name in ("angle", "i0", "sinc", "iscomplex", "isreal", "isneginf", "isposinf", "fix")),
        *(f"np.{name}(c)" for name in ("angle", "sinc", "iscomplex", "isreal")),
        "np.angle(c, deg=True)",
        "np.fix(f, out=g); g",
        "np.isneginf(np.log(f), out=b); b",
        "np.sinc(z)",
        "np.isneginf(c)",
    ],
    "nan_to_num": [
        "np.nan_to_num(x)",
        "np.nan_to_num(x, nan=-1, posinf=3)",
        "np.nan_to_num(x, copy=False); x",
        "np.nan_to_num(1 / f)",
        "np.nan_to_num(k)",
    ],
    "interp": [
        "np.interp(f, [0, 1, 2], [5, 6, 9])",
        "np.interp(f, s, w)",
        "np.interp([0.1, 0.7], s, v)",
        "np.interp(v, [0, 1, 2], [1, 2j, 4], left=0, right=1j)",
        "np.interp(v, [0, 1, 2], [1, 2, 5], period=3)",
        "np.interp(v, [0, 1], [1, 2, 5])",
        "np.interp(0.5, s, v)",
    ],
    "piecewise": [
        "np.piecewise(f, [f < 0, f > 1], [-1, 1])",
        "np.piecewise(f, [f < 0, f > 1], [lambda y: -y, np.sqrt, 7])",
        "np.piecewise(v, v > 0, [lambda y, p: y**p, lambda y, p: -y], 2)",
        "np.piecewise(f, [f < 0], [1, 2, 3])",
        "np.piecewise([1, 2, 3, 4, 5, 6], [f[0] < 0], [lambda y: -y, 7])",
        "np.piecewise(k, [k < 0, np.asarray([True] * 11)], [0.7, lambda y: y / 2])",
    ],
    "select": ["np.select([f < 0, b], [f, n], 3)", "np.select([b], [f])"],
    "apply": [
        "np.apply_along_axis(np.sort, 0, f)",
        "np.apply_along_axis(lambda line: line[:2] * 1j, 1, t)",
        "np.apply_along_axis(np.sum, 1, n)",
        "np.apply_along_axis(np.diag, 0, f)",
        "np.apply_along_axis(np.sum, 1, e)",
        "np.apply_along_axis(lambda line, p: line**p, -1, v, p=2)",
        "np.apply_along_axis(np.sum, 3, f)",
        "np.apply_along_axis(lambda line: line[line > 0], 0, f)",
        "np.apply_over_axes(np.sum, t, [0, 2])",
        "np.apply_over_axes(np.max, f, 1)",
    ],
    "dates": [
        "np.busday_count('2020-01-01', np.datetime64('2020-02-01') + k)",
        "np.busday_offset('2020-01-01', k, roll='forward')",
        "np.busday_count('no date', np.datetime64('2020-02-01') + k)",
    ],
    "bits": [
        "np.packbits(b)",
        "np.packbits(b, axis=0, bitorder='little')",
        "np.unpackbits(u)",
        "np.unpackbits(u, count=-3)",
        "np.unpackbits(np.reshape(u, (11, 1)), axis=1, count=20, bitorder='little')",
        "np.packbits(f)",
    ],
}

SEQUENCES = {
    "gradient": [
        "np.gradient(v)",
        "np.gradient(f)",
        "np.gradient(n, 2.0, axis=1)",
        "np.gradient(f, 2.0, 0.5, edge_order=2)",
        "np.gradient(t, [0, 1, 3, 7], axis=0)",
        "np.gradient(t, [0.0, 1, 3, 7, 8], axis=-1, edge_order=2)",
        "np.gradient(t, 2, [0, 1, 3], 1)",
        "np.gradient(t, axis=(2, 0))",
        "np.gradient(c, axis=0)",
        "np.gradient(v, s + np.cumsum(s * 0 + 1))",
        "np.gradient(e)",
        "np.gradient(f, 1, 2, 3)",
        "np.gradient(f, edge_order=3)",
    ],
    "roll": [
        *(f"np.roll(v, {by})" for by in (0, 1, -3, 10, 25)),
        *(f"np.roll(f, 2, {axis})" for axis in ("0", "1", "(0, 1)", "None", "2")),
        "np.roll(t, (1, -2, 4), (0, 1, 2))",
        "np.roll(f.T[1:-1], 2, 0)",
        "np.roll(u, 4)",
        "np.roll(e, 1, 0)",
        "np.roll(f, (1, 2), 0)",
        "np.roll(f, (1, 2), (0, 1, 1))",
    ],
    "concatenate": [
        *(f"np.concatenate([f, g], axis={axis})" for axis in (0, 1, None, -1, 2)),
        *(f"np.{name}([f, g])" for name in ("vstack", "hstack", "dstack", "column_stack")),
        *(f"np.stack([f, g], {axis})" for axis in (0, 1, 2, -1, 3)),
        "np.concatenate([v[:1], v, v[-2:]])",
        "np.concatenate([f[1:2], f, g[-1:], f[:3]])",
        "np.concatenate((t, t[:, :1], t), 1)",
        "np.concatenate([f, n, b])",
        "np.concatenate([v, [1.0, 2.0], w])",
        "np.concatenate([f, np.ones((2, 6))])",
        "np.concatenate([u, u[3:4]])",
        "np.concatenate([e, f])",
        "np.concatenate([v, v[:0]])",
        "np.concatenate([f.T, n.T[:, 2:3]], axis=1)",
        "np.concatenate([f, g], axis=1, dtype='f4')",
        "np.concatenate([f, g], axis=0, out=np.concatenate([g, f]))",
        "np.append(v, w)",
        "np.append(v, 7.0)",
        "np.concatenate([f, v])",
        "np.stack([f, n])",
        "np.stack([f, v])",
    ],
    "pad": [
        *(f"np.pad(f, 2, mode='{mode}')" for mode in ("constant", "edge", "reflect", "symmetric", "wrap", "mean")),
        *(f"np.pad(v, (30, 25), '{mode}')" for mode in ("edge", "reflect", "symmetric", "wrap")),
        "np.pad(t, ((0, 1), (2, 0), (0, 0)), 'wrap')",
        "np.pad(u, (3, 0), 'reflect')",
        "np.pad(n, ((1, 0), (0, 4)), 'linear_ramp', end_values=3)",
        "np.pad(f, 1, 'symmetric', reflect_type='odd')",
        "np.pad(f, 1, constant_values=((1, 2), (3, 4)))",
        "np.pad(f.T[1:], ((0, 2), (1, 0)), 'wrap')",
        "np.pad(e, ((0, 0), (1, 1)), 'edge')",
        "np.pad(e, 1, 'wrap')",
        "np.pad(f, -1)",
    ],
    "diff": [
        "np.diff(v, prepend=0)",
        "np.diff(f, axis=0, prepend=g[:1], append=7)",
        "np.diff(n, 2, append=[[1, 2]] * 7)",
        "np.diff(f, append=v)",
    ],
    "windows": [
        "np.lib.stride_tricks.sliding_window_view(v, 4)",
        "np.lib.stride_tricks.sliding_window_view(f, (2, 3))",
        "np.lib.stride_tricks.sliding_window_view(t, 2, axis=-1)",
        "np.lib.stride_tricks.sliding_window_view(f, (3, 2), axis=(0, 0))",
        "np.lib.stride_tricks.sliding_window_view(v, 12)",
        "np.lib.stride_tricks.sliding_window_view(f, 2)",
    ],
    "trapezoid": [
        f"np.trapezoid({arguments})"
        for arguments in (
            "v",
            "f, dx=2",
            "t, axis=0",
            "f, x=[0, 1, 3, 7, 8, 9]",
            "v, s",
            "[1, 2, 4], v[:3]",
            "f, g",
            "c",
        )
    ],
    "unwrap": [
        "np.unwrap(f * 5)",
        "np.unwrap(f * 5, axis=0)",
        "np.unwrap(v * 9, discont=4)",
        "np.unwrap(n, period=4)",
        "np.unwrap(k, period=5)",
        "np.unwrap(t * 3, axis=1, period=1.5)",
    ],
    "convolve": [
        *(f"np.convolve(v, [1, 2, 4], {mode!r})" for mode in ("full", "same", "valid")),
        *(f"np.convolve(k, w, {mode!r})" for mode in ("full", "same", "valid")),
        *(f"np.convolve(k[:4], w, {mode!r})" for mode in ("full", "same", "valid")),
        "np.convolve([1, 2], k)",
        "np.convolve(v, 3)",
        "np.convolve(c[0], v)",
        "np.convolve(f, v)",
        "np.convolve(v[:0], w)",
        "np.convolve(v, w, 'most')",
    ],
    "correlate": [
        *(f"np.correlate(v, [1, 2, 4], {mode!r})" for mode in ("full", "same", "valid")),
        *(f"np.correlate(k[:5], w, {mode!r})" for mode in ("full", "same", "valid")),
        *(f"np.correlate([1, 2, 3, 4], v, {mode!r})" for mode in ("full", "same", "valid")),
        *(f"np.correlate(c[0], c[1, :3], {mode!r})" for mode in ("full", "same", "valid")),
        *(f"np.correlate(c[0, :2], c[1], {mode!r})" for mode in ("full", "same", "valid")),
        "np.correlate(v, w)",
    ],
    "cov": [
        "np.cov(f)",
        "np.cov(f, rowvar=False)",
        "np.cov(v)",
        "np.cov(v, w, ddof=0)",
        "np.cov(f, g, bias=True)",
        "np.cov(c)",
        "np.cov(f, fweights=[1, 2, 0, 1, 3, 1])",
        "np.cov(v, aweights=abs(w))",
        "np.cov(v, w, fweights=abs(k), aweights=abs(w))",
        "np.cov(n, dtype='f4')",
        "np.cov(f, fweights=[0.5] * 6)",
        "np.cov(e)",
        "np.corrcoef(f)",
        "np.corrcoef(v, w)",
        "np.corrcoef(c, rowvar=False)",
        "np.corrcoef(v)",
    ],
    "polynomials": [
        "np.vander(k)",
        "np.vander(v, 3)",
        "np.vander(v, 4, increasing=True)",
        "np.vander(k, 0)",
        "np.polyval([1, 2, 3], f)",
        "np.polyval(v[:3], k)",
        "np.polyval(v, 2)",
        "np.polyfit(np.cumsum(k * 0 + 1), v, 2)",
        "np.polyfit(w + np.arange(11), np.stack([v, w], 1), 1)",
        "np.polyfit(s + np.arange(11), v, 1, w=abs(w) + 1, cov=True)",
        "np.polyfit(s + np.arange(11), v, 3, full=True)[:2]",
        "np.polyfit(v, f, 1)",
    ],
}


_GROUPS = {
    "methods": METHODS,
    "ufunc": UFUNCS,
    "reduction": REDUCTIONS,
    "elements": ELEMENTS,
    "sequences": SEQUENCES,
    "composed": COMPOSED,
}
TABLE = {f"{kind} {name}": calls for kind, group in _GROUPS.items() for name, calls in group.items()}
"""The calls, by a name."""


def operands(seed=0):
    """NumPy's operands."""
    rng = np.random.default_rng(seed)
    f, g = rng.integers(-8, 9, (2, 7, 6)) / 4
    v, w = rng.integers(-8, 9, (2, 11)) / 4
    x = np.where(rng.random((7, 6)) < 0.2, np.nan, f)
    return {
        "f": f,
        "g": g,
        "v": v,
        "w": w,
        "x": x,
        "n": rng.integers(-3, 6, (7, 6)),
        "k": rng.integers(-3, 6, 11),
        "b": rng.random((7, 6)) < 0.6,
        "c": f + 1j * g,
        "t": rng.integers(-8, 9, (4, 3, 5)) / 4,
        "e": np.zeros((0, 6)),
        "z": np.array(1.5),
        "s": np.sort(v),
        "u": rng.integers(0, 256, 11).astype("u1"),
    }
