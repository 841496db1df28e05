"""Operations that wait: when they are computed, and what keeps their values those of NumPy."""

import sys
import warnings
import weakref
from random import Random

import numpy as np
import pytest

import meshcomm as mc
from meshcomm.errors import ShapeError
from support.chain_programs import Program
from support.reference import on_ranks
from support.sampling import sampled, with_seeds
from support.tensors import check, on, on_a_mesh
from support.waiting import all_waiting

U = mc.UNSHARDED


@pytest.fixture(autouse=True)
def waiting():
    with all_waiting():
        yield


def tensor(shape=(12, 5), axes=("x", U)):
    """Return a tensor of random numbers whose memory nobody else has, and the array."""
    x = np.random.default_rng(1).random(shape)
    return mc.distribute(x, mc.Layout(list(axes), mc.create_mesh([("x", -1)]))).copy(), x


@with_seeds(on_a_mesh, sampled(range(400), 60))
def test_programs_have_numpys_values(random, mesh):
    name = mesh.dim_names[0]
    axes = random.choice([[name, U], [U, name], [mc.Cyclic(name, 2), U]])
    Program(random, mc.Layout(axes, mesh)).run(20)


@on_ranks(2)
def test_a_chain_is_computed_when_its_block_is_needed():
    t, x = tensor()
    u = t * 2
    v = np.sqrt(u + t)
    assert u._waits
    assert v._waits
    check(v, np.sqrt(x * 2 + x))
    assert not u._waits, "u is in a variable: the same pass stores it"
    del u
    u = t * 3
    w = (u + 1) * u
    del u
    check(w, (x * 3 + 1) * (x * 3))


@on_ranks(2)
def test_an_operand_is_written_after_what_waits_for_it():
    t, x = tensor()
    u = t + 1
    view = t[2:4]
    v = view * 2
    t[3] = 7
    assert not u._waits
    assert not v._waits
    check(u, x + 1)
    check(v, x[2:4] * 2)
    w = t * 2
    np.add(t, 1, out=t)
    x[3] = 7
    check(w, x * 2)
    w = t - 1
    t.sort(axis=1)
    check(w, x + 1 - 1)


@on_ranks(2)
def test_operators_in_place_join_a_chain():
    t, x = tensor()
    for _ in range(2):  # the first time the slow path
        u, expected = t * 2, x * 2
        v = u + 1
        u += t
        u *= 3
        np.subtract(u, 1, out=u)
        expected = (expected + x) * 3 - 1
    assert u._waits
    check(v, x * 2 + 1)
    check(u, expected)
    u = t > 0.5
    u |= t < 0.1
    check(u, (x > 0.5) | (x < 0.1))


@on_ranks(2)
def test_what_a_slice_reads_and_writes_comes_in_one_pass():
    t, x = tensor((40, 9))
    for _ in range(3):
        t[1:-1, 1:-1] = 0.25 * (t[:-2, 1:-1] + t[2:, 1:-1] + t[1:-1, :-2] + t[1:-1, 2:])
        x[1:-1, 1:-1] = 0.25 * (x[:-2, 1:-1] + x[2:, 1:-1] + x[1:-1, :-2] + x[1:-1, 2:])
        t[:, 2:] -= t[:, :-2] * t[:, 1:-1]
        x[:, 2:] -= x[:, :-2] * x[:, 1:-1]
        t[:-3] = t[3:] * 0.5 + t[:-3]
        x[:-3] = x[3:] * 0.5 + x[:-3]
    check(t, x)
    t[...] = t[::-1, ::-1] * 2 + t
    check(t, x[::-1, ::-1] * 2 + x)


@on_ranks(3)
def test_what_a_variable_holds_of_a_value_is_computed_before_the_target_is_written():
    t, x = tensor()
    for _ in range(3):  # the first time the slow path; edges of the value move
        u, expected = t[2:] * 2, x[2:] * 2
        t[1:-1] = u + t[:-2]
        x[1:-1] = expected + x[:-2]
        check(u, expected)
    check(t, x)


@on_ranks(1)
def test_nothing_waits_on_a_block_that_the_program_holds():
    t, x = tensor()
    block = t.local
    u = t + 1
    assert not u._waits
    block[:] = 0
    check(u, x + 1)
    part = t[2:].local
    del block
    assert not (t + 1)._waits
    del part
    u = tensor()[0] * 2
    block = u.local
    v = u + 1
    assert not v._waits, "the block of what waited is the program's now"
    t, x = tensor()
    block = t.local
    del block
    assert (t + 1)._waits, "references tell that nobody has it any more"
    whole = np.zeros(8)
    shared = mc.from_local(whole, mc.Layout(["x"], t.mesh))
    u = shared + 1
    whole[:] = 5
    check(u, np.ones(8))


@on_ranks(2)
def test_reductions_end_a_chain():
    t, x = tensor((30, 4, 3), ("x", U, U))
    check((t * t).sum(axis=2), (x * x).sum(axis=2))
    check(np.max(t - 0.5, axis=(1, 2)), (x - 0.5).max(axis=(1, 2)))
    check((t > 0.5).any(axis=1), (x > 0.5).any(axis=1))
    check((t * 2).argmin(axis=1), (x * 2).argmin(axis=1))
    u = t * 2
    check(u.sum(axis=1), (x * 2).sum(axis=1))
    check(u, x * 2)


@pytest.mark.parametrize("seed", sampled(range(400), 60))
def test_reductions_by_pieces_have_numpys_digits(seed):
    random = Random(seed)
    shape = random.choice(
        [(129,), (1000,), (1, 3777), (30, 41), (17, 33, 5), (2, 7001), (900, 1), (30, 1, 7), (3, 900)]
    )
    numbers = np.random.default_rng(random.randrange(2**32)).normal(size=(2, *shape)) * 10
    x = numbers[0] + (1j * numbers[1] if (kind := random.choice(["f8", "f4", "f2", "c8", "i4", "u1"])) == "c8" else 0)
    with np.errstate(all="ignore"):
        x = x.astype(kind)
    chains = [
        lambda t: t * t - t,
        lambda t: t + t[:1],
        lambda t: t[1:] * 2 - t[:-1],
        lambda t: t[..., 1:] + t[..., :-1],
    ]
    chain = random.choice([chain for chain in chains if 0 not in chain(x).shape])
    axes = random.choice([None, 0, -1, (*range(len(shape)),), tuple(random.sample(range(len(shape)), 1))])
    functions = (np.sum, np.prod, np.max, np.min, np.mean, np.any, np.all, np.count_nonzero, np.add.reduce)

    def program():
        t = mc.distribute(x, mc.Layout([U] * len(shape), mc.create_mesh([("x", 1)]))).copy()
        for function in functions:
            result, expected = function(chain(t), axis=axes).to_numpy(), np.asarray(function(chain(x), axis=axes))
            assert result.dtype == expected.dtype
            np.testing.assert_array_equal(result, expected, f"{function} {axes} of {shape} {kind}")

    with np.errstate(all="ignore"), all_waiting(random.choice([100, 3000])):
        on(1, program)


@on_ranks(1)
def test_a_reduction_warns_at_its_line():
    t, x = tensor((600, 5))
    u = t * 1e308
    assert u._waits
    with pytest.warns(RuntimeWarning, match="overflow encountered in reduce") as issued:
        (u * 1).sum()
    assert [each.lineno for each in issued] == [sys._getframe().f_lineno - 1]
    assert not u._waits, "u is in a variable: the same pass stores it"
    check(u, x * 1e308)


@on_ranks(1)
def test_errors_of_shapes_and_dtypes_come_at_once():
    t, _ = tensor()
    with pytest.raises(ShapeError):
        t + t[1:]
    with pytest.raises(TypeError):
        (t > 0) & t


@on_ranks(1)
def test_warnings_name_the_line_of_the_operation():
    t, _ = tensor()
    t[0] = 0
    line = sys._getframe().f_lineno + 1
    u = 1 / t
    with np.errstate(all="ignore"):
        v = np.log(-t)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        w = np.sqrt(t - 1)
    assert u._waits
    assert w._waits
    with pytest.warns(RuntimeWarning, match="divide by zero encountered in divide") as issued:
        mc.barrier(t.mesh)
    assert not any(x._waits for x in (u, v, w))
    assert [(each.lineno, each.filename) for each in issued] == [(line, __file__)]


@on_ranks(1)
def test_nothing_waits_where_errors_are_seen():
    t, _ = tensor()
    t[0] = 0
    with np.errstate(divide="raise"), pytest.raises(FloatingPointError):
        1 / t
    calls = []
    with np.errstate(divide="call", call=lambda *of: calls.append(of)):
        u = 1 / t
    assert calls
    assert not u._waits
    with warnings.catch_warnings(record=True) as issued:
        warnings.simplefilter("always")
        1 / t
    assert len(issued) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(RuntimeWarning):
            1 / t


@on_ranks(1)
def test_few_operations_wait_and_hold_little_memory():
    t, x = tensor()
    u, expected = t, x
    for _ in range(50):
        u, expected = u + 1, expected + 1
    check(u, expected)
    total, blocks = t + 0, []
    for k in range(20):  # copies that only operations still have are few
        copied = t.copy()
        blocks.append(weakref.ref(copied._block))
        total = total + copied * k
        del copied
        assert sum(block() is not None for block in blocks) <= 5
    assert total._waits
    check(total, sum((x * k for k in range(1, 20)), x + 0 + x * 0))


def test_a_barrier_computes_what_waits():
    with mc.simulate(1) as world:

        def program():
            t, x = tensor()
            u = t + 1
            assert u._waits
            mc.barrier()
            assert not u._waits
            check(u, x + 1)

        world.run(program)
