"""Rows and columns that loops of a script read and write: NumPy's values, in few messages."""

from random import Random

import numpy as np
import pytest

import meshcomm as mc
import meshcomm.numpy as namespace
from meshcomm.blocks.views import tensor_of_inner_blocks
from meshcomm.numpy.indexing import pages
from support.sampling import sampled

N = 48


def cholesky(np, a):
    a[0, 0] = np.sqrt(a[0, 0])
    for i in range(1, len(a)):
        for j in range(i):
            a[i, j] -= np.dot(a[i, :j], a[j, :j])
            a[i, j] /= a[j, j]
        a[i, i] -= np.dot(a[i, :i], a[i, :i])
        a[i, i] = np.sqrt(a[i, i])
    return a


def gram_schmidt(np, a):
    q, r = np.zeros_like(a), np.zeros_like(a)
    for k in range(len(a)):
        r[k, k] = np.sqrt(np.dot(a[:, k], a[:, k]))
        q[:, k] = a[:, k] / r[k, k]
        for j in range(k + 1, len(a)):
            r[k, j] = np.dot(q[:, k], a[:, j])
            a[:, j] -= q[:, k] * r[k, j]
    return q + r


def gauss(np, a):
    for k in range(len(a) - 1):
        for i in range(k + 1, len(a)):
            factor = a[i, k] / a[k, k]
            a[i, k:] -= factor * a[k, k:]
            a[i, k] = 0
    return a


def norms(np, a):
    return np.array([np.linalg.norm(row) for row in a] + [row.sum() * row[3] for row in a.T])


def substitution(np, a):
    x, b = np.zeros(len(a)), np.arange(1.0, len(a) + 1)
    for i in range(len(a)):
        x[i] = (b[i] - a[i, :i] @ x[:i]) / a[i, i]
    return x


MESSAGES = {cholesky: 20, gram_schmidt: 120, gauss: 40, norms: 10, substitution: 10}
"""At most, of thousands of calls."""


@pytest.mark.usefixtures("scripted")
@pytest.mark.parametrize("loop", MESSAGES)
@pytest.mark.parametrize("ranks", [2, 3])
def test_loops(loop, ranks):
    def matrix(np):
        a = np.arange(float(N * N)).reshape(N, N) % 23 / 23
        return a @ a.T / N + np.eye(N) * N

    expected = loop(np, matrix(np))

    def program():
        a = namespace.tile(matrix(namespace), (1, 4))[:, :N].copy()
        assert isinstance(a, mc.DTensor)
        mc.create_mesh([("x", ranks)]).close()  # it is another one
        with mc.count() as c:
            result = loop(namespace, a)
        assert np.allclose(np.asarray(result), expected, rtol=1e-11)
        assert np.allclose(np.asarray(a), expected if loop in (cholesky, gauss) else np.asarray(a))
        assert sum(tally.calls for tally in c.operations.values()) <= MESSAGES[loop]

    with mc.simulate(ranks) as world:
        world.run(program)
    assert not pages.PAGES


STATEMENTS = [
    *("x.append(a[i].sum())", "x.append(np.dot(a[i], b[j]))", "x.append(a[:, i] @ b[j])", "x.append(float(a[i, j]))"),
    *("x.append(a[i].max() - b[:, j].min())", "x.append(np.linalg.norm(a[i, 2:]))", "x.append(a[i][j])"),
    *("a[i] -= b[j]", "a[i] *= 2", "a[:, i] += a[:, j]", "b[j, 1:] -= a[i, 1:] * 0.5", "a[i] = b[j]", "a[i, ::2] = 3"),
    *("a[i] = a[j]", "a[:, j] = b[i] + 1", "b[i, j] = 7", "a[i, j] += b[j, i]", "b[i:, j] = a[i:, j].copy()"),
    *("a += 1", "np.add(a[i], b[j], out=a[j])", "row = a[i]; row[j] = 5; x.append(row.sum())", "a[i, :] = w"),
    *("a[[i, j]] = 2", "b[b > 9] = 1", "x.append((a[i] ** 2).sum())", "a = a * 1.0", "b.T[i] -= 1", "a[i][:] = w"),
    *(
        "v = b[j]; b[j, i] = 4; x.append(v.sum())",
        "np.maximum(a[i], 0, out=a[i])",
        "a[::-1][i] = w",
        "x.append(a.sum())",
    ),
    *(
        "x.append(np.argmax(a[i]))",
        "x.append(a[i] @ w)",
        "x.append(w @ b[:, j])",
        *("a[i], b[j] = b[j].copy(), a[i].copy()", "np.clip(a[i], 1, 4, a[j])", "np.cumsum(b[i], 0, None, b[j])"),
    ),
]


@pytest.mark.usefixtures("scripted")
@pytest.mark.parametrize("seed", sampled(range(2000), 40))
def test_random_programs(seed, monkeypatch):
    """Copies of the arrays come at once, and are dropped again."""
    monkeypatch.setattr(pages, "BYTES_OF_CALL", 2**40)
    random = Random(seed)
    lines = [f"i, j = {random.randrange(24)}, {random.randrange(24)}; {random.choice(STATEMENTS)}" for _ in range(60)]

    def run(np):
        a = np.arange(24 * 24.0 * 16).reshape(24, 384)[:, :24].copy() % 7
        b = (np.arange(24 * 24.0 * 16).reshape(24, 384)[:, 24:48] % 5).copy()
        names = {"np": np, "a": a, "b": b, "w": np.arange(24.0) % 3, "x": []}
        assert np is not namespace or isinstance(a, mc.DTensor)
        for line in lines:
            exec(line, names)  # a text of ours
        result = names["a"], names["b"], names["x"]
        names.clear()  # pages know the names of the program that reads them
        return result

    expected = run(np)

    def program():
        for result, numpys in zip(run(namespace), expected, strict=True):
            assert np.allclose(np.asarray(result), np.asarray(numpys), rtol=1e-11), lines

    with mc.simulate(2 + seed % 2) as world:
        world.run(program)


@pytest.mark.usefixtures("scripted")
def test_rows_of_blocks_with_gaps_are_right():
    """Blocks inside of their ghosts are in larger memory than a copy of all elements."""
    array = np.arange(200 * 300.0).reshape(200, 300)

    def program():
        mesh = mc.create_mesh([("x", 2)])
        around = np.zeros((100, 310))
        around[:, 5:305] = array[100 * mesh.rank : 100 * mesh.rank + 100]
        t = tensor_of_inner_blocks(
            around[:, 5:305], mc.Layout(["x", mc.UNSHARDED], mesh), array.shape, array.dtype, (200, 310)
        )
        for i in [*range(0, 200, 9)] * 8:
            assert (t[i].sum(), t[i, 7]) == (array[i].sum(), array[i, 7])

    with mc.simulate(2) as world:
        world.run(program)
