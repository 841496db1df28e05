"""The digest of calls that goes with data: no two calls change it alike, and ranks agree on it."""

import pytest

import meshcomm as mc
from meshcomm.core.ranks.meshes import location_in
from support.paths import PROGRAMS, script

mismatches = script(PROGRAMS / "mismatches.py")


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_no_two_calls_are_alike(ranks):
    def program():
        calls, name_of = mismatches.Calls(), {0: "no call"}
        rank_set = location_in(calls.mesh).rank_set
        for name in 2 * mismatches.names(ranks):  # the first time they are new
            assert calls.is_right(name), name
        for name in mismatches.names(ranks):
            rank_set.call_digest = 0
            assert calls.is_right(name), name
            assert name_of.setdefault(rank_set.call_digest, name) == name
        return name_of

    with mc.simulate(ranks) as world:
        found = world.run(program)
    assert found == [found[0]] * ranks
