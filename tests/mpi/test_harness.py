"""The harness itself: ranks agree on verdicts, and none of its helpers lets them go different ways."""

import textwrap

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.verdicts import agree_raises, agreed


@pytest.fixture
def last(comm):
    """Whether this is the last rank."""
    return comm.rank == comm.size - 1


def test_every_rank_is_here(comm):
    assert comm.allgather(comm.rank) == list(range(comm.size))


def test_agree_raises_where_all_raise(comm):
    with agree_raises(ValueError, "of rank") as raised:
        raise ValueError(f"the error of rank {comm.rank}")
    assert str(raised.value) == f"the error of rank {comm.rank}"


def test_agree_raises_fails_on_all_ranks_if_one_does_not_raise(comm, last):
    def raise_elsewhere():
        if not last:
            raise ValueError("an error")

    silent = f"rank {comm.size - 1} raised nothing"
    with pytest.raises(AssertionError, match=silent), agree_raises(ValueError):
        raise_elsewhere()


def test_agree_raises_fails_on_all_ranks_if_classes_differ(comm, last):
    if comm.size == 1:
        expected, kind = ValueError, KeyError
    else:
        expected, kind = (ValueError, KeyError), KeyError if last else ValueError
    with pytest.raises(AssertionError, match="raised KeyError"), agree_raises(expected):
        raise kind("an error")


def test_agree_raises_fails_on_all_ranks_if_a_text_differs(last):
    with pytest.raises(AssertionError, match=r"must raise .* with 'apples'"), agree_raises(ValueError, "apples"):
        raise ValueError("pears" if last else "apples")


def test_agreed_fails_on_all_ranks_if_one_fails(comm, last):
    @agreed
    def example():
        assert not last, "the last rank fails"

    with pytest.raises(AssertionError, match=rf"failed on ranks \[{comm.size - 1}\] of {comm.size}") as caught:
        example()
    assert "the last rank fails" in str(caught.value)
    assert caught.value.__context__ is None, "hypothesis would take the failure for another one on other ranks"


@settings(max_examples=50)
@given(st.lists(st.integers()), st.floats())
def test_all_ranks_draw_the_same_examples(comm, numbers, number):
    drawn = comm.allgather(repr((numbers, number)))
    assert len(set(drawn)) == 1


def test_one_failing_rank_shrinks_with_the_others(comm, last):
    examples = []

    @settings(max_examples=200, report_multiple_bugs=False)
    @given(st.integers(0, 1000))
    @agreed
    def sums(number):
        examples.append(number)
        comm.Barrier()
        assert number < 10 or not last

    with pytest.raises(AssertionError, match="failed on ranks"):
        sums()
    assert examples[-1] == 10, "the smallest example that fails"
    assert len(set(comm.allgather(tuple(examples)))) == 1


def test_ranks_at_different_places_are_reported(comm, last):
    def apart():
        if last:
            agreed(lambda: None)()
        else:
            with agree_raises(ValueError):
                raise ValueError

    if comm.size == 1:
        apart()
        return
    with pytest.raises(AssertionError, match="ranks are at different points"):
        apart()


def test_what_is_shown_of_a_failure():
    from support.verdicts import by_rank

    shown = by_rank([None, "Traceback of one", None, "Traceback of three"])
    assert shown == textwrap.dedent("""\
        failed on ranks [1, 3] of 4
        [rank 1]
        Traceback of one
        [rank 3]
        Traceback of three""")
