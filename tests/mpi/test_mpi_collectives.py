"""The collectives under mpiexec, against NumPy, and their errors on all ranks."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mpi4py import MPI

import meshcomm as mc
from meshcomm import DTypeError, GroupError, ShapeError
from support import reference
from support.paths import DATA
from support.reference import as_raw, numbered, random_bits, random_numbers, repeated, same_bits, same_numbers
from support.sampling import examples
from support.strategies import DTYPES, NUMERIC, assignments, strided
from support.verdicts import agree_mismatch, agree_raises, agreed

WORLD = MPI.COMM_WORLD
RANK, SIZE = WORLD.rank, WORLD.size
GOLDEN = json.loads((DATA / "all_to_all.json").read_text())
EXAMPLES = settings(max_examples=examples(100))


def usable():
    return mc.all_gather([RANK], None, 0).tolist() == list(range(SIZE))


def test_recorded_cases_on_as_many_ranks(comm):
    """Each on a communicator of the user over just the ranks that it needs."""
    cases = [case for case in GOLDEN["cases"] if case["n_replicas"] <= SIZE]
    some = {}
    for n in sorted({case["n_replicas"] for case in cases}):
        some[n] = comm.Split(0 if n > RANK else MPI.UNDEFINED, RANK)
    for case in cases:
        n = case["n_replicas"]
        if n > RANK:
            x = numbered(case["shape"], "i4") + 1000 * RANK
            names = ("group_assignment", "concat_dimension", "split_dimension", "split_count")
            result = mc.all_to_all(x, *(case[name] for name in names), comm=some[n])
            assert result.tolist() == case["outputs"][RANK]
    for each in some.values():
        if each != MPI.COMM_NULL:
            each.Free()


def test_the_example_of_the_seed(comm):
    seed = GOLDEN["seed_example"]
    pair = comm.Split(RANK // 2, RANK)
    if pair.size == 2:
        x = np.array(seed["inputs"][pair.rank])
        assert mc.all_to_all(x, seed["group_assignment"], 0, 1, 2, comm=pair).tolist() == seed["outputs"][pair.rank]
    pair.Free()


@st.composite
def problems(draw, make=random_bits, dtypes=DTYPES, min_rank=0):
    rows = draw(assignments(SIZE))
    shape = tuple(draw(st.lists(st.integers(0, 5), min_size=min_rank, max_size=3)))
    dtype = draw(st.sampled_from(dtypes))
    return rows, [make(shape, dtype, seed) for seed in range(SIZE)]


def raws(xs):
    return [as_raw(x) for x in xs]


def check(result, wanted, x):
    assert result.dtype == x.dtype
    assert same_bits(as_raw(result), wanted[RANK])
    assert result.flags.c_contiguous
    assert not np.shares_memory(result, x)


@EXAMPLES
@given(problems(), st.data())
@agreed
def test_what_is_moved(problem, data):
    rows, xs = problem
    count, ndim, root = len(rows[0]), xs[0].ndim, data.draw(st.integers(0, len(rows[0]) - 1))
    sources, targets = (data.draw(st.permutations(range(SIZE))) for _ in "ab")
    pairs = list(zip(sources, targets, strict=True))[: data.draw(st.integers(0, SIZE))]
    calls = [("broadcast", xs, (rows, root)), ("collective_permute", xs, (pairs,))]
    if ndim:
        concat, split = (data.draw(st.integers(0, ndim - 1)) for _ in "ab")
        many = [repeated(x, split, count) for x in xs]
        calls += [("all_gather", xs, (rows, concat)), ("all_to_all", many, (rows, concat, split, count))]
    for name, given_by, arguments in calls:
        x = data.draw(strided(given_by[RANK]))
        result = getattr(mc, name)(x, *arguments)
        check(result, getattr(reference, name)(raws(given_by), *arguments), x)
    if ndim:
        check(mc.all_to_all(result, rows, split, concat, count), raws(many), result)


NUMBERS = [np.dtype(dtype) for dtype in ["?", *NUMERIC]]


@EXAMPLES
@given(problems(random_numbers, NUMBERS, min_rank=1), st.sampled_from(["sum", "prod", "min", "max"]), st.data())
@agreed
def test_reductions(problem, op, data):
    rows, xs = problem
    x = data.draw(strided(xs[RANK]))
    result = mc.all_reduce(x, rows, op)
    assert same_bits(mc.all_reduce(x, rows, getattr(MPI, op.upper())), result)
    assert same_numbers(result, reference.all_reduce(xs, rows, op)[RANK])
    mine = next(row for row in rows if RANK in row)
    texts = WORLD.allgather(result.tobytes())
    assert all(texts[rank] == result.tobytes() for rank in mine), "the same bits on all ranks of the group"
    axis = data.draw(st.integers(0, x.ndim - 1))
    xs = [repeated(each, axis, len(mine)) for each in xs]
    result = mc.reduce_scatter(xs[RANK], rows, axis, getattr(MPI, op.upper()))
    assert same_numbers(result, reference.reduce_scatter(xs, rows, axis, op)[RANK])


def test_what_is_not_equal_on_all_ranks():
    if SIZE == 1:
        assert usable()
        return
    for x in (np.zeros(2 + (RANK == SIZE - 1)), np.zeros(2, "f4" if RANK else "f8")):
        with agree_mismatch(mc.create_mesh([("x", SIZE)]), "ranks made different collective calls"):
            mc.all_reduce(x, None)
        assert usable()
    with agree_mismatch(mc.create_mesh([("x", SIZE)]), "all_gather"):
        mc.all_gather([1.0], None, 0) if RANK else mc.broadcast([1.0], None)
    assert usable()


ALL = [list(range(SIZE))]
BAD = [
    (lambda: mc.all_to_all(np.zeros((3, SIZE)), [0, 1], 0, 1, 0), GroupError, "split_count 0"),
    (lambda: mc.all_to_all(np.zeros((3, SIZE)), ALL, 0, 1, SIZE + 1), GroupError, "must equal the size"),
    (lambda: mc.all_to_all(np.zeros((3, SIZE)), ALL, -1, 1, SIZE), ShapeError, "concat_dimension -1"),
    (lambda: mc.all_to_all(np.zeros((3, SIZE)), ALL, 0, 2, SIZE), ShapeError, "split_dimension 2"),
    (
        lambda: mc.all_to_all(np.zeros(SIZE + 1), [[*range(SIZE), SIZE]], 0, 0, SIZE + 1),
        GroupError,
        f"names rank {SIZE}",
    ),
    (lambda: mc.all_gather(np.zeros(2), [[0] * SIZE] if SIZE > 1 else [[0], [0]], 0), GroupError, "rank 0 twice"),
    (lambda: mc.all_gather(np.zeros(2), [[SIZE - 1, -1]], 0), GroupError, "names rank -1"),
    (lambda: mc.all_gather(np.zeros(2, object), None, 0), DTypeError, "object"),
    (lambda: mc.all_gather(np.zeros(()), None, 0), ShapeError, "out of range of input rank 0"),
    (lambda: mc.all_reduce(np.zeros(2), None, "mean"), DTypeError, "op must be one of"),
    (lambda: mc.all_reduce(np.zeros(2, "S3"), None), DTypeError, "not defined"),
    (lambda: mc.broadcast(np.zeros(2), None, SIZE), GroupError, "is not a position"),
    (lambda: mc.collective_permute(np.zeros(2), [(0, SIZE)]), GroupError, f"names rank {SIZE}"),
    (lambda: mc.collective_permute(np.zeros(2), [(0, 0), (0, 0)]), GroupError, "twice"),
]
BAD += [
    (lambda: mc.all_to_all(np.zeros(SIZE + 1), ALL, 0, 0, SIZE), ShapeError, "not divisible by split_count"),
    (lambda: mc.reduce_scatter(np.zeros(SIZE + 1), None, 0), ShapeError, "does not divide it"),
    (lambda: mc.all_gather(np.zeros(2), [[0]], 0), GroupError, "in no group"),
][: 3 * (SIZE > 1)]


@pytest.mark.parametrize("number", range(len(BAD)))
def test_bad_arguments_are_refused_on_all_ranks(number):
    call, error, text = BAD[number]
    for _ in range(2):
        with agree_raises(error, text):
            call()
        assert usable()


def test_what_one_rank_alone_sees_all_raise():
    x = [object()] if RANK == SIZE - 1 else [1.0]
    with agree_raises(DTypeError, "Python objects"):
        mc.all_gather(x, None, 0)
    with agree_raises(OSError, "cannot read"):
        mc.all_gather(Broken() if RANK == 0 else [1.0], None, 0)
    assert usable()


class Broken:
    def __array__(self, dtype=None, copy=None):
        raise OSError("cannot read")
