"""Importing meshcomm needs no MPI and starts nothing, and every module of the package can be imported."""

import importlib
import inspect
import pkgutil
import sys

import pytest

import meshcomm as mc
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
        assert "meshcomm[mpich]" in str(error) and "module load" in str(error), error
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


def modules():
    """Return the names of all modules of the package, compiled ones and those in folders too."""
    return sorted(each.name for each in pkgutil.walk_packages(mc.__path__, "meshcomm."))


@pytest.mark.parametrize("name", [name for name in modules() if not name.endswith("__main__")])
def test_every_module_can_be_imported(name):
    if "adapters.autograd" in name or name.endswith("._autograd"):
        pytest.importorskip("autograd")
    assert importlib.import_module(name).__name__ == name


def test_names_shared_with_modules_mean_the_function():
    for name in modules():
        if not name.endswith("__main__") and "autograd" not in name:
            importlib.import_module(name)
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
    names = [name for name in names if "autograd" not in name]
    done = run([sys.executable, "-c", code, *names], cpu=120.0)
    assert done.returncode == 0, done.stderr
