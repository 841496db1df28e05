"""Importing meshcomm needs no MPI and starts nothing, and every module of the package can be imported."""

import importlib
import inspect
import pkgutil
import sys

import pytest

import meshcomm as mc
from support.optional import can_import
from support.patience import run

WITHOUT_MPI = """
import sys

class NoMPI:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "mpi4py":
            raise ImportError("No module named 'mpi4py' (blocked)")

sys.meta_path.insert(0, NoMPI())
import numpy as np
import meshcomm as mc

mesh = mc.Mesh(range(4), [("x", 2), ("y", 2)])
rows, columns = mc.Layout(["x", "y"], mesh), mc.Layout(["unsharded", "x"], mesh)
assert rows.block_slices((4, 4), 3) == (slice(2, 4), slice(2, 4))
assert mc.Layout.from_string(rows.to_string()) == rows
print(mc.plan_relayout((4, 4), "f8", rows, columns))

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
assert not any(name.partition(".")[0] == "mpi4py" for name in sys.modules)
print("works without MPI")
"""


def run_python(text):
    return run([sys.executable, "-c", text])


def test_layouts_plans_and_simulate_work_without_mpi4py():
    done = run_python(WITHOUT_MPI)
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("works without MPI\n")


def test_importing_starts_no_mpi_and_no_thread():
    done = run_python(
        "import sys, threading, meshcomm\n"
        "print([n for n in sys.modules if n.startswith('mpi4py')], threading.active_count())\n"
        "print(sys.excepthook is sys.__excepthook__)"
    )
    assert done.stdout == "[] 1\nTrue\n", done.stderr


MOST_MODULES = 15
"""Modules that ``import meshcomm`` may load besides those of NumPy: seconds differ, but this number does not."""


def loaded_by(statement):
    """Return the modules that *statement* loads in a new process that has imported NumPy."""
    done = run_python(
        f"import numpy, sys\nbefore = set(sys.modules)\n{statement}\nprint(*sorted(set(sys.modules) - before))"
    )
    assert done.returncode == 0, done.stderr
    return {name for name in done.stdout.split() if "cython" not in name}  # which the compiled module registers


def test_importing_loads_few_modules():
    loaded = loaded_by("import meshcomm")
    assert "meshcomm._kernels" in loaded
    assert len(loaded) <= MOST_MODULES, loaded
    assert [name for name in loaded if not name.startswith("meshcomm")] == []


@pytest.mark.parametrize(
    ("statement", "without"),
    [
        (
            "meshcomm.Layout(['x'], meshcomm.Mesh(range(4), [('x', 4)]))",
            "core.ranks.meshes core.arrays core.transport core.plans numpy",
        ),
        ("meshcomm.relayout", "storage fft halos layout_maps linalg tensorflow"),
        ("meshcomm.fft", "storage halos layout_maps linalg tensorflow"),
        ("meshcomm.save", "fft halos layout_maps linalg"),
    ],
)
def test_names_load_what_they_need_only(statement, without):
    loaded = loaded_by(f"import meshcomm\n{statement}")
    assert [name for name in loaded if name.partition(".")[0] in ("mpi4py", "scipy", "asyncio", "email")] == []
    unwanted = [f"meshcomm.{name}" for name in without.split()]
    assert [name for name in loaded if any(f"{name}.".startswith(f"{each}.") for each in unwanted)] == []


def test_numpy_fft_finds_ours_in_a_program_that_does_not_name_them():
    made = "meshcomm.ones(4, float, meshcomm.Layout(['x'], meshcomm.create_mesh([('x', 1)])))"
    loaded_by(f"import numpy, meshcomm\nassert numpy.fft.fftn({made}).to_numpy().tolist() == [4, 0, 0, 0]")


def test_arrays_are_looked_at_without_masked_ones():
    """By np.ma, which imports them, two threads at once could end in a RecursionError of NumPy's."""
    loaded = loaded_by("from meshcomm.core._arguments import as_array\nas_array([1, 2])")
    assert "numpy.ma" not in loaded


def test_a_public_name_is_what_its_import_says():
    """Checkers run the imports of ``_public``; Python asks ``meshcomm`` for a name at a time."""
    public = importlib.import_module("meshcomm._public")
    names = [name for name in vars(public) if not name.startswith("__")]
    assert sorted(names) == sorted([*mc.__all__, "open", *mc._MODULES])
    assert [name for name in names if getattr(public, name) is not getattr(mc, name)] == []


def test_public_classes_do_not_know_their_folder():
    for name in mc.__all__:
        if isinstance(getattr(mc, name), type):
            assert getattr(mc, name).__module__ == "meshcomm", f"{name}: write __module__ in its body"


def test_names_that_nobody_has_asked_for():
    done = run_python(
        "import meshcomm, pickle\n"
        "assert set(meshcomm.__all__) <= set(dir(meshcomm)) and 'fft' in dir(meshcomm)\n"
        "assert not hasattr(meshcomm, 'relayuot')\n"
        "assert pickle.loads(b'cmeshcomm\\nMachine\\n.').__name__ == 'Machine'\n"
        "from meshcomm import fft, relayout\n"
        "from meshcomm import *\n"
        "print(fft.fftn.__name__, relayout is meshcomm.relayout, DTensor.__name__)"
    )
    assert done.stdout == "fftn True DTensor\n", done.stderr


def test_methods_find_what_is_above_them():
    """A first call upwards imports what it needs."""
    done = run_python(
        "import numpy as np\n"
        "from meshcomm.core.layouts.mesh import Mesh\n"
        "from meshcomm.core.ranks.simulate import simulate\n"
        "with simulate(1) as world:\n"
        "    print(world.run(lambda: Mesh(range(1), [('x', 1)]).rank))\n"
        "    from meshcomm.core.arrays.create import distribute\n"
        "    from meshcomm.core.layouts.layout import Layout\n"
        "    t = world.run(lambda: np.sum(distribute(np.arange(4), Layout(['x'], Mesh(range(1), [('x', 1)])))))\n"
        "    print(int(t[0]))\n"
    )
    assert done.stdout == "[0]\n6\n", done.stderr


def modules():
    """Return the names of all modules of the package, compiled ones and those in folders too."""
    return sorted(each.name for each in pkgutil.walk_packages(mc.__path__, "meshcomm."))


def test_every_module_can_be_imported_and_names_shared_with_modules_mean_the_function():
    assert len(modules()) > 250
    for name in modules():
        if not name.endswith("__main__") and can_import(name):
            assert importlib.import_module(name).__name__ == name
    for name in ("simulate", "relayout"):
        assert inspect.isfunction(getattr(mc, name))


@pytest.mark.slow
def test_each_module_can_be_imported_first():
    """No module works only because another one was imported before: each is imported first in a process of its own."""
    names = [name for name in modules() if name.count(".") == 2 and not name.endswith("__main__")]
    # NumPy first, once: to import it anew takes most of the time.
    code = """
import numpy, numpy.typing, os, sys
for name in sys.argv[1:]:
    if not os.fork():
        __import__(name)
        os._exit(0)
    if os.wait()[1]:
        sys.exit(name)
"""
    names = [name for name in names if "adapters" not in name]
    done = run([sys.executable, "-c", code, *names], cpu=120.0)
    assert done.returncode == 0, done.stderr
