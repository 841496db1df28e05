"""The law of NumPy's functions: on tensors in layouts of all kinds they return the same values as on arrays.

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
    """Return the calls that a call with {a|b} stands for.

    >>> alternatives("f({1|2}, {a|})")
    ['f(1, a)', 'f(1, )', 'f(2, a)', 'f(2, )']
    """
    match = re.search(r"\{([^{}]*)\}", call)
    if match is None:
        return [call]
    before, after = call[: match.start()], call[match.end() :]
    return [alternative for choice in match[1].split("|") for alternative in alternatives(before + choice + after)]


def table(name):
    """Return the calls of a file in tests/data, by the title of their group."""
    _, *groups = re.split(r"^## (.*)\n", (DATA / name).read_text("utf-8"), flags=re.MULTILINE)
    texts = zip(groups[::2], groups[1::2], strict=True)
    lines = {title: re.split(r"\n|  +", re.sub(r"\n +", "", text.strip())) for title, text in texts}
    return {
        title: [call for line in group_lines for call in alternatives(line)] for title, group_lines in lines.items()
    }


CALLS = table("numpy_calls.txt")
RAISED = (ValueError, TypeError, IndexError, KeyError, ZeroDivisionError, OverflowError, AttributeError)
TOLERANCES = {"e": 2e-2, "f": 1e-4, "F": 1e-4}
TIMES = 2


def evaluated(call, names):
    """Run a call, and return the value of its last statement."""
    *statements, expression = call.split(";")
    for statement in statements:
        exec(statement.strip(), names)
    return eval(expression.strip(), names)


def outcome(call, names):
    """Return the value of a call, or the error that it raises."""
    try:
        return evaluated(call, {"np": np, **names})
    except RAISED as error:
        return error


def in_layouts(random, mesh, operands):
    """Return the operands as tensors. Of the random ones, some stay arrays, but never the first one."""
    always_tensors = {
        name for name, value in operands.items() if name.islower() or getattr(value, "dtype", None) == "g"
    }
    always_tensors.update([name for name, value in operands.items() if isinstance(value, np.ndarray)][:1])

    def distributed(array):
        return mc.distribute(array, tensors.layout_of(random, mesh, array.shape))

    result = dict(operands)
    for name, value in operands.items():
        if callable(value):
            result[name] = lambda *shape, make=value: distributed(make(*shape))
        elif isinstance(value, np.ndarray) and (name in always_tensors or random.random() < 0.7):
            result[name] = distributed(value)
    return result


def check(result, expected):
    if isinstance(expected, Exception):
        kind = next((kind for kind in RAISED if isinstance(expected, kind)), type(expected))
        assert isinstance(result, kind), f"{result!r}, but NumPy raises {expected!r}"
        return
    if isinstance(result, Exception):
        raise AssertionError(f"{type(result).__name__}: {result}") from result
    if isinstance(expected, list | tuple):
        assert isinstance(result, list | tuple), result
        assert len(result) == len(expected)
        for result_item, expected_item in zip(result, expected, strict=True):
            check(result_item, expected_item)
    elif expected is None or isinstance(expected, str | bytes | bool | np.dtype):
        assert result == expected
    elif isinstance(result, mc.DTensor):
        if isinstance(expected, np.generic) and result.dtype.newbyteorder("=") == expected.dtype:
            expected = np.asarray(expected, result.dtype)  # scalars have no byte order
        tensors.check(result, expected, same)
    else:
        assert (np.shape(result), np.asarray(result).dtype) == (np.shape(expected), np.asarray(expected).dtype)
        same(np.asarray(result), np.asarray(expected))


def same(result, expected):
    """Compare two blocks: numbers with a fraction, up to the order of a sum."""
    if expected.dtype.kind in "fc":
        rtol = TOLERANCES.get(expected.dtype.char, 1e-10)
        np.testing.assert_allclose(result, expected, rtol=rtol, atol=rtol)
    else:
        np.testing.assert_array_equal(result, expected)


def check_outside(result, expected):
    """Check the result on a rank outside of the mesh: its shape is that on other ranks, or it is an error."""
    if isinstance(result, Exception):
        assert isinstance(expected, Exception) or isinstance(result, mc.MeshcommError), repr(result)
    elif isinstance(result, mc.DTensor) and not isinstance(expected, Exception):
        check(result, expected)


def given_to(call, seed):
    """Return the operands of a call, by their names in it."""
    fixed_operands = fixed(seed)
    return {**{name: fixed_operands[name] for name in names_in(call) if name in fixed_operands}, **drawn(call, seed)}


def law(name, seed, mesh, times=TIMES):
    """Compare the calls of group *name* on a mesh with those on arrays. Calls with random operands run *times* times.

    Tests that call this must ignore warnings: simulated ranks are threads, and share the handlers of warnings.
    """
    for call in CALLS[name]:
        for number in range(times if any(operand_name.isupper() for operand_name in names_in(call)) else 1):
            for again in (False, True):  # the second call has other elements, and uses the recipe of the first one
                _check_call(call, seed + 1000 * number, mesh, again)


def _check_call(call, seed, mesh, again):
    operand_sets = [given_to(call, seed) for _ in range(2)]
    if again:
        operand_sets = [{name: _turned(value) for name, value in operands.items()} for operands in operand_sets]
    with np.errstate(all="ignore"):
        expected = outcome(call, operand_sets[0])
        result = outcome(call, in_layouts(Random(f"layouts {call} {seed}"), mesh, operand_sets[1]))
    try:
        (check if mesh.rank is not None else check_outside)(result, expected)
    except AssertionError as error:
        raise AssertionError(f"{call}, {given_to(call, seed)}, {again=}: {error}") from error


def _turned(value):
    """Return an array with its elements in another order; any other value as it is."""
    if not isinstance(value, np.ndarray) or value.size < 2:
        return value
    return np.roll(value.reshape(-1), 1).reshape(value.shape)
