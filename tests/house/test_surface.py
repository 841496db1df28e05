"""No public name is lost, and every call that worked still does."""

import inspect
import json

import pytest

import meshcomm as mc
from support.surface import DATA, NOT_MADE_BY_CALLERS, STEPS, accepts, surface
from support.values import PLANS

RECORD = json.loads((DATA / "surface.json").read_text())
TODAY = surface()


def test_public_names_stay():
    assert set(RECORD["all"]) <= set(mc.__all__)


def test_calls_stay():
    assert RECORD["calls"].keys() - TODAY.keys() == set()
    changed = {
        name: (TODAY[name], before)
        for name, before in RECORD["calls"].items()
        if name not in NOT_MADE_BY_CALLERS and not accepts(TODAY[name], before)
    }
    assert changed == {}, "(now, before)"


def test_attributes_of_steps_stay():
    steps = [step for make in PLANS.values() for step in make().steps]
    assert [step for step in steps for attribute in STEPS if not hasattr(step, attribute)] == []
    assert {type(step).__name__ for step in steps} == {"Slice", "AllGather", "AllToAll", "AllToAllBetween"}


def test_all_is_what_is_public():
    assert len(set(mc.__all__)) == len(mc.__all__)
    public = {name for name, value in vars(mc).items() if not name.startswith("_") and not inspect.ismodule(value)}
    assert set(mc.__all__) == public


@pytest.mark.parametrize(
    ("new", "old", "fits"),
    [
        ("(a, b=1)", "(a, b=1)", True),
        ("(a, b=1, c=None)", "(a, b=1)", True),
        ("(a, b=1, *, c=None)", "(a, b=1)", True),
        ("(a, *, b=1, c=(1, 2))", "(a, *, b=1)", True),
        ("(a, *args, **kwargs)", "(a, *args)", True),
        ("(a, b)", "(a)", False),
        ("(a, *, b)", "(a)", False),
        ("(a)", "(a, b=1)", False),
        ("(b=1, a)", "(a, b=1)", False),
        ("(a, b=2)", "(a, b=1)", False),
        ("(a, *, b=1)", "(a, b=1)", False),
        ("(c=0, a=1)", "(a=1)", False),
        ("(a)", "(a, **kwargs)", False),
        ("attribute", "(a)", False),
        ("(a)", "attribute", False),
    ],
)
def test_a_lost_call_is_seen(new, old, fits):
    assert accepts(new, old) is fits
