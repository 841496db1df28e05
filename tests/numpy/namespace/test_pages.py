"""Elements that loops of a script read: NumPy's values, in few messages."""

import numpy as np
import pytest

import meshcomm as mc
import meshcomm.numpy as namespace
from meshcomm.numpy.indexing.pages import PAGES


def diagonal(np, a):
    return sum(np.tanh(a[i, i]) for i in range(len(a)))


def rows(np, a):
    return sum(a[i, j] * j for i in range(60, 70) for j in range(200))


def columns_backwards(np, a):
    return sum(a[-1 - i, j] * i for j in range(20) for i in range(200))


def neighbours(np, a):
    return sum(a[i - 1, j] - a[i, j - 1] * a[i + 1, j] for i in range(1, 20) for j in range(1, 200))


def recurrence(np, a):
    for i in range(1, 150):
        a[i, 3] = a[i - 1, 3] * 0.5 + i
        a[3, i] -= a[3, i - 1] / 2
    return a[149, 3] + a.sum()


def written_by_slices(np, a):
    total = 0.0
    for i in range(100):
        total += a[i, i] + a[i, i + 1]
        a[i : i + 2] += 1
        a.T[0] = total
        row = a[i]
        row[i + 3] = total
        total += a[i, i + 3]
    return total


def at_random(np, a):
    i, total = 12345, 0.0
    for _ in range(300):
        i = (i * 1103515245 + 12345) % 2**31
        total += a[i % 200, (i >> 8) % 200]
    return total


def elements_of_rows(np, a):
    return sum(row[j] for row in a for j in range(0, 200, 3))


def some_of_each_row(np, a):
    return sum(a[i, 0] * a[i, 7] for _ in range(3) for i in range(200))


def once(np, a):
    return a[0, 0] + (a * 2)[5, 5] + a[150][7]


def of_integers(np, a):
    k = np.arange(40_000) % 251
    for i in range(1, 300):
        k[-i] = k[-i - 1] * 3 % 1001
        k[i] += np.bool_(True)
    with pytest.raises((ValueError, OverflowError)):
        k[5] = float("nan")
    with pytest.raises(IndexError):
        k[40_000]
    return k[5] * 1000 + k[-5] + k.sum()


MOST = {diagonal: 10, rows: 4, columns_backwards: 60, neighbours: 4, recurrence: 8, written_by_slices: 300} | {
    at_random: 300,
    elements_of_rows: 500,
    once: 4,
    some_of_each_row: 6,
    of_integers: 8,
}  # messages


@pytest.mark.usefixtures("scripted")
@pytest.mark.parametrize("loop", MOST)
@pytest.mark.parametrize("ranks", [2, 3])
def test_loops(loop, ranks):
    expected = loop(np, np.sin(np.arange(40_000.0)).reshape(200, 200))

    def program():
        a = namespace.sin(namespace.arange(40_000.0)).reshape(200, 200)
        assert isinstance(a, mc.DTensor)
        with mc.count() as c:
            result = loop(namespace, a)
        assert type(result) is type(expected)
        assert np.isclose(result, expected, rtol=1e-12)
        asked = [tally.calls for name, tally in c.operations.items() if name.startswith("t[")]
        assert sum(asked) <= MOST[loop]

    with mc.simulate(ranks) as world:
        world.run(program)
    assert not PAGES


def test_without_a_script_each_element_comes_alone():
    """A program may write to a block, and say nothing."""

    def program():
        t = mc.distribute(np.arange(4), mc.Layout(["x"], mc.create_mesh([("x", 2)])))
        assert [int(t[i]) for i in range(4)] == [0, 1, 2, 3]
        t.local[:] += 5
        return [int(t[i]) for i in range(4)]

    with mc.simulate(2) as world:
        assert world.run(program) == [[5, 6, 7, 8]] * 2
