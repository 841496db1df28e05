"""The collectives: recorded cases, the definition in NumPy, and errors in the order of the original."""

import json
from itertools import product
from operator import eq, gt, lt

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import meshcomm as mc
from meshcomm import DTypeError, GroupError, Layout, ShapeError
from support import reference
from support.paths import DATA
from support.reference import (
    as_raw,
    numbered,
    on_ranks,
    random_bits,
    random_numbers,
    repeated,
    same_bits,
    same_numbers,
    simulated,
)
from support.sampling import sampled
from support.strategies import DTYPES, NUMERIC, assignments, dtype_id, strided

GOLDEN = json.loads((DATA / "all_to_all.json").read_text())
CASES, CROSS = GOLDEN["cases"], GOLDEN["cross_check_with_dtensor"]


def on_all_ranks(function, xs, *args):
    """Call a collective on simulated ranks, each with its own x."""
    return simulated(len(xs), lambda rank: function(xs[rank], *args))


def check(results, wanted, xs):
    for rank, (result, right) in enumerate(zip(results, wanted, strict=True)):
        assert same_bits(result, right), f"rank {rank}: {result} is not {right}"
        assert result.flags.c_contiguous
        assert result.flags.writeable
        assert not any(np.shares_memory(result, x) for x in xs)
        assert not any(np.shares_memory(result, other) for other in results[:rank])


# -- all_to_all, as recorded ------------------------------------------------------------------------------------------


def arguments_of(case):
    return [case[name] for name in ("group_assignment", "concat_dimension", "split_dimension", "split_count")]


def test_the_example_of_the_seed():
    seed = GOLDEN["seed_example"]
    results = on_all_ranks(mc.all_to_all, [np.array(x) for x in seed["inputs"]], *arguments_of(seed))
    assert [result.tolist() for result in results] == seed["outputs"]


@pytest.mark.parametrize("case", CASES, ids=[case["label"] for case in CASES])
def test_recorded_cases(case):
    xs = [numbered(case["shape"], "i4") + 1000 * rank for rank in range(case["n_replicas"])]
    before = [x.copy() for x in xs]
    results = on_all_ranks(mc.all_to_all, xs, *arguments_of(case))
    check(results, [np.array(out, "i4").reshape(case["output_shape_from_tf_shape_fn"]) for out in case["outputs"]], xs)
    check(reference.all_to_all(xs, *arguments_of(case)), results, [])
    assert all(same_bits(x, old) for x, old in zip(xs, before, strict=True))
    swapped = case["gradient"]
    back = on_all_ranks(
        mc.all_to_all,
        results,
        case["group_assignment"],
        swapped["concat_dimension"],
        swapped["split_dimension"],
        swapped["split_count"],
    )
    check(back, xs, results)


@pytest.mark.parametrize("case", CROSS, ids=lambda case: f"{case['src']}->{case['dst']}")
def test_a_relayout_of_one_dimension_is_the_op(case):
    array = numbered(case["shape"], "i4")

    def program(rank):
        mesh = mc.create_mesh(case["mesh_dims"])
        source, target = Layout(case["src"], mesh), Layout(case["dst"], mesh)
        tensor = mc.distribute(array, source)
        (step,) = mc.plan_relayout(array.shape, array.dtype, source, target).steps
        assert (step.split_dimension, step.concat_dimension) == (case["split_dimension"], case["concat_dimension"])
        assert [list(row) for row in step.group_assignment] == case["group_assignment"]
        return mc.relayout(tensor, target).local, mc.all_to_all(tensor.local, *arguments_of(case))

    size = int(np.prod([n for _, n in case["mesh_dims"]]))
    assert all(same_bits(by_relayout, by_op) for by_relayout, by_op in simulated(size, program))


# -- the definition, on anything --------------------------------------------------------------------------------------


@st.composite
def problems(draw, make=random_bits, dtypes=DTYPES, min_rank=0):
    """A group assignment and the array of every rank."""
    size = draw(st.integers(1, 8))
    rows = draw(assignments(size))
    shape = tuple(draw(st.lists(st.integers(0, 4), min_size=min_rank, max_size=4)))
    dtype = draw(st.sampled_from(dtypes))
    return rows, [make(shape, dtype, seed) for seed in range(size)]


def an_axis(data, xs):
    return data.draw(st.integers(0, xs[0].ndim - 1))


def of_any_memory(data, xs):
    return [data.draw(strided(x)) for x in xs]


def check_all(results, wanted, xs):
    assert all(result.dtype == x.dtype for result, x in zip(results, xs, strict=True))
    check(raws(results), wanted, xs)


def raws(xs):
    return [as_raw(x) for x in xs]


@given(problems(min_rank=1), st.data())
def test_all_to_all(problem, data):
    rows, xs = problem
    count = len(rows[0])
    concat, split = an_axis(data, xs), an_axis(data, xs)
    xs = [repeated(x, split, count) for x in xs]
    raw = raws(xs)
    results = on_all_ranks(mc.all_to_all, of_any_memory(data, xs), rows, concat, split, count)
    check_all(results, reference.all_to_all(raw, rows, concat, split, count), xs)
    check_all(on_all_ranks(mc.all_to_all, results, rows, split, concat, count), raw, xs)


@given(problems(min_rank=1), st.data())
def test_all_gather(problem, data):
    rows, xs = problem
    axis = an_axis(data, xs)
    results = on_all_ranks(mc.all_gather, of_any_memory(data, xs), rows, axis)
    check_all(results, reference.all_gather(raws(xs), rows, axis), xs)


@given(problems(), st.data())
def test_broadcast(problem, data):
    rows, xs = problem
    root = data.draw(st.integers(0, len(rows[0]) - 1))
    results = on_all_ranks(mc.broadcast, of_any_memory(data, xs), rows, root)
    check_all(results, reference.broadcast(raws(xs), rows, root), xs)


@given(problems(), st.data())
def test_collective_permute(problem, data):
    _, xs = problem
    ranks = range(len(xs))
    pairs = list(zip(data.draw(st.permutations(ranks)), data.draw(st.permutations(ranks)), strict=True))
    pairs = pairs[: data.draw(st.integers(0, len(pairs)))]
    results = on_all_ranks(mc.collective_permute, of_any_memory(data, xs), pairs)
    check_all(results, reference.collective_permute(raws(xs), pairs), xs)


# -- every combination of axes ----------------------------------------------------------------------------------------

BLOCKS = [shape for ndim in (1, 2, 3) for shape in product((0, 1, 2, 3), repeat=ndim)]
ROWS = {1: [[1], [0], [2]], 2: [[2, 0], [1, 3]], 3: [[4, 0, 2], [1, 5, 3]]}
"""Group assignments by the size of the groups; positions are not in the order of ranks."""


def by_axes(function, call_of, count, cases):
    """Compare *function* with its twin in NumPy for each of *cases*; *call_of* makes the shape and the arguments."""
    rows = ROWS[count]
    calls = [call_of(*case) for case in cases]
    arrays = [[numbered(shape, "i4") + 10_000 * rank for rank in range(sum(map(len, rows)))] for shape, _ in calls]
    wanted = [
        getattr(reference, function)(xs, rows, *arguments) for xs, (_, arguments) in zip(arrays, calls, strict=True)
    ]

    def program(rank):
        operation = getattr(mc, function)
        return [operation(xs[rank], rows, *arguments) for xs, (_, arguments) in zip(arrays, calls, strict=True)]

    results = simulated(len(arrays[0]), program)
    for number, (shape, arguments) in enumerate(calls):
        for rank, result in enumerate(results):
            right = wanted[number][rank]
            assert same_bits(result[number], right), f"rank {rank}, {shape}, {arguments}: {result[number]} not {right}"


def enlarged(shape, axis, count):
    return (*shape[:axis], shape[axis] * count, *shape[axis + 1 :])


@pytest.mark.parametrize("order", ["split before concat", "split after concat", "split is concat"])
@pytest.mark.parametrize("count", ROWS)
def test_all_to_all_along_every_pair_of_axes(count, order):
    """Of every shape, empty ones too; *split* and *concat* are axes of the blocks that the ranks exchange."""
    pairs = [(shape, *pair) for shape in BLOCKS for pair in product(range(len(shape)), repeat=2)]
    compare = {"split before concat": lt, "split after concat": gt, "split is concat": eq}[order]
    cases = [(shape, split, concat) for shape, split, concat in pairs if compare(split, concat)]
    assert {split for _, split, _ in cases} | {concat for _, _, concat in cases} == {0, 1, 2}

    def call_of(shape, split, concat):
        return enlarged(shape, split, count), (concat, split, count)

    by_axes("all_to_all", call_of, count, sampled(cases, 60))


@pytest.mark.parametrize("count", ROWS)
def test_all_gather_and_reduce_scatter_along_every_axis(count):
    cases = sampled([(shape, axis) for shape in BLOCKS for axis in range(len(shape))], 60)
    by_axes("all_gather", lambda shape, axis: (shape, (axis,)), count, cases)
    by_axes("reduce_scatter", lambda shape, axis: (enlarged(shape, axis, count), (axis, "sum")), count, cases)


# -- reductions -------------------------------------------------------------------------------------------------------

NUMBERS = [np.dtype(dtype) for dtype in ["?", *NUMERIC]]
OPS = st.sampled_from(["sum", "prod", "min", "max"])


@given(problems(random_numbers, NUMBERS), OPS, st.data())
def test_all_reduce(problem, op, data):
    rows, xs = problem
    results = on_all_ranks(mc.all_reduce, of_any_memory(data, xs), rows, op)
    check_reduced(results, reference.all_reduce(xs, rows, op), xs)
    for row in rows:
        assert all(same_bits(results[rank], results[row[0]]) for rank in row)


@given(problems(random_numbers, NUMBERS, min_rank=1), OPS, st.data())
def test_reduce_scatter(problem, op, data):
    rows, xs = problem
    axis = an_axis(data, xs)
    xs = [repeated(x, axis, len(rows[0])) for x in xs]
    results = on_all_ranks(mc.reduce_scatter, of_any_memory(data, xs), rows, axis, op)
    check_reduced(results, reference.reduce_scatter(xs, rows, axis, op), xs)


def check_reduced(results, wanted, xs):
    for result, right in zip(results, wanted, strict=True):
        assert same_numbers(result, right), f"{result} is not {right}"
        assert result.flags.c_contiguous
        assert not any(np.shares_memory(result, x) for x in xs)


@pytest.mark.parametrize(("size", "dtype"), sampled(product([1, 2, 3, 7, 8], ["f2", "f4", "f8", ">f4", "g", "F"])))
def test_sums_are_in_the_order_of_the_group(size, dtype):
    """Whatever the length of the array, which decides who adds which elements."""
    rng = np.random.default_rng(5)
    big = 3 if dtype == "f2" else 8
    xs = (rng.standard_normal((size, 40)) * 10.0 ** rng.integers(-big, big, (size, 40))).astype(dtype)
    row = rng.permutation(size).tolist()
    for length in (1, size - 1, size, size + 1, 40):
        parts = [x[:length] for x in xs]
        wanted = reference.reduced([parts[rank] for rank in row], "sum")
        assert all(same_bits(result, wanted) for result in on_all_ranks(mc.all_reduce, parts, [row]))


def test_bools_and_small_integers_stay_what_they_are():
    xs = [np.array([True, False, True]), np.array([True, False, False])]
    for op, wanted in [("sum", [1, 0, 1]), ("max", [1, 0, 1]), ("prod", [1, 0, 0]), ("min", [1, 0, 0])]:
        results = on_all_ranks(mc.all_reduce, xs, None, op)
        assert all(result.dtype == bool and result.tolist() == wanted for result in results)
    results = on_all_ranks(mc.all_reduce, [np.array([200], "u1"), np.array([100], "u1")], None)
    assert all(result.dtype == np.dtype("u1") and result.tolist() == [44] for result in results)


@pytest.mark.parametrize("dtype", DTYPES, ids=dtype_id)
def test_every_dtype_moves_bit_for_bit(dtype):
    xs = [random_bits((4, 3), dtype, rank) for rank in range(4)]
    rows, pairs = [[2, 0], [1, 3]], [(0, 3), (3, 2), (1, 0)]
    for name, arguments in [
        ("all_to_all", (rows, 1, 0, 2)),
        ("all_gather", (rows, 1)),
        ("broadcast", (rows, 1)),
        ("collective_permute", (pairs,)),
    ]:
        results = on_all_ranks(getattr(mc, name), xs, *arguments)
        check_all(results, getattr(reference, name)(raws(xs), *arguments), xs)


def test_array_likes_and_memory_of_any_order():
    wide = numbered((4, 6))
    for x in (
        wide.tolist(),
        tuple(map(tuple, wide)),
        np.asfortranarray(wide),
        wide[::-1][::-1],
        wide[:, ::-1][:, ::-1],
    ):
        results = simulated(2, lambda _, x=x: mc.all_gather(x, [[0, 1]], 1))
        assert all(same_bits(r, np.concatenate([wide, wide], 1)) for r in results)
    view = numbered((8, 6))[::-2, ::3]
    assert same_bits(simulated(2, lambda _: mc.all_to_all(view, None, 0, 1, 2))[1], np.tile(view[:, 1:], (2, 1)))
    for x in (5, np.float32(2), np.array(7)):
        for function in (mc.all_reduce, mc.broadcast):
            (result, _) = simulated(2, lambda _, x=x, function=function: function(x, None))
            assert result.shape == ()
            assert result.dtype == np.asarray(x).dtype
    for shape in [(0,), (0, 3), (3, 0, 2)]:
        for result in simulated(2, lambda _, shape=shape: mc.all_gather(np.zeros(shape), None, 0)):
            assert result.shape == (2 * shape[0], *shape[1:])


def test_assignments_of_any_kind_of_integers():
    for rows in ([[1, 0]], ((1, 0),), np.array([[1, 0]], "i4"), [[np.int64(1), np.int8(0)]], iter([[1, 0]])):
        kinds = [rows, [[1, 0]]] if not hasattr(rows, "__next__") else [[iter([1, 0])], [[1, 0]]]
        results = simulated(2, lambda rank, kinds=kinds: mc.all_gather(np.array([rank]), kinds[rank], np.int64(0)))
        assert [r.tolist() for r in results] == [[1, 0]] * 2


@on_ranks(2)
def test_calls_that_were_made_before_give_the_right_results_again(rank):
    for i in range(3):
        for row in ([0, 1], [1, 0]):
            wanted = [[r * 10 + i] for r in row]
            assert mc.all_gather(np.array([[rank * 10 + i]]), [row], 0).tolist() == wanted


# -- errors -----------------------------------------------------------------------------------------------------------

GOOD = ([[0, 1]], 0, 1, 2)
X = np.zeros((5, 4))

# From the first check to the last; each case would also fail every later check that its arguments allow it to.
ORDERED = [
    (([0, 1], -1, 9, 0), GroupError, "split_count 0 must at least be one."),
    (([0, 1], -1, 9, 3), GroupError, "group_assignment must have rank 2"),
    (([[0], [0, 1]], -1, 9, 3), GroupError, "group_assignment must have rank 2"),
    (([], -1, 9, 3), GroupError, "group_assignment must have rank 2"),
    (([[[0, 1]]], -1, 9, 3), GroupError, "group_assignment|rank"),
    (
        ([[0, 5]], -1, 9, 3),
        GroupError,
        "split_count 3 must equal the size of the second dimension of group_assignment 2",
    ),
    (([[0, 5]], -1, 9, 2), ShapeError, "concat_dimension -1 is out of range of input rank 2"),
    (([[0, 5]], 2, 9, 2), ShapeError, "concat_dimension 2 is out of range of input rank 2"),
    (([[0, 5]], 0, -1, 2), ShapeError, "split_dimension -1 is out of range of input rank 2"),
    (([[0, 5]], 0, 2, 2), ShapeError, "split_dimension 2 is out of range of input rank 2"),
    (([[0, 5]], 1, 0, 2), ShapeError, "input dimension 5 not divisible by split_count 2"),
    (([[0, 5]], 0, 0, 2), ShapeError, "input dimension 5 not divisible by split_count 2"),
]

# What the original lets pass; StableHLO's constraints.
HOLES = [
    (([[-1, 0]], 0, 1, 2), GroupError, r"names rank -1"),
    (([[0], [0]], 0, 1, 1), GroupError, r"names rank 0 twice"),
    (([[0.0, 1.0]], 0, 1, 2), GroupError, r"must be an integer, not 0.0"),
    (([[False, True]], 0, 1, 2), GroupError, r"must be an integer, not False"),
    ((["01"], 0, 1, 2), GroupError, r"must be an integer, not '0'"),
    (([[0, None]], 0, 1, 2), GroupError, r"must be an integer, not None"),
    ((5, 0, 1, 2), GroupError, r"must have rank 2.* not 5"),
    (([[0, 1]], 0.0, 1, 2), ValueError, "concat_dimension must be an integer, not 0.0"),
    (([[0, 1]], 0, None, 2), ValueError, "split_dimension must be an integer, not None"),
    (([[0, 1]], 0, 1, 2.0), ValueError, "split_count must be an integer, not 2.0"),
    (([[0, 1]], 0, 1, True), ValueError, "split_count must be an integer, not True"),
    (([[0, 1]], [0], 1, 2), ValueError, "concat_dimension must be an integer"),
]


def check_refused(function, x, arguments, error, text):
    """Every rank raises, before and after a right call, and the world works on."""

    def program(rank):
        for _ in range(2):
            with pytest.raises(error, match=text) as caught:
                function(x, *arguments)
            assert isinstance(caught.value, mc.MeshcommError)
            assert isinstance(caught.value, ValueError)
            assert mc.all_to_all(np.array([[rank, 7]]), *GOOD).tolist() == ([[0], [1]] if rank == 0 else [[7], [7]])
        return type(caught.value)

    with mc.simulate(2) as world:
        assert len(set(world.run(lambda: program(world.rank)))) == 1
        assert sum(world.bytes_moved) == 2 * 2 * 8, "nothing was sent but by the right calls"


@pytest.mark.parametrize(("arguments", "error", "text"), ORDERED + HOLES)
def test_errors_of_all_to_all(arguments, error, text):
    check_refused(mc.all_to_all, X, arguments, error, text)


@pytest.mark.parametrize(
    ("function", "arguments", "error", "text"),
    [
        (mc.all_gather, ([[0, 1]], -1), ShapeError, "dimension -1 is out of range"),
        (mc.all_reduce, ([[0, 1]], np.add), DTypeError, "op must be one of"),
        (mc.all_reduce, ([[0, 1]], ["sum"]), DTypeError, "op must be one of"),
        (mc.reduce_scatter, ([[0, 1]], 0), ShapeError, "axis 0 .* has 5 elements.* 2 does not divide it"),
        (mc.reduce_scatter, ([[0, 1]], 1, "and"), DTypeError, "op must be one of"),
        (mc.broadcast, ([[0, 1]], 0.0), GroupError, "root must be an integer"),
        (mc.collective_permute, ([(0, 1), (0, 0)],), GroupError, "names rank 0 as a source twice"),
        (mc.collective_permute, ([(0, 1, 0)],), GroupError, "must be pairs of ranks"),
        (mc.collective_permute, (None,), GroupError, "pairs"),
        (mc.collective_permute, ([(0, 1.0)],), GroupError, "must be an integer"),
    ],
)
def test_errors_of_the_family(function, arguments, error, text):
    check_refused(function, X, arguments, error, text)


@pytest.mark.parametrize("dtype", ["M8[s]", "S3", "U2", "V4", [("a", "i4")]], ids=str)
def test_what_cannot_be_added_is_refused(dtype):
    check_refused(mc.all_reduce, np.zeros((2, 2), dtype), ([[0, 1]], "sum"), DTypeError, "op 'sum' is not defined")


@pytest.mark.parametrize("x", [[object()], None, {"a": 1}, [None, 1], np.zeros(2, "O"), np.zeros(2, [("a", "O")])])
def test_objects_are_refused(x):
    for function, arguments in [
        (mc.all_gather, (None, 0)),
        (mc.broadcast, (None,)),
        (mc.collective_permute, ([(0, 1)],)),
    ]:
        check_refused(
            function, x, arguments, DTypeError, "this is None, not an array" if x is None else "Python objects"
        )


def test_ragged_lists_and_dtensors_are_refused():
    check_refused(mc.all_gather, [[1], [1, 2]], (None, 0), ShapeError, "not an array")

    def program(rank):
        tensor = mc.zeros((4,), "f8", Layout(["x"], mc.create_mesh([("x", 2)])))
        with pytest.raises(DTypeError, match=r"\.local"):
            mc.all_reduce(tensor, None)

    simulated(2, program)


def test_what_one_rank_alone_sees_all_raise():
    class Broken:
        def __array__(self, dtype=None, copy=None):
            raise OSError("cannot read")

    for x, error, text in [
        ([object()], DTypeError, "Python objects"),
        ([[1], [1, 2]], ShapeError, "not an array"),
        (Broken(), OSError, "cannot read"),
    ]:

        def program(rank, x=x, error=error, text=text):
            with pytest.raises(error, match=text) as caught:
                mc.all_gather(x if rank == 1 else [1.0], None, 0)
            assert rank == 1 or "rank 1" in str(caught.value)
            assert mc.all_gather([rank], None, 0).tolist() == [0, 1, 2]

        simulated(3, program)


@on_ranks(2)
def test_a_rank_with_another_assignment(rank):
    with pytest.raises(mc.CollectiveMismatch, match=r"rank 0: all_gather.*\n.*rank 1: all_gather"):
        mc.all_gather([1], [[0, 1]] if rank else [[1, 0]], 0)


def test_warnings_of_one_rank_do_not_tear_the_ranks_apart():
    """An overflow is the business of one rank; as an exception it would leave the others waiting."""

    def program(rank):
        with np.errstate(all="raise"):
            return mc.all_reduce(np.array([3e38, 1], "f4"), None).tolist()

    assert simulated(2, program) == [[np.inf, 2]] * 2
