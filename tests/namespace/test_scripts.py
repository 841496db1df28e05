"""What a script of NumPy gets under ``run --numpy``: numbers where there are no axes, and NumPy's text."""

import numpy as np
import pytest

import meshcomm as mc
import meshcomm.numpy as namespace
from meshcomm.core.arrays.scripted import set_scripted

CALLS = {
    "sum": lambda np, x: x.sum(),
    "np.sum": lambda np, x: np.sum(x),
    "an element": lambda np, x: x[3],
    "an element of flat": lambda np, x: x.flat[3],
    "an iteration": lambda np, x: next(iter(x)),
    "a product": lambda np, x: x @ x,
    "dot": lambda np, x: np.dot(x, x),
    "argmax": lambda np, x: x.argmax(),
    "any": lambda np, x: (x > 3).any(),
    "a norm": lambda np, x: np.linalg.norm(x),
    "median": lambda np, x: np.median(x),
    "of an array without axes": lambda np, x: np.array(3.0) + 1,
    "sqrt": lambda np, x: np.sqrt(np.array(4.0)),
    "take": lambda np, x: x.take(1),
    "slogdet": lambda np, x: np.linalg.slogdet(np.eye(2)),
    "an array without axes": lambda np, x: np.array(3.0),
    "ellipsis": lambda np, x: x[2, ...],
    "squeeze": lambda np, x: np.squeeze(x[:1]),
    "reshape": lambda np, x: x[:1].reshape(()),
    "in place": lambda np, x: np.add(np.array(1.0), 1, out=np.array(0.0)),
    "a text": lambda np, x: f"{x.mean():.2f} {x[0]} {x} {x!r} {[x.max()]} { {x[1]: 1} }",
}


@pytest.fixture
def scripted():
    set_scripted(True)
    yield
    set_scripted(False)


@pytest.mark.usefixtures("scripted")
@pytest.mark.parametrize("call", CALLS)
def test_numbers_are_numpys(call):
    expected = CALLS[call](np, np.arange(10_000.0))

    def program():
        found = CALLS[call](namespace, namespace.arange(10_000.0))
        if isinstance(expected, np.ndarray):
            assert isinstance(found, mc.DTensor)
        else:
            assert type(found) is type(expected)
        assert repr(found) == repr(expected)

    with mc.simulate(2) as world:
        world.run(program)


def test_other_programs_get_tensors():
    x = namespace.arange(5)
    assert isinstance(x.sum(), mc.DTensor)
    assert repr(x).startswith("DTensor of (5,) int64")
