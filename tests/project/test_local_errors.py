"""A public function that is Collective counts as refused where one rank alone calls it with a wrong argument.

Wrong values are given to each parameter but the first.
"""

import inspect
import re

import numpy as np
import pytest

import meshcomm as mc
from support.sampling import sampled

WRONG = (object(), -99, "zz", (0,) * 7)
GIVEN = {  # by the name of the parameter, or also of the function; a tensor where there is none
    "target": lambda t: t.layout,
    "layout": lambda t: t.layout,
    "weights": lambda t: np.ones((3, 3)),
    "size": lambda t: 3,
    "rank": lambda t: 1,
    "percentile": lambda t: 50,
    "axis": lambda t: 0,
    "function": lambda t: np.max,
    "tensors": lambda t: [t, t],
    "arrays": lambda t: [t, t],
    "from_local block": lambda t: t.local,
    "barrier mesh": lambda t: t.mesh,
    "machine_of mesh": lambda t: t.mesh,
}
OBJECTS = {  # by the name of the class
    "DTensor": lambda t: t,
    "Variable": mc.Variable,
    "DVariable": mc.DVariable,
    "FFTPlan": lambda t: mc.fft.plan(t.shape, t.dtype, t.layout),
    "Plan": lambda t: mc.plan_relayout(t.shape, t.dtype, t.layout, t.layout),
}
LOCAL = (  # parameters without which it is not known which ranks would make the call, or calls that move nothing
    *("distribute layout", "pack layout"),
    *("from_local layout", "from_local global_shape", "from_local mesh", "from_local sharding_specs"),
    *("migrate devices", "migrate mesh"),
    *("transpose axes", "array_api.asarray dtype", "array_api.astype dtype"),
)
ABOUT_RANKS = ("create_mesh", "trace")
"""Collective over ranks that they do not get from a tensor."""


def is_collective(function):
    return bool(re.search(r"\bCollective\b", inspect.getdoc(function) or ""))


def collective():
    """Return the public functions, and methods of `OBJECTS`, that are Collective, by name."""
    found = {}
    for module in (mc, mc.array_api, mc.fft, mc.gradients, mc.linalg, mc.ndimage, mc.random):
        prefix = module.__name__.removeprefix("meshcomm").lstrip(".")
        for name in getattr(module, "__all__", dir(module)):
            value = getattr(module, name)
            if inspect.isfunction(value) and is_collective(value):
                found[f"{prefix}.{name}".lstrip(".")] = value
            elif inspect.isclass(value) and name in OBJECTS:
                for each, method in inspect.getmembers(value, inspect.isfunction):
                    if each[0] != "_" and is_collective(method):
                        found[f"{name}.{each}"] = method
    return found


COLLECTIVE = {name: each for name, each in collective().items() if name not in ABOUT_RANKS}


def arguments(function, wrong_name, wrong, t, owner):
    """Return arguments for a call of *function*: *wrong* for one parameter, usual ones where others are needed."""
    positional, named = [], {}
    for number, (name, parameter) in enumerate(inspect.signature(function).parameters.items()):
        if name == wrong_name:
            value = wrong
        elif name == "self":
            value = owner(t)
        elif number == 0 or (parameter.default is parameter.empty and parameter.kind is not parameter.VAR_POSITIONAL):
            value = (GIVEN.get(f"{function.__name__} {name}") or GIVEN.get(name, lambda t: t))(t)
        else:
            continue
        if parameter.kind in (parameter.KEYWORD_ONLY, parameter.VAR_KEYWORD) or number > len(positional):
            named[name] = value
        else:
            positional.append(value)
    return positional, named


def parameters(function):
    return list(inspect.signature(function).parameters)[1:]


def unnoticed(function, name, wrong, owner):
    """Return what one of two ranks raises alone, if the next exchange does not tell that they differ; else None."""
    raised = []

    def program(rank):
        mesh = mc.create_mesh([("x", 2)])
        rows, columns = mc.Layout(["x", mc.UNSHARDED], mesh), mc.Layout([mc.UNSHARDED, "x"], mesh)
        t = mc.distribute(np.arange(24.0).reshape(6, 4), rows)
        positional, named = arguments(function, name, wrong, t, owner)
        mc.relayout(t, columns)
        if rank == 1:
            try:
                function(*positional, **named)
            except mc.CollectiveMismatch:
                raise
            except Exception as error:
                raised.append(error)
            else:
                raise mc.CollectiveMismatch("the call is a right one, and rank 0 does not make it")
        mc.relayout(t, columns)

    with mc.simulate(2) as world:
        try:
            world.run(lambda: program(world.rank))
        except mc.CollectiveMismatch:
            return None
    return raised


@pytest.mark.parametrize("of", sorted({name.rpartition(".")[0] for name in COLLECTIVE}))
def test_a_wrong_argument_on_one_rank_is_noticed(of):
    cases = [
        (name, parameter, wrong)
        for name, function in COLLECTIVE.items()
        if name.rpartition(".")[0] == of
        for parameter in parameters(function)
        if parameter != "comm" and f"{name} {parameter}" not in LOCAL
        for wrong in WRONG
    ]
    found = {
        f"{name} {parameter}={wrong!r}": raised
        for name, parameter, wrong in sampled(cases)
        if (raised := unnoticed(COLLECTIVE[name], parameter, wrong, OBJECTS.get(of))) is not None
    }
    assert not found, found
