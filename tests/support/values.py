"""A value of each public class that can be pickled or is returned by public calls, made anew by each call."""

import meshcomm as mc

U = mc.UNSHARDED
ERRORS = ("MeshcommError", "MeshError", "LayoutError", "ShapeError", "DTypeError", "GroupError", "CollectiveMismatch")


def grid():
    return mc.Mesh(range(4), [("x", 2), ("y", 2)])


def rows():
    return mc.Layout(["x", U], grid())


def topology():
    coordinates = [[[x, y, 0, core] for core in range(2)] for x in range(2) for y in range(2)]
    return mc.Topology(mesh_shape=[2, 2, 1, 2], device_coordinates=coordinates)


def layout_map(**options):
    rules = mc.LayoutMap(grid(), **options)
    rules.update({"dense.*kernel": rows(), r"\bhead\b": mc.Layout(["x"], grid())})
    return rules


def several_steps():
    return mc.plan_relayout((9, 7), "f8", rows(), mc.Layout([U, "y"], grid()))


def in_rounds():
    mesh = mc.Mesh(range(4), {"x": 4})
    return mc.plan_relayout((64, 64), "f8", mc.Layout(["x", U], mesh), mc.Layout([U, "x"], mesh), 4096)


def between():
    target = mc.Mesh(range(7, -1, -1), [("a", 2), ("b", 4)], "there")
    layouts = mc.Layout(["x", U], mc.Mesh(range(8), {"x": 8})), mc.Layout([("b", "a"), U], target)
    return mc.plan_relayout((16, 24), ">f4", *layouts, 2048, mc.Machine(nodes=(0, 1, 0, 1, 2, 2, 0, 0)))


def sliced():
    return mc.plan_relayout((8, 6), [("a", "<i2"), ("b", ">f8")], rows(), mc.Layout(["x", "y"], grid()))


def gathered():
    return mc.plan_relayout((8, 6), "c16", mc.Layout([U, "y"], grid()), mc.Layout.replicated(grid(), 2))


PLANS = {"steps": several_steps, "rounds": in_rounds, "between": between, "slice": sliced, "gather": gathered}


def values():
    """Return values by name, and the steps of plans."""
    report = layout_map().report({"dense_1.kernel": (4, 4), "dense.kernel2": 3, "norm": 1})
    plans = {name: make() for name, make in PLANS.items()}
    return {
        "MeshDimension": mc.MeshDimension("x", 3),
        "Mesh": grid(),
        "Layout": rows(),
        "LayoutType": rows().type,
        "Topology": topology(),
        "DeviceAssignment": mc.DeviceAssignment.build(topology(), [1, 2, 1, 2], num_replicas=2),
        "DeviceOrderMode": mc.DeviceOrderMode.RING,
        "Machine": mc.Machine(nodes=(0, 0, 1), alpha_between=2.5e-6),
        "PerReplica": mc.PerReplica([1, "two", None]),
        "LayoutReport": report,
        "WrongRank": report.wrong_ranks[0],
        "LayoutMap": layout_map(),
        "LayoutMap, searching": layout_map(mode="search"),
        "random_uniform": mc.random_uniform(7, -1.0, 2.0),
        "random_normal": mc.random_normal(2**127, stddev=0.5),
        **{name: getattr(mc, name)("axis 0 has 7 elements", 7) for name in ERRORS},
        "CollectiveTimeout": mc.CollectiveTimeout("rank 1", 2.5),
        "Candidate": plans["steps"].candidates[0],
        **plans,
        **{f"steps of {name}": plan.steps for name, plan in plans.items()},
        **{f"device 1 of {name}": plan.for_device(1) for name, plan in plans.items()},
    }
