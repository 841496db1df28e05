"""Values of the public API, of which tests/data records pickles, texts and bytes, so that later versions read them.

`VALUES` makes each value with the public API of this version. Records are kept for ever: a version that writes other
pickles gets a record of its own: `python tests/support/recorded.py NAME` adds tests/data/recorded-NAME.json.
"""

import base64
import json
import pickle
import pickletools
import sys
from pathlib import Path

import numpy as np

import meshcomm as mc

DATA = Path(__file__).parent.parent / "data"
PROTOCOLS = (2, 3, 4, 5)
U = mc.UNSHARDED


def grid():
    return mc.Mesh(range(4), [("x", 2), ("y", 2)])


def tpus():
    return mc.Mesh([f"TPU:{i}" for i in range(6)], [("x", 3), ("y", 2)], "pod")


def listed():
    """Return a mesh as another system lists it: four devices, of which the process has two."""
    names = ",".join(f"/job:localhost/task:{i // 2}/device:GPU:{i % 2}" for i in range(4))
    local = ",".join(f"/job:localhost/task:1/device:GPU:{i}" for i in range(2))
    return mc.Mesh.from_string(f"far|x=2,y=2|8,9,10,11|10,11|{local}|{names}")


def spmd():
    return mc.Mesh(["TPU:0", "TPU:1"], {"x": 2}, "spmd", use_xla_spmd=True)


MESHES = {
    "ranks": grid,
    "one dimension": lambda: mc.Mesh(range(1, 7), {"x": 6}),
    "ranks not in order": lambda: mc.Mesh([5, 0, 3, 2], [("a", 2), ("b", 2)], "shuffled"),
    "three dimensions, one of size 1": lambda: mc.Mesh(range(6), [("x", 3), ("one", 1), ("y", 2)], "cube"),
    "a hundred ranks": lambda: mc.Mesh(range(100), [("x", 10), ("y", 10)]),
    "device strings": tpus,
    "device strings that encode ranks": lambda: mc.Mesh(
        [f"/job:mpi/replica:0/task:{i}/device:CPU:0" for i in (3, 1)], {"x": 2}
    ),
    "single device": lambda: mc.Mesh.from_device("/job:localhost/replica:0/task:0/device:CPU:0"),
    "hosts": lambda: tpus().host_mesh(),
    "hosts of a single device": lambda: mc.Mesh.from_device("/job:w/replica:0/task:3/device:TPU:1").host_mesh(),
    "listed": listed,
    "hosts of a listed mesh": lambda: listed().host_mesh(),
    "remote": lambda: mc.Mesh.from_string("|x=2|4,5||" + "|/job:w/task:0/device:TPU:0,/job:w/task:1/device:TPU:0"),
    "generated": lambda: mc.Mesh.from_string("short|x=2,y=3|*CPU"),
    "marked for XLA SPMD": spmd,
    "not ASCII": lambda: mc.Mesh(range(2), [("größe", 2)], "Netz"),
}

LAYOUTS = {
    "rows": lambda: mc.Layout(["x", U], grid()),
    "columns": lambda: mc.Layout([U, "y"], grid()),
    "both": lambda: mc.Layout(["y", "x"], grid()),
    "several dimensions on one axis": lambda: mc.Layout([U, ("y", "x"), U], grid()),
    "a tuple beside a name": lambda: mc.Layout(
        [("x", "one"), "y"], mc.Mesh(range(6), [("x", 3), ("one", 1), ("y", 2)])
    ),
    "MATCH": lambda: mc.Layout([mc.MATCH, "x"], grid()),
    "replicated": lambda: mc.Layout.replicated(grid(), 3),
    "no axes": lambda: mc.Layout([], grid()),
    "batch sharded": lambda: mc.Layout.batch_sharded(tpus(), "x", 3),
    "inner sharded": lambda: mc.Layout.inner_sharded(tpus(), "y", 2),
    "parted": lambda: mc.Layout(["x", U], tpus()).to_parted(),
    "parted tuple": lambda: mc.Layout([("x", "y")], tpus()).to_parted(),
    "single device": lambda: mc.Layout.from_device("/job:localhost/replica:0/task:0/device:CPU:0"),
    "on hosts": lambda: mc.Layout(["x", "y"], tpus().host_mesh()),
    "on a listed mesh": lambda: mc.Layout([U, "x"], listed()),
    "on a mesh marked for XLA SPMD": lambda: mc.Layout(["x"], spmd()),
    "an axis deleted": lambda: mc.Layout(["x", U, "y"], grid()).delete(1),
}


def topology():
    coordinates = [[[x, y, 0, core] for core in range(2)] for x in range(2) for y in range(2)]
    return mc.Topology(mesh_shape=[2, 2, 1, 2], device_coordinates=coordinates)


TOPOLOGIES = {
    "hosts of two": topology,
    "one device": lambda: mc.Topology(mesh_shape=[1, 1, 1, 1], device_coordinates=[[[0, 0, 0, 0]]]),
    "ranks in another order": lambda: mc.Topology(
        mesh_shape=[2, 1, 1, 2],
        device_coordinates=[[[0, 0, 0, 0], [0, 0, 0, 1]], [[1, 0, 0, 0], [1, 0, 0, 1]]],
        ranks=[[2, 3], [0, 7]],
    ),
    "missing devices": lambda: mc.Topology(
        mesh_shape=[2, 2, 1, 1], device_coordinates=[[[0, 0, 0, 0]], [[1, 1, 0, 0]], [[0, 1, 0, 0]]]
    ),
}


def exchange():
    return mc.plan_relayout((8, 6), "f8", LAYOUTS["rows"](), mc.Layout([U, "x"], grid()))


def bounded():
    """Return a plan that keeps its scratch small by exchanging in rounds."""
    mesh = mc.Mesh(range(4), {"x": 4})
    return mc.plan_relayout((64, 64), "f8", mc.Layout(["x", U], mesh), mc.Layout([U, "x"], mesh), 4096)


def used():
    """Return a plan that was asked for all it knows, which it may remember."""
    plan = exchange()
    assert hash(plan) == hash(exchange())
    assert str(plan)
    assert plan.bytes_moved
    assert plan.seconds
    return plan


def between():
    source, target = mc.Mesh(range(3), {"x": 3}), mc.Mesh(range(2, 6), [("x", 2), ("y", 2)], "there")
    return mc.plan_relayout((7, 5), ">i4", mc.Layout(["x", U], source), mc.Layout(["x", "y"], target))


def between_nodes():
    source, target = mc.Mesh(range(8), {"x": 8}), mc.Mesh(range(7, -1, -1), {"y": 8})
    layouts = mc.Layout(["x", U], source), mc.Layout([U, "y"], target)
    return mc.plan_relayout((16, 24), "f4", *layouts, 2048, mc.Machine(nodes=(0, 1, 0, 1, 2, 2, 0, 0)))


PLANS = {
    "AllToAll": exchange,
    "AllToAll, used": used,
    "AllToAll in rounds": bounded,
    "Slice": lambda: mc.plan_relayout((8, 6), "i2", LAYOUTS["rows"](), mc.Layout(["x", "y"], grid())),
    "AllGather": lambda: mc.plan_relayout((8, 6), "c16", LAYOUTS["columns"](), mc.Layout.replicated(grid(), 2)),
    "nothing": lambda: mc.plan_relayout((8, 6), "?", LAYOUTS["rows"](), LAYOUTS["rows"]()),
    "several steps": lambda: mc.plan_relayout((9, 7), "f8", mc.Layout(["x", U], grid()), mc.Layout([U, "y"], grid())),
    "a ring": lambda: mc.plan_relayout((9, 7), "f8", mc.Layout(["x", "y"], grid()), mc.Layout(["y", "x"], grid())),
    "from a tuple": lambda: mc.plan_relayout(
        (9, 7), "M8[s]", mc.Layout([("x", "y"), U], grid()), mc.Layout([U, ("y", "x")], grid())
    ),
    "MATCH": lambda: mc.plan_relayout((9, 7), "f4", LAYOUTS["rows"](), LAYOUTS["MATCH"]()),
    "structured dtype": lambda: mc.plan_relayout(
        (5,), [("a", "<i2"), ("b", ">f8")], mc.Layout(["x"], grid()), mc.Layout(["y"], grid())
    ),
    "no elements": lambda: mc.plan_relayout((0, 3), "f8", LAYOUTS["rows"](), LAYOUTS["columns"]()),
    "AllToAllBetween": between,
    "AllToAllBetween in rounds, on three nodes": between_nodes,
    "dimensions joined": lambda: mc.plan_relayout(
        (12, 8), "f8", mc.Layout(["x", "y"], grid()), mc.Layout([U, "z"], mc.Mesh(range(4), {"z": 4}))
    ),
    "on a machine": lambda: mc.plan_relayout(
        (12, 8), "f8", LAYOUTS["rows"](), LAYOUTS["columns"](), None, mc.Machine(nodes=2, gamma=1e-9)
    ),
}


def layout_map():
    rules = mc.LayoutMap(grid())
    rules["dense.*kernel"] = LAYOUTS["rows"]()
    rules["d.*kernel[0-9]"] = LAYOUTS["columns"]()
    rules[r"\bhead\b"] = mc.Layout(["x"], grid())
    return rules


def searching():
    rules = mc.LayoutMap(mode="search")
    rules.update({"kernel": LAYOUTS["rows"](), "bias$": mc.Layout(["x"], grid()), "(?i)A+b|c": LAYOUTS["both"]()})
    return rules


def report():
    return layout_map().report({"dense_1.kernel": (4, 4), "dense.kernel2": 3, "norm": 1})


def clashing():
    return searching().report(["kernel.bias", "kernel"])


def used_machine():
    machine = mc.Machine(nodes=(0, 1, 1))
    assert not machine.one_node
    assert machine.node_of(np.arange(3)).tolist() == [0, 1, 1]
    assert machine.ranks_on(1).tolist() == [1, 2]
    return machine


def used_map():
    rules = layout_map()
    assert rules["dense_1.kernel"] == LAYOUTS["rows"]()
    return rules


def raised(call):
    """Return the exception that *call* raises."""
    try:
        call()
    except Exception as error:
        return error.with_traceback(None)
    raise AssertionError("it raises nothing")


ERRORS = ("MeshError", "LayoutError", "ShapeError", "DTypeError", "GroupError", "CollectiveMismatch")

OTHERS = {
    "MeshDimension": lambda: mc.MeshDimension("x", 3),
    **{f"LayoutType {name}": lambda name=name: LAYOUTS[name]().type for name in ("rows", "single device", "parted")},
    "DeviceAssignment": lambda: mc.DeviceAssignment(
        topology(), [[[0, 0, 0, 0], [1, 1, 0, 1]], [[0, 1, 0, 0], [1, 0, 0, 1]]]
    ),
    "DeviceAssignment, built": lambda: mc.DeviceAssignment.build(topology(), [1, 2, 1, 2], num_replicas=2),
    **{f"DeviceOrderMode {mode.name}": lambda mode=mode: mc.DeviceOrderMode(int(mode)) for mode in mc.DeviceOrderMode},
    "Machine": mc.Machine,
    "Machine of nodes": lambda: mc.Machine(nodes=(0, 0, 1), alpha_between=2.5e-6),
    "Machine, used": used_machine,
    "PerReplica": lambda: mc.PerReplica([1, "two", None]),
    "LayoutReport": report,
    "LayoutReport, ambiguous": clashing,
    "WrongRank": lambda: report().wrong_ranks[0],
    "LayoutMap": layout_map,
    "LayoutMap, searching": searching,
    "LayoutMap, empty": mc.LayoutMap,
    "LayoutMap, used": used_map,
    "random_uniform": lambda: mc.random_uniform(7, -1.0, 2.0),
    "random_normal": lambda: mc.random_normal(2**127, stddev=0.5),
    **{name: lambda name=name: getattr(mc, name)("axis 0 has 7 elements", 7) for name in ERRORS},
    "MeshcommError": lambda: mc.MeshcommError("something"),
    "CollectiveTimeout": lambda: mc.CollectiveTimeout("rank 1", 2.5),
    "an unknown mesh dimension": lambda: raised(lambda: grid()["q"]),
    "a key that is no text": lambda: raised(lambda: layout_map()[3]),
}


def _parts_of_plans():
    """Steps, candidates and the plans of single devices, by the plan that they belong to."""
    made = {}
    for name in PLANS:
        made[f"steps of {name}"] = lambda name=name: PLANS[name]().steps
    for name in ("AllToAll, used", "AllToAllBetween", "several steps", "nothing"):
        made[f"device 1 of {name}"] = lambda name=name: PLANS[name]().for_device(1)
        made[f"load of device 1 of {name}"] = lambda name=name: PLANS[name]().for_device(1).load
        made[f"candidates of {name}"] = lambda name=name: PLANS[name]().candidates
    return made


VALUES = {
    **{f"Mesh: {name}": make for name, make in MESHES.items()},
    **{f"Layout: {name}": make for name, make in LAYOUTS.items()},
    **{f"Topology: {name}": make for name, make in TOPOLOGIES.items()},
    **{f"Plan: {name}": make for name, make in PLANS.items()},
    **_parts_of_plans(),
    **OTHERS,
}


def record():
    """Return what a record says about the values: pickles by protocol, texts, bytes, and the names pickles ask for."""
    return {name: record_of(make()) for name, make in VALUES.items()}


def record_of(value):
    entry = {"pickles": {str(n): base64.b64encode(pickle.dumps(value, n)).decode() for n in PROTOCOLS}}
    entry["names"] = names_in(pickle.dumps(value, 2))
    if hasattr(value, "to_string"):
        entry["text"] = value.to_string()
    if hasattr(value, "serialized_string"):
        entry["wire"] = value.serialized_string().hex()
    if isinstance(value, mc.Topology):
        entry["wire"] = value.serialized().hex()
    return entry


def names_in(data):
    """Return the names that a pickle asks meshcomm for, as "module name"."""
    found = {text for code, text, _ in pickletools.genops(data) if code.name == "GLOBAL"}
    return sorted(name for name in found if name.startswith("meshcomm"))


if __name__ == "__main__":
    path = DATA / f"recorded-{sys.argv[1]}.json"
    if path.exists():
        sys.exit(f"{path} is there already: a record is kept as it is")
    path.write_text(json.dumps(record(), indent=0, ensure_ascii=False) + "\n")
    print(f"{path}: {len(VALUES)} values")
