"""Floating-point errors of one rank of a script reach all ranks: np.errstate, np.seterr and filters of warnings."""

import warnings

import numpy as np
import pytest

import meshcomm as mc
import meshcomm.numpy as namespace
from meshcomm.core.arrays.conditions import agree_on_conditions
from meshcomm.core.arrays.scripted import set_scripted
from meshcomm.core.failures.watch import watch


@pytest.fixture
def seeing():
    """A script; its ranks call `agree_on_conditions`."""
    set_scripted(True)
    yield
    agree_on_conditions(False)
    set_scripted(False)


def divided(np):
    """Return what a script sees of a division by zero, and of what follows, in a block of the last rank."""
    x, z, seen = np.arange(20_000.0), np.ones(20_000), []
    z[19_000] = 0
    for call in (lambda: x / z, lambda: np.log(z), lambda: np.divide(x, z, out=x), lambda: z / 1e-300 / 1e-300):
        for _ in range(2):  # the second one by a recipe
            try:
                seen.append(float(call().sum()))
            except FloatingPointError as error:
                seen.append(str(error))
    return seen, float(x[19_000])


@pytest.mark.usefixtures("seeing")
@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_errors_are_raised_on_all_ranks(ranks):
    def program(np):
        with np.errstate(all="raise"):
            return divided(np)

    def of_rank():
        agree_on_conditions(True)
        return program(namespace)

    with mc.simulate(ranks) as world:
        assert world.run(of_rank) == [program(np)] * ranks


@pytest.mark.usefixtures("seeing")
def test_functions_are_called_on_all_ranks():
    def program(np):
        seen = []
        with np.errstate(all="call", call=lambda *args: seen.append(args)):
            values = divided(np)
        return seen, values

    def of_rank():
        agree_on_conditions(True)
        return program(namespace)

    with mc.simulate(2) as world:
        assert world.run(of_rank) == [program(np)] * 2


@pytest.mark.usefixtures("seeing")
def test_ranks_communicate_only_where_the_script_sees_conditions():
    others = 0  # calls of other functions

    def counted():
        x = mc.distribute(np.ones(8), mc.Layout(["x"], mc.create_mesh([("x", 1)])))
        before = watch.count
        for _ in range(3):
            x / x
        np.average(x, weights=x)  # of several operations
        return watch.count - before - others

    def program():
        nonlocal others
        others = counted()
        agree_on_conditions(True)
        found = [counted()]
        with np.errstate(divide="raise"):
            found.append(counted())
        found.append(counted())
        with np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("error")
            found.append(counted())
        with warnings.catch_warnings():
            warnings.simplefilter("error", DeprecationWarning)
            found.append(counted())
            warnings.simplefilter("error", append=True)  # another one decides before it
            found.append(counted())
            warnings.filterwarnings("error", "divide by zero", RuntimeWarning)
            found.append(counted())
        with warnings.catch_warnings(record=True):
            found.append(counted())
        return found

    with warnings.catch_warnings():
        warnings.simplefilter("default")
        with mc.simulate(1) as world:
            assert world.run(program) == [[0, 4, 0, 0, 0, 0, 4, 4]]
