"""Masks on arrays that are cut: NumPy's values, and how often the ranks of a script tell each other their counts."""

import numpy as np
import pytest

import meshcomm as mc
import meshcomm.numpy as namespace
from support.numpy_law import evaluated

PROGRAMS = {
    "m = x > 5000; x[m] += 1; x[m] -= x[m] / 2; x": 1,
    "m = x > 5000; y = x[m]; x[m] = y * 2; x[~m] = 0; x": 1,
    "m = x > 5000; y = x[m]; m[:7000] = False; z = x[m]; x[m] = z + 1; np.concatenate([y, x])": 2,
    "m = x > 5000; v = m[::2]; y = x[m]; v[3000:] = False; np.concatenate([x[m], y])": 2,
    "g[c] = 0; g[c, :] = g[c, :] + 1; g[c]": 0,  # each rank has c whole
    "g[c, :] = x[:9]; g[c] = 3.5; g[c, 1] = 2; g": 0,
    "r = g[:, :, 0] < 800; g[r] = g[r] * 2; g[r, :] = -g[r, :]; g": 1,
    "r = g[:, :, 0] < 800; h = g[1:]; s = r[1:]; h[s] = h[s] * 2; g": 1,
    "m = x > 5000; y = x[m]; x[m] = np.arange(float(len(y))); k[m] = True; k[m] = -3; x + k": 1,
    "m = x > 5000; x[m] = k[m]; x": 1,
    "m = x < 0; y = x[m]; x[m] = y; x[m] = 3; np.concatenate([x, y])": 1,
    "x[x > 9000] = x[:999][::-1]; x": 1,
    "x[x > 9000] = np.arange(999) % 7; x[x < 99] = np.array(7); x[x < 8] = np.array([3.5]); x": 1,
    "g[g[:, :, 0] > 900] = np.arange(9); g[g[:, :, 0] < 99] = np.float32(1.5); g": 0,
    "k[x > 9000] = 2.5; k": 0,
    "k[x > 9000] = x[x > 9000] / 2; k": 2,
}
WRONG = [
    *("k[x > 9000] = np.nan", "k[x > 9000] = 10**30", "k[x > 9000] = 1j", "x[x > 9000] = x[:7]", "x[(x > 9000)[1:]]"),
    "x[:] = 3; np.broadcast_to(x, (2, 10000))[:, x > 2] = 1",
]


def names(np):
    i = np.arange(40)[:, None] * np.ones(60, int)
    return {
        "np": np,
        "x": np.arange(10_000.0),
        "k": np.arange(10_000) % 300,
        "g": np.arange(40 * 60 * 9.0).reshape(40, 60, 9),
        "c": i % 7 == 3,
    }


@pytest.mark.usefixtures("scripted")
@pytest.mark.parametrize("ranks", [2, 3])
def test_programs(ranks):
    def program(call, asked):
        ours = names(namespace)
        assert isinstance(ours["g"], mc.DTensor)
        assert not isinstance(ours["c"], mc.DTensor)
        with mc.count() as c:
            result = evaluated(call, ours)
        assert np.array_equal(result, expected), call
        tally = c.operations.get("t[index]")
        assert (tally.calls if tally else 0) == asked, call

    with mc.simulate(ranks) as world:
        for call, asked in PROGRAMS.items():
            expected = evaluated(call, names(np))
            world.run(program, call, asked)


@pytest.mark.usefixtures("scripted")
def test_errors_are_numpys():
    def program(call):
        with pytest.raises(type(expected)):
            evaluated(call, names(namespace))

    with mc.simulate(2) as world:
        for call in WRONG:
            with pytest.raises(Exception) as raised:
                evaluated(call, names(np))
            expected = raised.value
            world.run(program, call)


def test_without_a_script_the_ranks_ask_each_time():
    """A program may write to the block of a mask, and say nothing."""

    def program():
        layout = mc.Layout(["x"], mc.create_mesh([("x", 2)]))
        t, m = (mc.distribute(x, layout) for x in (np.arange(10), np.arange(10) % 2 == 0))
        assert t[m].tolist() == [0, 2, 4, 6, 8]
        m.local[:2] = False
        return t[m].tolist()

    with mc.simulate(2) as world:
        assert world.run(program) == [[2, 4, 8]] * 2
