"""Wrong calls on simulated ranks: all ranks raise the same, and are in step after it; and calls that differ."""

import numpy as np
import pytest

import meshcomm as mc
from support.wrong_calls import CALLS, DIFFERENT, names_on, wrong


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("title", CALLS)
def test_all_ranks_raise_and_nothing_is_written(title):
    with mc.simulate(3) as world:
        world.run(lambda: wrong(title, mc.create_mesh([("x", 3)]), mc.create_mesh([("y", 3)])))


@pytest.mark.parametrize("line", DIFFERENT)
def test_ranks_notice_calls_that_differ(line):
    call, _, text = line.partition("-> ")

    def program():
        mesh = mc.create_mesh([("x", 3)])
        t = names_on(mesh, mesh)["rows"](np.arange(24.0).reshape(6, 4))
        eval(call.strip(), {"np": np, "mc": mc, "t": t, "rank": int(mesh.rank == 1)})

    with mc.simulate(3) as world, pytest.raises(mc.CollectiveMismatch) as found:
        world.run(program)
    assert text in str(found.value)
