"""meshcomm.torch: gradients of exchanges, memory shared with PyTorch, and placements; skipped without PyTorch."""

import re
from itertools import product

import numpy as np
import pytest

import meshcomm as mc
from support.paths import DOCS
from support.reference import on_ranks
from support.sampling import sampled

cases = pytest.importorskip("support.torch_cases")
torch, mct = cases.torch, cases.mct
Replicate, Shard = cases.Replicate, cases.Shard

pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit.script:FutureWarning")  # PyTorch's own, in forward mode

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
def test_the_page_runs(size):
    program = "".join(re.findall(r"^```python\n(.*?)^```$", (DOCS / "torch.md").read_text(), re.M | re.S))
    with mc.simulate(size) as world:
        world.run(lambda: exec(compile(program, "torch.md", "exec"), {}))


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


@pytest.mark.parametrize("function", [torch.as_tensor, torch.asarray, torch.tensor, torch.from_dlpack, np.from_dlpack])
def test_a_tensor_that_is_no_array_of_one_memory_names_the_way(function):
    t = mc.distribute(np.arange(4.0), mc.Layout(["x"], mc.create_mesh([("x", 1)])))
    with pytest.raises(TypeError, match=r"meshcomm\.torch\.block_of\(t\) is the block as a tensor"):
        function(t)
    assert np.asarray(mct.block_of(t)).tolist() == [0, 1, 2, 3]
