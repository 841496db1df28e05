"""The rules of the house: who imports whom, what is public, and what docstrings say."""

import ast
import importlib
import inspect
import sys
from pathlib import Path

import pytest

import meshcomm as mc
from support.patience import run

PACKAGE = Path(mc.__file__).parent

# Each module imports only from those above it.
ORDER = [
    "errors",
    "_late",
    "wire",
    "blocks",
    "machine",
    "mesh",
    "layout",
    "steps",
    "between",
    "partners",
    "plan",
    "_kernels",
    "_shared",
    "groups",
    "guard",
    "shared",
    "simulate",
    "context",
    "exchange",
    "relay",
    "node",
    "collectives",
    "execute",
    "dtensor",
    "batch",
    "relayout",
    "request",
    "placement",
    "arithmetic",
    "gradients",
    "_autograd",
    "initializers",
    "variables",
    "_patterns",
    "layout_map",
    "topology",
    "logical_devices",
    "calibrate",
    "__main__",
]
MODULES = [name for name in ORDER if name not in ("_kernels", "_shared")]
TREES = {path.stem: ast.parse(path.read_text()) for path in PACKAGE.glob("*.py")}


def imports(module):
    """The modules that are imported when *module* runs, at its top or in a function: (name, line)."""
    return [found for node in _at_run_time(TREES[module]) for found in _imported(node)]


def _at_run_time(node):
    if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
        return
    yield node
    for child in ast.iter_child_nodes(node):
        yield from _at_run_time(child)


def _imported(node):
    if isinstance(node, ast.Import):
        return [(alias.name, node.lineno) for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        assert node.level == 0, "imports are absolute"
        if node.module == "meshcomm":
            return [(f"meshcomm.{alias.name}", node.lineno) for alias in node.names]
        return [(node.module, node.lineno)]
    return []


def test_every_module_has_its_place():
    files = {path.name.partition(".")[0] for path in PACKAGE.iterdir() if path.suffix in (".py", ".pyx")}
    assert files - {"__init__"} == set(ORDER)


@pytest.mark.parametrize("module", MODULES)
def test_modules_import_only_from_those_above(module):
    above = ORDER[: ORDER.index(module)]
    for name, line in imports(module):
        if name.partition(".")[0] == "meshcomm":
            assert name.removeprefix("meshcomm.") in [*above, "meshcomm"], f"{module}.py:{line} imports {name}"
            assert name != "meshcomm" or module == "__main__"


@pytest.mark.parametrize("module", ["__init__", *MODULES])
def test_only_groups_imports_mpi4py(module):
    found = [f"{module}.py:{line}" for name, line in imports(module) if name.partition(".")[0] == "mpi4py"]
    assert module in ("groups", "__main__") or not found  # the command is a program of its own


def test_only_groups_creates_communicators():
    creators = {"Dup", "Split", "Create", "Create_group", "Split_type", "Clone", "Create_cart", "Idup", "Free"}
    for module, tree in TREES.items():
        called = {
            node.func.attr for node in ast.walk(tree) if isinstance(node, ast.Call) and hasattr(node.func, "attr")
        }
        assert module in ("groups", "__main__") or not called & creators, module


@pytest.mark.parametrize("module", ["_kernels", "_shared"])
def test_compiled_modules_know_no_mpi(module):
    source = (PACKAGE / f"{module}.pyx").read_text()
    assert "mpi4py" not in source
    assert "cimport numpy" not in source


@pytest.mark.parametrize("module", MODULES)
def test_nothing_is_freed_by_the_garbage_collector(module):
    for node in ast.walk(TREES[module]):
        assert getattr(node, "name", None) != "__del__", f"{module}.py:{node.lineno}"
        assert not (isinstance(node, ast.Attribute) and node.attr == "finalize")


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
    run = run_python(WITHOUT_MPI)
    assert run.returncode == 0, run.stderr
    assert run.stdout.endswith("works without MPI\n")


def test_importing_starts_no_mpi_and_no_thread():
    run = run_python(
        "import sys, threading, meshcomm\n"
        "print([n for n in sys.modules if n.startswith('mpi4py')], threading.active_count())\n"
        "print(sys.excepthook is sys.__excepthook__)"
    )
    assert run.stdout == "[] 1\nTrue\n", run.stderr


# -- the public surface -----------------------------------------------------------------------------------------------


def kind_of_name(name):
    """Constants, then classes, then functions, each in order."""
    return (0 if name.isupper() else 1 if name[0].isupper() else 2, name)


def test_all_is_sorted_and_is_what_is_public():
    assert list(mc.__all__) == sorted(mc.__all__, key=kind_of_name)
    assert len(set(mc.__all__)) == len(mc.__all__)
    public = {name for name, value in vars(mc).items() if not name.startswith("_") and not inspect.ismodule(value)}
    assert set(mc.__all__) == public


def test_names_shared_with_modules_mean_the_function():
    for module in MODULES[:-1]:
        importlib.import_module(f"meshcomm.{module}")
    assert callable(mc.simulate)
    assert callable(mc.relayout)


def documented():
    """Everything public: functions, methods and properties, with their docstrings."""
    for name in mc.__all__:
        value = getattr(mc, name)
        if inspect.isclass(value):
            for member, attribute in vars(value).items():
                if not member.startswith("_") and is_documented(attribute):
                    yield f"{name}.{member}", inspect.getdoc(getattr(value, member))
        elif callable(value):
            yield name, inspect.getdoc(value)


def is_documented(attribute):
    return callable(attribute) or isinstance(attribute, (property, classmethod, staticmethod))


@pytest.mark.parametrize(("name", "doc"), [pytest.param(*each, id=each[0]) for each in documented()])
def test_docstrings_say_local_or_collective_first(name, doc):
    assert doc, f"{name} has no docstring"
    first = doc.partition("\n\n")[0]
    assert "Local" in first or "Collective" in first, f"{name}: {first}"


def test_collective_functions_say_so():
    collective = {"relayout", "relayout_like", "all_to_all", "all_gather", "all_reduce", "reduce_scatter", "broadcast"}
    for name in (*collective, "collective_permute"):
        assert "Collective" in inspect.getdoc(getattr(mc, name)).partition("\n\n")[0]
    assert "Collective" in inspect.getdoc(mc.DTensor.to_numpy)


def test_errors_are_a_family():
    for name in ("MeshError", "LayoutError", "ShapeError", "GroupError", "DTypeError"):
        assert issubclass(getattr(mc, name), (mc.MeshcommError, ValueError))
        assert issubclass(getattr(mc, name), ValueError)
    for name in ("CollectiveMismatch", "CollectiveTimeout"):
        assert issubclass(getattr(mc, name), mc.MeshcommError)
        assert issubclass(getattr(mc, name), RuntimeError)
