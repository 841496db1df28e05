"""meshcomm.torch: gradients of exchanges, memory shared with PyTorch, and placements; skipped without PyTorch."""

import re
from itertools import product

import numpy as np
import pytest

import meshcomm as mc
from meshcomm.errors import LayoutError
from support.paths import DOCS
from support.reference import on_ranks
from support.sampling import sampled

cases = pytest.importorskip("support.torch_cases")
torch, mct = cases.torch, cases.mct
Replicate, Shard = cases.Replicate, cases.Shard

pytestmark = [  # PyTorch's own, in forward mode
    pytest.mark.filterwarnings(f"ignore:.torch.jit.script:{kind}") for kind in ("FutureWarning", "DeprecationWarning")
]

U = mc.UNSHARDED
MESHES = {1: [("x", 1)], 3: [("x", 3)], 4: [("x", 2), ("y", 2)]}
DTYPES = [torch.float64, torch.complex64, torch.bfloat16]


# -- gradients --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", MESHES)
def test_gradients_of_collectives_are_adjoint(size, dtype):
    with mc.simulate(size) as world:
        world.run(lambda: cases.check_adjoints_of_collectives(world.rank, size, dtype))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", MESHES)
def test_gradients_of_relayouts_are_adjoint(size, dtype):
    def program():
        cases.check_adjoints_of_relayouts(mc.create_mesh(MESHES[size]), dtype, lambda pairs: sampled(pairs, 20))

    with mc.simulate(size) as world:
        world.run(program)


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128])
@pytest.mark.parametrize("size", [1, 3, 4])
def test_gradcheck_of_collectives(size, dtype):
    def program():
        cases.check_collectives_twice(size, dtype, forward=size == 1)

    with mc.simulate(size) as world:
        world.run(program)


@pytest.mark.parametrize("size", [1, 3, 4])
def test_gradcheck_of_relayouts(size):
    def program():
        cases.check_relayouts_twice(mc.create_mesh(MESHES[size]), forward=size == 1)

    with mc.simulate(size) as world:
        world.run(program)


@on_ranks(3)
def test_other_reductions_have_no_gradient(rank):
    x = torch.tensor([1.0 + rank, 2.0, -rank], requires_grad=True)
    for call in (lambda x: mct.all_reduce(x, op="max"), lambda x: mct.reduce_scatter(x, op="prod")):
        with pytest.raises(NotImplementedError, match="gradient for op 'sum' only"):
            call(x)
    assert mct.all_reduce(x.detach(), op="max").tolist() == [3, 2, 0]
    with torch.no_grad():
        result = mct.all_reduce(x, op="min")
        assert result.tolist() == [1, 2, -2]
        assert not result.requires_grad
    assert mct.all_reduce(torch.tensor(rank)).item() == 3


@on_ranks(3)
def test_a_gradient_that_is_not_asked_for_and_one_that_is_zero(rank):
    x = torch.ones(3, requires_grad=True)
    unused = mct.all_gather(x)
    (mct.all_reduce(x * 2) + 0 * unused[:3]).sum().backward()
    assert x.grad.tolist() == [6, 6, 6]
    a, b = mct.all_gather(x), mct.all_reduce(x)
    b.sum().backward(inputs=[x])  # all ranks leave out the gradient of a
    assert x.grad.tolist() == [9, 9, 9]
    assert a.grad_fn is not None


@on_ranks(3)
def test_wrong_calls_raise_on_all_ranks(rank):
    mesh = mc.create_mesh([("x", 3)])
    rows = mc.Layout(["x", U], mesh)
    for error, call in (
        (mc.ShapeError, lambda: mct.all_to_all(torch.ones(4, 2), None, 0, 0, 3)),
        (mc.GroupError, lambda: mct.all_gather(torch.ones(2), [[0, 1]])),
        (mc.DTypeError, lambda: mct.all_reduce(torch.ones(2, device="meta"))),
        (mc.ShapeError, lambda: mct.relayout(torch.ones(4, 2), rows, rows, (5, 2))),
        (mc.LayoutError, lambda: mct.relayout(torch.ones(1, 2), rows, ["x", U], (3, 2))),
        (mc.LayoutError, lambda: mct.relayout(torch.ones(1, 2), torch.ones(3), rows, (3, 2))),
        (mc.LayoutError, lambda: mct.block_of(torch.ones(1, 2))),
        (mc.CollectiveMismatch, lambda: mct.all_reduce(torch.ones(2 + rank))),
    ):
        with pytest.raises(error):
            call()


@on_ranks(3)
def test_relayouts_keep_axes_and_go_between_meshes(rank):
    line, pair = mc.create_mesh([("x", 3)]), mc.create_mesh([("p", 2)], devices=[1, 2])
    rows, columns = mc.Layout(["x", U], line), mc.Layout([U, "p"], pair)
    whole = cases.random((4, 5), torch.bfloat16, 1)
    x = cases.block(whole, rows).requires_grad_()
    kept = mct.relayout(x, rows, mc.Layout([mc.MATCH, U], line), (4, 5))
    assert torch.equal(kept, x)
    kept.sum().backward()
    assert torch.equal(x.grad, torch.ones_like(x))
    there = mct.relayout(x, rows, columns, (4, 5))
    if rank == 0:
        assert (there.shape, there.dtype) == ((0,), torch.bfloat16)
    else:
        assert torch.equal(there, cases.block(whole, columns) if pair.rank is not None else there)
    back = mct.relayout(there * 3, columns, rows, (4, 5))
    assert torch.equal(back, 3 * x)
    (grad,) = torch.autograd.grad(back.sum(), x)
    assert torch.equal(grad, torch.full_like(x, 3))
    t = mc.zeros((4, 5), "f4", columns)
    if rank == 0:
        with pytest.raises(mc.MeshError, match="outside of the mesh"):
            mct.block_of(t)


@pytest.mark.parametrize("size", [1, 4])
def test_the_page_runs(size, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    program = "".join(re.findall(r"^```python\n(.*?)^```$", (DOCS / "torch.md").read_text(), re.M | re.S))
    with mc.simulate(size) as world:
        world.run(lambda: exec(compile(program, "torch.md", "exec"), {}))


@pytest.mark.parametrize("size", MESHES)
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_gradients_of_replicas_are_summed(size, dtype):
    """Each rank's gradient of an element is its device + 1, so the sum tells which devices were added up."""

    def program():
        mesh = mc.create_mesh(MESHES[size])
        last = mesh.dim_names[-1]
        layouts = {
            "whole": mc.Layout([U], mesh),
            "cut": mc.Layout([U, last], mesh),  # 7 columns: blocks of several sizes
            "all": mc.Layout([tuple(mesh.dim_names)], mesh),
            "unused": mc.Layout([U], mesh),
            "on some": mc.Layout([], mesh),
        }
        weights = {}
        for name, layout in layouts.items():
            block = layout.block_shape((3, 7)[: layout.ndim])
            weights[name] = torch.ones(block, dtype=dtype, requires_grad=True)
            if name != "unused" and (name != "on some" or mesh.rank == 0):
                weights[name].grad = torch.full(block, 1.0 + mesh.rank, dtype=dtype)
        mct.sum_gradients(weights, layouts)
        mct.sum_gradients([weights["unused"]], layouts["unused"])
        assert weights["unused"].grad is None
        alike = [device for device in range(size) if mesh.coords(device)[-1] == mesh.coords(mesh.rank)[-1]]
        sums = {"whole": size * (size + 1) / 2, "all": mesh.rank + 1, "on some": 1, "cut": sum(alike) + len(alike)}
        for name, total in sums.items():
            assert torch.equal(weights[name].grad, torch.full_like(weights[name], total)), name
        with pytest.raises(LayoutError, match="weight 'cut' has 2 axes, and as layout None"):
            mct.sum_gradients(weights, {"whole": layouts["whole"]})
        with pytest.raises(LayoutError, match="weight 1 has 2 axes"):
            mct.sum_gradients(weights.values(), [layouts["whole"]] * 2)

    with mc.simulate(size) as world:
        world.run(program)


@pytest.mark.filterwarnings("ignore")  # those of the compiler
def test_compiled_functions_leave_exchanges_to_python():
    def function(x):
        return mct.all_reduce(x * 2).sin()

    x = torch.ones(3, requires_grad=True)
    compiled = torch.compile(function, backend="eager")
    assert torch.equal(compiled(x), function(x))
    compiled(x).sum().backward()
    torch.testing.assert_close(x.grad, 2 * torch.cos(2 * torch.ones(3)))


# -- memory -----------------------------------------------------------------------------------------------------------


@on_ranks(2)
def test_blocks_share_memory_and_results_do_not(rank):
    mesh = mc.create_mesh([("x", 2)])
    rows = mc.Layout(["x", U], mesh)
    for dtype in (torch.float32, torch.bfloat16, torch.float8_e4m3fn, torch.int64, torch.bool, torch.complex64):
        t = mc.distribute(torch.zeros(4, 3).to(dtype), rows)
        x = mct.block_of(t)
        assert (x.dtype, x.shape, x.data_ptr()) == (dtype, (2, 3), t.local.ctypes.data)
        x[1, 1] = 1
        assert complex(t.local[1, 1]) == 1
        again = mc.from_local(x, rows, (4, 3))
        assert (again.dtype, again.local.ctypes.data) == (t.dtype, x.data_ptr())
        for y in (mct.relayout(x, rows, rows, (4, 3)), mct.all_gather(x), mct.all_gather(x, [[0], [1]])):
            assert y.untyped_storage().data_ptr() != x.untyped_storage().data_ptr()
    one = torch.ones(2)
    for y in (mct.all_reduce(one, [[0], [1]]), mct.reduce_scatter(one, [[0], [1]])):
        y += 1
    assert one.tolist() == [1, 1]


@on_ranks(2)
def test_tensors_that_are_not_contiguous(rank):
    x = cases.random((3, 4), torch.float64, rank).T.requires_grad_()
    y = mct.all_to_all(x, None, 0, 0, 2)
    y.sum().backward()
    assert torch.equal(x.grad, torch.ones(4, 3, dtype=torch.float64))
    others = [cases.random((3, 4), torch.float64, each).T for each in range(2)]
    assert torch.equal(y, torch.cat([other[2 * rank : 2 * rank + 2] for other in others]))


# -- placements -------------------------------------------------------------------------------------------------------


def chunks(whole, mesh, device, placements):
    """What PyTorch gives a device: chunks of chunks, one mesh dimension after the other."""
    for dim, coordinate, placement in zip(mesh.dims, mesh.coords(device), placements, strict=True):
        if placement.is_shard():
            parts = list(torch.chunk(whole, dim.size, placement.dim))
            empty = whole.narrow(placement.dim, 0, 0)
            whole = (parts + [empty] * dim.size)[coordinate]
    return whole


@pytest.mark.parametrize("sizes", [(1,), (3,), (2, 2), (3, 2)])
def test_layouts_of_placements_cut_as_pytorch_does(sizes):
    mesh = mc.Mesh(range(int(np.prod(sizes))), list(zip("xy", sizes, strict=False)))
    choices = [Replicate(), Shard(0), Shard(1), Shard(-1)]
    for shape in ((6, 12), (7, 4), (1, 5), (0, 3), (13, 2)):
        whole = torch.arange(shape[0] * shape[1]).reshape(shape)
        for placements in product(choices, repeat=len(sizes)):
            layout = mct.from_placements(mesh, placements, shape)
            for device in range(mesh.size):
                block = whole[layout.block_slices(shape, device)]
                expected = chunks(whole, mesh, device, placements)
                assert block.shape == expected.shape, (shape, placements, device)
                assert torch.equal(block, expected)
            normal = tuple(Shard(p.dim % 2) if p.is_shard() else p for p in placements)
            assert mct.to_placements(layout, shape) == normal
    assert mct.from_placements(mesh, [Shard(0)] + [Replicate()] * (len(sizes) - 1), 12).ndim == 1


def test_layouts_that_are_no_placements():
    mesh = mc.Mesh(range(6), [("x", 3), ("y", 2)])
    for layout, shape, why in (
        (mc.Layout(["x", U], mesh), (7, 2), r"'x', but PyTorch cuts it as Cuts\('x', \(0, 3, 6, 7\)\)"),
        (mc.Layout([("y", "x"), U], mesh), (12, 2), r"\('y', 'x'\), but PyTorch cuts it as \('x', 'y'\)"),
        (mc.Layout([mc.Cyclic("x", 1), U], mesh), (6, 2), "Cyclic"),
        (mc.Layout([mc.MATCH, U], mesh), (6, 2), "axis 0 is 'match'"),
        (mc.Layout(["x"], mesh), (6, 2), "shape .6, 2. has 2 axes, but the layout is for 1"),
    ):
        with pytest.raises(mc.LayoutError, match=why):
            mct.to_placements(layout, shape)
    assert mct.to_placements(mc.Layout([("y", "x"), U], mesh).delete(0), 2) == (Replicate(), Replicate())


def test_placements_that_are_no_layouts():
    mesh = mc.Mesh(range(6), [("x", 3), ("y", 2)])
    for placements, why in (
        ([cases.placements.Partial(), Replicate()], "Partial.* for mesh dimension 'x'"),
        ([Shard(0), Shard(2)], "for mesh dimension 'y': an array of shape .6, 2. has no such axis"),
        ([Shard(0)], "1 placements for a mesh of 2 dimensions"),
        (["x", Replicate()], "'x' for mesh dimension 'x'"),
    ):
        with pytest.raises(mc.LayoutError, match=why):
            mct.from_placements(mesh, placements, (6, 2))


# -- files ------------------------------------------------------------------------------------------------------------


def trained(model, optimizer, inputs):
    for each in inputs:
        optimizer.zero_grad()
        model(each).square().mean().backward()
        optimizer.step()


def made():
    layers = torch.nn.Linear(4, 8), torch.nn.LayerNorm(8), torch.nn.Linear(8, 2)
    model = torch.nn.Sequential(*layers)
    with torch.no_grad():
        for number, each in enumerate(model.parameters()):
            each.copy_(torch.linspace(-1, 1 + number, each.numel()).reshape(each.shape))
    return model, torch.optim.AdamW(model.parameters(), lr=0.01)


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_a_run_goes_on_as_if_it_had_not_stopped(ranks, tmp_path):
    inputs = torch.linspace(-1, 1, 6 * 5 * 4).reshape(6, 5, 4).sin()

    def program():
        model, optimizer = made()
        trained(model, optimizer, inputs[:3])
        mc.save(tmp_path / "run", {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": 3})
        trained(model, optimizer, inputs[3:])
        again, other = made()
        state = mct.block_of(mc.load(tmp_path / "run"))
        assert state["epoch"] == 3
        again.load_state_dict(state["model"])
        other.load_state_dict(state["optimizer"])
        trained(again, other, inputs[3:])
        for one, two in zip(model.parameters(), again.parameters(), strict=True):
            assert torch.equal(one, two)

    with mc.simulate(ranks) as world:
        world.run(program)


@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("name", ["a.safetensors", "a.npz", "a"])
def test_tensors_in_files(name, ranks, tmp_path):
    tree = {"w": torch.arange(6.0).reshape(2, 3).T, "n": torch.tensor(7)}
    if name != "a.npz":
        tree["b"] = torch.tensor([1.5, -2], dtype=torch.bfloat16)

    def program():
        needs = {**tree, "w": torch.nn.Parameter(tree["w"])}
        mc.save(tmp_path / name, needs)
        out = {key: torch.zeros_like(each) for key, each in tree.items()}
        out["w"] = torch.nn.Parameter(out["w"])
        assert mc.load(tmp_path / name, out=out) is out
        for key, each in tree.items():
            assert torch.equal(out[key].detach(), each)
        assert torch.equal(mct.block_of(mc.load(tmp_path / name, names=["w"]))["w"], tree["w"])
        with pytest.raises(mc.ShapeError, match="out has the shape"):
            mc.load(tmp_path / name, out={"w": torch.zeros(4)})
        with pytest.raises(mc.DTypeError, match="out is float64"):
            mc.load(tmp_path / name, out={"w": torch.zeros(3, 2, dtype=torch.float64)})
        with pytest.raises(mc.DTypeError, match="not in the memory of the host"):
            mc.save(tmp_path / "b", torch.zeros(2, device="meta"))

    with mc.simulate(ranks) as world:
        world.run(program)


@pytest.mark.parametrize("function", [torch.as_tensor, torch.asarray, torch.tensor, torch.from_dlpack, np.from_dlpack])
def test_a_tensor_that_is_no_array_of_one_memory_names_the_way(function):
    t = mc.distribute(np.arange(4.0), mc.Layout(["x"], mc.create_mesh([("x", 1)])))
    with pytest.raises(TypeError, match=r"meshcomm\.torch\.block_of\(t\) is the block as a tensor"):
        function(t)
    assert np.asarray(mct.block_of(t)).tolist() == [0, 1, 2, 3]
