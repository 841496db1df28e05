"""Plans of contractions: what they move, within which memory, and that the search is small."""

import pytest

import meshcomm as mc
from meshcomm import Layout, Mesh
from meshcomm.numpy.contractions import grids

U, N = "unsharded", 960
ROWS, COLUMNS, BLOCKS = [("x", "y"), U], [U, ("x", "y")], ["x", "y"]


def plan(mesh, a, b, **options):
    first, second = (((N, N), "f8", Layout(specs, mesh)) for specs in (a, b))
    return mc.plan_einsum("ij,jk->ik", first, second, **options)


@pytest.mark.parametrize(
    ("sizes", "a", "b", "most"),
    [  # what a device receives of n x n elements: at most that of the best plan that keeps an operand or the result
        ((2, 2), BLOCKS, BLOCKS, 2 * (1 / 2 - 1 / 4)),
        ((2, 2), ROWS, ROWS, 3 / 4),
        ((2, 2), ROWS, COLUMNS, 3 / 4),
        ((2, 2), COLUMNS, ROWS, 3 / 4),
        ((2, 2), COLUMNS, COLUMNS, 3 / 4),
        ((4, 4), BLOCKS, BLOCKS, 2 * (1 / 4 - 1 / 16)),
        ((4, 4), ROWS, ROWS, 0.6),  # a row of devices becomes a grid; to gather b is 15 / 16
        ((8, 8), ROWS, ROWS, 0.35),
        ((4, 4), ["x", U], [U, "y"], 0),
        ((4, 4), ["x", U], [U, U], 0),
    ],
)
def test_bytes(sizes, a, b, most):
    mesh = Mesh(range(sizes[0] * sizes[1]), dict(zip("xy", sizes, strict=True)))
    for limit in (None, *([2**18] if mesh.size == 4 else [])):
        found = plan(mesh, a, b, max_scratch_bytes=limit)
        assert found.bytes_moved <= 1.1 * most * N * N * 8
        assert found.scratch_bytes <= (limit or 2**25)
        assert (found.messages > 0) == (most > 0)
        assert found.flops == 2 * N**3 // (mesh.size if b != [U, U] else mesh.dim_size("x"))


def test_what_more_memory_saves():
    """With more memory fewer bytes move, or as many."""
    mesh = Mesh(range(64), {"x": 64})
    moved = [plan(mesh, ["x", U], ["x", U], max_scratch_bytes=2**n).bytes_moved for n in (16, 20, 24)]
    assert moved == sorted(moved, reverse=True)
    assert moved[-1] < N * N * 8 / 2


def test_panels_are_counted_or_estimated():
    mesh = Mesh(range(4), {"x": 2, "y": 2})
    few, many = (plan(mesh, BLOCKS, BLOCKS, max_scratch_bytes=limit) for limit in (2**16, 2**14))
    assert few.contractions[0].count() <= 256 < many.contractions[0].count()
    assert few.bytes_moved == many.bytes_moved == N * N * 8 // 2


def test_the_search_is_small(monkeypatch):
    """For 4,096 devices it looks at less than a hundred grids."""
    looked = []
    made = grids.IndexGrid.__init__
    monkeypatch.setattr(grids.IndexGrid, "__init__", lambda self, *given: looked.append(given) or made(self, *given))
    found = plan(Mesh(range(4096), {"x": 64, "y": 64}), BLOCKS, ["y", "x"]).contractions[0]
    assert found.mesh.size == 4096
    assert 3 < len(looked) < 100
