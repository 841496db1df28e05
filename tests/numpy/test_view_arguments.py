"""Functions of all parts of the library read views that are stale, and write to views whose elements had to move."""

import copy

import numpy as np
import pytest

import meshcomm as mc
from meshcomm import Layout
from support.tensors import on

U = "unsharded"
X = np.arange(24.0).reshape(4, 6)[::-1].copy()
X[0, 0] = 3.25


def columns(v):
    return Layout([U, "x"], v.mesh)


READS = {
    "relayout": lambda v, path: mc.relayout(v, [U, "x"]),
    "relayout of a list": lambda v, path: mc.relayout([v, v], columns(v))[0],
    "start_relayout": lambda v, path: mc.start_relayout(v, columns(v)).wait(),
    "a plan": lambda v, path: mc.plan_relayout(v.shape, v.dtype, v.layout, columns(v)).execute(v),
    "transpose": lambda v, path: mc.transpose(v, layout=columns(v)),
    "save": lambda v, path: (mc.save(path / "a.npy", v), mc.load(path / "a.npy"))[1],
    "save of a tree": lambda v, path: (mc.save(path / "a.npz", {"a": v}), mc.load(path / "a.npz")["a"])[1],
    "tofile": lambda v, path: (v.tofile(path / "raw"), np.fromfile(path / "raw"))[1],
    "to_numpy": lambda v, path: v.to_numpy(),
    "tolist": lambda v, path: np.array(v.tolist()),
    "tobytes": lambda v, path: np.frombuffer(v.tobytes()),
    "asarray": lambda v, path: np.asarray(v),
    "copy": lambda v, path: v.copy(),
    "deepcopy": lambda v, path: copy.deepcopy(v),
    "fft": lambda v, path: mc.fft.fft2(v),
    "numpy.fft": lambda v, path: np.fft.fft(v),
    "an FFT plan": lambda v, path: mc.fft.plan(v.shape, "f8", v.layout, "same").forward(v),
    "svd": lambda v, path: np.linalg.svd(v)[1],
    "filters": lambda v, path: mc.ndimage.gaussian_filter(v, 1.0),
    "label": lambda v, path: mc.ndimage.label(v > 5)[0],
    "halo": lambda v, path: mc.halo(v, 1).tensor(),
    "map_overlap": lambda v, path: mc.map_overlap(lambda block: block * 2, v, 1),
    "fuse": lambda v, path: mc.fuse(lambda a: a * 2 + 1)(v),
    "einsum": lambda v, path: mc.einsum("ij,kj->ik", v, v),
    "permutation": lambda v, path: mc.random.default_rng(1).permutation(v),
    "a variable": lambda v, path: mc.Variable(v).value,
    "mask": lambda v, path: v[v > 3],
    "rows": lambda v, path: np.array([row.to_numpy() for row in v]),
    "flat": lambda v, path: float(v.flat[3]),
    "array API": lambda v, path: mc.array_api.sort(v),
    "unique": lambda v, path: np.unique(v),
}

WRITES = {
    "relayout": lambda v, x, path: mc.relayout(x, v.layout, out=v),
    "relayout of a list": lambda v, x, path: mc.relayout([x], [v.layout], out=[v]),
    "relayout of an array": lambda v, x, path: mc.relayout(x.to_numpy(), v.layout, out=v),
    "start_relayout": lambda v, x, path: mc.start_relayout(x, v.layout, out=v).wait(),
    "a plan": lambda v, x, path: mc.plan_relayout(x.shape, x.dtype, x.layout, v.layout).execute(x, out=v),
    "load": lambda v, x, path: (mc.save(path / "w.npy", x), mc.load(path / "w.npy", out=v)),
    "load of a tree": lambda v, x, path: (mc.save(path / "w.npz", {"a": x}), mc.load(path / "w.npz", out={"a": v})),
    "random": lambda v, x, path: mc.random.default_rng(3).random(out=v),
    "shuffle": lambda v, x, path: mc.random.default_rng(5).shuffle(v),
    "permuted": lambda v, x, path: mc.random.default_rng(3).permuted(x, axis=0, out=v),
    "filters": lambda v, x, path: mc.ndimage.gaussian_filter(x, 1.0, output=v),
    "an FFT plan": lambda v, x, path: mc.fft.plan(x.shape, "f8", x.layout, "same", "rfftn").backward(
        mc.fft.plan(x.shape, "f8", x.layout, "same", "rfftn").forward(x), out=v
    ),
    "fill": lambda v, x, path: v.fill(3),
    "sort": lambda v, x, path: v.sort(0),
    "put": lambda v, x, path: v.put([0, 1], [7, 8]),
    "flat": lambda v, x, path: v.flat.__setitem__(slice(0, 3), 9),
    "mask": lambda v, x, path: v.__setitem__(v > 5, 1),
    "place": lambda v, x, path: np.place(v, v > 5, [1, 2]),
    "putmask": lambda v, x, path: np.putmask(v, v > 5, x),
    "at": lambda v, x, path: np.add.at(v, [0, 0], 1),
    "clip": lambda v, x, path: np.clip(x, 2, 5, out=v),
    "cumsum": lambda v, x, path: np.cumsum(x, axis=0, out=v),
    "median": lambda v, x, path: np.median(np.stack([x, x]), axis=0, out=v),
    "where=": lambda v, x, path: np.add(x, 1, out=v, where=x > 3),
    "two results": lambda v, x, path: np.modf(x, out=(v, None)),
    "byteswap": lambda v, x, path: v.byteswap(True),
    "fill_diagonal": lambda v, x, path: np.fill_diagonal(v, 5),
    "put_along_axis": lambda v, x, path: np.put_along_axis(v, np.zeros((1, 6), int), 7.0, 0),
    "concatenate": lambda v, x, path: np.concatenate([x[:2], x[2:]], out=v),
    "matmul": lambda v, x, path: np.matmul(x, np.eye(6), out=v),
    "a row of a view": lambda v, x, path: v.T[1].__iadd__(1),
}


def value(x):
    return x.to_numpy() if isinstance(x, mc.DTensor) else np.asarray(x)


@pytest.mark.parametrize("call", READS)
def test_what_reads_a_stale_view_sees_what_was_written(call, tmp_path):
    def program():
        t = mc.distribute(X, Layout(["x", U], mc.create_mesh([("x", 2)])))
        view = t[::-1]
        t[...] += 1
        found = value(READS[call](view, tmp_path))
        np.testing.assert_array_equal(found, value(READS[call](t[::-1].copy(), tmp_path)))

    on(2, program)


@pytest.mark.parametrize("call", WRITES)
def test_what_is_written_to_a_view_reaches_the_tensor(call, tmp_path):
    def program():
        t = mc.distribute(X, Layout(["x", U], mc.create_mesh([("x", 2)])))
        view = t[::-1]
        alone, x = view.copy(), view * 2 + 1
        WRITES[call](alone, x, tmp_path)
        WRITES[call](view, x, tmp_path)
        assert (alone.to_numpy() != X[::-1]).any()
        np.testing.assert_array_equal(t.to_numpy()[::-1], alone.to_numpy())
        np.testing.assert_array_equal(view.to_numpy(), alone.to_numpy())

    on(2, program)
