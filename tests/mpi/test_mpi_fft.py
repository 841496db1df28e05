"""Fourier transforms on real ranks, which share memory or do not."""

from random import Random

import numpy as np
import pytest
import scipy.fft
from mpi4py import MPI

import meshcomm as mc
from meshcomm import Layout
from support.orders import any_layout, any_shape
from support.sampling import sampled
from support.verdicts import agree_raises

RANK, SIZE = MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size
GRIDS = {4: (2, 2), 6: (3, 2), 8: (2, 2, 2)}
KINDS = ("fftn", "ifftn", "rfftn", "irfftn", "hfftn", "ihfftn", "dctn", "dstn")


@pytest.fixture(params=["shared memory", "MPI"])
def mesh(request, comm, monkeypatch):
    if request.param == "MPI":
        monkeypatch.setenv("MESHCOMM_SHARED_MEMORY", "0")
    world = comm.Dup()
    made = mc.create_mesh(list(zip("xyz", GRIDS.get(SIZE, (SIZE,)), strict=False)), comm=world)
    yield made
    made.close()
    world.Free()


def values(shape, kind, seed):
    rng = np.random.default_rng(seed)
    a = rng.standard_normal(shape)
    return a if kind in ("rfftn", "ihfftn", "dctn", "dstn") else a + 1j * rng.standard_normal(shape)


def check(found, expected):
    whole = found.to_numpy()
    assert (whole.dtype, whole.shape) == (expected.dtype, expected.shape)
    assert np.abs(whole - expected).max(initial=0) <= 1e-13 * max(1, np.abs(expected).max(initial=0))


@pytest.mark.parametrize("seed", sampled(range(40), 4))
def test_random_cases(mesh, seed):
    random = Random(seed)
    for number in range(5):
        shape, kind = tuple(max(2, n) for n in any_shape(random)), random.choice(KINDS)
        a = values(shape, kind, (seed, number))
        t = mc.distribute(a, any_layout(random, mesh, shape))
        axes = tuple(random.sample(range(len(shape)), random.randint(1, len(shape))))
        check(getattr(mc.fft, kind)(t, axes=axes), getattr(scipy.fft, kind)(a, axes=axes))
        check(getattr(mc.fft, kind)(t, axes=axes, layout="same"), getattr(scipy.fft, kind)(a, axes=axes))


@pytest.mark.parametrize(("n", "kind"), [(60_000, "fft"), (2**16, "ifft"), (60_000, "rfft"), (99_991, "fft")])
def test_one_long_axis(mesh, n, kind):
    a = values(n, f"{kind}n", SIZE)
    line = Layout([tuple(mesh.dim_names)], mesh)
    t = mc.distribute(a, line)
    expected = getattr(scipy.fft, kind)(a)
    check(getattr(mc.fft, kind)(t, layout=line), expected)
    check(getattr(mc.fft, kind)(t), expected)


def test_a_plan_and_back_on_large_blocks(mesh):
    """Blocks beyond the sizes at which messages are sent at once."""
    shape = (64, 48, 80)
    names = tuple(mesh.dim_names)
    source = Layout([names, (), ()], mesh) if len(names) == 1 else Layout([names[0], names[1:], ()], mesh)
    plan = mc.fft.plan(shape, "f8", source, machine=mc.machine_of(mesh))
    a = values(shape, "rfftn", 1)
    fields = [mc.distribute(a, source), mc.distribute(2 * a, source)]
    for _ in range(3):
        spectra = plan.forward(fields)
        check(spectra[1], scipy.fft.rfftn(2 * a))
        fields = plan.backward(spectra, out=fields)
    check(fields[0], a)


def test_errors_are_raised_on_all_ranks(mesh):
    t = mc.ones((8, 8), "c16", Layout([tuple(mesh.dim_names), ()], mesh))
    with agree_raises(mc.ShapeError, "invalid norm"):
        mc.fft.fft(t, axis=0, norm="both")
    check(mc.fft.fft(t, axis=0), scipy.fft.fft(np.ones((8, 8), complex), axis=0))
