"""The law of NumPy's functions on tensors: they give what they give on arrays, in layouts of all kinds.

For simulated and for real ranks; tests/data/numpy_calls.txt has the calls.
"""

import re
from random import Random

import numpy as np

import meshcomm as mc
from support import tensors
from support.numpy_operands import drawn, fixed, names_in
from support.paths import DATA


def alternatives(call):
    """Return the calls that one with {a|b} stands for.

    >>> alternatives("f({1|2}, {a|})")
    ['f(1, a)', 'f(1, )', 'f(2, a)', 'f(2, )']
    """
    found = re.search(r"\{([^{}]*)\}", call)
    if found is None:
        return [call]
    before, after = call[: found.start()], call[found.end() :]
    return [each for one in found[1].split("|") for each in alternatives(before + one + after)]


def table(name):
    """Return the calls of a file in tests/data, by the name of what they try."""
    _, *groups = re.split(r"^## (.*)\n", (DATA / name).read_text("utf-8"), flags=re.MULTILINE)
    texts = zip(groups[::2], groups[1::2], strict=True)
    lines = {title: re.split(r"\n|  +", re.sub(r"\n +", "", text.strip())) for title, text in texts}
    return {title: [each for line in found for each in alternatives(line)] for title, found in lines.items()}


CALLS = table("numpy_calls.txt")
RAISED = (ValueError, TypeError, IndexError, KeyError, ZeroDivisionError, OverflowError, AttributeError)
TOLERANCES = {"e": 2e-2, "f": 1e-4, "F": 1e-4}
TIMES = 2


def evaluated(call, names):
    """What the last statement of a call gives."""
    *statements, last = call.split(";")
    for statement in statements:
        exec(statement.strip(), names)
    return eval(last.strip(), names)


def outcome(call, names):
    """As `evaluated`, or the error."""
    try:
        return evaluated(call, {"np": np, **names})
    except RAISED as error:
        return error


def in_layouts(random, mesh, given):
    """The same operands, as tensors; of those that were drawn, some but the first stay arrays."""
    always = {name for name, value in given.items() if name.islower() or getattr(value, "dtype", None) == "g"}
    always.update([name for name, value in given.items() if isinstance(value, np.ndarray)][:1])

    def distributed(array):
        return mc.distribute(array, tensors.layout_of(random, mesh, array.shape))

    found = dict(given)
    for name, value in given.items():
        if callable(value):
            found[name] = lambda *shape, make=value: distributed(make(*shape))
        elif isinstance(value, np.ndarray) and (name in always or random.random() < 0.7):
            found[name] = distributed(value)
    return found


def check(found, expected):
    if isinstance(expected, Exception):
        kind = next((kind for kind in RAISED if isinstance(expected, kind)), type(expected))
        assert isinstance(found, kind), f"{found!r}, but NumPy raises {expected!r}"
        return
    if isinstance(found, Exception):
        raise AssertionError(f"{type(found).__name__}: {found}") from found
    if isinstance(expected, list | tuple):
        assert isinstance(found, list | tuple), found
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            check(one, other)
    elif expected is None or isinstance(expected, str | bytes | bool | np.dtype):
        assert found == expected
    elif isinstance(found, mc.DTensor):
        if isinstance(expected, np.generic) and found.dtype.newbyteorder("=") == expected.dtype:
            expected = np.asarray(expected, found.dtype)  # scalars have no byte order
        tensors.check(found, expected, same)
    else:
        assert (np.shape(found), np.asarray(found).dtype) == (np.shape(expected), np.asarray(expected).dtype)
        same(np.asarray(found), np.asarray(expected))


def same(found, expected):
    """Compare two blocks: numbers with a fraction, up to the order of a sum."""
    if expected.dtype.kind in "fc":
        rtol = TOLERANCES.get(expected.dtype.char, 1e-10)
        np.testing.assert_allclose(found, expected, rtol=rtol, atol=rtol)
    else:
        np.testing.assert_array_equal(found, expected)


def check_outside(found, expected):
    """A rank that is outside of the mesh has the shape of what the others find, unless that depends on elements."""
    if isinstance(found, Exception):
        assert isinstance(expected, Exception) or isinstance(found, mc.MeshcommError), repr(found)
    elif isinstance(found, mc.DTensor) and not isinstance(expected, Exception):
        check(found, expected)


def given_to(call, seed):
    """The operands of a call, by the names that it has."""
    every = fixed(seed)
    return {**{name: every[name] for name in names_in(call) if name in every}, **drawn(call, seed)}


def law(name, seed, mesh, times=TIMES):
    """Compare the calls of this name on a mesh with those on arrays, those with drawn operands so many times.

    Tests that call this must ignore warnings: simulated ranks are threads, and share what catches them.
    """
    for call in CALLS[name]:
        for number in range(times if any(each.isupper() for each in names_in(call)) else 1):
            for again in (False, True):  # by the recipe that was kept of the first call, of other elements
                _check_call(call, seed + 1000 * number, mesh, again)


def _check_call(call, which, mesh, again):
    given = [given_to(call, which) for _ in range(2)]
    if again:
        given = [{name: _turned(value) for name, value in each.items()} for each in given]
    with np.errstate(all="ignore"):
        expected = outcome(call, given[0])
        found = outcome(call, in_layouts(Random(f"layouts {call} {which}"), mesh, given[1]))
    try:
        (check if mesh.rank is not None else check_outside)(found, expected)
    except AssertionError as error:
        raise AssertionError(f"{call}, {given_to(call, which)}, {again=}: {error}") from error


def _turned(value):
    """The same array with its elements in another order; anything else as it is."""
    if not isinstance(value, np.ndarray) or value.size < 2:
        return value
    return np.roll(value.reshape(-1), 1).reshape(value.shape)
