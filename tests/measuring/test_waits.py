"""For whom a rank waited, from the times at which all ranks began an operation."""

import pytest

from meshcomm.core.failures.recorder import Arrival
from meshcomm.tools.measuring.waits import Arrivals, LastArrival, waiting_spans

STREAM = "0-3 #1"


def arrivals(*times, numbers=(1,), stream=STREAM):
    """Ranks 10, 11 ... that began the operations of these numbers at about these times, in nanoseconds."""
    made = Arrivals()
    for position, time in enumerate(times):
        made.add(10 + position, [(Arrival(stream, number, position), time + number) for number in numbers])
    return made


def span(began, ended, needs=None, rank=10, kind="mpi"):
    args = {"arrives": [[STREAM, 1, 0]]} | ({"needs": needs} if needs else {})
    times = {"ts": began / 1000, "dur": (ended - began) / 1000}
    return {"name": "MPI", "cat": kind, "ph": "X", "pid": rank, "tid": 0, "args": args, **times}


def within(found, *args, uncertainty=0, **more):
    """The spans in a span: their names, begins and ends in nanoseconds."""
    first, *others = waiting_spans(span(*args, **more), found, uncertainty)
    assert first["args"] == {}
    return [(e["name"], round(e["ts"] * 1000), round((e["ts"] + e["dur"]) * 1000)) for e in others]


def test_the_last_rank_counts_and_what_is_left_moves():
    found = arrivals(99, 299, 199)
    assert within(found, 100, 400, [[STREAM, 1, "0-2"]]) == [("waiting for rank 11", 100, 300), ("moving", 300, 400)]
    assert within(found, 200, 400, [[STREAM, 1, "0-2"]], rank=12)[0] == ("waiting for rank 11", 200, 300)


def test_the_last_rank_itself_does_not_wait():
    assert within(arrivals(99, 299), 300, 400, [[STREAM, 1, "0-1"]], rank=11) == [("moving", 300, 400)]


def test_ranks_that_are_not_needed_do_not_count():
    assert within(arrivals(99, 299, 899), 100, 400, [[STREAM, 1, "1"]])[0] == ("waiting for rank 11", 100, 300)
    assert within(arrivals(99, 299, 899), 100, 400, [[STREAM, 1, ""]]) == []
    assert within(arrivals(99), 100, 400) == []


def test_several_streams_are_needed():
    found = arrivals(150, stream="1 to 0")
    found.add(17, [(Arrival("7 to 0", 4, 0), 250)])
    needs = [["1 to 0", 1, "0"], ["7 to 0", 4, "0"]]
    assert within(found, 100, 400, needs)[0] == ("waiting for rank 17", 100, 250)


@pytest.mark.parametrize(
    "needs", [[["another", 1, "0-1"]], [[STREAM, 9, "0-1"]], [[STREAM, 3, "0-1"]], [[STREAM, 1, "0-2"]]]
)
def test_nothing_is_said_of_what_is_not_known(needs):
    """A rank that is not in the trace, or whose older spans were dropped, may have been the last one."""
    assert within(arrivals(99, 299, numbers=(1, 2, 4, 5)), 100, 400, needs) == []


def test_clocks_that_are_not_sure():
    found = arrivals(99, 299)
    assert within(found, 100, 400, [[STREAM, 1, "0-1"]], uncertainty=200) == [("moving", 100, 400)]
    assert within(found, 100, 290, [[STREAM, 1, "0-1"]], uncertainty=20) == [("waiting for rank 11", 100, 290)]
    assert within(found, 100, 250, [[STREAM, 1, "0-1"]], uncertainty=20) == [], "over before it can have been"


def test_in_shared_memory_nothing_moves_while_a_rank_waits():
    assert within(arrivals(99, 299), 100, 400, [[STREAM, 1, "0-1"]], kind="wait") == [
        ("waiting for rank 11", 100, 300)
    ]


def test_hostile_numbers():
    found = Arrivals()
    with pytest.raises(ValueError, match="have numbers from"):
        found.add(0, [(Arrival(STREAM, 1, 0), 5), (Arrival(STREAM, 10**12, 0), 5)])
    for text in ("all", "0-", "1,2", "0-999999999999"):
        with pytest.raises(ValueError, match="names no ranks"):
            found.last([[STREAM, 1, text]])
    assert found.last([[STREAM, 1, "0-16777216"]]) is None


def test_the_later_of_two_at_one_time_is_the_one_of_the_higher_rank():
    """So that all ranks name the same one."""
    assert arrivals(5, 5).last([[STREAM, 1, "0-1"]]) == LastArrival(6, 11)
