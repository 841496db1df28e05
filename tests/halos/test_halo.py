"""Halos on simulated ranks: against numpy.pad on the whole array, and the rules of their calls."""

import numpy as np
import pytest

import meshcomm as mc
from meshcomm import (
    CollectiveMismatch,
    Layout,
    MeshcommError,
    MeshError,
    ShapeError,
)
from support.halo_cases import check_halo, dot, made, random_case
from support.reference import numbered, on_ranks, same_bits
from support.sampling import sampled, with_seeds
from support.tensors import on, on_some_ranks

U = "unsharded"
SEEDS = sampled(range(80), 8)


def line(size, *specs):
    return Layout(specs or ["x"], mc.create_mesh([("x", size)]))


# -- what the ghosts are ----------------------------------------------------------------------------------------------


@with_seeds(on_some_ranks, SEEDS)
def test_ghosts_are_those_of_numpy_pad(random, mesh):
    for _ in range(12):
        case = random_case(random, mesh)
        halo = made(case)
        check_halo(case, halo)
        changed = case._replace(whole=case.whole[::-1].copy())
        if halo.local is not None:
            halo.inner[...] = changed.whole[case.tensor.layout.block_slices(case.whole.shape, mesh.rank)]
        halo.update()
        check_halo(changed, halo)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("way", ["started", "in one exchange"])
def test_other_updates_give_the_same_ghosts(way, seed):
    def program(random, mesh):
        for _ in range(6):
            cases = [random_case(random, mesh) for _ in range(1 if way == "started" else random.randint(0, 4))]
            halos = [made(case) for case in cases]
            for halo in halos:
                if halo.local is not None:
                    for ghosts in halo._ghosts:
                        ghosts[...] = np.zeros((), halo.dtype)
            if way == "started":
                request = halos[0].start_update()
                assert request.wait() is halos[0]
                assert request.test()
            else:
                mc.update_halos(halos)
            for case, halo in zip(cases, halos, strict=True):
                check_halo(case, halo)

    on_some_ranks(seed, program)


@pytest.mark.parametrize("seed", SEEDS)
def test_reduce_is_the_adjoint_of_update(seed):
    """<update(x), y> == <x, reduce(y)> for all local arrays; integers, so that sums are exact."""

    def program(random, mesh):
        products = []
        for number in range(8):
            case = random_case(random, mesh, "f8")
            case = case._replace(boundary=[0 if not isinstance(b, str) else b for b in case.boundary], corners=True)
            halo = made(case)
            if halo.local is None:
                continue
            rng = np.random.default_rng([seed, number, mesh.rank])
            x, y = (rng.integers(-9, 10, halo.local.shape).astype("f8") for _ in range(2))
            halo.local[...] = x
            halo.update()
            forward = dot(halo.local, y)
            halo.local[...] = y
            halo.reduce()
            products.append((forward, dot(x, halo.local)))
            for ghosts in halo._ghosts:
                assert not ghosts.any()
        return products

    sums = []

    def collected(random, mesh):
        sums.append(program(random, mesh))

    on_some_ranks(seed, collected)
    totals = np.array([each for each in sums if each]).sum(axis=0)
    assert (totals[:, 0] == totals[:, 1]).all()


def test_a_ghost_adds_to_its_owner_as_often_as_it_is_there():
    def program():
        halo = mc.halo(mc.zeros(3, "i8", line(2)), 7, "periodic")
        halo.local[:] = 1
        halo.reduce()
        return halo.inner.tolist()

    assert on(2, program) == [[10, 10], [11]]  # 16 and 15 ones, cyclic over three elements


def test_rows_and_columns_of_replicas():
    """A mesh dimension that shards nothing: each replica keeps its ghosts to itself."""

    def program():
        mesh = mc.create_mesh([("r", 2), ("x", 2)])
        halo = mc.halo(mc.distribute(np.arange(4), Layout(["x"], mesh)), 1, "periodic")
        halo.inner[:] += 100 * mesh.coords(mesh.rank)[0]
        halo.update()
        return halo.local.tolist()

    assert on(4, program) == [[3, 0, 1, 2], [1, 2, 3, 0], [103, 100, 101, 102], [101, 102, 103, 100]]


def test_no_ghosts_beyond_an_edge():
    def right():
        halo = mc.halo(mc.distribute(np.arange(7), line(3)), {0: (2, 1)})
        return halo.local.tolist(), halo.slices(halo.mesh.rank), halo.width, halo.boundary

    assert on(3, right) == [
        ([0, 1, 2, 3], (slice(0, 4),), ((2, 1),), ("none",)),
        ([1, 2, 3, 4, 5], (slice(1, 6),), ((2, 1),), ("none",)),
        ([3, 4, 5, 6], (slice(3, 7),), ((2, 1),), ("none",)),
    ]


def test_staggered_fields_share_boundaries():
    """A field of n and one of n + 1 points, cut alike by Cuts."""

    def program():
        mesh = mc.create_mesh([("x", 2)])
        centers = mc.halo(mc.distribute(np.arange(6), Layout([mc.Cuts("x", (0, 3, 6))], mesh)), 1)
        faces = mc.halo(mc.distribute(np.arange(7), Layout([mc.Cuts("x", (0, 3, 7))], mesh)), {0: (0, 1)})
        return centers.local.tolist(), faces.local.tolist()

    assert on(2, program) == [([0, 1, 2, 3], [0, 1, 2, 3]), ([2, 3, 4, 5], [3, 4, 5, 6])]


# -- calls ------------------------------------------------------------------------------------------------------------


@on_ranks(4)
def test_an_update_allocates_and_plans_nothing(monkeypatch):
    mesh = mc.create_mesh([("x", 2), ("y", 2)])
    halos = [mc.halo(mc.zeros((8, 8), dtype, Layout(["x", "y"], mesh)), 2, "periodic") for dtype in ("f8", "i4")]
    for turn in range(3):
        for halo in halos:
            halo.update()
            halo.start_update().wait()
            halo.reduce()
        mc.update_halos(halos)
        if turn == 0:
            mc.barrier(mesh)
            if mesh.rank == 0:
                for name in ("new_bytes", "new_block"):
                    monkeypatch.setattr(f"meshcomm.halos.halo.{name}", None)
                monkeypatch.setattr("meshcomm.halos.programs.new_bytes", None)
                for name in ("build_one_update", "build_repeated", "build_reduce", "runs_of", "ghosts"):
                    for module in ("halo", "programs", "exchange"):
                        if hasattr(__import__(f"meshcomm.halos.{module}", fromlist=["x"]), name):
                            monkeypatch.setattr(f"meshcomm.halos.{module}.{name}", None)
            mc.barrier(mesh)


def test_ranks_that_differ_are_found_out():
    def program(what):
        layout = line(2)
        t, rank = mc.zeros(8, "f8", layout), layout.mesh.rank
        if what == "width":
            mc.halo(t, 1 + rank)
        halo = mc.halo(t, 1)
        if what == "boundary":
            mc.halo(t, 1, rank)
        elif what == "number":
            mc.update_halos([halo] if rank else [halo, mc.halo(t, 1)])
        elif what == "start":
            halo.start_update().wait() if rank else halo.update()
        elif what == "reduce":
            halo.reduce() if rank else halo.update()
        elif what == "known":
            other = mc.halo(t, 2)
            for _ in range(2):
                (halo if rank else other).update()

    for what in ("width", "boundary", "number", "start", "reduce", "known"):
        with pytest.raises(CollectiveMismatch):
            on(2, program, what)


def test_an_update_that_nobody_waits_for_is_reported():
    def program():
        mc.halo(mc.zeros(4, "f8", line(2)), 1).start_update()

    with pytest.raises(MeshcommError, match=r"start_update of a halo was never waited for: update of \(4,\) float64"):
        on(2, program)


@on_ranks(2)
def test_an_update_while_another_is_in_flight():
    halo = mc.halo(mc.zeros(8, "f8", line(2)), 1)
    request = halo.start_update()
    with pytest.raises(MeshError, match="in flight"):
        halo.update()
    request.wait()


def test_a_block_that_does_not_fit_is_found_on_all_ranks():
    def program():
        layout = line(2)
        t = mc.zeros(8, "f8", layout)
        if layout.mesh.rank == 0:
            t = mc.DTensor(np.zeros(5), layout, (8,), t.dtype)
        mc.halo(t, 1)

    with pytest.raises(ShapeError, match="by its layout"):
        on(2, program)


@on_ranks(3)
def test_the_tensor_of_a_halo_shares_its_memory():
    whole = numbered((6, 5))
    layout = line(3, "x", U)
    halo = mc.halo(mc.distribute(whole, layout), 2, "mirror")
    t = halo.tensor()
    assert np.shares_memory(t.local, halo.local)
    assert same_bits(t.to_numpy(), whole)
    assert same_bits(mc.relayout(t, Layout([U, "x"], layout.mesh)).to_numpy(), whole)
    halo.inner[...] += 1
    assert same_bits((t + 1).to_numpy(), whole + 2)
    assert "Halo of (6, 5) int64" in repr(halo)


@on_ranks(2)
def test_structured_elements_keep_their_padding():
    dtype = np.dtype([("a", "i1"), ("b", "f8")], align=True)
    whole = np.frombuffer(np.random.default_rng(1).bytes(16 * 6), dtype)
    case_layout = line(2)
    halo = mc.halo(mc.distribute(whole, case_layout), 1, "periodic")
    padded = np.concatenate([each.view("V16") for each in (whole[-1:], whole, whole[:1])])
    start = 3 * case_layout.mesh.rank
    assert halo.local.tobytes() == padded[start : start + 5].tobytes()
