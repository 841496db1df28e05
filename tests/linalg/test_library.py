"""How a ScaLAPACK is looked for, and what is said if there is none; without MPI and without a ScaLAPACK."""

import ctypes
import ctypes.util
import mmap
import sys

import pytest

import meshcomm as mc
from meshcomm.linalg import library, native, scalapack
from meshcomm.linalg.native import MPILibrary

MPICH = MPILibrary("mpich", "MPICH Version: 5.0.2", None)
OPEN_MPI = MPILibrary("openmpi", "Open MPI v5.0.8", None)


@pytest.fixture(autouse=True)
def choice():
    """What this process has chosen and loaded: nothing, and after the test what it had."""
    choice = library._ScalapackChoice
    before = choice.loaded, choice.chosen
    choice.loaded = choice.chosen = None
    yield choice
    choice.loaded, choice.chosen = before


@pytest.fixture
def nothing_installed(monkeypatch):
    monkeypatch.delenv("MKLROOT", raising=False)

    def missing(name, mode=None):
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr(ctypes, "CDLL", missing)


def in_memory(path):
    with open(path, "rb") as file:
        return mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)


@pytest.mark.parametrize("mpi", [MPICH, OPEN_MPI])
def test_without_a_library_the_error_says_what_to_install(nothing_installed, mpi):
    with pytest.raises(ImportError) as caught:
        library.load_for(mpi, None)
    message = str(caught.value)
    for fact in (
        mpi.name,
        "pip install mkl",
        f"apt install libscalapack-{mpi.interface}2.2",
        "meshcomm.linalg.scalapack.use(path)",
        f"libscalapack-{mpi.interface}.so.2.2: cannot open",
        "libscalapack.so: cannot open",
    ):
        assert fact in message
    other = ({"mpich", "openmpi"} - {mpi.interface}).pop()
    assert f"libscalapack-{other}" not in message


def test_a_file_that_is_not_there(tmp_path):
    path = str(tmp_path / "libscalapack.so")
    with pytest.raises(ImportError, match=r"use\('.*libscalapack.so'\) names cannot be used on MPICH.*cannot open"):
        library.load_for(MPICH, path)
    with pytest.raises(ImportError, match=r"has no libmkl_core\.so"):
        library.load_for(MPICH, str(tmp_path))
    with pytest.raises(ImportError, match=r"has no libmkl_core\.so"):
        library.load_for(MPICH, str(tmp_path / "libmkl_scalapack_lp64.so.2"))


def test_a_library_without_scalapack():
    with pytest.raises(ImportError, match="Csys2blacs_handle"):
        library.load_for(MPICH, ctypes.util.find_library("m"))


def test_mkl_of_the_environment_is_looked_for(monkeypatch, nothing_installed, tmp_path):
    monkeypatch.setenv("MKLROOT", str(tmp_path))
    found = [source for source, _ in library.candidates(MPICH, None) if str(tmp_path) in source]
    assert found == [f"MKL in {tmp_path}/lib/intel64", f"MKL in {tmp_path}/lib"]


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux lists the files in memory")
def test_a_library_for_another_mpi_is_refused(tmp_path):
    """A loaded library is a file in memory."""
    for name in ("libm.so.6", "libmpi.so.12", "libmpi.so.40.40.3"):
        (tmp_path / name).write_bytes(bytes(4096))
    with in_memory(tmp_path / "libmpi.so.12"), in_memory(tmp_path / "libm.so.6"):
        assert str(tmp_path / "libmpi.so.12") in native.loaded_files()
        library.check_same_mpi("libscalapack.so", MPICH)
        with (
            in_memory(tmp_path / "libmpi.so.40.40.3"),
            pytest.raises(OSError, match=rf"built for another MPI, {tmp_path}/libmpi.so.40.40.3"),
        ):
            library.check_same_mpi("libscalapack.so", MPICH)


@pytest.mark.parametrize(
    ("file", "interface"),
    [
        ("/usr/lib/libmpi.so.12", "mpich"),
        ("/usr/lib/libmpich.so.12.2.2", "mpich"),
        ("/opt/cray/libmpi_gnu_112.so.12", "mpich"),
        ("/usr/lib/libmpi.so.40.30.4", "openmpi"),
        ("libmpi.so", None),
        ("libmpi_abi.so.1", None),
        ("/opt/mpich/lib/libucs.so.0", None),
    ],
)
def test_binary_interfaces(file, interface):
    assert native.interface_of(file) == interface


def test_a_library_is_chosen_before_one_is_loaded(choice):
    scalapack.use("/somewhere/libscalapack.so")
    assert choice.chosen == "/somewhere/libscalapack.so"
    choice.loaded = library.ScalapackLibrary("libone.so", None, None)
    with pytest.raises(ImportError, match=r"libone.so is loaded already; use\(\) comes before"):
        scalapack.use("libother.so")


def test_a_simulated_world_says_that_it_cannot():
    def program():
        a = mc.ones((4, 4), "f8", mc.Layout(["x", mc.UNSHARDED], mc.create_mesh({"x": 2})))
        for call in (
            lambda: scalapack.cholesky(a),
            lambda: scalapack.matmul(a, a),
            lambda: scalapack.gemr2d(a, a.layout),
        ):
            with pytest.raises(mc.MeshError, match="needs MPI, which a simulated world does not have"):
                call()

    with mc.simulate(3) as world:
        world.run(program)
