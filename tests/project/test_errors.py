"""Errors keep their class and their substance, however their prose is written: what, where, both values, the rule.

The tables are tests/data/errors.json, bad calls with the facts that their errors state, and tests/data/mistakes.json,
what people write by nature in a program of four ranks, with words of the answer. Nothing that one rank alone refuses
goes unnoticed.
"""

import builtins
import copy
import inspect
import json
import math
import pickle
import sys

import numpy as np
import pytest

import meshcomm as mc
from support.bad_calls import RUNNERS, names_of_rank, outcome, says
from support.paths import DATA
from support.sampling import sampled
from support.surface import called, is_collective

ENTRIES = json.loads((DATA / "errors.json").read_text())
MISTAKES = json.loads((DATA / "mistakes.json").read_text())
KNOWN = {**vars(builtins), "LinAlgError": np.linalg.LinAlgError}


def classes(names):
    return tuple(getattr(mc, name, None) or KNOWN[name] for name in names.split())


def complaint(entry, outcomes):
    """Return what is wrong with the *outcomes* of a bad call, one on each rank; or None."""
    expected = classes(entry["error"])
    for kind, message in outcomes:
        public = kind is None or hasattr(mc, kind.__name__) or hasattr(builtins, kind.__name__)
        right = kind in expected or (not public and all(issubclass(kind, each) for each in expected))
        lost = [fact for fact in entry["facts"] if not says(message, fact)]
        if kind is not outcomes[0][0] or not right or lost:
            return f"{entry['call']}: {lost} is not in: {kind} {message}, or it is not {entry['error']} on all ranks"
    return None


def test_errors_say_what_where_both_values_and_the_rule():
    assert len(ENTRIES) >= 180
    found = [complaint(entry, RUNNERS[entry["on"]](entry["call"])) for entry in ENTRIES]
    assert [each for each in found if each is not None] == []


def test_errors_are_a_family():
    for name in ("MeshError", "LayoutError", "ShapeError", "GroupError", "DTypeError"):
        assert issubclass(getattr(mc, name), mc.MeshcommError)
        assert issubclass(getattr(mc, name), ValueError)
    assert issubclass(mc.DTypeError, TypeError)
    for name in ("CollectiveMismatch", "CollectiveTimeout"):
        assert issubclass(getattr(mc, name), mc.MeshcommError)
        assert issubclass(getattr(mc, name), RuntimeError)


# -- what one rank refuses --------------------------------------------------------------------------------------------

MOVE_NOTHING = (
    *("mc.from_callback(", "mc.zeros(", "mc.ones(", "mc.full(", "mc.empty(", "mc.Variable(", "mc.DVariable("),
    *("bool(", "np.asarray(", "pickle.dumps(", "t.item(", "mc.create_mesh(", "mc.matmul(array, "),
    *("mc.distribute(array, ", "mc.distribute(np", "mc.distribute([", "mc.distribute(None", "mc.distribute(t"),
    *("rules.distribute(", "strategy().", "mc.Strategy(", "mc.Topology.", "mc.transpose(t, (0, 0))"),
    *("mc.from_local(array[:3], L(mc.Cuts", "mc.from_local(array[:1], rows, mesh", 'mc.from_local(array[:1], "cut")'),
)
"""Bad calls that begin so are local, or have no mesh on which others could make the same call; but for `root=`."""
ON_RANKS = [entry["call"] for entry in ENTRIES if entry["on"] == "ranks"]
REFUSED = [call for call in ON_RANKS if "root=" in call or not call.startswith(MOVE_NOTHING)]
REFUSED += json.loads((DATA / "refused.json").read_text())


def is_noticed(program):
    """Return whether a program of four ranks, of which one has refused a call, ends with a `CollectiveMismatch`."""
    with mc.simulate(4) as world:
        try:
            world.run(lambda: program(world.rank))
        except mc.CollectiveMismatch:
            return True
        except Exception as error:
            return str(error) == "only rank 2 makes it"
    return False


def with_moves(tensor, target, does):
    """Do something between relayouts, in which each rank sends to each."""
    mc.relayout(tensor, target)
    does()
    mc.relayout(tensor, target)


def layouts(given):
    return given["L"](("x", "y"), mc.UNSHARDED), given["L"](mc.UNSHARDED, ("x", "y"))


def test_a_call_that_one_rank_refuses_is_noticed():
    """One rank makes it alone and goes on: no relayout after it may return."""

    def program(rank, call):
        given = names_of_rank(rank)
        source, target = layouts(given)

        def refuses():
            assert rank != 2 or outcome(call, given)[0] is not None

        with_moves(mc.zeros((8, 8), "f8", source), target, refuses)

    assert [call for call in REFUSED if not is_noticed(lambda rank, call=call: program(rank, call))] == []


def test_ranks_that_all_refuse_a_call_go_on():
    """Each in its own way: within other calls of ours, before a call and in one."""
    calls = ["t @ t", "mc.relayout_like(t, array)", "t.to_numpy(root=9)", "mc.fft.fft(t, axis=7)"]

    def program(rank):
        given = names_of_rank(rank)
        source, target = layouts(given)
        tensor = mc.zeros((8, 8), "f8", source)
        for _ in range(2):
            mc.relayout(tensor, target)
            assert outcome(calls[rank], given)[0] is not None
        return mc.relayout(tensor, target).shape

    with mc.simulate(4) as world:
        assert world.run(lambda: program(world.rank)) == [(8, 8)] * 4


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
OBJECTS = {
    "DTensor": lambda t: t,
    "Variable": mc.Variable,
    "DVariable": mc.DVariable,
    "fft.FFTPlan": lambda t: mc.fft.plan(t.shape, t.dtype, t.layout),
    "Plan": lambda t: mc.plan_relayout(t.shape, t.dtype, t.layout, t.layout),
}
MODULES = ("", "array_api", "fft", "gradients", "linalg", "ndimage", "random", *OBJECTS)
LOCAL = (  # parameters without which it is not known which ranks would make the call, or calls that move nothing
    *("distribute layout", "pack layout"),
    *("from_local layout", "from_local global_shape", "from_local mesh", "from_local sharding_specs"),
    *("migrate devices", "migrate mesh"),
    *("transpose axes", "array_api.asarray dtype", "array_api.astype dtype"),
)
COLLECTIVE = {
    name: value
    for name, value in called().items()
    if name.rpartition(".")[0] in MODULES and inspect.isroutine(value) and is_collective(value, first=False)
    if name not in ("create_mesh", "trace")  # collective over ranks that they do not get from a tensor
}


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


@pytest.mark.parametrize("of", sorted({name.rpartition(".")[0] for name in COLLECTIVE}))
def test_a_wrong_argument_on_one_rank_is_noticed(of):
    """A wrong value for each parameter but the first; or the call is a right one, that only one rank makes."""

    def program(rank, name, parameter, wrong):
        mesh = mc.create_mesh([("x", 4)])
        rows, columns = mc.Layout(["x", mc.UNSHARDED], mesh), mc.Layout([mc.UNSHARDED, "x"], mesh)
        t = mc.distribute(np.arange(24.0).reshape(6, 4), rows)
        positional, named = arguments(COLLECTIVE[name], parameter, wrong, t, OBJECTS.get(of))

        def refuses():
            if rank == 2:
                try:
                    COLLECTIVE[name](*positional, **named)
                except mc.CollectiveMismatch:
                    raise
                except Exception:
                    return
                raise AssertionError("only rank 2 makes it")

        with_moves(t, columns, refuses)

    cases = [
        (name, parameter, wrong)
        for name in COLLECTIVE
        if name.rpartition(".")[0] == of
        for parameter in list(inspect.signature(COLLECTIVE[name]).parameters)[1:]
        if parameter != "comm" and f"{name} {parameter}" not in LOCAL
        for wrong in WRONG
    ]
    assert [case for case in sampled(cases) if not is_noticed(lambda rank, case=case: program(rank, *case))] == []


# -- mistakes ---------------------------------------------------------------------------------------------------------


def error_of(written):
    """Return the error that what is *written* raises on this rank."""
    mesh = mc.create_mesh([("rows", 2), ("columns", 2)])
    other = mc.create_mesh([("x", 4)])
    array = np.arange(24.0).reshape(6, 4) + 0.125
    rows, columns = mc.Layout(["rows", mc.UNSHARDED], mesh), mc.Layout([mc.UNSHARDED, "columns"], mesh)

    def with_rules(names):
        rules = mc.LayoutMap()
        rules.update({name: mc.Layout([], mc.Mesh(range(4), {"x": 4})) for name in names})
        return rules

    names = {"mesh": mesh, "rows": rows, "columns": columns, "array": array, "U": mc.UNSHARDED}
    names |= {"t": mc.distribute(array, rows), "u": mc.distribute(array, columns), "one": mc.Layout(["rows"], mesh)}
    names |= {"on_other": mc.distribute(array, mc.Layout(["x", mc.UNSHARDED], other)), "with_rules": with_rules}
    names |= {"mc": mc, "np": np, "math": math, "pickle": pickle, "json": json}
    try:
        eval(written, names)
    except Exception as error:
        return error
    return None


def test_a_mistake_meets_a_good_answer():
    """It says what to do, is short, and has no elements of a tensor in it."""
    assert len(MISTAKES) >= 80
    found = []
    for row in MISTAKES:
        with mc.simulate(4) as world:
            for error in world.run(error_of, row["written"]):
                right = isinstance(error, classes(row["error"])) and all(words in str(error) for words in row["words"])
                if not right or ".125" in str(error) or len(str(error)) >= 500:  # .125: an element
                    found.append(f"{row['name']}: {error!r}")
    assert found == []


def test_what_is_missing_is_missing_for_those_who_probe(capsys):
    t = mc.zeros((4,), "f4", mc.Layout(["x"], mc.Mesh(range(1), {"x": 1})))
    probed = ["numpy", "data", "__array_interface__", "__cuda_array_interface__", "_repr_latex_", "_node", "nothing"]
    assert [name for name in probed if hasattr(t, name) or name in dir(t)] == []
    assert [name for name in ("gather", "__wrapped__") if hasattr(mc, name)] == []
    assert copy.copy(t).local.tolist() == [0.0] * 4
    for written in ("t.locla", "t.relayuot", "mc.relyout", "mc.create_mehs", "mc.fft.ffft"):
        with pytest.raises(AttributeError) as caught:
            eval(written, {"t": t, "mc": mc})
        assert caught.value.name == written.rpartition(".")[2]
        sys.__excepthook__(caught.type, caught.value, None)
        assert capsys.readouterr().err.lower().count("did you mean") == 1, "Python prints no second suggestion"
