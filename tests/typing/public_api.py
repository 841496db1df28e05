"""What editors and type checkers infer for the public API; checked by mypy and pyright, never run.

`assert_type` is an error unless the type is exactly this one, and ``# type: ignore`` is one where nothing is wrong: a
result that is `Any` fails as well as a wrong one. tests/project/test_surface.py runs the checkers.
"""

from collections.abc import Sequence
from typing import Any, assert_type

import numpy as np
from numpy.typing import NDArray

import meshcomm as mc
from meshcomm import array_api as xp


def meshes(devices: Sequence[str]) -> None:
    mesh = mc.create_mesh([("x", 2), ("y", -1)])
    assert_type(mesh, mc.Mesh)
    assert_type(mc.create_mesh({"x": 2}, devices=range(2)), mc.Mesh)
    assert_type(mc.Mesh(devices, {"x": 2}), mc.Mesh)
    assert_type(mesh.size, int)
    assert_type(mesh.shape(), list[int])
    assert_type(mesh.coords(0), list[int])
    assert_type(mesh.dim_names, list[str])
    assert_type(mesh["x"], mc.MeshDimension)
    assert_type(mesh["x"].size, int)
    assert_type("x" in mesh, bool)
    assert_type(mesh.rank, int | None)
    assert_type(mesh.ranks, range | tuple[int, ...])
    assert_type(mesh.groups_along(["x", "y"]), tuple[tuple[int, ...], ...])
    assert_type(mesh.global_device_ids(), NDArray[np.int64])
    assert_type(mc.Mesh.from_string(mesh.to_string()), mc.Mesh)
    with mc.default_mesh(mesh) as entered:
        assert_type(entered, mc.Mesh)
    assert_type(mc.get_default_mesh(), mc.Mesh | None)


def layouts(mesh: mc.Mesh) -> None:
    layout = mc.Layout(["x", mc.UNSHARDED, ("y", "z")], mesh)
    assert_type(layout, mc.Layout)
    assert_type(layout.sharding_specs, list[str | tuple[str, ...]])
    assert_type(layout.axes, tuple[tuple[str, ...], ...])
    assert_type(layout.shape, list[int])
    assert_type(layout.num_shards(0), int)
    assert_type(layout.block_slices((6, 4, 2), 0), tuple[slice, ...])
    assert_type(layout.block_slices((6, 4, 2)), tuple[slice, ...])
    assert_type(layout.block_slices((6, 4, 2), mesh.rank), tuple[slice, ...])
    assert_type(layout.block_shape([6, 4, 2], 0), tuple[int, ...])
    assert_type(layout.local_shape_from_global_shape((6, 4, 2)), tuple[int, ...])
    assert_type(layout.serialized_string(), bytes)
    assert_type(mc.Layout.replicated(mesh, 2).delete([0]), mc.Layout)


def tensors(layout: mc.Layout, array: NDArray[np.float32]) -> None:
    t = mc.distribute(array, layout)
    assert_type(t, mc.DTensor)
    assert_type(mc.distribute([[1, 2], [3, 4]], layout, root=0), mc.DTensor)
    assert_type(mc.from_local(array, layout, global_shape=(4, 4)), mc.DTensor)
    assert_type(mc.zeros((4, 4), "f4", layout), mc.DTensor)
    assert_type(mc.full(4, 1.5), mc.DTensor)
    assert_type(t.local, NDArray[Any])  # natural code: most meshes have all ranks
    assert_type(t.slices, tuple[slice, ...])
    assert_type(t.layout, mc.Layout)
    assert_type(t.mesh, mc.Mesh)
    assert_type(t.shape, tuple[int, ...])
    assert_type(t.dtype, np.dtype[Any])
    assert_type(t.to_numpy(), NDArray[Any])
    assert_type(t.to_numpy(root=0), NDArray[Any] | None)
    assert_type(t.sum(axis=(0, 1), keepdims=True), mc.DTensor)
    assert_type(t.T, mc.DTensor)
    assert_type(float(t.mean()), float)
    assert_type(mc.matmul(t, array), mc.DTensor)
    assert_type(mc.transpose(t, [1, 0]), mc.DTensor)
    assert_type(mc.pack([array], layout), mc.DTensor)
    assert_type(mc.unpack(t), list[NDArray[Any]])
    assert_type(mc.fetch_layout(t), mc.Layout | None)
    assert_type(mc.copy_to_mesh(array, layout), mc.DTensor)


def operators(t: mc.DTensor, array: NDArray[np.float32]) -> None:
    assert_type(t + 1, mc.DTensor)
    assert_type(2 * t - array, mc.DTensor)
    assert_type((t @ t.T) ** 2 / 3, mc.DTensor)
    assert_type(-abs(t), mc.DTensor)
    assert_type(t == t, mc.DTensor)
    assert_type((t > 0) & ~(t < array), mc.DTensor)
    assert_type(divmod(t, 2), tuple[mc.DTensor, mc.DTensor])
    assert_type(t[t > 0], mc.DTensor)
    assert_type(t[1:, ::2].local, NDArray[Any])
    assert_type(round(float(t.sum()), 3), float)
    assert_type(xp.sqrt(xp.add(t, 1) * t), mc.DTensor)
    t += 1
    t[0] = array[0]
    np.save("block.npy", t.local)
    if t.sum() > 0:
        print(f"{t.max():.3f}", t.mean().item())
    t + None  # type: ignore[operator]
    t.numpy()  # type: ignore[attr-defined]
    mc.gather(t)  # type: ignore[attr-defined]


def blocks(layout: mc.Layout) -> None:
    def block(slices: tuple[slice, ...]) -> NDArray[np.float64]:
        return np.ones([s.stop - s.start for s in slices])

    assert_type(mc.from_callback((4, 4), "f8", layout, block), mc.DTensor)
    mc.from_callback((4, 4), "f8", layout, lambda: 3)  # type: ignore[misc, arg-type]


def relayouts(t: mc.DTensor, layout: mc.Layout, rules: mc.LayoutMap, array: NDArray[np.float32]) -> None:
    assert_type(mc.relayout(t, layout), mc.DTensor)
    assert_type(mc.relayout(t, layout, out=t, max_scratch_bytes=2**20, name="a"), mc.DTensor)
    assert_type(mc.relayout(t, layout, "a", out=t), mc.DTensor)
    assert_type(mc.relayout_like(t, t, "a", out=t), mc.DTensor)
    assert_type(mc.relayout(array, layout), mc.DTensor)
    assert_type(mc.relayout([[1, 2], [3, 4]], layout), mc.DTensor)
    assert_type(mc.relayout_like(array, t), mc.DTensor)
    assert_type(mc.relayout(t, ["y", "x"]), mc.DTensor)
    assert_type(t.relayout(layout, out=t), mc.DTensor)
    assert_type(t.relayout([("x", "y"), mc.UNSHARDED]), mc.DTensor)
    assert_type(t.relayout(t.layout.sharding_specs), mc.DTensor)
    assert_type(mc.start_relayout(t, ["x", mc.UNSHARDED]).wait(), mc.DTensor)
    mc.relayout(array, ["x"])  # type: ignore[call-overload]
    t.relayout(3)  # type: ignore[arg-type]


def many_relayouts(t: mc.DTensor, layout: mc.Layout, rules: mc.LayoutMap, array: NDArray[np.float32]) -> None:
    assert_type(mc.relayout([t, t], layout), list[mc.DTensor])
    assert_type(mc.relayout([t, t], [layout, layout]), list[mc.DTensor])
    assert_type(mc.relayout([t, t], [layout, layout], out=[t, t]), list[mc.DTensor])
    assert_type(mc.relayout([t, array], [layout, layout]), list[mc.DTensor])
    assert_type(mc.relayout((t, t), layout), tuple[mc.DTensor, ...])
    assert_type(mc.relayout((t, array), (layout, layout)), tuple[mc.DTensor, ...])
    assert_type(mc.relayout({"a": t}, layout), dict[str, mc.DTensor])
    assert_type(mc.relayout({"a": t, "b": array}, {"a": layout, "b": layout}), dict[str, mc.DTensor])
    assert_type(mc.relayout({"a": t}, rules, out={"a": t}), dict[str, mc.DTensor])
    assert_type(mc.relayout({3: t}, {3: layout}), dict[int, mc.DTensor])
    mc.relayout({"a": t, "b": [t, {"c": array}]}, rules)["b"]
    mc.relayout([t, {"a": t}], rules)[1]
    mc.relayout(mc.Module(), rules)["kernel"]


def wrong_relayouts(t: mc.DTensor, layout: mc.Layout) -> None:
    mc.relayout(t, 3)  # type: ignore[call-overload]
    mc.relayout(t, [layout])  # type: ignore[list-item]
    mc.relayout(t, layout, out=[t])  # type: ignore[call-overload]
    mc.relayout(t, layout, t)  # type: ignore[call-overload]
    mc.start_relayout(t, layout, t)  # type: ignore[arg-type]
    mc.relayout({"a": t}, [layout])  # type: ignore[call-overload]
    mc.relayout([t], {"a": layout})  # type: ignore[call-overload]


def requests(t: mc.DTensor, layout: mc.Layout) -> None:
    request = mc.start_relayout(t, layout)
    assert_type(request, mc.RelayoutRequest)
    assert_type(request.test(), bool)
    assert_type(request.wait(), mc.DTensor)


def collectives(array: NDArray[np.float64]) -> None:
    assert_type(mc.all_to_all(array, [[0, 1]], 0, 1, 2), NDArray[Any])
    assert_type(mc.all_gather(array, None, 0), NDArray[Any])
    assert_type(mc.all_gather(array, ((0, 1), (2, 3)), 0), NDArray[Any])
    assert_type(mc.all_reduce(3, np.array([[0, 1]]), "max"), NDArray[Any])
    assert_type(mc.reduce_scatter(array, [range(2)], 0), NDArray[Any])
    assert_type(mc.broadcast([1, 2], None, root=0), NDArray[Any])
    assert_type(mc.collective_permute(array, [(0, 1), (1, 0)]), NDArray[Any])
    assert_type(mc.migrate({"a": array}, [0, 1]), mc.Migrated)
    assert_type(mc.migrate(array, [0, 1]).sources, NDArray[np.intp])
    mc.all_reduce(array, "groups")  # type: ignore[arg-type]
    mc.all_reduce(array, [0, 1])  # type: ignore[list-item]
    mc.all_gather(array, {0: [1]}, 0)  # type: ignore[arg-type]
    mc.collective_permute(array, [0, 1])  # type: ignore[list-item]


def groups_of_meshes(mesh: mc.Mesh, array: NDArray[np.float64]) -> None:
    assert_type(mc.all_reduce(array, mesh.groups_along("x")), NDArray[Any])


def plans(source: mc.Layout, target: mc.Layout, t: mc.DTensor) -> None:
    plan = mc.plan_relayout((6, 4), np.float64, source, target, machine=mc.Machine(nodes=2))
    assert_type(plan, mc.Plan)
    for step in plan.steps:
        assert_type(step.source, mc.Layout)
        assert_type(step.group_assignment, tuple[tuple[int, ...], ...])
        assert_type(step.group_size, int)
    assert_type(plan.bytes_moved, int)
    assert_type(plan.for_device(0).peak_bytes, int)
    assert_type(plan.seconds, float)
    assert_type(plan.execute(t), mc.DTensor)
    mc.plan_relayout((6, 4), "f8", source, None)  # type: ignore[arg-type]
    mc.plan_relayout("64", "f8", source, target)  # type: ignore[arg-type]


def simulated(mesh: mc.Mesh) -> None:
    def program(scale: float, name: str = "") -> tuple[int, str]:
        return round(scale), name

    with mc.simulate(4) as world:
        assert_type(world.size, int)
        assert_type(world.rank, int)
        assert_type(world.run(program, 2.5), list[tuple[int, str]])
        assert_type(world.run(program, 2.5, "a"), list[tuple[int, str]])
        assert_type(world.run(lambda: mesh.rank), list[int | None])
        world.run(program, "2.5")  # type: ignore[arg-type]
        world.run(3)  # type: ignore[arg-type]


def variables(layout: mc.Layout, t: mc.DTensor) -> None:
    variable = mc.Variable(mc.random_normal(0), (4, 4), layout=layout)
    assert_type(variable.value, mc.DTensor)
    assert_type(variable.assign_add(1), mc.Variable)
    assert_type(variable.local, NDArray[Any])
    assert_type(mc.relayout(variable, layout), mc.DTensor)
    assert_type(mc.relayout([variable], [layout]), list[mc.DTensor])
    assert_type(mc.DVariable(t).layout, mc.Layout)


def maps(rules: mc.LayoutMap, layout: mc.Layout, model: mc.Module) -> None:
    rules["dense.*kernel"] = layout
    assert_type(rules["dense_1.kernel"], mc.Layout | None)
    assert_type(rules.layout_for("dense_1.kernel", 2), mc.Layout | None)
    assert_type(rules.report(["a", "b"]), mc.LayoutReport)
    assert_type(rules.report({"a": (2, 3)}).unused, tuple[str, ...])
    assert_type(model.named_variables(), list[tuple[str, mc.Variable]])


def replicas(topology: mc.Topology, t: mc.DTensor) -> None:
    assignment = mc.DeviceAssignment.build(topology, [1, 2, 1, 1], num_replicas=2)
    assert_type(assignment, mc.DeviceAssignment)
    assert_type(assignment.ranks, NDArray[np.int32])
    strategy = mc.Strategy(assignment)
    assert_type(strategy.experimental_split_to_logical_devices(t, [2, 1]), mc.DTensor)

    def step(x: int) -> str:
        return str(x)

    assert_type(strategy.run(step, (1,)), str | None)


def measured(t: mc.DTensor, layout: mc.Layout) -> None:
    with mc.count() as c:
        mc.relayout(t, layout)
    assert_type(c, mc.Count)
    assert_type(c.bytes, int)
    assert_type(c.seconds, float)
    assert_type(c.operations["relayout"].messages_between_nodes, int)
    assert_type(c.table(), str)
    with mc.trace("t.json"), mc.span("solve"):
        pass
