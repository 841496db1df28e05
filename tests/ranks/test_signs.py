"""Signs between processes of a host, here between objects of one process."""

import sys

import pytest

from meshcomm.ranks import signs

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="signs are sockets of Linux")


@pytest.fixture(autouse=True)
def job(monkeypatch, tmp_path):
    """A job of its own."""
    monkeypatch.setattr(signs, "job_name", lambda: str(tmp_path))


@pytest.fixture
def error():
    """A function that makes an error; all are closed afterwards."""
    made = []

    def make(text, rank):
        made.append(signs.Error(text, rank))
        return made[-1]

    yield make
    for each in made:
        for name in ("_sign", "_first", "_printed"):
            if getattr(each, name, None) is not None:
                getattr(each, name).close()


def test_one_rank_prints_an_error_of_several(error):
    first, second, other = error("alike", 2), error("alike", 0), error("another", 1)
    assert (first.ours, second.ours, other.ours) == (True, False, True)
    assert not second.is_printed(0.01), "not yet: the other ones wait for a while"
    first.note_printed()
    assert second.is_printed(1.0)
    assert (first.ranks(), other.ranks()) == ([0, 2], [1])


def test_an_error_is_not_lost_if_the_rank_that_was_to_print_it_is_gone(error):
    first, second = error("alike", 0), error("alike", 1)
    first._sign.close()
    assert not second.is_printed(60.0), "known at once"


def test_without_signs_each_rank_prints(error, monkeypatch):
    monkeypatch.setattr(signs, "_shown", lambda name: None)
    monkeypatch.setattr(signs, "_connected", lambda name: None)
    first, second = error("alike", 0), error("alike", 1)
    assert first.ours
    assert second.ours
    assert second.ranks() == [1]


def test_another_user_shows_nothing_to_us(error, monkeypatch):
    first = error("alike", 0)
    monkeypatch.setattr(signs, "_is_ours", lambda other: False)
    assert first.ours
    assert error("alike", 1).ours


def test_ranks_that_have_ended():
    assert signs.ended(range(3)) == []
    kept = signs._shown("ended 1")
    assert signs.ended(range(3)) == [1]
    kept.close()
    assert signs.ended(range(3)) == []
