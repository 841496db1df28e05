"""Calls of NumPy, as in `support.numpy_table`: functions that others make up, methods, and products.

Operands in capitals are those of `support.numpy_draws`.
"""

import numpy as np

COMPOSED = {
    "block": [
        "np.block([[f, g], [g, f]])",
        "np.block([v, w[:3]])",
        "np.block(f)",
        "np.block([[v], [w]])",
        "np.block([z, v, 3])",
        "np.block([f, [g]])",
        "np.block([[f], [v]])",
        "np.block([])",
    ],
    "out of a join": [
        "np.concatenate([v, w], out=np.zeros_like(np.concatenate([v, w])))",
        "np.stack([v, w], out=f[:2])",
    ],
    "resize": [
        "np.resize(f, (4, 3))",
        "np.resize(v, (3, 11))",
        "np.resize(k, 30)",
        "np.resize(e, (2, 2))",
        "np.resize(f, -1)",
    ],
    "trim_zeros": [
        "np.trim_zeros(k * (abs(np.arange(11) - 5) < 4))",
        "np.trim_zeros(k * 0)",
        "np.trim_zeros(v * (np.arange(11) > 3), 'f')",
        "np.trim_zeros(v * (np.arange(11) < 6), 'b')",
        "np.trim_zeros(k * 0, 'f'), np.trim_zeros(k * 0, 'b')",
    ],
    "diag": [
        *(f"np.diag(v, {offset})" for offset in (0, 2, -3)),
        *(f"np.diag(f, {offset})" for offset in (0, 2, -3)),
        "np.diag(t)",
        "np.diagflat(f, 1)",
        "np.diagflat(v[:0])",
        "np.tril_indices_from(f)",
        "np.triu_indices_from(f, 1)",
    ],
    "spaced": [
        "np.linspace(v, w, 5)",
        "np.linspace(f, 3, 4, axis=-1)",
        "np.linspace(0, k, 3, endpoint=False, axis=1)",
        "np.linspace(v, w, 5, retstep=True)",
        "np.linspace(v, w, 1, retstep=True)",
        "np.linspace(f, g, 4, dtype=int)",
        "np.geomspace(abs(v) + 1, 20, 4)",
        "np.logspace(v, w, 4, base=2.0)",
        "np.linspace(v, f, 2)",
        "np.linspace(v.astype('f4'), 2, 3, retstep=True)",
        "np.logspace(0.5, v.astype('f2'), 3)",
        "np.linspace(v.astype('f4'), np.float64(2), 3)",
    ],
    "polynomials": [
        "np.polyadd(v, [1, 2])",
        "np.polysub(k[:4], w)",
        "np.polymul(k, [1, 2])",
        "np.polydiv(v + 9, [1.0, 2])",
        "np.polyder(v, 2)",
        "np.polyint(v)",
    ],
    "averages": [
        "np.average(t, axis=(0, 2), weights=abs(t[:, 1, :]) + 1)",
        "np.average(t, axis=(2, 0), weights=np.arange(20).reshape(5, 4), returned=True)",
        "np.average(f, returned=True, axis=0)",
        "np.average(f, weights=w)",
        "np.average(f, weights=w, axis=0)",
    ],
    "quantiles": [
        *(
            f"np.{name}({arguments}, method='inverted_cdf')"
            for name in ("quantile", "nanquantile")
            for arguments in (
                "f, [0, 0.25, 0.6, 1], weights=abs(g) + 0.5",
                "x, 0.3, axis=0, weights=abs(g) + 1, keepdims=True",
                "v, 0.5, weights=k * 0",
                "v, 0.5, weights=v",
                "v, w[:3] / 100 + 0.5, weights=abs(k) + 1",
            )
        ),
        "np.percentile(t, [10, 50], (0, 2), None, False, 'inverted_cdf', True, weights=abs(t) + 1)",
        "np.quantile(f, 0.3, axis=0, weights=abs(v[:7]) + 1, method='inverted_cdf')",
        "np.quantile(x, 0.5, axis=1, weights=[1, 2, 3, 4, 5, 6], method='inverted_cdf')",
        "np.percentile(v, 50, weights=abs(w))",
        "np.percentile([1, 5, 2], abs(k))",
    ],
    "differences": [
        "np.diff(v, prepend=0)",
        "np.diff(f, axis=0, prepend=g[:2], append=5)",
        "np.diff(t, n=2, append=[[[1]]] * 4)",
        "np.diff(b, append=True)",
    ],
    "grids": [
        "np.meshgrid(v, w[:3])",
        "np.meshgrid(v, [1, 2], 3, indexing='ij', sparse=True)",
        "np.meshgrid(f, v, copy=False, sparse=True)",
        "np.histogram2d(v, w, [s[::10], [-1, 0, 1]])",
    ],
    "tile": ["np.tile(v, 1) + 0", "a = np.tile(v[:1], 3); a[0] = 9; a"],
    "real_if_close": ["np.real_if_close(c)", "np.real_if_close(f + 0j)", "np.real_if_close(f)"],
    "texts": [
        "np.array2string(f, precision=2)",
        "np.array_repr(n)",
        "np.array_str(v)",
        "np.array2string(t, threshold=5, edgeitems=1)",
        "np.array2string(np.outer(v, np.ones(200)), edgeitems=2)",
        "np.array_repr(z)",
    ],
    "descriptions": [
        "np.einsum_path('ij,kj,k->i', f, g, v[:7])",
        "np.common_type(f, c)",
        "np.can_cast(n.dtype, 'f8')",
        "np.isrealobj(f), np.isrealobj(c)",
        "np.min_scalar_type(f)",
        "np.row_stack([v, w])",
    ],
    "cumulative": [
        "np.cumulative_sum(v)",
        "np.cumulative_sum(f, axis=1, include_initial=True)",
        "np.cumulative_prod(f, axis=0, include_initial=True, dtype='c16')",
        "np.cumulative_sum(f)",
        "np.cumulative_sum(f, axis=1, out=g); g",
        "np.cumulative_sum(e, axis=0, include_initial=True)",
        "np.cumulative_sum(z, include_initial=True)",
    ],
}

METHODS = {
    "fill": ["f.fill(3); f", "f.T.fill(3); f", "k.fill(2.5); k", "f.fill([1, 2])"],
    "lists": ["f.tolist()", "z.tolist()", "c.tobytes()", "e.tolist()", "f.tobytes('F')", "f.tobytes('Q')"],
    "flat": [
        "f.flat[3]",
        "f.flat[3:20:4]",
        "f.flat[[1, 5, 5]]",
        "f.flat[5] = 7; f",
        "f.flat[3:30:2] = [1, 2]; f",
        "f.flat[:] = 4; f",
        "t.T.flat[7] = 9; t",
        "len(t.flat)",
        "f.flat[99]",
    ],
    "view": [
        "f.view('i8')",
        "c.view('f8')",
        "f.view()",
        "f.view('i8')[0] = 5; f",
        "k.view('u8')",
        "k.byteswap()",
        "k.byteswap(True); k",
    ],
    "item": ["f.item(3)", "f.item(2, 1)", "f.item((2, 1))", "f.item(-1)", "f.item()", "z.item()", "f.item(99)"],
    "others": [
        "s.searchsorted(0.5)",
        "k.put([1, 2], [7, 8]); k",
        "abs(k % 2).choose([k, v])",
        "f.dot([1, 2, 3, 4, 5, 6])",
        "f.itemsize, f.nbytes",
        "f.sum(0, where=b)",
        "f.max(1, initial=3)",
        "f.mean(out=z)",
        "f.std(0, where=b)",
        "np.zeros_like(f, shape=(3, 2))",
        "np.full_like(f, 3, shape=5)",
        "np.zeros(3, like=f)",
        "np.asarray([1, 2], like=f)",
        "np.asarray(f, dtype='f4', like=g)",
        "np.arange(4, like=f)",
        "np.eye(3, like=f)",
    ],
}

DOTS = ["3,|3,", "5,|5, 3", "4, 5|5,", "4, 5|5, 2", "0,|0,", "3, 0|0, 2"]
STACKS = ["3,|3,", "4, 3|3,", "2, 1, 3|4, 3", "2, 0|2, 0"]


def pairs(call, *shapes):
    """The call for each pair of shapes; `{}` stands for both operands."""
    return [call.format("I({}), J({})".format(*each.split("|"))) for each in shapes]


PRODUCTS = {
    "dot": [
        *pairs(
            "np.dot({})", *DOTS, "|4,", "4, 3|", "2, 3, 4|4,", "3,|2, 3, 4", "2, 3, 4|3, 4, 2", "4, 3|0, 3, 2", "|"
        ),
        *pairs("np.inner({})", "|3, 2", "5,|5,", "3, 5|5,", "2, 3, 5|4, 5", "3, 0|2, 0"),
        *pairs("np.vdot({})", "|", "5,|5,", "3, 4|3, 4", "3, 4|2, 6", "6,|2, 1, 3", "0, 2|0,"),
        *pairs("np.outer({})", "|3,", "5,|4,", "2, 3|3, 1, 2", "0, 3|2,"),
        *pairs("np.kron({})", "|3, 2", "3,|4,", "2, 3|3, 2", "2, 3, 2|5,", "3,|2, 1, 3", "2, 0|3, 2"),
        *pairs("np.matmul({})", *DOTS, "2, 4, 3|3, 5", "4, 3|2, 3, 2"),
        "I(3, 3) @ I(3, 3).T",
        "I(3).dot([1, 2, 3])",
        "I(2, 3) @ [[1, 2], [3, 4], [5, 6]]",
        *(
            f"np.{name}({given})"
            for name in ("dot", "inner", "outer", "kron")
            for given in ("I(3, 3), 2.0", "2j, I(3, 3)")
        ),
    ],
    "tensordot": [
        *pairs("np.tensordot({})", "4, 3, 2|3, 2, 5", "3, 2|3, 2"),
        *pairs("np.tensordot({}, 0)", "3, 2|4,", "|3,"),
        *pairs("np.tensordot({}, 1)", "2, 3|3, 2, 2", "3, 0|0, 2"),
        *pairs("np.tensordot({}, -1)", "3, 2|4,"),
        *pairs("np.tensordot({}, (0, -1))", "3, 2|2, 3"),
        *pairs("np.tensordot({}, ([2, 0], [0, -2]))", "4, 2, 3|3, 4, 5"),
        *pairs("np.tensordot({}, np.array([[1], [0]]))", "4, 2|2, 3"),
    ],
    "cross": [
        *pairs("np.cross({})", "3,|3,", "4, 3|3,", "2, 1, 3|4, 3", "0, 3|3,", "2,|3,", "2,|2,"),
        *pairs("np.cross({}, axis=0)", "3, 4|3, 4", "3, 5, 2|2, 2", "2, 4|3, 4", "2, 4|2, 4"),
        *pairs("np.cross({}, axisa=1, axisb=0, axisc=0)", "4, 3, 2|3, 4, 2", "4, 2, 3|2, 3"),
    ],
    "chains": [
        *pairs("np.linalg.multi_dot([{}])", *DOTS),
        *pairs("np.linalg.multi_dot([{}, J(2, 5)])", "3, 4|4, 2"),
        *pairs("np.linalg.multi_dot([{}, J(3, 2)])", "4,|4, 3"),
        *pairs("np.linalg.multi_dot([{}, J(3)])", "2, 4|4, 3", "3,|3, 3"),
        *pairs("np.linalg.multi_dot([{}, J(2, 3)])", "3, 0|0, 2"),
        *pairs("np.linalg.multi_dot([{}, J(4, 1), J(1, 5), J(5)])", "2, 3|3, 4"),
        "np.linalg.multi_dot([I(3, 3).astype('i8')] * 60)",
        *(f"np.linalg.matrix_power(I({n}, {n}), {power})" for n in (3, 0) for power in (0, 1, 2, 3, 6)),
    ],
    "out": [
        "np.dot(I(4, 3), J(3, 5), out=np.dot(I(4, 3), J(3, 5)) * 0)",
        *pairs("np.matmul({}, out=I(4, 5) * 1j)", "4, 3|3, 5"),
        *pairs("np.outer({}, I(12, 15) * 1j)", "4, 3|3, 5"),
    ],
}
if hasattr(np, "vecmat"):  # since NumPy 2.2
    PRODUCTS["new"] = [
        *pairs("np.vecdot({})", *STACKS),
        *pairs("np.vecdot({}, axis=0, keepdims=True)", "3, 4|3, 4", "3, 2, 4|3, 1, 4"),
        *pairs("np.vecdot({}, axes=[0, -2])", "3, 4|2, 3, 4"),
        *pairs("np.vecdot({}, axes=[0, 0, 1], keepdims=True)", "3, 4|3, 4"),
        *pairs("np.vecdot({}, keepdims=True, dtype='c16', casting='unsafe')", "3, 4|3, 4"),
        *pairs("np.matvec({})", "2, 3|3,", "2, 4, 3|3,", "4, 3|2, 3", "2, 1, 4, 0|5, 0"),
        *pairs("np.vecmat({})", "3,|3, 2", "2, 3|3, 4", "4, 3|2, 1, 3, 2"),
        *pairs("np.matvec({}, axes=[(0, -1), 0, 0])", "4, 2, 3|3, 2"),
        *pairs("np.matmul({}, axes=[(1, 0), (0, 1), (1, 0)])", "3, 2|3, 4"),
        *pairs("np.linalg.tensordot({})", "4, 3, 2|3, 2, 5"),
        *pairs("np.linalg.vecdot({}, axis=0)", "3, 4|3, 4"),
        *pairs("np.linalg.outer({})", "3,|4,"),
        *pairs("np.linalg.cross({}, axis=0)", "3, 4|3, 4"),
    ]
