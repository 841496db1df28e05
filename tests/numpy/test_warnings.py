"""NumPy's warnings name the line of the program, each time, as they do for arrays."""

import warnings

import numpy as np
import pytest

import meshcomm as mc

CALLS = [
    "np.log(t)",
    "1 / t",
    "t / 0",
    "np.float64(1) / t",
    "np.sqrt(t)",
    "np.exp(t * 1e6)",
    "np.reciprocal(t)",
    "np.divide(t, 0, out=None, where=t > 0)",
    "np.maximum.reduce(np.sqrt(t))",
    "np.histogram(t * np.inf, range=(0, 1))",
    "np.nanmean(nan, axis=0)",
    "np.nanvar(nan, axis=0)",
    "np.nanmax(nan, axis=0)",
    "np.nanmin(nan)",
    "np.nanmedian(nan, axis=0)",
]
ARRAYS = {"t": np.array([0.0, 1, -1, 0, -1, np.nan]), "nan": np.full((6, 2), np.nan), "empty": np.empty((0, 3))}


def issued(call, names):
    """The messages of two runs of a call, and the files that they name."""
    runs = []
    for _ in range(2):
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            eval(compile(call, "program.py", "eval"), {"np": np, **names})
        runs.append(sorted((str(each.message), each.filename) for each in found))
    assert runs[0] == runs[1]
    return runs[0]


def tensors():
    mesh = mc.create_mesh([("x", -1)])
    return {
        name: mc.distribute(each, mc.Layout(["x", *[mc.UNSHARDED] * (each.ndim - 1)], mesh))
        for name, each in ARRAYS.items()
    }


@pytest.mark.parametrize("call", CALLS)
def test_on_one_rank_they_are_those_of_numpy(call):
    with mc.simulate(1) as world:
        assert world.run(lambda: issued(call, tensors())) == [issued(call, ARRAYS)]


@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("call", [*CALLS, "np.mean(empty, axis=0)", "np.std(empty)", "np.std(t, ddof=9)"])
def test_on_several_ranks_they_name_the_line_of_the_program(call, ranks):
    with mc.simulate(ranks) as world, warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")

        def program():
            eval(compile(call, "program.py", "eval"), {"np": np, **tensors()})

        world.run(program)
    assert found
    assert {each.filename for each in found} == {"program.py"}


def test_errstate_says_what_follows():
    said = []
    with mc.simulate(1) as world:

        def program():
            t = tensors()["t"]
            with np.errstate(all="ignore"):
                np.log(t)  # from now on by its recipe
            with np.errstate(all="raise"), pytest.raises(FloatingPointError):
                np.log(t)
            with np.errstate(divide="call", invalid="warn", call=lambda *given: said.append(given[0])):
                assert [message for message, _ in issued("np.log(t)", {"t": t})] == [
                    "invalid value encountered in log"
                ]
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                with np.errstate(all="ignore"):
                    np.log(t)
                with pytest.raises(RuntimeWarning, match="divide by zero encountered in log"):
                    np.log(t)

        world.run(program)
    assert said == ["divide by zero"] * 2
