"""Rows to ranks: `migrate`."""

from collections import namedtuple

import numpy as np
import pytest

import meshcomm as mc
from meshcomm.blocks import rows
from support.migrations import migrations
from support.reference import on_ranks
from support.sampling import sampled
from support.tensors import on_a_mesh


@pytest.fixture
def scratch(request, monkeypatch):
    """The bytes of scratch by default."""
    monkeypatch.setattr(rows, "DEFAULT_SCRATCH", request.param)


@pytest.mark.parametrize("scratch", [rows.DEFAULT_SCRATCH, 3000], indirect=True)
@pytest.mark.parametrize("seed", sampled(range(40), 5))
@pytest.mark.usefixtures("scratch")
def test_rows_come_in_the_order_of_source_and_place(seed):
    """Also in many rounds, when the scratch limit is small."""
    on_a_mesh(seed, migrations)


@pytest.mark.parametrize("scratch", [2**14], indirect=True)
@pytest.mark.usefixtures("scratch")
def test_scratch_stays_within_the_limit(monkeypatch):
    """Blocks of a round are counted; the result is not scratch."""
    most = []
    exchanged = rows.RowRanks.exchanged

    def counted(self, array, *others, **at):
        most.append(array.nbytes)
        return exchanged(self, array, *others, **at)

    monkeypatch.setattr(rows.RowRanks, "exchanged", counted)
    with mc.simulate(3) as world:
        mesh = mc.create_mesh([("x", 3)])
        world.run(lambda: mc.migrate(np.zeros((2000, 4)), np.arange(2000) % 3, mesh))
    assert 2**11 < max(most) <= 2**13


@on_ranks(4)
def test_the_forms_of_rows():
    mesh = mc.create_mesh([("x", 2), ("y", 2)])
    pair = namedtuple("pair", "a b")
    a, b, to = np.arange(3), np.ones((3, 2)), [3, 3, 0]
    with mc.default_mesh(mesh):
        for rows, kind in [((a, b), tuple), ([a, b], list), (pair(a, b), pair), ({"a": a, "b": b}, dict)]:
            found = mc.migrate(rows, to).rows
            assert type(found) is kind
        assert mc.migrate([1, 2, 3], to).rows.tolist() == {0: [3] * 4, 3: [1, 2] * 4}.get(mesh.rank, [])
        assert mc.migrate({}, to).rows == {}
        assert mc.migrate([], []).rows.shape == (0,)


@on_ranks(3)
def test_ranks_of_another_order_and_outside():
    """Devices are numbers of the mesh, not ranks."""
    mesh = mc.create_mesh([("x", 2)], devices=[2, 0])
    if mesh.rank is None:
        with pytest.raises(mc.MeshError, match="outside of the mesh"):
            mc.migrate([1], [0], mesh)
    else:
        found = mc.migrate([mesh.rank], [1], mesh)
        assert (found.rows.tolist(), found.sources.tolist()) == (([0, 1], [0, 1]) if mesh.rank else ([], []))


WRONG = {
    "lengths": (([1, 2], [0]), mc.ShapeError, r"rows has 2 rows, but devices has shape \(1,\)"),
    "of one of them": (([np.zeros(1), np.zeros(2)], [0]), mc.ShapeError, r"rows\[1\] has 2 rows"),
    "no axis": ((3.0, [0]), mc.ShapeError, "rows has no axes"),
    "axes of devices": (([1], [[0]]), mc.ShapeError, r"devices has shape \(1, 1\)"),
    "beyond": (([1, 2], [0, 3]), mc.MeshError, "row 1 is for device 3, but the mesh has devices 0 to 2"),
    "below": (([1], [-1]), mc.MeshError, "row 0 is for device -1"),
    "floats": (([1], [0.0]), mc.DTypeError, "devices are integers, not float64"),
    "bools": (([1], [True]), mc.DTypeError, "devices are integers, not bool"),
    "objects": (([None], [0]), mc.DTypeError, "object"),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_one_rank_that_is_wrong_stops_all(wrong):
    """Before anything is sent, so that the next call works."""
    arguments, kind, text = WRONG[wrong]
    with mc.simulate(3) as world:
        mesh = mc.create_mesh([("x", 3)])

        def program():
            with pytest.raises(kind, match=text):
                mc.migrate(*(arguments if mesh.rank == 1 else ([5], [0])), mesh)
            return mc.migrate([mesh.rank], [2], mesh).rows.tolist()

        assert world.run(program) == [[], [], [0, 1, 2]]


DIFFERENT = {
    "dtypes": ([1.0], "rows of .. float64"),
    "shapes": ([[1]], r"rows of \(1,\) int64"),
    "keys": ({"a": [1]}, r"rows\['a'\] of .. int64"),
}


@pytest.mark.parametrize("different", DIFFERENT)
def test_rows_that_differ_between_ranks(different):
    rows, text = DIFFERENT[different]
    with mc.simulate(3) as world:
        mesh = mc.create_mesh([("x", 3)])
        with pytest.raises(mc.CollectiveMismatch, match=text):
            world.run(lambda: mc.migrate(rows if mesh.rank == 1 else [5], [0], mesh))


def test_a_mesh_is_needed():
    with pytest.raises(mc.MeshError, match="No default mesh"):
        mc.migrate([1], [0])
    with pytest.raises(mc.MeshError, match="mesh must be a Mesh, not 3"):
        mc.migrate([1], [0], 3)
