"""Calls that were made before run by kept recipes: they check what the slow path checks, and see what changes."""

import gc
import warnings
import weakref

import numpy as np
import pytest

import meshcomm as mc


def tensors(*dtypes, n=4):
    mesh = mc.create_mesh([("x", -1)])
    return [
        mc.distribute(np.arange(2.0 * n).reshape(n, 2).astype(d), mc.Layout(["x", mc.UNSHARDED], mesh)) for d in dtypes
    ]


def recipes(*given):
    return sum(len(t._spec.recipes) for t in given)


def test_a_call_is_kept_once():
    a, b = tensors("f8", "f8", n=5)
    before = recipes(a)
    for _ in range(3):
        a + b
        a * 2.5
        np.where(a, b, a)
    assert recipes(a) == before + 3


PUT_TOGETHER = {
    "roll": lambda a: np.roll(a, 1, axis=0),
    "roll of two axes": lambda a: np.roll(a, (3, 1), (0, 1)),
    "roll of no axis that is cut": lambda a: np.roll(a, 1, axis=1),
    "concatenate": lambda a: np.concatenate([a, a]),
    "concatenate beside": lambda a: np.concatenate((a, a), axis=1),
    "stack": lambda a: np.stack([a, a]),
    "vstack": lambda a: np.vstack([a, a, a]),
    "diff": lambda a: np.diff(a, 2, axis=0),
    "gradient": lambda a: np.gradient(a, 0.5, axis=0),
    "pad": lambda a: np.pad(a, 1),
    "pad by edges": lambda a: np.pad(a, ((2, 1), (0, 3)), mode="wrap"),
}


@pytest.mark.parametrize("call", PUT_TOGETHER.values(), ids=PUT_TOGETHER)
def test_what_is_put_together_is_kept_once_and_keeps_no_tensor(call):
    def program():
        (a,) = tensors("f8", n=9)
        made = call(a)
        before = recipes(a)
        for _ in range(3):
            a += 1
            np.testing.assert_array_equal(call(a).to_numpy(), call(a.to_numpy()))
        (other,) = tensors("f4", n=9)
        found = call(other)
        seen = [weakref.ref(each) for each in (a, made, other, found)]
        return before, recipes(a), seen

    with mc.simulate(2) as world:
        for before, after, seen in world.run(program):
            assert before > 0
            assert after <= before + 2  # a += 1, and what a call within the call is
            gc.collect()
            assert [each() for each in seen] == [None] * 4


def test_numbers_are_arguments_of_operators_and_part_of_other_calls():
    (a,) = tensors("i4", n=6)
    for number in (1, 2, 3):
        np.testing.assert_array_equal((a + number).to_numpy(), a.to_numpy() + number)
        np.testing.assert_array_equal((number - a).to_numpy(), number - a.to_numpy())
        np.testing.assert_array_equal(np.clip(a, number, 4).to_numpy(), np.clip(a.to_numpy(), number, 4))
        np.testing.assert_array_equal(np.round(a * 0.377, number).to_numpy(), np.round(a.to_numpy() * 0.377, number))
    with pytest.raises(OverflowError):
        a + 2**40
    assert (a + True).dtype == np.int32
    assert (a + 1.0).dtype == np.float64
    assert (a + np.float32(1)).dtype == np.float64
    assert (a + np.int64(1)).dtype == np.int64
    assert [np.copysign(a, each).to_numpy()[0, 0] for each in (0.0, -0.0)] == [0.0, 0.0]
    assert np.signbit(np.full_like(a, -0.0, "f8").to_numpy()).all()
    assert not np.signbit(np.full_like(a, 0.0, "f8").to_numpy()).any()


def test_in_place_calls_see_what_may_not_be_written_to():
    a, b = tensors("f8", "f8", n=7)
    a += b
    wide = np.broadcast_to(b, b.shape)
    for _ in range(2):
        with pytest.raises(ValueError, match="read-only"):
            wide += a
        with pytest.raises(ValueError, match="read-only"):
            wide[1:] = 0
    for turn in range(2):  # also where elements had to move
        other = np.flip(a)
        other[1:] = turn
        assert a.to_numpy()[:-1].tolist() == np.full((len(a) - 1, *a.shape[1:]), turn).tolist()


def test_views_stay_views():
    (a,) = tensors("f8", n=8)
    for turn in range(3):
        part = a[2:5]
        part[...] = turn
        part += 1
        part[1:, 0] = b = 7.0
        assert (a.to_numpy()[3:5, 0] == b).all()
        assert a.T.T.base is a
        a.T[0] += 1
        assert (a.to_numpy()[3:5, 0] == 8).all()
        assert a[1:][1:].base is a
        flat = a.T[1]
        np.testing.assert_array_equal((flat + flat).to_numpy(), a.to_numpy().T[1] * 2)


def test_a_result_of_transposed_blocks_is_in_c_order():
    a, b = tensors("f8", "f8", n=9)
    for _ in range(2):
        made = a.T + b.T
        assert made.local.flags.c_contiguous
        assert np.sqrt(a.T).local.flags.c_contiguous


def test_overlapping_targets():
    (a,), plain = tensors("f8", n=10), np.arange(20.0).reshape(10, 2)
    for _ in range(2):
        a[1:] = a[:-1]
        plain[1:] = plain[:-1]
        a[:-1] += a[1:]
        plain[:-1] += plain[1:]
        np.add(a, a, out=a)
        np.add(plain, plain, out=plain)
        np.testing.assert_array_equal(a.to_numpy(), plain)


def test_warnings_name_the_line_of_the_program():
    a, b = tensors("f8", "f8", n=11)
    b[...] = 0
    calls = [
        lambda: a / b,
        lambda: np.log(b),
        lambda: (a * 1e308).sum(axis=1) * 10,
        lambda: (a * 1e308).astype("f4"),
        lambda: np.round(a * 1e308, 2),
        lambda: np.reciprocal(b, out=a.copy()),
    ]
    for call in calls:
        for _ in range(2):
            with warnings.catch_warnings(record=True) as issued:
                warnings.simplefilter("always")
                call()
            assert issued
            assert {each.filename for each in issued} == {__file__}
    for _ in range(2):
        with np.errstate(divide="raise"), pytest.raises(FloatingPointError):
            np.log(b)
        with np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("error")
            np.log(b)


def test_a_closed_mesh_is_found():
    a, b = tensors("f8", "f8", n=12)
    a + b, a[1:], a.sum()
    with mc.simulate(1) as world:

        def program():
            c, d = tensors("f8", "f8", n=12)
            for _ in range(2):
                c + d, c[1:], c.sum(), c.T
            c.mesh.close()
            for call in (lambda: c + d, lambda: c[1:], lambda: c.sum(), lambda: c.T, lambda: np.where(c, d, c)):
                with pytest.raises(mc.MeshError, match="closed"):
                    call()

        world.run(program)


def test_ranks_that_share_a_mesh_have_recipes_of_their_own():
    with mc.simulate(3) as world:
        layout = mc.Layout(["x"], mc.create_mesh([("x", 3)]))

        def program():
            t = mc.distribute(np.arange(8), layout)
            for _ in range(2):
                found = t[1:6] + t[2:7]
                assert found.to_numpy().tolist() == [3, 5, 7, 9, 11]
                u = t.copy()
                u[2:] = 5
                assert u.to_numpy().tolist() == [0, 1, 5, 5, 5, 5, 5, 5]
                assert np.zeros_like(t).local.shape == t.local.shape
                assert t.reshape(4, 2).T.to_numpy().tolist() == np.arange(8).reshape(4, 2).T.tolist()

        world.run(program)


def test_ranks_that_differ_are_found():
    def program(rank):
        t = mc.distribute(np.arange(8.0), mc.Layout(["x"], mc.create_mesh([("x", 2)])))
        for _ in range(3):
            t[:-2] + t[2:]
        t[:-2] + t[2:] if rank else t[:-4] + t[4:]

    with mc.simulate(2) as world, pytest.raises(mc.CollectiveMismatch):
        world.run(lambda: program(world.rank))


def test_structured_and_other_dtypes_go_the_long_way_and_stay_right():
    kind = np.dtype([("a", "i4"), ("b", "f8")])
    mesh = mc.create_mesh([("x", 1)])
    given = np.array([(1, 2.0), (3, 4.0)], kind)
    t = mc.distribute(given, mc.Layout(["x"], mesh))
    for _ in range(2):
        np.testing.assert_array_equal((t == t).to_numpy(), given == given)
        np.testing.assert_array_equal(t["a"].to_numpy(), given["a"])
        np.testing.assert_array_equal(t[1:].to_numpy(), given[1:])
    days = np.array(["2020-01-01", "NaT"], "M8[D]")
    d = mc.distribute(days, mc.Layout(["x"], mesh))
    for _ in range(2):
        np.testing.assert_array_equal((d - d).to_numpy(), days - days)
        np.testing.assert_array_equal((d + np.timedelta64(1, "D")).to_numpy(), days + np.timedelta64(1, "D"))
        np.testing.assert_array_equal((d + np.timedelta64(1, "h")).to_numpy(), days + np.timedelta64(1, "h"))


def test_what_is_offered_keeps_no_tensor():
    a, b = tensors("f8", "f8", n=13)
    for call in (lambda: np.angle(a), lambda: a + b, lambda: np.where(a, a, b), lambda: np.sum(a), lambda: a[1:]):
        for _ in range(2):
            made = weakref.ref(call())
            gc.collect()
            assert made() is None


def test_rows_that_are_swapped_are_views_as_numpys():
    (a,) = tensors("f8", n=14)
    for i in (0, 1):
        a[i] = a[i] * 2
    expected = a.to_numpy()
    a[0], a[1] = a[1], a[0]
    expected[0], expected[1] = expected[1], expected[0]
    assert (a.to_numpy() == expected).all()


def test_recipes_keep_no_operand():
    a, low = tensors("f8", "f8", n=15)
    low[...] = 1
    for _ in range(2):
        np.clip(a, low, 3)
    held = weakref.ref(low)
    del low
    gc.collect()
    assert held() is None


@pytest.mark.parametrize("odd", [np.int64(7), (np.int64(7), 2), (-3, 2)])
def test_an_element_goes_one_way_whatever_an_index_is_made_of(odd):
    """Ranks that take the fast path, and one that does not, make the same exchange."""
    whole = np.arange(40.0).reshape(10, 4)
    given, plain = (whole[:, 0], 7) if isinstance(odd, np.int64) else (whole, (7, 2))

    def program(rank):
        t = mc.distribute(given, mc.Layout(["x", mc.UNSHARDED][: given.ndim], mc.create_mesh([("x", 2)])))
        for _ in range(2):
            assert float(t[odd if rank else plain]) == given[plain]
            t[odd if rank else plain] = t[plain]
            np.testing.assert_array_equal(t.to_numpy(), given)

    with mc.simulate(2) as world:
        world.run(lambda: program(world.rank))


ALIKE = {
    "sums of columns": lambda a: a.sum(axis=0),
    "sums": lambda a: a.sum(),
    "maxima, as an axis": lambda a: a.max(axis=0, keepdims=True),
    "means": lambda a: a.mean(axis=0),
    "roll": lambda a: np.roll(a, 1, axis=0),
    "neighbours": lambda a: a[:-1] + a[1:],
}
"""Calls that move as much, whatever the number of rows."""


@pytest.mark.parametrize("call", ALIKE.values(), ids=ALIKE)
def test_new_calls_that_move_alike_do_not_agree_again(call):
    def program():
        wide = [tensors("f8", n=n)[0] for n in (12, 14, 16, 18)]
        expected = [call(each.to_numpy()) for each in wide]
        for each in wide[:2]:  # the first ones of their form
            call(each)
        with mc.count() as counted:
            found = [call(each) for each in wide[2:]]
        for one, other in zip(found, expected[2:], strict=True):
            np.testing.assert_allclose(one.to_numpy(), other)
        return counted.agreements, counted.messages

    with mc.simulate(2) as world:
        agreements, messages = np.transpose(world.run(program))
    assert not agreements.any()
    assert messages.any()


def test_a_new_call_of_a_known_form_that_differs_between_ranks_is_found():
    def program():
        first, *others = (tensors("f8", n=n)[0] for n in (12, 14, 16))
        first.sum(axis=0)
        with pytest.raises(mc.CollectiveMismatch):
            others[first.mesh.rank].sum(axis=0)
        return True

    with mc.simulate(2) as world:
        assert world.run(program) == [True, True]
