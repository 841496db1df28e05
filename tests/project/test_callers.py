"""Warnings point to the line of the program that called meshcomm."""

import sys
import warnings

import numpy as np
import pytest

import meshcomm as mc
from meshcomm.core._callers import warn
from support.patience import run


def only_one(caught):
    (one,) = {(warning.filename, warning.lineno, str(warning.message)) for warning in caught}
    return one


CALLS = {
    "a function of NumPy": (np.var, "Degrees of freedom <= 0 for slice"),
    "a method": (mc.DTensor.var, "Degrees of freedom <= 0 for slice"),
}


@pytest.mark.parametrize(("function", "text"), CALLS.values(), ids=CALLS)
def test_a_warning_of_a_call_within_calls_points_to_the_program(function, text):
    def program():
        mesh = mc.create_mesh([("x", 2)])
        t = mc.ones((4,), "f8", mc.Layout(["x"], mesh))
        return function(t, ddof=4)

    with mc.simulate(2) as world, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        world.run(program)
    assert only_one(caught) == (__file__, program.__code__.co_firstlineno + 3, text)


def test_it_points_to_the_import_of_the_program(tmp_path):
    """An import of autograd may warn: in between are frames of Python and of ours."""
    (tmp_path / "autograd.py").write_text("# a version that has nothing of what the adapter needs")
    program = tmp_path / "program.py"
    program.write_text("import meshcomm\nimport autograd")
    done = run([sys.executable, program], check=True)
    assert f"{program}:2: UserWarning: gradients do not go through meshcomm" in done.stderr


def test_a_filter_by_module_and_the_register_of_warnings_work_as_always():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("ignore")
        warnings.filterwarnings("once", module=__name__)
        for _ in range(3):
            warn("of this module", RuntimeWarning)
    assert only_one(caught)[2] == "of this module"
    assert len(caught) == 1
