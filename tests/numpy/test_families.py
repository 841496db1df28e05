"""Functions of one body have SciPy's names and arguments, and docstrings of their own."""

import inspect

import pytest

import meshcomm as mc


def by_position(function):
    return [each.name for each in inspect.signature(function).parameters.values() if each.kind == 1]


@pytest.mark.parametrize(("module", "count"), [("fft", 30), ("ndimage", 72)])
def test_functions_are_called_as_those_of_scipy(module, count):
    theirs, ours = pytest.importorskip(f"scipy.{module}"), getattr(mc, module)
    found = {name: getattr(ours, name) for name in ours.__all__}
    found = {name: each for name, each in found.items() if f"Source: scipy.{module}.{name}." in (each.__doc__ or "")}
    wrong = []
    for name, function in found.items():
        mine = by_position(function)
        if (function.__name__, function.__qualname__) != (name, name) or mine != by_position(getattr(theirs, name))[
            : len(mine)
        ]:
            wrong.append((name, function, mine))
    assert not wrong
    assert len(found) == len({function.__doc__ for function in found.values()}) == count
