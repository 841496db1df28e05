"""meshcomm.torch under mpiexec: gradients are adjoint, and agree with finite differences; skipped without PyTorch."""

import pytest

import meshcomm as mc
from support.sampling import sampled

cases = pytest.importorskip("support.torch_cases")
torch, mct = cases.torch, cases.mct

pytestmark = [  # PyTorch's own, in forward mode
    pytest.mark.filterwarnings(f"ignore:.torch.jit.script:{kind}") for kind in ("FutureWarning", "DeprecationWarning")
]
DTYPES = [torch.float64, torch.complex64, torch.bfloat16]


@pytest.mark.parametrize("dtype", DTYPES)
def test_gradients_are_adjoint(comm, grid, world, dtype):
    cases.check_adjoints_of_collectives(world.rank, world.size, dtype, world)
    cases.check_adjoints_of_relayouts(grid, dtype, lambda pairs: sampled(pairs, 20), world)


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128])
def test_gradients_of_collectives_agree_with_differences(comm, dtype):
    cases.check_collectives_twice(comm.size, dtype, forward=True, comm=comm)


def test_gradients_of_relayouts_agree_with_differences(grid):
    cases.check_relayouts_twice(grid, forward=True)


def test_blocks_in_shared_memory_stay_as_long_as_pytorch_holds_them(line):
    """Large ones: they come from a pool that the ranks of a node share."""
    rows, columns = mc.Layout(["x", mc.UNSHARDED], line), mc.Layout([mc.UNSHARDED, "x"], line)
    whole = cases.random((400, 500), torch.float32, 1)
    kept = []
    for turn in range(6):
        moved = mct.relayout(cases.block(whole + turn, rows), rows, columns, whole.shape)
        kept.append(torch.from_dlpack(moved.numpy()))
        del moved
    for turn, block in enumerate(kept):
        assert torch.equal(block, cases.block(whole + turn, columns))


def test_a_model_whose_weights_are_sharded_has_the_gradients_of_one_process(comm, line):
    """The first weights are cut along their columns, the second along their rows: one all_reduce a layer."""
    hidden = 4 * comm.size
    x, w, v = (cases.random(s, torch.float64, n) for n, s in enumerate([(6, 5), (5, hidden), (hidden, 3)]))
    whole = [each.clone().requires_grad_() for each in (w, v)]
    (torch.tanh(x @ whole[0]) @ whole[1]).pow(2).sum().backward()

    cuts = [mc.Layout([mc.UNSHARDED, "x"], line), mc.Layout(["x", mc.UNSHARDED], line)]
    mine = [cases.block(each, cut).requires_grad_() for each, cut in zip((w, v), cuts, strict=True)]
    y = mct.all_reduce(torch.tanh(x @ mine[0]) @ mine[1], comm=comm)
    (y.pow(2).sum() / comm.size).backward()  # PyTorch differentiates the sum of what all ranks have
    for each, one, cut in zip(mine, whole, cuts, strict=True):
        torch.testing.assert_close(each.grad, cases.block(one.grad, cut))
