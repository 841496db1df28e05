"""Random programs on simulated ranks, compared with NumPy after every step. On real ranks: tests/jobs/test_soak.py."""

import numpy as np
import pytest

import meshcomm as mc
from meshcomm.core.arrays import compile
from support.random_programs import Failed, needed, run_program
from support.sampling import sampled


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 6])
def test_random_programs_do_what_numpy_does(ranks):
    for seed in sampled(range(40), 3):
        with mc.simulate(ranks) as world:
            world.run(lambda: run_program(1000 * ranks + seed, world.rank, ranks))  # noqa: B023


def test_a_wrong_byte_is_found_and_the_program_shown(monkeypatch):
    """Every relayout spoils the first byte of a block."""

    def spoiling(plan, here, order=None, prepare=compile.prepare):
        move = prepare(plan, here, order)

        def spoiled(block, out):
            moved = move(block, out)
            if moved is not None and moved.size:
                moved.view(np.uint8).flat[0] ^= 1
            return moved

        return spoiled

    monkeypatch.setattr("meshcomm.core.arrays.moving.prepare", spoiling)
    with (
        pytest.raises(Failed, match=r"(?s)make soak SEED=3 repeats it.*on this rank is.*the program:\n.*mc\.relayout"),
        mc.simulate(2) as world,
    ):
        world.run(lambda: run_program(3, world.rank, 2))


def test_what_a_line_needs():
    lines = [
        "m1 = mc.create_mesh([('x', 2)])",
        "t2 = mc.distribute(A(1, (3,), 'f8'), L(m1, 'x'))",
        "t3 = mc.distribute(A(2, (3,), 'f8'), L(m1, ''))",
        "t4 = t2 * 2",
        "t2 += t2",
        "t5 = mc.relayout(t2, L(m1, ''))",
    ]
    assert needed(lines) == [lines[0], lines[1], lines[4], lines[5]]
