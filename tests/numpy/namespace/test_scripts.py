"""What a script of NumPy gets under ``run --numpy``: numbers where there are no axes, and NumPy's text."""

import pickle
from io import StringIO
from pathlib import Path

import numpy as np
import pytest
from numpy.lib import recfunctions

import meshcomm as mc
import meshcomm.numpy as namespace
from meshcomm.core.arrays.scripted import set_scripted
from meshcomm.numpy.namespace.names import member_named
from meshcomm.tools.cli.scripts import NumPyScript, SharedInput
from support.numpy_law import alternatives, evaluated

CALLS = [
    *alternatives("x{.sum()|[3]|.flat[3]| @ x|.argmax()|.take(1)|[2, ...]|[:1].reshape(())}"),
    *alternatives("np.{sum(x)|dot(x, x)|linalg.norm(x)|median(x)|sqrt(np.array(4.0))|squeeze(x[:1])|array(3.0)}"),
    *(
        "x.copy(order='C').clip(1, 3, out=x.copy('K')).sum()",
        "x.round(1, out=x.copy()).sum()",
        "x.cumsum(out=x.copy()).sum() + (x * 0 + 1).cumprod(0, out=x.copy()).sum()",
        "x.astype(int, order='C', subok=False).sum()",
        "x.argmax(out=np.array(0)).sum()",
        "next(iter(x))",
        "(x > 3).any()",
        "np.linalg.slogdet(np.eye(2))",
        "np.array(3.0) + 1",
    ),
    "np.add(np.array(1.0), 1, out=np.array(0.0))",
    "f'{x.mean():.2f} {x[0]} {x} {x!r} {[x.max()]} { {x[1]: 1} }'",
]


@pytest.mark.usefixtures("scripted")
@pytest.mark.parametrize(
    "call",
    [
        *alternatives("np.{add(x, 1, out=x[:])|cumsum(x, out=x[::-1])|clip(x[1:], 3, 9, out=x[:-1])}"),
        *alternatives("np.{sum(m, axis=0, out=m[0])|matmul(m, m, out=m[:])|multiply(m[1:-1], 2, out=m[1:-1])}"),
    ],
)
def test_a_view_of_an_operand_is_written_once(call):
    def program(np):
        names = {"np": np, "x": np.arange(12.0), "m": np.arange(16.0).reshape(4, 4)}
        eval(call, names)
        return names["x"].tolist(), names["m"].tolist()

    with mc.simulate(2) as world:
        assert world.run(lambda: program(namespace)) == [program(np)] * 2


@pytest.mark.usefixtures("scripted")
@pytest.mark.parametrize("call", CALLS)
def test_numbers_are_numpys(call):
    expected = eval(call, {"np": np, "x": np.arange(10_000.0)})

    def program():
        found = eval(call, {"np": namespace, "x": namespace.arange(10_000.0)})
        if isinstance(expected, np.ndarray):
            assert isinstance(found, np.ndarray | mc.DTensor)
        else:
            assert type(found) is type(expected)
        assert repr(found) == repr(expected)

    with mc.simulate(2) as world:
        world.run(program)


LARGE = ["np.outer(x[:200], x[:200])", "x[:200, None] + x[None, :200]"]
WHOLE = [
    *LARGE,
    "np.cov(x[:300], x[:300] ** 2)",
    "np.argsort(np.array([(2, 1.0), (1, 3.0)], 'i4,f8'), order=['f0'])",
    "y = np.zeros(4); np.put(y, [1, 2], 7); y",
    "y = np.zeros(3); np.add.at(y, [0, 0, 2], 1); y",
    "y = x[:6].copy(); np.reshape(y, (2, 3)).fill(3); y",
    "np.cumsum(x[:5], out=np.zeros(5))",
    "np.strings.str_len(np.array(['a', 'bcd']))",
    "np.apply_along_axis(lambda row: row.max(), 1, x[:12].reshape(3, 4))",
    "np.bincount(x[:5].astype(int).flat).tolist()",
    "np.array([number + 1 for number in x[:5].flat])",
    "np.random.default_rng(1).dirichlet(x[1:4]).sum()",
]


@pytest.mark.usefixtures("scripted")
@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("call", WHOLE)
def test_numpy_computes_what_is_whole(call, ranks):
    expected = evaluated(call, {"np": np, "x": np.arange(300.0)})

    def program():
        found = evaluated(call, {"np": namespace, "x": namespace.arange(300.0)})
        if isinstance(expected, np.ndarray):
            assert isinstance(found, mc.DTensor if call in LARGE and ranks > 1 else np.ndarray)
        else:
            assert type(found) is type(expected)
        assert np.array_equal(found, expected)
        assert repr(found) == repr(expected)
        if call in LARGE and ranks == 2:
            assert found.layout.axes == (("x",), ())

    with mc.simulate(ranks) as world:
        world.run(program)


CUT = [
    "np.argsort(t, order=['f1'])[:5]",
    "np.place(t['f0'], t['f0'] > 4, [1, 2]); t['f0']",
    "recfunctions.structured_to_unstructured(t)[3]",
]


@pytest.mark.usefixtures("scripted")
@pytest.mark.parametrize("call", CUT)
def test_what_is_not_defined_for_cut_tensors_comes_to_all_ranks(call):
    def records(np):
        made = np.zeros(10_000, "i4,f8")
        made["f0"], made["f1"] = np.arange(10_000), -np.arange(10_000.0)
        return made

    def called(np):
        return evaluated(call, {"np": np, "recfunctions": recfunctions, "t": records(np)})

    expected = called(np)

    def program():
        assert not records(namespace).layout.is_fully_replicated()
        assert np.array_equal(called(namespace), expected)

    with mc.simulate(2) as world:
        world.run(program)


@pytest.mark.usefixtures("scripted")
def test_what_is_not_defined_and_too_large_stays_an_error():
    def program():
        with pytest.raises(TypeError, match="order= is not supported"):
            np.argsort(namespace.zeros(2**23, "i4,f8"), order=["f1"])

    with mc.simulate(2) as world:
        world.run(program)


DRAWS = [
    "o = np.zeros((4, 3)).T; rng.random(out=o); o",
    *("x = np.arange(9000.0); rng.shuffle(x); x", "x = np.arange(12.0).reshape(4, 3).T; rng.shuffle(x, 1); x"),
    *alternatives("rng.{normal(size=(100, 100))|normal(np.arange(3), 2)|permutation(9)|choice(np.arange(9000), 4)}"),
    "rng.permutation(np.array([None, 'a', (1,)], object))",
]


@pytest.mark.usefixtures("scripted")
@pytest.mark.parametrize("call", DRAWS)
def test_random_numbers_are_the_same_on_any_number_of_ranks(call):
    def program():
        found = evaluated(call, {"np": namespace, "rng": namespace.random.default_rng(5)})
        return isinstance(found, np.ndarray), np.asarray(found).tolist()

    outcomes = []
    for ranks in (1, 3):
        with mc.simulate(ranks) as world:
            outcomes += world.run(program)
    assert all(is_array for is_array, _ in outcomes) or "9000" in call or "100" in call
    assert all(values == outcomes[0][1] for _, values in outcomes)


def test_all_ranks_read_the_standard_input_of_rank_0():
    texts = "bob\n3\nrest\nof it\n"

    def program():
        own = SharedInput(StringIO(texts if mc.is_root() else "of another rank\n"))
        return own.readline(), next(own), own.read(), own.readline()

    with mc.simulate(3) as world:
        assert world.run(program) == [("bob\n", "3\n", "rest\nof it\n", "")] * 3


def test_names_are_numpys_on_one_rank():
    set_scripted(True, alone=True)
    try:
        assert all(member_named(name) is getattr(np, name) for name in {*np.__all__} - {"random"})
        assert member_named("random") is namespace.random
    finally:
        set_scripted(False)


@pytest.mark.usefixtures("scripted")
def test_pickles_are_those_of_numpy():
    x = namespace.arange(3)
    assert type(pickle.loads(pickle.dumps(x))) is np.ndarray
    assert pickle.loads(pickle.dumps([x]))[0].tolist() == [0, 1, 2]


def test_memory_is_reported_as_numpys():
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
    script = NumPyScript(clone)
    assert not script._is_of_script({"__file__": namespace.__file__})
    assert script._is_of_script({"__file__": str(clone / "script.py")})
    assert not script._is_of_script({"__file__": str(clone / ".venv" / "site-packages" / "library.py")})


def test_other_programs_get_tensors_of_what_is_large():
    x = namespace.arange(10_000)
    assert isinstance(x.sum(), mc.DTensor)
    assert repr(x).startswith("DTensor of (10000,) int64")
