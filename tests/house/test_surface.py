"""No public name is lost, and every call that worked still does."""

import inspect
import json

import pytest

import meshcomm as mc
from support.recorded import PLANS
from support.surface import DATA, NOT_MADE_BY_CALLERS, STEPS, accepts, surface

RECORD = json.loads((DATA / "surface.json").read_text())
TODAY = surface()


def test_public_names_stay():
    assert set(RECORD["all"]) <= {*mc.__all__, "open"}


@pytest.mark.parametrize("name", RECORD["calls"])
def test_names_of_calls_stay(name):
    assert name in TODAY, f"{name} is gone"


@pytest.mark.parametrize("name", [name for name in RECORD["calls"] if name not in NOT_MADE_BY_CALLERS])
def test_calls_stay(name):
    assert accepts(TODAY[name], RECORD["calls"][name]), f"{name}{TODAY[name]}, but was {RECORD['calls'][name]}"


@pytest.mark.parametrize("name", PLANS)
def test_attributes_of_steps_stay(name):
    for step in PLANS[name]().steps:
        assert all(hasattr(step, attribute) for attribute in STEPS)
        assert type(step).__name__ in ("Slice", "AllGather", "AllToAll", "AllToAllBetween")


def test_all_is_what_is_public():
    assert len(set(mc.__all__)) == len(mc.__all__)
    public = {name for name, value in vars(mc).items() if not name.startswith("_") and not inspect.ismodule(value)}
    assert {*mc.__all__, "open"} == public, "import * leaves open to Python"


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
