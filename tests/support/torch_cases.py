"""Operations of meshcomm.torch on the arrays of all ranks, for tests on simulated and on real ranks."""

from math import prod

import numpy as np
import pytest

import meshcomm as mc
from support.reference import tuple_layouts

torch = pytest.importorskip("torch", exc_type=ImportError)
placements = pytest.importorskip("torch.distributed.tensor", exc_type=ImportError)
mct = pytest.importorskip("meshcomm.torch")
Replicate, Shard = placements.Replicate, placements.Shard

SHAPE = (5, 7)  # no number of ranks divides both


def groups(size):
    """Group assignments of *size* ranks: all in one group, and swapped pairs, or single ranks if *size* is odd."""
    pairs = [[rank + 1, rank] for rank in range(0, size, 2)] if size % 2 == 0 else [[rank] for rank in range(size)]
    return [None, pairs]


def operations(size, comm=None):
    """Return operations by name, each with the shape of its argument."""
    operations_by_name = {}
    for rows in groups(size):
        n = size if rows is None else len(rows[0])
        for name, (shape, operation) in {
            "all_to_all": ((2 * n, 3), lambda x, r=rows, n=n: mct.all_to_all(x, r, 1, 0, n, comm)),
            "all_to_all of one axis": ((2 * n, 3), lambda x, r=rows, n=n: mct.all_to_all(x, r, 0, 0, n, comm)),
            "all_gather": ((2, 3), lambda x, r=rows: mct.all_gather(x, r, 1, comm)),
            "all_reduce": ((2, 3), lambda x, r=rows: mct.all_reduce(x, r, comm=comm)),
            "reduce_scatter": ((3, 2 * n), lambda x, r=rows: mct.reduce_scatter(x, r, 1, comm=comm)),
        }.items():
            operations_by_name[f"{name} over {rows}"] = shape, operation
    return operations_by_name


def random(shape, dtype, *seed):
    """A tensor of random numbers, the same for the same seed; integers for bfloat16, whose sums are exact."""
    rng = np.random.default_rng([*seed, *shape])
    if dtype == torch.bfloat16:
        return torch.from_numpy(rng.integers(-4, 5, shape).astype("f4")).to(dtype)
    values = rng.normal(size=shape) + (1j * rng.normal(size=shape) if dtype.is_complex else 0)
    return torch.from_numpy(np.asarray(values)).to(dtype)


def inner(x, y, replica_count=1):
    """Return this rank's term of the real inner product of two arrays, divided by the number of replicas."""
    if x.is_complex():
        x, y = torch.view_as_real(x.resolve_conj()), torch.view_as_real(y.resolve_conj())
    return float((x.double() * y.double()).sum()) / replica_count


def summed(numbers, comm=None):
    return mc.all_reduce(np.array(numbers), comm=comm)


def check_adjoint(name, x, operation, y_of, replica_counts=(1, 1), comm=None):
    """Check that <Fx, y> = <x, F*y> over all ranks.

    Parameters
    ----------
    name: name of the operation
    x: its argument
    operation: F
    y_of: function that makes y for a result
    replica_counts: number of replicas of x and of y
    comm: a communicator of all ranks
    """
    x.requires_grad_()
    result = operation(x)
    assert result.dtype == x.dtype, name
    y = y_of(result)
    (gradient,) = torch.autograd.grad(result, x, y)
    assert (gradient.shape, gradient.dtype) == (x.shape, x.dtype), name
    left_product, right_product = summed(
        [inner(result.detach(), y, replica_counts[1]), inner(x.detach(), gradient, replica_counts[0])], comm
    )
    np.testing.assert_allclose(
        left_product, right_product, rtol=1e-5 if x.dtype == torch.complex64 else 1e-12, err_msg=name
    )


def check_adjoints_of_collectives(rank, size, dtype, comm=None):
    for number, (name, (shape, operation)) in enumerate(operations(size, comm).items()):
        x = random(shape, dtype, rank, number)
        check_adjoint(name, x, operation, lambda r, seed=number: random(r.shape, dtype, rank, 99, seed), comm=comm)


def replicas(layout):
    return layout.mesh.size // prod(layout.shape)


def block(array, layout):
    """The block of this rank of an array that all ranks have."""
    return mct.block_of(mc.distribute(array, layout))


def check_adjoints_of_relayouts(mesh, dtype, cases, comm=None):
    """Check relayouts between pairs of layouts that *cases* chooses. Blocks are also compared with slices."""
    layouts = [*tuple_layouts(mesh, 2)]
    layouts.append(mct.from_placements(mesh, [Shard(1)] + [Replicate()] * (len(mesh.dims) - 1), SHAPE))
    for number, (source, target) in enumerate(cases([(a, b) for a in layouts for b in layouts])):
        array, other_array = (random(SHAPE, dtype, seed, number) for seed in (1, 2))
        x, y = block(array, source), block(other_array, target)

        def move(x, source=source, target=target):
            return mct.relayout(x, source, target, SHAPE)

        assert torch.equal(move(x), block(array, target))
        replica_counts = replicas(source), replicas(target)
        check_adjoint(f"{source} to {target}", x, move, lambda r, y=y: y, replica_counts, comm)
        (gradient,) = torch.autograd.grad(move(x), x, y)
        assert torch.equal(gradient, block(other_array, source))


def check_twice(function, x, forward):
    """Compare first and second derivatives with finite differences; with *forward* also those of the forward mode.

    *function* has equal arguments and results on all ranks, so all make the same calls. In one process only one thread
    at a time may use the forward mode of PyTorch. The fast mode draws its random vectors from a generator with a fixed
    seed, so they are equal on all ranks.
    """
    x.requires_grad_()
    y = random(function(x.detach()).shape, x.dtype, 5).requires_grad_()
    assert torch.autograd.gradcheck(function, (x,), check_forward_ad=forward, fast_mode=True)
    assert torch.autograd.gradgradcheck(function, (x,), (y,), fast_mode=True)


def check_collectives_twice(size, dtype, forward, comm=None):
    """Check each collective between a reduce_scatter and an all_gather: their arguments and results are global."""
    for shape, operation in operations(size, comm).values():

        def function(x, operation=operation):
            rank_rows = mct.reduce_scatter(x, comm=comm) / size
            return mct.all_gather(operation(rank_rows) ** 2, comm=comm)

        check_twice(function, random((size * shape[0], shape[1]), dtype, 3), forward)


def check_relayouts_twice(mesh, forward):
    replicated, shape = mc.Layout.replicated(mesh, 2), (3, 4)
    rows = mc.Layout([tuple(mesh.dim_names), mc.UNSHARDED], mesh)
    columns = mc.Layout([mc.UNSHARDED, mesh.dim_names[-1]], mesh)

    def function(x):
        y = mct.relayout(x, replicated, rows, shape) ** 2
        return mct.relayout(mct.relayout(y, rows, columns, shape) ** 2, columns, replicated, shape)

    check_twice(function, random(shape, torch.float64, 3), forward)
