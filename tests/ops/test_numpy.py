"""NumPy's functions on tensors give what they give on arrays: the law of all of them, from a table of calls."""

import warnings
from random import Random

import numpy as np
import pytest

import meshcomm as mc
from meshcomm import Layout
from support.numpy_table import TABLE, operands
from support.random_cases import of_kinds, random_layout
from support.sampling import sampled

SIZES = [(1,), (2,), (3,), (2, 2), (4,), (2, 3)]
SEEDS = sampled(range(12), 3)


def outcome(call, names):
    """What the last statement of a call gives, or the class of the error."""
    *statements, last = call.split(";")
    names = {"np": np, **names}
    try:
        for statement in statements:
            exec(statement.strip(), names)
        return eval(last.strip(), names)
    except (ValueError, TypeError, IndexError, ZeroDivisionError, AttributeError) as error:
        return error


def tensors(mesh, seed):
    random = Random(seed)
    made = {}
    for name, array in operands(seed).items():
        layout = of_kinds(random, random_layout(random, mesh, array.ndim), array.shape)
        made[name] = mc.distribute(array, Layout(layout.axes, mesh))
    return made


def check(found, expected):
    if isinstance(expected, Exception):
        kinds = (ValueError, TypeError, IndexError, ZeroDivisionError)
        kind = next((kind for kind in kinds if isinstance(expected, kind)), type(expected))
        assert isinstance(found, kind), f"{found!r}, but NumPy raises {expected!r}"
        return
    if isinstance(found, Exception):
        raise AssertionError(f"{type(found).__name__}: {found}") from found
    if isinstance(expected, list | tuple):
        assert isinstance(found, list | tuple), found
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            check(one, other)
        return
    if expected is None or isinstance(expected, str | bytes | bool | np.dtype):
        assert found == expected
        return
    if not isinstance(found, mc.DTensor):
        found = np.asarray(found)
        whole = found
    else:
        whole = found.to_numpy()
    expected = np.asarray(expected)
    assert (found.shape, found.dtype) == (expected.shape, expected.dtype)
    if expected.dtype.kind in "fc":
        np.testing.assert_allclose(whole, expected, rtol=1e-5 if expected.dtype.itemsize < 8 else 1e-11, atol=1e-11)
    else:
        np.testing.assert_array_equal(whole, expected)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", TABLE)
def test_functions_are_those_of_numpy(name, seed):
    sizes = SIZES[seed % len(SIZES)]

    def program():
        mesh = mc.create_mesh(list(zip("xy", sizes, strict=False)))
        for call in TABLE[name]:
            with warnings.catch_warnings(), np.errstate(all="ignore"):
                warnings.simplefilter("ignore")
                expected = outcome(call, operands(seed))
                found = outcome(call, tensors(mesh, seed))
                try:
                    check(found, expected)
                except AssertionError as error:
                    raise AssertionError(f"{call}: {error}") from error

    with mc.simulate(int(np.prod(sizes))) as world:
        world.run(program)


@pytest.mark.parametrize("seed", SEEDS)
def test_functions_of_indices(seed):
    sizes = SIZES[seed % len(SIZES)]

    def program():
        random, mesh = Random(seed), mc.create_mesh(list(zip("xy", sizes, strict=False)))
        for shape, function, dtype in [
            ((7, 6), lambda i, j: i - 2 * j, float),
            ((11,), lambda i: i % 3 == 0, int),
            ((4, 3, 5), lambda i, j, k: k, "i4"),
            ((0, 3), lambda i, j: i + 1j * j, float),
        ]:
            layout = of_kinds(random, random_layout(random, mesh, len(shape)), shape)
            found = mc.fromfunction(function, shape, Layout(layout.axes, mesh), dtype=dtype)
            check(found, np.fromfunction(function, shape, dtype=dtype))

    with mc.simulate(int(np.prod(sizes))) as world:
        world.run(program)
