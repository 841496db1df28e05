"""Sets, searches and counts of tensors: where elements are, memory, errors; `test_numpy` compares them with NumPy."""

import numpy as np
import pytest

import meshcomm as mc
import meshcomm.array_api as xp
from meshcomm import Cuts, Cyclic, Layout
from meshcomm.blocks import rows
from meshcomm.errors import ShapeError
from support.numpy_law import check as alike
from support.reference import on_ranks
from support.tensors import check

U = "unsharded"
pytestmark = pytest.mark.filterwarnings("ignore")  # what NumPy has to say about NaN and bool


@on_ranks(3)
def test_distinct_elements_stay_on_their_ranks():
    mesh = mc.create_mesh([("x", 3)])
    t = mc.distribute(np.arange(3000) % 300, Layout([Cyclic("x", 7)], mesh))
    values, inverse, counts = np.unique(t, return_inverse=True, return_counts=True)
    assert values.layout.num_shards(0) == 3
    assert values.layout == counts.layout
    assert inverse.layout == t.layout
    assert 80 <= len(values.local) <= 120
    whole = np.unique(mc.relayout(t, [U]))
    assert whole.layout.is_fully_replicated()
    check(whole, np.arange(300))
    mask = np.isin(t, values[::2])
    assert mask.layout == t.layout


@on_ranks(3)
def test_one_run_over_all_ranks_and_ranks_without_elements():
    mesh = mc.create_mesh([("x", 3)])
    for a in (np.full(50, 7), np.array([3]), np.array([2, 1]), np.full(9, np.nan), np.array([np.nan, 1, np.nan])):
        t = mc.distribute(a, Layout([Cuts("x", sizes=[0, len(a), 0])], mesh))
        for equal_nan in (True, False):
            options = (True, True, True)
            alike(np.unique(t, *options, equal_nan=equal_nan), np.unique(a, *options, equal_nan=equal_nan))
        line = np.sort(t)
        alike(np.searchsorted(line, t, "right"), np.searchsorted(np.sort(a), a, "right"))


@on_ranks(2)
def test_rounds_within_the_scratch_limit():
    """Questions and row_numbers that do not fit into the scratch memory at once."""
    before, rows.DEFAULT_SCRATCH = rows.DEFAULT_SCRATCH, 2000
    try:
        mesh = mc.create_mesh([("x", 2)])
        a = np.random.default_rng(0).integers(0, 99, 1000)
        t, line = mc.distribute(a, Layout(["x"], mesh)), mc.distribute(np.sort(a), Layout(["x"], mesh))
        check(np.searchsorted(line, t), np.searchsorted(np.sort(a), a))
        check(np.isin(t, t[:10]), np.isin(a, a[:10]))
        alike(np.unique(t, return_inverse=True), np.unique(a, return_inverse=True))
    finally:
        rows.DEFAULT_SCRATCH = before


@on_ranks(2)
def test_names_of_the_array_api():
    mesh = mc.create_mesh([("x", 2)])
    a = np.array([[3.0, np.nan, 1], [1, 3, np.nan]])
    t = mc.distribute(a, Layout([U, "x"], mesh))
    options = {"equal_nan": False}
    found = xp.unique_all(t)
    alike(found, np.unique(a, True, True, True, **options))
    assert found._fields == ("values", "indices", "inverse_indices", "counts")
    alike(xp.unique_counts(t), np.unique(a, return_counts=True, **options))
    assert xp.unique_counts(t).counts.size == 4
    alike(xp.unique_inverse(t), np.unique(a, return_inverse=True, **options))
    alike(xp.unique_values(t), np.unique(a, **options))
    check(xp.isin(t, 3.0, invert=True), np.isin(a, 3.0, invert=True))
    line = xp.sort(xp.reshape(t, (-1,)))
    check(xp.searchsorted(line, 3.0, side="right"), np.searchsorted(np.sort(a, None), 3.0, "right"))
    order = xp.argsort(xp.reshape(t, (-1,)))
    check(
        xp.searchsorted(xp.reshape(t, (-1,)), line, sorter=order), np.searchsorted(np.sort(a, None), np.sort(a, None))
    )


# -- errors -----------------------------------------------------------------------------------------------------------


@on_ranks(3)
def test_ranks_outside_of_the_mesh():
    """They have results of known shapes; that of a set is not known."""
    mesh = mc.create_mesh([("x", 2)], devices=[2, 0])
    a = np.array([3, 1, 4, 1, 5])
    t, line = mc.distribute(a, Layout(["x"], mesh)), mc.distribute(np.sort(a), Layout(["x"], mesh))
    check(np.searchsorted(line, t), np.searchsorted(np.sort(a), a))
    check(np.searchsorted(line, [2, 4]), np.searchsorted(np.sort(a), [2, 4]))
    check(np.isin(t, t[:2]), np.isin(a, a[:2]))
    check(np.isin([7, 3], t), np.isin([7, 3], a))
    check(np.digitize(t, [2, 4]), np.digitize(a, [2, 4]))
    check(np.digitize(t, line[::-1]), np.digitize(a, np.sort(a)[::-1]))
    check(np.lexsort((t, line)), np.lexsort((a, np.sort(a))))
    counts, *edges = np.histogram2d(t, line, 3)
    assert (counts.shape, [each.shape for each in edges]) == ((3, 3), [(4,), (4,)])
    for function in (np.unique, np.bincount, lambda x: np.union1d(x, [1])):
        if mesh.rank is None:
            with pytest.raises(ShapeError, match="a rank outside of the mesh cannot know"):
                function(t)
        else:
            check(function(t), function(a))
