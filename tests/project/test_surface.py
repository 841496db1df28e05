"""No public name is lost, and every call that worked still does."""

import inspect
import json

import meshcomm as mc
from support.surface import DATA, NOT_MADE_BY_CALLERS, STEPS, accepts, surface
from support.values import PLANS

RECORD = json.loads((DATA / "surface.json").read_text())
TODAY = surface()


def test_public_names_stay():
    assert set(RECORD["all"]) <= {*mc.__all__, "open"}


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
    assert {*mc.__all__, "open"} == public, "import * leaves open to Python"


def test_a_lost_call_is_seen():
    fit = ["(a, b=1)", "(a, b=1, c=None)", "(a, b=1, *, c=None)"]
    assert all(accepts(new, "(a, b=1)") for new in fit)
    assert accepts("(a, *, b=1, c=(1, 2))", "(a, *, b=1)")
    assert accepts("(a, *args, **kwargs)", "(a, *args)")
    lost = ["(a)", "(b=1, a)", "(a, b=2)", "(a, *, b=1)", "(c=0, a=1)", "(a, b=1, c)", "(a, b=1, *, c)", "attribute"]
    assert not any(accepts(new, "(a, b=1)") for new in lost)
    assert not accepts("(a)", "(a, **kwargs)")
    assert not accepts("(a)", "attribute")
