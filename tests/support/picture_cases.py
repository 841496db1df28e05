"""Layouts and plans to draw: all kinds, none, few and many blocks."""

import meshcomm as mc

U = mc.UNSHARDED
GRID = mc.Mesh(range(8), {"x": 4, "y": 2})
CUBE = mc.Mesh(range(24), {"x": 4, "y": 3, "z": 2})
BIG = mc.Mesh(range(10_000), {"x": 100, "y": 100})
HUGE = mc.Mesh(range(65_536), {"x": 65_536})
ODD = mc.Mesh([7, 3], {"<&'\">": 2}, "<b>")

LAYOUTS = [
    (mc.Layout(["x", U], GRID), (10, 7)),
    (mc.Layout(["x", U], GRID), None),
    (mc.Layout([U, "y"], GRID), (10, 7)),
    (mc.Layout([("x", "y")], GRID), (5,)),
    (mc.Layout([], GRID), ()),
    (mc.Layout([U, U, U], GRID), (2, 3, 4)),
    (mc.Layout(["x", "y"], GRID), (0, 4)),
    (mc.Layout([mc.Cuts("x", (0, 3, 3, 9, 10)), mc.Cyclic("y", 2)], GRID), (10, 7)),
    (mc.Layout([mc.Cuts("x", (0, 3, 3, 9, 10)), mc.Cyclic("y", 2)], GRID), None),
    (mc.Layout.from_blocks([(5, 2)] * 2 + [(0, 2)] * 6, ["x", U], GRID), None),
    (mc.Layout(["x", "y", "z"], CUBE), (8, 9, 10)),
    (mc.Layout(["x", U, "y", "z"], CUBE), (8, 9, 10, 11)),
    (mc.Layout(["x", "y"], BIG), (10**6, 10**6)),
    (mc.Layout(["x", U], BIG), (10**6, 4)),
    (mc.Layout([U, "y"], BIG), (2**30, 2**30)),
    (mc.Layout([mc.Cyclic(("x", "y"), 1)], BIG), (10**12,)),
    (mc.Layout([("x", "y")], BIG), (50,)),
    (mc.Layout(["x"], HUGE), (2**62,)),
    (mc.Layout(["a", "c"], mc.Mesh(range(10**6), {"a": 10, "b": 1000, "c": 10, "d": 10})), (2**62, 2**62)),
    (mc.Layout(["<&'\">", U], ODD), (3, 3)),
    (mc.Layout.from_device("CPU:0"), (3, 4)),
    (mc.Layout.from_device("CPU:0"), None),
]


def plan(source, target, shape, dtype="f8", **kwargs):
    return mc.plan_relayout(shape, dtype, source, target, **kwargs)


PLANS = [
    plan(mc.Layout(["x", U], GRID), mc.Layout([U, "x"], GRID), (10, 7)),
    plan(mc.Layout(["x", "y"], GRID), mc.Layout([U, U], GRID), (10, 7)),
    plan(mc.Layout([U, U], GRID), mc.Layout(["x", "y"], GRID), (10, 7)),
    plan(mc.Layout(["x", U], GRID), mc.Layout(["x", U], GRID), (10, 7)),
    plan(mc.Layout(["x", "y", U], GRID), mc.Layout([U, "x", "y"], GRID), (8, 8, 8), machine=mc.Machine(1, 0, 0, 0, 1)),
    plan(mc.Layout([("x", "y"), U], GRID), mc.Layout([U, ("y", "x")], GRID), (16, 16)),
    plan(mc.Layout([mc.Cyclic("x", 2), "y"], GRID), mc.Layout(["a", U], mc.Mesh(range(6, 10), {"a": 4})), (12, 6)),
    plan(mc.Layout([U], GRID), mc.Layout(["a"], mc.Mesh([9, 3], {"a": 2})), (5,)),
    plan(mc.Layout(["x", U], GRID), mc.Layout([U, "x"], GRID), (0, 7)),
    plan(mc.Layout([], GRID), mc.Layout([], mc.Mesh([9], {"a": 1})), ()),
    plan(mc.Layout(["x", "y", "z"], CUBE), mc.Layout(["z", "x", "y"], CUBE), (8, 9, 10)),
    plan(mc.Layout(["x", U], HUGE), mc.Layout([U, "x"], HUGE), (65_536, 65_536), "u1"),
    plan(mc.Layout(["<&'\">", U], ODD), mc.Layout([U, "<&'\">"], ODD), (3, 3)),
]
