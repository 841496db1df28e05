"""What a script of NumPy gets under ``run --numpy``: numbers where there are no axes, and NumPy's text."""

import pickle
from pathlib import Path

import numpy as np
import pytest
from numpy.lib import recfunctions

import meshcomm as mc
import meshcomm.numpy as namespace
from meshcomm.core.arrays.scripted import set_scripted
from meshcomm.tools.cli.scripts import Script

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


WHOLE = {
    "cov": lambda np, x: np.cov(x[:300], x[:300] ** 2),
    "sort by fields": lambda np, x: np.argsort(np.array([(2, 1.0), (1, 3.0)], "i4,f8"), order=["f0"]),
    "in place": lambda np, x: [y := np.zeros(4), np.put(y, [1, 2], 7), y][2],
    "an argument as out": lambda np, x: np.cumsum(x[:5], out=np.zeros(5)),
    "texts": lambda np, x: np.strings.str_len(np.array(["a", "bcd"])),
    "a large result": lambda np, x: np.outer(x[:200], x[:200]),
    "a large result of operators": lambda np, x: x[:200, None] + x[None, :200],
    "at": lambda np, x: [y := np.zeros(3), np.add.at(y, [0, 0, 2], 1), y][2],
    "a function of the program": lambda np, x: np.apply_along_axis(lambda row: row.max(), 1, x[:12].reshape(3, 4)),
    "a view": lambda np, x: [y := x[:6].copy(), np.reshape(y, (2, 3)).fill(3), y][2],
    "bincount of flat": lambda np, x: np.bincount(x[:5].astype(int).flat).tolist(),
    "flat": lambda np, x: np.array([number + 1 for number in x[:5].flat]),
    "a dirichlet": lambda np, x: np.random.default_rng(1).dirichlet(x[1:4]).sum(),
}


@pytest.mark.usefixtures("scripted")
@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("call", WHOLE)
def test_numpy_computes_what_is_whole(call, ranks):
    expected = WHOLE[call](np, np.arange(300.0))

    def program():
        found = WHOLE[call](namespace, namespace.arange(300.0))
        assert type(found) is (mc.DTensor if isinstance(expected, np.ndarray) else type(expected))
        assert np.array_equal(found, expected)
        assert repr(found) == repr(expected)
        if call.startswith("a large result") and ranks == 2:
            assert found.layout.axes == (("x",), ())

    with mc.simulate(ranks) as world:
        world.run(program)


CUT = {
    "sort by fields": lambda np, t: np.argsort(t, order=["f1"])[:5],
    "in place": lambda np, t: [np.place(t["f0"], t["f0"] > 4, [1, 2]), t["f0"]][1],
    "unstructured": lambda np, t: recfunctions.structured_to_unstructured(t)[3],
}


@pytest.mark.usefixtures("scripted")
@pytest.mark.parametrize("call", CUT)
def test_what_is_not_defined_for_cut_tensors_comes_to_all_ranks(call):
    def records(np):
        made = np.zeros(10_000, "i4,f8")
        made["f0"], made["f1"] = np.arange(10_000), -np.arange(10_000.0)
        return made

    expected = CUT[call](np, records(np))

    def program():
        t = records(namespace)
        assert not t.layout.is_fully_replicated()
        assert np.array_equal(CUT[call](namespace, t), expected)

    with mc.simulate(2) as world:
        world.run(program)


@pytest.mark.usefixtures("scripted")
def test_what_is_not_defined_and_too_large_stays_an_error(monkeypatch):
    monkeypatch.setattr("meshcomm.numpy.namespace.whole.WHOLE_ARRAY", 1000)

    def program():
        with pytest.raises(TypeError, match="order= is not supported"):
            np.argsort(namespace.zeros(10_000, "i4,f8"), order=["f1"])

    with mc.simulate(2) as world:
        world.run(program)


@pytest.mark.usefixtures("scripted")
def test_pickles_are_those_of_numpy():
    x = namespace.arange(3)
    assert type(pickle.loads(pickle.dumps(x))) is np.ndarray
    assert pickle.loads(pickle.dumps([x]))[0].tolist() == [0, 1, 2]


def test_memory_is_told_as_numpys():
    for view in (lambda x: x, lambda x: x.T, lambda x: x[::2, 1:], lambda x: x[:, :, None], lambda x: x.T.copy()):
        expected = view(np.zeros((30, 400)))

        def program(view=view, expected=expected):
            found = view(namespace.zeros((30, 400)))
            assert found.strides == expected.strides
            assert repr(found.flags) == repr(expected.flags)
            assert found.flags["C_CONTIGUOUS"] == expected.flags.c_contiguous
            with pytest.raises(AttributeError, match="cannot be set"):
                found.flags.writeable = False

        with mc.simulate(2) as world:
            world.run(program)


def test_this_package_is_no_module_of_a_script_beside_it():
    clone = Path(mc.__file__).parents[1]
    script = Script(clone)
    assert not script._is_of_script({"__file__": namespace.__file__})
    assert script._is_of_script({"__file__": str(clone / "script.py")})
    assert not script._is_of_script({"__file__": str(clone / ".venv" / "site-packages" / "library.py")})


def test_other_programs_get_tensors():
    x = namespace.arange(5)
    assert isinstance(x.sum(), mc.DTensor)
    assert repr(x).startswith("DTensor of (5,) int64")
