"""What programs rely on: names, calls, pickles, types, what an import loads, and the line that a warning names."""

import base64
import importlib
import json
import os
import pickle
import pkgutil
import re
import subprocess
import sys
import warnings
from importlib.util import find_spec

import numpy as np
import pytest

import meshcomm as mc
from meshcomm.core._callers import warn
from meshcomm.core.plans.search import forget_plans
from support import surface
from support.optional import can_import
from support.paths import ROOT, TESTS
from support.patience import run
from support.values import PLANS, values

RECORD = json.loads(surface.FILE.read_text())


def printed(program, *arguments):
    """Return what a program prints, which must end well."""
    done = run([sys.executable, "-c", program, *arguments], cpu=120.0)
    assert done.returncode == 0, done.stderr
    return done.stdout


# -- names and calls --------------------------------------------------------------------------------------------------


def test_names_and_calls_stay():
    today, before = surface.surface(), RECORD["calls"]
    assert set(RECORD["all"]) <= {*mc.__all__, "open"}
    steps = {name.removeprefix("step.") for name in before if name.startswith("step.")}
    assert {name for name in before.keys() - today.keys() if not name.startswith("step.")} == set()
    changed = {name: (today[name], old) for name, old in before.items() if name in today}
    assert {name: both for name, both in changed.items() if not surface.accepts(*both)} == {}, "(now, before)"
    every = [step for make in PLANS.values() for step in make().steps]
    assert [step for step in every for name in steps if not hasattr(step, name)] == []
    assert {type(step).__name__ for step in every} == {"Slice", "AllGather", "AllToAll", "AllToAllBetween"}


def test_dir_has_the_public_names_only():
    assert set(dir(mc)) == {*mc._module_of, "__version__", *mc._MODULES}
    for module in [mc.linalg.scalapack, *(importlib.import_module(f"meshcomm.{name}") for name in mc._MODULES)]:
        assert dir(module) == sorted(module.__all__)
        assert all(hasattr(module, each) for each in dir(module))
    assert not hasattr(mc.linalg, "lapack")


def test_a_public_name_is_what_its_import_says():
    """Checkers run the imports of ``_public``; Python asks ``meshcomm`` for a name at a time."""
    public = importlib.import_module("meshcomm._public")
    names = [name for name in vars(public) if not name.startswith("__")]
    assert sorted(names) == sorted([*mc.__all__, "open", *mc._MODULES])
    assert [name for name in names if getattr(public, name) is not getattr(mc, name)] == []
    classes = [getattr(mc, name) for name in mc.__all__ if isinstance(getattr(mc, name), type)]
    assert [each for each in classes if each.__module__ != "meshcomm"] == [], "write __module__ in its body"


# -- importing --------------------------------------------------------------------------------------------------------

WITHOUT_MPI = """
import sys
sys.modules["mpi4py"] = None  # as if it were not installed
import numpy as np
import meshcomm as mc

mesh = mc.Mesh(range(4), [("x", 2), ("y", 2)])
rows, columns = mc.Layout(["x", "y"], mesh), mc.Layout(["unsharded", "x"], mesh)
assert mc.Layout.from_string(rows.to_string()) == rows
assert "AllToAll" in str(mc.plan_relayout((4, 4), "f8", rows, columns))

def program():
    mesh = mc.create_mesh([("x", 2), ("y", 2)])
    t = mc.distribute(np.arange(16).reshape(4, 4), mc.Layout(["x", "y"], mesh))
    total = mc.all_reduce(t.local.sum(), None)
    return int(total), mc.relayout(t, mc.Layout(["unsharded", "x"], mesh)).to_numpy().sum()

with mc.simulate(4) as world:
    assert world.run(program) == [(120, 120)] * 4
mesh = mc.create_mesh([("x", 2)])
for use in (lambda: mesh.rank, lambda: mc.zeros((2,), "f8", mc.Layout(["x"], mesh)), lambda: mc.all_reduce([1], None),
            lambda: mc.create_mesh()):
    try:
        use()
    except mc.MeshError as error:
        assert "pip install mpich" in str(error) and "module load" in str(error), error
    else:
        raise AssertionError("works without MPI?")
"""
NAMES = """
import meshcomm, pickle
assert set(meshcomm.__all__) <= set(dir(meshcomm)) and 'fft' in dir(meshcomm)
assert not hasattr(meshcomm, 'relayuot')
assert pickle.loads(b'cmeshcomm\\nMachine\\n.').__name__ == 'Machine'
from meshcomm import fft, relayout
from meshcomm import *
assert (fft.fftn.__name__, relayout is meshcomm.relayout, DTensor.__name__) == ("fftn", True, "DTensor")
"""
UPWARDS = """
import numpy as np
from meshcomm.core.layouts.mesh import Mesh
from meshcomm.core.ranks.simulate import simulate
with simulate(1) as world:
    assert world.run(lambda: Mesh(range(1), [('x', 1)]).rank) == [0]
    from meshcomm.core.arrays.create import distribute
    from meshcomm.core.layouts.layout import Layout
    assert world.run(lambda: int(np.sum(distribute(np.arange(4), Layout(['x'], Mesh(range(1), [('x', 1)])))))) == [6]
"""
FIRST_CALL = """
import meshcomm as mc
def program():
    t = mc.distribute([0, 1, 2, 3], mc.Layout(["x"], mc.create_mesh([("x", 2)])))
    return mc.fft.fftshift(t).local.tolist()  # which calls what NumPy's protocol has, without the protocol
with mc.simulate(2) as world:
    assert world.run(program) == [[2, 3], [0, 1]]
"""


@pytest.mark.parametrize(
    "program",
    [WITHOUT_MPI, NAMES, UPWARDS, FIRST_CALL],
    ids=["without MPI", "names", "methods of above", "first call"],
)
def test_a_new_process_finds_what_it_needs(program):
    printed(program)


MAX_MODULES = 15
"""Modules that ``import meshcomm`` may load besides those of NumPy: seconds differ, but this number does not."""
LIBRARIES = "mpi4py scipy asyncio email torch"
MADE = "meshcomm.ones(4, float, meshcomm.Layout(['x'], meshcomm.create_mesh([('x', 1)])))"
LOADS = [
    ("", "core.ranks.meshes core.arrays core.transport core.plans numpy storage"),
    (
        "meshcomm.Layout(['x'], meshcomm.Mesh(range(4), [('x', 4)]))",
        "core.ranks.meshes core.arrays core.transport core.plans numpy",
    ),
    ("meshcomm.relayout", "storage fft halos layout_maps linalg tensorflow"),
    ("meshcomm.fft", "storage halos layout_maps linalg tensorflow"),
    ("meshcomm.save", "fft halos layout_maps linalg"),
]


@pytest.mark.parametrize(("statement", "without"), LOADS)
def test_names_load_what_they_need_only(statement, without):
    """No MPI, no thread and no hook either."""
    said = printed(
        "import numpy, sys, threading\nbefore = set(sys.modules)\nimport meshcomm\n"
        f"few = set(sys.modules) - before\n{statement}\nassert threading.active_count() == 1\n"
        "assert sys.excepthook is sys.__excepthook__\nprint(*few)\nprint(*(set(sys.modules) - before))"
    )
    few, loaded = ({name for name in line.split() if "cython" not in name} for line in said.splitlines())
    assert len(few) <= MAX_MODULES, few
    assert [name for name in few if not name.startswith("meshcomm")] == []
    unwanted = [*LIBRARIES.split(), *(f"meshcomm.{name}" for name in without.split())]
    assert [name for name in loaded if any(f"{name}.".startswith(f"{each}.") for each in unwanted)] == []


def test_numpy_is_left_as_it_was():
    printed(f"import numpy, meshcomm\nassert numpy.fft.fftn({MADE}).to_numpy().tolist() == [4, 0, 0, 0]")
    # By np.ma, which imports them, two threads at once could end in a RecursionError of NumPy's.
    look = "from meshcomm.core._arguments import as_array\nas_array([1, 2])\nassert 'numpy.ma' not in sys.modules"
    printed(f"import sys\n{look}")


def modules():
    """Return the names of all modules of the package, compiled ones and those in folders too."""
    return sorted(each.name for each in pkgutil.walk_packages(mc.__path__, "meshcomm."))


def test_every_module_can_be_imported():
    assert len(modules()) > 250
    found = [name for name in modules() if not name.endswith("__main__") and can_import(name)]
    assert [importlib.import_module(name).__name__ for name in found] == found
    assert all(callable(getattr(mc, name)) for name in ("simulate", "relayout")), "modules have these names, too"


@pytest.mark.slow
def test_each_module_can_be_imported_first():
    """No module works only because another one was imported before: each is imported first in a process of its own."""
    names = [name for name in modules() if name.count(".") == 2 and not re.search(r"__main__$|adapters", name)]
    # NumPy first, once: to import it anew takes most of the time.
    program = """
import numpy, numpy.typing, os, sys
for name in sys.argv[1:]:
    if not os.fork():
        __import__(name)
        os._exit(0)
    if os.wait()[1]:
        sys.exit(name)
"""
    printed(program, *names)


# -- pickles ----------------------------------------------------------------------------------------------------------

PROTOCOLS = range(2, pickle.HIGHEST_PROTOCOL + 1)


def facts(value):
    """Return what must be the same of two values that are the same, as something that `==` compares."""
    if isinstance(value, Exception):
        return type(value), value.args, str(value)
    if isinstance(value, mc.PerReplica):
        return value.values
    if isinstance(value, mc.LayoutMap):
        names = ["dense_1.kernel", "my.dense_1.kernel", "the head", "norm"]
        return value, value.mode, value.get_default_mesh(), value.report(names)
    try:
        hashed = hash(value)
    except TypeError:
        hashed = None
    return type(value), value, str(value), getattr(value, "load", None), hashed


def used():
    """Return values, which may remember what they were asked for."""
    made = values()
    return made if [facts(value) for value in made.values()] else None


def test_pickles_of_another_process():
    """Texts hash differently there: a hash that a pickle brings along finds nothing in a dict."""
    done = run([sys.executable, __file__], env={**os.environ, "PYTHONPATH": f"{ROOT}:{TESTS}"})
    assert done.returncode == 0, done.stderr
    expected = {name: facts(value) for name, value in values().items()}
    assert len(set(map(repr, expected.values()))) == len(expected)  # no two values look the same
    for protocol, data in zip(PROTOCOLS, pickle.loads(base64.b64decode(done.stdout)), strict=True):
        found = {name: facts(value) for name, value in pickle.loads(data).items()}
        assert [name for name in expected if found[name] != expected[name]] == [], protocol


def test_pickles_have_no_more_than_fields():
    forget_plans()  # a plan of the cache has equal layouts of another call, which a pickle has besides its own
    sizes = {name: len(pickle.dumps(value)) for name, value in values().items()}
    forget_plans()
    assert {name: len(pickle.dumps(value)) for name, value in used().items()} == sizes


# -- warnings ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("function", [np.var, mc.DTensor.var], ids=["a function of NumPy", "a method"])
def test_a_warning_of_a_call_within_calls_points_to_the_program(function):
    def program():
        t = mc.ones((4,), "f8", mc.Layout(["x"], mc.create_mesh([("x", 2)])))
        return function(t, ddof=4)

    with mc.simulate(2) as world, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        world.run(program)
    found = {(warning.filename, warning.lineno, str(warning.message)) for warning in caught}
    assert found == {(__file__, program.__code__.co_firstlineno + 2, "Degrees of freedom <= 0 for slice")}


def test_it_points_to_the_import_of_the_program(tmp_path):
    """An import of autograd may warn: in between are frames of Python and of ours."""
    (tmp_path / "autograd.py").write_text("# a version that has nothing of what the adapter needs")
    program = tmp_path / "program.py"
    program.write_text("import meshcomm\nimport autograd")
    done = run([sys.executable, program], check=True)
    assert f"{program}:2: UserWarning: gradients do not go through meshcomm" in done.stderr


def test_filters_of_warnings_work_as_always():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("ignore")
        warnings.filterwarnings("once", module=__name__)
        for _ in range(3):
            warn("of this module", RuntimeWarning)
    assert [str(each.message) for each in caught] == ["of this module"]


# -- types ------------------------------------------------------------------------------------------------------------

WRONG = """
from typing import assert_type

import meshcomm as mc


def wrong(t: mc.DTensor, layout: mc.Layout) -> None:
    assert_type(mc.relayout([t], layout), mc.DTensor)
    mc.relayout(t, layout)  # type: ignore
    layout.no_such_name
"""


def mypy(paths, folder):
    """Return the lines of each of *paths* in which mypy finds an error."""
    settings = folder / "mypy.ini"
    settings.write_text(f"[mypy]\nstrict = True\nmypy_path = {ROOT}\ncache_dir = {folder / 'mypy'}\n")
    command = [sys.executable, "-m", "mypy", "--config-file", settings, "--no-pretty", *paths]
    found = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert found.returncode in (0, 1), found.stdout + found.stderr
    return [sorted({*map(int, re.findall(rf"{path.name}:(\d+): error: ", found.stdout))}) for path in paths]


def basedpyright(paths, folder):
    """Return the same by pyright: basedpyright is pyright with a node that pip installs."""
    settings = {"include": [str(path) for path in paths], "extraPaths": [str(ROOT)], "typeCheckingMode": "standard"}
    settings["reportUnnecessaryTypeIgnoreComment"] = "error"
    (folder / "pyrightconfig.json").write_text(json.dumps(settings))
    command = [sys.executable, "-m", "basedpyright", "--outputjson", "-p", folder, "--pythonpath", sys.executable]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    found = json.loads(done.stdout)
    assert found["summary"]["filesAnalyzed"] == len(paths)
    errors = [(each["file"], each["range"]["start"]["line"] + 1) for each in found["generalDiagnostics"]]
    return [sorted({line for file, line in errors if file.endswith(path.name)}) for path in paths]


@pytest.mark.slow
@pytest.mark.parametrize("checker", [mypy, basedpyright])
def test_public_types_are_precise_and_wrong_ones_are_seen(checker, tmp_path):
    """Users' editors infer types. `make check` installs the checkers: without one, its test is skipped."""
    if find_spec(checker.__name__) is None:
        pytest.skip(f"{checker.__name__} is not installed")
    wrong = tmp_path / "wrong_types.py"
    wrong.write_text(WRONG)
    assert checker([TESTS / "typing" / "public_api.py", wrong], tmp_path) == [[], [8, 9, 10]]


if __name__ == "__main__":
    print(base64.b64encode(pickle.dumps([pickle.dumps(used(), protocol) for protocol in PROTOCOLS])).decode())
