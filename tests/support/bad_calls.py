"""Names for the expressions of tests/data/errors.json: meshes, layouts, tensors, maps, made anew for each call."""

import pickle
import re

import numpy as np
import pytest

import meshcomm as mc
from support.values import topology

RANKS = 4


def names():
    """Return the names that an expression may use without ranks; there are no tensors among them."""
    mesh = mc.Mesh(range(4), [("x", 2), ("y", 2)])
    rules = mc.LayoutMap(mesh)
    rules["dense.*kernel"] = mc.Layout(["x", mc.UNSHARDED], mesh)
    searching = mc.LayoutMap(mesh, mode="search")
    searching.update({"kernel": mc.Layout(["x"], mesh), "bias": mc.Layout(["y"], mesh)})
    return {
        "mc": mc,
        "np": np,
        "pickle": pickle,
        "U": mc.UNSHARDED,
        "mesh": mesh,
        "L": lambda *specs: mc.Layout(list(specs), mesh),
        "rows": mc.Layout(["x", mc.UNSHARDED], mesh),
        "columns": mc.Layout([mc.UNSHARDED, "y"], mesh),
        "rules": rules,
        "searching": searching,
        "topology": topology(),
        "zeros": lambda *shape: np.zeros(shape),
    }


def names_of_rank(rank):
    """Return the names that an expression may use on one rank of a simulated world."""
    mesh = mc.create_mesh([("x", 2), ("y", 2)])
    names_by_text = names() | {"mesh": mesh, "rank": rank, "L": lambda *specs: mc.Layout(list(specs), mesh)}
    rows, columns = mc.Layout(["x", mc.UNSHARDED], mesh), mc.Layout([mc.UNSHARDED, "y"], mesh)
    array = np.arange(24.0).reshape(6, 4)
    names_by_text |= {"rows": rows, "columns": columns, "t": mc.distribute(array, rows), "array": array}
    names_by_text["strategy"] = lambda *shape: mc.Strategy(
        mc.DeviceAssignment.build(mc.Topology.from_comm(), list(shape) or [1, 4, 1, 1])
    )
    return names_by_text


def outcome(call, namespace):
    """Return the class and the text of the error that the expression *call* raises; (None, "") if it raises none."""
    try:
        eval(compile(call, "<call>", "eval"), dict(namespace))
    except Exception as error:
        return type(error), str(error)
    return None, ""


def alone(call):
    return [outcome(call, names())]


def on_ranks(call):
    """Return the `outcome` of *call* on each rank of a simulated world, and check that ranks can communicate after it.

    After a mismatch this needs a new mesh.
    """

    def program(rank):
        namespace = names_of_rank(rank)
        result = outcome(call, namespace)
        if result[0] is mc.CollectiveMismatch:
            with pytest.raises(mc.MeshError, match="make it again"):
                mc.relayout(namespace["t"], namespace["columns"])
            namespace["mesh"].close()
            namespace = names_of_rank(rank)
        moved = mc.relayout(namespace["t"], namespace["columns"])
        assert moved.to_numpy().tolist() == namespace["array"].tolist()
        return result

    with mc.simulate(RANKS) as world:
        return world.run(lambda: program(world.rank))


def the_world(call):
    """Return the outcome of *call* for a whole simulated world: for calls after which ranks cannot go on."""
    with mc.simulate(RANKS) as world:
        try:
            world.run(lambda: outcome(call, names_of_rank(world.rank)))
        except mc.MeshcommError as error:
            return [(type(error), str(error))]
    return [(None, "")]


RUNNERS = {"alone": alone, "ranks": on_ranks, "world": the_world}
"""Functions that run a call, by the entry \"on\" of the table."""


def without_quotes(text):
    """Return *text* without quotes and with one kind of brackets, because facts are written in both ways.

    >>> without_quotes("['x', 2] of \\"y\\"")
    '(x, 2) of y'
    """
    return text.replace("[", "(").replace("]", ")").replace("'", "").replace('"', "")


def says(message, fact):
    """Return whether *message* contains the *fact*, as a separate word or number.

    >>> says("axis 0 has 7 elements", "7"), says("axis 10 has 17", "7"), says("shape [6, 4]", "(6, 4)")
    (True, False, True)
    """
    fact_pattern = re.escape(without_quotes(fact))
    lookbehind = r"(?<![\w.])" if fact_pattern[0].isalnum() else ""
    return re.search(rf"{lookbehind}{fact_pattern}(?!\w|\.\d)", without_quotes(message)) is not None
