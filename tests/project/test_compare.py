"""When benchmarks/compare.py calls a row slower: beyond its own noise, and beyond that of rows like it."""

import sys

import pytest

from support.paths import ROOT

BENCHMARKS = ROOT / "benchmarks"
LARGE, SMALL = (4096, 4096), (64, 64)


@pytest.fixture
def compare(monkeypatch):
    before = set(sys.modules)
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import compare

    yield compare
    for name in set(sys.modules) - before:
        if str(BENCHMARKS) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


def row(compare, old, again, new, shape=LARGE):
    seconds = {"old": old, "again": again, "new": new}
    case = compare.Case("a case", shape, "x,-", "-,x")
    return compare.Row(compare.Setting(2, True), case, "meshcomm", seconds, {})


def beyond(compare, *rows):
    return [each.ratio > limit for each, limit in zip(rows, compare.limits(list(rows)), strict=True)]


def test_a_tenth_more_time_is_slower_where_equal_jobs_agree(compare):
    slow = row(compare, [1.0] * 5, [1.01] * 5, [1.1] * 5)
    fine = row(compare, [1.0] * 5, [1.01] * 5, [1.02] * 5)
    assert beyond(compare, slow, fine) == [True, False]
    assert slow.ratio == pytest.approx(1.1 / 1.01**0.5)


def test_drift_of_the_machine_counts_for_all_sides(compare):
    drift = [1.0, 2.0, 4.0, 8.0, 16.0]
    assert beyond(compare, row(compare, drift, drift, [1.1 * t for t in drift])) == [True]
    assert beyond(compare, row(compare, drift, drift, drift)) == [False]


def test_two_equal_jobs_that_differ_are_noise(compare):
    assert beyond(compare, row(compare, [1.0] * 5, [1.2] * 5, [1.25] * 5)) == [False]
    assert beyond(compare, row(compare, [1.0] * 5, [1.2] * 5, [1.5] * 5)) == [True]


def test_rounds_that_differ_are_noise(compare):
    noisy = row(compare, [1.0] * 5, [1.0] * 5, [0.6, 0.8, 1.1, 1.6, 1.8])
    assert noisy.ratio == pytest.approx(1.1)
    assert beyond(compare, noisy) == [False]


def test_noise_of_rows_of_the_same_kind_counts(compare):
    suspect = row(compare, [1.0] * 5, [1.0] * 5, [1.1] * 5)
    noisy = [row(compare, [1.0] * 5, [1.3] * 5, [1.0] * 5) for _ in range(5)]
    others = [row(compare, [1.0] * 5, [1.3] * 5, [1.0] * 5, SMALL) for _ in range(5)]
    assert beyond(compare, suspect, *noisy)[0] is False
    assert beyond(compare, suspect, *others)[0] is True
